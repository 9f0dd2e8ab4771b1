"""Scores that a frozen model gives to the pairs of a pool, and filters of negatives by these scores.

The model is a ranker, a larger bi-encoder, or the model that training starts from. It may know better than the
model that mines which hits do answer the query, and so are false negatives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from hardneg.data.collection import Collection
from hardneg.errors import NumericError
from hardneg.negatives.candidates import Filters
from hardneg.negatives.pool import SOURCES, NegativePool, scores_in
from hardneg.process.progress import Tick, silent, track
from hardneg.records import Float32, Int32, Int64, blocks, owners, spans
from hardneg.shown import counted

log = logging.getLogger(__name__)

Score = Callable[[Int32, Int32], Float32]  # queries [n], passages [n] -> the score of each pair [n]
Kept = Callable[[int, Callable[[], Float32]], Float32]  # a block's number, a function that scores it -> scores

PAIRS = 1 << 13  # pairs that are scored together


def score_anew(block: int, score: Callable[[], Float32]) -> Float32:
    """Score a block of pairs, without looking for stored scores."""
    return score()


@dataclass(frozen=True)
class Guide:
    """A frozen model that scores pairs of a query and a passage, the higher the better.

    Attributes
    ----------
    score : scores pairs of rows; the pairs of a query stand together.
    digest : the identity of the model, which a pool keeps with the scores.
    name : query row, passage row -> the words for this pair in a message.
    scale : factor from its scores to its logits, which only distillation uses.
    """

    score: Score
    digest: str
    name: Callable[[int, int], str] = "query row {} and passage row {}".format
    scale: float = 1.0

    def scored(self, pool: NegativePool, *, kept: Kept = score_anew, progress: Tick = silent) -> NegativePool:
        """The pool with the score of every entry and every positive; a pair that it has twice is scored once.

        Parameters
        ----------
        kept : returns the stored scores of a block, or calls the function that scores it.
        progress : called with the number of entries and positives that have a score, and with their total.

        Raises
        ------
        NumericError : a score is NaN or infinite.
        """
        entries, positives = (np.empty(len(rows), np.float32) for rows in (pool.passage_rows, pool.positive_rows))
        both = pool.offsets + pool.positive_offsets
        for number, (start, stop) in enumerate(blocks(both, PAIRS)):
            ours, theirs = (slice(each[start], each[stop]) for each in (pool.offsets, pool.positive_offsets))
            queries, passages, place = _pairs(pool, start, stop)
            found = kept(number, partial(self._checked, queries, passages))[place]
            entries[ours], positives[theirs] = np.split(found, [ours.stop - ours.start])
            progress(int(both[stop]), int(both[-1]))
        scored = replace(pool, ranker=self.digest, ranker_scale=self.scale)
        return replace(scored, ranker_scores=entries, positive_scores=positives)

    def _checked(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        scores = self.score(query_rows, passage_rows) if len(query_rows) else np.zeros(0, np.float32)
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            pair = self.name(int(query_rows[bad[0]]), int(passage_rows[bad[0]]))
            what = f"the score of {pair} is {scores[bad[0]]}"
            raise NumericError("BAD_SCORE", what, "check the model and these texts")
        return scores

    def filtered(self, pool: NegativePool, filters: Filters, *, keeps: bool = False) -> NegativePool:
        """The scored pool with only those entries whose scores are within the bounds of ``filters``.

        Bounds on ranks are not applied. A pool that this guide has scored, positives included, is not scored
        again.

        Parameters
        ----------
        keeps : a pool that another ranker scored keeps that ranker's scores; otherwise it gets those of the guide.
        """
        given = pool if keeps and pool.ranker not in ("", self.digest) else None
        scores = pool.positive_scores if pool.ranker == self.digest else None
        if scores is None or np.isnan(scores).any():
            with track("scoring candidates", "pairs") as tick:
                pool = self.scored(pool, progress=tick)
        return within(pool, filters, given)


def _pairs(pool: NegativePool, start: int, stop: int) -> tuple[Int32, Int32, Int64]:
    """The distinct pairs of a range of queries, and the place among them of each entry, then of each positive."""
    sides = (pool.offsets, pool.passage_rows), (pool.positive_offsets, pool.positive_rows)
    owner = np.concatenate([owners(offsets[start : stop + 1]) for offsets, _ in sides])
    rows = np.concatenate([rows[offsets[start] : offsets[stop]] for offsets, rows in sides])
    pairs, place = np.unique(owner << 31 | rows, return_inverse=True)
    passages = (pairs & ((1 << 31) - 1)).astype(np.int32)
    return pool.query_rows[start:stop][pairs >> 31], passages, place.astype(np.int64)


class GuideScorer(Protocol):
    """A model over a collection that scores pairs: a cross-encoder or a bi-encoder."""

    digest: str  # of the model
    scale: float  # factor from its scores to its logits

    def score(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """The scores [n] of pairs of rows, the higher the better; pairs of a query stand together."""
        ...


def guide_of(scorer: GuideScorer, collection: Collection) -> Guide:
    """The guide over a collection that scores as ``scorer``; its messages name ids."""

    def name(query: int, passage: int) -> str:
        return f"query {collection.query_ids[query]} and passage {collection.passage_ids[passage]}"

    return Guide(scorer.score, scorer.digest, name, scorer.scale)


def within(pool: NegativePool, filters: Filters, other: NegativePool | None = None) -> NegativePool:
    """The entries of a scored pool that are within the bounds on scores; ``filtered`` counts the others by source.

    A margin is measured from the lowest score of a query's positives, because training takes them in turn.

    Parameters
    ----------
    other : the same entries with another ranker's scores, which the result keeps.
    """
    assert pool.ranker_scores is not None, "the pool has no scores"
    scores, owner = pool.ranker_scores, owners(pool.offsets)
    keep = filters.on_scores.accept(np.ones(len(scores), np.int32), scores)
    if filters.margin:
        keep &= filters.below(scores, lowest_positive(pool)[owner])
    at = np.flatnonzero(keep)
    each_source = owner * len(SOURCES) + pool.sources.astype(np.int64)
    keep[at] = filters.highest(scores[at], each_source[at])
    counts = dict(pool.filtered)
    for code in np.unique(pool.sources).tolist():
        dropped = int(np.count_nonzero(~keep & (pool.sources == code)))
        counts[SOURCES[code]] = counts.get(SOURCES[code], 0) + dropped
    log.info(
        "bounds on the scores of the model that filters keep out %d of %d candidates",
        np.count_nonzero(~keep),
        len(keep),
    )
    return replace((pool if other is None else other).keep(keep), filtered=counts)


def lowest_positive(pool: NegativePool) -> Float32:
    """The lowest score [Q] of each query's positives by the pool's ranker; 0 for a query without positives.

    A query without negatives has nothing to compare, so its positives need no score; without one, it has NaN.

    Raises
    ------
    NumericError : a query has a negative, and a positive without a score.
    """
    assert pool.positive_scores is not None, "the pool has no scores"
    lowest, some = np.zeros(len(pool), np.float32), spans(pool.positive_offsets) > 0
    if some.any():
        lowest[some] = np.minimum.reduceat(pool.positive_scores, pool.positive_offsets[:-1][some])
    if lacking := int(np.count_nonzero(np.isnan(lowest) & (spans(pool.offsets) > 0))):
        some_lack = counted(lacking, "query has", "queries have")
        what = f"{some_lack} a positive without a score"
        fix = "score the pool again (hardneg score); if it has other positives, mine it again first (hardneg mine)"
        raise NumericError("BAD_SCORE", what, fix)
    return lowest


def is_scored(pool: NegativePool) -> bool:
    """Whether a ranker scored a pool, with the positives of all queries that have an entry."""
    owner = owners(pool.positive_offsets)
    return (
        bool(pool.ranker)
        and not np.isnan(scores_in(pool, "positive_scores")[spans(pool.offsets)[owner] > 0]).any()
    )


class StoredScores:
    """The scores that a pool keeps, looked up by pairs of a query and one of its entries or positives.

    Parameters
    ----------
    pool : a pool in which a ranker scored all entries and the positives of all queries that have an entry.

    Raises
    ------
    NumericError : a positive of such a query has no score.
    """

    def __init__(self, pool: NegativePool) -> None:
        lowest_positive(pool)
        self.pool, self.order = pool, np.argsort(pool.query_rows, kind="stable")

    def __call__(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """The scores [n] of pairs; raises :class:`KeyError` for a pair that is not in the pool."""
        queries, owner = np.unique(query_rows, return_inverse=True)
        at = np.searchsorted(self.pool.query_rows, queries, sorter=self.order)
        if at.max(initial=-1) >= len(self.order) or (self.pool.query_rows[self.order[at]] != queries).any():
            raise KeyError("a query that the pool has not")
        part = self.pool.select(self.order[at])
        pairs = np.concatenate(
            [
                owners(part.offsets) << 31 | part.passage_rows,
                owners(part.positive_offsets) << 31 | part.positive_rows,
            ]
        )
        scores = np.concatenate([scores_in(part, "ranker_scores"), scores_in(part, "positive_scores")])
        known, first = np.unique(pairs, return_index=True)
        wanted = owner.astype(np.int64) << 31 | passage_rows
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        if (known[place] != wanted).any():
            raise KeyError("a passage that the pool has not scored for its query")
        return scores[first[place]]

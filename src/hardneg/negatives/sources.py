"""Draws a pool of negatives from a run, or at random from the whole corpus."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.keyed_random import UInt64, below, hash64, key, smallest
from hardneg.negatives.candidates import (
    ALL,
    SLACK,
    Contains,
    Filters,
    Scored,
    candidates,
    is_known,
    without_answers,
)
from hardneg.negatives.pool import SOURCES, NegativePool, concatenate, matches, shortfall
from hardneg.records import BLOCK, Float32, Int32, Int64, Positives, Run, blocks, offsets_of, spans

log = logging.getLogger(__name__)

MORE = 4  # times as many trials, for random negatives of a query that got too few

Keep = Callable[[NegativePool], NegativePool]  # candidates -> those that may be drawn


def draw_entries(
    pool: NegativePool, counts: int | NDArray[np.integer], *, seed: int, purpose: str = "draw"
) -> NegativePool:
    """Draw ``counts`` (one number, or [Q]) entries of every query without replacement; all if there are fewer.

    All entries of a query are equally likely. The random number of an entry is a function of (seed, the pool's
    episode, query, passage, source, mining episode, anchor). So a draw depends neither on the other queries of
    the pool nor on its order.

    Entries that an earlier draw chose have the smallest random numbers under its key. Drawn again together with
    others under the same key, they would be chosen first: a draw from entries that were drawn before needs a
    ``purpose`` of its own.
    """
    wanted = np.broadcast_to(np.asarray(counts), len(pool))
    base = key(seed, purpose, pool.episode)
    chosen = [np.zeros(0, np.int64)]
    for start, stop in blocks(pool.offsets):
        offsets = pool.offsets[start : stop + 1]
        span = slice(offsets[0], offsets[-1])
        pair = np.repeat(pool.query_rows[start:stop].astype(np.int64) << 32, spans(offsets))
        pair |= pool.passage_rows[span]
        mined = pool.anchors[span].astype(np.int64) << 32
        mined ^= pool.episodes[span].astype(np.int64) << 8 | pool.sources[span]
        found = smallest(hash64(base, pair, mined), offsets - offsets[0], wanted[start:stop])
        chosen.append(np.sort(found) + offsets[0])  # back in the pool's order
    lengths = np.minimum(spans(pool.offsets), wanted)
    return pool.take(np.concatenate(chosen), offsets_of(lengths))


def sample_source(
    run: Run,
    positives: Positives,
    *,
    source: str,
    episode: int,
    depth: int | None,
    count: int | None,
    seed: int,
    filters: Filters = ALL,
    text_keys: UInt64 | None = None,
    positive_scores: Float32 | None = None,
    compared: Scored | None = None,
    anchors: Int32 | None = None,
    contains: Contains | None = None,
    keep: Keep | None = None,
    copies: Int32 | None = None,
) -> NegativePool:
    """Draw ``count`` negatives of every query (None: all candidates) from the :func:`candidates` of a run.

    With ``contains``, candidates that contain an answer are dropped after the cut to ``depth``, as in ANCE-Tele's
    code; no list is searched deeper to replace them. ``keep`` then says which candidates stay. If fewer than
    ``count`` remain, all are taken, and the log tells the shortfall. Memory beyond the result is bounded.
    """
    lists, by_query = matches(run.query_rows, positives.query_rows)
    hits = offsets_of(spans(run.offsets)[lists])[by_query]
    parts = []
    for start, stop in blocks(hits):
        block = lists[by_query[start] : by_query[stop]]
        part = candidates(
            run.select(block),
            positives.select(np.arange(start, stop)),
            source=source,
            episode=episode,
            depth=depth,
            filters=filters,
            text_keys=text_keys,
            positive_scores=None if positive_scores is None else positive_scores[start:stop],
            compared=None if compared is None else _from(compared, start),
            anchors=None if anchors is None else anchors[block],
            contains=contains,
            copies=copies,
        )
        part = part if keep is None else keep(part)
        parts.append(part if count is None else draw_entries(part, count, seed=seed))
    pool = concatenate(parts)
    if any(pool.filtered.values()):
        log.info("%s: bounds on rank and score keep out %d candidates", source, sum(pool.filtered.values()))
    if any(pool.copies.values()):
        what = "%s: %d candidates are left out, because a better one of their query has the same text"
        log.info(what, source, sum(pool.copies.values()))
    if count is not None:
        log_shortfall(source, pool, count)
    return pool


def _from(compared: Scored, start: int) -> Scored:
    """The scorer that takes positions within a block of queries, which begins at the position ``start``."""
    return lambda at, passages: compared(at + start, passages)


def log_shortfall(part: str, pool: NegativePool, wanted: int | NDArray[np.integer]) -> None:
    """Log how many queries got fewer negatives than ``wanted`` from the source ``part``, if any did."""
    missing = shortfall(pool, wanted)
    if missing["queries"]:
        log.info(
            "%s: %d queries got too few negatives; %d are missing", part, missing["queries"], missing["entries"]
        )


def random_source(
    positives: Positives,
    n_passages: int,
    *,
    count: int,
    seed: int,
    episode: int,
    epoch: int | None = None,
    text_keys: UInt64 | None = None,
    collection: str = "",
    contains: Contains | None = None,
    copies: Int32 | None = None,
) -> NegativePool:
    """Draw ``count`` random passages for every query: uniform over the corpus without D+(q) and copies of it.

    With ``copies``, as of :func:`candidates`, no two of a query have one text: others take the place of copies.
    With ``contains``, drawn passages that contain an answer are dropped and not replaced. Each ``epoch`` has its
    own draw; None: all epochs share one.
    """
    base = key(seed, "draw/random", episode, *([] if epoch is None else [epoch]))
    chosen = [np.zeros((0, count), np.int32)]
    step = max(1, BLOCK // (2 * count + SLACK))
    corpus = _Corpus(n_passages, count, base, text_keys, copies)
    for start in range(0, len(positives), step):
        part = positives.select(np.arange(start, min(start + step, len(positives))))
        chosen.append(_random_rows(part, corpus))
    rows = np.concatenate(chosen)
    found = rows < n_passages
    n = int(found.sum())
    pool = NegativePool(
        query_rows=positives.query_rows,
        positive_offsets=positives.offsets,
        positive_rows=positives.passage_rows,
        offsets=offsets_of(found.sum(axis=1)),
        passage_rows=rows[found],
        sources=np.full(n, SOURCES.index("random"), np.uint8),
        ranks=np.zeros(n, np.int32),
        scores=np.full(n, np.nan, np.float32),
        episodes=np.full(n, episode, np.int32),
        anchors=np.full(n, -1, np.int32),
        episode=episode,
        collection=collection,
    )
    pool = without_answers(pool, contains)
    log_shortfall("random", pool, count)
    return pool


@dataclass(frozen=True)
class _Corpus:
    """The passages that random negatives are drawn of: how many a query gets, and by which random numbers.

    ``text_keys`` and ``copies`` are those of :func:`random_source`; ``base`` keys the random numbers.
    """

    n_passages: int
    count: int
    base: int
    text_keys: UInt64 | None
    copies: Int32 | None


def _random_rows(positives: Positives, corpus: _Corpus) -> Int32:
    """Random rows [Q, count] of distinct texts that are acceptable, ascending; ``n_passages`` fills missing ones.

    These are the first ``count`` acceptable rows of numbered trials. A query that gets too few, because many
    passages have one text, gets more trials. In a tiny corpus its rows are drawn from the whole corpus.
    """
    trials, missing = 2 * corpus.count + SLACK, corpus.n_passages
    kept = _from_trials(positives, trials, corpus)
    short = np.flatnonzero(kept[:, -1] == missing)
    while len(short) and MORE * trials <= corpus.n_passages:
        trials *= MORE
        for block in np.array_split(short, -(-len(short) * trials // BLOCK)):
            kept[block] = _from_trials(positives.select(block), trials, corpus)
        short = short[kept[short, -1] == missing]
    for i in short:
        drawn = _from_corpus(positives.select(np.array([i])), corpus)
        kept[i] = missing
        kept[i, : len(drawn)] = drawn
    return kept.astype(np.int32)


def _from_trials(positives: Positives, number: int, corpus: _Corpus) -> NDArray[np.integer]:
    """The first ``count`` acceptable rows [Q, count] of so many trials, ascending; the rest is ``n_passages``."""
    n_passages, count = corpus.n_passages, corpus.count
    trials = np.arange(number)
    rows = below(hash64(corpus.base, positives.query_rows[:, None], trials[None, :]), n_passages)
    owner = np.repeat(np.arange(len(positives)), len(trials))
    texts = _texts(rows, corpus.copies)
    order = np.argsort(texts, axis=1, kind="stable")
    ordered = np.take_along_axis(texts, order, axis=1)
    fresh = np.ones(rows.shape, bool)
    np.put_along_axis(fresh, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
    fresh &= ~is_known(positives, owner, rows.ravel(), corpus.text_keys).reshape(rows.shape)
    kept = np.where(fresh & (np.cumsum(fresh, axis=1) <= count), rows, n_passages)
    return np.sort(kept, axis=1)[:, :count]


def _texts(rows: NDArray[np.integer], copies: Int32 | None) -> NDArray[np.integer]:
    """A row that stands for the text of each of ``rows``: the first one that has the text."""
    return rows if copies is None else np.where(copies[rows] < 0, rows, copies[rows])


def _from_corpus(positives: Positives, corpus: _Corpus) -> Int64:
    """Up to ``count`` random acceptable rows of distinct texts for one query, from the whole corpus, ascending."""
    rows = np.arange(corpus.n_passages)
    rows = rows[~is_known(positives, np.zeros(len(rows), np.int64), rows, corpus.text_keys)]
    words = hash64(corpus.base, positives.query_rows, rows, np.array([-1]))  # -1: no trial has this number
    rows = rows[np.argsort(words, kind="stable")]
    if corpus.copies is not None:
        rows = rows[np.sort(np.unique(_texts(rows, corpus.copies), return_index=True)[1])]
    return np.sort(rows[: corpus.count])

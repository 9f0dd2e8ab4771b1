"""Candidates: the hits of a run that may become negatives, without positives, copies of them and filtered hits.

Every source that ranks passages is a run: BM25's, the model's for the query, the model's for the positive passage
(lookahead), or one read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import check_fields
from hardneg.errors import InputError, NumericError, SettingsError
from hardneg.keyed_random import UInt64
from hardneg.negatives.pool import SOURCES, NegativePool, kept_offsets, matches
from hardneg.records import (
    Float32,
    Int32,
    Int64,
    Positives,
    Run,
    blocks,
    distinct,
    offsets_of,
    owners,
    spans,
    take_spans,
)

Contains = Callable[[Int32, Int32], NDArray[np.bool_]]  # queries [n], passages [n] -> does each contain an answer
Scored = Callable[[Int64, Int32], Float32]  # positions of queries [n], passages [n] -> the score of each pair [n]


@runtime_checkable
class SharesPositives(Protocol):
    """What also tells which passages are positives of another query with the same text, or the query itself.

    Attributes
    ----------
    by_answers : whether passages contain an answer, where labels are by answers.
    """

    @property
    def by_answers(self) -> Contains | None:
        """Whether passages contain an answer; None: labels are not by answers."""
        ...

    def no_negative(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is such a passage, or has the text of one, for its query [n]."""
        ...


SLACK = 16  # hits searched beyond depth + max |D+|, to replace passages that repeat a positive's text


@dataclass(frozen=True)
class Filters:
    """Which candidates of a list may be drawn; all bounds are inclusive.

    Bounds on ranks apply to the rank in the list as searched, which the entries of a pool store. ``max_score``
    (TopK-Abs) bounds the score in this list, on the scale of the source. Margins are positive-aware (NV-Retriever,
    de Souza P. Moreira et al., 2024, arXiv 2407.15831, Section 3.2): they compare a candidate's score for the
    query with the score ``p`` of the query's positive, both given by the model that mines. A candidate stays if
    its score is at most ``p - absolute_margin`` (TopK-MarginPos) and at most ``p - relative_margin * |p|``
    (TopK-PercPos). For p > 0 the latter bound is ``p * (1 - relative_margin)``. For p < 0 that product would lie
    above p, but the bound lies below p. Of the candidates of a query from one source that are within all bounds,
    the ``top`` with the highest scores stay. A :class:`~hardneg.negatives.scores.Guide` may score in place of the
    model that mines.
    """

    rank_from: int = 1
    rank_to: int | None = None
    max_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    top: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.top is not None and self.top < 1:
            raise SettingsError("BAD_SETTING", f"top = {self.top}", "give 1 or more, or leave it out")
        if self.rank_from < 1 or (self.rank_to is not None and self.rank_to < self.rank_from):
            found = f"rank window {self.rank_from} to {self.rank_to}"
            raise SettingsError("RANK_WINDOW", found, "give 1 <= rank_from <= rank_to")

    @property
    def on_ranks(self) -> Filters:
        """Only the bounds on ranks, which need no scores."""
        return Filters(rank_from=self.rank_from, rank_to=self.rank_to)

    @property
    def on_scores(self) -> Filters:
        """Only the bounds on scores."""
        return replace(self, rank_from=1, rank_to=None)

    @property
    def margin(self) -> bool:
        """Whether the scores of the positives are needed."""
        return self.absolute_margin is not None or self.relative_margin is not None

    def accept(self, ranks: Int32, scores: Float32) -> NDArray[np.bool_]:
        """Whether each hit [n] is within the bounds on ranks and scores; margins are not looked at."""
        keep = ranks >= self.rank_from
        if self.rank_to is not None:
            keep &= ranks <= self.rank_to
        if self.max_score is not None:
            keep &= scores <= self.max_score
        return keep

    def below(self, scores: Float32, positive: Float32) -> NDArray[np.bool_]:
        """Whether each score [n] keeps the margins to ``positive`` [n], the score of the positive of its query."""
        p, keep = positive.astype(np.float64), np.ones(len(scores), bool)
        if self.absolute_margin is not None:
            keep &= scores <= p - self.absolute_margin
        if self.relative_margin is not None:
            keep &= scores <= p - self.relative_margin * np.abs(p)
        return keep

    def highest(self, scores: Float32, owner: Int64) -> NDArray[np.bool_]:
        """Whether each score [n] is among the ``top`` highest of its ``owner`` [n]; of equal scores the first."""
        if self.top is None:
            return np.ones(len(scores), bool)
        order = np.lexsort((-scores, owner))
        ordered = owner[order]
        keep = np.empty(len(scores), bool)
        keep[order] = np.arange(len(scores)) - np.searchsorted(ordered, ordered) < self.top
        return keep


ALL = Filters()


def check_scores(sources: Iterable[str], filters: Filters, *, by_model: bool) -> None:
    """Refuse bounds on scores that a source does not have, see :func:`no_scores`.

    BM25 and files have no scores of positives, which margins compare. A model that mines ``by_model`` scores
    random negatives too.
    """
    for source in sources:
        unscored = source == "random" and not by_model and filters.on_scores != ALL
        if unscored or (source in ("bm25", "file") and filters.margin):
            raise no_scores(source)


def no_scores(source: str) -> SettingsError:
    """The refusal of bounds on the scores of a source that has none."""
    what, by = f"{source} has no margin to the positive's score", "filter it by rank or max_score"
    if source == "random":
        what, by = "random negatives have no scores that bounds could compare", "leave random out"
    elif source == "file":
        what = "margins need the positives' scores, which a file does not have"
        by = "filter by the ranks or scores that a run or a pool has"
    return SettingsError("NO_MARGIN", what, f"{by}, or by the scores of a model (--filter-by)")


def search_depth(depth: int, positives: Positives) -> int:
    """The depth to search at so that ``depth`` hits remain without positives and a few copies of them."""
    return depth + int(spans(positives.offsets).max(initial=1)) + SLACK


def is_known(
    positives: Positives, owner: Int64, rows: NDArray[np.integer], text_keys: UInt64 | None = None
) -> NDArray[np.bool_]:
    """Whether each passage of ``rows`` [n] is a positive (in D+) of the query at position ``owner`` [n].

    With ``text_keys`` (uint64 [n_passages], equal for equal texts), a passage with the text of a positive counts
    too.
    """
    positive_keys = positives.passage_rows if text_keys is None else text_keys[positives.passage_rows]
    keys = rows if text_keys is None else text_keys[rows]
    known = np.zeros(len(rows), bool)
    classes, label = np.unique(positive_keys, return_inverse=True)
    if not len(classes):
        return known
    # Few candidates are a positive of any query, so the cheap test against all positives comes first.
    place = np.minimum(np.searchsorted(classes, keys), len(classes) - 1)
    hit = np.flatnonzero(classes[place] == keys)
    pairs = owners(positives.offsets) * len(classes) + label
    known[hit] = np.isin(owner[hit] * len(classes) + place[hit], pairs)
    return known


def without_known(pool: NegativePool, text_keys: UInt64 | None = None) -> NegativePool:
    """Remove from a pool the positives of its queries, and passages with the same text."""
    known = np.zeros(len(pool.passage_rows), bool)
    for start, stop in blocks(pool.offsets):
        span = slice(pool.offsets[start], pool.offsets[stop])
        positives = pool.positives.select(np.arange(start, stop))
        owner = owners(pool.offsets[start : stop + 1])
        known[span] = is_known(positives, owner, pool.passage_rows[span], text_keys)
    return pool.keep(~known)


def without_answers(pool: NegativePool, contains: Contains | None) -> NegativePool:
    """Remove from a pool the passages that contain an answer of their query; with None nothing is removed."""
    if contains is None:
        return pool
    return pool.keep(~contains(np.repeat(pool.query_rows, spans(pool.offsets)), pool.passage_rows))


def candidates(
    run: Run,
    positives: Positives,
    *,
    source: str,
    episode: int,
    depth: int | None,
    filters: Filters = ALL,
    text_keys: UInt64 | None = None,
    positive_scores: Float32 | None = None,
    compared: Scored | None = None,
    anchors: Int32 | None = None,
    contains: Contains | None = None,
    copies: Int32 | None = None,
) -> NegativePool:
    """All hits of a run that may be drawn as negatives, as a pool of the queries of ``positives``.

    First, the positives D+(q) and passages with exactly their text are removed from each list, also the positives
    of equal queries and the query itself, which ``contains`` knows. Of the hits that have one text, only the first
    stays. Then the list is cut to ``depth`` (None: it is not cut), passages that contain an answer (as
    ``contains`` says) are removed, and the filters apply. A query without a list has no candidates.

    Parameters
    ----------
    run : the lists; ``run.query_rows`` says which query each belongs to. For lookahead, a list holds the
        neighbours of an anchor (a positive of the query, searched as a passage), and a query may have one list for
        each anchor. A passage in two lists is a candidate of both.
    text_keys : uint64 [n_passages], equal for equal texts; None tells passages apart by row only.
    positive_scores : [Q] the score of each query's positive; needed for margins.
    compared : scores candidates for their queries, on the scale of ``positive_scores``, for margins and ``top``;
        None: the scores of the run are used.
    anchors : [len(run)] passage row of each list's anchor; by default the first positive (lookahead), else
        none.
    copies : [n_passages] the first passage with the same text, -1 where there is no other; None: all texts differ.

    Raises
    ------
    InputError : two lists for one query without anchors, or margins without scores.
    NumericError : a positive's score is not finite.
    """
    assert run.unit != "chunk", "chunks are reduced to documents before they are mined"
    if anchors is None and len(distinct(run.query_rows)) < len(run):
        raise InputError("REPEATED_QUERY", "a query has two lists in the run", "keep one list a query")
    lists, by_query = matches(run.query_rows, positives.query_rows)
    query = owners(by_query)  # the query of each list
    index, by_list = take_spans(run.offsets, lists)
    which = owners(by_list)
    owner = query[which]
    rows, scores = run.passage_rows[index], run.scores[index]
    ranks = (np.arange(len(rows)) - by_list[which] + 1).astype(np.int32)

    keep = ~_never(positives, owner, rows, text_keys, contains)
    again = copies_of_earlier(rows, which, keep, copies)
    keep[again] = False
    begins = by_list[which]
    if depth is not None and len(again):
        again = again[_kept_before(keep, begins)[again] < depth]
    keep = _within(depth, keep, begins)
    if contains is not None:  # before the bounds: a passage that is no negative must not count for ``top``
        at = np.flatnonzero(keep)
        keep[at] = ~contains(positives.query_rows[owner[at]], rows[at])
    found = int(np.count_nonzero(keep))
    keep &= filters.accept(ranks, scores)
    if filters.margin or filters.top is not None:
        at = np.flatnonzero(keep)
        values = scores[at] if compared is None else compared(owner[at], rows[at])
        keep[at] = _compared(values, owner[at], filters, positive_scores)

    list_anchors = _anchors(positives, query, source) if anchors is None else anchors[lists]
    kept = np.flatnonzero(keep)
    return NegativePool(
        query_rows=positives.query_rows,
        positive_offsets=positives.offsets,
        positive_rows=positives.passage_rows,
        offsets=kept_offsets(keep, by_list[by_query]),
        passage_rows=rows[kept],
        sources=np.full(len(kept), SOURCES.index(source), np.uint8),
        ranks=ranks[kept],
        scores=scores[kept],
        episodes=np.full(len(kept), episode, np.int32),
        anchors=list_anchors[which[kept]].astype(np.int32),
        episode=episode,
        collection=run.collection,
        filtered={} if filters == ALL else {source: found - len(kept)},
        copies={source: len(again)} if len(again) else {},
    )


def _never(
    positives: Positives, owner: Int64, rows: Int32, text_keys: UInt64 | None, contains: Contains | None
) -> NDArray[np.bool_]:
    """Whether each hit [n] is a positive of its query or of an equal one, or the query itself, or a copy."""
    known = is_known(positives, owner, rows, text_keys)
    if isinstance(contains, SharesPositives):
        at = np.flatnonzero(~known)
        known[at] = contains.no_negative(positives.query_rows[owner[at]], rows[at])
    return known


def match_answers(run: Run, contains: Contains | None) -> None:
    """Look for answers in all hits of a run at once, if labels are by answers.

    Many hits are matched in several processes, and what was found is kept. Later questions about few hits find it.
    """
    book = contains.by_answers if isinstance(contains, SharesPositives) else contains
    if book is not None:
        book(run.query_rows[owners(run.offsets)], run.passage_rows)


def copies_of_earlier(
    rows: Int32, which: Int64, keep: NDArray[np.bool_], copies: Int32 | None
) -> NDArray[np.int64]:
    """The places, ascending, of the kept hits [n] whose text an earlier kept hit of their list ``which`` [n] has.

    Few passages have a text that others have, so only their hits are sorted.
    """
    if copies is None:
        return np.zeros(0, np.int64)
    text = copies[rows]
    at = np.flatnonzero((text >= 0) & keep)
    _, first = np.unique(which[at] << 31 | text[at], return_index=True)
    return np.delete(at, first)


def _compared(
    values: Float32, owner: Int64, filters: Filters, positive_scores: Float32 | None
) -> NDArray[np.bool_]:
    """Whether each hit [n] keeps the margins of ``filters`` and is then among its query's highest."""
    keep = np.ones(len(values), bool)
    if filters.margin:
        keep = filters.below(values, _of_hits(positive_scores, owner))
    left = np.flatnonzero(keep)
    keep[left] = filters.highest(values[left], owner[left])
    return keep


def _within(depth: int | None, keep: NDArray[np.bool_], begins: Int64) -> NDArray[np.bool_]:
    """Keep the first ``depth`` of the kept hits [n] of each list, which begins at ``begins`` [n]."""
    return keep if depth is None else keep & (_kept_before(keep, begins) < depth)


def _kept_before(keep: NDArray[np.bool_], begins: Int64) -> Int64:
    """How many hits of its list, which begins at ``begins`` [n], are kept before each hit [n]."""
    kept = offsets_of(keep.view(np.uint8))
    return kept[:-1] - kept[begins]


def _of_hits(positive_scores: Float32 | None, owner: Int64) -> Float32:
    """The score [n] of the positive of each hit's query."""
    if positive_scores is None:
        raise InputError("NO_POSITIVE_SCORES", "a margin needs the positives' scores", "give positive_scores")
    if not np.isfinite(positive_scores).all():
        where = int(np.flatnonzero(~np.isfinite(positive_scores))[0])
        raise NumericError("BAD_SCORE", f"positive {where} has score {positive_scores[where]}", "score it again")
    return positive_scores[owner]


def _anchors(positives: Positives, query: Int64, source: str) -> Int32:
    """The anchor of each list of ``query`` [L]: the first positive for lookahead (-1 if there is none)."""
    first = np.full(len(positives), -1, np.int32)
    if source == "lookahead":
        some = spans(positives.offsets) > 0
        first[some] = positives.passage_rows[positives.offsets[:-1][some]]
    return first[query]


def starved(
    run: Run,
    positives: Positives,
    *,
    depth: int,
    searched: int,
    text_keys: UInt64 | None = None,
    contains: Contains | None = None,
    copies: Int32 | None = None,
) -> Int64:
    """Positions of the run's lists that must be searched deeper than ``searched`` hits.

    Without D+, what :class:`SharesPositives` tells, and copies of these, the lists have fewer
    than ``depth`` candidates, and deeper hits may exist. Hits with one text count each: a text that a thousand
    passages have would else let all lists be searched so deep. With ``copies``, as of :func:`candidates`, they
    count once.
    """
    found, by_list = matches(positives.query_rows, run.query_rows)
    lists = np.flatnonzero((spans(by_list) > 0) & (spans(run.offsets) >= searched))
    queries = found[by_list[lists]]
    short = []
    for start, stop in blocks(offsets_of(spans(run.offsets)[lists])):
        index, offsets = take_spans(run.offsets, lists[start:stop])
        of_lists = positives.select(queries[start:stop])
        owner, rows = owners(offsets), run.passage_rows[index]
        keep = ~_never(of_lists, owner, rows, text_keys, contains)
        keep[copies_of_earlier(rows, owner, keep, copies)] = False
        short.append(spans(kept_offsets(keep, offsets)) < depth)
    return lists[np.concatenate(short)]

"""Re-ranking: the first hits of each query in the order of another model's scores, the others below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from hardneg.data.token_pairs import PairStore
from hardneg.errors import NumericError
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.pair_scores import score_pairs
from hardneg.process.progress import Tick, silent
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, owners, spans, take_spans
from hardneg.search.retriever import Retriever
from hardneg.search.runs import check_request

BLOCK = 1 << 18  # hits that are looked at together
PAIRS = 1 << 13  # pairs whose vectors are held together
EXACT = 1 << 23  # float32 holds every whole number up to twice as many
LARGEST = 2.0**100  # of a score; whole numbers below it are far from infinity


class PairScorer(Protocol):
    """What scores a query and a passage together: a cross-encoder, or a bi-encoder as :class:`RetrieverScorer`."""

    def score(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """The scores [n] of pairs of rows, the higher the better; pairs of a query stand together.

        A pair's score must not depend on the pairs beside it by more than rounding.
        """
        ...


class RetrieverScorer:
    """A bi-encoder over a collection as a scorer: its scores are those of its own search, bit for bit.

    Of a document in chunks the best one counts (MaxP), as in a search.
    """

    def __init__(self, retriever: Retriever) -> None:
        self.retriever, self.digest = retriever, retriever.digest

    def score(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """See :class:`PairScorer`."""
        scores = np.empty(len(query_rows), np.float32)
        for start in range(0, len(scores), PAIRS):
            part = slice(start, start + PAIRS)
            rows, which = np.unique(query_rows[part], return_inverse=True)
            vectors = self.retriever.queries.rows(rows)[which]
            scores[part] = self.retriever.pair_scores(vectors, passage_rows[part])
        return scores


class RankerScorer:
    """A cross-encoder over a collection as a scorer, in batches of equal tokens.

    Parameters
    ----------
    pairs : made for this ranker.
    budget : tokens of a batch.
    """

    def __init__(self, ranker: CrossEncoder, pairs: PairStore, *, budget: int = 16384) -> None:
        self.ranker, self.pairs, self.budget, self.digest = ranker, pairs, budget, ranker.digest()

    def score(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """See :class:`PairScorer`."""
        stores = self.pairs.queries, self.pairs.passages
        return score_pairs(self.ranker, *stores, query_rows, passage_rows, budget=self.budget)


def rerank(
    run: Run,
    scorer: PairScorer,
    k: int,
    *,
    name: Callable[[int, int], str] = "query row {} and passage row {}".format,
    progress: Tick = silent,
) -> Run:
    """Re-rank the first ``k`` hits of each query by a scorer; the hits after them keep their order below.

    Parameters
    ----------
    run : its hits best first; lists may be shorter than ``k``, and empty.
    scorer : is asked for about 262,144 hits at a time, those of a query together.
    name : what to call the rows of a query and a passage in a message.
    progress : called with the pairs scored and all of them.

    Returns
    -------
    A run of the same hits. The first ``k`` have the scorer's scores; of equal ones the lower row stands first. The
    others have whole numbers that fall from hit to hit and begin below the lowest score of the first ``k``: so
    whoever sorts by score gets this order, and no score of the old run stands beside one of the scorer. Beyond
    2^23 the numbers are multiples of a power of two, for float32 holds no others.

    Raises
    ------
    SettingsError : ``k`` is below 1.
    NumericError : a score is NaN, infinite, or beyond 2^100.
    """
    check_request(1, 1, k)
    heads = np.minimum(spans(run.offsets), k)
    rows, scores = np.empty(len(run.scores), np.int32), np.empty(len(run.scores), np.float32)
    done, total = 0, int(heads.sum())
    for block in _blocks(run.offsets):
        found = slice(run.offsets[block.start], run.offsets[block.stop])
        part = Run(
            run.query_rows[block],
            run.offsets[block.start : block.stop + 1] - run.offsets[block.start],
            run.passage_rows[found],
            run.scores[found],
        )
        rows[found], scores[found] = _reranked(part, scorer, heads[block], name)
        progress(done := done + int(heads[block].sum()), total)
    return replace(run, passage_rows=rows, scores=scores)


def _blocks(offsets: Int64) -> Iterator[slice]:
    """Cut the queries into blocks of about ``BLOCK`` hits."""
    start, ends = 0, offsets[1:]
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, offsets[start] + BLOCK, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def _reranked(
    run: Run, scorer: PairScorer, heads: Int64, name: Callable[[int, int], str]
) -> tuple[Int32, Float32]:
    """The passages and scores [n] of a block of queries, whose first ``heads`` [Q] hits are scored."""
    owner = owners(offsets_of(heads))
    index = np.arange(len(owner)) + (run.offsets[:-1] - offsets_of(heads)[:-1])[owner]
    rows, scores = run.passage_rows.copy(), np.empty(len(run.scores), np.float32)
    queries, passages = run.query_rows[owner], run.passage_rows[index]
    given = scorer.score(queries, passages) if len(index) else np.zeros(0, np.float32)
    check_scores(given, queries, passages, name)
    given = given + np.float32(0)  # one zero, not two
    order = np.lexsort((passages, -given, owner))
    rows[index], scores[index] = passages[order], given[order]
    some = heads > 0
    lowest = np.zeros(len(heads), np.float32)
    lowest[some] = scores[run.offsets[:-1][some] + heads[some] - 1]
    tail, offsets = _tails(run.offsets, heads)
    scores[tail] = below(lowest, offsets)
    return rows, scores


def _tails(offsets: Int64, heads: Int64) -> tuple[Int64, Int64]:
    """The indices of the hits after the head of each list [Q], and where each list of them begins."""
    ends = np.stack([offsets[:-1] + heads, offsets[1:]], axis=1).ravel()
    return take_spans(ends, np.arange(0, len(ends), 2))


def check_scores(scores: Float32, query_rows: Int32, passage_rows: Int32, name: Callable[[int, int], str]) -> None:
    """Refuse scores that nothing can be ranked by; raises :class:`NumericError`."""
    bad = np.flatnonzero(~(np.abs(scores) <= LARGEST))  # NaN compares as false
    if len(bad):
        pair = name(int(query_rows[bad[0]]), int(passage_rows[bad[0]]))
        what = f"the score of {pair} is {scores[bad[0]]}"
        raise NumericError("NAN_SCORE", what, "check the model")


def below(lowest: Float32, offsets: Int64) -> Float32:
    """Falling scores [n] for lists of hits, those of list i all below ``lowest[i]`` [Q] and no two equal.

    They are the whole numbers below it, or multiples of the smallest power of two that float32 tells apart there:
    enough for lists of 2^23 hits.
    """
    lengths = spans(offsets)
    step = np.exp2(np.ceil(np.log2(np.maximum(np.abs(lowest.astype(np.float64)) / EXACT, 1.0))))
    first = np.floor(lowest / step) * step
    places = np.arange(1, offsets[-1] + 1) - offsets[:-1].repeat(lengths)
    return (first.repeat(lengths) - places * step.repeat(lengths)).astype(np.float32)

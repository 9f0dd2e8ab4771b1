"""Re-ranking: the first hits of each query in the order of another model's scores, the others below them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.data.collection import Collection
from hardneg.data.token_pairs import PairStore
from hardneg.data.tokens import token_batch
from hardneg.errors import NumericError
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.pair_scores import score_pairs
from hardneg.process.hardware import Precision
from hardneg.process.progress import Tick, silent, track
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, spans, take_spans
from hardneg.search.locked import Guarded
from hardneg.search.retriever import Retriever
from hardneg.search.runs import OpenRetriever, check_request, check_rows, check_texts
from hardneg.surroundings import own_surroundings

BLOCK = 1 << 18  # hits that are looked at together
PAIRS = 1 << 13  # pairs whose vectors are held together
EXACT = 1 << 23  # float32 holds every whole number up to twice this one
ROW_BITS = 31  # of the number of a passage
MOST_GAPS = 4  # lists padded to equal length are sorted if they have at most so many places for each hit
LARGEST = 2.0**100  # of a score; whole numbers below it are far from infinity


class PairScorer(Protocol):
    """A scorer of queries with passages: a cross-encoder, or a bi-encoder as :class:`RetrieverScorer`."""

    def score(self, query_rows: Int32, passage_rows: Int32, *, progress: Tick = silent) -> Float32:
        """The scores [n] of pairs of rows, the higher the better; pairs of a query stand together.

        A pair's score must not depend on the other pairs by more than rounding.

        Parameters
        ----------
        progress : called with the number of pairs scored, and of all pairs, after each batch: a command that is
            asked to stop ends there.
        """
        ...


class TextScorer(PairScorer, Protocol):
    """A model that scores a collection's queries, and texts as well.

    Attributes
    ----------
    digest : identity of the model.
    """

    digest: str

    def of_texts(self, texts: Sequence[str]) -> PairScorer:
        """A scorer whose query rows are the places of these texts; passages are the collection's."""
        ...


class RetrieverScorer:
    """A bi-encoder over a collection as a scorer: its scores are those of its own search, bit for bit.

    A document in chunks has the score of its best chunk (MaxP), as in a search.

    Parameters
    ----------
    as_trained : the collection's queries are as long as training steps read them, not as long as search does.
    """

    def __init__(self, retriever: Retriever, *, as_trained: bool = False) -> None:
        self.retriever, self.digest, self.scale = retriever, retriever.digest, retriever.encoder.settings.scale
        self.as_trained = as_trained

    def hold(self) -> None:
        """Open all that scoring needs, and keep it until :meth:`close`."""
        self.retriever.hold(searching=False)
        _ = self.retriever.passages

    def close(self) -> None:
        """Let go of what :meth:`hold` keeps."""
        self.retriever.close()

    def score(self, query_rows: Int32, passage_rows: Int32, *, progress: Tick = silent) -> Float32:
        """See :class:`PairScorer`."""
        scores = np.empty(len(query_rows), np.float32)
        for start in range(0, len(scores), PAIRS):
            part = slice(start, start + PAIRS)
            rows, which = np.unique(query_rows[part], return_inverse=True)
            vectors = self.retriever.queries_as(self.as_trained).rows(rows)[which]
            scores[part] = self.retriever.pair_scores(vectors, passage_rows[part])
            progress(min(start + PAIRS, len(scores)), len(scores))
        return scores

    def of_texts(self, texts: Sequence[str]) -> PairScorer:
        """See :class:`TextScorer`."""
        stored = self.retriever.passages.shards[0].dtype  # a search rounds its queries to it
        return VectorScorer(self.retriever, self.retriever.text_vectors(texts).astype(stored))


class VectorScorer:
    """Vectors [n, dim] of texts as queries of a bi-encoder over a collection."""

    def __init__(self, retriever: Retriever, vectors: NDArray[Any]) -> None:
        self.retriever, self.vectors = retriever, vectors

    def score(self, query_rows: Int32, passage_rows: Int32, *, progress: Tick = silent) -> Float32:
        """See :class:`PairScorer`."""
        scores = np.empty(len(query_rows), np.float32)
        for start in range(0, len(scores), PAIRS):
            part = slice(start, start + PAIRS)
            scores[part] = self.retriever.pair_scores(self.vectors[query_rows[part]], passage_rows[part])
            progress(min(start + PAIRS, len(scores)), len(scores))
        return scores


class RankerScorer:
    """A cross-encoder over a collection as a scorer, in batches of equal tokens.

    Parameters
    ----------
    pairs : made for this ranker.
    budget : tokens of a batch.
    precision : the precision that the transformer computes in; None: the one that it has when it is called.
    collection : its ids name a pair in a message; None: the pair's rows do.
    """

    scale = 1.0  # its scores are logits

    def __init__(
        self,
        ranker: CrossEncoder,
        pairs: PairStore,
        *,
        budget: int = 16384,
        precision: Precision | None = None,
        collection: Collection | None = None,
    ) -> None:
        self.ranker, self.pairs, self.budget, self.precision = ranker, pairs, budget, precision
        self.collection, self.of_queries = collection, True
        self.digest = ranker.digest()

    def score(self, query_rows: Int32, passage_rows: Int32, *, progress: Tick = silent) -> Float32:
        """See :class:`PairScorer`."""
        stores = self.pairs.queries, self.pairs.passages
        named = None if self.collection is None else self._named
        options: Any = {"budget": self.budget, "precision": self.precision, "named": named}
        return score_pairs(self.ranker, *stores, query_rows, passage_rows, progress=progress, **options)

    def of_texts(self, texts: Sequence[str]) -> RankerScorer:
        """See :class:`TextScorer`."""
        queries = token_batch(list(texts), [], self.ranker.template.query, self.ranker.tokenizer)
        other = copy.copy(self)  # the digest is not taken again
        other.pairs, other.of_queries = replace(self.pairs, queries=queries), False
        return other

    def _named(self, query: int, passage: int) -> str:
        assert self.collection is not None
        asked = f"query {self.collection.query_ids[query]}" if self.of_queries else f"text {query + 1}"
        return f"{asked} and passage {self.collection.passage_ids[passage]}"


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
    progress : called with the number of pairs scored, and of all pairs, after each batch of the scorer.

    Returns
    -------
    A run of the same hits. The first ``k`` have the scorer's scores; of equal ones the lower row stands first. The
    others have whole numbers that fall from hit to hit and begin below the lowest score of the first ``k``. So
    sorting by score gives this order, and no score of the old run mixes with scores of the scorer. Beyond 2^23 the
    numbers are multiples of a power of two, since float32 does not hold every whole number there.

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
        rows[found], scores[found] = _reranked(part, scorer, heads[block], name, _after(progress, done, total))
        progress(done := done + int(heads[block].sum()), total)
    return replace(run, passage_rows=rows, scores=scores)


def _after(progress: Tick, before: int, total: int) -> Tick:
    """Progress over the pairs of a block, reported as those of all pairs, ``before`` of which are scored."""
    return lambda done, _: progress(before + done, total)


def _blocks(offsets: Int64) -> Iterator[slice]:
    """Cut the queries into blocks of about ``BLOCK`` hits."""
    start, ends = 0, offsets[1:]
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, offsets[start] + BLOCK, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def _reranked(
    run: Run, scorer: PairScorer, heads: Int64, name: Callable[[int, int], str], progress: Tick
) -> tuple[Int32, Float32]:
    """The passages and scores [n] of a block of queries, whose first ``heads`` [Q] hits are scored."""
    lengths = spans(run.offsets)
    index = _heads(run.offsets, heads)
    passages = run.passage_rows[index]
    queries = run.query_rows.repeat(heads)
    none = np.zeros(0, np.float32)
    given = scorer.score(queries, passages, progress=progress) if len(passages) else none
    check_scores(given, queries, passages, name)
    best, worth = ranked(passages, given, heads)
    if not (lengths > heads).any():
        return best, worth
    rows, scores = run.passage_rows.copy(), np.empty(len(run.scores), np.float32)
    rows[index], scores[index] = best, worth
    some = heads > 0
    lowest = np.zeros(len(heads), np.float32)
    lowest[some] = worth[np.cumsum(heads)[some] - 1]
    _write_tails(scores, run.offsets, heads, lowest)
    return rows, scores


def _heads(offsets: Int64, heads: Int64) -> slice | Int64:
    """The index of the first ``heads`` [Q] hits of each list; a slice, which copies nothing, if these are all."""
    if len(heads) and (heads == spans(offsets)).all():
        return slice(offsets[0], offsets[-1])
    starts = offsets[:-1] - offsets_of(heads)[:-1]
    return np.arange(int(heads.sum())) + starts.repeat(heads)


def ranked(passages: Int32, scores: Float32, lengths: Int64) -> tuple[Int32, Float32]:
    """Sort lists of hits by score, the highest first; of equal scores the lower row stands first.

    A hit becomes one whole number, with the score in the high bits and the row in the low bits. So one sort of
    numbers for each list is enough, and the hits are read back from the sorted numbers.

    Parameters
    ----------
    passages, scores : [n], the hits of all lists, one list after another; no score is NaN.
    lengths : [Q] of the lists.
    """
    width = int(lengths.max(initial=0))
    if len(lengths) * width > MOST_GAPS * len(scores):  # one list is far longer than the others
        owner = np.arange(len(lengths)).repeat(lengths)
        order = np.lexsort((passages, -(scores + np.float32(0)), owner))
        return passages[order], scores[order] + np.float32(0)
    bits = (scores + np.float32(0)).view(np.int32)  # one zero, not two
    keys = (_rising(bits) ^ -1).astype(np.int64) << ROW_BITS
    keys |= passages
    if len(lengths) * width == len(keys):
        keys.reshape(-1, max(width, 1)).sort(axis=1)
    else:
        filled = np.arange(width) < lengths[:, None]
        padded = np.full(filled.shape, np.iinfo(np.int64).max)
        padded[filled] = keys
        padded.sort(axis=1)
        keys = padded[filled]
    found = _rising((keys >> ROW_BITS).astype(np.int32) ^ -1)
    return (keys & ((1 << ROW_BITS) - 1)).astype(np.int32), found.view(np.float32)


def _rising(bits: Int32) -> Int32:
    """The bits of floats as whole numbers that rise as the floats do; applied twice it gives the bits again."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _write_tails(scores: Float32, offsets: Int64, heads: Int64, lowest: Float32) -> None:
    """Write the scores of the hits after the head of each list [Q], below its ``lowest`` score."""
    ends = np.stack([offsets[:-1] + heads, offsets[1:]], axis=1).ravel()
    tail, starts = take_spans(ends, np.arange(0, len(ends), 2))
    scores[tail] = below(lowest, starts)


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


# ---------------------------------------------------------------- behind a retriever


def in_file_order(run: Run, id_rank: Int32) -> Run:
    """A run whose hits of equal score rank by id descending, as in a run's file, so that cuts keep the same hits.

    Parameters
    ----------
    id_rank : [passages] rank of each passage's id.
    """
    if not (run.scores[1:] == run.scores[:-1]).any():
        return run
    owner = np.arange(len(run)).repeat(spans(run.offsets))
    order = np.lexsort((-id_rank[run.passage_rows], -run.scores, owner))
    return replace(run, passage_rows=run.passage_rows[order], scores=run.scores[order])


class RerankedRetriever(Guarded):
    """A retriever whose first hits a scorer re-ranks; it is asked as a retriever is, from several threads too.

    For the collection's queries, hits to which the retriever gives equal scores are ranked by id before the scorer
    ranks them, as in a run's file. So the hits are those that ``search`` and then ``rerank`` give.

    Parameters
    ----------
    first : the retriever that ranks first; the code that opened it must close it.
    depth : how many hits of each query are re-ranked, however few are asked for.

    Attributes
    ----------
    collection : the collection that is searched.
    """

    def __init__(self, first: OpenRetriever, scorer: TextScorer, depth: int) -> None:
        super().__init__()
        self.first, self.scorer, self.depth = first, scorer, depth
        self.collection = first.collection

    def search_queries(self, query_rows: Int32, k: int) -> Run:
        """The run of these queries of the collection, ``k`` deep; see :func:`rerank`."""
        check_rows(query_rows, self.collection.n_queries)
        run = in_file_order(self.first.search_queries(query_rows, max(k, self.depth)), self.id_rank)
        ids = self.collection.query_ids
        with self.lock, own_surroundings():
            return self._reranked(run, self.scorer, lambda row: f"query {ids[row]}").cut(k)

    def search_texts(self, texts: Sequence[str], k: int) -> Run:
        """The run of texts that are no queries of the collection; its query rows count from 0."""
        check_texts(texts)
        run = self.first.search_texts(texts, max(k, self.depth))
        with self.lock, own_surroundings():
            return self._reranked(run, self.scorer.of_texts(texts), lambda row: f"text {row + 1}").cut(k)

    @cached_property
    def id_rank(self) -> Int32:
        """The rank of each passage's id, which decides ties."""
        return self.collection.passage_ids.id_rank

    def _reranked(self, run: Run, scorer: PairScorer, called: Callable[[int], str]) -> Run:
        ids = self.collection.passage_ids

        def name(query: int, passage: int) -> str:
            return f"{called(query)} and passage {ids[passage]}"

        with track("re-ranking", "pairs") as tick:
            return rerank(run, scorer, self.depth, name=name, progress=tick)

"""Lexical search: BM25 in Lucene's variant, over titles and texts whose terms an analyser makes by language.

Every term's score in every passage is computed once, when the index is built (Lu, "BM25S", 2024); a query adds the
lists of its terms. Kamphuis et al., "Which BM25 Do You Mean?" (2020), names the variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.process.memory import require, spare
from hardneg.process.progress import counted, wait_for_another
from hardneg.process.threads import usable_threads
from hardneg.records import Float32, Int32, Int64, Run, offsets_of
from hardneg.search.analysers import facts_of, tokenizer_of
from hardneg.search.bm25_building import K1, B, Passages, build
from hardneg.search.runs import UNASKED, check_request, limited_run, part_of, run_of_lists
from hardneg.storage.artifacts import is_published, load_array, open_artifact, publish, read_json
from hardneg.storage.digests import digest_json
from hardneg.storage.lease import LEASES, made_once

KIND = "bm25"
ARRAYS = ("offsets", "rows", "scores")
BLOCK = 32  # scores looked at together for the best
SPARSE = 128  # a query with fewer than n / SPARSE postings is scored from these alone; n: all passages
DENSE = 8  # a term of n / DENSE passages or more may be spread (kept as a vector of scores of all passages), if
ASKED = 4  # so many queries have the term, and
SPREAD = 1 << 25  # the spread terms have at most so many scores together: 128 MiB
COMPILED = 1 << 26  # queries times passages from which on it pays to load, or first compile, numba's code
SMALLEST = np.finfo(np.float32).tiny

# How often a query has a term, where the term's postings begin and end, and its scores of all passages if spread.
Posting = tuple[float, int, int, Float32 | None]

# How often each known term is in each query [T], these terms [T], and where each query begins [Q + 1].
QueryTerms = tuple[Float32, Int64, Int64]


@dataclass(frozen=True, eq=False)
class Bm25Index:
    """The postings of every term, memory-mapped.

    Term t is in the passages ``rows[offsets[t]:offsets[t + 1]]``, which ascend.
    """

    terms: dict[str, int]
    offsets: Int64  # [V + 1]
    rows: Int32  # [P]
    scores: Float32  # [P]
    n: int
    collection: str
    language: str

    def passages_with(self, terms: Int64) -> Int64:
        """How many passages have each of these terms."""
        return self.offsets[1:][terms] - self.offsets[terms]

    def among(self, passages: Int32) -> Bm25Index:
        """The index of some passages with the scores that they have among all.

        Parameters
        ----------
        passages : [n] their rows, which ascend; hits count from 0 among them.
        """
        places = np.full(self.n, -1, np.int32)
        places[passages] = np.arange(len(passages), dtype=np.int32)
        rows = places[self.rows]
        kept = np.flatnonzero(rows >= 0)
        offsets = np.searchsorted(kept, self.offsets)
        return replace(self, offsets=offsets, rows=rows[kept], scores=self.scores[kept], n=len(passages))


def bm25_run(collection: Passages, query_rows: Int32, k: int, cache: Path, *, among: Int32 | None = None) -> Run:
    """The run of queries of the collection itself; see :func:`bm25_texts`."""
    texts = collection.query_texts.take(query_rows)
    return bm25_texts(collection, texts, k, cache, query_rows, among=among)


def bm25_texts(
    collection: Passages,
    texts: Sequence[str],
    k: int,
    cache: Path,
    query_rows: Int32 | None = None,
    language: str | None = None,
    *,
    among: Int32 | None = None,
) -> Run:
    """The k best passages of each query text that share a term with it.

    Parameters
    ----------
    cache : folder of derived stores, where the index is opened or, the first time, built.
    query_rows : [Q] what the run calls the queries; 0, 1, ... without it.
    language : whose analyser makes the terms; None: the collection's.
    among : [n] the rows of the passages that are searched, which ascend; None: all.

    Returns
    -------
    Hits by score descending, then row ascending, also at the cut; none of score 0, so lists may be shorter than k.

    Raises
    ------
    SettingsError, InputError
        k is below 1; there are no queries or no passages.
    """
    k = check_request(len(texts), collection.n_passages if among is None else len(among), k)
    rows = np.arange(len(texts), dtype=np.int32) if query_rows is None else query_rows
    index = open_bm25(collection, cache, language)
    if among is None:
        return search(index, texts, rows, k)
    run = search(index.among(among), texts, rows, k)
    return limited_run(run, among, part_of(among))


def open_bm25(collection: Passages, cache: Path, language: str | None = None) -> Bm25Index:
    """The index of a collection, from the cache, where it is built first if it is missing.

    Each ``language`` (None: the collection's) has an index of its own.
    """
    language = language or collection.language
    path, settings, inputs = _place(collection, cache, language)
    made_once(
        cache / LEASES / path.name,
        lambda: is_published(path, KIND),
        lambda: _publish(path, collection, language, settings, inputs),
        wait_for_another,
    )
    open_artifact(path, KIND)
    ids = {term: i for i, term in enumerate(read_json(path / "terms.json"))}
    offsets, rows, scores = (load_array(path / f"{name}.npy") for name in ARRAYS)
    return Bm25Index(ids, offsets, rows, scores, collection.n_passages, collection.digest, language)


def has_bm25(collection: Passages, cache: Path) -> bool:
    """Whether the index of a collection, in its own language, lies in a cache already."""
    return is_published(_place(collection, cache, collection.language)[0], KIND)


def _place(collection: Passages, cache: Path, language: str) -> tuple[Path, dict[str, Any], dict[str, str]]:
    """The folder of an index in a cache, and the settings and inputs that it is named by."""
    settings = {"variant": "lucene", "k1": K1, "b": B, **facts_of(language)}
    inputs = {"collection": collection.digest}
    return cache / KIND / digest_json([inputs, settings])[:32], settings, inputs


def _publish(
    path: Path, collection: Passages, language: str, settings: dict[str, Any], inputs: dict[str, str]
) -> None:
    with publish(path, KIND, settings=settings, inputs=inputs, replace=True) as draft:
        build(draft, collection, language)


def search(index: Bm25Index, texts: Sequence[str], query_rows: Int32, k: int) -> Run:
    """The run of query ``texts`` [Q]; see :func:`bm25_texts`."""
    if (scratch := 4 * _width(index)) > UNASKED:  # a float32 score of every passage, for each thread
        require(scratch, "searching by BM25")
    asked = query_terms(index, texts)
    lists = counted(best_of_each(index, asked, k), "searching by BM25", "queries", len(texts))
    return run_of_lists(lists, query_rows, k, index.passages_with(asked[1]), asked[2], index.collection)


def best_of_each(index: Bm25Index, asked: QueryTerms, k: int) -> Iterator[tuple[Int32, Float32]]:
    """The rows and scores of the k best passages of each query, however little memory there is."""
    index = replace(index, rows=np.asarray(index.rows), scores=np.asarray(index.scores))  # slices cost less
    way = _compiled if _is_worth_compiling(len(asked[2]) - 1, index.n) else _interpreted
    return way(index, asked, k)


# ---------------------------------------------------------------- searching


def _interpreted(index: Bm25Index, asked: QueryTerms, k: int) -> Iterator[tuple[Int32, Float32]]:
    """The rows and scores of the k best passages of each query, by numpy."""
    weights, terms, offsets = asked
    begins, ends = index.offsets[terms].tolist(), index.offsets[1:][terms].tolist()
    dense = dict(zip(*_spread(index, terms), strict=True))
    postings = [*zip(weights.tolist(), begins, ends, map(dense.get, terms.tolist()), strict=True)]
    scores = np.zeros(_width(index), np.float32)
    return (_best(index, postings[start:stop], scores, k) for start, stop in pairwise(offsets.tolist()))


def _is_worth_compiling(queries: int, passages: int) -> bool:
    """Whether there is enough to search, and numba is installed and works with this version of numpy."""
    if queries * passages < COMPILED:
        return False
    try:
        import hardneg.search.bm25_compiled  # noqa: F401
    except ImportError:
        return False
    return True


def _compiled(index: Bm25Index, asked: QueryTerms, k: int) -> Iterator[tuple[Int32, Float32]]:
    """The same hits as those of :func:`_interpreted`, by compiled code on all threads that there is memory for."""
    from hardneg.search.bm25_compiled import Postings, search_compiled

    weights, terms, offsets = asked
    chosen, vectors = _spread(index, terms)
    places = {term: i for i, term in enumerate(chosen)}
    postings = Postings(
        offsets,
        weights,
        begins=index.offsets[terms],
        ends=index.offsets[1:][terms],
        spread=np.array([places.get(term, -1) for term in terms.tolist()], np.int64),
        rows=index.rows,
        values=index.scores,
        vectors=vectors,
    )
    threads = max(min(usable_threads(), spare() // (4 * _width(index))), 1)
    return search_compiled(postings, k, threads=threads, block=BLOCK)


def _width(index: Bm25Index) -> int:
    """The number of passages, rounded up to whole blocks."""
    return -(-index.n // BLOCK) * BLOCK


def query_terms(index: Bm25Index, texts: Sequence[str]) -> QueryTerms:
    """How often each known term is in each query; the terms of a query ascend."""
    tokenizer = tokenizer_of(index.language)
    ids = list(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
    known = np.array([index.terms.get(stem, -1) for stem in tokenizer.get_vocab_dict()], np.int64)
    lengths = np.array([len(query) for query in ids], np.int64)
    terms = known[np.concatenate([np.zeros(0, np.int64), *(np.asarray(query, np.int64) for query in ids)])]
    query = np.repeat(np.arange(len(ids)), lengths)[terms >= 0]
    pairs, counts = np.unique(np.stack([query, terms[terms >= 0]]), axis=1, return_counts=True)
    offsets = offsets_of(np.bincount(pairs[0], minlength=len(ids)))
    return counts.astype(np.float32), pairs[1], offsets


def _spread(index: Bm25Index, terms: Int64) -> tuple[list[int], Float32]:
    """The terms [V] that many passages and enough queries have, and their scores for all passages [V, n].

    Adding such a vector takes a few instructions for eight passages; adding postings takes two or more for each.
    The sums have the same bits, since adding 0 changes none.

    Parameters
    ----------
    terms : [n] the terms of all queries, concatenated.
    """
    asked, counts = np.unique(terms, return_counts=True)
    passages = index.passages_with(asked)
    worth = np.flatnonzero((passages >= max(index.n // DENSE, 1)) & (counts >= ASKED))
    worth = worth[np.argsort(-counts[worth] * passages[worth], kind="stable")]
    chosen = asked[worth[: SPREAD // max(_width(index), 1)]].tolist()
    vectors = np.zeros((len(chosen), _width(index)), np.float32)
    for vector, term in zip(vectors, chosen, strict=True):
        begin, end = index.offsets[term : term + 2].tolist()
        vector[index.rows[begin:end]] = index.scores[begin:end]
    return chosen, vectors


def _best(index: Bm25Index, postings: list[Posting], scores: Float32, k: int) -> tuple[Int32, Float32]:
    """The rows and scores of the k best passages of one query.

    ``scores`` is scratch space for one score of every passage.
    """
    if sum(end - begin for _, begin, end, _ in postings) < index.n // SPARSE:
        return _best_of_few(index, postings, k)
    scores.fill(0)
    for weight, begin, end, dense in postings:
        if dense is None:
            _add(scores, index.rows[begin:end], weight, index.scores[begin:end])
        else:
            np.add(scores, dense if weight == 1 else np.float32(weight) * dense, out=scores)
    rows = _candidates(scores, k)
    return _cut(rows.astype(np.int32), scores[rows], k)


def _best_of_few(index: Bm25Index, postings: list[Posting], k: int) -> tuple[Int32, Float32]:
    """The rows and scores that :func:`_best` gives, from the query's postings alone, for a query that has few."""
    none = np.zeros(0, np.int32)
    found = [index.rows[begin:end] for _, begin, end, _ in postings]
    rows, places = np.unique(np.concatenate([none, *found]), return_inverse=True)
    scores = np.zeros(len(rows), np.float32)
    for weight, begin, end, _ in postings:
        mine, places = places[: end - begin], places[end - begin :]
        _add(scores, mine, weight, index.scores[begin:end])
    return _cut(rows, scores, k)


def _add(scores: Float32, rows: NDArray[np.integer], weight: float, values: Float32) -> None:
    """Add the scores of one term's passages to ``scores``.

    One thread adds them in order, so that sums have the same bits every time.
    """
    np.add.at(scores, rows, values if weight == 1 else np.float32(weight) * values)


def _candidates(scores: Float32, k: int) -> Int64:
    """Ascending rows that include the k best: those whose score reaches the k-th largest maximum of a block.

    The k blocks with the largest maxima have k scores that reach the least of these maxima. So no lower score is
    needed.
    """
    blocks = scores.reshape(BLOCK, -1)  # a block is a column: the maxima of neighbours are found together
    maxima = blocks.max(axis=0)
    least = np.partition(maxima, -k)[-k] if k <= len(maxima) else np.float32(0)
    columns = np.flatnonzero((maxima >= least) & (maxima > 0))
    offsets, among = np.nonzero(blocks[:, columns] >= max(least, SMALLEST))
    return offsets * len(maxima) + columns[among]


def _cut(rows: Int32, scores: Float32, k: int) -> tuple[Int32, Float32]:
    """The rows and scores of the k best of some hits, best first; the hits are given in the order of rows."""
    order = np.argsort(-scores, kind="stable")[:k]
    return rows[order], scores[order]

"""Lexical search: BM25 in Lucene's variant, over titles and texts with English stopwords and Snowball stems.

Every term's score in every passage is computed once, when the index is built (Lu, "BM25S", 2024); a query adds the
lists of its terms. Kamphuis et al., "Which BM25 Do You Mean?" (2020), names the variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.artifacts import digest_json, is_published, load_array, open_artifact, publish, read_json
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, owners
from hardneg.search.checks import check_request

KIND = "bm25"
ARRAYS = ("offsets", "rows", "scores")
K1, B = 0.9, 0.4
TEXTS = 1 << 16  # texts read at a time
POSTINGS = 1 << 23  # postings added up at a time


class Column(Protocol):
    """Strings by row."""

    def take(self, rows: NDArray[np.integer]) -> list[str]:
        """The strings of these rows."""
        ...


class Texts(Protocol):
    """What is searched: a collection."""

    @property
    def digest(self) -> str:
        """Identity of the texts."""
        ...

    @property
    def n_passages(self) -> int:
        """How many passages there are."""
        ...

    @property
    def titles(self) -> Column:
        """Titles by passage row, empty where there is none."""
        ...

    @property
    def texts(self) -> Column:
        """Texts by passage row."""
        ...

    @property
    def query_texts(self) -> Column:
        """Texts by query row."""
        ...


@dataclass(frozen=True, eq=False)
class Bm25Index:
    """Postings by term, memory-mapped: term t is in passages ``rows[offsets[t]:offsets[t + 1]]``, ascending."""

    terms: dict[str, int]
    offsets: Int64  # [V + 1]
    rows: Int32  # [P]
    scores: Float32  # [P]
    n: int
    collection: str


def bm25_run(collection: Texts, query_rows: Int32, k: int, cache: Path) -> Run:
    """Search a collection's own queries; see :func:`bm25_texts`."""
    return bm25_texts(collection, collection.query_texts.take(query_rows), k, cache, query_rows)


def bm25_texts(
    collection: Texts, texts: Sequence[str], k: int, cache: Path, query_rows: Int32 | None = None
) -> Run:
    """The k best passages of each query text that share a term with it.

    Parameters
    ----------
    cache : folder of derived stores, where the index is opened or, the first time, built.
    query_rows : [Q] what the run calls the queries; 0, 1, ... without it.

    Returns
    -------
    Hits by score descending, then row ascending, also at the cut; none of score 0, so lists may be shorter than k.

    Raises
    ------
    SettingsError, InputError
        k is below 1; there are no queries or no passages.
    """
    k = check_request(len(texts), collection.n_passages, k)
    rows = np.arange(len(texts), dtype=np.int32) if query_rows is None else query_rows
    return search(open_bm25(collection, cache), texts, rows, k)


def open_bm25(collection: Texts, cache: Path) -> Bm25Index:
    """The index of a collection: opened when the cache has it, else built there."""
    tools = {name: version(name) for name in ("bm25s", "PyStemmer")}  # they decide terms and scores
    settings = {"variant": "lucene", "k1": K1, "b": B, "stopwords": "english", "stemmer": "english", **tools}
    inputs = {"collection": collection.digest}
    path = cache / KIND / digest_json([inputs, settings])[:32]
    if not is_published(path, KIND):
        with publish(path, KIND, settings=settings, inputs=inputs, replace=True) as draft:
            terms, postings = _build(collection)
            draft.json("terms.json", terms)
            for name, values in zip(ARRAYS, postings, strict=True):
                draft.array(f"{name}.npy", values)
    open_artifact(path, KIND)
    ids = {term: i for i, term in enumerate(read_json(path / "terms.json"))}
    offsets, rows, scores = (load_array(path / f"{name}.npy") for name in ARRAYS)
    return Bm25Index(ids, offsets, rows, scores, collection.n_passages, collection.digest)


def search(index: Bm25Index, texts: Sequence[str], query_rows: Int32, k: int) -> Run:
    """The run of query ``texts`` [Q]; see :func:`bm25_texts`."""
    weights, terms, offsets = _query_terms(index, texts)
    work = np.concatenate([[0], np.cumsum(np.diff(index.offsets)[terms])])[offsets]
    parts = [_search_batch(index, weights, terms, offsets, span, k) for span in _batches(work)]
    hits, rows, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Run(np.asarray(query_rows, np.int32), offsets_of(hits), rows, scores, "passage", index.collection)


# ---------------------------------------------------------------- building


def _tokenizer() -> Any:
    import Stemmer
    from bm25s.tokenization import Tokenizer

    return Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"))


def _passages(collection: Texts) -> Iterator[str]:
    for start in range(0, collection.n_passages, TEXTS):
        rows = np.arange(start, min(start + TEXTS, collection.n_passages))
        titles, texts = collection.titles.take(rows), collection.texts.take(rows)
        yield from (f"{title} {text}" for title, text in zip(titles, texts, strict=True))


def _build(collection: Texts) -> tuple[list[str], list[NDArray[Any]]]:
    """Terms in order of appearance, and their postings."""
    import bm25s

    tokenizer = _tokenizer()
    ids = list(tokenizer.streaming_tokenize(_passages(collection), update_vocab=True, allow_empty=False))
    terms = list(tokenizer.get_vocab_dict())  # stems, in the order of their ids
    if not terms:
        return [], [np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)]
    bm25 = bm25s.BM25(method="lucene", k1=K1, b=B, csc_backend="scipy")
    built = bm25.build_index_from_ids(list(range(len(terms))), ids, show_progress=False)
    return terms, [built["indptr"].astype(np.int64), built["indices"], built["data"]]


# ---------------------------------------------------------------- searching


def _query_terms(index: Bm25Index, texts: Sequence[str]) -> tuple[Float32, Int64, Int64]:
    """How often each known term is in each query: counts and terms, ragged by query, terms ascending."""
    tokenizer = _tokenizer()
    ids = list(tokenizer.streaming_tokenize(texts, update_vocab=True, allow_empty=False))
    known = np.array([index.terms.get(stem, -1) for stem in tokenizer.get_vocab_dict()], np.int64)
    lengths = np.array([len(query) for query in ids], np.int64)
    terms = known[np.concatenate([np.zeros(0, np.int64), *(np.asarray(query, np.int64) for query in ids)])]
    query = np.repeat(np.arange(len(ids)), lengths)[terms >= 0]
    pairs, counts = np.unique(np.stack([query, terms[terms >= 0]]), axis=1, return_counts=True)
    offsets = offsets_of(np.bincount(pairs[0], minlength=len(ids)))
    return counts.astype(np.float32), pairs[1], offsets


def _batches(work: Int64) -> Iterator[tuple[int, int]]:
    """Spans of queries with about ``POSTINGS`` postings each; ``work`` [Q + 1] counts them."""
    start = 0
    while start < len(work) - 1:
        stop = max(int(np.searchsorted(work, work[start] + POSTINGS, side="right")) - 1, start + 1)
        yield start, stop
        start = stop


def _search_batch(
    index: Bm25Index, weights: Float32, terms: Int64, offsets: Int64, span: tuple[int, int], k: int
) -> tuple[Int64, Int32, Float32]:
    """Number of hits of each query of the span, and their rows and scores."""
    from scipy.sparse import csr_array

    start, stop = span
    part = slice(offsets[start], offsets[stop])
    shape = (stop - start, len(index.terms))
    queries = csr_array((weights[part], terms[part], offsets[start : stop + 1] - offsets[start]), shape=shape)
    postings = csr_array((index.scores, index.rows, index.offsets), shape=(len(index.terms), index.n))
    found = queries @ postings  # adds term by term, in one thread: the same bits every time
    return _best(found.indptr.astype(np.int64), found.indices, found.data, k)


def _best(offsets: Int64, rows: Int32, scores: Float32, k: int) -> tuple[Int64, Int32, Float32]:
    """Cut ragged hits to the k best of each query: their number, rows and scores, best first."""
    keep = scores > 0
    for start, stop in pairwise(offsets.tolist()):
        if stop - start > k:
            mine = scores[start:stop]
            keep[start:stop] &= mine >= np.partition(mine, -k)[-k]
    query, rows, scores = owners(offsets)[keep], rows[keep], scores[keep]
    order = np.lexsort((rows, -scores, query))
    starts = offsets_of(np.bincount(query, minlength=len(offsets) - 1))
    order = order[np.arange(len(order)) - starts[query[order]] < k]
    hits = np.bincount(query[order], minlength=len(offsets) - 1)
    return hits, rows[order].astype(np.int32), scores[order]

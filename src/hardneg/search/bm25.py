"""Lexical search: BM25 in Lucene's variant, over titles and texts whose terms an analyser makes by language.

Every term's score in every passage is computed once, when the index is built (Lu, "BM25S", 2024); a query adds the
lists of its terms. Kamphuis et al., "Which BM25 Do You Mean?" (2020), names the variants.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.data.tokens import Texts
from hardneg.process.memory import own_memory, require, room, spare
from hardneg.process.progress import counted, wait_for_another
from hardneg.process.threads import usable_threads
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, spans
from hardneg.search.analysers import facts_of, tokenizer_of
from hardneg.search.runs import UNASKED, check_request, limited_run, part_of, run_of_lists
from hardneg.storage.artifacts import Draft, is_published, load_array, open_artifact, publish, read_json
from hardneg.storage.digests import digest_json
from hardneg.storage.disk import delete
from hardneg.storage.lease import LEASES, made_once

KIND = "bm25"
ARRAYS = ("offsets", "rows", "scores")
K1, B = 0.9, 0.4
TEXTS = 1 << 12  # texts read at a time
TOKENS, FEWEST = 1 << 23, 1 << 18  # the most tokens of a block whose postings are made together, and the fewest
TOKEN = 32  # bytes of memory for a token of a block
PASSAGE, TERM = 30, 100  # bytes of memory in the end: for a passage, and for a term besides the term itself
NEW = 350_000  # bytes for the terms of n passages, times the root of n: an estimate before any is read
BLOCKS = "blocks"  # the folder of the postings of the blocks, which is deleted in the end, and its files
FILES = ("terms", np.int32), ("begins", np.int64), ("rows", np.int32), ("counts", np.float32)
MERGED = 1 << 21  # the most postings brought together at a time
POSTING = 32  # bytes of memory for one of them
POSTINGS = 1 << 18  # postings scored at a time
BLOCK = 32  # scores looked at together for the best
SPARSE = 128  # a query with fewer than n / SPARSE postings is scored from these alone; n: all passages
DENSE = 8  # a term of n / DENSE passages or more may be spread (kept as a vector of scores of all passages), if
ASKED = 4  # so many queries have the term, and
SPREAD = 1 << 25  # the spread terms have at most so many scores together: 128 MiB
COMPILED = 1 << 26  # queries times passages from which on it pays to load, or first compile, numba's code
SMALLEST = np.finfo(np.float32).tiny

Float64 = NDArray[np.float64]

# How often a query has a term, where the term's postings begin and end, and its scores of all passages if spread.
Posting = tuple[float, int, int, Float32 | None]

# How often each known term is in each query [T], these terms [T], and where each query begins [Q + 1].
QueryTerms = tuple[Float32, Int64, Int64]


class Passages(Texts, Protocol):
    """The part of a collection that BM25 reads."""

    @property
    def n_passages(self) -> int:
        """How many passages there are."""
        ...

    @property
    def language(self) -> str:
        """The language of the passages, one of :data:`~hardneg.data.languages.LANGUAGES`."""
        ...


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
        _build(draft, collection, language)


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


# ---------------------------------------------------------------- building


def _passages(collection: Passages) -> Iterator[str]:
    for start in range(0, collection.n_passages, TEXTS):
        rows = np.arange(start, min(start + TEXTS, collection.n_passages))
        titles, texts = collection.titles.take(rows), collection.texts.take(rows)
        yield from (f"{title} {text}" for title, text in zip(titles, texts, strict=True))


@dataclass(frozen=True, eq=False)
class _Block:
    """The terms of some passages in a row, and where the postings of each lie in the files; memory-mapped."""

    terms: Int32  # [v] ascending
    offsets: Int64  # [v + 1]


def _build(draft: Draft, collection: Passages, language: str) -> None:
    """Write the terms of a collection in order of appearance, and their postings: offsets, rows and scores.

    The postings of a block of passages are made at a time and kept on the disk. In the end those of some terms at
    a time are brought together. So memory holds one block, the terms, and some numbers for each passage.
    """
    _bring_together(draft, *_write_blocks(draft, collection, language))
    delete(draft.path / BLOCKS)  # nothing maps its files any more: NFS keeps those that are mapped


def _bring_together(draft: Draft, terms: list[str], lengths: Int32, ends: list[int]) -> None:
    """Write the index from the postings of the blocks; the parameters are what :func:`_write_blocks` returns."""
    ids, begins = (np.asarray(load_array(draft.path / BLOCKS / f"{name}.npy")) for name in ("terms", "begins"))
    blocks = [_Block(ids[start:stop], begins[start : stop + 1]) for start, stop in pairwise(ends)]
    passages = np.zeros(len(terms), np.int64)  # that have a term
    for block in blocks:
        passages[block.terms] += spans(block.offsets)
    offsets = offsets_of(passages)
    draft.json("terms.json", terms)
    draft.array("offsets.npy", offsets)
    idf = np.log(1 + (len(lengths) - passages + 0.5) / (passages + 0.5)).astype(np.float32)
    norm = K1 * (1 - B + B * lengths / lengths.mean()) if terms else np.zeros(0)
    with (
        draft.appending("rows.npy", np.int32) as add_rows,
        draft.appending("scores.npy", np.float32) as add_scores,
    ):
        for first, last, rows, counts in _merged(draft, blocks, offsets):
            add_rows(rows)
            for scores in _scores(idf[first:last], norm, offsets[first : last + 1] - offsets[first], rows, counts):
                add_scores(scores)


def _write_blocks(draft: Draft, collection: Passages, language: str) -> tuple[list[str], Int32, list[int]]:
    """Write the postings block by block; returns the terms, how many each passage [n] has, and the blocks' ends.

    The ends, with 0 before them, count the terms of the blocks, one block after another.
    """
    tokenizer = tokenizer_of(language)
    tokens, lengths = array("i"), array("i")  # not lists: there may be millions of tokens
    ends, written, done, n, held = [0], 0, 0, collection.n_passages, own_memory() if room() else 0
    most = _tokens_at_once(held, 0, 0, n)
    passages = counted(_passages(collection), "indexing for BM25", "passages", n)
    with contextlib.ExitStack() as files:
        adds = [files.enter_context(draft.appending(f"{BLOCKS}/{name}.npy", kind)) for name, kind in FILES]

        def end_block() -> int:  # the postings written so far
            terms, begins, rows, counts = _counted(tokens, np.frombuffer(lengths, np.intc)[done:])
            made: list[NDArray[Any]] = [terms, begins + written, rows + np.int32(done), counts]
            for add, values in zip(adds, made, strict=True):
                add(values)
            ends.append(ends[-1] + len(terms))
            return written + len(rows)

        for ids in tokenizer.streaming_tokenize(passages, update_vocab=True, allow_empty=False):
            tokens.extend(ids)
            lengths.append(len(ids))
            if len(tokens) >= most:
                written, tokens, done = end_block(), array("i"), len(lengths)
                most = _tokens_at_once(held, len(tokenizer.get_vocab_dict()), done, n)
        if tokens:
            written = end_block()
        adds[1](np.array([written]))
    tokens, terms = array("i"), list(tokenizer.get_vocab_dict())  # stems, in the order of their ids
    _tokens_at_once(held, len(terms), n, n)
    return terms, np.frombuffer(lengths, np.intc), ends


def _tokens_at_once(held: int, terms: int, done: int, n: int) -> int:
    """How many tokens a block may have; raises :class:`ResourceError` if there is no room even for a small one.

    The limit that is named then is enough for all ``n`` passages: the rest bring no more new terms than as many
    of the ``done`` ones did. ``held`` are the bytes of this process before the first passage.
    """
    needed, left = FEWEST * TOKEN + n * PASSAGE + terms * TERM, room()
    if left is not None and needed > left:
        grown = own_memory() - held + terms * TERM
        rest = grown * (n - done) // done + grown // 4 if done else NEW * isqrt(n)
        require(needed + rest, "building BM25's index")
    return min(max(spare() // TOKEN, FEWEST), TOKENS)


def _counted(tokens: array[int], lengths: Int32) -> tuple[Int32, Int64, Int32, Float32]:
    """The terms [v] of a block, where the postings of each begin [v], and the rows and counts of these.

    Rows count from the first passage of the block.
    """
    keys = np.frombuffer(tokens, np.intc).astype(np.int64)  # not a matrix, which has a row for each known term
    keys <<= 32
    keys += np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    keys.sort()
    begins = _changes(keys)
    counts = np.diff(begins, append=np.int32(len(keys))).astype(np.float32)
    keys = keys[begins]
    rows = keys.astype(np.int32)  # the lower half
    keys >>= 32
    begins = _changes(keys)
    return keys[begins].astype(np.int32), begins.astype(np.int64), rows, counts


def _changes(values: Int64) -> Int32:
    """Where a value differs from the one before it, the first place included."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])).astype(np.int32)


def _merged(draft: Draft, blocks: list[_Block], offsets: Int64) -> Iterator[tuple[int, int, Int32, Float32]]:
    """The rows and counts of the postings of the terms from ``first`` to ``last``, some terms at a time.

    Rows ascend within a block and from block to block; so those of a term ascend if its blocks follow each other.
    """
    if not blocks:
        return
    all_rows, all_counts = (load_array(draft.path / BLOCKS / f"{name}.npy") for name in ("rows", "counts"))
    at_once = min(max(spare() // POSTING, FEWEST), MERGED)
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], at_once))
    for first, last in pairwise(np.unique(np.append(cuts, len(offsets) - 1)).tolist()):
        free = offsets[first:last] - offsets[first]  # the place of each term's next posting
        rows = np.empty(offsets[last] - offsets[first], np.int32)
        counts = np.empty(len(rows), np.float32)
        for block in blocks:
            low, high = np.searchsorted(block.terms, np.array([first, last], np.int32))
            terms, begins = block.terms[low:high] - first, block.offsets[low : high + 1]
            places = np.arange(begins[-1] - begins[0])
            places += np.repeat(free[terms] - (begins[:-1] - begins[0]), spans(begins))
            rows[places] = all_rows[begins[0] : begins[-1]]
            counts[places] = all_counts[begins[0] : begins[-1]]
            free[terms] += spans(begins)
        yield first, last, rows, counts


def _scores(idf: Float32, norm: Float64, offsets: Int64, rows: Int32, counts: Float32) -> Iterator[Float32]:
    """The score of each posting, some postings at a time.

    Parameters
    ----------
    idf, offsets : [v], [v + 1] of the terms.
    norm : [n] of all passages: how much a passage's length weakens a term that stands in it.
    rows, counts : [p] of the postings: the passage, and how often it has the term.
    """
    for start in range(0, len(rows), POSTINGS):
        part = slice(start, start + POSTINGS)
        term = np.searchsorted(offsets, np.arange(start, start + len(rows[part])), side="right") - 1
        yield (idf[term] * (counts[part] / (norm[rows[part]] + counts[part]))).astype(np.float32)


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

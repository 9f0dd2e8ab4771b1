"""BM25's index is built from the passages of a collection in bounded memory, block by block.

Each posting has its score, computed once (Lu, "BM25S", 2024), so that a query only adds the lists of its terms.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.data.tokens import Texts
from hardneg.process.memory import own_memory, require, room, spare
from hardneg.process.progress import counted
from hardneg.records import Float32, Int32, Int64, offsets_of, spans
from hardneg.search.analysers import tokenizer_of
from hardneg.storage.artifacts import Draft, load_array
from hardneg.storage.disk import delete

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

Float64 = NDArray[np.float64]


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


def build(draft: Draft, collection: Passages, language: str) -> None:
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

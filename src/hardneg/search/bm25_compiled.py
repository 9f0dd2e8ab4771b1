"""BM25's search in code that numba compiles: the lists that numpy gives, bit by bit, on all threads.

The same float32 numbers are added in the same order. Importing this module loads numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from hardneg.process.compiled import compiled
from hardneg.records import Float32, Int32, Int64

AT_A_TIME = 32  # queries that a thread takes at a time, at most
HITS = 1 << 20  # hits of the queries that a thread takes at a time, at most, unless it is one query


class Postings(NamedTuple):
    """What the terms of queries add to the scores of passages; query q has the terms from ``offsets[q]`` on."""

    offsets: Int64  # [Q + 1]
    weights: Float32  # [T] how often the query has the term
    begins: Int64  # [T] where the postings of the term begin
    ends: Int64  # [T] and where they end
    spread: Int64  # [T] which of ``vectors`` has the scores of the term for all passages; -1: none
    rows: Int32  # [P] passages of all postings of the index
    values: Float32  # [P] and their scores
    vectors: Float32  # [V, n]

    def of(self, first: int, last: int) -> Postings:
        """Select the queries from ``first`` up to ``last``, without it."""
        return self._replace(offsets=self.offsets[first : last + 1])


def search_compiled(postings: Postings, k: int, *, threads: int, block: int) -> Iterator[tuple[Int32, Float32]]:
    """The rows and scores of the k best passages of each query, query by query.

    Parameters
    ----------
    threads : each takes some queries, and has a score of every passage in memory.
    block : scores looked at together; n is a multiple of it.
    """
    queries = len(postings.offsets) - 1
    some = max(min(AT_A_TIME, HITS // k), 1)
    parts = (postings.of(i, min(i + some, queries)) for i in range(0, queries, some))
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: list[Future[Any]] = [pool.submit(best, part, k, block) for part in islice(parts, 2 * threads)]
        while waiting:
            rows, scores, lengths = waiting.pop(0).result()
            waiting += [pool.submit(best, part, k, block) for part in islice(parts, 1)]
            yield from ((rows[i, :n].copy(), scores[i, :n].copy()) for i, n in enumerate(lengths.tolist()))
    finally:
        pool.shutdown(cancel_futures=True)


def best(part: Postings, k: int, block: int) -> tuple[Int32, Float32, Int32]:
    """The rows [Q, k] and scores [Q, k] of the best passages, and how many each query has [Q]."""
    queries, n = len(part.offsets) - 1, part.vectors.shape[1]
    rows, scores = np.zeros((queries, k), np.int32), np.zeros((queries, k), np.float32)
    lengths, sums = np.zeros(queries, np.int32), np.empty(n, np.float32)
    _search(*part, sums, sums.view(np.int32).reshape(-1, block), rows, scores, lengths)
    return rows, scores, lengths


# ---------------------------------------------------------------- compiled


@compiled
def _search(
    offsets: Int64,
    weights: Float32,
    begins: Int64,
    ends: Int64,
    spread: Int64,
    rows: Int32,
    values: Float32,
    vectors: Float32,
    sums: Float32,
    bits: Int32,
    found: Int32,
    scores: Float32,
    lengths: Int32,
) -> None:
    """Write the best passages of each query: by score descending, then row ascending, none of score 0."""
    for query in range(len(offsets) - 1):
        sums[:] = 0
        for term in range(offsets[query], offsets[query + 1]):
            weight, vector = weights[term], spread[term]
            if vector >= 0:
                for row in range(len(sums)):
                    sums[row] += weight * vectors[vector, row]
            else:
                for place in range(begins[term], ends[term]):
                    sums[rows[place]] += weight * values[place]
        lengths[query] = _select(sums, bits, found[query], scores[query])


@compiled
def _select(sums: Float32, bits: Int32, where: Int32, best: Float32) -> int:
    """Write rows and scores of the best of ``sums`` [n] to ``where`` [k] and ``best`` [k]; returns their number.

    ``bits`` [blocks, block] is the memory of ``sums`` read as integers. Scores that are not negative have the same
    order as these integers, and the highest integer of a block is found by a few instructions.

    The best hits so far are a heap whose root is the worst of them.
    """
    n, k, least = 0, len(best), np.int32(0)  # least: the bits of the score that the next one must exceed
    for block in range(len(bits)):
        highest = np.int32(0)
        for i in range(bits.shape[1]):
            highest = max(highest, bits[block, i])
        if highest <= least:
            continue
        for i in range(bits.shape[1]):
            if bits[block, i] <= least:
                continue
            row = block * bits.shape[1] + i
            if n < k:
                _rise(best, where, n, sums[row], row)
                n += 1
            else:
                _sink(best, where, k, sums[row], row)
            if n == k:
                least = best[:1].view(np.int32)[0]
    for last in range(n - 1, 0, -1):  # the worst moves behind the heap, which shrinks by one
        score, row = best[last], where[last]
        best[last], where[last] = best[0], where[0]
        _sink(best, where, last, score, row)
    return n


@compiled
def _is_worse(score: float, row: int, other_score: float, other_row: int) -> bool:
    return score < other_score or (score == other_score and row > other_row)


@compiled
def _rise(best: Float32, where: Int32, n: int, score: float, row: int) -> None:
    """Put a passage into a heap of n."""
    at = n
    while at > 0 and _is_worse(score, row, best[(at - 1) // 2], where[(at - 1) // 2]):
        best[at], where[at] = best[(at - 1) // 2], where[(at - 1) // 2]
        at = (at - 1) // 2
    best[at], where[at] = score, row


@compiled
def _sink(best: Float32, where: Int32, n: int, score: float, row: int) -> None:
    """Put a passage into a heap of n, in the place of the root."""
    at, child = 0, 1
    while child < n:
        if child + 1 < n and _is_worse(best[child + 1], where[child + 1], best[child], where[child]):
            child += 1
        if _is_worse(score, row, best[child], where[child]):
            break
        best[at], where[at] = best[child], where[child]
        at, child = child, 2 * child + 1
    best[at], where[at] = score, row

"""The judged hits of a run and their ranks. Measures need no other hits, and few hits are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Float32, Int32, Int64, Qrels, Run, offsets_of, owners, pair_keys, spans, take_spans

_BLOCK = 1 << 18  # hits looked at together: the temporaries stay in the processor's cache
_PAIRS = 1 << 22  # comparisons held in memory together
_FLAGS = 32  # flags for each judgement; with 32, about 3 % of the unjudged hits are looked up in vain
_MAX_FLAGS = 1 << 26  # bytes


@dataclass(frozen=True)
class JudgedHits:
    """The hits of a run that are judged, by query and then by rank."""

    qrels: Qrels
    query: Int64  # [n] position in the qrels
    rank: Int64  # [n] from 0
    grade: Int32  # [n]
    returned: Int64  # [Q] hits of each query, judged or not

    def top(self, rel: int, cutoff: int) -> tuple[Int64, Int64]:
        """Query and rank of the hits with grade ``rel`` or higher among the first ``cutoff`` of each query."""
        keep = (self.grade >= rel) & (self.rank < cutoff)
        return self.query[keep], self.rank[keep]

    def count(self, query: Int64) -> Int64:
        """How often each query [Q] occurs in ``query``."""
        return np.bincount(query, minlength=len(self.qrels))

    def total(self, query: Int64, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of the weights of each query [Q]."""
        return np.bincount(query, weights, minlength=len(self.qrels)).astype(np.float64, copy=False)


def judged_hits(run: Run, qrels: Qrels, *, id_rank: Int32 | None) -> JudgedHits:
    """Find the judged hits of the qrels' queries, and the rank of each.

    Parameters
    ----------
    id_rank : [passages] rank of each passage's id. Hits are then ranked by score, and ties by ``id_rank``, the
        greater first; they may come in any order. None takes the hits in the order they have.
    """
    place = locate(run.query_rows, qrels.query_rows)
    present = np.flatnonzero(place >= 0)
    returned = np.zeros(len(qrels), np.int64)
    returned[present] = spans(run.offsets)[place[present]]
    lookup = _Judgements.of(qrels)
    parts = [
        _Block.of(run, queries, place[queries]).match(lookup, id_rank) for queries in _blocks(present, returned)
    ]
    none = np.empty(0, np.int64)
    query, rank, judgement = (np.concatenate(column) for column in zip((none, none, none), *parts, strict=True))
    order = np.lexsort((rank, query))
    return JudgedHits(qrels, query[order], rank[order], qrels.grades[judgement[order]], returned)


def locate(rows: Int32, wanted: Int32) -> Int64:
    """The position in ``rows`` [m] of each wanted row [n]; -1 if it is not there."""
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(rows, kind="stable")
    at = order[np.minimum(np.searchsorted(rows, wanted, sorter=order), len(rows) - 1)]
    return np.where(rows[at] == wanted, at, -1)


def _blocks(queries: Int64, returned: Int64) -> Iterator[Int64]:
    """Cut the queries into blocks of about ``_BLOCK`` hits."""
    ends = np.cumsum(returned[queries])
    cuts = np.flatnonzero(np.diff(ends // _BLOCK, prepend=0))
    yield from (block for block in np.split(queries, cuts) if len(block))


@dataclass(frozen=True)
class _Judgements:
    """Exact lookup of (query, passage) pairs; hashed flags first exclude nearly all pairs that are not judged.

    Each query has its own range of flags, so that the flags for a block of hits fit into the processor's cache.
    """

    keys: Int64  # [n] sorted
    index: Int64  # [n] judgement of each key
    bits: int
    flags: NDArray[np.bool_]  # [Q << bits]

    @classmethod
    def of(cls, qrels: Qrels) -> _Judgements:
        query = owners(qrels.offsets)
        keys = pair_keys(query, qrels.passage_rows)
        index = np.argsort(keys, kind="stable")
        bits = (_FLAGS * len(keys) // len(qrels)).bit_length()
        bits = max(1, min(bits, (_MAX_FLAGS // len(qrels)).bit_length()))
        flags = np.zeros(len(qrels) << bits, np.bool_)
        flags[(query << bits) + _hash(qrels.passage_rows, bits)] = True
        return cls(keys[index], index, bits, flags)

    def find(self, queries: Int64, offsets: Int64, passages: Int32) -> tuple[Int64, Int64, Int64]:
        """The judged hits of some queries: index of the hit, index of its query, and judgement (all [m]).

        ``offsets`` delimit the hits of each query in ``passages``.
        """
        slots = np.repeat(queries << self.bits, spans(offsets))
        slots += _hash(passages, self.bits)
        hits = np.flatnonzero(self.flags.take(slots, mode="clip"))  # "clip" saves the pass that checks bounds
        local = np.searchsorted(offsets, hits, side="right") - 1
        keys = pair_keys(queries[local], passages[hits])
        at = np.searchsorted(self.keys, keys)
        known = at < len(self.keys)
        known[known] = self.keys[at[known]] == keys[known]
        return hits[known], local[known], self.index[at[known]]


def _hash(passages: Int32, bits: int) -> NDArray[np.uint32]:
    return (passages.view(np.uint32) * np.uint32(0x9E3779B1)) >> np.uint32(32 - bits)


@dataclass(frozen=True)
class _Block:
    """The hits of some of the queries."""

    queries: Int64  # [B] positions in the qrels
    offsets: Int64  # [B + 1]
    passages: Int32  # [n]
    scores: Float32  # [n]

    @classmethod
    def of(cls, run: Run, queries: Int64, place: Int64) -> _Block:
        """The hits of the queries at ``place`` in the run; they are not copied if they are neighbours there."""
        if np.all(np.diff(place) == 1):
            offsets = run.offsets[place[0] : place[-1] + 2]
            span = slice(offsets[0], offsets[-1])
            return cls(queries, offsets - offsets[0], run.passage_rows[span], run.scores[span])
        index, offsets = take_spans(run.offsets, place)
        return cls(queries, offsets, run.passage_rows[index], run.scores[index])

    def match(self, lookup: _Judgements, id_rank: Int32 | None) -> tuple[Int64, Int64, Int64]:
        """Query, rank and judgement of the block's judged hits (all [m])."""
        hits, local, judgements = lookup.find(self.queries, self.offsets, self.passages)
        rank = hits - self.offsets[local]
        if id_rank is not None:
            unsettled = self.unsettled(hits, local)
            rank[unsettled] = self.count_better(hits[unsettled], local[unsettled], id_rank)
        return self.queries[local], rank, judgements

    def unsettled(self, hits: Int64, local: Int64) -> Int64:
        """The indices of those hits [m] that may rank elsewhere: their list is not sorted, or a neighbour ties."""
        rising = np.flatnonzero(self.scores[1:] > self.scores[:-1]) + 1
        above = np.searchsorted(self.offsets, rising, side="right") - 1
        disordered = np.zeros(len(self.queries), np.bool_)
        disordered[above[rising > self.offsets[above]]] = True
        before, after = (
            np.maximum(hits - 1, self.offsets[local]),
            np.minimum(hits + 1, self.offsets[local + 1] - 1),
        )
        score = self.scores[hits]
        tied = ((before < hits) & (self.scores[before] == score)) | (
            (after > hits) & (self.scores[after] == score)
        )
        return np.flatnonzero(disordered[local] | tied)

    def count_better(self, hits: Int64, local: Int64, id_rank: Int32) -> Int64:
        """The number of hits that rank before each of these hits [m] in its list."""
        counts = [np.empty(0, np.int64)]
        step = max(1, _PAIRS // int(spans(self.offsets).max(initial=1)))
        for start in range(0, len(hits), step):
            part = slice(start, start + step)
            rival, offsets = take_spans(self.offsets, local[part])
            mine = hits[part][owners(offsets)]
            better = self.scores[rival] > self.scores[mine]
            tied = np.flatnonzero(self.scores[rival] == self.scores[mine])
            better[tied] = id_rank[self.passages[rival[tied]]] > id_rank[self.passages[mine[tied]]]
            counts.append(spans(offsets_of(better.view(np.int8))[offsets]))
        return np.concatenate(counts)

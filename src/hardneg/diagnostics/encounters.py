"""Encounters of a query's passages in several lists, found by one sorted pass over blocks of queries.

Composition and swing of negatives ask one question: in which lists, ordered by time, does a query meet a passage?
The entries of all lists are packed into numbers of 64 bits (query, passage, time, list) and sorted, a block of
queries at a time. So the memory needed grows neither with the number of queries nor with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.negatives.pool import matches
from hardneg.records import (
    Int32,
    Int64,
    blocks,
    changes,
    distinct,
    offsets_of,
    owners,
    pair_keys,
    spans,
    take_spans,
)

BLOCK = 1 << 19  # entries sorted together
KEYS = 1 << 16  # short numbers sorted together, so few that temporaries stay in the processor's cache
PASSAGE_BITS = 31  # bits of the passage in the number of a pair
LOOSE = 1.5  # queries are sorted as rows of a matrix if it has at most so many cells for each entry
_BITS = 63
_SHORT = 29  # bits of a passage and a time, so that 8 queries or more fit into 32 bits


class Lists(Protocol):
    """Passages of each query, ragged: a ``Run``, a ``NegativePool`` or ``Positives``."""

    @property
    def query_rows(self) -> Int32:
        """Query row [L] of each list; a query may have several lists, or none."""
        ...

    @property
    def offsets(self) -> Int64:
        """The entries of list i are ``offsets[i]:offsets[i + 1]``; [L + 1]."""
        ...

    @property
    def passage_rows(self) -> Int32:
        """Passage row of each entry [n]."""
        ...


def keys_of(lists: Lists) -> Int64:
    """One number [n] for the query and the passage of each entry."""
    return pair_keys(lists.query_rows[owners(lists.offsets)], lists.passage_rows)


Times = Callable[[Int64], NDArray[np.integer]]  # entries of a list [m] -> the time of each


@dataclass(frozen=True)
class DatedLists:
    """Lists whose entries were all met at one time, or each at its own."""

    lists: Lists
    time: int | Times  # from 0


@dataclass(frozen=True)
class Encounters:
    """The entries of some queries in all lists, sorted by query, passage, time and list."""

    pairs: Int64  # [n] position of the query << 31 | passage row
    times: Int64  # [n]
    lists: Int64  # [n] position among the lists

    def first(self) -> Int64:
        """The time [n] at which the query first met the passage of each entry."""
        starts = np.flatnonzero(changes(self.pairs))
        return np.repeat(self.times[starts], np.diff(starts, append=len(self.pairs)))


def queries_of(lists: Sequence[Lists]) -> Int32:
    """The query rows [Q] that any of the lists has, ascending."""
    rows = [one.query_rows for one in lists]
    if all(np.array_equal(rows[0], other) for other in rows[1:]):
        return distinct(rows[0])
    return distinct(np.concatenate(rows))


def encounters(
    met: Sequence[DatedLists], query_rows: Int32, *, times: int, block: int = BLOCK
) -> Iterator[Encounters]:
    """All entries of these lists, for one block of queries after another.

    Parameters
    ----------
    query_rows : [Q] distinct; the entries of other queries are left out.
    times : every time lies below it.
    block : about so many entries are held together; a query is never divided.
    """
    aligned = [_Aligned.of(one, query_rows) for one in met]
    time_bits, list_bits = times.bit_length(), len(met).bit_length()
    most = 1 << (_BITS - PASSAGE_BITS - time_bits - list_bits)  # queries that a key can tell apart
    total = offsets_of(sum((one.lengths for one in aligned), np.zeros(len(query_rows), np.int64)))
    for start, stop in _ranges(total, block, most):
        keys = np.empty(total[stop] - total[start], np.int64)
        filled = 0
        for number, one in enumerate(aligned):
            owner, passages, when = one.entries(start, stop)
            part = keys[filled : filled + len(owner)]
            np.left_shift(owner, PASSAGE_BITS, out=part)
            part |= passages
            part <<= time_bits
            part |= when
            part <<= list_bits
            part |= number
            filled += len(part)
        keys.sort()
        lists = keys & ((1 << list_bits) - 1)
        keys >>= list_bits
        moments = keys & ((1 << time_bits) - 1)
        keys >>= time_bits
        keys += start << PASSAGE_BITS
        yield Encounters(keys, moments, lists)


@dataclass(frozen=True)
class Keys:
    """The entries of some queries in lists that are met one after another, as sorted numbers.

    A number is made of the query (from 0), the passage and the time. So two neighbours have the same query and
    passage exactly if no bit above those of the time differs. In guarded numbers the highest bit of the time is 0.
    Then two neighbours have the same query and passage exactly if they differ by less than ``1 << time_bits - 1``.
    """

    start: int  # the first query
    stop: int
    keys: NDArray[np.unsignedinteger]  # [n]
    time_bits: int
    passage_bits: int

    def times(self) -> NDArray[np.unsignedinteger]:
        """The time [n] of each entry, in few bits."""
        kind = np.uint8 if self.time_bits <= 8 else np.uint32
        return (self.keys & self.keys.dtype.type((1 << self.time_bits) - 1)).astype(kind)

    def first(self, times: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """The time [n] at which the query first met the passage of each entry, given ``times``."""
        starts = self._starts(self.keys[1:] ^ self.keys[:-1])
        return np.repeat(times[starts], np.diff(starts, append=len(times)))

    def lists(self) -> NDArray[np.uint32] | None:
        """For each query and passage a number [m] whose bit i says whether it was met at time i.

        The result is None if a query met a passage twice at one time. All times must lie below 32.
        """
        keys, kind = self.keys, self.keys.dtype.type
        if not len(keys):
            return np.zeros(0, np.uint32)
        differences = keys[1:] ^ keys[:-1]
        if not differences.all():
            return None
        ends = np.flatnonzero(np.append(differences >= kind(1 << self.time_bits), True))
        bits = (keys & kind((1 << self.time_bits) - 1)).astype(np.uint32, copy=False)
        np.left_shift(np.uint32(1), bits, out=bits)
        sums = np.cumsum(bits, dtype=np.uint32)[ends]  # may wrap, which does not change differences
        return np.diff(sums, prepend=np.uint32(0))

    def distinct(self) -> Keys:
        """The numbers that are left when each query, passage and time is kept once."""
        return replace(self, keys=self.keys[changes(self.keys)])

    def _starts(self, differences: NDArray[np.unsignedinteger]) -> Int64:
        """Where the entries of each query and passage begin, given the bits in which neighbours differ."""
        begins = np.ones(len(self.keys), bool)
        np.greater_equal(differences, self.keys.dtype.type(1 << self.time_bits), out=begins[1:])
        return np.flatnonzero(begins)

    def places(self) -> NDArray[np.unsignedinteger]:
        """A number [n] for the query and the time of each entry: query ``<< time_bits |`` time."""
        kind = self.keys.dtype.type
        found = self.keys >> kind(self.time_bits + self.passage_bits)
        found <<= kind(self.time_bits)
        found |= self.keys & kind((1 << self.time_bits) - 1)
        return found


def sorted_keys(
    lists: Sequence[Lists],
    query_rows: Int32,
    *,
    times: Sequence[int] | None = None,
    block: int = KEYS,
    numbered: bool = True,
) -> Iterator[Keys]:
    """All entries of these lists, for one block of queries after another.

    Numbers of 32 bits are sorted where a few queries fit into them, and of 64 bits elsewhere.

    Parameters
    ----------
    query_rows : [Q] distinct; the entries of other queries are left out.
    times : when the entries of each list are met, from 0; None: those of list i at time i.
    block : about so many entries are held together; a query is never divided.
    numbered : True: the numbers name the query, and are guarded. False: they only tell neighbouring queries apart,
        so that blocks can be longer.
    """
    moments = range(len(lists)) if times is None else times
    aligned = [_Aligned.of(DatedLists(one, time), query_rows) for time, one in zip(moments, lists, strict=True)]
    time_bits = max(moments, default=0).bit_length() + numbered
    passage_bits = max((int(one.passage_rows.max(initial=0)) for one in lists), default=0).bit_length()
    kind: type[np.unsignedinteger] = np.uint32 if time_bits + passage_bits <= _SHORT else np.uint64
    most = 1 << (np.iinfo(kind).bits - time_bits - passage_bits)
    total = offsets_of(sum((one.lengths for one in aligned), np.zeros(len(query_rows), np.int64)))

    def keys_between(start: int, stop: int, in_rows: bool) -> Keys:
        heads = (np.arange(stop - start) % most).astype(kind) << kind(time_bits + passage_bits)
        parts = [
            _Part(
                one.passages(start, stop).view(np.uint32),
                one.lengths[start:stop],
                heads | kind(time),
                kind(time_bits),
            )
            for time, one in zip(moments, aligned, strict=True)
        ]
        lengths = spans(total[start : stop + 1])
        keys = _sorted_rows(parts, lengths) if in_rows else _sorted(parts, int(lengths.sum()))
        return Keys(start, stop, keys, time_bits, passage_bits)

    for start, stop in blocks(total, block):
        cells = (stop - start) * sum(one.longest(start, stop) for one in aligned)
        in_rows = cells <= LOOSE * (total[stop] - total[start])
        step = max(stop - start, 1) if in_rows and not numbered else most
        for begin in range(start, max(stop, start + 1), step):
            yield keys_between(begin, min(begin + step, stop), in_rows)


class _Part(NamedTuple):
    """The entries of some queries in one of the lists, query by query."""

    passages: NDArray[np.uint32]  # [n]
    lengths: Int64  # [q] entries of each query
    heads: NDArray[np.unsignedinteger]  # [q] the query and the time, in their bits
    shift: np.unsignedinteger  # of passages

    def write(self, keys: NDArray[np.unsignedinteger]) -> None:
        """Write the numbers of all entries [n]."""
        np.left_shift(self.passages, self.shift, out=keys)
        keys |= np.repeat(self.heads, self.lengths)

    def write_rows(self, cells: NDArray[np.unsignedinteger]) -> None:
        """Write the numbers of each query's entries into its row; the highest number fills the end of the row."""
        if len(self.passages) == cells.size:  # the usual case: all rows are full
            np.left_shift(self.passages.reshape(cells.shape), self.shift, out=cells)
            np.bitwise_or(cells, self.heads[:, None], out=cells)
            return
        keys = np.empty(len(self.passages), cells.dtype)
        self.write(keys)
        cells.fill(np.iinfo(cells.dtype).max)
        cells[np.arange(cells.shape[1]) < self.lengths[:, None]] = keys


def _sorted(parts: Sequence[_Part], total: int) -> NDArray[np.unsignedinteger]:
    """The numbers of some queries' entries, ascending, of which there are ``total``."""
    keys, filled = np.empty(total, parts[0].heads.dtype), 0
    for part in parts:
        part.write(keys[filled : filled + len(part.passages)])
        filled += len(part.passages)
    keys.sort()
    return keys


def _sorted_rows(parts: Sequence[_Part], lengths: Int64) -> NDArray[np.unsignedinteger]:
    """The numbers of some queries' entries, query by query, ascending; ``lengths`` [q] counts those of a query.

    Each query is a row that is sorted by itself, which is several times as fast as sorting all together.
    """
    widths = [int(part.lengths.max(initial=0)) for part in parts]
    rows, filled = np.empty((len(lengths), sum(widths)), parts[0].heads.dtype), 0
    for part, width in zip(parts, widths, strict=True):
        part.write_rows(rows[:, filled : filled + width])
        filled += width
    rows.sort(axis=1)
    return rows.ravel() if rows.size == lengths.sum() else rows[np.arange(rows.shape[1]) < lengths[:, None]]


def _ranges(offsets: Int64, block: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries with about ``block`` entries, and at most ``most`` queries, each."""
    for start, stop in blocks(offsets, block):
        for begin in range(start, stop, most):
            yield begin, min(begin + most, stop)


@dataclass(frozen=True)
class _Aligned:
    """Lists in the order of the queries that are asked for."""

    met: DatedLists
    passage_rows: Int32  # of the lists: a plain array, because each slice of a mapped one costs microseconds
    found: Int64 | None  # [m] the lists of the queries, query by query; None: list i is that of query i
    by_query: Int64  # [Q + 1] which of ``found`` belong to each query
    lengths: Int64  # [Q] entries of each query

    @classmethod
    def of(cls, met: DatedLists, query_rows: Int32) -> _Aligned:
        lists = met.lists
        rows = np.asarray(lists.passage_rows)
        if np.array_equal(lists.query_rows, query_rows):
            lengths = spans(lists.offsets)
            return cls(met, rows, None, np.zeros(0, np.int64), lengths)
        found, by_query = matches(lists.query_rows, query_rows)
        lengths = spans(offsets_of(spans(lists.offsets)[found])[by_query])
        return cls(met, rows, found, by_query, lengths)

    def longest(self, start: int, stop: int) -> int:
        """The most entries that one of the queries ``start`` to ``stop`` has."""
        return int(self.lengths[start:stop].max(initial=0))

    def index(self, start: int, stop: int) -> Int64 | slice:
        """Where the entries of the queries ``start`` to ``stop`` stand in the lists, query by query."""
        offsets = self.met.lists.offsets
        if self.found is None:
            return slice(int(offsets[start]), int(offsets[stop]))
        return take_spans(offsets, self.found[self.by_query[start] : self.by_query[stop]])[0]

    def passages(self, start: int, stop: int) -> Int32:
        """The passage rows of the entries of the queries ``start`` to ``stop``."""
        return self.passage_rows[self.index(start, stop)]

    def entries(self, start: int, stop: int) -> tuple[Int64, Int32, NDArray[np.integer] | int]:
        """Owner (from 0), passage row and time of the entries of the queries ``start`` to ``stop``."""
        when, index = self.met.time, self.index(start, stop)
        owner = owners(offsets_of(self.lengths[start:stop]))
        if callable(when):
            of = np.arange(index.start, index.stop) if isinstance(index, slice) else index
            return owner, self.passage_rows[index], when(of)
        return owner, self.passage_rows[index], when

"""Small immutable records and array records that the floors (layers) of the package pass to each other.

Queries and passages are int32 row numbers; string ids appear only where data are read and results are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardneg.shown import Shown, counted

MIXED = "mixed:"  # begins Run.limited of a run that was fused from runs over different passages

BLOCK = 1 << 17  # elements processed at a time, so that temporary arrays fit into the processor's cache

Unit = Literal["passage", "chunk", "document"]
Side = Literal["query", "passage"]

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Number = TypeVar("Number", bound=np.generic)


def spans(offsets: Int64) -> Int64:
    """Lengths [n] of the spans that ``offsets`` [n + 1] delimit."""
    return np.diff(offsets)


def changes(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Whether each value [n] is the first or differs from the one before."""
    found = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """The distinct values [m] of numbers [n], ascending.

    ``np.unique`` puts them into a hash table, which for a million rows takes 30 times as long as sorting does.
    """
    ordered = np.sort(values, axis=None)
    return ordered[changes(ordered)]


def pair_keys(queries: NDArray[np.integer], passages: NDArray[np.integer]) -> Int64:
    """One number [n] for each pair of a query [n] and a passage row [n]; it ascends by query, then by passage."""
    return queries.astype(np.int64, copy=False) << 32 | passages


def offsets_of(lengths: NDArray[np.integer]) -> Int64:
    """Offsets [n + 1] of consecutive spans with these ``lengths`` [n]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def owners(offsets: Int64) -> Int64:
    """The index of the span that each element lies in; ``offsets`` [n + 1] delimit the spans."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), spans(offsets))


def take_spans(offsets: Int64, rows: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Element indices of the spans at ``rows`` [m], in that order, and the offsets [m + 1] of the result."""
    starts = offsets[rows]
    lengths = offsets[1:][rows] - starts  # of these spans only: there may be millions in all
    new = offsets_of(lengths)
    index = (starts - new[:-1]).repeat(lengths)
    index += np.arange(new[-1])
    return index, new


def blocks(offsets: Int64, size: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Consecutive ranges (begin, end) of spans with about ``size`` elements; without spans, one empty range."""
    inner = np.searchsorted(offsets, np.arange(size, offsets[-1], size))
    cuts = np.unique(np.concatenate([[0], inner, [len(offsets) - 1]])).tolist()
    yield from pairwise(cuts) if len(cuts) > 1 else [(0, 0)]


class ArrayRecord:
    """A base of records that hold arrays: two are equal if they have one class and equal values; NaN equals NaN.

    A dataclass of it needs ``eq=False``, because the comparison that a dataclass makes is ambiguous for arrays.
    """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]
        return all(_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f"))
    return bool(one == other) if type(one) is type(other) else False


@dataclass(frozen=True, repr=False, eq=False)
class Run(ArrayRecord, Shown):
    """Ranked result lists, ragged.

    The hits of ``query_rows[i]`` are ``offsets[i]:offsets[i + 1]``, best first.
    """

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]
    scores: Float32  # [n]
    unit: Unit = "passage"
    collection: str = ""  # digest of the collection the rows belong to
    limited: str = ""  # digest of the rows of the passages that alone were ranked; "": all were; see MIXED

    def __len__(self) -> int:
        return len(self.query_rows)

    def line(self) -> str:
        """How many queries and hits there are."""
        return f"Run of {counted(len(self), 'query')}, {len(self.scores):,} {self.unit} hits"

    def columns(self, most: int | None = None) -> dict[str, NDArray[Any]]:
        """A row for each hit: the rows of its query and passage, its rank from 1, and its score."""
        owner = owners(self.offsets)[:most]
        ranks = np.arange(len(owner)) - self.offsets[owner] + 1
        hits = {"passage_row": self.passage_rows[:most], "rank": ranks, "score": self.scores[:most]}
        return {"query_row": self.query_rows[owner], **hits}

    def hits(self, i: int) -> tuple[Int32, Float32]:
        """Passage rows and scores of the i-th query, best first."""
        span = slice(self.offsets[i], self.offsets[i + 1])
        return self.passage_rows[span], self.scores[span]

    def select(self, queries: NDArray[np.integer]) -> Run:
        """The hits of the queries at these positions (not rows)."""
        index, offsets = take_spans(self.offsets, queries)
        return replace(
            self,
            query_rows=self.query_rows[queries],
            offsets=offsets,
            passage_rows=self.passage_rows[index],
            scores=self.scores[index],
        )

    def replaced(self, lists: NDArray[np.integer], by: Run) -> Run:
        """The run with the lists of ``by`` in place of those at these positions."""
        order = np.arange(len(self))
        order[lists] = len(self) + np.arange(len(by))
        both = replace(
            self,
            query_rows=np.concatenate([self.query_rows, by.query_rows]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + by.offsets[1:]]),
            passage_rows=np.concatenate([self.passage_rows, by.passage_rows]),
            scores=np.concatenate([self.scores, by.scores]),
        )
        return both.select(order)

    def cut(self, depth: int) -> Run:
        """The run with at most ``depth`` hits of each query."""
        if spans(self.offsets).max(initial=0) <= depth:
            return self
        lengths = np.minimum(spans(self.offsets), depth)
        offsets = offsets_of(lengths)
        rows, scores = (np.empty(offsets[-1], hits.dtype) for hits in (self.passage_rows, self.scores))
        for start, stop in blocks(offsets):
            moved = self.offsets[start:stop] - offsets[start:stop]
            part = slice(offsets[start], offsets[stop])
            index = moved.repeat(lengths[start:stop]) + np.arange(part.start, part.stop)
            rows[part], scores[part] = self.passage_rows[index], self.scores[index]
        return replace(self, offsets=offsets, passage_rows=rows, scores=scores)

    def among(self, passages: NDArray[np.integer]) -> Run:
        """The run without the hits that are not among ``passages`` (rows)."""
        return self.where(np.isin(self.passage_rows, passages))

    def where(self, kept: NDArray[np.bool_]) -> Run:
        """The run with the hits that are ``kept`` [n], in their order."""
        lengths = np.bincount(owners(self.offsets)[kept], minlength=len(self.query_rows))
        return replace(
            self, offsets=offsets_of(lengths), passage_rows=self.passage_rows[kept], scores=self.scores[kept]
        )


@dataclass(frozen=True, eq=False)
class Qrels(ArrayRecord):
    """Relevance judgements, ragged by query; ``query_rows`` ascending.

    The positives of a query keep the order of their source, because some recipes train on the first one only.
    A query without judgements has an empty span, so the record also says which queries are in the split.
    """

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]
    grades: Int32  # [n]

    def __len__(self) -> int:
        return len(self.query_rows)

    def select(self, queries: NDArray[np.integer]) -> Qrels:
        """The judgements of the queries at these positions (not rows)."""
        index, offsets = take_spans(self.offsets, queries)
        return Qrels(self.query_rows[queries], offsets, self.passage_rows[index], self.grades[index])

    def positives(self, minimum: int = 1) -> Positives:
        """The positives D+(q) of every query: its passages of grade ``minimum`` or higher."""
        keep = self.grades >= minimum
        lengths = np.bincount(owners(self.offsets)[keep], minlength=len(self.query_rows))
        return Positives(self.query_rows, offsets_of(lengths), self.passage_rows[keep])


@dataclass(frozen=True, eq=False)
class Positives(ArrayRecord):
    """D+(q): all judged-relevant passages of every query, ragged."""

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]

    def __len__(self) -> int:
        return len(self.query_rows)

    def of(self, i: int) -> Int32:
        """The positives of the i-th query, as passage rows."""
        return self.passage_rows[self.offsets[i] : self.offsets[i + 1]]

    def select(self, queries: NDArray[np.integer]) -> Positives:
        """The positives of the queries at these positions (not rows)."""
        index, offsets = take_spans(self.offsets, queries)
        return Positives(self.query_rows[queries], offsets, self.passage_rows[index])

    def some(self) -> Positives:
        """The queries that have a positive."""
        return self.select(np.flatnonzero(spans(self.offsets)))

    def first(self) -> Int32:
        """The first positive of every query [Q]; each query must have one."""
        assert (spans(self.offsets) > 0).all()
        return self.passage_rows[self.offsets[:-1]]


@dataclass(frozen=True, eq=False)
class TokenBatch(ArrayRecord):
    """Sequences of token ids, flat and without padding; special tokens are included."""

    ids: Int32  # [T]
    offsets: Int64  # [n + 1]
    types: NDArray[np.uint8] | None = None  # [T] which text of a pair a token is of; None: all of the first

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Number of tokens of each sequence [n]."""
        return spans(self.offsets)

    def take(self, rows: NDArray[np.integer]) -> TokenBatch:
        """The sequences at these positions, in that order."""
        index, offsets = take_spans(self.offsets, rows)
        return TokenBatch(self.ids[index], offsets, None if self.types is None else self.types[index])


@dataclass(frozen=True)
class TextTemplate:
    """How the texts of one side become token sequences. All fields are saved with the model."""

    side: Side
    max_length: int  # special tokens included
    prompt: str = ""
    use_titles: bool = True
    title_join: Literal["sep", "space"] = "sep"
    chunks: int = 1  # a longer text is cut into at most this many sequences, each of max_length tokens
    max_characters: int = 0  # a text, title included, is cut after this many characters; 0: no limit
    tokenizer: str = field(default="", compare=True)  # digest


class VectorsByRow(Protocol):
    """Vectors that can be asked for by row, wherever they are kept."""

    def rows(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Vectors [len(rows), dim] of these rows, in that order."""
        ...

"""Id spaces map string ids to rows and rows to ids, for the ids of a collection or of some files."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Int32, distinct


class IdSpace(Protocol):
    """String ids by row and rows by id: an id column of a collection, or a :class:`Vocabulary`."""

    def __len__(self) -> int: ...

    def rows(self, ids: Sequence[str], /) -> Int32:
        """Row of each id [n], -1 where it is unknown."""
        ...

    def take(self, rows: NDArray[np.integer], /) -> list[str]:
        """The ids of these rows."""
        ...

    @property
    def id_rank(self) -> Int32:
        """Rank of each id in ascending byte order [n]."""
        ...


class Vocabulary:
    """An id space in memory; with a ``base``, its rows follow those of the base."""

    def __init__(self, ids: Iterable[str], base: IdSpace | None = None) -> None:
        self._base = base
        self._start = 0 if base is None else len(base)
        self._ids = list(dict.fromkeys(ids))
        self._rows = {id_: row for row, id_ in enumerate(self._ids, self._start)}

    @classmethod
    def of(cls, *columns: Iterable[str]) -> Vocabulary:
        """The distinct ids of these columns, in order of appearance."""
        return cls(itertools.chain(*columns))

    def __len__(self) -> int:
        return self._start + len(self._ids)

    def rows(self, ids: Sequence[str], /) -> Int32:
        """Row of each id [n], -1 where it is unknown."""
        rows = np.fromiter((self._rows.get(id_, -1) for id_ in ids), np.int32, len(ids))
        return rows if self._base is None else np.where(rows < 0, self._base.rows(ids), rows)

    def take(self, rows: NDArray[np.integer], /) -> list[str]:
        """The ids of these rows."""
        if self._base is None:
            return [self._ids[row] for row in rows.tolist()]
        ids = dict(zip(inner := distinct(rows[rows < self._start]), self._base.take(inner), strict=True))
        return [ids[row] if row < self._start else self._ids[row - self._start] for row in rows.tolist()]

    @cached_property
    def id_rank(self) -> Int32:
        """Rank of each id in ascending byte order [n]."""
        return byte_ranks(self.take(np.arange(len(self))))


def byte_ranks(ids: Sequence[str]) -> Int32:
    """Rank of each of some distinct ids in ascending order of their UTF-8 bytes [n]."""
    ranks = np.empty(len(ids), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    return ranks


def extend(space: IdSpace, ids: list[str]) -> tuple[IdSpace, Int32]:
    """Append those of the distinct ``ids`` [n] that a space lacks; returns the new space and the ids' rows [n]."""
    rows = np.array(space.rows(ids), np.int32)
    unknown = np.flatnonzero(rows < 0)
    if not len(unknown):
        return space, rows
    rows[unknown] = len(space) + np.arange(len(unknown))
    return Vocabulary([ids[i] for i in unknown.tolist()], space), rows


def other_forms(space: IdSpace, ids: Sequence[str]) -> list[str]:
    """Choose the ids that a space lacks, but holds in another Unicode normal form (NFC or NFD).

    They look the same on the screen, but are other ids.
    """
    ids = [id_ for id_ in ids if not id_.isascii()]  # ASCII has one form
    if not ids:
        return []
    forms = (space.rows([unicodedata.normalize(form, id_) for id_ in ids]) for form in ("NFC", "NFD"))
    there = np.maximum.reduce([np.asarray(rows) for rows in forms]) >= 0
    return [ids[i] for i in np.flatnonzero(there & (np.asarray(space.rows(ids)) < 0)).tolist()]


def written_otherwise(kind: str, ids: Sequence[str]) -> str:
    """What to tell of the ids that :func:`other_forms` found."""
    named = f"{len(ids):,} {kind} {'id is' if len(ids) == 1 else 'ids are'}"
    return f"{named} known in another Unicode form (NFC, NFD), and not matched: {ids[0]!a:.80}"

"""Negative swing: negatives that leave the candidates of a query and come back an episode later.

Figure 6 and Table 10 of Sun et al., "Reduce Catastrophic Forgetting of Dense Retrieval Training with Teleportation
Negatives", EMNLP 2022. Class A is in the candidates of an episode, out in the next, and in again in the one after
that; class B does so one episode later. The candidates are taken at mining depth. A sampled pool loses and regains
passages by chance, so the swing of pools is a measurement of its own: never mix the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hardneg.diagnostics.encounters import KEYS, Keys, Lists, queries_of, sorted_keys
from hardneg.records import Int32, Int64

CLASSES = ("A", "B")
PERIOD = 2  # episodes from in to in again
REPEATS, STAYS, RETURNS, LEAVES = range(4)  # episodes until the passage is in again; 3: more, or never


@dataclass(frozen=True)
class Swing:
    """How many passages of each query swing, by the episode in which they were in first."""

    names: tuple[str, ...]  # [E] of the episodes
    query_rows: Int32  # [Q] ascending
    entered: Int32  # [Q, max(E - 2, 0)] passages in the candidates of the episode
    left: Int32  # [Q, max(E - 2, 0)] of these, not in those of the next episode
    returned: Int32  # [Q, max(E - 2, 0)] of these, again in those of the one after that

    def of_class(self, letter: str) -> Int32:
        """The number of passages of each query [Q] in a class, where class A begins at the first episode.

        Zeros where there are too few episodes: class A needs three of them, and class B a fourth.
        """
        at = CLASSES.index(letter)
        return self.returned[:, at] if at < self.returned.shape[1] else np.zeros(len(self.query_rows), np.int32)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each episode that two others follow; ``share`` is that of passages that left and returned.

        It is None if none left.
        """
        lost = self.left.sum(axis=0)
        return [
            {
                "in": self.names[i],
                "out": self.names[i + 1],
                "again": self.names[i + PERIOD],
                "entered": int(self.entered[:, i].sum()),
                "left": int(lost[i]),
                "returned": int(self.returned[:, i].sum()),
                "share": float(self.returned[:, i].sum() / lost[i]) if lost[i] else None,
                "queries": int(np.count_nonzero(self.returned[:, i])),
            }
            for i in range(self.left.shape[1])
        ]

    def clearest(self, count: int) -> Int32:
        """At most ``count`` query rows that show the swing best: most of the rarer class, then most of both."""
        a, b = (self.of_class(letter) for letter in CLASSES)
        order = np.lexsort((self.query_rows, -(a + b), -np.minimum(a, b)))
        return self.query_rows[order[a[order] + b[order] > 0][:count]]


def swing(lists: Mapping[str, Lists], *, block: int = KEYS) -> Swing:
    """Count the passages that leave and return, by query and episode.

    Parameters
    ----------
    lists : episode -> candidates at mining depth without positives, or pools; in order of the episodes, at least
        one. Repeats of a passage in a list count once.
    """
    query_rows = queries_of(list(lists.values()))
    starts = max(len(lists) - PERIOD, 0)
    entered, left, returned = (np.zeros((len(query_rows), starts), np.int32) for _ in range(3))
    for part in sorted_keys(list(lists.values()), query_rows, block=block):
        moves, queries = _moves(part)[:, :starts], slice(part.start, part.stop)
        entered[queries] = moves[..., STAYS:].sum(axis=2)
        left[queries] = moves[..., RETURNS:].sum(axis=2)
        returned[queries] = moves[..., RETURNS]
    return Swing(tuple(lists), query_rows, entered, left, returned)


def _moves(part: Keys) -> Int64:
    """The number [q, times, 4] of a block's entries that are repeated, stay, return, or leave for longer."""
    keys, kind = part.keys, part.keys.dtype.type
    steps = np.full(len(keys), LEAVES, keys.dtype)  # episodes until the passage is in again
    np.subtract(keys[1:], keys[:-1], out=steps[:-1])
    np.minimum(steps, kind(LEAVES), out=steps)
    found = part.places()
    found <<= kind(2)
    found |= steps
    shape = (part.stop - part.start, 1 << part.time_bits, LEAVES + 1)
    return np.bincount(found.astype(np.int64, copy=False), minlength=int(np.prod(shape))).reshape(shape)


class Case(NamedTuple):
    """A passage that swings."""

    query_row: int
    passage_row: int
    letter: str  # A or B
    places: tuple[int, ...]  # [E] its place in each episode's list from 1, positives left out; 0: not there


def swing_cases(lists: Mapping[str, Lists], query_row: int) -> list[Case]:
    """The passages of a query that swing: class A, then class B, each by its place when it was in first.

    Parameters
    ----------
    lists : as for :func:`swing`; a query has at most one list in each.
    """
    found = [_list_of(one, query_row) for one in lists.values()]
    places = [{row: i for i, row in reversed(list(enumerate(rows, 1)))} for rows in found]
    cases = []
    for at, letter in enumerate(CLASSES):
        if at + PERIOD >= len(places):
            break
        for row in dict.fromkeys(found[at]):
            if row not in places[at + 1] and row in places[at + PERIOD]:
                cases.append(Case(query_row, row, letter, tuple(one.get(row, 0) for one in places)))
    return cases


def _list_of(lists: Lists, query_row: int) -> list[int]:
    """The passages of a query, best first; none if it has no list."""
    rows: list[int] = []
    for i in np.flatnonzero(lists.query_rows == query_row):
        rows += lists.passage_rows[lists.offsets[i] : lists.offsets[i + 1]].tolist()
    return rows

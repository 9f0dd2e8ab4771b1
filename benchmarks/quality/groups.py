"""The cells that are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from outcomes import Values

from quality.cells import AS_IS, BM25, FULL, Cell, Outcome

OURS, THEIRS, PLAINEST = "hardneg-", "st-", "st-in-batch"
STARTS = {AS_IS: "the model as it is", "anew": "its top three layers drawn anew"}

Known = Mapping[Cell, Outcome]


@dataclass(frozen=True)
class Group:
    """The cells that are compared: same data, start and time."""

    collection: str
    size: str
    start: str
    minutes: float

    @property
    def title(self) -> str:
        """The title of the group's table."""
        pairs = "all training queries" if self.size == FULL else f"{self.size} training queries, drawn at random"
        return f"{self.collection}, {pairs}, {STARTS[self.start]}, {self.minutes:g} minutes"


def groups_of(known: Known) -> list[Group]:
    """The groups that are compared, in order."""
    cells = (cell for cell in known if not cell.reference)
    return sorted(
        {Group(c.collection, c.size, c.start, c.minutes) for c in cells},
        key=lambda g: (g.collection, g.size != FULL, g.start != AS_IS, g.minutes),
    )


def compared(one: Cell, another: Cell) -> bool:
    """Whether two cells stand in the tables of the same group; references stand in those of all sizes."""
    same_start = one.start == another.start or BM25 in (one.contender, another.contender)
    same_time = (one.size, one.minutes) == (another.size, another.minutes)
    return (
        one.collection == another.collection and same_start and (same_time or one.reference or another.reference)
    )


def of_contender(known: Known, group: Group, contender: str) -> list[Outcome]:
    """The cells of a contender in a group, seed by seed."""
    same = (
        one
        for cell, one in known.items()
        if cell.contender == contender
        and (cell.collection, cell.size, cell.start, cell.minutes)
        == (group.collection, group.size, group.start, group.minutes)
    )
    return sorted(same, key=lambda one: one.cell.seed)


def reference(known: Known, group: Group, contender: str) -> list[Outcome]:
    """The cells of a reference, which is not trained."""
    start = AS_IS if contender == BM25 else group.start
    one = known.get(Cell(group.collection, FULL, start, contender, 0, 0))
    return [] if one is None else [one]


def contenders_of(known: Known, group: Group) -> list[str]:
    """The contenders that have a cell in a group, peers first."""
    names = {c.contender for c in known if not c.reference and of_contender(known, group, c.contender)}
    return sorted(names, key=lambda name: (name.startswith(OURS), name))


def mean_values(found: Sequence[Outcome], measure: str) -> Values:
    """A measure of every query, averaged over seeds."""
    values: Values = np.mean([one.values(measure) for one in found], axis=0)
    return values

"""A figure of a report: its table, made from an experiment, the chart of that table, or why there is neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from hardneg.report.opened import FAULTS, line_of
from hardneg.report.shapes import Chart, specification
from hardneg.report.table import NotMeant, NotRecorded, Table

NUMBERS = (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError)  # faults of a chart of damaged numbers


class Source(Protocol):
    """What figures are made from: an experiment, or several."""

    def note(self, fault: Exception) -> None:
        """Keep a fault as one line."""
        ...


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class Figure(Generic[S]):
    """A figure of a report: a table made from an experiment, and the chart of that table."""

    name: str  # of its files
    section: str
    title: str
    says: str  # how it is read, and where it is from
    facts: Callable[[S], Table]
    chart: Callable[[Table], Chart] | None = None  # None: the table says it best
    texts: tuple[str, ...] = ()  # columns of texts, which may be long


@dataclass(frozen=True)
class Drawn:
    """A figure with its table, or why there is none."""

    figure: Figure[Any]
    table: Table | None
    missing: str = ""
    meant: bool = True  # False: the figure is for other kinds of experiments

    def chart(self) -> Any:
        """The chart of the table; None if the figure has none."""
        return self.figure.chart(self.table.visible()) if self.figure.chart and self.table is not None else None

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification of the chart, made once; empty if the figure has none.

        It is empty, too, where no chart can be drawn of the numbers of a damaged experiment.
        """
        if not self.figure.chart or self.table is None:
            return {}
        try:
            return specification(self.chart)
        except NUMBERS:
            return {}


def draw(figure: Figure[S], opened: S) -> Drawn:
    """Make the table of a figure; what is missing or damaged becomes a sentence."""
    try:
        table = figure.facts(opened)
    except NotRecorded as reason:
        return Drawn(figure, None, str(reason), meant=not isinstance(reason, NotMeant))
    except FAULTS as fault:
        opened.note(fault)
        return Drawn(figure, None, f"This part cannot be made: {line_of(fault)}")
    return Drawn(figure, table) if len(table) else Drawn(figure, None, "There is nothing to show here.")

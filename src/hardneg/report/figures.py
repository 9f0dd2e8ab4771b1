"""All figures of a report in their order: the facts of each, its chart, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardneg.report import charts
from hardneg.report import facts_results as results
from hardneg.report.opened import FAULTS, Opened
from hardneg.report.table import NotRecorded, Table

SECTIONS = ("Results", "Learning curve", "Cost", "Settings")


@dataclass(frozen=True)
class Figure:
    """A figure of a report: a table made from an experiment, and the chart of that table."""

    name: str  # of its files
    section: str
    title: str
    says: str  # how it is read, and where it is from
    facts: Callable[[Opened], Table]
    chart: Callable[[Table], charts.Chart] | None = None  # None: the table says it best
    texts: tuple[str, ...] = ()  # columns of texts, which may be long


@dataclass(frozen=True)
class Drawn:
    """A figure with its table, or why there is none."""

    figure: Figure
    table: Table | None
    missing: str = ""

    def chart(self) -> Any:
        """The chart of the table; None if the figure has none."""
        return self.figure.chart(self.table) if self.figure.chart and self.table is not None else None


FIGURES = (
    Figure(
        "results",
        "Results",
        "Every state of the model",
        "Means over the queries of each split. `final` is the model that the experiment leaves.",
        results.results_table,
        charts.results_chart,
    ),
    Figure(
        "comparisons",
        "Results",
        "Paired tests",
        "Two-sided randomisation tests over queries; intervals are 95 % bootstrap intervals of the difference.",
        results.tests_table,
    ),
    Figure(
        "learning_curve",
        "Learning curve",
        "Loss",
        "Training loss by step (faint) and its moving mean; each episode begins where the one before was left.",
        results.loss_table,
        charts.loss_chart,
    ),
    Figure(
        "measured",
        "Learning curve",
        "Measured on the way",
        "The deciding measure of each state (ANCE-Tele, Figures 2 and 8b); diamonds lie within an episode.",
        results.measured_table,
        charts.measured_chart,
    ),
    Figure(
        "cost",
        "Cost",
        "Time by stage",
        "Seconds of all stages; those of two processes may overlap, and one stage may lie inside another.",
        results.cost_table,
        charts.cost_chart,
    ),
    Figure(
        "cost_summary",
        "Cost",
        "Cost of the whole",
        "As the papers count it (ANCE-Tele, Table 6): training, refreshing of negatives, and both together.",
        results.cost_summary_table,
    ),
    Figure(
        "settings",
        "Settings",
        "All settings",
        "Results depend on those that decide; the others say how, not what.",
        results.settings_table,
    ),
)


def draw(figure: Figure, opened: Opened) -> Drawn:
    """Make the table of a figure; what is missing or damaged becomes a sentence."""
    try:
        table = figure.facts(opened)
    except NotRecorded as reason:
        return Drawn(figure, None, str(reason))
    except FAULTS as fault:
        opened.note(fault)
        return Drawn(figure, None, f"This part cannot be made: {fault}")
    return Drawn(figure, table) if len(table) else Drawn(figure, None, "There is nothing to show here.")

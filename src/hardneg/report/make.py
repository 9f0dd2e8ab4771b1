"""Makes a report: draws the figures of an opened experiment and publishes page, pictures and tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from hardneg.config import nearest
from hardneg.diagnostics.audit_page import labelling
from hardneg.errors import SettingsError
from hardneg.experiment.names import RANKER, shown
from hardneg.negatives.pool import counted_by
from hardneg.report.drawing import Drawn, draw
from hardneg.report.explorer import explorer_data
from hardneg.report.facts_audit import (
    AUDIT,
    missing_sentence,
    sampled_sentence,
    suspected_queries,
    suspects_of,
)
from hardneg.report.facts_results import judged_queries
from hardneg.report.figures import FIGURES
from hardneg.report.in_batch import in_batch, trained_start
from hardneg.report.measured import of_bm25
from hardneg.report.opened import FAULTS, Opened
from hardneg.report.page import Page, explorer_html, html_of
from hardneg.report.pictures import Painter
from hardneg.report.refreshed import worded
from hardneg.report.scripts import asset
from hardneg.report.shapes import altair
from hardneg.report.side_by_side import FIGURES as TOGETHER
from hardneg.report.side_by_side import SECTIONS, Several, verdict_of
from hardneg.report.table import NotRecorded
from hardneg.report.verdict import Verdict, naming_start, verdict
from hardneg.shown import counted, listed
from hardneg.storage.artifacts import publish_file, remove

UNREADABLE = Verdict("open", "The results of this experiment cannot be read, so there is no verdict.", (), ())


@dataclass(frozen=True)
class Report:
    """A report of an experiment: its verdict, its figures, and its page.

    A notebook displays the page. ``charts`` and ``tables`` give the figures' charts and numbers by name, and
    ``figure`` gives both of one figure.
    """

    opened: Opened
    drawn: tuple[Drawn, ...]
    command: str

    def __repr__(self) -> str:
        return f"Report of {self.opened.path} ({counted(len(self.tables), 'figure')}): {self.verdict.sentence}"

    @property
    def path(self) -> Path:
        """The page, if it was written."""
        return self.opened.layout.report

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the experiment."""
        opened = self.opened
        queries = opened.told(lambda: judged_queries(opened), None)
        running = opened.told(lambda: so_far(opened), "")
        known: Any = {"queries": queries, "running": running, "dev_passages": opened.dev_passages}
        known |= {"at_work": bool(opened.executed_by), "in_batch": opened.told(lambda: in_batch(opened), None)}
        known["ended_by"] = opened.ended_by
        known["momentum_from"] = opened.course.momentum_from
        pools = opened.pools.values()
        known["mined"] = any(len(pool.passage_rows) for pool in pools) if pools else None
        judged = opened.told(lambda: verdict(opened.results, **known), UNREADABLE)
        start = opened.told(lambda: trained_start(opened), None)
        return naming_start(judged, start) if start and judged.kind != "open" else judged

    @property
    def notes(self) -> list[str]:
        """A line for each part of the folder that is missing or damaged."""
        return self.opened.notes

    @property
    def tables(self) -> dict[str, Any]:
        """Each figure's table by name; ``frame()`` of a table is a ``pandas.DataFrame``."""
        return {one.figure.name: one.table for one in self.drawn if one.table is not None}

    @property
    def charts(self) -> dict[str, Any]:
        """Each figure's chart by name, of Altair."""
        return {one.figure.name: one.chart() for one in self.drawn if one.table is not None and one.figure.chart}

    def figure(self, name: str) -> tuple[Any, Any]:
        """The chart of a figure, None if it has none, and its numbers as a ``pandas.DataFrame``.

        Raises
        ------
        SettingsError : no figure is called so, or there is nothing to draw; the text says why.
        """
        return figure_of(self.drawn, name)

    @cached_property
    def html(self) -> bytes:
        """The page itself, as UTF-8 HTML."""
        altair()
        verdict = self.verdict
        subtitle = " · ".join(about(self.opened))
        title = self.opened.path.resolve().name
        found = self.explorer
        lead = f"{sampled_sentence(self.opened)} {missing_sentence(self.opened)}".strip()
        return html_of(
            Page(
                title,
                subtitle,
                verdict,
                self.notes,
                self.drawn,
                self.command,
                blocks=self._blocks,
                scripts=(asset("explorer.js"),) if found else (),
                data=(("explorer-data", found),) if found else (),
                leads={"False negatives": lead},
            )
        )

    @property
    def _blocks(self) -> dict[str, str]:
        """HTML in addition to the figures, by section: the explorer, and the suspects to label."""
        found, suspects = self.explorer, suspects_of(self.opened)
        blocks = {"Queries": explorer_html(len(found["queries"]))} if found else {}
        if suspects:
            head = f"<summary>Label the {len(suspects)} most suspected pairs</summary>"
            known = None if self.opened.data is None else self.opened.data.judgements
            unit = counted_by(Path(self.opened.kept[AUDIT]["pool"]))
            pairs = labelling(suspects, known, unit=unit)
            blocks["False negatives"] = f'<details class="label">{head}{pairs}</details>'
        return blocks

    @cached_property
    def explorer(self) -> dict[str, Any]:
        """What the query explorer shows; empty if there is nothing."""
        try:
            return explorer_data(self.opened, suspected_queries(self.opened))
        except NotRecorded:
            return {}
        except FAULTS as fault:
            self.opened.note(fault)
            return {}

    def _repr_html_(self) -> str:
        """The page in a frame, as notebooks display it."""
        return framed(self.html)


@dataclass(frozen=True)
class Comparison:
    """A report of several experiments side by side; a notebook displays the page."""

    several: Several
    drawn: tuple[Drawn, ...]
    command: str
    pooled: Mapping[str, Any] = field(
        default_factory=dict
    )  # results over seeds, if the experiments are seeds of one

    def __repr__(self) -> str:
        return f"Comparison of {listed(self.several.names)}: {counted(len(self.tables), 'figure')}"

    @cached_property
    def verdict(self) -> Verdict:
        """Which experiment does best, and how sure that is; over seeds, their pooled results."""
        if not self.pooled:
            return verdict_of(self.several)
        return verdict(self.pooled, dev_passages=self.several.experiments[0].dev_passages)

    @property
    def notes(self) -> list[str]:
        """A line for each part of a folder that is missing or damaged."""
        return [note for one in self.several.experiments for note in one.notes]

    @property
    def tables(self) -> dict[str, Any]:
        """Each figure's table by name; ``frame()`` of a table is a ``pandas.DataFrame``."""
        return {one.figure.name: one.table for one in self.drawn if one.table is not None}

    @property
    def charts(self) -> dict[str, Any]:
        """Each figure's chart by name, of Altair."""
        return {one.figure.name: one.chart() for one in self.drawn if one.table is not None and one.figure.chart}

    def figure(self, name: str) -> tuple[Any, Any]:
        """The chart of a figure, None if it has none, and its numbers as a ``pandas.DataFrame``.

        Raises
        ------
        SettingsError : no figure is called so, or there is nothing to draw; the text says why.
        """
        return figure_of(self.drawn, name)

    @cached_property
    def html(self) -> bytes:
        """The page itself, as UTF-8 HTML."""
        altair()
        title = " · ".join(self.several.names)
        verdict = self.verdict
        page = Page(title, "experiments side by side", verdict, self.notes, self.drawn, self.command, {}, SECTIONS)
        return html_of(page)

    def _repr_html_(self) -> str:
        """The page in a frame, as notebooks display it."""
        return framed(self.html)


def figure_of(drawn: Sequence[Drawn], name: str) -> tuple[Any, Any]:
    """The chart and the numbers of the figure with this name; see :meth:`Report.figure`."""
    found = {one.figure.name: one for one in drawn}
    if name not in found:
        raise SettingsError("BAD_SETTING", f"there is no figure '{name:.60}'", nearest(name, tuple(found)))
    one = found[name]
    if one.table is None:
        raise SettingsError("BAD_SETTING", f"the figure '{name}' is empty: {one.missing}", "choose another one")
    return one.chart(), one.table.frame()


def framed(html: bytes) -> str:
    """A page in a frame of a notebook."""
    source = escape(html.decode(), quote=True)
    return f'<iframe srcdoc="{source}" style="width:100%;height:48rem;border:0" title="report"></iframe>'


def make_comparison(
    experiments: Sequence[Opened], command: Sequence[str], pooled: Mapping[str, Any] | None = None
) -> Comparison:
    """Draw the figures of several experiments; ``command`` is what makes the report again.

    Parameters
    ----------
    pooled : results over seeds, if the experiments are the seeds of one.
    """
    several = Several(experiments)
    drawn = tuple(draw(figure, several) for figure in TOGETHER)
    return Comparison(several, drawn, shlex.join(command), pooled or {})


def make(opened: Opened, command: Sequence[str], painter: Painter | None = None) -> Report:
    """Draw all figures of an experiment; ``command`` is what makes the report again.

    Parameters
    ----------
    painter : draws each chart as a picture as soon as it is there.
    """
    drawn = []
    for figure in FIGURES:
        drawn.append(one := draw(worded(figure, opened), opened))
        if painter is not None and one.spec:
            painter.add(opened.layout.figures / figure.name, one.spec)
    return Report(opened, tuple(drawn), shlex.join(command))


def write(opened: Opened, command: Sequence[str], *, pictures: bool = True) -> Report:
    """Make a report, and publish each figure's numbers as CSV, and at last the page: so it never lacks figures.

    Parameters
    ----------
    pictures : publish each chart as PNG and SVG, too.
    """
    changed = []
    remove(opened.layout.report)
    with Painter() as painter:
        report = make(opened, command, painter if pictures else None)
        for name, table in report.tables.items():
            place, numbers = opened.layout.figures / f"{name}.csv", table.csv()
            if not place.is_file() or place.read_bytes() != numbers:
                changed.append(name)
            with publish_file(place) as stream:
                stream.write(numbers)
        undrawn = painter.finish()
    remove_older(opened, report, [*undrawn] if pictures else changed)
    for name, fault in undrawn.items():
        opened.notes.append(f"the chart {name} has no pictures ({' '.join(str(fault).split()):.200})")
    write_page(report, opened.layout.report)
    return report


def remove_older(opened: Opened, report: Report, undrawn: Sequence[str]) -> None:
    """Remove the pictures of ``undrawn`` figures, whose numbers have changed, and figures that there are no more.

    Where a part of the experiment could not be read, no figure is taken to be no more. Other files stay.
    """
    gone: list[tuple[str, tuple[str, ...]]] = [(name, (".png", ".svg")) for name in undrawn]
    if opened.data is not None and not opened.notes:
        there = {one.figure.name for one in report.drawn if one.table is not None or one.spec}
        gone += [(one.name, (".csv", ".png", ".svg")) for one in FIGURES if one.name not in there]
    for name, ends in gone:
        for end in ends:
            remove(opened.layout.figures / f"{name}{end}")


def write_page(report: Report | Comparison, path: Path) -> None:
    """Publish the page of one experiment or several at ``path``."""
    with publish_file(path) as stream:
        stream.write(report.html)


def about(opened: Opened) -> list[str]:
    """The recipe, the progress, the sizes of the data and the folder of an experiment."""
    recipe = opened.settings.get("recipe", "experiment")
    told = [recipe, "finished" if opened.finished else "being executed" if opened.executed_by else "not finished"]
    if (data := opened.data) is not None:
        told += [counted(len(data.train), "training query"), counted(data.collection.n_passages, "passage")]
    return [*told, str(opened.path)]


def so_far(opened: Opened) -> str:
    """A sentence on an experiment without results: who executes it, if somebody does, and how far it is."""
    stands = (
        f"is being executed by {' and '.join(opened.executed_by)}" if opened.executed_by else "is not finished"
    )
    bm25 = bool(of_bm25(opened))
    if not opened.states and not opened.metrics and not bm25:
        begins = f"{stands} and " if opened.executed_by else ""
        return f"This experiment {begins}has not measured anything yet."
    last = opened.metrics[-1] if opened.metrics else None
    two = not opened.trains_ranker and opened.rows_of(RANKER)
    whose = " of the retriever" if two else ""
    episode = f" of episode {last['episode']}" if last and opened.course.several_episodes else ""
    at = f"; the last logged step{whose} is {last['step']:,}{episode}" if last else ""
    own = [one for one in opened.states if one.of is None] or opened.states
    names = ", ".join(shown(one.name) for one in own[-1:])
    nothing = "BM25 alone was measured" if bm25 else "no state was measured"
    seen = f"the last state measured is {names}" if names else nothing
    return f"This experiment {stands}: {seen}{at}."

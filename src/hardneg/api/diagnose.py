"""What training did: the report of an experiment, made from its folder and its collection, without the model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hardneg.api.audit import Sampling, audit_last_pool
from hardneg.api.clean import seeds_with_settings
from hardneg.api.inputs import Data, Place, check_file
from hardneg.api.reopen import experiment_data
from hardneg.arguments import checked
from hardneg.data.training_data import TrainingData
from hardneg.errors import InputError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.process.progress import say
from hardneg.report.facts_audit import AUDIT
from hardneg.report.make import Comparison, Report, make, make_comparison, write, write_page
from hardneg.report.opened import Opened
from hardneg.report.shapes import altair

log = logging.getLogger(__name__)

AUDITED = Sampling()  # all texts of a very large pool are too many to read for a report


@checked
def diagnose(
    experiment: Place,
    data: Data | None = None,
    *,
    save: bool = True,
    out: Place | None = None,
    pictures: bool = True,
    cache: Place | None = None,
) -> Report | Comparison:
    """Make the report of an experiment, which may still run, be cut short, or be of an older format.

    An experiment of several seeds has a report for each of them, and one of all side by side.

    Parameters
    ----------
    data : the collection, if it is no longer where the experiment remembers it. Without a collection, texts and
        everything that needs judgements are left out.
    save : write ``report.html`` and ``figures/`` into the experiment's folder.
    out : also write the page to this file.
    pictures : also write each chart as PNG and SVG.
    cache : the folder that ``data`` in a foreign convention is imported into, and that answers are matched in; by
        default the user's, and that of the experiment.

    Returns
    -------
    The report, which a notebook displays; ``charts`` and ``tables`` hold its figures by name, and ``figure(name)``
    gives a chart with its numbers as a ``pandas.DataFrame``.

    Raises
    ------
    InputError : there is no experiment at this place.
    SettingsError : the packages that draw charts are not installed.
    """
    folder = Path(experiment)
    if out is not None:
        check_file(Path(out), [folder, data])
    found: Report | Comparison
    if parts := seeds_of(folder):
        found = _diagnose_seeds(folder, parts, data, save=save, pictures=pictures, cache=cache)
    else:
        opened, command = opened_at(folder, data, cache), command_of(folder, data)
        found = write(opened, command, pictures=pictures) if save else make(opened, command)
    if out is not None:
        write_page(found, Path(out))
    return found


def _diagnose_seeds(
    folder: Path, parts: Sequence[Path], data: Data | None, *, save: bool, pictures: bool, cache: Place | None
) -> Comparison:
    """Make a report of each seed of an experiment, and return the report of all of them."""
    opened = [opened_at(part, data, cache) for part in parts]
    for part, one in zip(parts, opened, strict=True):
        if save:
            write(one, command_of(part, data), pictures=pictures)
    together = make_comparison(opened, command_of(folder, data), Opened(Layout(folder)).results)
    if save:
        write_page(together, Layout(folder).report)
    return together


def seeds_of(folder: Path) -> list[Path]:
    """The folders of an experiment's single seeds; empty if the experiment has one seed."""
    layout = Layout(folder)
    if layout.settings.is_file():
        return []
    return seeds_with_settings(layout)


@checked
def compare_experiments(
    experiments: Sequence[Place],
    data: Data | None = None,
    *,
    out: Place | None = None,
    cache: Place | None = None,
) -> Comparison:
    """Put several experiments side by side: settings that differ, results, paired tests, overlaid curves.

    Parameters
    ----------
    data : the collection, if it is no longer where the experiments remember it.
    out : write the page to this file.
    cache : the folder that ``data`` in a foreign convention is imported into, and that answers are matched in; by
        default the user's, and that of the experiment.

    Raises
    ------
    InputError : there is no experiment at one of the places.
    SettingsError : no experiment is given, one is given twice, or the packages that draw charts are not installed.
    """
    if not len(experiments):
        raise SettingsError("BAD_SETTING", "no experiments are given", "give the folders of at least two")
    check_distinct(experiments)
    if out is not None:
        check_file(Path(out), [*experiments, data])
    folders = [part for one in experiments for part in seeds_of(Path(one)) or [Path(one)]]
    check_distinct(folders)
    opened = [opened_at(folder, data, cache) for folder in folders]
    given = ["--data", str(data)] if isinstance(data, (str, Path)) else []
    given += ["--out", str(out)] if out is not None else []
    report = make_comparison(opened, ["hardneg", "diagnose", *map(str, experiments), *given])
    if out is not None:
        write_page(report, Path(out))
    return report


def check_distinct(experiments: Sequence[Place]) -> None:
    """Refuse a list in which one experiment is given twice."""
    places = [Path(one).resolve() for one in experiments]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise SettingsError("BAD_SETTING", "this experiment is given twice", "give each once", path=place)


def open_reports(
    experiments: Sequence[Place], data: Data | None = None, cache: Place | None = None
) -> list[Report]:
    """The report of each experiment, for a terminal: no chart is drawn, and nothing is written."""
    check_distinct(experiments)
    folders = [part for one in experiments for part in seeds_of(Path(one)) or [Path(one)]]
    return [make(opened_at(folder, data, cache), command_of(folder, data)) for folder in folders]


def compare_opened(reports: Sequence[Report]) -> Comparison:
    """Several reports side by side, for a terminal; of all seeds of an experiment, its pooled results, too."""
    opened = [one.opened for one in reports]
    whole = opened[0].path.parent
    seeds = [seed.path for seed in Layout(whole).seeds()] == [one.path for one in opened]
    return make_comparison(opened, ["hardneg", "show"], Opened(Layout(whole)).results if seeds else None)


def report_training(folder: Path, data: TrainingData, cache: Path) -> None:
    """Write the report of an experiment that has just finished; a failure gives only a warning.

    Without the packages that draw charts, one line says how to get the report. ``HARDNEG_REPORT=0`` in the
    environment turns the report off.
    """
    draw_if_wanted(
        folder, lambda: write(audited(Opened(Layout(folder), data, stores=cache)), command_of(folder, None))
    )


def report_again(folder: Path, data: TrainingData, cache: Path) -> None:
    """Write the report of a finished experiment that has none: its process may have died while it drew."""
    if not Layout(folder).report.is_file():
        report_training(folder, data, cache)


def report_seeds(folder: Path, data: TrainingData, cache: Path | None) -> None:
    """Write the report of all seeds of an experiment, which have just finished (:func:`report_training`)."""

    def draw() -> None:
        parts = [Opened(Layout(part), data, stores=cache) for part in seeds_of(folder)]
        together = make_comparison(parts, command_of(folder, None), Opened(Layout(folder)).results)
        write_page(together, Layout(folder).report)

    draw_if_wanted(folder, draw)


def draw_if_wanted(folder: Path, draw: Callable[[], object]) -> None:
    """Let ``draw`` write the report of a folder, unless it is turned off; a failure gives only a line."""
    if os.environ.get("HARDNEG_REPORT") == "0":
        return
    try:
        altair()
        draw()
        say(f"report: {Layout(folder).report}")
    except SettingsError as missing:
        say(f"no report is drawn: {missing.what}; {missing.fix}, then hardneg diagnose {folder}")
    except Exception as fault:  # training is done, and its results stand
        told = " ".join(f"{type(fault).__name__}: {fault}".split())[:300]
        log.warning("the report could not be made (%s); hardneg diagnose %s tries again", told, folder)


def opened_at(folder: Path, data: Data | None = None, cache: Place | None = None) -> Opened:
    """An experiment's folder, opened as far as it can be; what is missing is noted."""
    layout = Layout(folder)
    if not any(place.is_file() for place in (layout.settings, layout.results, layout.metrics)):
        what = "there is no experiment here"
        raise InputError("NOT_FOUND", what, "give the folder that `hardneg train --out` made", path=folder)
    opened = Opened(layout, stores=None if cache is None else Path(cache).absolute())
    opened.data = opened.told(lambda: experiment_data(folder, data, cache=cache), None)
    return audited(opened)


def audited(opened: Opened) -> Opened:
    """The opened experiment with an audit of its last pool, made without a model and with kept BM25 lists.

    Of a very large pool, only queries drawn at random are audited; ``hardneg audit`` looks at all.
    """
    if (data := opened.data) is not None and opened.pools:
        pool, cache = list(opened.pools.values())[-1], opened.cache
        find = partial(audit_last_pool, opened.path, pool, data.collection, cache, sample=AUDITED)
        found = opened.told(find, None)
        if found is not None:
            opened.kept[AUDIT] = found
    return opened


def command_of(folder: Path, data: Data | None) -> list[str]:
    """The command that makes the report again."""
    given = ["--data", str(data)] if isinstance(data, (str, Path)) else []
    return ["hardneg", "diagnose", str(folder), *given]

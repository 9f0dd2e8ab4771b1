"""What training did: the report of an experiment, made from its folder and its collection, without the model."""

from __future__ import annotations

from pathlib import Path

from hardneg.api.inputs import Data, Place
from hardneg.api.reopen import experiment_data
from hardneg.arguments import checked
from hardneg.errors import InputError
from hardneg.experiment.layout import Layout
from hardneg.report.make import Report, make, write
from hardneg.report.opened import Opened


@checked
def diagnose(
    experiment: Place,
    data: Data | None = None,
    *,
    save: bool = True,
    pictures: bool = True,
    cache: Place | None = None,
) -> Report:
    """Make the report of an experiment, which may still run, be cut short, or be of an older format.

    Parameters
    ----------
    data : the collection, if it is not where the experiment remembers it to be. Without any, texts and what needs
        judgements are left out.
    save : write ``report.html`` and ``figures/`` into the experiment's folder.
    pictures : also write each chart as PNG and SVG.
    cache : where a foreign convention of ``data`` is imported to.

    Returns
    -------
    The report, which a notebook displays; ``charts`` and ``tables`` hold its figures by name.

    Raises
    ------
    InputError : there is no experiment at this place.
    SettingsError : the packages that draw charts are not installed.
    """
    opened = opened_at(Path(experiment), data, cache)
    report = make(opened, command_of(Path(experiment), data))
    if save:
        write(report, pictures=pictures)
    return report


def opened_at(folder: Path, data: Data | None = None, cache: Place | None = None) -> Opened:
    """An experiment's folder, opened as far as it can be; what is missing is noted."""
    layout = Layout(folder)
    if not any(place.is_file() for place in (layout.settings, layout.results, layout.metrics)):
        what = "there is no experiment here"
        raise InputError("NOT_FOUND", what, "give the folder that `hardneg train --out` made", path=folder)
    opened = Opened(layout)
    opened.data = opened.told(lambda: experiment_data(folder, data, cache=cache), None)
    return opened


def command_of(folder: Path, data: Data | None) -> list[str]:
    """The command that makes the report again."""
    given = ["--data", str(data)] if isinstance(data, (str, Path)) else []
    return ["hardneg", "diagnose", str(folder), *given]

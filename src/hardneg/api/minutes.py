"""Chooses how long a recipe trains from the minutes that it may take here."""

from __future__ import annotations

import dataclasses
from time import perf_counter
from typing import Any

from hardneg.api.planning import planned
from hardneg.api.prepare import Task
from hardneg.errors import SettingsError
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import Layout
from hardneg.process.progress import clock, note
from hardneg.recipes.settings import TrainingSettings

LENGTHS = ("epochs", "first_epochs", "first_ranker_epochs")  # what grows with the time
LEAST = 0.1  # the share of the time that training must have


def fitted(task: Task) -> Task:
    """The task with as many epochs as fit into its minutes, by an estimate that is timed here on a sample.

    An experiment that was begun keeps the epochs that it was begun with, since the estimate is another one each
    time. With several seeds, each has these minutes.

    Raises
    ------
    SettingsError : nearly all of the time would go to encoding, searching and measuring.
    """
    if task.minutes is None:
        return task
    lengths = lengths_begun(task)
    if lengths is None:
        lengths = lengths_within(task, 60 * task.minutes)
    else:
        told = "minutes count only where an experiment begins"
        note(f"{task.place}: begun with epochs = {lengths['epochs']:g}, and kept so: {told}")
    settings = task.settings.model_copy(update={"min_steps": None} | lengths)
    return dataclasses.replace(task, settings=settings.for_data(len(task.data.train)), minutes=None)


def lengths_begun(task: Task) -> dict[str, Any] | None:
    """The lengths and the bounds on steps of the experiment that the task goes on with; None: there is none."""
    if task.out is None:
        return None
    for place in (Layout(task.out), *Layout(task.out).seeds()):
        if place.settings.is_file():
            begun = read_settings(place.path).get("settings", {})
            if begun.get("epochs") is not None:  # else it is another experiment, which will be refused
                return {name: begun[name] for name in (*LENGTHS, "min_steps") if name in begun}
    return None


def lengths_within(task: Task, seconds: float) -> dict[str, Any]:
    """Lengths with which a task takes so many seconds, with this estimate; only training grows with them."""
    settings, begun = task.settings, perf_counter()
    free = settings.model_copy(update={"min_steps": None, "max_steps": None}).for_data(len(task.data.train))
    took = planned(dataclasses.replace(task, settings=free, seeds=1), measure=True)["seconds"]
    training = sum(value for stage, value in took.items() if stage.startswith("train"))
    rest = took["total"] - training + perf_counter() - begun
    if seconds - rest < LEAST * seconds:
        what = f"minutes = {seconds / 60:g}, and all but training takes about {clock(rest)} here"
        raise SettingsError("BAD_SETTING", what, "give more minutes; --estimate shows what takes long")
    factor = (seconds - rest) / training
    lengths = {name: float(f"{value * factor:.3g}") for name, value in lengths_of(settings).items()}
    told = ", ".join(f"{name} = {value:g}" for name, value in lengths.items())
    note(f"minutes = {seconds / 60:g}: {told}; all but training takes about {clock(rest)}")
    return lengths


def lengths_of(settings: TrainingSettings) -> dict[str, float]:
    """The lengths that these settings use, by name."""
    named = {name: getattr(settings, name, None) for name in LENGTHS}
    if getattr(settings, "first", "in_batch") != "in_batch":
        del named["first_epochs"]
    return {name: value for name, value in named.items() if value is not None}

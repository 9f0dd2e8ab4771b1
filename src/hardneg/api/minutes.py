"""Chooses how long a recipe trains from the minutes that it may take here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from hardneg.api.planning import planner
from hardneg.api.prepare import Task
from hardneg.api.settings import with_steps
from hardneg.errors import SettingsError
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import Layout
from hardneg.process.progress import clock, note
from hardneg.recipes.many_devices import ALONE, Devices
from hardneg.recipes.microbenchmarks import timed_once
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.usual import BOUNDS

LENGTHS = ("epochs", "first_epochs", "first_ranker_epochs")  # what grows with the time
FIRST = ("first_steps", "first_ranker_steps")  # lengths in steps that an experiment may have been begun with
LEAST = 0.1  # the share of the time that training must have
NEAR = 0.02  # the share of the time that may be left over
SHORTEST = 1e-9  # of the lengths: one step of each training
LOOKS = 20  # lengths that are tried, at most
ROUNDING = 1e-9  # so that 5.0 is not cut to 4.99
GROWTH = 8.0  # by which the lengths grow at least while there is time: so far that more steps are made


def fitted(task: Task, *, devices: Devices = ALONE) -> Task:
    """The task with as many epochs as fit into its minutes on these devices, by an estimate that is timed here.

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
        lengths = lengths_within(task, 60 * task.minutes, devices)
    else:
        told = "minutes count only where an experiment begins"
        note(f"{task.place}: begun with epochs = {lengths['epochs']:g}, and kept so: {told}")
    return dataclasses.replace(task, settings=with_lengths(task, lengths), minutes=None)


def lengths_begun(task: Task) -> dict[str, Any] | None:
    """The lengths of the experiment that the task goes on with, and its bounds on steps, unless others are given.

    None: there is no such experiment.
    """
    if task.out is None:
        return None
    for place in (Layout(task.out), *Layout(task.out).seeds()):
        if place.settings.is_file():
            begun = read_settings(place.path).get("settings", {})
            if begun.get("epochs") is not None:  # else it is another experiment, which will be refused
                bounds = [name for name in BOUNDS if not task.settings.is_told(name)]
                return {name: begun[name] for name in (*LENGTHS, *FIRST, *bounds) if name in begun}
    return None


@dataclasses.dataclass(frozen=True)
class Taken:
    """The seconds of a task with some lengths, by an estimate."""

    total: float
    training: float  # the part of it that makes steps

    @property
    def rest(self) -> float:
        """The seconds of all but training."""
        return self.total - self.training


def lengths_within(task: Task, seconds: float, devices: Devices = ALONE) -> dict[str, Any]:
    """The longest lengths with which a task takes at most so many seconds, by an estimate.

    Not only training grows with the lengths, but also what is measured, scored, mined and stored on the way. So
    the work is counted again for each length that is tried; its speeds are timed once.
    """
    begun, told = perf_counter(), f"minutes = {seconds / 60:g}"
    note(f"{told}: measuring the speed of this machine first takes some of them")
    with timed_once():
        plan = planner(dataclasses.replace(task, seeds=1), devices=devices)

        def taken(factor: float) -> Taken:
            lengths = scaled(task.settings, factor)
            took = plan(with_lengths(task, lengths), measure=True)["seconds"]
            return Taken(took["total"], sum(value for stage, value in took.items() if stage.startswith("train")))

        least = taken(SHORTEST)
        left = seconds - (perf_counter() - begun)
        needed = max(least.rest / (1 - LEAST), least.total)
        if needed > left:
            about = math.ceil((needed + seconds - left) / 60)
            fix = f"give at least about {about:,}; --estimate shows what takes long"
            raise SettingsError("BAD_SETTING", what_takes_too_long(told, least, seconds, left), fix)
        factor, found, bounded = longest_within(taken, left, least)
    lengths = scaled(task.settings, factor)
    named = ", ".join(f"{name} = {value:g}" for name, value in lengths.items())
    most = task.settings.max_steps if task.settings.is_told("max_steps") else None
    ends = f"; max_steps = {most:,} ends it before" if bounded and most else ""
    note(f"{told}: {named}; all but training takes about {clock(found.rest + seconds - left)}{ends}")
    return lengths


def what_takes_too_long(told: str, least: Taken, seconds: float, left: float) -> str:
    """Which part of the shortest training takes too long; ``left`` seconds of the given minutes are left."""
    measuring = seconds - left
    if least.rest > (1 - LEAST) * left:
        return f"{told} is too short: all but training takes about {clock(least.rest + measuring)} here"
    return f"{told} is too short: the fewest steps take about {clock(least.total + measuring)} in all here"


def longest_within(taken: Callable[[float], Taken], left: float, least: Taken) -> tuple[float, Taken, bool]:
    """About the largest factor whose lengths fit into the time, what they take, and whether max_steps bounds them.

    Parameters
    ----------
    taken : factor -> what a task takes whose lengths are so many times those of the settings.
    least : what it takes at :data:`SHORTEST`, which is not more than ``left``.
    """
    low, high, low_taken, high_total, factor = SHORTEST, math.inf, least, math.inf, 1.0
    for look in range(LOOKS):
        now = taken(factor)
        if now.total > left:
            high, high_total = factor, now.total
        elif factor > 1 and now.total == low_taken.total and high == math.inf:  # a bound ends training before
            return low, low_taken, True
        else:
            low, low_taken = factor, now
        if low_taken.total >= (1 - NEAR) * left:
            break
        if high == math.inf:
            factor *= max((left - now.rest) / now.training, GROWTH)
        elif look % 3 == 2:  # where the steps do not grow evenly
            factor = (low + high) / 2
        else:
            share = (left * (1 - NEAR / 2) - low_taken.total) / (high_total - low_taken.total)
            factor = low + share * (high - low)
    return low, low_taken, False


def scaled(settings: TrainingSettings, factor: float) -> dict[str, float]:
    """The lengths, so many times as long, cut after three digits: what they take is never more than was asked."""
    return {name: cut(value * factor) for name, value in lengths_of(settings).items()}


def cut(value: float) -> float:
    """A number without the digits after the third one."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit + ROUNDING) * unit:.3g}")


def with_lengths(task: Task, lengths: Mapping[str, Any]) -> TrainingSettings:
    """The settings of a task with these lengths, which no bound of a preset's changes."""
    bounds = {name: None for name in BOUNDS if not task.told.is_told(name)}
    return with_steps(task.told.model_copy(update=bounds | dict(lengths)), len(task.data.train), task.out)


def lengths_of(settings: TrainingSettings) -> dict[str, float]:
    """The lengths that these settings use, by name."""
    named = {name: getattr(settings, name, None) for name in LENGTHS}
    if getattr(settings, "first", "in_batch") != "in_batch":
        del named["first_epochs"]
    return {name: value for name, value in named.items() if value is not None}

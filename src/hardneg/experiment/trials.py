"""The records of trials: how each of several learning rates did, and which one training went on with.

The module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hardneg.experiment.layout import Layout, TrialFolder
from hardneg.storage.artifacts import is_published, read_manifest

KIND = "trial"


@dataclass(frozen=True)
class Trial:
    """The outcome of the trial of a learning rate.

    Attributes
    ----------
    place : its number in the setting, from 0.
    step : the steps that it made.
    measure : the measure on dev.
    value : what this measure was after these steps; None: a loss or gradient was not finite.
    """

    rate: float
    place: int
    step: int
    measure: str
    value: float | None

    def as_json(self) -> dict[str, Any]:
        """The trial as its record holds it."""
        return {name: getattr(self, name) for name in ("rate", "place", "step", "measure", "value")}


def read_trial(folder: TrialFolder) -> Trial:
    """The trial that a folder has the record of."""
    return Trial(**read_manifest(folder.record, KIND).facts)


def read_trials(layout: Layout) -> list[Trial]:
    """The finished trials of an experiment, in the order of the setting."""
    found = [read_trial(one) for one in layout.trials() if is_published(one.record)]
    return sorted(found, key=lambda trial: trial.place)


def best_of(trials: Iterable[Trial]) -> Trial | None:
    """The trial with the highest value, of equal ones the first; None if all values were not finite."""
    sound = [trial for trial in trials if trial.value is not None]
    return max(sound, key=lambda trial: trial.value or 0.0, default=None)


def rates_told(layout: Layout) -> dict[str, Any]:
    """The entry of ``results.json`` about the learning rates that were tried; {} where none was."""
    trials = read_trials(layout)
    if (best := best_of(trials)) is None:
        return {}
    of = {f"{trial.rate:g}": trial.value for trial in trials}
    return {"tried": {"learning_rate": best.rate, "step": best.step, "measure": best.measure, "of": of}}

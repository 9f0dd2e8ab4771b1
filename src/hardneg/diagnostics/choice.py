"""Chooses the state that is the result: the last one, or the best on dev."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hardneg.callers import in_callers_words
from hardneg.diagnostics.kept import sentence, warning
from hardneg.evaluation.measures import Measure
from hardneg.experiment.names import BEFORE, LAST, before_training
from hardneg.process.progress import say
from hardneg.training.stage import steps_made

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The state that ``model/`` holds.

    Attributes
    ----------
    keep : which state was asked for: the best one on dev, or the last one.
    state : the state's name; ``last`` is the state after the last step.
    step : the number of steps of its stage that were made.
    measure : the measure that decided; None if there is no dev split.
    dev : state -> this measure on dev, for all states that could be chosen, in order.
    """

    keep: Literal["best", "last"]
    state: str
    step: int
    measure: str | None
    dev: Mapping[str, float]

    @property
    def beats_untrained(self) -> bool:
        """Whether the chosen state does better on dev than the untrained model, as it came and as trained on."""
        return self.state not in BEFORE and self.dev[self.state] > self.dev[before_training(self.dev)]

    def as_json(self) -> dict[str, Any]:
        """The choice as ``results.json`` stores it."""
        known = {"keep": self.keep, "state": self.state, "step": self.step}
        if self.measure is None:
            return known
        value, beats = self.dev[self.state], self.beats_untrained
        return {**known, "measure": self.measure, "dev": value, "of": dict(self.dev), "beats_untrained": beats}


def choose(
    keep: Literal["best", "last"], measure: Measure, dev: Mapping[str, float], places: Mapping[str, Path | None]
) -> Choice:
    """Choose the state to keep.

    Parameters
    ----------
    keep : the best state on dev, or the last one.
    measure : decides which is the best.
    dev : its value on dev by state, in the order of training; empty without a dev split.
    places : state -> the folder with its weights.
    """
    best = max(dev, key=lambda name: dev[name]) if keep == "best" else LAST  # the first of equal ones
    place = None if best in BEFORE else places[best]
    return Choice(keep, best, 0 if place is None else steps_made(place), str(measure) if dev else None, dev)


def report(results: Mapping[str, Any]) -> None:
    """Log which state was chosen, and warn if it is no better than the untrained model."""
    say(sentence(results["kept"]))
    if text := warning(results):
        log.warning("%s", in_callers_words(text))

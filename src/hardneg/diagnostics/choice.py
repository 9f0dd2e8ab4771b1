"""Which state of training is the result: the last one, or the best on dev; and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from hardneg.experiment.names import LAST, UNTRAINED
from hardneg.process.progress import say
from hardneg.training.stage import steps_made

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """The state that ``model/`` holds.

    Attributes
    ----------
    state : its name; ``last`` is that after the last step.
    step : after how many steps of its stage it was.
    measure : what it was chosen by; None where there is no dev split.
    dev : that measure on dev of every state that could be chosen, in their order.
    """

    state: str
    step: int
    measure: str | None
    dev: Mapping[str, float]

    @property
    def beats_untrained(self) -> bool:
        """Whether it does better on dev than the model as it came."""
        return self.state != UNTRAINED and self.dev[self.state] > self.dev[UNTRAINED]

    def as_json(self) -> dict[str, Any]:
        """What ``results.json`` says of it."""
        known = {"state": self.state, "step": self.step}
        if self.measure is None:
            return known
        value, beats = self.dev[self.state], self.beats_untrained
        return {**known, "measure": self.measure, "dev": value, "of": dict(self.dev), "beats_untrained": beats}


def choose(
    keep: Literal["best", "last"], measured: tuple[str, Mapping[str, float]], places: Mapping[str, Path]
) -> Choice:
    """The state to keep.

    Parameters
    ----------
    measured : the measure, and what it is on dev of every state that can be kept, in the order of training; none
        where there is no dev split.
    places : where the weights of the states stand.
    """
    measure, dev = measured
    best = max(dev, key=lambda name: dev[name]) if keep == "best" else LAST  # of equals the first
    step = 0 if best == UNTRAINED else steps_made(places[best])
    return Choice(best, step, measure if dev else None, dev)


def with_final(found: Mapping[str, T], names: Mapping[str, str], chosen: str) -> dict[str, T]:
    """What was found by state, with that of the chosen one as ``final`` at the end.

    Parameters
    ----------
    names : what the chosen state, and what an index retrieves of it, is called then. If it is the one after the
        last step, it is renamed.
    """
    rest = {name: value for name, value in found.items() if chosen != LAST or name not in names}
    return rest | {new: found[name] for name, new in names.items() if name in found}


# ---------------------------------------------------------------- for people


def sentence(kept: Mapping[str, Any]) -> str:
    """Which state ``model/`` is, in one line."""
    names = {UNTRAINED: "the untrained model as it came", LAST: f"the last state (step {kept['step']:,})"}
    said = f"model/ is {names.get(kept['state'], kept['state'])}"
    if "dev" not in kept:
        return said
    others = [f"{name} {kept['of'][name]:.4f}" for name in (UNTRAINED, LAST) if name in kept["of"]]
    compared = ", ".join(one for one in others if not one.startswith(f"{kept['state']} "))
    return f"{said}: dev {kept['measure']} {kept['dev']:.4f} ({compared})"


def warning(kept: Mapping[str, Any]) -> str | None:
    """What has to be said loudly: that training has not made the model better."""
    if kept.get("beats_untrained", True):
        return None
    best = kept["of"][UNTRAINED]
    if kept["state"] == UNTRAINED:
        return (
            f"NOTHING BEAT THE UNTRAINED MODEL on dev ({kept['measure']} {best:.4f}): model/ is the untrained"
            " model as it came; try a lower learning rate, more steps, other negatives or more data"
        )
    return (
        f"THE TRAINED MODEL IS NOT BETTER THAN THE UNTRAINED ONE on dev ({kept['measure']} {kept['dev']:.4f},"
        f" untrained {best:.4f}); keep = best would keep the best state"
    )


def report(kept: Mapping[str, Any]) -> None:
    """Log which state it is, and warn if it is no better than the untrained model."""
    say(sentence(kept))
    if text := warning(kept):
        log.warning("%s", text)

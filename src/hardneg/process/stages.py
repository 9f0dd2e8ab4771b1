"""The stages of long work, if they are known beforehand: which stage is running, and how long all stages take.

All rates are measured in this process; there is no table of speeds. So no time is given before each kind of work
that is left was measured once. A stage that an earlier run has done counts as done when a later stage begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LEAST_SECONDS = 1.0  # seconds that a kind of work must have taken before its rate is believed


class Amount(NamedTuple):
    """How much of a kind of work a stage has: so many ticks, of which each weighs the same."""

    ticks: float
    each: float = 1.0


@dataclass(frozen=True)
class Planned:
    """A stage that is planned.

    Attributes
    ----------
    kind : what it does: ``bm25``, ``measure``, ``mine``, ``train``, ``train ranker``, ``finish``.
    work : how much of each kind of work it has, in the order in which it does them. ``train`` works on its kinds
        in turn.
    """

    kind: str
    work: Mapping[str, Amount] = field(default_factory=dict)


class Meter:
    """How far a piece of work is: what was done since its first report, and when that was."""

    def __init__(self, kind: str, each: float) -> None:
        self.kind, self.each = kind, each
        self.begun, self.seconds = time.monotonic(), 0.0
        self.first: int | None = None
        self.made, self.rest = 0, 0

    def report(self, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` ticks are done; the work may have begun in the middle."""
        now = time.monotonic()
        if self.first is None:
            self.first = 0 if done >= total else done
            self.begun = self.begun if done >= total else now
        self.made, self.rest, self.seconds = done - self.first, max(total - done, 0), now - self.begun


class Course:
    """The course of planned stages: the place that was reached, and what was measured on the way."""

    def __init__(self, stages: Sequence[Planned]) -> None:
        self.stages = list(stages)
        self.at = -1  # before the first
        self.begun = time.monotonic()
        self.done: dict[str, float] = {}  # ticks in the present stage, by kind of work
        self.seen: dict[str, tuple[float, float]] = {}  # weight and seconds of all work, by kind
        self.meter: Meter | None = None

    @property
    def place(self) -> str:
        """Where work is: ``[3/14] ``; empty before the first stage."""
        return f"[{self.at + 1}/{len(self.stages)}] " if self.at >= 0 else ""

    def begin(self, kind: str, *, last: bool = False) -> None:
        """Move to the next stage of this kind, or to the ``last`` one; all stages before it count as done.

        If no later stage is of this kind, its work belongs to the present stage.
        """
        later = [i for i in range(self.at + 1, len(self.stages)) if self.stages[i].kind == kind]
        if later:
            self.at = later[-1 if last else 0]
            self.done = {}

    @contextlib.contextmanager
    def measuring(self, kind: str) -> Iterator[Meter]:
        """Measure a piece of work in the block."""
        planned = self.stages[max(self.at, 0)].work.get(kind)
        meter = self.meter = Meter(kind, planned.each if planned else 1.0)
        try:
            yield meter
        finally:
            self.meter = None
            self.seen[kind] = self._measured(kind, meter)
            self.done[kind] = self.done.get(kind, 0.0) + meter.made

    def left(self) -> float | None:
        """The estimated seconds that are left; None: some kind of work that is left was never measured."""
        rest: dict[str, float] = {}
        for stage in self.stages[self.at + 1 :]:
            for kind, amount in stage.work.items():
                rest[kind] = rest.get(kind, 0.0) + amount.ticks * amount.each
        for kind, weight in self._here().items():
            rest[kind] = rest.get(kind, 0.0) + weight
        seconds = 0.0
        for kind, weight in rest.items():
            done, took = self._measured(kind, self.meter)
            if weight > 0 and (done <= 0 or took < LEAST_SECONDS):
                return None
            seconds += weight * took / done if weight > 0 else 0.0
        return seconds

    def _measured(self, kind: str, meter: Meter | None) -> tuple[float, float]:
        done, seconds = self.seen.get(kind, (0.0, 0.0))
        if meter is None or meter.kind != kind:
            return done, seconds
        return done + meter.made * meter.each, seconds + meter.seconds

    def _here(self) -> dict[str, float]:
        """The weight that is left in the present stage, by kind of work."""
        if self.at < 0:
            return {}
        stage, meter = self.stages[self.at], self.meter
        rest: dict[str, float] = {}
        for kind, amount in stage.work.items():
            here = meter is not None and meter.kind == kind
            if here and not stage.kind.startswith("train"):
                rest.clear()  # what stands before it is done, or was there already
            ticks = amount.ticks - self.done.get(kind, 0.0) - (meter.made if meter and here else 0)
            if meter and here and stage.kind == kind:
                ticks = min(ticks, meter.rest)  # a training that goes on begins in the middle
            rest[kind] = max(ticks, 0.0) * amount.each
        return rest


_course: Course | None = None


def course() -> Course | None:
    """The course of the work that is going on; None: its stages are not known."""
    return _course


def begin(kind: str, *, last: bool = False) -> None:
    """Move to the next stage of a kind, if the stages are known; see :meth:`Course.begin`."""
    if _course is not None:
        _course.begin(kind, last=last)


@contextlib.contextmanager
def following(stages: Sequence[Planned]) -> Iterator[None]:
    """Follow these stages in the block; an empty list means that the stages are not known."""
    global _course
    before, _course = _course, Course(stages) if stages else None
    try:
        yield
    finally:
        _course = before


def about(left: float, whole: float) -> str:
    """The time that is left of all, as a person reads it: ``about 6 min of 18 left``."""
    if whole < 120:
        return f"about {left:.0f} s of {whole:.0f} left"
    if whole < 120 * 60:
        return f"about {max(left / 60, 1):.0f} min of {whole / 60:.0f} left"
    return f"about {left / 3600:.1f} h of {whole / 3600:.1f} left"

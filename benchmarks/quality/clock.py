"""A contender's clock: it began when the process was started, so imports count.

It counts seconds, or the processor time of the contender's process. Processor time means something with one thread
alone: threads that wait for each other may take it or not. It is what lets a study run on a machine that is used.
"""

from __future__ import annotations

import contextlib
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["wall", "processor"]


class Clock:
    """Counts the seconds of a cell, and writes down what happens.

    Parameters
    ----------
    begun : when the process was started, in seconds since the epoch.
    budget : seconds from there to the model.
    log : file of JSON lines.
    kind : whether seconds pass, or the processor time of this process and of those that it waited for.
    """

    def __init__(self, begun: float, budget: float, log: Path, kind: Kind = "wall") -> None:
        self.budget, self.log, self.kind = budget, log, kind
        self.begun = begun if kind == "wall" else 0.0
        self.stages: dict[str, float] = {}

    def now(self) -> float:
        """What the clock shows."""
        if self.kind == "wall":
            return time.time()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.now() - self.begun

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.budget - self.elapsed

    def spend(self, stage: str, seconds: float) -> None:
        """Count seconds for a stage."""
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the block for a stage."""
        begun = self.now()
        yield
        self.spend(name, self.now() - begun)

    def note(self, **facts: Any) -> None:
        """A line of the log."""
        with open(self.log, "a") as stream:
            stream.write(json.dumps({"elapsed": round(self.elapsed, 2), **facts}) + "\n")

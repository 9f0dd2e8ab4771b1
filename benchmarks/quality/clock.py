"""A contender's clock: it began when the process was started, so imports count."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Clock:
    """Counts the seconds of a cell, and writes down what happens.

    Parameters
    ----------
    begun : when the process was started, in seconds since the epoch.
    budget : seconds from there to the model.
    log : file of JSON lines.
    """

    def __init__(self, begun: float, budget: float, log: Path) -> None:
        self.begun, self.budget, self.log = begun, budget, log
        self.stages: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.time() - self.begun

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
        begun = time.time()
        yield
        self.spend(name, time.time() - begun)

    def note(self, **facts: Any) -> None:
        """A line of the log."""
        with open(self.log, "a") as stream:
            stream.write(json.dumps({"elapsed": round(self.elapsed, 2), **facts}) + "\n")

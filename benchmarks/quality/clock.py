"""A contender's clock: it began when the process was started, so imports count.

The clock counts seconds, or the processor time of the contender's process. Processor time is meaningful only with
one thread, because threads that wait for each other may count or not. It allows a study on a machine that is used.
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
    """A clock that counts the seconds of a cell, and logs what happens.

    Parameters
    ----------
    begun : when the process was started, in seconds since the epoch.
    budget : seconds from there to the model.
    log : file of JSON lines.
    kind : ``wall`` counts seconds; ``processor`` counts processor time of this process and its ended children.
    """

    def __init__(self, begun: float, budget: float, log: Path, kind: Kind = "wall") -> None:
        self.budget, self.log, self.kind = budget, log, kind
        self.begun = begun if kind == "wall" else 0.0
        self.stages: dict[str, float] = {}

    def now(self) -> float:
        """The time that the clock shows."""
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
        """Count the time of the block for a stage."""
        begun = self.now()
        yield
        self.spend(name, self.now() - begun)

    def note(self, **facts: Any) -> None:
        """Write one line to the log."""
        with open(self.log, "a") as stream:
            stream.write(json.dumps({"elapsed": round(self.elapsed, 2), **facts}) + "\n")

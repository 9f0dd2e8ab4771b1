"""Training steps on two threads while other programs run: the cost of threads that wait for one another.

The other programs begin when a run begins, so hardneg could not see them when it started. *OpenMP's own
spinning* is the same training with OpenMP's default way to wait.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from contest import Arrays, Contest, Run, main

TRAIN = {"queries": 8, "passages": 4, "steps": 3}
NICED = {"others": 4, "nice": 10}  # like two programs of two threads each
EQUAL = {"others": 2, "nice": 0}
GOAL = 0.4  # beside other programs a step takes at most 2.5 times as long


@contextlib.contextmanager
def others(count: int, nice: int) -> Iterator[None]:
    """Keep ``count`` other programs busy while the block runs."""
    command = ["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def training(size: Mapping[str, Any], *, spin: int | None, crowd: bool) -> Run:
    """Training steps whose waiting threads look ``spin`` times before they sleep; None: OpenMP's default."""
    assert "torch" not in sys.modules  # OpenMP reads the variable when it is loaded
    os.environ.pop("OMP_WAIT_POLICY", None)
    os.environ.pop("GOMP_SPINCOUNT", None)
    if spin is not None:
        os.environ["GOMP_SPINCOUNT"] = str(spin)
    import train

    steps = train.hardneg(size)

    def run() -> Arrays:
        with others(size["others"] if crowd else 0, size["nice"]):
            found = steps()
        assert not callable(found)
        return found

    return run


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.process.cpu import BRIEF

    return training(size, spin=BRIEF, crowd=True)


def alone(size: Mapping[str, Any]) -> Run:
    from hardneg.process.cpu import BRIEF

    return training(size, spin=BRIEF, crowd=False)


def spinning(size: Mapping[str, Any]) -> Run:
    return training(size, spin=None, crowd=True)


def spinning_alone(size: Mapping[str, Any]) -> Run:
    return training(size, spin=None, crowd=False)


def contests() -> list[Contest]:
    from material import LENGTH  # loads torch; a contender must first set how threads wait
    from train import gate

    train = TRAIN | {"length": LENGTH}
    contenders = {
        "hardneg": "crowded:hardneg",
        "hardneg, nobody else": "crowded:alone",
        "OpenMP's own spinning": "crowded:spinning",
        "OpenMP's own spinning, nobody else": "crowded:spinning_alone",
    }
    goals = {"hardneg, nobody else": GOAL}
    return [
        Contest(name, contenders, size, gate, (size["steps"], "steps/s"), repeats=3, goals=goals)
        for name, size in (("crowded-niced", train | NICED), ("crowded-equal", train | EQUAL))
    ]


if __name__ == "__main__":
    raise SystemExit(main(contests()))

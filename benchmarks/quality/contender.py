"""A contender's process: it gets an order, spends its time by the rule, and hands in a model and a record."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quality import ours, peers
from quality.cells import Outcome
from quality.clock import Clock
from quality.rule import GRID, Point, Result, compete

CONTENDERS = (*peers.CONTENDERS, *ours.CONTENDERS)


def serve(path: Path) -> None:
    """Train as the order says; ``result.json`` and ``model`` stand in its folder at the end."""
    order: dict[str, Any] = json.loads(path.read_text())
    folder = Path(order["folder"])
    clock = Clock(order["begun"], order["budget"], folder / "log.jsonl", order["clock"])
    grid = [Point(*point) for point in order["grid"]] if order.get("grid") else GRID
    set_threads(order["threads"])
    clock.spend("import", clock.elapsed)
    kind = peers.Peer if order["contender"] in peers.CONTENDERS else ours.Ours
    result = compete(kind(order, clock).train, clock, grid)
    hand_in(result, Path(order["base"]), folder / "model")
    seconds = clock.elapsed
    facts = {"seconds": seconds, "stages": clock.stages, "chosen": result.chosen, "runs": result.runs}
    (folder / "result.json").write_text(json.dumps(facts))


def rates_of(contender: str) -> list[float]:
    """The rates that a contender trains at whatever the grid says; empty if it takes the grid's."""
    if contender in peers.CONTENDERS:
        own = peers.CONTENDERS[contender].rate
    else:
        own = ours.CONTENDERS[contender][-1].settings.get("learning_rate")
    return own if isinstance(own, list) else [] if own is None else [own]


def points_of(outcome: Outcome) -> list[tuple[float, float]]:
    """The points of an outcome's runs, the pace run's first."""
    return [(run["point"]["rate"], run["point"]["scale"]) for run in outcome.runs if "point" in run]


def may_come_of(outcome: Outcome, grid: Sequence[Sequence[float]]) -> bool:
    """Whether all runs of an outcome are at points of a grid, and the pace run is at the first one.

    Rates of a contender's own stand in place of the grid's. If it tries several, its pace run has the grid's.
    """
    own, told = rates_of(outcome.cell.contender), points_of(outcome)
    possible = [(rate, scale) for given, scale in grid for rate in own or [given]]
    first = (grid[0][0], grid[0][1]) if len(own) > 1 else possible[0]
    return not told or (told[0] == first and set(told) <= {first, *possible})


def hand_in(result: Result, base: Path, model: Path) -> None:
    """Put the model into the folder where the study looks for it."""
    shutil.copytree(result.model or base, model)


def set_threads(threads: int) -> None:
    """Set the number of threads that the environment says, whatever a library would choose."""
    import torch

    assert os.environ["OMP_NUM_THREADS"] == str(threads)
    torch.set_num_threads(threads)


def main(arguments: list[str]) -> int:
    """The command line of the process: the order's file."""
    serve(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""How a contender spends its time: one rule for all.

1. Work that does not depend on the grid (imports, texts, negatives of the start) is done once.
2. A *pace* run of a few steps measures the time of a step, of a measurement on dev, and of the rest of a run.
3. Half of the remaining time goes to the grid: each point (rate x scale) gets an equal share and a whole schedule.
4. The point that is best on dev gets the other half, begun anew, with a schedule of that length.
5. The best state on dev of all runs is the result; the model before training is one of them.

With equal shares for all points, in place of halving, the model that counts would be trained for a quarter of the
time. If a point's share is too short for ``LEAST`` steps, there is no grid: the first point gets all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quality.clock import Clock

PACE = "pace"  # the name of the first run
PACE_STEPS, LEAST = 6, 30
LOOKING = 0.2  # the largest share of a run's time that measurements on dev may take
LOOKS = 10  # the most measurements of a run
SPARE = 0.97  # share of the time that is planned; the rest is a reserve


@dataclass(frozen=True)
class Point:
    """A point of the grid; the temperature is 1 / scale."""

    rate: float
    scale: float


RATES, SCALES = (3e-5, 1e-4), (20.0, 50.0)
GRID = tuple(Point(rate, scale) for rate in RATES for scale in SCALES)


@dataclass(frozen=True)
class Run:
    """The outcome of one run.

    Attributes
    ----------
    steps, looks : steps and measurements that were made, with the last measurement.
    dev : the measure by state, the model before training first.
    best, value, model : the best trained state, its measure, and its folder.
    fixed, step, look : seconds of a run apart from steps and measurements, of a step, and of a measurement.
    """

    point: Point
    steps: int
    looks: int
    dev: dict[str, float]
    best: str
    value: float
    model: Path
    seconds: float
    fixed: float
    step: float
    look: float
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The part of a run that is kept."""
        known = {name: value for name, value in asdict(self).items() if name != "model"}
        return {name: round(value, 5) if isinstance(value, float) else value for name, value in known.items()}


Train = Callable[[Point, int, int, str], Run]  # (point, steps, looks, name of the run)


def planned(seconds: float, pace: Run) -> tuple[int, int]:
    """Steps and measurements that fit into a run of ``seconds``; (0, 0) if no step fits."""
    free = SPARE * seconds - pace.fixed
    looks = max(1, min(LOOKS, int(LOOKING * seconds / max(pace.look, 1e-6))))
    steps = int((free - (looks - 1) * pace.look) / max(pace.step, 1e-6))
    return (steps, looks) if steps > 0 else (0, 0)


@dataclass(frozen=True)
class Result:
    """The model that a contender hands in; None: the model before training."""

    model: Path | None
    chosen: dict[str, Any]
    runs: list[dict[str, Any]]


def compete(train: Train, clock: Clock, grid: Sequence[Point] = GRID) -> Result:
    """Spend the time of the clock by the rule above."""
    pace = train(grid[0], PACE_STEPS, 2, PACE)
    clock.note(run=PACE, **pace.as_json())
    runs = trials(train, clock, grid, pace)
    best = max(runs, key=lambda run: run.value) if runs else pace
    steps, looks = planned(clock.left, best if runs else pace)
    if steps >= PACE_STEPS:
        runs.append(train(best.point, steps, looks, "final"))
        clock.note(run="final", **runs[-1].as_json())
    return choice([pace, *runs])


def trials(train: Train, clock: Clock, grid: Sequence[Point], pace: Run) -> list[Run]:
    """Make the runs of the grid; an empty list if they would be too short."""
    end = clock.elapsed + clock.left / 2
    steps, looks = planned((end - clock.elapsed) / len(grid), pace)
    if steps < LEAST or len(grid) < 2:
        return []
    runs: list[Run] = []
    for number, point in enumerate(grid):
        if runs and clock.elapsed + 0.5 * runs[-1].seconds > end:
            break  # the machine is slower than in the pace run
        runs.append(train(point, steps, looks, f"point-{number}"))
        clock.note(run=f"point-{number}", **runs[-1].as_json())
    return runs


def choice(runs: Sequence[Run]) -> Result:
    """The best state on dev of all runs; of equal ones the earliest, with the model before training first."""
    before = next(iter(runs[0].dev.values()))
    best = max(runs, key=lambda run: run.value)
    beats = best.value > before
    chosen: dict[str, Any] = {"dev": max(best.value, before), "before": before, "trained": beats}
    if beats:
        chosen |= {"state": best.best, "steps": best.steps, **asdict(best.point)}
    return Result(best.model if beats else None, chosen, [run.as_json() for run in runs])

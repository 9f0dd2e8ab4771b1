"""hardneg's contenders: ``finetune`` presets as the command runs them, with given steps, rate and scale."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quality.cells import MEASURES, UNTRAINED
from quality.clock import Clock
from quality.rule import PACE, RATES, Point, Run


@dataclass(frozen=True)
class Stage:
    """One ``hardneg train``: its recipe, what differs from the preset, its share of a run's steps."""

    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    preset: str = "finetune"
    schedules: float = 1.0  # steps made / steps of the schedule; above 1 with several episodes


def paced(stage: Stage) -> Stage:
    """The stage in the pace run, with one rate: trials of a single step make a step look slower than it is."""
    if not isinstance(stage.settings.get("learning_rate"), list):
        return stage
    rest = {name: value for name, value in stage.settings.items() if name != "learning_rate"}
    return replace(stage, settings=rest, schedules=1.0)


TELE = 1.5  # two episodes: the first one makes half of a schedule
TRIALS = 1.25  # each rate is tried for a quarter of the schedule, and one of them goes on
SOME = {"mine_passages": 5}
ONE_EPISODE = {"episodes": 1, "first": "mined"}
IN_BATCH = {"episodes": 1}  # the first episode of the preset mines nothing
CONTENDERS: dict[str, tuple[Stage, ...]] = {
    "hardneg-warmup": (Stage("warmup"),),
    "hardneg-warmup-3e-5": (Stage("warmup", {"learning_rate": 3e-5}),),
    "hardneg-warmup-5e-5": (Stage("warmup", {"learning_rate": 5e-5}),),
    "hardneg-warmup-1e-4": (Stage("warmup", {"learning_rate": 1e-4}),),
    "hardneg-rates": (Stage("warmup", {"learning_rate": list(RATES)}, schedules=TRIALS),),
    "hardneg-warmup-cut": (Stage("warmup", {"train_passage_length": 64}),),
    "hardneg-warmup-bm25": (Stage("warmup", preset="finetune-bm25"),),
    "hardneg-star": (Stage("star"),),
    "hardneg-ance": (Stage("ance"),),
    "hardneg-tele": (Stage("ance-tele", schedules=TELE),),
    "hardneg-tele-anew": (Stage("ance-tele", {"start": "scratch"}, schedules=TELE),),
    "hardneg-warm-star": (Stage("warmup", share=0.6), Stage("star", share=0.4)),
    "hardneg-warm-star-some": (Stage("warmup", share=0.6), Stage("star", SOME, share=0.4)),
    "hardneg-warm-tele": (Stage("warmup", share=0.5), Stage("ance-tele", ONE_EPISODE, share=0.5)),
    "hardneg-warm-again": (Stage("warmup", share=0.5), Stage("ance-tele", IN_BATCH, share=0.5)),
    "hardneg-adore": (Stage("warmup", share=0.7), Stage("adore", share=0.3)),
}


class Ours:
    """Trains one of hardneg's contenders.

    Parameters
    ----------
    order : ``contender``, ``data``, ``base``, ``folder``, ``seed``, ``precision``, ``device``, ``dev_passages``
        (None: all), and ``batch`` (None: the preset's).
    """

    def __init__(self, order: Mapping[str, Any], clock: Clock) -> None:
        self.order, self.clock = order, clock
        self.stages = CONTENDERS[order["contender"]]
        self.folder = Path(order["folder"])
        with clock.stage("import"):
            import hardneg.api.recipes  # noqa: F401  # what the commands load
            from hardneg.process.cpu import tune

            tune(order["threads"])  # as the commands do

    def train(self, point: Point, steps: int, looks: int, name: str) -> Run:
        """Make a run: its stages one after the other, each from the best model of the stage before."""
        begun, clock, found = time.time(), self.clock.now(), []
        model = str(self.order["base"])
        for number, stage in enumerate(map(paced, self.stages) if name == PACE else self.stages):
            out = self.folder / f"{name}-{number}"
            found.append(self._stage(stage, model, out, point, max(3, round(steps * stage.share)), looks))
            model = str(out / "model")
        for number in range(len(self.stages) - 1):
            shutil.rmtree(self.folder / f"{name}-{number}")
        spent = self.clock.now() - clock
        slowed = (time.time() - begun) / spent if self.clock.kind == "processor" else 1.0
        return told(found, self.folder / f"{name}-{len(self.stages) - 1}", point, spent, self.clock, slowed)

    def _judged(self, stage: Stage) -> dict[str, Any]:
        """Judge all dev queries, among as many passages as for everyone; ADORE ranks all passages anyway."""
        queries: dict[str, Any] = {"dev_queries": None}
        return queries if stage.recipe == "adore" else queries | {"dev_passages": self.order["dev_passages"]}

    def _stage(self, stage: Stage, model: str, out: Path, point: Point, steps: int, looks: int) -> dict[str, Any]:
        from hardneg import Splits
        from hardneg.api.recipes import train

        horizon = max(1, int(steps / stage.schedules))
        settings = {"learning_rate": point.rate, **stage.settings}
        batch = {} if self.order.get("batch") is None else {"queries_per_step": self.order["batch"]}
        results = train(
            stage.recipe,
            self.order["data"],
            model,
            out,
            preset=stage.preset,
            splits=Splits(test="none"),
            cache=self.folder / "cache",
            scale=point.scale,
            min_steps=horizon,
            max_steps=horizon,
            measure_every=max(1, math.ceil(horizon / looks)),
            measures=" ".join(MEASURES[:2]),
            seed=self.order["seed"],
            precision=self.order["precision"],
            device=self.order["device"],
            **self._judged(stage),
            **settings,
            **batch,
        )
        rate = results.get("tried", {}).get("learning_rate", settings["learning_rate"])
        grows = "mine_passages" in stage.settings
        return {"kept": results["kept"], "timing": timing_of(out), "grows": grows, "rate": rate}


def timing_of(out: Path) -> list[dict[str, Any]]:
    """The rows of the timing, in order."""
    return [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]


def told(
    found: list[dict[str, Any]], out: Path, point: Point, seconds: float, clock: Clock, slowed: float = 1.0
) -> Run:
    """The outcome of a run of several stages, with the seconds of a step and of a measurement.

    Parameters
    ----------
    slowed : seconds that passed for each second of the clock; hardneg's own timing is in seconds that passed.

    The time of mining is fixed, unless it is only for the queries of the schedule: then it grows with the steps.
    """
    rows = [by_clock(row, slowed) for one in found for row in alone([*one["timing"]])]
    mined = sum(row["seconds"] for one in found if one["grows"] for row in one["timing"] if row["stage"] == "mine")
    by_stage: dict[str, float] = {}
    for row in rows:
        by_stage[row["stage"]] = by_stage.get(row["stage"], 0.0) + row["seconds"]
    for stage, spent in by_stage.items():
        clock.spend(stage, spent)
    clock.spend("everything else", seconds - sum(by_stage.values()))
    steps = sum(row["steps"] for row in rows if row["stage"] == "train")
    gaps = gaps_of(rows)
    encodings = [row["seconds"] for row in rows if row["stage"] == "encode" and row["side"] == "passage"]
    look = min(gaps) if gaps else max(encodings, default=0.0)
    stepping = by_stage.get("train", 0.0) + mined / slowed
    fixed = max(0.0, seconds - stepping - sum(gaps))
    dev = dev_of([one["kept"]["of"] for one in found])
    best = max((name for name in dev if name != UNTRAINED), key=lambda name: dev[name])
    return Run(
        replace(point, rate=found[-1].get("rate", point.rate)),
        steps,
        1 + len(gaps),
        dev,
        best,
        dev[best],
        out / "model",
        seconds,
        fixed,
        stepping / max(steps, 1),
        look,
        {"stages": {name: round(value, 3) for name, value in by_stage.items()}},
    )


def alone(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the timing; rows of mining without the encodings and searches in it that have their own rows."""
    return [
        row | {"seconds": row["seconds"] - sum(other["seconds"] for other in rows if within(other, row))}
        if row["stage"] == "mine"
        else row
        for row in rows
    ]


def within(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a stage ran as a part of stage ``other``; times are kept to the millisecond."""
    if row is other or row["begun"] + 0.001 < other["begun"]:
        return False
    return row["begun"] + row["seconds"] <= other["begun"] + other["seconds"] + 0.01


def by_clock(row: dict[str, Any], slowed: float) -> dict[str, Any]:
    """A row of the timing, converted to seconds of the clock."""
    return row | {name: row[name] / slowed for name in ("begun", "seconds")}


def dev_of(stages: list[dict[str, float]]) -> dict[str, float]:
    """Dev by state of a run's stages; the start of a later stage is the best of the one before, so left out."""
    dev = dict(stages[0])
    for number, of in enumerate(stages[1:], 2):
        dev |= {f"stage-{number}-{state}": value for state, value in of.items() if state != UNTRAINED}
    return dev


def gaps_of(rows: list[dict[str, Any]]) -> list[float]:
    """Seconds between two pieces of training with only a measurement between them."""
    trained = [row for row in rows if row["stage"] in ("train", "mine")]
    return [
        second["begun"] - first["begun"] - first["seconds"]
        for first, second in itertools.pairwise(trained)
        if first["stage"] == second["stage"] == "train"
        and first["episode"] == second["episode"]
        and second["first_step"] == first["first_step"] + first["steps"]
    ]

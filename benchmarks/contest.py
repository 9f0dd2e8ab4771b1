"""Fair timing: each contender has its own process and as many threads as the others; equal results are enforced.

A benchmark names its contenders. Each is a function ``setup(size) -> run``, and ``run()`` is timed. The first run
of a contender is not counted. Rounds go A B C, C B A, A B C, ..., so that a drift of the machine affects all
contenders alike.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "hardneg torch transformers tokenizers sentence-transformers accelerate datasets numpy faiss-cpu bm25s"
    " PyStemmer numba pytrec_eval-terrier ranx"
)
FEATURES = {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"}

Arrays = Mapping[str, np.ndarray]
# One timed run, which returns its results for the gate. If only the gate needs them as arrays, it returns a
# function instead, which makes the arrays outside of the timed run.
Run = Callable[[], Arrays | Callable[[], Arrays]]
Setup = Callable[[Mapping[str, Any]], Run]


@dataclass(frozen=True)
class Contest:
    """The contenders for one path. The first one is ours; a ratio is the peer's time / our time."""

    name: str
    contenders: Mapping[str, str]  # shown name -> "module:function" of its setup, relative to benchmarks/
    size: Mapping[str, Any]  # given to every setup
    gate: Callable[[dict[str, dict[str, np.ndarray]]], dict[str, Any]]  # results -> facts; raises
    units: tuple[float, str]  # work of one run, and its name, for rates
    repeats: int = 5
    goals: Mapping[str, float] | None = None  # contender -> ratio to reach
    rate: float | None = None  # that ours should reach, in units a second


class NotHere(Exception):
    """Raised by the setup of a contender that cannot run on this machine."""


class Worker:
    """A contender's process, idle until told to run once."""

    def __init__(self, name: str, where: str, contest: Contest, threads: int, folder: Path) -> None:
        self.name, self.file = name, folder / f"{len(list(folder.iterdir()))}.npz"
        self.times: list[float] = []
        self.processor: list[float] = []  # processor seconds of all threads, for each run
        command = [sys.executable, str(HERE / "contest.py"), "--worker", where, str(self.file)]
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(variables, str(threads)), "TOKENIZERS_PARALLELISM": "true"}
        self.log = (folder / f"{self.file.stem}.log").open("w+")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        self._say(json.dumps({"size": dict(contest.size), "threads": threads}))

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.answer()  # the process has ended, so this raises an error that says how

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            end = f"signal {-status}, 9 often means that memory ran out" if status < 0 else f"exit status {status}"
            self.log.seek(0)
            raise RuntimeError(f"{self.name} failed ({end}):\n{self.log.read()[-3000:]}")
        return dict(json.loads(line))

    def run(self) -> float:
        self._say("run")
        answer = self.answer()
        self.times.append(float(answer["seconds"]))
        self.processor.append(float(answer["processor"]))
        return self.times[-1]

    def finish(self) -> dict[str, Any]:
        self._say("end")
        return self.answer()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.communicate()
        self.log.close()


def hold(contest: Contest, threads: int) -> dict[str, Any]:
    """Run a contest; the outcome as JSON. If a contender's package or hardware is absent, it is "not run"."""
    before = processor_times()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers, absent = [], {}
        tell(f"{contest.name}: setting up {', '.join(contest.contenders)}")
        for name, where in contest.contenders.items():
            worker = Worker(name, where, contest, threads, Path(folder))
            stack.callback(worker.close)
            try:
                worker.answer()  # it is set up and warm
                workers.append(worker)
            except RuntimeError as fault:
                cannot = any(name in str(fault) for name in ("ModuleNotFoundError", "NotHere"))
                if not cannot or not workers:  # our own contender is never absent
                    raise
                absent[name] = f"not run: {str(fault).rstrip().rsplit(': ', 1)[-1]}"
        for repeat in range(contest.repeats):
            tell(f"{contest.name}: round {repeat + 1} of {contest.repeats}")
            for worker in workers if repeat % 2 == 0 else reversed(workers):
                worker.run()
        peaks = {worker.name: worker.finish() for worker in workers}
        found = {}
        for worker in workers:
            with np.load(worker.file) as arrays:
                found[worker.name] = {key: arrays[key] for key in arrays.files}
        gate = contest.gate(found)
    return {
        "path": contest.name,
        "threads": threads,
        "size": {key: value for key, value in contest.size.items() if shown(key, value)},
        "gate": gate,
        "stolen": stolen(before, processor_times()),
        "contenders": [_row(worker, workers[0], peaks, contest) for worker in workers],
        **({"absent": absent} if absent else {}),
    }


def tell(line: str) -> None:
    """Tell the person who waits one line."""
    print(line, file=sys.stderr, flush=True)


def processor_times() -> list[int]:
    """Ticks of all processors by kind of work, as Linux counts them; empty on other systems."""
    return [int(ticks) for line in _lines("/proc/stat")[:1] for ticks in line.split()[1:]]


def stolen(before: Sequence[int], after: Sequence[int]) -> float | None:
    """The share of the busy ticks that other guests of the machine took; None if they are not counted."""
    if not before:
        return None
    spent = [b - a for a, b in zip(before, after, strict=True)]
    wanted = sum(spent[:3]) + sum(spent[5:8])  # user, nice, system; interrupts and stolen
    return round(spent[7] / wanted, 2) if wanted else None


def shown(key: str, value: Any) -> bool:
    """Whether a part of a size belongs in the report; a name that begins with _ holds a path of this machine."""
    return isinstance(value, int | float | str) and not key.startswith("_")


def _row(
    worker: Worker, ours: Worker, peaks: Mapping[str, Mapping[str, float]], contest: Contest
) -> dict[str, Any]:
    median = statistics.median(worker.times)
    rate = contest.units[0] / median
    ratios = [theirs / mine for theirs, mine in zip(worker.times, ours.times, strict=True)]
    goal = (contest.goals or {}).get(worker.name)
    return {
        "name": worker.name,
        "median_s": round(median, 4),
        "spread": [round(min(worker.times), 4), round(max(worker.times), 4)],
        "rate": round(rate, 1),
        "unit": contest.units[1],
        **peaks[worker.name],
        "ratio": round(statistics.median(ratios), 2),
        "ratio_spread": [round(min(ratios), 2), round(max(ratios), 2)],
        "best_ratio": round(min(worker.times) / min(ours.times), 2),
        "processor_s": round(min(worker.processor), 4),
        "processor_ratio": round(min(worker.processor) / max(min(ours.processor), 1e-9), 2),
        **({} if goal is None else {"goal": goal, "reached": statistics.median(ratios) >= goal}),
        **_rate_goal(contest, rate if worker is ours else None),
    }


def _rate_goal(contest: Contest, rate: float | None) -> dict[str, Any]:
    if rate is None or contest.rate is None:
        return {}
    return {"goal_rate": contest.rate, "reached": rate >= contest.rate}


def show(outcome: Mapping[str, Any]) -> None:
    """One line of JSON, and a table for people."""
    print(json.dumps(outcome), flush=True)
    print(f"\n{outcome['path']}  {json.dumps(outcome['size'])}  gate {json.dumps(outcome['gate'])}")
    if outcome["stolen"]:
        print(f"  {outcome['stolen']:.0%} of the processors' time went to other guests of this machine")
    for row in outcome["contenders"]:
        goal = f"  goal {goal_of(row)} {'reached' if row['reached'] else 'MISSED'}" if "reached" in row else ""
        low, high = row["ratio_spread"]
        started = f"+ {row['started_peak_mib']:,.0f} " if row["started_peak_mib"] else ""
        print(
            f"  {row['name']:<34}{row['median_s']:>10.3f} s {row['rate']:>14,.1f} {row['unit']:<12}"
            f"{row['peak_mib']:>8,.0f} {started}MiB  {row['ratio']:>6.2f}x [{low:.2f}, {high:.2f}]"
            f" best {row['best_ratio']:.2f}x, processor {row['processor_ratio']:.2f}x{goal}"
        )
    for name, why in outcome.get("absent", {}).items():
        print(f"  {name:<34}{why}")
    print(flush=True)


def goal_of(row: Mapping[str, Any]) -> str:
    """A contender's goal in words; empty where it has none."""
    if "goal" in row:
        return f"{row['goal']}x"
    if "goal_rate" not in row:
        return ""
    rate = row["goal_rate"]
    return f"{rate:,.0f} {row['unit']}" if rate >= 10 else f"{rate:.2g} {row['unit']}"


def machine() -> dict[str, Any]:
    """The processor and the versions that the figures were measured with."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    flags = next((set(line.split()) for line in _lines("/proc/cpuinfo") if line.startswith("flags")), set())
    versions = {}
    for package in PACKAGES.split():
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "features": sorted(flags & FEATURES),
        "python": platform.python_version(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def main(contests: Sequence[Contest]) -> int:
    """Be the command line of a benchmark: hold all of its contests, or those that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="contests to hold; all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int)
    arguments = parser.parse_args()
    print(json.dumps({"machine": machine()}), flush=True)
    failed = 0
    for contest in contests:
        if arguments.names and contest.name not in arguments.names:
            continue
        if arguments.repeats:
            contest = Contest(**{**vars(contest), "repeats": arguments.repeats})
        try:
            show(hold(contest, arguments.threads))
        except RuntimeError as fault:  # a contender failed; the other contests can still be held
            tell(f"{contest.name}: {fault}")
            failed = 1
    return failed


# ---------------------------------------------------------------- a contender's process


# Of the processes that a contender starts, also while it is set up, the largest counts. A process begins as large
# as the one that starts it, so a smaller peak than that cannot be seen.
WHOSE = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def serve(where: str, file: Path) -> None:
    """Set a contender up, run it once for warmth, then once for every line on standard input."""
    answers = os.fdopen(os.dup(1), "w")  # so that no output of a library is taken for an answer
    os.dup2(2, 1)

    def say(**facts: Any) -> None:
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    with _quiet():
        order = json.loads(sys.stdin.readline())
        sys.path.insert(0, str(HERE))
        module, function = where.split(":")
        run: Run = getattr(importlib.import_module(module), function)(order["size"])
        _set_threads(order["threads"])
        result: Arrays | Callable[[], Arrays] | None = run()
        say(ready=True)
        while sys.stdin.readline().strip() == "run":
            result = None  # so that freeing it is not timed as a part of the next run
            begin, processor = time.perf_counter(), processor_seconds()
            result = run()
            say(seconds=time.perf_counter() - begin, processor=processor_seconds() - processor)
        assert result is not None
        arrays: dict[str, Any] = dict(result() if callable(result) else result)
        np.savez(file, **arrays)
        peaks = [resource.getrusage(whose).ru_maxrss / 1024 for whose in WHOSE]
        say(peak_mib=round(peaks[0]), started_peak_mib=round(peaks[1]))


def processor_seconds() -> float:
    """The time that this process, and those that it started and that have ended, used of the processors."""
    used = [resource.getrusage(whose) for whose in WHOSE]
    return sum(one.ru_utime + one.ru_stime for one in used)


def told_threads() -> int:
    """The number of threads that the process of a contender was told, for libraries that must be told it again."""
    return int(os.environ.get("OMP_NUM_THREADS", "2"))


def _set_threads(threads: int) -> None:
    if "torch" in sys.modules:  # a contender that does not use torch need not load it
        sys.modules["torch"].set_num_threads(threads)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


if __name__ == "__main__":
    if sys.argv[1:2] != ["--worker"]:
        raise SystemExit("run one of the benchmarks beside this file")
    serve(sys.argv[2], Path(sys.argv[3]))

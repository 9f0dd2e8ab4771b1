"""Stop every command, or let the disk refuse it, at every point; then run it again and compare the results.

    python -m faults.crash [--sample N --seed S] [--commands import,encode,...] [--jobs N]      (make crash)
    python -m faults.crash --commands train --only 123-power                      one case again

A point is a moment at which what is on the disk changes (``hardneg.storage.disk.point``). A case ends a process
there: by SIGKILL before the change (kill) or half way through a write (tear), by SIGKILL with the loss of all that
was not flushed (power), by Ctrl-C (int), or because the disk reports an I/O error (eio), is full (enospc), or gets
full half way through a write (short). The files that it leaves are checked; then the same command is run again to
its end. If several cases leave the same bytes, it is run again once for all of them.
"""

import argparse
import collections
import copy
import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import bm25s
import matplotlib.backends.backend_agg
import tqdm
import transformers.models.bert.modeling_bert

import hardneg.api.recipes
from faults.aftermath import REMEMBERED, UNREAD, damaged, differences, digest, ended
from faults.branching import Executor, ends_of, fork, grow
from faults.injected import temporaries
from formats.conventions import Plain, write
from hardneg import cli
from hardneg.models import loading
from hardneg.search import embeddings
from loaded import wait_alone
from worlds.tiny_world import SETTINGS, tiny_collection, tiny_model

LOADED = (bm25s, matplotlib, transformers, hardneg.api)  # loaded before any fork
COMMANDS = ("import", "encode", "mine", "train", "index", "search", "export")
EXPERIMENT = SETTINGS | {"episodes": 2, "steps": 4, "checkpoint_every": 2, "queries_per_step": 4}
EXPERIMENT |= {"measures": "RR@10"}
SHARD_ROWS = 60
PLAIN = Plain(
    [(f"p{i}", f"title {i}" if i % 2 else "", f"text of {i}") for i in range(20)],
    {split: [(f"{split}-{i}", f"query {i}", []) for i in range(5)] for split in ("train", "test")},
    {split: {f"{split}-{i}": {f"p{i}": 1, f"p{i + 9}": 2} for i in range(5)} for split in ("train", "test")},
)
USAGE = 2
MEMORY = "/dev/shm"  # where flushing takes no time


# ---------------------------------------------------------------- the commands


def make_world(root):
    """Make the inputs of the commands: a collection, another one in BEIR's convention, and a model."""
    tqdm.tqdm.monitor_interval = 0  # it would start a thread
    collection = tiny_collection(root / "collection")
    tiny_model(root / "model", collection)
    write("beir", PLAIN, root / "beir")
    (root / "made").mkdir()
    embeddings.encode_store.__kwdefaults__["shard_rows"] = SHARD_ROWS
    embeddings.ThreadPoolExecutor = Executor
    matplotlib.backends.backend_agg.FigureCanvasAgg.print_png = lambda canvas, stream, **options: stream.write(
        b"a picture, which takes long"
    )
    cli.commands(cli.app)  # built once
    loading._read = read_once
    for command, name in (("encode", "embeddings"), ("mine", "pool")):  # inputs of other commands
        run_here(root, command).joinpath("out").rename(root / "made" / name)


MODELS = {}


def read_once(folder, *options, read=loading._read):
    """Copy a model in memory if this process, or the one it was forked from, has read its files before."""
    loading._verify(folder)
    key = str([sorted((path.name, digest(path)) for path in folder.rglob("*") if path.is_file()), options])
    if key not in MODELS:
        MODELS[key] = read(folder, *options)
    return dataclasses.replace(copy.deepcopy(MODELS[key]), folder=folder)


def arguments(root, command):
    """The arguments of a command that writes to ``out`` and ``cache`` in its working directory."""
    data, cache = ["--data", root / "collection"], ["--cache", "cache"]
    model = ["--model", root / "model", "--threads", "1", "--device", "cpu"]
    if command == "import":
        return ["import", f"beir:{root / 'beir'}", "--to", "out"]
    if command == "encode":
        return ["encode", *data, *model, *cache, "--out", "out"]
    if command == "index":
        queries = [*data, "--split", "dev", *cache]
        return [
            "index",
            root / "made/embeddings",
            *queries,
            *model,
            "--kind",
            "ivf",
            "--lists",
            "4",
            "--out",
            "out",
        ]
    if command == "search":
        return ["search", *data, *model, *cache, "--k", "20", "--out", "out/run.trec"]
    if command == "export":
        kind = ["--format", "sentence-transformers", "--cache", "cache"]
        return ["export", root / "made/pool", *data, *kind, "--out", "out/negatives.jsonl"]
    if command == "mine":
        mining = ["--sources", "query,lookahead,bm25", "--depth", "20", "--count", "5"]
        return ["mine", *data, *model, *cache, *mining, "--out", "out"]
    chosen = [word for name, value in EXPERIMENT.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    return ["train", "ance-tele", *data, *model, *chosen, "--dev", "none", "--out", "out"]


def run(root, command, folder):
    """Run a command in this process; returns its exit status."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a command before may have changed it
    os.environ["HARDNEG_CACHE"] = "user"
    Path("user").mkdir(exist_ok=True)  # otherwise the cache of digests makes it, depending on the files' age
    return cli.run([str(word) for word in arguments(root, command)])


def wait(pid):
    """Wait for a child; returns its exit status, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---------------------------------------------------------------- all of them


def wrong_future(root, command, folder, expected):
    """List the faults in the files that a process left, and in the end of the same command now; empty if sound."""
    wrong = [f"torn: {torn}"] if (torn := damaged(folder)) else []
    already, read = not without_remembered(differences(ended(folder), expected)), []
    sys.addaudithook(lambda event, about: read.append(str(about[0])) if event == "open" else None)
    status = run(root, command, folder)
    if drafts := sorted({name for name in read if UNREAD.search(name)}):
        wrong.append(f"drafts were read: {drafts}")
    refused = status == USAGE and already  # a whole output is not made again
    if status != 0 and not refused:
        wrong.append(f"again: exit {status}: {(folder.with_suffix('.said')).read_text()[-300:]}")
    changed = differences(ended(folder), expected)
    if changed := without_remembered(changed) if refused else changed:
        wrong.append(f"other: {changed}")
    if left := temporaries(folder):
        wrong.append(f"temporaries after all: {left}")
    return wrong


def without_remembered(names):
    """The names of all files but those of remembered models: a command goes on if a model cannot be remembered."""
    return [name for name in names if not name.startswith(REMEMBERED)]


class Judge:
    """A judge that runs a command again from each state left by its processes, at most ``jobs`` at a time."""

    def __init__(self, root, command, expected, jobs):
        self.root, self.command, self.expected, self.jobs = root, command, expected, jobs
        self.cases, self.running, self.faults = {}, {}, {}

    def take(self, case, folder):
        """Record the outcome of a case; ``folder`` holds what it left, unless an earlier case left the same."""
        name = f"{self.command} {case['at']}-{case['kind']} ({case['action']} {case['path']})"
        if case["wrong"]:
            self.fault(name, case["wrong"])
        self.cases.setdefault(case["state"], []).append((name, case["kind"]))
        if folder is not None:
            begin = partial(self.work, Path(folder))
            self.running[fork(begin, f"{folder}.said")] = case["state"], Path(folder)
            self.wait(self.jobs - 1)

    def work(self, folder):
        """Run the command again from one state, in a child."""
        wrong = wrong_future(self.root, self.command, folder, self.expected)
        folder.with_suffix(".json").write_text(json.dumps(wrong))
        return 0

    def wait(self, most):
        """Wait until at most ``most`` children work."""
        while len(self.running) > most:
            for pid in [pid for pid in self.running if os.waitpid(pid, os.WNOHANG)[0]]:
                state, folder = self.running.pop(pid)
                verdict = folder.with_suffix(".json")
                wrong = json.loads(verdict.read_text()) if verdict.exists() else ["no verdict"]
                if wrong:
                    self.fault(" = ".join(name for name, _ in self.cases[state]), wrong)
                shutil.rmtree(folder)
            time.sleep(0.005)

    def fault(self, name, wrong):
        """Keep the faults of a case, and print them at once."""
        self.faults[name] = wrong
        sys.stderr.write(f"{name}: {'; '.join(wrong)}\n")

    def summary(self):
        """The numbers of cases of each kind, of different states, and of faults, in words."""
        counts = collections.Counter(kind for cases in self.cases.values() for _, kind in cases)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
        return f"{counts.total()} cases ({kinds}), {len(self.cases)} states run again, {len(self.faults)} faults"


def explore(root, command, expected, wanted, jobs):
    """Stop a command at the ``wanted`` cases (None: at all); returns the judge with the faults."""
    place = Path(tempfile.mkdtemp(dir=root))
    judge = Judge(root, command, expected, jobs)
    told, go = os.pipe(), os.pipe()

    def tell(*news):
        os.write(told[1], json.dumps(news, default=str).encode() + b"\n")
        if not os.read(go[0], 1):
            sys.exit("nobody listens")

    def work():
        os.close(told[0])
        os.close(go[1])
        os.chdir(place / "trunk")
        return grow(lambda: run(root, command, place / "trunk"), wanted, place / "cases", tell)[0]

    for name in ("trunk", "cases"):
        (place / name).mkdir()
    pid = fork(work, place / "trunk/said.txt")
    os.close(told[1])
    os.close(go[0])
    with os.fdopen(told[0]) as news:
        for line in news:
            case, folder = json.loads(line)
            judge.take(case, folder)
            os.write(go[1], b".")
    os.close(go[1])
    assert wait(pid) == 0, (place / "trunk/said.txt").read_text()
    assert not differences(ended(place / "trunk"), expected), "it is not the same twice"
    judge.wait(0)
    shutil.rmtree(place)
    return judge


def reference(root, command):
    """The cases (point, kind) of a command, and the files that it leaves if nothing stops it."""
    folder = Path(tempfile.mkdtemp(dir=root))

    def work():
        os.chdir(folder)
        status, points = grow(lambda: run(root, command, folder), set(), folder, None)
        (folder / "points.json").write_text(json.dumps(points))
        return status

    assert wait(fork(work, folder / "said.txt")) == 0, (folder / "said.txt").read_text()
    assert not damaged(folder)
    points = json.loads((folder / "points.json").read_text())
    return [(at, kind) for at, (action, _) in enumerate(points) for kind in ends_of(action)], ended(folder)


def check(commands, jobs, sample=0, seed=0, only=None):
    """Explore commands; returns lines that say what was tried, and the faults."""
    lines, faults = [], {}
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        root = Path(folder).resolve()
        make_world(root)
        for command in commands:
            run_here(root, command)
        wait_alone()
        known = {command: reference(root, command) for command in commands}
        everything = [(command, case) for command in commands for case in known[command][0]]
        drawn = random.Random(seed).sample(everything, sample)
        for command in commands:
            wanted = {case for name, case in drawn if name == command} if sample else only
            begun, cpu = time.monotonic(), cpu_seconds()
            judge = explore(root, command, known[command][1], wanted, jobs)
            seconds = f"{time.monotonic() - begun:.0f} s, {cpu_seconds() - cpu:.0f} s of CPU"
            points = len({at for at, _ in known[command][0]})
            lines.append(f"{command}: {points} points, {judge.summary()}, {seconds}")
            sys.stderr.write(lines[-1] + "\n")
            faults |= judge.faults
    return lines, faults


def cpu_seconds():
    """The processor seconds that this process and its children have used."""
    return sum(os.times()[:4])


def run_here(root, command):
    """Run a command in this process, which loads the modules that its forks need; returns its folder."""
    out, folder = sys.stdout, Path(tempfile.mkdtemp(dir=root))
    with open(os.devnull, "w") as sys.stdout:
        status = run(root, command, folder)
    sys.stdout = out
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert status == 0, command
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="cases to draw; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--only", help="one case, such as 123-power")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    chosen = parser.parse_args()
    only = chosen.only and {(int(chosen.only.split("-")[0]), chosen.only.split("-")[1])}
    begun = time.monotonic()
    lines, faults = check(chosen.commands.split(","), chosen.jobs, chosen.sample, chosen.seed, only)
    print("\n".join(lines))
    print(f"{len(faults)} faults, {time.monotonic() - begun:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

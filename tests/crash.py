"""Every command is stopped, or refused by the disk, at every point of its way: then it is run again, and compared.

    python tests/crash.py [--sample N --seed S] [--commands import,encode,mine,train] [--jobs N]

A point is a moment at which what is on the disk changes (``hardneg.disk.point``). Children are forked from a
process that has everything loaded, and really die: by SIGKILL, in the middle of a write, by SIGKILL with the loss
of all that was not flushed, by EIO and by ENOSPC, before any byte or in the middle of a write.
"""

import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import bm25s
import matplotlib.backends.backend_agg
import matplotlib.figure
import transformers.models.bert.modeling_bert

import hardneg.api
from faults import Fate, temporaries
from hardneg import cli, disk
from hardneg.operations.keeping import verify
from hardneg.search import embeddings
from hardneg.training.checkpoint import checkpoints
from tiny_world import SETTINGS, tiny_collection, tiny_model

LOADED = (bm25s, matplotlib, transformers, hardneg.api)  # before any fork
TELEMETRY = {"timing.jsonl", "log.txt", ".lock"}
KINDS = ("kill", "tear", "power", "eio", "enospc", "short")
REFUSALS = ("eio", "enospc", "short")
EXPERIMENT = SETTINGS | {"episodes": 2, "steps": 4, "checkpoint_every": 2, "queries_per_step": 4}
SHARD_ROWS = 50
SECONDS = 120


class World:
    """The collection and the model that commands work on, and the commands."""

    def __init__(self, root):
        self.root = root
        self.wait(self.fork(self.make))

    def make(self):
        """Make both, in a child: the parent must never compute, or its threads would not survive a fork."""
        collection = tiny_collection(self.root / "collection")
        tiny_model(self.root / "model", collection)
        export(collection, self.root / "beir")
        return 0

    def arguments(self, command, folder):
        """The words of a command that writes below ``folder``."""
        data, cache = ["--data", self.root / "collection"], ["--cache", folder / "cache"]
        model = ["--model", self.root / "model", "--threads", "1", "--device", "cpu"]
        if command == "import":
            return ["import", f"beir:{self.root / 'beir'}", "--to", folder / "out"]
        if command == "encode":
            return ["encode", *data, *model, *cache, "--out", folder / "out"]
        if command == "mine":
            mining = ["--sources", "query,lookahead,bm25", "--depth", "20", "--count", "5"]
            return ["mine", *data, *model, *cache, *mining, "--out", folder / "out"]
        assert command == "train"
        chosen = [word for name, value in EXPERIMENT.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        return ["train", "ance-tele", *data, *model, *chosen, "--out", folder / "out"]

    def start(self, command, folder, fate):
        """The process id of a command that meets its fate."""
        folder.mkdir(exist_ok=True)
        arguments = [str(word) for word in self.arguments(command, folder)]

        def work():
            os.environ["HARDNEG_CACHE"] = str(folder / "user")
            embeddings.encode_store.__kwdefaults__["shard_rows"] = SHARD_ROWS
            disk.watch = fate
            status = cli.run(arguments)
            disk.watch = None
            if fate is not None and fate.at is None:
                (folder / "points.json").write_text(json.dumps(fate.points))
            return status

        return self.fork(work, folder / "said.txt")

    @staticmethod
    def fork(work, said=Path(os.devnull)):
        """The process id of a child that does ``work`` and exits with what it returns."""
        if pid := os.fork():
            return pid
        status = 70
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
            signal.alarm(SECONDS)
            status = work()
        finally:
            os._exit(status)

    @staticmethod
    def wait(pid):
        """The exit status of a child; negative: the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def run(self, command, folder, fate=None):
        return self.wait(self.start(command, folder, fate))


def export(collection, folder):
    """The collection in BEIR's convention."""
    folder.mkdir()
    rows = range(collection.n_passages)
    with open(folder / "corpus.jsonl", "w") as stream:
        for row in rows:
            one = {
                "_id": collection.passage_ids[row],
                "title": collection.titles[row],
                "text": collection.texts[row],
            }
            stream.write(json.dumps(one) + "\n")
    with open(folder / "queries.jsonl", "w") as stream:
        for row in range(collection.n_queries):
            one = {"_id": collection.query_ids[row], "text": collection.query_texts[row]}
            stream.write(json.dumps(one) + "\n")
    (folder / "qrels").mkdir()
    for split in collection.splits:
        qrels = collection.qrels(split)
        with open(folder / f"qrels/{split}.tsv", "w") as stream:
            stream.write("query-id\tcorpus-id\tscore\n")
            for i, query in enumerate(qrels.query_rows):
                for place in range(qrels.offsets[i], qrels.offsets[i + 1]):
                    passage = collection.passage_ids[int(qrels.passage_rows[place])]
                    stream.write(f"{collection.query_ids[int(query)]}\t{passage}\t{qrels.grades[place]}\n")


# ---------------------------------------------------------------- what a case leaves


def contents(folder):
    """Every file that is no telemetry; of the checkpoints of a stage only the newest."""
    newest = {checkpoints(path)[-1] for path in folder.glob("out/episodes/*/checkpoint") if checkpoints(path)}
    found = {}
    for place in ("out", "cache"):
        for file in sorted((folder / place).rglob("*")):
            aside = file.parent.parent.name == "checkpoint" and file.parent not in newest
            if file.is_file() and file.name not in TELEMETRY and not aside:
                found[file.relative_to(folder).as_posix()] = file.read_bytes()
    return found


def differences(found, expected):
    """Names of files that are missing, too many or other."""
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def torn(folder):
    """What is published but damaged."""
    return [
        str(fault)
        for place in ("out", "cache")
        if (folder / place).exists()
        for fault in verify(folder / place)["faults"]
        if fault["code"] != "NO_MANIFEST"
    ]


def faults_of(world, command, at, kind, action, expected, folder):
    """What is wrong about a case: nothing."""
    status, wrong = world.run(command, folder, Fate(at, kind, root=folder)), []
    said = (folder / "said.txt").read_text().splitlines()
    if kind in REFUSALS:
        faults = [line for line in said if not line.startswith("WARNING")]
        lines = [line for line in faults if "DISK_FULL: " in line or "IO_ERROR: " in line]
        if status != 5 or len(lines) != 1 or "Traceback" in "".join(said):
            wrong.append(f"exit {status}: {said[-3:]}")
        if action != "remove" and (left := temporaries(folder)):
            wrong.append(f"temporaries: {left}")
    elif status != -signal.SIGKILL:
        wrong.append(f"exit {status}, it should have died")
    if damaged := torn(folder):
        wrong.append(f"torn: {damaged}")
    already = not differences(contents(folder), expected)
    again = world.run(command, folder)
    if again != 0 and not (again == 2 and already):  # what stands there whole is not made again
        wrong.append(f"again: exit {again}: {(folder / 'said.txt').read_text()[-300:]}")
    if changed := differences(contents(folder), expected):
        wrong.append(f"other: {changed}")
    if left := temporaries(folder):
        wrong.append(f"temporaries after all: {left}")
    return wrong


# ---------------------------------------------------------------- all of them


def cases_of(command, points):
    """(command, point, kind, action) that make sense: only writes can be torn, and a deletion needs no room."""
    for at, (action, _) in enumerate(points):
        for kind in KINDS:
            if (kind in ("tear", "short") and action != "write") or (kind == "enospc" and action == "remove"):
                continue
            yield command, at, kind, action


def references(world, commands):
    """For each command the points that it passes and what it leaves, the same twice."""
    found = {}
    for command in commands:
        folders = [world.root / f"{command}-{i}" for i in range(2)]
        for folder in folders:
            status = world.run(command, folder, Fate())
            assert status == 0, (folder / "said.txt").read_text()
        points = [json.loads((folder / "points.json").read_text()) for folder in folders]
        actions = [[action for action, _ in one] for one in points]
        assert actions[0] == actions[1], f"{command} is not the same twice"
        expected = contents(folders[0])
        assert not differences(contents(folders[1]), expected)
        assert not torn(folders[0])
        found[command] = points[0], expected
    return found


def check(world, commands, sample, seed, jobs):
    """Run the cases; (how many by command and kind, the faults found)."""
    known = references(world, commands)
    cases = [case for command in commands for case in cases_of(command, known[command][0])]
    if sample:
        cases = random.Random(seed).sample(cases, min(sample, len(cases)))
    counts, faults, running = collections.Counter(), {}, {}
    folders = tempfile.mkdtemp(dir=world.root)
    todo = list(enumerate(cases))
    begun = time.monotonic()
    while todo or running:
        while todo and len(running) < jobs:
            number, case = todo.pop(0)
            running[start(world, case, known, Path(folders) / str(number))] = number, case
        pid, status = os.wait()
        number, case = running.pop(pid)
        counts[case[0], case[2]] += 1
        folder = Path(folders) / str(number)
        verdict = folder.with_suffix(".json")
        wrong = json.loads(verdict.read_text()) if verdict.exists() else [f"no verdict: {status}"]
        if wrong:
            faults["{} at point {} ({} at {})".format(*case)] = wrong
        shutil.rmtree(folder, ignore_errors=True)
        if sum(counts.values()) % 100 == 0:
            done, seconds = sum(counts.values()), time.monotonic() - begun
            sys.stderr.write(f"{done}/{len(cases)} cases, {len(faults)} faults, {seconds:.0f} s\n")
    return counts, faults


def start(world, case, known, folder):
    """The process that judges a case, by running two more."""
    command, at, kind, action = case

    def work():
        signal.alarm(0)
        wrong = faults_of(world, command, at, kind, action, known[command][1], folder)
        folder.with_suffix(".json").write_text(json.dumps(wrong))
        return 0

    return world.fork(work, folder.with_suffix(".judge"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="cases to draw; all without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default="import,encode,mine,train")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        counts, faults = check(
            World(Path(root)), chosen.commands.split(","), chosen.sample, chosen.seed, chosen.jobs
        )
    for (command, kind), number in sorted(counts.items()):
        print(f"{command:8} {kind:8} {number:5}")
    for case, wrong in faults.items():
        print(f"{case}: {'; '.join(wrong)}")
    print(f"{sum(counts.values())} cases, {len(faults)} failed, {time.monotonic() - begun:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

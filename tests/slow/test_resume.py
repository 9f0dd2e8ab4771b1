"""An experiment may be killed or stopped at any moment: the same command again ends in the same bytes.

Children are forked from a server that has everything imported. Each counts the operations that change files, and
can be told to kill itself just before any of them: so every moment in which the disk differs can be met again.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hardneg.training.checkpoint import checkpoints
from tiny_world import SETTINGS, tiny_collection, tiny_model

pytestmark = pytest.mark.slow

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    [
        "hardneg.api",
        "hardneg.cli",
        "transformers.models.bert.modeling_bert",
        "bm25s",
        "pytest",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ]
)
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
TELEMETRY = ("timing.jsonl", "log.txt", ".lock", "learning_curve.png")
WRITING = os.O_WRONLY | os.O_RDWR
EXPERIMENT = SETTINGS | {"episodes": 2, "steps": 8, "checkpoint_every": 3}  # steps 4 and 8, checkpoints 3 to 8
RANDOM_KILLS, WORKERS = 10, 2


# ---------------------------------------------------------------- in the child


def child(arguments, folder, fatal, number, journal):
    """Run a command; ``number`` is sent to this process just before the file operations in ``fatal``."""
    os.environ["HARDNEG_CACHE"] = str(folder / "user")
    os.dup2(os.open(folder / "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    events = []

    def watch(event, args):
        changes = event in CHANGES or (event == "open" and (args[2] or 0) & WRITING)
        if changes and not str(args[0]).startswith(os.environ["HARDNEG_CACHE"]):
            events.append([event, *(str(arg) for arg in args[:2])])
            if len(events) - 1 in fatal:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)
    from hardneg.cli import run

    status = run(arguments)
    if journal:
        done = list(events)
        Path(journal).write_text(json.dumps(done))
    os._exit(status)


class Runner:
    """Runs the tiny experiment in children."""

    def __init__(self, collection, model):
        self.collection, self.model = collection, model

    def start(self, folder, *, fatal=(), number=signal.SIGKILL, journal=None, **changes):
        folder.mkdir(exist_ok=True)
        arguments = ["train", "ance-tele", "--data", str(self.collection), "--model", self.model]
        arguments += ["--out", str(folder / "exp"), "--threads", "1", "--device", "cpu"]
        for name, value in (EXPERIMENT | changes).items():
            arguments += ["--set", f"{name}={json.dumps(value)}"]
        process = CHILDREN.Process(target=child, args=(arguments, folder, set(fatal), number, journal))
        process.start()
        return process

    def __call__(self, folder, **options):
        """The exit status; negative: the signal that ended it."""
        process = self.start(folder, **options)
        process.join(120)
        assert process.exitcode is not None, "it hangs"
        return process.exitcode


def contents(folder):
    """Every file of the experiment and its cache that is no telemetry; each stage's newest checkpoint only."""
    newest = {checkpoints(path)[-1] for path in folder.glob("exp/episodes/*/checkpoint") if checkpoints(path)}
    found = {}
    for file in sorted((folder / "exp").rglob("*")):
        aside = file.name in TELEMETRY or (file.parent.parent.name == "checkpoint" and file.parent not in newest)
        if file.is_file() and not aside:
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
    return found


def said(folder):
    return (folder / "stderr.txt").read_text()


# ---------------------------------------------------------------- the uninterrupted one


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    return Runner(collection.path, tiny_model(root / "model", collection))


@pytest.fixture(scope="module")
def straight(runner, tmp_path_factory):
    """What an uninterrupted experiment leaves, and the file operations it makes."""
    folder = tmp_path_factory.mktemp("straight")
    assert runner(folder, journal=str(folder / "journal.json")) == 0, said(folder)
    return contents(folder), json.loads((folder / "journal.json").read_text())


def check_equal(folder, expected):
    found = contents(folder)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


def check_kill(runner, folder, fatal, expected):
    """Kill before this operation, run again, compare."""
    assert runner(folder, fatal=[fatal]) == -signal.SIGKILL
    assert runner(folder) == 0, said(folder)
    check_equal(folder, expected)


def check_kills(runner, root, points, expected):
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = {
            point: pool.submit(check_kill, runner, root / f"kill-{point}", point, expected) for point in points
        }
    faults = {point: job.exception() for point, job in jobs.items() if job.exception()}
    assert not faults, "\n".join(f"killed before operation {point}: {fault}" for point, fault in faults.items())


# ---------------------------------------------------------------- killed


def test_two_uninterrupted_ones_are_alike(runner, straight, tmp_path):
    assert runner(tmp_path) == 0
    check_equal(tmp_path, straight[0])
    names = set(straight[0])
    assert {f"exp/{name}" for name in ("metrics.jsonl", "results.json", "model/model.safetensors")} <= names
    assert sum(name.endswith("weights.safetensors") for name in names) == 2
    assert not [name for name in names if ".tmp-" in name]


def publications(events):
    """For each kind of artefact, the operations that put one in its place: one of each kind, seeded."""
    kinds = {
        "settings": "/exp/settings.json",
        "tokens": "/cache/tokens/",
        "embedding shard": "/shard-00000",
        "embeddings": "/cache/embeddings/",
        "run": "/runs/query",
        "pool": "/negatives",
        "checkpoint": "/checkpoint/step-",
        "early model": "/episodes/1/model",
        "metrics": "/metrics.jsonl",
        "final model": "/exp/model",
        "results": "/exp/results.json",
    }
    chosen = {}
    for kind, part in kinds.items():
        places = [i for i, (event, _, target) in enumerate(events) if event == "os.rename" and part in target]
        assert places, f"nothing publishes {kind}"
        chosen[kind] = random.Random(kind).choice(places)
    return chosen


def test_killed_before_and_after_a_publication_of_every_kind(runner, straight, tmp_path):
    expected, events = straight
    places = publications(events).values()
    points = {*places, *(place + 1 for place in places)} - {len(events)}
    check_kills(runner, tmp_path, sorted(points), expected)


def test_killed_while_embeddings_are_deleted(runner, straight, tmp_path):
    expected, events = straight
    removals = {i for i, (event, *_) in enumerate(events) if event in ("os.remove", "os.rmdir")}
    manifests = [i for i in sorted(removals) if events[i][1].endswith("/manifest.json")]
    first = next(i for i in manifests if "/cache/embeddings/" in events[i][1])
    last = next(i for i in range(first, len(events)) if i + 1 not in removals)
    assert last - first >= 5
    check_kills(runner, tmp_path, range(last, first, -2), expected)


def test_killed_at_random(runner, straight, tmp_path):
    expected, events = straight
    points = random.Random(0).sample(range(len(events)), RANDOM_KILLS)
    check_kills(runner, tmp_path, points, expected)


def test_killed_again_and_again(runner, straight, tmp_path):
    expected, events = straight
    draw, kills = random.Random(2), 0
    while (status := runner(tmp_path, fatal=[draw.randrange(10, len(events) // 4)])) == -signal.SIGKILL:
        kills += 1
        assert kills < 60, "it makes no progress"
    assert status == 0, said(tmp_path)
    assert kills > 4
    check_equal(tmp_path, expected)


# ---------------------------------------------------------------- stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal_it_resumes(runner, straight, tmp_path, number):
    expected, events = straight
    point = random.Random(number).randrange(len(events) // 2)
    assert runner(tmp_path, fatal=[point], number=number) == 75
    lines = said(tmp_path).strip().splitlines()
    assert lines[-1].startswith("STOPPED: ")
    assert signal.Signals(number).name in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert runner(tmp_path) == 0, said(tmp_path)
    check_equal(tmp_path, expected)


def test_a_second_signal_aborts_safely(runner, straight, tmp_path):
    expected, events = straight
    point = publications(events)["pool"]
    assert runner(tmp_path, fatal=range(point, point + 40), number=signal.SIGTERM) == 75
    assert "STOPPED" in said(tmp_path)
    assert runner(tmp_path) == 0, said(tmp_path)
    check_equal(tmp_path, expected)


def test_stopped_in_training_a_checkpoint_stands_within_seconds(runner, tmp_path):
    changes = {"episodes": 1, "steps": 250, "stop_step": 100, "checkpoint_every": 1000}
    assert runner(tmp_path / "straight", **changes) == 0
    process = runner.start(tmp_path / "stopped", **changes)
    metrics = tmp_path / "stopped/exp/metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 30, process)
    process.terminate()
    begun = time.monotonic()
    process.join(60)
    assert time.monotonic() - begun < 15
    assert process.exitcode == 75, said(tmp_path / "stopped")
    (checkpoint,) = checkpoints(tmp_path / "stopped/exp/episodes/1/checkpoint")
    step = int(checkpoint.name.removeprefix("step-"))
    assert 30 <= step < 250
    assert metrics.read_text().count("\n") == step
    assert runner(tmp_path / "stopped", journal=str(tmp_path / "journal.json"), **changes) == 0
    check_equal(tmp_path / "stopped", contents(tmp_path / "straight"))


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert process.is_alive(), "it ended too soon"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)

"""An experiment may be killed or stopped at any moment: the same command again ends in the same bytes."""

import json
import random
import signal
import time

import pytest

from faults.killed import Runner, check_equal, check_kills, contents, said
from hardneg.training.checkpoint import checkpoints
from worlds.tiny_world import SETTINGS, tiny_collection, tiny_model

pytestmark = pytest.mark.slow

EXPERIMENT = SETTINGS | {"episodes": 2, "steps": 8, "checkpoint_every": 3}  # steps 4 and 8, checkpoints 3 to 8
RANDOM_KILLS = 10


# ---------------------------------------------------------------- the uninterrupted one


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    collection = tiny_collection(root / "collection")
    return Runner(collection.path, tiny_model(root / "model", collection), "ance-tele", EXPERIMENT)


@pytest.fixture(scope="module")
def straight(runner, tmp_path_factory):
    """What an uninterrupted experiment leaves, and the file operations it makes."""
    folder = tmp_path_factory.mktemp("straight")
    assert runner(folder, journal=str(folder / "journal.json")) == 0, said(folder)
    return contents(folder), json.loads((folder / "journal.json").read_text())


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


TRIALS = {
    name: SETTINGS[name] for name in ("queries_per_step", "seed", "precision", "token_budget", "measures")
} | {
    "learning_rate": [0.3, 1e-3],
    "mixtures": ["bm25+in_batch"],
    "steps": [8],
    "trial_share": 0.5,
    "checkpoint_every": 3,
}


def test_killed_while_learning_rates_are_tried(runner, tmp_path):
    """At random, and around what gives the checkpoint of the best trial to training and deletes the rest."""
    trials = Runner(runner.collection, runner.model, "warmup", TRIALS)
    straight = tmp_path / "straight"
    assert trials(straight, journal=str(tmp_path / "journal.json")) == 0, said(straight)
    expected, events = contents(straight), json.loads((tmp_path / "journal.json").read_text())
    moved = [i for i, (_, place, to) in enumerate(events) if "/trials/" in place and "/episodes/1/" in to]
    gone = [i for i, (event, place, *_) in enumerate(events) if event != "os.rename" and "/trials/" in place]
    assert len(moved) == 1
    points = {
        moved[0],
        moved[0] + 1,
        *random.Random(3).sample(gone, 4),
        *random.Random(4).sample(range(len(events)), 4),
    }
    check_kills(trials, tmp_path, sorted(points), expected)


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


def wait_for(condition, process, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert process.is_alive(), "it ended too soon"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


# ---------------------------------------------------------------- elsewhere


def figures(folder):
    """Losses, and every number of the results."""
    rows = [json.loads(line) for line in (folder / "exp/metrics.jsonl").read_text().splitlines()]
    results = json.loads((folder / "exp/results.json").read_text())
    measured = {
        f"{split} {state} {name}": value
        for split in ("test", "dev")
        for state, measures in results[split].items()
        for name, value in measures.items()
    }
    return [row["loss"] for row in rows], measured


def test_killed_on_one_thread_and_resumed_on_two(runner, straight, tmp_path):
    _, events = straight
    fatal = [i for i, (event, _, to) in enumerate(events) if event == "os.rename" and "/checkpoint/step-" in to]
    reference = tmp_path / "reference"
    assert runner(reference) == 0
    assert runner(tmp_path, fatal=[fatal[0] + 1]) == -signal.SIGKILL
    assert runner(tmp_path, threads=2) == 0, said(tmp_path)
    line = "threads 1 before, 2 now; figures will agree but for rounding, so files will not have the same bytes"
    assert line in said(tmp_path)
    assert line in (tmp_path / "exp/log.txt").read_text()
    rows = [json.loads(row) for row in (tmp_path / "exp/timing.jsonl").read_text().splitlines()]
    assert [row["threads"] for row in rows if row["stage"] == "begin"] == [1, 2]
    for found, wanted in zip(figures(tmp_path), figures(reference), strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)
    assert "before" not in said(reference)

"""STAR and ADORE, killed at moments drawn by seed: the same command again ends in the same bytes.

All files are compared: the model, the metrics with what every step of ADORE retrieved, the results, the runs of
every state. Each moment is just before a change of the disk; those of training are drawn more often than others.
"""

import json
import random
import signal

import pytest

import hardneg as hn
from faults.killed import Runner, check_equal, check_kills, contents, said
from worlds.tiny_world import COMMON

pytestmark = pytest.mark.slow

STEPS = 7
SETTINGS = COMMON | {"steps": STEPS, "warmup": 1, "learning_rate": 1e-2, "measures": "RR@10"}
ADORE = SETTINGS | {"cut": 10, "depth": 12, "measure_every": 4}
VARIANTS = {
    "star": ("star", SETTINGS),
    "adore-exact": ("adore", ADORE),
    "adore-pq": ("adore", ADORE | {"index": "pq", "subvectors": 4, "bits": 4}),
    "adore-static": ("adore", ADORE | {"negatives": "static", "refresh_every": 3}),
}
KILLS = {"training": 2, "anywhere": 1}


@pytest.fixture(scope="module", params=VARIANTS)
def undisturbed(request, world, tmp_path_factory):
    """The name, the runner, what it leaves when nothing disturbs it, and the changes that it makes to the disk."""
    folder, (recipe, settings) = tmp_path_factory.mktemp("straight"), VARIANTS[request.param]
    runner = Runner(world[0].path, world[1], recipe, settings)
    assert runner(folder, journal=str(folder / "journal.json")) == 0, said(folder)
    return request.param, runner, contents(folder), json.loads((folder / "journal.json").read_text())


def of_training(events):
    """The changes from the first line of the metrics to the last checkpoint."""
    places = [i for i, event in enumerate(events) if "/checkpoint/" in str(event) or "metrics.jsonl" in str(event)]
    return range(places[0], places[-1] + 1)


def test_the_undisturbed_one_leaves_all_that_is_compared(undisturbed, world):
    name, runner, expected, events = undisturbed
    assert {"exp/results.json", "exp/metrics.jsonl"} <= set(expected)
    rows = [json.loads(line) for line in expected["exp/metrics.jsonl"].splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    if name != "star":
        assert len({row["retrieved"] for row in rows}) == STEPS
        assert "exp/states/4/model/query/model.safetensors" in expected
    assert ("exp/index/index.faiss" in expected) == (name == "adore-pq")
    refreshed = [f"exp/episodes/1/negatives/v000{version}/manifest.json" in expected for version in range(4)]
    assert refreshed == [name == "adore-static"] * 3 + [False]
    assert len(of_training(events)) > 3 * STEPS
    # and it takes the disk that it was said to take
    settings = hn.settings_of(runner.recipe, **runner.settings)
    plan = hn.plan(runner.recipe, *world, settings=settings, estimate=True, device="cpu")
    used = sum(map(len, expected.values()))
    assert used / 2 < plan["bytes"]["disk"] < 2 * used


def test_killed_at_random_it_ends_in_the_same_bytes(undisturbed, tmp_path):
    name, runner, expected, events = undisturbed
    draw = random.Random(name)
    points = {
        *draw.sample(of_training(events), KILLS["training"]),
        *draw.sample(range(len(events)), KILLS["anywhere"]),
    }
    check_kills(runner, tmp_path, sorted(points), expected)


def test_killed_again_and_again_it_ends_in_the_same_bytes(undisturbed, tmp_path):
    name, runner, expected, events = undisturbed
    draw, kills = random.Random(f"{name} again"), 0
    while (status := runner(tmp_path, fatal=[draw.randrange(20, len(events) // 2)])) == -signal.SIGKILL:
        kills += 1
        assert kills < 30, "it makes no progress"
    assert status == 0, said(tmp_path)
    assert kills > 1
    check_equal(tmp_path, expected)

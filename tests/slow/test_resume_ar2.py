"""AR2, killed at moments drawn by seed, in either model's turn or elsewhere: run again, it ends in the same bytes.

All files are compared: both models, D⁰, the metrics, the candidates of every refresh, the runs of every state and
pipeline, the results.
"""

import json
import random
import signal

import pytest

from faults.killed import Runner, check_equal, check_kills, contents, said
from worlds.tiny_world import COMMON

pytestmark = pytest.mark.slow

SETTINGS = COMMON | {
    "iterations": 2,
    "retriever_steps": 3,
    "ranker_steps": 3,
    "first_ranker_steps": 3,
    "negatives_per_query": 3,
    "ranker_queries_per_step": 6,
    "first_ranker_queries_per_step": 6,
    "ranker_max_length": 24,
    "rerank_depth": 10,
    "warmup": 1,
    "measures": "RR@10",
}
VARIANTS = {
    "ranker-first": {"keep": "best"},
    "retriever-first": {"order": "retriever-first", "weighting": "reference"},
}


@pytest.fixture(scope="module", params=VARIANTS)
def undisturbed(request, world, tmp_path_factory):
    """The name, the runner, what it leaves when nothing disturbs it, and the changes that it makes to the disk."""
    folder = tmp_path_factory.mktemp("straight")
    runner = Runner(world[0].path, world[1], "ar2", SETTINGS | VARIANTS[request.param])
    assert runner(folder, journal=str(folder / "journal.json")) == 0, said(folder)
    return request.param, runner, contents(folder), json.loads((folder / "journal.json").read_text())


def places_of(events, *names):
    """The changes of the disk from the first to the last whose path has one of these names."""
    places = [i for i, event in enumerate(events) if any(name in str(event) for name in names)]
    return range(places[0], places[-1] + 1)


def test_the_undisturbed_one_leaves_all_that_is_compared(undisturbed):
    name, _, expected, _ = undisturbed
    files = {"results.json", "metrics.jsonl", "ranker/model.safetensors", "first-ranker/model.safetensors"}
    assert {f"exp/{file}" for file in files} <= set(expected)
    rows = [json.loads(line) for line in expected["exp/metrics.jsonl"].splitlines()]
    assert len(rows) == 3 + 2 * 6
    refreshed = [f"exp/episodes/1/negatives/v000{k}/manifest.json" in expected for k in range(3)]
    assert refreshed == [True, True, name == "retriever-first"]
    assert "exp/episodes/1/runs-v0001-ranker/test/manifest.json" in expected


def test_killed_at_random_it_ends_in_the_same_bytes(undisturbed, tmp_path):
    name, runner, expected, events = undisturbed
    draw = random.Random(name)
    points = {
        *draw.sample(places_of(events, "episodes/1/checkpoint"), 3),
        *draw.sample(places_of(events, "episodes/1/negatives/v0001", "runs-v0001"), 2),
        *draw.sample(places_of(events, "episodes/0/checkpoint"), 1),
        draw.randrange(len(events)),
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

"""A ranker, killed while it trains and while it re-ranks: the same command again ends in the same bytes."""

import json
import random

import pytest

from faults.killed import Runner, check_kills, contents, said
from worlds.tiny_world import COMMON

pytestmark = pytest.mark.slow

SETTINGS = COMMON | {
    "measures": "RR@10",
    "max_length": 24,
    "negatives_per_query": 2,
    "steps": 6,
    "measure_every": 3,
    "keep": "best",
    "depth": 10,
    "count": 6,
    "rerank": 6,
    "learning_rate": 1e-3,
}
PLACES = {
    "the pool": "/negatives",
    "a checkpoint": "/checkpoint/step-",
    "a state on the way": "/states/",
    "what is re-ranked": "/runs/test",
    "the model": "/exp/model",
    "the results": "/exp/results.json",
}


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory):
    """The runner, what it leaves when nothing disturbs it, and the changes that it makes to the disk."""
    folder = tmp_path_factory.mktemp("straight")
    runner = Runner(world[0].path, world[1], "ranker", SETTINGS)
    assert runner(folder, journal=str(folder / "journal.json")) == 0, said(folder)
    return runner, contents(folder), json.loads((folder / "journal.json").read_text())


@pytest.mark.parametrize("place", PLACES)
def test_killed_before_something_is_published(undisturbed, tmp_path, place):
    runner, expected, events = undisturbed
    found = [i for i, (event, *paths) in enumerate(events) if event == "os.rename" and PLACES[place] in paths[-1]]
    assert found, f"nothing publishes {place}"
    check_kills(runner, tmp_path, [random.Random(place).choice(found)], expected)

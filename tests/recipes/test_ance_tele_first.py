"""ANCE-Tele whose first episode trains with in-batch negatives: its batches, and the mining after it."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from executed import read_pool
from reference_tele import SlowEncoder, SlowTele

from hardneg.data.training_data import Labels, choose_splits
from hardneg.errors import SettingsError
from hardneg.recipes import ance_tele
from hardneg.recipes.training_run import TrainingRun
from worlds.tiny_world import SETTINGS, one_thread  # noqa: F401

FIRST = {"first": "in_batch", "first_queries": 6, "start": "continue", "episodes": 3, "steps": 4, "stop_step": 2}


@pytest.fixture(scope="module")
def train(world):
    return choose_splits(world.collection).train


@pytest.fixture(scope="module")
def done(train_only):
    return train_only(**FIRST)


def parts_of(batch):
    return [(part.query_rows.tolist(), part.passage_rows.tolist()) for part in batch.micro()]


def test_the_first_episode_is_one_pass_over_the_queries_without_negatives(done, train):
    steps = math.ceil(len(train) / 6)
    batches = done.batches[:steps]
    asked = [row for batch in batches for row in batch.query_rows.tolist()]
    assert sorted(asked) == sorted(train.query_rows.tolist())
    assert {batch.passage_rows.shape[1] for batch in batches} == {1}
    assert [len(done.losses(episode)) for episode in (1, 2, 3)] == [steps, 2, 4]
    assert not any(read_pool(done.path / "episodes/1/negatives"))
    rates = [row["lr"] for row in done.metrics if row["episode"] == 1]
    assert rates[-1] == pytest.approx(min(rates))  # a schedule of its own, that falls to its end


def test_its_losses_are_those_of_a_slow_loop(done, world, train):
    slow = SlowTele(world.collection, train, SlowEncoder(world.calm))
    loss, _ = slow.train(parts_of(done.batches[0]), rate=done.metrics[0]["lr"])
    assert done.losses(1)[0] == pytest.approx(loss, abs=1e-5)
    assert done.losses(1)[1] == pytest.approx(slow.loss(parts_of(done.batches[1])).item(), abs=1e-4)


def test_the_model_that_it_makes_mines_the_second_episode_and_is_trained_on(done, world, train):
    first = len(done.losses(1))
    slow = SlowTele(world.collection, train, SlowEncoder(done.path / "episodes/1/model"))
    assert done.losses(2)[0] == pytest.approx(slow.loss(parts_of(done.batches[first])).item(), abs=1e-5)
    second, third = (read_pool(done.path / f"episodes/{n}/negatives") for n in (2, 3))
    assert {entry["sources"] for entries in second for entry in entries} == {"query", "lookahead"}
    assert {entry["episodes"] for entries in second for entry in entries} == {2}  # no momentum yet
    assert {entry["episodes"] for entries in third for entry in entries} == {2, 3}


def test_steps_that_are_given_win_over_epochs(train_only):
    done = train_only(**{**FIRST, "episodes": 2, "first_steps": 3, "first_epochs": 5})
    assert len(done.losses(1)) == 3


def test_one_episode_in_the_batch_is_plain_training(train_only):
    done = train_only(**{**FIRST, "episodes": 1, "first_steps": 2})
    assert len(done.losses(1)) == 2
    assert (done.path / "model").is_dir()


def test_an_episode_begins_anew_if_it_is_to(train_only, world, train):
    """The first one then serves to mine alone."""
    done = train_only(**{**FIRST, "episodes": 2, "start": "scratch", "first_steps": 2})
    slow = SlowTele(world.collection, train, SlowEncoder(world.calm))
    assert done.losses(2)[0] == pytest.approx(slow.loss(parts_of(done.batches[2])).item(), abs=1e-5)


def test_nothing_is_taught_in_it(run_states, world, tmp_path):
    """A teacher has nothing to say of one passage: the first episode's losses are those without a teacher."""
    same = {"first": "in_batch", "start": "continue", "episodes": 2, "first_steps": 2, "steps": 2}
    same |= {"passages_reference": [3], "count": 6}
    plain = run_states(ance_tele.RECIPE, **same)
    taught = run_states(ance_tele.RECIPE, frozen={"teacher": world.calm}, distill="kl", **same)
    assert taught.losses(1) == plain.losses(1)
    assert taught.losses(2) != plain.losses(2)


def test_what_it_costs():
    settings = ance_tele.AnceTele(**(SETTINGS | FIRST))
    episodes = [settings.episode_of(20, number) for number in (1, 2, 3)]
    assert [(one.steps, one.queries_per_step, one.passages_per_query) for one in episodes] == [
        (4, 6, 1),
        (2, 8, 5),
        (4, 8, 6),
    ]


@pytest.mark.parametrize(("labels", "searches"), [("qrels", False), ("answers", True)])
def test_the_first_model_searches_if_it_finds_positives_by_answers(world, labels, searches):
    """All processes then embed the passages, and the estimate counts them."""
    data = replace(choose_splits(world.collection), test=None, labels=Labels(labels))
    settings = ance_tele.AnceTele(**FIRST, examine="judged", dev_passages=1)
    told = SimpleNamespace(settings=settings, data=data, experiment=SimpleNamespace(layout=None))
    told.searches_for = partial(TrainingRun.searches_for, told)
    told.state_of_episode = lambda miner, episode, episodes, *, mines: mines
    assert next(ance_tele.ance_tele(told, lambda: None)) == searches
    work = ance_tele.plan(settings, data, None)
    assert work.encoded[1] >= 2 + searches
    assert work.encoded[1] < 3 + searches
    assert work.mined_pools == 2


def test_given_negatives_would_not_be_looked_at():
    settings = ance_tele.AnceTele(**FIRST)
    settings.check_pool(False)
    with pytest.raises(SettingsError) as caught:
        settings.check_pool(True)
    assert "first = in_batch" in str(caught.value)
    ance_tele.AnceTele(**(FIRST | {"start_episode": 2})).check_pool(True)

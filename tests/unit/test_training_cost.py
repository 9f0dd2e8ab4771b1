"""What settings of training change in an estimate: the optimiser, the gradient cache, recomputed layers."""

from dataclasses import replace

import pytest
import torch
from test_estimate import work_of

from hardneg import settings_of
from hardneg.data.training_data import choose_splits
from hardneg.models.loading import load_encoder
from hardneg.models.source import ModelSource
from hardneg.recipes import estimate, star
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.cost_model import Beside
from hardneg.recipes.estimate import take_sample
from hardneg.recipes.many_devices import ALONE, Devices
from hardneg.recipes.microbenchmarks import RankingCost
from hardneg.recipes.settings import Episode
from hardneg.recipes.starting_ranker import starting_ranker
from hardneg.training.optim import Lamb
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401


@pytest.fixture(scope="module")
def ranker(world):
    """A new ranker."""
    return starting_ranker(ModelSource.at(world.model), {"max_length": 24}, seed=1).model


@pytest.fixture(scope="module")
def data(world):
    return choose_splits(world.collection)


@pytest.fixture
def counted(monkeypatch):
    """Whatever is timed takes a second; returns the work that was timed."""
    made = []
    monkeypatch.setattr(timing, "seconds_of", lambda work: (made.append(work), work(), 1.0)[2])
    return made


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("lamb", Lamb)])
def test_updates_are_timed_with_the_optimiser_that_trains(world, data, ranker, counted, name, kind):
    encoder = load_encoder(world.model)
    plan = replace(work_of(data), optimizer=name)
    estimate.time_training(plan, encoder, take_sample(plan, encoder))
    timing.ranking_cost(ranker, data, "float32", name)
    updates = [work.__self__ for work in counted if hasattr(work, "__self__")]
    assert [type(one) for one in updates] == [kind, kind]
    settings = settings_of("star", optimizer=name)
    assert star.RECIPE.plan(settings, data, encoder).optimizer == name


def test_a_ranker_that_is_not_trained_is_not_timed_in_training(data, ranker, counted):
    cost = timing.ranking_cost(ranker, data, "float32")
    assert (cost.trained, cost.scored, cost.update) == (0, 1 / timing.TIMED_PAIRS, 0)
    assert len(counted) == 1


def test_rankers_count_updates_and_the_third_pass_of_the_gradient_cache(data):
    """By hand: a pair of 10 tokens takes 3 seconds, and an update 7; a step has 8 times 5 pairs."""
    cost, episodes = RankingCost(3.0, 1.0, 7.0, 10.0), [Episode(1, 60, 16, 8, 5), Episode(2, 60, 2, 8, 1)]

    def seconds(chunk_tokens, devices=ALONE):
        work = work_of(data, chunk_tokens=chunk_tokens, devices=devices)
        return estimate.ranker_seconds(cost, work, episodes)

    plain = 16 * (7 + 40 * 3) + 2 * (7 + 8 * 3)
    assert seconds(None) == seconds(400) == plain
    assert seconds(399) == pytest.approx(plain + 16 * 40 * 3 / 3)
    assert seconds(79) == pytest.approx(plain + 16 * 40 * 3 / 3 + 2 * 8 * 3 / 3)
    assert seconds(399, Devices(1, 2)) == 16 * (7 + 20 * 3) + 2 * (7 + 4 * 3)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_a_ranker_beside_is_timed_as_it_is_trained(data, ranker, monkeypatch, recompute, trained):
    asked = []
    cost = RankingCost(3.0, 1.0, 7.0, 10.0)
    monkeypatch.setattr(estimate, "ranking_cost", lambda *given, **how: (asked.append((given[3], how)), cost)[1])
    work = replace(work_of(data, recompute=recompute), optimizer="lamb")
    episodes = [Episode(1, 60, 16, 8, 5)] if trained else []
    seconds = {"save and verify": 0.0}
    estimate.add_beside(seconds, work, Beside("the ranker", lambda: ranker, 80, episodes))
    assert asked == [("lamb" if trained else None, {"recompute": recompute})]
    assert seconds.get("train the ranker") == (16 * (7 + 40 * 3) if trained else None)


def test_layers_that_are_computed_again_are_timed_so(data, ranker, monkeypatch):
    again = []
    monkeypatch.setattr(timing, "recompute_layers", again.append)
    monkeypatch.setattr(timing, "seconds_of", lambda work: (work(), float(len(again)))[1])
    found = [timing.ranking_cost(ranker, data, "float32", "adamw", recompute=one).trained for one in (False, True)]
    assert found == [0, 1 / timing.TIMED_PAIRS]
    assert again == [ranker]

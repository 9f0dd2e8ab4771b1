"""Settings that would have no effect, or leave a step without a negative, are refused before anything is done."""

import pytest

import hardneg as hn
from hardneg.errors import Faults, InputError, SettingsError
from hardneg.training.batches import trainable
from worlds.tiny_records import pool_of

IN_BATCH = {"mixtures": ["bm25", "in_batch"]}

NOTHING_TO_LEARN = [
    ("warmup", IN_BATCH | {"queries_per_step": 1}, "a step has 1 query, and the mixture in_batch"),
    ("warmup", IN_BATCH | {"micro_queries": 1}, "micro_queries = 1, and the mixture in_batch"),
    ("warmup", {"mixtures": ["nce"], "micro_queries": 1}, "micro_queries = 1, and the mixture nce"),
    ("ance-tele", {"passages_reference": [4, 1], "in_batch": False}, "episode 2 has 1 passage for a query"),
    (
        "ance-tele",
        {"first": "in_batch", "passages_reference": [1], "in_batch": False},
        "episode 2 has 1 passage for a query",
    ),
    (
        "ance-tele",
        {"passages_reference": [1], "micro_queries": 1},
        "micro_queries = 1, and passages_reference = 1",
    ),
    ("ance-tele", {"first": "in_batch", "first_queries": 1}, "a step has 1 query, and first = in_batch"),
    ("ance-tele", {"first": "in_batch", "queries_per_step": 1}, "a step has 1 query, and first = in_batch"),
    ("warmup", {"mixtures": ["in_batch", "nce"], "distill": "kl"}, "distill = kl with mixtures = in_batch, nce"),
    ("ance-tele", {"passages_reference": [1], "distill": "kl"}, "distill = kl with passages_reference = 1"),
    (
        "ance-tele",
        {"first": "in_batch", "episodes": 1, "distill": "margin_mse"},
        "distill = margin_mse with first = in_batch",
    ),
]


@pytest.mark.parametrize(("recipe", "settings", "found"), NOTHING_TO_LEARN)
def test_steps_without_a_negative_are_refused(recipe, settings, found):
    with pytest.raises(Faults, match=found):
        hn.settings_of(recipe, **settings)


SOMETHING_TO_LEARN = [
    ("warmup", {"mixtures": ["bm25+in_batch"], "micro_queries": 1}),
    ("warmup", IN_BATCH | {"micro_queries": 2}),
    ("warmup", IN_BATCH | {"gradient_cache": True}),
    ("ance-tele", {"passages_reference": [1]}),
    ("ance-tele", {"passages_reference": [1, 4], "in_batch": False, "start_episode": 2}),
    ("ance-tele", {"passages_reference": [4, 1], "in_batch": False, "episodes": 1}),
    ("ance-tele", {"first": "in_batch", "in_batch": False}),
    ("ance-tele", {"first": "in_batch", "queries_per_step": 1, "first_queries": 8}),
    ("star", {"micro_queries": 1}),
    ("warmup", IN_BATCH | {"distill": "kl"}),
    ("ance-tele", {"passages_reference": [1, 4], "distill": "kl"}),
    ("ance-tele", {"first": "in_batch", "distill": "kl"}),
]


@pytest.mark.parametrize(("recipe", "settings"), SOMETHING_TO_LEARN)
def test_other_steps_are_not(recipe, settings):
    assert hn.settings_of(recipe, **settings)


def test_a_single_query_needs_negatives_of_its_own():
    pool = pool_of([[1, 2]])
    assert trainable(pool, 1).tolist() == [0]
    with pytest.raises(InputError, match="a single query is trained on"):
        trainable(pool, 0)


IDLE = [
    ("star", {"distill_weight": 0.7}, "distill_weight = 0.7 with distill = none"),
    ("star", {"distill_scale": 2.0, "teacher_temperature": 3.0}, "distill_scale = 2.0, teacher_temperature = 3.0"),
    ("warmup", {"margin": 2.0}, "margin = 2.0 with loss = auto"),
    ("ance", {"margin": 2.0}, "margin = 2.0 with loss = pairwise_nll"),
    ("ance", {"stale": "stop"}, "stale = stop without max_staleness"),
]


@pytest.mark.parametrize(("recipe", "settings", "found"), IDLE)
def test_settings_without_effect_are_refused(recipe, settings, found):
    with pytest.raises(Faults, match=found):
        hn.settings_of(recipe, **settings)


def test_settings_with_an_effect_are_not():
    assert hn.settings_of("star", distill="kl", distill_weight=0.7, teacher_temperature=2.0)
    assert hn.settings_of("warmup", loss="hinge", margin=2.0)
    assert hn.settings_of("ance", mode="async", max_staleness=20_000, stale="stop")
    assert hn.settings_of("ance", margin=1.0, stale="wait")


# ---------------------------------------------------------------- steps that follow from epochs


def test_a_horizon_is_compared_with_the_steps_that_epochs_give():
    few = hn.settings_of("ance", epochs=2, refreshes=1, horizon=100)
    assert few.for_data(80).steps == 20
    many = hn.settings_of("ance", epochs=50, refreshes=1, refresh_every=3, horizon=10)
    with pytest.raises(SettingsError, match="horizon = 10 ends before the 500 steps do"):
        many.for_data(80)


def test_staleness_is_compared_with_the_steps_that_epochs_give():
    settings = hn.settings_of("ance", mode="async", epochs=50, refreshes=1, refresh_every=3, max_staleness=10)
    with pytest.raises(SettingsError, match="max_staleness = 10 is less than refresh_every = 250"):
        settings.for_data(80)


# ---------------------------------------------------------------- what is accepted, and said


def test_a_warm_up_longer_than_the_schedule_is_told(caplog):
    settings = hn.settings_of("star", warmup=100, learning_rate=1e-3)
    rate = settings.schedule_over(10)
    assert "the learning rate rises to 0.0001 only, not to 0.001" in caplog.text
    assert max(map(rate, range(10))) == pytest.approx(1e-4)
    caplog.clear()
    settings.schedule_over(100)
    assert not caplog.text

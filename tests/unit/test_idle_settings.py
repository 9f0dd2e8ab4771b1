"""Settings that would have no effect, or leave a step without a negative, are refused before anything is done."""

import math
from typing import get_args

import pytest
import torch

import hardneg as hn
from hardneg.errors import Faults, InputError, SettingsError
from hardneg.recipes.ance.recipe import schedule_of
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.objectives import WITH_MARGIN, LossName, group_loss
from worlds.small_trainings import train_small
from worlds.tiny_records import pool_of

IN_BATCH = {"mixtures": ["bm25", "in_batch"]}

NOTHING_TO_LEARN = [
    ("warmup", IN_BATCH | {"queries_per_step": 1}, "a step has 1 query, but the mixture in_batch"),
    ("warmup", IN_BATCH | {"micro_queries": 1}, "micro_queries = 1, but the mixture in_batch"),
    ("warmup", {"mixtures": ["nce"], "micro_queries": 1}, "micro_queries = 1, but the mixture nce"),
    ("ance-tele", {"passages_reference": [4, 1], "in_batch": False}, "episode 2 has 1 passage for a query"),
    (
        "ance-tele",
        {"first": "in_batch", "passages_reference": [1], "in_batch": False},
        "episode 2 has 1 passage for a query",
    ),
    (
        "ance-tele",
        {"passages_reference": [1], "micro_queries": 1},
        "micro_queries = 1, but passages_reference = 1",
    ),
    ("ance-tele", {"first": "in_batch", "first_queries": 1}, "a step has 1 query, but first = in_batch"),
    ("ance-tele", {"first": "in_batch", "queries_per_step": 1}, "a step has 1 query, but first = in_batch"),
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


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_query_that_is_left_alone_is_joined_by_the_one_before(size):
    pool = pool_of([[1, 2]] * 9)
    seen = {}
    for negatives in (0, 1):
        batches = VisitBatches(
            pool.positives, lambda step: pool, queries_per_step=size, negatives=negatives, seed=3
        )
        steps = math.ceil(9 / size)
        seen[negatives] = [batches(step).query_rows.tolist() for step in range(2 * steps)]
        for epoch in (seen[negatives][:steps], seen[negatives][steps:]):
            assert sorted({row for step in epoch for row in step}) == list(range(9))
    for plain, joined in zip(seen[1], seen[0], strict=True):
        assert joined == plain or (len(plain) == 1 and len(joined) == 2 and joined[1:] == plain)
    assert {len(step) for step in seen[0]} == {size, 2}
    assert {len(step) for step in seen[1]} == {size, 1}
    last = steps - 1
    assert seen[0][last][0] == seen[0][last - 1][-1]


@pytest.mark.parametrize("recipe", ["warmup", "ance"])
@pytest.mark.parametrize("loss", get_args(LossName))
def test_a_margin_is_taken_exactly_with_the_losses_that_use_one(recipe, loss):
    scores, targets = torch.tensor([[1.0, 0.5, 0.2]]), torch.tensor([0])
    masked = torch.zeros(1, 3, dtype=torch.bool)
    values = [group_loss(loss, scale=1.0, margin=margin)(scores, targets, masked).item() for margin in (1.0, 9.0)]
    assert (values[0] != values[1]) == (loss in WITH_MARGIN)
    if loss in WITH_MARGIN:
        assert hn.settings_of(recipe, loss=loss, margin=9.0).margin == 9.0
        return
    with pytest.raises(Faults, match=f"margin = 9.0 with loss = {loss}, and only hinge has a margin"):
        hn.settings_of(recipe, loss=loss, margin=9.0)


IDLE = [
    ("star", {"distill_weight": 0.7}, "distill_weight = 0.7 with distill = none"),
    ("star", {"distill_scale": 2.0, "teacher_temperature": 3.0}, "distill_scale = 2.0, teacher_temperature = 3.0"),
    ("warmup", {"margin": 2.0}, "margin = 2.0 with loss = auto"),
    ("ance", {"margin": 2.0}, "margin = 2.0 with loss = pairwise_nll"),
    ("ance", {"stale": "stop"}, "stale = stop without max_staleness"),
    ("star", {"reinit_seed": 5}, "reinit_seed = 5 with reinit_layers = 0"),
    ("star", {"cache_tokens": 1024}, "cache_tokens = 1024 with gradient_cache = false"),
    ("warmup", {"silent_seconds": 60.0}, "silent_seconds = 60.0 where one process does all the work"),
    ("ance", {"silent_seconds": 60.0}, "silent_seconds = 60.0 where one process"),
    ("ar2", {"silent_seconds": 60.0, "mode": "sync"}, "silent_seconds = 60.0 where one process"),
    ("ance-tele", {"first_queries": 4}, "first_queries = 4 with first = mined"),
    (
        "ance-tele",
        {"first_steps": 4, "first_epochs": 2.0},
        "first_epochs = 2.0, first_steps = 4 with first = mined",
    ),
    ("ance-tele", {"first": "in_batch", "start_episode": 2}, "first = in_batch with start_episode = 2"),
    ("ance-tele", {"momentum": "accumulate", "alpha": 0.0}, "alpha = 0.0 with momentum = accumulate"),
    ("ance-tele", {"beta": 0.0, "lookahead": "all"}, "lookahead = all with beta = 0"),
    ("ance-tele", {"passages_paper": [8]}, r"passages_paper = \[8\] with group_sizes = reference"),
    (
        "ance-tele",
        {"group_sizes": "paper", "passages_reference": [8]},
        r"passages_reference = \[8\] with group_sizes = paper",
    ),
    ("warmup", {"mixtures": ["in_batch"], "negatives": [7]}, r"negatives = \[7\] with mixtures = in_batch"),
    ("warmup", {"mixtures": ["in_batch", "nce"], "count": 7}, "count = 7 with mixtures = in_batch, nce"),
    ("warmup", {"mixtures": ["in_batch"], "top": 3}, "top = 3 with mixtures = in_batch"),
    ("warmup", {"mask_known_positives": False}, "mask_known_positives = false with mixtures = bm25"),
    ("ance", {"mask_known_positives": False}, "mask_known_positives = false with in_batch = false"),
    (
        "ance-tele",
        {"mask_known_positives": False, "in_batch": False},
        "mask_known_positives = false with in_batch = false",
    ),
    ("ance", {"max_steps": 10}, "max_steps = 10 without epochs"),
    ("ar2", {"min_steps": 10}, "min_steps = 10 without epochs"),
    ("ar2", {"balance": 1.0, "temperature": 2.0}, "temperature = 2.0 with balance = 1"),
    ("ar2", {"balance": 0.0, "weighting": "reference"}, "weighting = reference with balance = 0"),
    ("ar2", {"mask_known_positives": False}, "mask_known_positives = false in ar2"),
    ("ranker", {"mask_known_positives": False}, "mask_known_positives = false for a ranker"),
    ("ar2", {"pair_margins": 50}, "pair_margins = 50 in ar2"),
    ("adore", {"cut": 9, "pair_margins": 50}, "pair_margins = 50 in adore"),
    ("star", {"examine": "judged", "bm25_lists": 50}, "bm25_lists = 50 with examine = judged"),
    ("ranker", {"bm25_lists": 50, "pair_margins": 50}, "bm25_lists = 50, pair_margins = 50 for a ranker"),
    ("adore", {"cut": 9, "weighted": False, "measure": "nDCG"}, "measure = nDCG with weighted = false"),
    ("adore", {"cut": 9, "negatives": "static", "mask_known_positives": False}, "with negatives = static"),
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
    assert hn.settings_of("ance", mode="async", silent_seconds=60.0)
    assert hn.settings_of("ar2", mode="async-fixed", silent_seconds=60.0)
    assert hn.settings_of("ance-tele", first="in_batch", first_steps=4)
    assert hn.settings_of("ance-tele", passages_reference=[4], passages_paper=[4])
    assert hn.settings_of("warmup", mixtures=["bm25", "in_batch"], negatives=[3], mask_known_positives=False)
    assert hn.settings_of("ance", in_batch=True, mask_known_positives=False)
    assert hn.settings_of("ance-tele", mask_known_positives=False)
    assert hn.settings_of("ance-tele", first="in_batch", in_batch=False, mask_known_positives=False)
    assert hn.settings_of("ar2", first_ranker_epochs=2.0, max_steps=10)
    assert hn.settings_of("adore", cut=9, mask_known_positives=False, bm25_lists=50, pair_margins=0)
    assert hn.settings_of("star", examine="judged", bm25_lists=0, pair_margins=50)


MISSED = [
    ("star", {"min_steps": 500, "max_steps": 100}, ["min_steps = 500 is more than max_steps = 100, which wins"]),
    ("star", {"min_steps": 100, "max_steps": 100}, []),
    ("star", {"min_steps": 500, "max_steps": 100, "steps": 10}, []),  # given steps win over both
    ("warmup", {"min_steps": 500, "max_steps": 100, "usual": {"steps": 3}}, []),
    ("star", {"preset": "finetune", "max_steps": 50}, []),  # the preset's min_steps is more
    ("star", {"steps": 10, "stop_step": 50}, ["no effect of stop_step = 50: steps = 10"]),
    ("star", {"steps": 10, "stop_step": 10}, []),
    ("star", {"preset": "passage", "steps": 10}, []),
    ("warmup", {"steps": [9, 20], "stop_step": 30}, ["no effect of stop_step = 30: steps = [9, 20]"]),
    ("warmup", {"steps": [9, 20], "stop_step": 10}, []),
    ("ance-tele", {"steps": 10, "stop_step": 50}, []),  # it wins over stop_fraction
    ("star", {"warmup": 1.7}, ["warmup = 1.7 is 1 step: only below 1 it is a share of the schedule"]),
    ("star", {"warmup": 2.0}, []),
    (
        "star",
        {"use_titles": False, "title_join": "space"},
        ["no effect of title_join = space: use_titles = false"],
    ),
    ("star", {"preset": "passage"}, []),
    (
        "ance-tele",
        {"episodes": 1, "keep": "best", "alpha": 0.3},
        ["no effect of alpha = 0.3: no episode has a pool before it"],
    ),
    (
        "ance-tele",
        {"preset": "finetune", "alpha": 0.3},
        ["no effect of alpha = 0.3: no episode has a pool before it"],
    ),
    ("ance-tele", {"episodes": 1, "keep": "best", "alpha": 0.0}, []),  # asks for no pool before it
    ("ance-tele", {"episodes": 1, "alpha": 0.3}, []),  # episodes can be added
    ("ance-tele", {"episodes": 2, "keep": "best", "alpha": 0.3}, []),
    ("star", {"alpha": 0.3}, []),
]


@pytest.mark.parametrize(("recipe", "settings", "said"), MISSED)
def test_values_that_others_overrule_are_told(recipe, settings, said, caplog):
    hn.settings_of(recipe, **settings)
    assert caplog.messages == said


def test_settings_that_were_made_before_are_told_of_once(caplog):
    made = hn.settings_of("star", warmup=1.7)
    caplog.clear()
    again = hn.settings_of("star", settings=made, min_steps=500, max_steps=100)
    assert caplog.messages == ["min_steps = 500 is more than max_steps = 100, which wins"]
    caplog.clear()
    hn.settings_of("star", settings=again, warmup=2.7)
    assert caplog.messages == ["warmup = 2.7 is 2 steps: only below 1 it is a share of the schedule"]


NO_VECTORS = "no effect of store_dtype: without a retriever nothing is embedded"
NO_RANKS = "no effect of depth: random negatives have no ranks"
OF_RANKERS = [  # settings, whether a retriever and a pool are given, what is said
    ({"store_dtype": "float32"}, False, False, [NO_VECTORS]),
    ({"store_dtype": "float32"}, True, True, []),
    ({"sources": ["random"], "depth": 300}, True, False, [NO_RANKS]),
    ({"sources": ["first", "random"], "depth": 300, "count": 30}, False, True, [NO_RANKS]),
    (
        {"count": 30, "depth": 300},
        True,
        True,
        ["no effect of count, depth: the negatives of a pool alone are trained on"],
    ),
    ({"count": 30, "depth": 300}, True, False, []),
    ({"sources": ["first", "bm25"], "count": 30, "depth": 300}, False, True, []),
    ({"depth": 300, "labels": "answers"}, True, True, []),
]


@pytest.mark.parametrize(("settings", "retriever", "pool", "said"), OF_RANKERS)
def test_settings_of_a_ranker_that_what_is_given_leaves_idle_are_told(settings, retriever, pool, said):
    assert hn.settings_of("ranker", **settings).idle(retriever=retriever, pool=pool) == said


def test_they_are_told_before_anything_is_opened(tmp_path, caplog):
    with pytest.raises(InputError, match="nowhere"):
        hn.train("ranker", "nowhere", "model", tmp_path / "exp", store_dtype="float32")
    assert caplog.messages == [NO_VECTORS]
    assert hn.settings_of("ranker", "finetune").idle(retriever=False, pool=True) == []


def test_a_ranker_may_be_told_to_keep_nothing():
    assert hn.settings_of("ranker", examine="judged", bm25_lists=0, pair_margins=0)


TWICE = [
    ("ance", {"negatives_per_query": 9, "depth": 8}, "negatives_per_query = 9 is more than depth = 8"),
    ("ance", {"negatives_per_query": 4, "top": 3}, "negatives_per_query = 4 is more than top = 3"),
    ("ar2", {"top": 14}, "negatives_per_query = 15 is more than top = 14"),
    (
        "warmup",
        {"negatives": [1, 101], "mixtures": ["bm25", "random"]},
        "negatives = 101 is more than count = 100",
    ),
    ("warmup", {"negatives": [9], "depth": 8}, "negatives = 9 is more than depth = 8"),
    (
        "warmup",
        {"negatives": [9], "count": 4, "mixtures": ["bm25+random"]},
        "negatives = 9 is more than count = 4 of each of 2 sources",
    ),
]


@pytest.mark.parametrize(("recipe", "settings", "found"), TWICE)
def test_more_draws_than_a_list_can_hold_are_refused(recipe, settings, found):
    with pytest.raises(Faults, match=f"BAD_SETTING: {found}"):
        hn.settings_of(recipe, **settings)


def test_a_given_pool_may_hold_any_number():
    star = hn.settings_of("star", negatives_per_query=9, depth=8)
    with pytest.raises(SettingsError, match="negatives_per_query = 9 is more than depth = 8"):
        star.check_pool(False)
    star.check_pool(True)
    assert hn.settings_of("warmup", mixtures=["file+in_batch"], negatives=[9], count=4)
    ranker = hn.settings_of("ranker", negatives_per_query=9, depth=8)
    with pytest.raises(SettingsError, match="negatives_per_query = 9 is more than depth = 8"):
        ranker.check_first(retriever=False, pool=False)
    ranker.check_first(retriever=False, pool=True)
    hn.settings_of("ranker", "finetune", negatives_per_query=60).check_first(retriever=True, pool=False)


OF_A_PRESET = [
    ("ance-tele", "finetune", {"first": "mined"}, "first_queries", 16),
    ("ance-tele", "demo", {"first": "mined"}, "first_steps", 3),
    ("ance-tele", "msmarco", {}, "cache_tokens", 512),
    ("ance", "finetune", {"epochs": None}, "max_steps", 10),
    ("ar2", "finetune", {"epochs": None, "first_ranker_epochs": None}, "max_steps", 10),
    ("warmup", "finetune-bm25", {"mixtures": ["in_batch"]}, "negatives", [7]),
]


@pytest.mark.parametrize(("recipe", "preset", "changes", "name", "value"), OF_A_PRESET)
def test_a_preset_may_leave_idle_what_the_user_may_not(recipe, preset, changes, name, value, tmp_path):
    settings = hn.settings_of(recipe, preset, **changes)
    settings.check()
    settings.model_copy(update={"seed": 1}).check()
    hn.settings_of(recipe, settings=settings, seed=1)
    with pytest.raises(Faults, match=f"BAD_SETTING: {name} = "):
        hn.settings_of(recipe, preset, **changes, **{name: value})
    file = tmp_path / "settings.toml"
    file.write_text(f"{name} = {value}\n")
    with pytest.raises(Faults, match=f"BAD_SETTING: {name} = "):
        hn.settings_of(recipe, preset, config=file, **changes)


@pytest.mark.parametrize(("recipe", "preset", "changes", "name", "value"), OF_A_PRESET)
def test_whole_settings_can_be_given_back(recipe, preset, changes, name, value):
    settings = hn.settings_of(recipe, preset, **changes)
    whole = settings.model_dump(mode="json")
    again = hn.settings_of(recipe, **whole)
    assert again == settings
    again.model_copy(update={"seed": 1}).check()
    del whole["measures"]
    with pytest.raises(Faults, match=f"BAD_SETTING: .*{name} = "):
        hn.settings_of(recipe, **whole | {name: value})


def test_warnings_also_tell_of_whole_settings(caplog):
    whole = hn.settings_of("star").model_dump(mode="json")
    hn.settings_of("star", **whole | {"warmup": 1.7})
    assert caplog.messages == ["warmup = 1.7 is 1 step: only below 1 it is a share of the schedule"]
    game = hn.settings_of("ar2").model_dump(mode="json") | {"first_ranker_steps": 7}
    assert hn.settings_of("ar2", **game).first_ranker_given == ["first_ranker_steps"]


MIXED_WITH_NOTHING = [
    ({"alpha": 0.3}, "alpha = 0.3, and there is no pool of the round before"),
    ({"beta": 0.3, "sources": ["query"]}, "beta = 0.3 divides .*, but the sources lack lookahead; name both"),
    ({"beta": 0.3, "sources": ["lookahead", "bm25"]}, "beta = 0.3 divides .*, but the sources lack query;"),
]


@pytest.mark.parametrize(("settings", "found"), MIXED_WITH_NOTHING)
def test_shares_of_what_is_not_mixed_are_refused(settings, found, tmp_path):
    with pytest.raises(SettingsError, match=f"BAD_SETTING: {found}"):
        hn.mine("nowhere", "model", tmp_path / "pool", **settings)


def test_shares_of_nothing_that_are_0_are_not(tmp_path):
    with pytest.raises(InputError, match="nowhere"):  # which is looked at next
        hn.mine("nowhere", "model", tmp_path / "pool", alpha=0.0, beta=0.0, sources=["query"])


def test_without_a_dev_split_what_it_would_have_is_refused():
    with pytest.raises(SettingsError, match="dev_queries = 5 without a dev split"):
        hn.settings_of("star", dev_queries=5).check_dev(False)
    hn.settings_of("star", dev_queries=5).check_dev(True)
    hn.settings_of("star", "finetune", keep="last", measure_every=None).check_dev(False)


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
    share = hn.settings_of("star", warmup=0.1, learning_rate=1e-3)
    rate = share.schedule_over(1000, made=50)
    what = "warmup = 0.1, and the schedule of 1,000 steps ends or begins anew after 50"
    assert caplog.messages == [f"{what}: the learning rate rises to 0.0005 only, not to 0.001"]
    assert max(map(rate, range(50))) == pytest.approx(5e-4)
    share.schedule_over(1000, made=100)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("every", "low"), [(200, True), (5000, False)])
def test_a_warm_up_longer_than_a_cycle_is_told(caplog, every, low):
    settings = hn.settings_of("ance", schedule="cyclical", refresh_every=every, warmup=0.1, learning_rate=1e-3)
    rate = schedule_of(settings, 50_000, lambda step: step // every * every)
    highest = max(map(rate, range(3 * every)))
    assert highest == pytest.approx(4e-5 if low else 1e-3)
    assert (f"rises to {highest:.3g} only" in caplog.text) == low


def test_a_warm_up_longer_than_training_that_ends_early_is_told(world, tmp_path, caplog):
    train_small("star", world, tmp_path / "exp", steps=8, stop_step=2, warmup=4)
    assert "the schedule of 8 steps ends or begins anew after 2: the learning rate rises to" in caplog.text


def test_a_warm_up_longer_than_the_schedule_of_a_ranker_is_told(world, tmp_path, caplog):
    small = {"iterations": 1, "retriever_steps": 4, "ranker_steps": 1, "first_ranker_steps": 2, "warmup": 3}
    train_small("ar2", world, tmp_path / "exp", ranker_learning_rate=1e-4, **small)
    assert [message for message in caplog.messages if "the learning rate rises" in message] == [
        "warmup = 3, and the schedule of the first ranker has 2 steps: the learning rate rises to 6.67e-06 only,"
        " not to 1e-05",
        "warmup = 3, and the schedule of the ranker has 1 step: the learning rate rises to 3.33e-05 only,"
        " not to 0.0001",
    ]


def test_a_pool_leaves_nothing_to_mine():
    settings = hn.settings_of("star", mine_passages=5)
    settings.check_pool(False)
    with pytest.raises(
        SettingsError, match="mine_passages = 5 with negatives that are given, where none are mined"
    ):
        settings.check_pool(True)


@pytest.mark.parametrize("queries", [3_000, 300_000])
def test_dev_is_measured_where_ance_refreshes(queries):
    settings = hn.settings_of("ance", "finetune", max_steps=None).for_data(queries)
    every = settings.refresh_every
    assert settings.measured_steps(settings.episode_of(queries)) == [every, 2 * every]

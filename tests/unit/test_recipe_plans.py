"""Plans of ADORE, ANCE and AR2, and of their further models, against counts by hand from the recipes."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

import hardneg as hn
from hardneg import settings_of
from hardneg.api import train_ranker
from hardneg.data.training_data import Labels, choose_splits
from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import save_ranker
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import empty_pool
from hardneg.recipes import ance_tele, cost_model, estimate, stages, star, warmup
from hardneg.recipes import microbenchmarks as timing
from hardneg.recipes.adore import recipe as adore
from hardneg.recipes.ance import recipe as ance
from hardneg.recipes.ar2 import recipe as ar2
from hardneg.recipes.cost_model import Beside
from hardneg.recipes.epochs import steps_of_epochs
from hardneg.recipes.estimate import (
    add_beside,
    describe_work,
    disk_bytes,
    stored_bytes,
    take_sample,
    time_stages,
    tokens_of_step,
)
from hardneg.recipes.frozen_cost import frozen_work
from hardneg.recipes.microbenchmarks import LexicalCost, RankingCost, spread
from hardneg.recipes.starting_ranker import starting_ranker
from worlds.tiny_world import COMMON, one_thread, tiny_collection, tiny_model  # noqa: F401

N, QUERIES, ALL_QUERIES, JUDGED = 120, 60, 92, 32  # of the tiny world; all but the training queries judge
DEPTH = 20
RUN = 8 * QUERIES * 100  # bytes of a run of the training queries, which is kept 100 deep


@pytest.fixture(scope="module")
def world(world):
    encoders = {"tied": load_encoder(world.model), "untied": load_encoder(world.model, world.model)}
    return choose_splits(world.collection), encoders, world.model


@pytest.fixture
def work_of(world):
    """A function that gives the work that a recipe plans."""
    return lambda recipe, **changes: recipe.plan(recipe.settings(**(COMMON | changes)), world[0], world[1]["tied"])


@pytest.mark.parametrize("epochs", [0.07, 0.29, 1.1, 1.5, 2.3, 4.35, 5 / 3, 1.1 + 2.2, 3])
@pytest.mark.parametrize("queries", [1, 8, 77, 800, 2400, 8000])
def test_steps_of_epochs_are_counted_without_the_rounding_of_floats(epochs, queries):
    """1.1 epochs of 100 steps were 111 steps, because floats make 110.00000000000001 of the product."""
    steps = math.ceil(Fraction(epochs).limit_denominator(100) * -(-queries // 8))
    assert steps_of_epochs(epochs, queries, 8) == steps
    bounds = {"queries_per_step": 8, "min_steps": None, "max_steps": None}
    assert settings_of("star", epochs=epochs, **bounds).steps_in(epochs, queries) == steps
    many = settings_of("ance", epochs=epochs, refreshes=9, **bounds).for_data(queries)
    assert many.refresh_every == max(math.ceil(steps / 10), 1)


def test_steps_of_epochs_end_at_the_largest_count():
    largest = (1 << 31) - 1
    assert steps_of_epochs(1, 8 * largest, 8) == steps_of_epochs(largest, 8, 8) == largest
    with pytest.raises(SettingsError, match=r"2 epochs are 4\.29497e\+09 steps; give fewer epochs"):
        steps_of_epochs(2, 8 * largest, 8)


def test_the_best_and_the_last_state_take_disk_besides_the_model(work_of):
    changes = {"steps": [12], "measure_every": 4, "dev_queries": None}
    last, best = (work_of(warmup.RECIPE, keep=keep, **changes) for keep in ("last", "best"))
    assert best.passed > 0
    assert (last.models, best.models) == (0, 2)
    assert work_of(warmup.RECIPE, keep="best", steps=[12]).models == 1  # no state within an episode is measured


@pytest.mark.parametrize(
    ("recipe", "changes", "sets"),
    [
        (star.RECIPE, {"keep": "last"}, 1),
        (star.RECIPE, {"keep": "best"}, 2),
        (ance.RECIPE, {"keep": "best", "mode": "async-fixed"}, 1),  # another process embeds, and keeps one state
        (adore.RECIPE, {"keep": "best", "cut": 10, "steps": 7}, 1),  # all states share the passages
    ],
)
def test_vectors_of_the_best_state_lie_beside_those_of_the_newest(world, work_of, recipe, changes, sets):
    work, encoder = work_of(recipe, **changes), world[1]["tied"]
    assert work.sets == sets
    sample = take_sample(work, encoder)
    more = disk_bytes(replace(work, sets=sets + 1), encoder, sample) - disk_bytes(work, encoder, sample)
    assert more == pytest.approx((N + ALL_QUERIES) * 64 * 4)


def kept_besides(work, encoder):
    """Bytes of vectors and tokens, which every experiment keeps."""
    sample = take_sample(work, encoder)
    return (N + ALL_QUERIES) * 64 * 4 + (2 + 8) * sample.tokens(ALL_QUERIES, N)


@pytest.mark.parametrize("towers", ["tied", "untied"])
@pytest.mark.parametrize(
    ("changes", "models", "runs", "pools", "width", "index"),
    [
        ({}, 2, 2 * 2, 0, DEPTH, 0),  # untrained and final, each of the queries and of the positives' neighbours
        ({"measure_every": 3}, 4, 2 * 4, 0, DEPTH, 0),  # steps 3 and 6 besides
        ({"index": "pq", "subvectors": 8, "bits": 4}, 2, 2 * 4, 0, DEPTH, N * 4 + 16 * 64 * 4),
        ({"index": "given"}, 2, 2 * 4, 0, DEPTH, 0),
        ({"negatives": "static"}, 2, 2 * 2, 1, 1 + DEPTH, 0),
        ({"negatives": "static", "refresh_every": 3}, 2, 2 * 2 + 2, 3, 1 + DEPTH, 0),  # mined at 0, 3 and 6
        ({"negatives": "static", "refresh_every": 7}, 2, 2 * 2, 1, 1 + DEPTH, 0),
        ({"negatives": "random", "depth": 200}, 2, 2 * 2, 0, 1 + N // 2, 0),
    ],
)
def test_adore_by_hand(world, work_of, towers, changes, models, runs, pools, width, index):
    encoder = world[1][towers]
    work = work_of(adore.RECIPE, cut=10, steps=7, **changes)
    (episode,) = work.episodes
    assert (episode.steps, episode.passages_per_query) == (7, width)
    assert work.faiss == ("index" in changes)
    tower = 4 * sum(p.numel() for p in encoder.tower("query").parameters())
    # two checkpoints: both towers, and two moments of the one that learns
    weights = 2 * 4 * tower + models * 2 * tower
    deep = N if changes.get("depth") == 200 else 100
    stored = runs * RUN * deep // 100 + 21 * QUERIES * work.entries * pools
    assert disk_bytes(work, encoder, take_sample(work, encoder)) == pytest.approx(
        weights + kept_besides(work, encoder) + stored + index
    )
    assert work.entries == min(changes.get("depth", DEPTH), N)
    # every other step there is a checkpoint, written and digested; a model is written, verified, read, digested
    assert stored_bytes(work, encoder) == 4 * 2 * 4 * tower + (models - 1) * 6 * 2 * tower


def test_adore_trains_queries_alone_and_searches_at_every_step(world, work_of, monkeypatch):
    encoder = world[1]["tied"]
    work = work_of(adore.RECIPE, cut=10, steps=7, measure_every=3, negatives="static", refresh_every=3)
    sample = take_sample(work, encoder)
    assert tokens_of_step(work.episodes[0], None, sample, work) == 8 * sample.queries.lengths.mean()
    sides, real = [], type(encoder).encode
    monkeypatch.setattr(
        type(encoder), "encode", lambda self, tokens, side: sides.append(side) or real(self, tokens, side)
    )
    monkeypatch.setattr(estimate, "encode_seconds", lambda *_: 1.0)
    monkeypatch.setattr(estimate, "encoding_cost", lambda *_: timing.EncodingCost(1.0, 0.0))
    monkeypatch.setattr(estimate, "search_seconds", lambda *_: 1.0)
    monkeypatch.setattr(estimate, "bm25_seconds", lambda *_: LexicalCost(1.0, 1.0))
    monkeypatch.setattr(timing, "seconds_of", lambda work: work() or 1.0)
    seconds, _ = time_stages(work, encoder, sample)
    assert set(sides) == {"query"}
    # the corpus once; the queries of four states, and of the model at two refreshes
    assert seconds["encode"] == pytest.approx(sample.tokens(6 * ALL_QUERIES, N))
    assert seconds["search"] == N * (4 * (2 * QUERIES + JUDGED) + 2 * QUERIES)
    batch = spread(sample.queries, int(8 * sample.queries.lengths.mean()))
    share = 8 * sample.queries.lengths.mean() / batch.lengths.sum()  # of a second
    assert seconds["train"] == pytest.approx(7 * (1 + share) + 7 * 8 * N)


@pytest.mark.parametrize(
    ("recipe", "changes", "searched", "queries", "corpora"),
    [
        # untrained, final and two on the way are judged; static negatives are mined at 0, 3 and 6
        (adore.RECIPE, {"cut": 10, "steps": 7, "measure_every": 3}, 4 * JUDGED, 4 * JUDGED, 1),
        (
            adore.RECIPE,
            {"cut": 10, "steps": 7, "negatives": "static", "refresh_every": 3},
            2 * JUDGED + 3 * QUERIES,
            2 * JUDGED + 3 * ALL_QUERIES,
            1,
        ),
        # five versions are mined, and six states judged
        (ance.RECIPE, {"refreshes": 4}, 6 * JUDGED + 5 * QUERIES, 6 * JUDGED + 5 * ALL_QUERIES, 6),
    ],
)
def test_states_that_are_not_examined_are_searched_for_dev_and_test_and_for_what_is_mined(
    world, work_of, monkeypatch, recipe, changes, searched, queries, corpora
):
    encoder = world[1]["tied"]
    work = work_of(recipe, examine="judged", **changes)
    sample = take_sample(work, encoder)
    for name in ("encode_seconds", "search_seconds"):
        monkeypatch.setattr(estimate, name, lambda *_: 1.0)
    monkeypatch.setattr(estimate, "time_training", lambda *_: (0.0, 0.0))
    seconds, _ = time_stages(work, encoder, sample)
    assert seconds["encode"] == pytest.approx(sample.tokens(queries, corpora * N))
    assert seconds["search"] == N * searched


@pytest.mark.parametrize(
    ("recipe", "changes", "more"),
    [
        (warmup.RECIPE, {"steps": [4]}, 1),  # it mines nothing, and dev is judged among some passages
        (warmup.RECIPE, {"steps": [4], "dev_passages": None}, 0),  # the first state embeds all
        (ance_tele.RECIPE, {"first": "in_batch", "episodes": 2}, 1),  # the second model is the first that mines
        (ance.RECIPE, {"refreshes": 1}, 0),
        (star.RECIPE, {"mine_passages": 2, "steps": 2}, 1.2 - (20 * 10 / 3 / N + 0.4)),  # it mines among all
    ],
)
def test_a_guide_that_no_state_embeds_whole_is_one_corpus_more(world, monkeypatch, recipe, changes, more):
    monkeypatch.setattr(cost_model, "dev_share", lambda settings, data: 0.2 if settings.dev_passages else 1.0)
    judged = choose_splits(world[0].collection, dev="dev", test="none")
    values = COMMON | {"examine": "judged", "dev_passages": 1, "dev_queries": None} | changes
    plain, masked = (
        recipe.plan(recipe.settings(**values, guide_mask=mask), judged, world[1]["tied"]).encoded[1]
        for mask in (False, True)
    )
    assert masked - plain == pytest.approx(more)


@pytest.mark.parametrize(
    ("recipe", "changes", "corpora", "between"),
    [
        (star.RECIPE, {"steps": 8}, [1, 0.1], [0.3]),  # the first state mines, and the last is only judged
        (star.RECIPE, {"steps": 8, "examine": "all"}, [1, 1], [0.3]),
        (star.RECIPE, {"steps": 8, "test": True}, [1, 1], [0.3]),
        (warmup.RECIPE, {"steps": [8]}, [0.1, 0.1], [0.3]),
        (ance_tele.RECIPE, {"first": "in_batch", "episodes": 2}, [0.1, 1, 0.1], [0.7, 0.7]),
        (ance.RECIPE, {"refreshes": 1, "refresh_every": 4}, [1, 1, 0.1], [0.1, 0.1]),
    ],
)
def test_the_time_left_counts_the_passages_that_each_state_encodes(
    world, monkeypatch, recipe, changes, corpora, between
):
    """Every second step is measured on dev, which is judged among a tenth of the passages."""
    monkeypatch.setattr(cost_model, "dev_share", lambda *_: 0.1)
    values = {"examine": "judged", "dev_passages": 1, "dev_queries": None, "measure_every": 2} | changes
    judged = choose_splits(world[0].collection, dev="dev", test="test" if values.pop("test", False) else "none")
    work = recipe.plan(recipe.settings(**COMMON | values), judged, world[1]["tied"])
    work, sample = replace(work, encoded=(0, work.encoded[1])), take_sample(work, world[1]["tied"])
    found = {"measure": [], "train": []}
    for stage in stages.stages_of(work, sample):
        if stage.kind in found:
            found[stage.kind].append(stage.work["encode"].ticks / sample.tokens(0, N))
    assert found == {"measure": pytest.approx(corpora), "train": pytest.approx(between)}
    assert work.encoded[1] == pytest.approx(sum(corpora) + sum(between)), "as the estimate counts"
    own = stages.stages_of(work, sample, as_it_came=True)[1]
    assert own.work["encode"].ticks == pytest.approx(sample.tokens(0, corpora[-1] * N))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for alone, shared in zip(found["measure"], stages.stages_of(work, sample)[1::3], strict=True):
        assert shared.work["encode"].ticks == pytest.approx(sample.tokens(0, alone / 2 * N)), "of two processes"


@pytest.mark.parametrize(
    ("recipe", "changes", "told"),
    [
        (warmup.RECIPE, {"mixtures": ["bm25", "in_batch"]}, "1 (1 hard, 0 in-batch), then 7 (0 hard, 7 in-batch)"),
        (warmup.RECIPE, {"mixtures": ["nce"]}, "1 (0 hard, 1 in-batch, the hardest of 7)"),
        (
            warmup.RECIPE,
            {"mixtures": ["bm25", "bm25+nce"]},
            "1 (1 hard, 0 in-batch), then 2 (1 hard, 1 in-batch, the hardest of 14)",
        ),
        (
            ance_tele.RECIPE,
            {"first": "in_batch", "in_batch": False, "episodes": 4, "passages_reference": [4]},
            "7 (0 hard, 7 in-batch), then 3 (3 hard, 0 in-batch)",
        ),
        (ance_tele.RECIPE, {"episodes": 2, "passages_reference": [4]}, "31 (3 hard, 28 in-batch)"),
        (star.RECIPE, {"negatives_per_query": 1}, "15 (1 hard, 14 in-batch)"),
        (ance.RECIPE, {"in_batch": True}, "15 (1 hard, 14 in-batch)"),
        (ance.RECIPE, {}, "1 (1 hard, 0 in-batch)"),
    ],
)
def test_a_plan_tells_the_negatives_of_every_episode(world, recipe, changes, told):
    encoder = world[1]["tied"]
    work = recipe.plan(recipe.settings(**{**COMMON, "queries_per_step": 8, **changes}), world[0], encoder)
    assert describe_work(work, encoder, seeds=1, measure=False)["facts"]["negatives per query"] == told


def test_adore_says_what_a_query_is_trained_on(world):
    settings = adore.Adore(**COMMON, cut=10, steps=7)
    encoder = world[1]["tied"]
    plan = describe_work(adore.plan(settings, world[0], encoder), encoder, seeds=1, measure=True)
    assert plan["facts"]["negatives per query"] == "19 (19 hard, 0 in-batch)"
    assert plan["seconds"]["train"] > 0


@pytest.mark.parametrize(
    ("changes", "versions", "pools", "models"),
    [
        ({"mode": "sync"}, 5, 5, 2),
        ({"mode": "async"}, 5, 5, 2),
        ({"mode": "async", "keep_versions": 1}, 5, 3, 2),
        ({"mode": "async-fixed"}, 4, 4, 2),  # version 1 is version 0
        ({"mode": "async-fixed", "refreshes": 0}, 1, 1, 0),
        ({"mode": "async-fixed", "keep": "best"}, 4, 4, 2 + 4),
    ],
)
def test_ance_by_hand(world, work_of, changes, versions, pools, models):
    encoder = world[1]["tied"]
    work = work_of(ance.RECIPE, **{"refreshes": 4, "refresh_every": 3, **changes})
    steps = 3 * (1 + changes.get("refreshes", 4))
    assert work.episodes[0].steps == steps
    tower = 4 * sum(p.numel() for p in encoder.parameters())
    weights = min(math.ceil(steps / 2), 2) * 3 * tower + (2 + models) * tower
    stored = (versions + 1) * 2 * RUN + pools * 21 * QUERIES * DEPTH
    found = disk_bytes(work, encoder, take_sample(work, encoder))
    assert found == pytest.approx(weights + kept_besides(work, encoder) + stored)


# ---------------------------------------------------------------- models beside the retriever


AR2 = {
    "iterations": 3,
    "retriever_steps": 5,
    "ranker_steps": 4,
    "first_ranker_steps": 6,
    "negatives_per_query": 3,
    "ranker_queries_per_step": 4,
    "first_ranker_queries_per_step": 100,
    "rerank_depth": 10,
}


@pytest.fixture(scope="module")
def rankers(world):
    new = starting_ranker(ModelSource.at(world[2]), {"max_length": 24}, seed=1)
    return {"new": new, "given": replace(new, is_new=False)}


@pytest.mark.parametrize("order", ["ranker-first", "retriever-first"])
@pytest.mark.parametrize("kind", ["new", "given"])
def test_ar2_counts_both_models_by_hand(world, rankers, monkeypatch, kind, order):
    data, encoder = world[0], world[1]["tied"]
    settings = ar2.RECIPE.settings(**(COMMON | AR2 | {"order": order}))
    work = ar2.plan(settings, data, encoder, rankers[kind])
    (beside,) = work.beside
    assert beside.trained == 4 * (12 * 4 + 6 * QUERIES * (kind == "new"))  # D⁰'s steps have all queries there are
    # the retriever's steps; D⁰ on the hits of G⁰ and of G, and the ranker of each iteration on both
    assert (beside.scored, beside.reranked) == (15 * 8 * 4, 10 * JUDGED * (2 + 2 * 3))
    monkeypatch.setattr(estimate, "ranking_cost", lambda *_, **__: RankingCost(3.0, 1.0, 0.0, 0.0))
    plan = describe_work(work, encoder, seeds=1, measure=True)
    assert plan["seconds"]["train the ranker"] == 3 * beside.trained
    assert plan["seconds"]["score by the ranker"] == beside.scored
    assert plan["seconds"]["re-rank by the ranker"] == beside.reranked
    assert plan["seconds"]["total"] > 3 * beside.trained + beside.scored + beside.reranked
    assert plan["facts"]["pairs that the ranker is trained on"] == beside.trained
    assert plan["facts"]["optimiser steps"] == 15
    assert plan["facts"]["optimiser steps of the ranker"] == 12 + 6 * (kind == "new")
    assert [(row["model"], row["steps"]) for row in plan["episodes"]] == [
        *[("the ranker", 6)] * (kind == "new"),
        ("the retriever", 15),
        ("the ranker", 12),
    ]
    assert plan["facts"]["negatives per query"] == "3 (3 hard, 0 in-batch)"
    assert work.mined_pools == 3 + (order == "retriever-first")
    alone = describe_work(replace(work, beside=()), encoder, seeds=1, measure=True)
    weights = 4 * sum(p.numel() for p in rankers[kind].model.parameters())
    folders, checkpoints = 1 + (kind == "new"), 2
    more = plan["bytes"]["disk"] - alone["bytes"]["disk"]
    assert more == pytest.approx((folders + 3 * checkpoints) * weights)


@pytest.mark.parametrize("order", ["ranker-first", "retriever-first"])
def test_ar2_beside_training_mines_once_less_and_some_models_wait(world, rankers, order):
    data, encoder = world[0], world[1]["tied"]
    works = [
        ar2.plan(
            ar2.RECIPE.settings(**(COMMON | AR2 | {"order": order, "mode": mode})), data, encoder, rankers["new"]
        )
        for mode in ("sync", "async-fixed")
    ]
    turn, beside = works
    assert beside.mined_pools == beside.pools == turn.pools - 1 == 2 + (order == "retriever-first")
    assert (turn.states, beside.states) == (4, 4)
    assert (turn.models, beside.models) == (0, 2)
    assert [work.beside[0].models for work in works] == [2, 4]  # D0 and D; two more of either wait
    assert turn.beside[0].scored == beside.beside[0].scored
    assert turn.beside[0].reranked == beside.beside[0].reranked
    assert stages.kinds_of(beside) == ["measure"] * 4  # all else is done in other processes


@pytest.mark.parametrize(
    ("changes", "new", "runs"),
    [
        ({"order": "ranker-first"}, True, [0, 0, 1, *[0, 0, 0, 2] * 2, 0, 3, 0]),
        ({"order": "ranker-first"}, False, [0, 1, *[0, 0, 0, 2] * 2, 0, 3, 0]),
        ({"order": "retriever-first"}, True, [0, 0, 1, *[0, 0, 0, 2] * 2, 0, 0, 3, 0]),
        ({"order": "ranker-first", "iterations": 1, "rerank_depth": 0}, True, [0] * 6),
        ({"mode": "async-fixed"}, True, [0, 0, 3, 0]),  # the others are re-ranked in other processes
    ],
)
def test_the_time_left_of_ar2_counts_the_pairs_that_are_ranked_again(world, rankers, changes, new, runs):
    settings = ar2.RECIPE.settings(**(COMMON | AR2 | changes))
    work = ar2.plan(settings, world[0], world[1]["tied"], rankers["new" if new else "given"])
    planned = stages.stages_of(work, take_sample(work, world[1]["tied"]))[1:-1]
    pairs = [stage.work.get("score", (0,))[0] for stage in planned]
    assert pairs == [number * 10 * JUDGED for number in runs]
    if "mode" not in changes:
        assert sum(pairs) == work.beside[0].reranked


def test_a_ranker_that_is_not_measured_scores_for_the_retriever_alone(world, rankers):
    settings = ar2.RECIPE.settings(**(COMMON | AR2 | {"rerank_depth": 0}))
    (beside,) = ar2.plan(settings, world[0], world[1]["tied"], rankers["new"]).beside
    assert beside.scored == 15 * 8 * 4


POSITIVES = 80  # of the training queries: every third has two
STAR = {"steps": 5}  # of 8 queries and 2 passages each


@pytest.mark.parametrize(
    ("recipe", "changes", "models", "expected"),
    [
        (star.RECIPE, {"top": 5}, {}, {}),  # the model that mines
        (star.RECIPE, {"top": 5}, {"filter_by": "R"}, {"the guide": QUERIES * DEPTH + POSITIVES}),
        (star.RECIPE, {"distill": "kl"}, {"teacher": "R"}, {"the teacher": 5 * 8 * 2}),
        (
            star.RECIPE,
            {"distill": "kl", "top": 5},
            {"filter_by": "R"},  # which teaches, too
            {"the guide": QUERIES * DEPTH + POSITIVES + 5 * 8 * 2},
        ),
        (
            star.RECIPE,
            {"distill": "kl", "top": 5},
            {"filter_by": "R", "teacher": "T"},
            {"the guide": QUERIES * DEPTH + POSITIVES, "the teacher": 5 * 8 * 2},
        ),
        (
            ance.RECIPE,  # refreshed four times
            {"refreshes": 4, "refresh_every": 3, "steps": None, "absolute_margin": 0.1},
            {"filter_by": "R"},
            {"the guide": 5 * (QUERIES * DEPTH + POSITIVES)},
        ),
    ],
)
def test_what_frozen_models_score_by_hand(world, recipe, changes, models, expected):
    values = {name: value for name, value in (COMMON | STAR | changes).items() if value is not None}
    settings = recipe.settings(**values).with_frozen("filter_by" in models, "teacher" in models)
    work = recipe.plan(settings, world[0], world[1]["tied"])
    source = ModelSource.at("M", **models)
    found = frozen_work(settings, work, source, None, "digest" if "teacher" in models else None)
    assert {one.name: one.scored for one in found} == expected


def test_a_teacher_whose_scores_are_stored_scores_nothing(world):
    settings = star.RECIPE.settings(**(COMMON | STAR | {"distill": "kl"}))
    work = star.RECIPE.plan(settings, world[0], world[1]["tied"])
    pool = replace(empty_pool(world[0].train, 1, ""), ranker="digest")
    assert frozen_work(settings, work, ModelSource.at("M"), pool, None) == []
    assert frozen_work(settings, work, ModelSource.at("M", teacher="T"), pool, "digest") == []
    (other,) = frozen_work(settings, work, ModelSource.at("M", teacher="T"), pool, "another")
    assert other.scored == 5 * 8 * 2


def test_a_plan_says_what_frozen_models_take(world, rankers, tmp_path, monkeypatch):
    collection, encoder = world[0].collection, world[1]["tied"]
    save_ranker(rankers["new"].model, tmp_path / "R")
    options = COMMON | STAR | {"device": "cpu", "estimate": True, "distill": "kl", "top": 5}
    monkeypatch.setattr(estimate, "ranking_cost", lambda *_, **__: RankingCost(3.0, 1.0, 0.0, 0.0))
    plain = hn.plan("star", collection, world[2], **options, filter_by=tmp_path / "R", teacher=world[2])
    assert plain["seconds"]["score by the guide"] == QUERIES * DEPTH + POSITIVES
    assert plain["facts"]["pairs that the teacher scores"] == 5 * 8 * 2
    work = star.RECIPE.plan(settings_of("star", **(COMMON | STAR)), world[0], encoder)
    seconds, teacher = {"encode": 0.0}, Beside("the teacher", lambda: encoder, 80)
    monkeypatch.setattr(estimate, "encode_seconds", lambda *_: 1.0)
    found = add_beside(seconds, work, teacher)
    assert seconds == {"encode": pytest.approx(take_sample(work, encoder).tokens(ALL_QUERIES, N))}
    assert found.disk == 4 * 64 * (ALL_QUERIES + N)


def test_a_plan_of_a_ranker_says_what_its_guide_takes(world, rankers, tmp_path, monkeypatch):
    save_ranker(rankers["new"].model, tmp_path / "R")
    options = COMMON | {"steps": 5, "max_length": 24, "device": "cpu", "estimate": True, "absolute_margin": 0.1}
    options |= {"sources": ["bm25", "random"], "count": 7}
    for module in (estimate, train_ranker):
        monkeypatch.setattr(module, "ranking_cost", lambda *_, **__: RankingCost(3.0, 1.0, 0.0, 0.0))
    monkeypatch.setattr(estimate, "encode_seconds", lambda *_: 1.0)
    collection, model = world[0].collection, world[2]
    found = hn.plan("ranker", collection, model, **options, filter_by=tmp_path / "R", seeds=2)
    pairs = QUERIES * 2 * DEPTH + POSITIVES
    assert found["facts"]["pairs that the guide scores"] == pairs
    assert found["seconds"]["score by the guide"] == 2 * pairs
    assert found["seconds"]["total"] == sum(found["seconds"].values()) / 2
    encoded = hn.plan("ranker", collection, model, **options, filter_by=model)
    assert encoded["seconds"]["encode"] > 0


@pytest.mark.parametrize(("every", "between"), [(4, 0), (2, 3), (3, 3)])
def test_states_of_ance_that_mine_and_are_measured_count_once(work_of, every, between):
    """Of steps 3, 6 and 9 none mines; of 2, 4, ..., 10 the refreshes at 4 and 8 do."""
    work = work_of(ance.RECIPE, refresh_every=4, refreshes=2, measure_every=every)
    assert (work.states, work.passed) == (4, between)


@pytest.mark.parametrize(("labels", "searching"), [("qrels", 0), ("answers", 1)])
@pytest.mark.parametrize(("recipe", "changes"), [(star.RECIPE, {}), (ance_tele.RECIPE, {"episodes": 1})])
def test_with_a_given_pool_a_model_searches_only_for_positives_by_answers(
    world, recipe, changes, labels, searching
):
    data = replace(world[0], labels=Labels(labels))
    settings = recipe.settings(**COMMON | changes | {"examine": "judged", "steps": 2})
    given = empty_pool(data.train, 1, "")
    work = recipe.plan(settings, data, world[1]["tied"], given=given)
    assert bool(work.mined) == bool(searching)
    assert work.mined_pools == 1, "a guide would filter it"


@pytest.mark.parametrize(
    ("recipe", "changes", "entries"),
    [
        (ance_tele.RECIPE, {"episodes": 3}, 4 * 6),
        (ance_tele.RECIPE, {"episodes": 4, "momentum": "accumulate"}, (1 + 2 + 3 + 4) / 4 * 2 * 6),
        (ance_tele.RECIPE, {"episodes": 3, "momentum": "accumulate", "extra": ["bm25"]}, 2 * 3 * 6),
        (
            ance_tele.RECIPE,
            {"episodes": 3, "momentum": "accumulate", "first": "in_batch"},
            (0 + 1 + 2) / 3 * 2 * 6,
        ),
        (warmup.RECIPE, {"mixtures": ["bm25", "bm25+random"]}, 2 * 6),
        (warmup.RECIPE, {"mixtures": ["bm25", "in_batch"]}, 6),
        (warmup.RECIPE, {"mixtures": ["in_batch"]}, 0),
    ],
)
def test_a_plan_counts_the_entries_of_pools_that_grow_or_mix(work_of, recipe, changes, entries):
    assert work_of(recipe, count=6, **changes).entries == entries


@pytest.mark.parametrize(("examine", "lists"), [("all", 4 / 3), ("judged", 1 + 4 / 3)])
def test_a_plan_counts_a_list_for_each_positive(world, tmp_path, examine, lists):
    """Every third query has two positives; examining has searched one of them, as mining alone has not."""
    options = COMMON | {"steps": 4, "stop_step": 2, "episodes": 2, "count": 6, "examine": examine}
    options |= {"lookahead": "all", "passages_reference": [3]}
    work = ance_tele.RECIPE.plan(ance_tele.RECIPE.settings(**options), world[0], world[1]["tied"])
    assert work.mined == pytest.approx(2 * lists)
    hn.train_ance_tele(world[0].collection, world[2], tmp_path / "exp", device="cpu", measures="RR@10", **options)
    timed = map(json.loads, (tmp_path / "exp/timing.jsonl").read_text().splitlines())
    searched = sum(row["queries"] for row in timed if row["stage"] == "search")
    examined = work.states * (2 * QUERIES * work.examined + JUDGED)
    assert searched == pytest.approx(examined + work.mined * QUERIES)

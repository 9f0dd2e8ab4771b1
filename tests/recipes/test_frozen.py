"""Frozen models in recipes (a guide that filters, a teacher, the mask): on, off, with stored and live scores."""

import dataclasses
import json
from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.recipes import RECIPES, settings_of
from hardneg.api.score import open_guide
from hardneg.errors import HardnegError, NumericError, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import new_ranker, save_ranker
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import load_pool, save_pool
from hardneg.negatives.scores import StoredScores, lowest_positive
from hardneg.recipes import ance_tele, star, warmup
from hardneg.recipes.ance import recipe as ance
from hardneg.recipes.frozen import frozen_inputs, frozen_models
from hardneg.recipes.ranker import RECIPE as RANKER
from hardneg.records import owners
from hardneg.storage.artifacts import read_manifest
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

MARGIN = 0.001
FIRST = "episodes/1/negatives"
TELE = {"episodes": 2, "steps": 3, "stop_fraction": 0.5, "passages_reference": [3], "count": 6, "extra": ["bm25"]}
RUNS = {
    "ance-tele": (ance_tele.RECIPE, TELE, "episodes/2/negatives"),
    "star": (star.RECIPE, {"steps": 3}, "episodes/1/negatives"),
    "ance": (ance.RECIPE, {"refresh_every": 2, "refreshes": 1}, "versions/v0001"),
    "warmup": (warmup.RECIPE, {"steps": [3], "mixtures": ["bm25+random"], "count": 8}, "episodes/1/negatives"),
}


@pytest.fixture(scope="module")
def ranker(world):
    place = world.root / "frozen-ranker"
    if not place.exists():
        save_ranker(new_ranker(ModelSource.at(world.calm), seed=3), place)
    return str(place)


@pytest.fixture(scope="module")
def plain(run_states):
    """A function that executes a recipe of ``RUNS`` without frozen models, each once."""
    return cache(lambda name: run_states(RUNS[name][0], **RUNS[name][1]))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("by", ["given", "start"])
def test_a_guide_filters_what_a_recipe_mines(run_states, ranker, name, by):
    recipe, settings, place = RUNS[name]
    frozen = {"filter_by": ranker} if by == "given" else {}
    path = run_states(recipe, frozen=frozen, filter_by=by, absolute_margin=MARGIN, **settings).path / place
    pool = load_pool(path)
    assert pool.ranker == read_manifest(path).inputs["filter_by"]
    assert (pool.ranker_scores <= lowest_positive(pool)[owners(pool.offsets)] - MARGIN + 1e-6).all()
    assert sum(pool.filtered.values()) > 0
    assert len(pool.passage_rows) > 0


@pytest.mark.parametrize("name", ["star", "ance-tele"])
def test_a_guide_filters_given_negatives_too(run_states, ranker, name):
    recipe, settings, place = RUNS[name]
    if name == "ance-tele":
        settings, place = settings | {"episodes": 1}, "episodes/1/negatives"
    given = load_pool(run_states(recipe, **settings).path / place)
    options = {"frozen": {"filter_by": ranker}, "filter_by": "given", "absolute_margin": MARGIN}
    pool = load_pool(run_states(recipe, given=given, **options, **settings).path / place)
    assert (pool.ranker_scores <= lowest_positive(pool)[owners(pool.offsets)] - MARGIN + 1e-6).all()
    assert 0 < len(pool.passage_rows) < len(given.passage_rows)


def test_a_guide_filters_the_negatives_that_a_ranker_is_given(run_states, world, ranker):
    given = load_pool(run_states(warmup.RECIPE, steps=[1], mixtures=["random"], count=8).path / FIRST)
    settings = {"steps": 2, "negatives_per_query": 2, "max_length": 24, "rerank": 5}
    options = {"frozen": {"filter_by": ranker}, "filter_by": "given", "absolute_margin": MARGIN}
    start = new_ranker(ModelSource.at(world.calm), seed=3)
    pool = load_pool(run_states(RANKER, base=start, given=given, **options, **settings).path / FIRST)
    assert (pool.ranker_scores <= lowest_positive(pool)[owners(pool.offsets)] - MARGIN + 1e-6).all()
    assert 0 < len(pool.passage_rows) < len(given.passage_rows)


def inputs_of(name, source, pool, **settings):
    """The digests of the frozen models of a recipe that distils."""
    return frozen_inputs(RECIPES[name].facts, settings_of(name, distill="kl", **settings), source, pool)


@pytest.mark.parametrize("name", ["ance-tele", "warmup", "star", "ance"])
def test_advice_names_a_pool_exactly_where_the_recipe_takes_one(world, name):
    """A contributor's recipe says this once, by its options."""
    facts = RECIPES[name].facts
    for options in (facts.options, tuple(one for one in facts.options if one.name != "negatives")):
        known = dataclasses.replace(facts, options=options)
        with pytest.raises(SettingsError, match="NO_TEACHER") as told:
            frozen_inputs(known, settings_of(name, distill="kl"), ModelSource.at(world.calm), None)
        assert ("--pool" in str(told.value)) == known.takes_pool


def test_distillation_without_a_teacher_is_refused_at_once(plain, world, ranker, tmp_path):
    guide = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path)
    scored = guide.scored(load_pool(plain("star").path / FIRST))
    source = ModelSource.at(world.calm)
    assert inputs_of("star", source, scored) == {}
    assert inputs_of("ance-tele", source, scored, episodes=1) == {}
    with pytest.raises(SettingsError, match=r"NO_TEACHER: .* alone \(episodes = 1\)"):  # nobody scores the second
        inputs_of("ance-tele", source, scored, episodes=2)
    for name, fix in (("ance", "give --teacher M$"), ("star", r"give --teacher M, or .*--pool SCORED\)$")):
        with pytest.raises(SettingsError, match=f"NO_TEACHER: .*; {fix}"):
            inputs_of(name, source, None)


def test_scores_of_a_pool_are_distilled_also_where_a_guide_filters_it(run_states, plain, world, ranker, tmp_path):
    guide = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path)
    given = guide.scored(load_pool(plain("star").path / FIRST))
    settings = RUNS["star"][1] | {"distill": "kl"}
    bounds = {"filter_by": "start", "absolute_margin": MARGIN, "frozen": {}}
    done = run_states(RUNS["star"][0], given=given, **bounds, **settings)
    pool = load_pool(done.path / FIRST)
    assert pool.ranker == given.ranker
    assert 0 < len(pool.passage_rows) < len(given.passage_rows)
    scores = StoredScores(given)
    assert np.array_equal(pool.ranker_scores, scores(pool.query_rows[owners(pool.offsets)], pool.passage_rows))
    start = load_pool(run_states(RUNS["star"][0], given=given, **bounds, **RUNS["star"][1]).path / FIRST)
    assert start.ranker != given.ranker
    assert np.array_equal(pool.passage_rows, start.passage_rows)  # kept by the scores of the guide


def test_a_scored_pool_of_other_positives_is_refused_at_once(plain, world, ranker, tmp_path):
    guide = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path)
    pool = guide.scored(load_pool(plain("star").path / FIRST))
    save_pool(pool, tmp_path / "scored", settings={}, inputs={})
    query = world.collection.query_ids[int(pool.query_rows[0])]
    taken = {*pool.positives.of(0).tolist(), *pool.passage_rows[: pool.offsets[1]].tolist()}
    passage = next(row for row in range(world.collection.n_passages) if row not in taken)
    file = tmp_path / "judgements.tsv"
    file.write_text(f"query-id\tpassage-id\tlabel\n{query}\t{world.collection.passage_ids[passage]}\tpositive\n")
    common = COMMON | {"steps": 2, "measures": "RR@10", "device": "cpu", "distill": "kl"}
    options = {"negatives": tmp_path / "scored", "judgements": file, **common}
    with pytest.raises(NumericError, match=r"1 query has a positive without a score; .*hardneg mine\)"):
        hn.train("star", world.collection, world.calm, tmp_path / "exp", **options)
    assert not (tmp_path / "exp").exists()
    hn.train("star", world.collection, world.calm, tmp_path / "exp", teacher=ranker, **options)
    for number, guide in enumerate((ranker, "start")):  # a model that filters scores what the pool does not
        out = tmp_path / f"guided-{number}"
        hn.train("star", world.collection, world.calm, out, filter_by=guide, max_score=1e9, **options)


@pytest.mark.parametrize("mixtures", [["file", "bm25"], ["file+random"]])
def test_mixtures_that_nobody_scored_are_refused_before_training(plain, world, ranker, tmp_path, mixtures):
    guide = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path)
    pool = guide.scored(load_pool(plain("warmup").path / FIRST))
    save_pool(pool, tmp_path / "scored", settings={}, inputs={})
    common = COMMON | {"steps": [2], "measures": "RR@10", "device": "cpu", "distill": "kl"}
    where = world.collection, world.calm, tmp_path / "exp"
    options = {"negatives": tmp_path / "scored", "mixtures": mixtures, **common}
    with pytest.raises(
        SettingsError, match=r"NO_TEACHER: .* not from the scored pool.*\(mixtures = file\+in_batch\)"
    ):
        hn.train("warmup", *where, **options)
    assert not (tmp_path / "exp").exists()
    source = ModelSource.at(world.calm)
    for alone in (["file"], ["file+in_batch", "file+nce"], ["in_batch", "file"]):  # in_batch alone is not taught
        assert inputs_of("warmup", source, pool, mixtures=alone) == {}
    assert inputs_of("warmup", source, pool, mixtures=mixtures, filter_by="start", top=3) == {}


@pytest.mark.parametrize("name", RUNS)
def test_without_frozen_models_nothing_changes(run_states, plain, name):
    recipe, settings, _ = RUNS[name]
    assert run_states(recipe, frozen={}, **settings).metrics == plain(name).metrics


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("by", ["kl", "margin_mse"])
def test_live_and_stored_scores_teach_the_same(run_states, plain, world, ranker, tmp_path, name, by):
    recipe, settings, place = RUNS[name]
    live = run_states(recipe, frozen={"teacher": ranker}, distill=by, **settings)
    assert live.metrics != plain(name).metrics
    if name not in ("star", "warmup"):
        return
    guide = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path)
    scored = guide.scored(load_pool(live.path / place))
    save_pool(scored, tmp_path / "scored", settings={}, inputs={})
    given = load_pool(tmp_path / "scored")
    changes = {"mixtures": ["file"]} if name == "warmup" else {}
    stored = run_states(recipe, given=given, frozen={}, distill=by, **settings | changes)
    again = run_states(recipe, given=given, frozen={"teacher": ranker}, distill=by, **settings | changes)
    assert [row["loss"] for row in stored.metrics] == [row["loss"] for row in again.metrics]
    assert stored.losses(1)[0] == pytest.approx(live.losses(1)[0], rel=1e-4)


@pytest.mark.parametrize("scale", [None, 4.0])
def test_the_first_step_is_that_of_a_slow_loop(run_states, world, ranker, tmp_path, in_float32, scale):
    """KL alone, at the first step: the model has not moved, so its scores are those of its own search.

    The tiny world trains in float32; the loop would score in the machine's default, which may be bfloat16.
    """
    settings = {"steps": 1}
    found = run_states(
        star.RECIPE,
        frozen={"teacher": ranker},
        distill="kl",
        distill_weight=1.0,
        distill_scale=scale,
        teacher_temperature=0.5,
        **settings,
    )
    guides = [
        open_guide(ModelSource.at(model, device="cpu"), world.collection, tmp_path)
        for model in (ranker, world.calm)
    ]
    [batch] = found.batches[:1]
    total = 0.0
    for i, query in enumerate(batch.query_rows):
        rows = batch.passage_rows[i]
        teacher, model = (guide.score(np.repeat(query, len(rows)), rows).astype(float) for guide in guides)
        q, p = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (teacher / 0.5, model * (scale or 1)))
        total += (q * np.log(q / p)).sum()
    assert found.losses(1)[0] == pytest.approx(total / len(batch.query_rows), rel=2e-2, abs=1e-5)


@pytest.fixture(scope="module")
def cosine(world):
    return load_encoder(world.calm, normalize=True, scale=20.0)


@pytest.mark.parametrize("by", ["kl", "margin_mse"])
def test_a_model_that_teaches_itself_has_nothing_to_learn(run_states, cosine, in_float32, by):
    settings = {"distill": by, "distill_weight": 1.0, "filter_by": "start", "max_score": 1e9, "steps": 1}
    found = run_states(star.RECIPE, base=deepcopy(cosine), frozen={}, store_dtype="float32", **settings)
    assert found.losses(1)[0] == pytest.approx(0, abs=1e-5)
    pool = load_pool(found.path / FIRST)
    assert pool.ranker_scale == 20
    assert abs(pool.ranker_scores).max() < 1.01  # bounds compare scores as they are


def test_a_teachers_own_scale_makes_logits_of_live_and_of_stored_scores(world, plain, cosine, tmp_path, caplog):
    settings = settings_of("star", distill="kl", **COMMON | {"steps": 1})
    source, train = ModelSource.at(world.calm, device="cpu"), SimpleNamespace(collection=world.collection)

    def models(**changes):
        chosen = settings.model_copy(update=changes)
        return frozen_models(chosen, source, lambda: deepcopy(cosine), train, tmp_path)

    live = models(filter_by="start")
    pool = live.guide.scored(load_pool(plain("star").path / FIRST))
    old = dataclasses.replace(pool, ranker_scale=None)
    pairs = pool.query_rows[owners(pool.offsets)], pool.passage_rows
    for teacher in (live.teacher(None), live.teacher(pool), live.teacher(old), models().teacher(pool)):
        assert np.allclose(teacher(*pairs), 20 * pool.ranker_scores, atol=1e-4)
    assert not caplog.messages
    assert models(teacher_temperature=0.05).teacher(old) is not None
    assert models().teacher(dataclasses.replace(old, ranker_scores=5 * old.ranker_scores)) is not None
    assert not caplog.messages  # the temperature is set; no cosines
    assert np.array_equal(models().teacher(old)(*pairs), pool.ranker_scores)
    assert ["teacher_temperature = 1/scale" in line for line in caplog.messages] == [True]


WITHOUT_OWN = [
    ("warmup", {"mixtures": ["bm25", "in_batch"], "steps": [2]}),
    ("ance-tele", {"passages_reference": [3, 1], "extra": []}),
]


@pytest.mark.parametrize(("name", "changes"), WITHOUT_OWN)
def test_groups_of_a_positive_alone_keep_the_loss_of_the_recipe(run_states, ranker, name, changes):
    """Over one passage a teacher's term is 0 whatever the model is, so alone it would train nothing."""
    recipe, settings, _ = RUNS[name]
    settings = settings | changes
    taught = run_states(recipe, frozen={"teacher": ranker}, distill="kl", distill_weight=1.0, **settings)
    assert min(taught.losses(2)) > 0.1


@pytest.mark.parametrize("name", RUNS)
def test_the_mask_takes_negatives_away(run_states, plain, name):
    recipe, settings, _ = RUNS[name]
    if name == "warmup":
        settings = settings | {"mixtures": ["bm25+in_batch"]}
        unmasked = run_states(recipe, **settings)
    else:
        unmasked = plain(name)
    masked = run_states(recipe, frozen={}, guide_mask=True, **settings)
    loose = run_states(recipe, frozen={}, guide_mask=True, guide_margin=-1e6, **settings)
    assert loose.metrics == unmasked.metrics  # nothing is so much nearer
    assert masked.metrics != unmasked.metrics
    assert masked.losses(1)[0] < unmasked.losses(1)[0]


def test_what_does_not_fit_is_refused():
    for recipe, values, code in (
        ("star", {"filter_by": "start"}, "NO_BOUND"),
        ("star", {"guide_margin": 0.1}, "BAD_SETTING"),
        ("warmup", {"relative_margin": 0.05}, "NO_MARGIN"),
        ("ance-tele", {"extra": ["bm25"], "relative_margin": 0.05}, "NO_MARGIN"),
        ("star", {"distill": "mse"}, "BAD_SETTING"),
        ("star", {"distill": "kl", "distill_weight": 0.0}, "BAD_SETTING"),
        ("adore", {"distill": "kl"}, "UNKNOWN_SETTING"),
    ):
        with pytest.raises(HardnegError, match=code):
            settings_of(recipe, **values)
    for recipe in ("warmup", "star"):
        settings_of(recipe, filter_by="start", relative_margin=0.05)
    for name, values, given, code in (
        ("star", {"distill": None}, (False, True), "BAD_SETTING"),
        ("adore", {"cut": 10}, (True, False), "BAD_SETTING"),
        ("star", {"guide_mask": True}, (False, True), "BAD_SETTING"),
        ("star", {"filter_by": "given", "top": 3}, (False, False), "NO_MODEL"),
        ("star", {}, (True, False), "NO_BOUND"),
    ):
        with pytest.raises(HardnegError, match=code):
            settings_of(name, **values).with_frozen(*given)


def test_training_from_arguments_to_results(world, ranker, tmp_path):
    common = COMMON | {"steps": 2, "measures": "RR@10", "device": "cpu", "cache": tmp_path / "cache"}
    where = world.collection, world.calm
    taught = common | {"teacher": ranker, "distill": "kl", "top": 5}
    hn.train("star", *where, tmp_path / "exp", **taught, filter_by=ranker)
    begun = json.loads((tmp_path / "exp/settings.json").read_text())
    digest = open_guide(ModelSource.at(ranker, device="cpu"), world.collection, tmp_path / "cache").digest
    assert begun["inputs"]["teacher"] == begun["inputs"]["filter_by"] == digest
    assert begun["result_settings"]["filter_by"] == "given"
    assert load_pool(tmp_path / "exp/episodes/1/negatives").ranker == digest
    with pytest.raises(HardnegError, match="NO_TEACHER"):
        hn.train("star", *where, tmp_path / "none", **common, distill="kl")
    with pytest.raises(HardnegError, match="BAD_SETTING: a teacher is given"):
        hn.plan("star", *where, **common, teacher=ranker)
    assert hn.plan("star", *where, **taught, filter_by=ranker)["settings"]["filter_by"] == "given"
    assert not (tmp_path / "none").exists()
    with pytest.raises(HardnegError, match="filter_by"):
        hn.train(
            "star", *where, tmp_path / "exp", **common, teacher=ranker, distill="kl", filter_by=world.calm, top=5
        )

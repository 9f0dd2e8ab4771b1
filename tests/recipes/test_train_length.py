"""Passages may be shorter in training steps than everywhere else: steps read the cut ones, searches the whole."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.data.training_data import choose_splits
from hardneg.errors import Faults, SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.tokenizing import shorter, token_store
from hardneg.recipes import ance_tele, warmup
from hardneg.recipes.estimate import take_sample, tokens_of_step
from hardneg.recipes.settings import Episode
from hardneg.training.batches import GroupBatch
from hardneg.training.objectives import group_loss, group_objective
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

CUT, WHOLE = 5, 64  # passages have eight words and two special tokens
RECIPES = {
    "warmup": {"mixtures": ["bm25+in_batch"], "steps": [3]},
    "star": {"steps": 3},
    "ance": {"refresh_every": 2, "refreshes": 1},
    "ance_tele": {"episodes": 2, "steps": 4, "passages_reference": [3], "count": 4, "stop_step": 2},
}


def train(world, out, recipe, **changes):
    values = COMMON | {"depth": 20, "measures": "RR@10"} | RECIPES[recipe] | changes
    return getattr(hn, f"train_{recipe}")(world.collection, world.calm, out, device="cpu", **values)


def weights(folder):
    return load_encoder(str(folder)).tower("passage").state_dict()


def test_a_store_for_steps_has_the_same_texts_cut(world, tmp_path):
    encoder = load_encoder(world.calm)
    whole, cut, none = (
        token_store(encoder, world.collection, tmp_path, "passage", most=most) for most in (None, CUT, WHOLE)
    )
    assert (cut.lengths <= CUT).all()
    assert (cut.lengths == np.minimum(whole.lengths, CUT)).all()
    assert none.digest == whole.digest != cut.digest
    template = encoder.template("passage")
    assert shorter(template, None) == shorter(template, 1000) == template
    assert shorter(template, CUT) == replace(template, max_length=CUT)


def test_a_step_over_cut_passages_is_that_of_a_model_that_cuts_there(world, tmp_path):
    """Forward and gradient."""
    data = choose_splits(world.collection, dev="none")
    batch = GroupBatch(np.array([0, 1, 2], np.int32), np.array([[3, 40], [5, 41], [7, 42]], np.int32), 3, 0)
    found = []
    for length, most in ((WHOLE, CUT), (CUT, None), (WHOLE, None)):
        encoder = load_encoder(world.calm, passage_length=length)
        loss = group_loss("contrastive", scale=1.0)
        objective = group_objective(data, encoder, tmp_path, loss, in_batch=True, passage_length=most)
        total = objective(batch).loss
        total.backward()
        found.append((total.item(), [one.grad.clone() for one in encoder.parameters() if one.grad is not None]))
    (cut, cut_grads), (short, short_grads), (whole, _) = found
    assert cut == short != whole
    assert all(torch.equal(a, b) for a, b in zip(cut_grads, short_grads, strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_are_cut_and_search_is_not(world, tmp_path, recipe):
    results = train(world, tmp_path / "cut", recipe, train_passage_length=CUT)
    plain = train(world, tmp_path / "plain", recipe)
    saved = load_encoder(str(tmp_path / "cut/model"))
    assert saved.template("passage").max_length == saved.search_template("passage").max_length == WHOLE
    assert results["test"]["untrained"] == plain["test"]["untrained"]  # measured over whole passages
    ours, theirs = weights(tmp_path / "cut/model"), weights(tmp_path / "plain/model")
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)
    assert results["lengths"]["passage in steps"]["tokens"] == CUT
    assert results["lengths"]["passage in steps"]["cut"] == world.collection.n_passages
    assert results["lengths"]["passage"]["cut"] == 0
    assert "passage in steps" not in plain["lengths"]


def test_what_no_search_decides_is_trained_as_by_a_model_that_cuts_there(world, tmp_path):
    """BM25 mines from words, so the same groups are trained on: the same weights, to the bit."""
    train(world, tmp_path / "steps", "warmup", train_passage_length=CUT)
    train(world, tmp_path / "everywhere", "warmup", passage_length=CUT)
    ours, theirs = weights(tmp_path / "steps/model"), weights(tmp_path / "everywhere/model")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_negatives_are_mined_from_whole_passages(world, tmp_path):
    """The first pool is that of the untrained model, which steps have not touched."""
    for name, changes in (("cut", {"train_passage_length": CUT}), ("plain", {})):
        train(world, tmp_path / name, "ance_tele", **changes)
    first = [
        json.loads((tmp_path / name / "episodes/1/negatives/manifest.json").read_text())["files"]
        for name in ("cut", "plain")
    ]
    assert first[0] == first[1]


def test_a_plan_counts_the_tokens_of_cut_passages_in_steps_alone(world):
    encoder, data = load_encoder(world.calm), choose_splits(world.collection, dev="none")
    plans = [
        module.RECIPE.plan(
            hn.settings_of(name, **COMMON | RECIPES[key] | {"train_passage_length": most}), data, encoder
        )
        for module, name, key, most in (
            (warmup, "warmup", "warmup", None),
            (warmup, "warmup", "warmup", CUT),
            (ance_tele, "ance-tele", "ance_tele", CUT),
        )
    ]
    assert [plan.passage_length for plan in plans] == [None, CUT, CUT]
    whole, cut = (take_sample(plan, encoder) for plan in plans[:2])
    words = whole.passages.lengths.mean()
    assert whole.tokens(0, 1) == cut.tokens(0, 1) == words > CUT
    one = Episode(1, 60, 4, 1, 1)
    queries = whole.queries.lengths.mean()
    assert tokens_of_step(one, None, whole, plans[0]) == pytest.approx(queries + words)
    assert tokens_of_step(one, None, cut, plans[1]) == pytest.approx(queries + CUT)


def test_what_reads_no_passages_or_parts_of_them_refuses_it(world, tmp_path):
    with pytest.raises(Faults, match="adore does not support train_passage_length = 5: its steps read no passage"):
        hn.settings_of("adore", cut=10, train_passage_length=CUT)
    with pytest.raises(Faults, match="train_passage_length = 5: a ranker has no such setting"):
        hn.settings_of("ranker", train_passage_length=CUT)
    with pytest.raises(SettingsError, match="train_passage_length = 5 with documents of several chunks"):
        train(world, tmp_path / "exp", "warmup", train_passage_length=CUT, chunks=2)
    with pytest.raises(SettingsError, match="train_passage_length = 9 is more than passage_length = 8"):
        train(world, tmp_path / "exp", "warmup", train_passage_length=9, passage_length=8)

"""Each change that a preset or a setting makes to the model is reported in one line."""

import logging

import pytest

import hardneg as hn
from hardneg.api.overrides import overridden
from hardneg.api.recipes import settings_of
from hardneg.models.loading import load_encoder, read_model
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.recipes.starting_model import trained_encoder
from worlds.tiny_world import COMMON, one_thread, tiny_collection, tiny_model  # noqa: F401

CHANGES = {
    "pooling": ("cls", "pooling: the model's mean -> cls"),
    "normalize": (False, "normalize: the model's true -> false"),
    "head": ("ance", "head: the model's none -> ance, fresh"),
    "scale": (1.0, "scale: the model's 20.0 -> 1.0"),
    "title_join": ("sep", "title_join: the model's space -> sep"),
    "use_titles": (False, "use_titles: the model's true -> false"),
    "query_length": (12, "query_length: the model's 40 -> 12"),
    "passage_length": (20, "passage_length: the model's 40 -> 20"),
    "search_query_length": (30, "search_query_length: the model's none -> 30"),
    "chunks": (2, "chunks: the model's 1 -> 2"),
    "max_characters": (99, "max_characters: the model's 0 -> 99"),
    "dim": (32, "dim: the model's none -> 32"),
    "towers": ("untied", "towers: the model's tied -> untied"),
    "query_prompt": ("query: ", "query_prompt: the model's '' -> 'query: '"),
    "passage_prompt": ("text: ", "passage_prompt: the model's '' -> 'text: '"),
    "reinit_layers": (1, "reinit_layers: the top 1 of the model's layers begin anew"),
}


@pytest.fixture(scope="module")
def world(world):
    plain = load_encoder(
        world.model,
        pooling="mean",
        normalize=True,
        scale=20.0,
        title_join="space",
        query_length=40,
        passage_length=40,
    )
    save_encoder(plain, world.root / "settled")
    return world.collection, str(world.root / "settled")


def lines_of(model, preset=None, **changes):
    settings = settings_of("warmup", preset, **changes)
    read = read_model(ModelSource(model, device="cpu"))
    return [
        line
        for line in overridden(settings, read, trained_encoder(read, settings))
        if not line.startswith("scale: logits")
    ]


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_said(world, name):
    value, line = CHANGES[name]
    assert lines_of(world[1], **{name: value}) == [f"{line} (as set)"]


def test_a_preset_is_named(world):
    lines = lines_of(world[1], "in-batch", passage_length=40)
    assert "pooling: the model's mean -> cls (preset in-batch)" in lines
    assert "head: the model's none -> ance, fresh (preset in-batch)" in lines
    assert not any("optimizer" in line or "learning_rate" in line for line in lines)
    assert "pooling: the model's mean -> last (as set)" in lines_of(
        world[1], "in-batch", passage_length=40, pooling="last"
    )


def test_finetune_changes_nothing(world):
    assert lines_of(world[1], "finetune") == []


def test_a_length_that_the_model_has_for_search_is_said_where_that_of_training_changes(tmp_path, world):
    model = str(tmp_path / "searches")
    save_encoder(load_encoder(world[1], query_length=12, search_query_length=16), tmp_path / "searches")
    kept = "in training; search and test keep search_query_length = 16"
    assert lines_of(model, query_length=20) == [f"query_length: the model's 12 -> 20 {kept} (as set)"]
    assert lines_of(model, query_length=16) == ["query_length: the model's 12 -> 16 (as set)"]


def test_a_scale_that_is_kept_without_normalising_is_said(world):
    def said(**changes):
        settings = settings_of("warmup", **changes)
        read = read_model(ModelSource(world[1], device="cpu"))
        lines = overridden(settings, read, trained_encoder(read, settings))
        return [line for line in lines if line.startswith("scale: logits")]

    kept = "scale: logits are 20 times the product of vectors of any length (the model's own"
    assert said(normalize=False)[0].startswith(kept)
    assert said(normalize=False, scale=1.0) == []
    assert said()[0].startswith("scale: logits are 20 times the cosine (the model's own")


def test_lines_stand_in_the_log_before_training(world, tmp_path, caplog):
    collection, model = world
    options = COMMON | {"queries_per_step": 16, "measures": "RR@10", "mixtures": ["in_batch"], "steps": [1]}
    with caplog.at_level(logging.INFO, "hardneg"):
        hn.train("warmup", collection, model, tmp_path / "exp", device="cpu", pooling="cls", **options)
    assert "pooling: the model's mean -> cls (as set)" in (tmp_path / "exp/log.txt").read_text()
    assert "scale: logits are 20 times the cosine" in (tmp_path / "exp/log.txt").read_text()

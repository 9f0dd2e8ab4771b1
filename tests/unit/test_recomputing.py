"""Layers that the backward pass computes again: the same losses and gradients, bit for bit, in less memory."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import new_ranker
from hardneg.models.recomputing import recompute_layers, transformers_of
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store, token_store
from hardneg.recipes.starting_ranker import ranker_of
from worlds.tiny_world import COMMON, one_thread  # noqa: F401

STAR = COMMON | {"queries_per_step": 4, "steps": 3, "depth": 20, "measures": "RR@10"}


def loss_of_texts(world, pooling):
    """An encoder with dropout, and the function that gives its loss on some passages."""
    encoder = load_encoder(world.model, pooling=pooling).train()
    batch = token_store(encoder, world.collection, world.root / "cache", "passage").read(np.arange(12))
    return encoder, lambda: encoder.encode(batch, "passage").square().cumsum(0).sum()


def loss_of_pairs(world, _):
    """A ranker with dropout, and the function that gives its loss on some pairs."""
    ranker = new_ranker(ModelSource(str(world.model)), seed=0).train()
    pairs = pair_store(ranker.tower, ranker.template, world.collection, world.root / "cache")
    batch = pairs.read(np.arange(8), np.arange(8))
    return ranker, lambda: ranker.score(batch).square().sum()


def passed(model, loss, precision):
    """The loss, all gradients, and the bytes that the backward pass waits for."""
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.zero_grad()
    torch.manual_seed(3)
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    with half, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        value = loss()
    after = torch.rand(())
    value.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return value.item(), gradients, sum(kept.values()), after


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "pooling"), [(loss_of_texts, "mean"), (loss_of_texts, "cls"), (loss_of_pairs, None)]
)
def test_the_bits_are_the_same_and_less_is_kept(world, make, pooling, precision):
    model, loss = make(world, pooling)
    value, gradients, kept, drawn = passed(model, loss, precision)
    recompute_layers(model)
    again, found, fewer, then = passed(model, loss, precision)
    assert again == value
    assert found.keys() == gradients.keys()
    assert all(torch.equal(found[name], one) for name, one in gradients.items())
    assert fewer < 0.8 * kept  # of two layers one keeps nothing but its input
    assert torch.equal(drawn, then)  # what is drawn afterwards does not change


def test_each_layer_but_the_last_is_computed_twice(world):
    encoder, loss = loss_of_texts(world, "mean")
    recompute_layers(encoder)
    recompute_layers(encoder)  # once more changes nothing
    layers, calls = transformers_of(encoder)[0].encoder.layer, [0, 0]
    for number, layer in enumerate(layers):

        def count(*_, number=number):
            calls[number] += 1

        layer.attention.register_forward_pre_hook(count)
    loss().backward()
    assert calls == [2, 1]


def test_copies_and_inference_are_as_before(world):
    encoder, _ = loss_of_texts(world, "mean")
    batch = token_store(encoder, world.collection, world.root / "cache", "passage").read(np.arange(5))
    digest, copy = encoder.digest(), deepcopy(encoder)
    recompute_layers(encoder)
    assert encoder.digest() == digest
    with encoder.inference(), copy.inference(), torch.no_grad():
        assert torch.equal(encoder.encode(batch, "passage"), copy.encode(batch, "passage"))


def test_a_recipe_trains_the_same_model(world, tmp_path):
    found = []
    for on in (False, True):
        out = tmp_path / str(on)
        hn.train_star(world.collection, world.model, out, device="cpu", recompute_layers=on, **STAR)
        found.append(load_encoder(out / "model").digest())
    assert found[0] == found[1]


def test_a_model_that_cannot_is_refused(world, monkeypatch):
    encoder, _ = loss_of_texts(world, "mean")
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", torch.nn.Bilinear)
    with pytest.raises(SettingsError, match="recompute_layers = true: a model of type bert cannot recompute them"):
        recompute_layers(encoder)


@pytest.mark.parametrize("trained", ["star", "ranker"])
def test_a_model_that_cannot_is_refused_before_anything_is_done(world, tmp_path, monkeypatch, trained):
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", torch.nn.Bilinear)
    train = {"star": hn.train_star, "ranker": hn.train_ranker}[trained]
    with pytest.raises(SettingsError, match="cannot recompute them"):
        train(world.collection, world.model, tmp_path / "exp", device="cpu", recompute_layers=True, **STAR)
    assert not (tmp_path / "exp").exists()


def test_a_ranker_of_ar2_that_cannot_is_refused_where_it_is_opened(world, monkeypatch):
    settings = hn.settings_of("ar2", recompute_layers=True)
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", torch.nn.Bilinear)
    with pytest.raises(SettingsError, match="cannot recompute them"):
        ranker_of(ModelSource.at(world.model, device="cpu"), settings)

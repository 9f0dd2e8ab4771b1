"""Layers begun anew: which weights change, to what, and that everybody draws the same."""

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertModel,
)

from hardneg.errors import SettingsError
from hardneg.models.loading import load_encoder
from hardneg.models.reinit import layers_of, reinitialize
from hardneg.models.source import ModelSource
from hardneg.recipes.ance_tele import AnceTele
from hardneg.recipes.starting_model import starting_encoder
from worlds.tiny_models import SHAPE, tiny_bert, tiny_roberta

TEXTS = ["some words of a language", "and some more of them"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("bert"), TEXTS))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return str(tiny_roberta(tmp_path_factory.mktemp("roberta"), TEXTS))


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def start(bert, **settings):
    return starting_encoder(ModelSource(bert, device="cpu"), AnceTele(**settings))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_only_the_top_layers_change(kind, bert, roberta):
    transformer = load_encoder({"bert": bert, "roberta": roberta}[kind]).tower("query").transformer
    before = state_of(transformer)
    reinitialize(transformer, 1, seed=0)
    after = transformer.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("encoder.layer.1.") for name in changed)
    matrices = {name for name in before if name.startswith("encoder.layer.1.") and before[name].ndim == 2}
    assert len(matrices) == 6
    assert matrices <= changed


def test_the_draw_is_that_of_the_models_own_initializer(bert):
    transformer = load_encoder(bert).tower("query").transformer
    with torch.no_grad():
        for weight in transformer.parameters():
            weight.fill_(7.0)
    reinitialize(transformer, 2, seed=3)
    for name, weight in layers_of(transformer).named_parameters():
        if weight.ndim == 2:
            assert weight.mean().abs() < 0.01
            assert weight.std().item() == pytest.approx(SHAPE["initializer_range"], rel=0.05)
        else:
            assert (weight == (0.0 if name.endswith("bias") else 1.0)).all(), name
    assert (transformer.embeddings.word_embeddings.weight == 7.0).all()


def test_a_layer_is_the_same_however_many_are_drawn_and_in_any_tower(bert):
    one, two = (load_encoder(bert).tower("query").transformer for _ in range(2))
    reinitialize(one, 1, seed=5)
    reinitialize(two, 2, seed=5)
    top = [layers_of(model)[-1].state_dict() for model in (one, two)]
    assert all(torch.equal(top[0][name], top[1][name]) for name in top[0])
    untied = start(bert, towers="untied", reinit_layers=2)
    query, passage = (untied.tower(side).transformer.state_dict() for side in ("query", "passage"))
    assert all(torch.equal(query[name], passage[name]) for name in query)


def test_layers_and_seeds_differ(bert):
    transformer = load_encoder(bert).tower("query").transformer
    reinitialize(transformer, 2, seed=0)
    bottom, top = (layer.attention.self.query.weight for layer in layers_of(transformer))
    assert not torch.equal(bottom, top)
    kept = top.clone()
    reinitialize(transformer, 2, seed=1)
    assert not torch.equal(kept, top)


def test_the_settings_reach_the_start_and_its_digest(bert):
    as_is = load_encoder(bert).digest()
    assert start(bert).digest() == as_is
    found = [start(bert, reinit_layers=1, reinit_seed=seed).digest() for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert len({as_is, *found}) == 3
    assert {"reinit_layers", "reinit_seed"} <= set(AnceTele().result_values())


def test_more_layers_than_there_are_is_a_fault(bert):
    with pytest.raises(SettingsError, match="reinit_layers = 3, the model has 2 layers"):
        start(bert, reinit_layers=3)


def test_the_norms_of_gemma_scale_by_one():
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20, "head_dim": 8}
    gemma = Gemma3TextModel(Gemma3TextConfig(**small, num_hidden_layers=2, num_key_value_heads=1, pad_token_id=0))
    with torch.no_grad():
        for weight in gemma.parameters():
            weight.fill_(7.0)
    reinitialize(gemma, 1, seed=0)
    norm = layers_of(gemma)[1].input_layernorm
    states = torch.randn(3, 16)
    torch.testing.assert_close(norm(states).pow(2).mean(-1), torch.ones(3), atol=1e-4, rtol=0)


def test_other_families_keep_their_layers_elsewhere():
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
    modern = ModernBertModel(ModernBertConfig(**small, num_hidden_layers=3, pad_token_id=0))
    assert len(layers_of(modern)) == 3
    with torch.no_grad():
        for weight in modern.parameters():
            weight.fill_(7.0)
    reinitialize(modern, 2, seed=0)
    bottom, *top = layers_of(modern)
    assert all((weight == 7.0).all() for weight in (*bottom.parameters(), *modern.embeddings.parameters()))
    for weight in (weight for layer in top for weight in layer.parameters()):
        if weight.ndim == 2:
            assert weight.std().item() == pytest.approx(modern.config.initializer_range, rel=0.15)
            assert weight.mean().abs() < 0.005
        else:
            assert (weight == 1.0).all()  # norms; there are no biases
    assert not torch.equal(top[0].attn.Wo.weight, top[1].attn.Wo.weight)
    shared = AlbertModel(AlbertConfig(**small, embedding_size=8, num_hidden_layers=3))
    with pytest.raises(SettingsError, match="the model has 0 layers with weights of their own"):
        reinitialize(shared, 1, seed=0)

"""Gradient norms by thirds of the layers and by source, each against a slow loop."""

import numpy as np
import pytest
import torch
from torch import nn

from hardneg.negatives.pool import SOURCES
from hardneg.training.batches import GroupBatch, source_columns
from hardneg.training.gradient_norms import layer_norms, layers_of, source_norms


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.encoder.layer:
            x = torch.tanh(layer(x))
        return self.head(x)


def test_thirds_are_means_over_their_layers():
    torch.manual_seed(0)
    model = Stack(7)
    model(torch.randn(5, 4)).sum().backward()
    norms = [
        np.sqrt(sum(float(p.grad.double().square().sum()) for p in layer.parameters()))
        for layer in model.encoder.layer
    ]
    found = {name: float(value) for name, value in layer_norms(layers_of(model)).items()}
    expected = {"bottom": norms[:3], "middle": norms[3:5], "top": norms[5:], "last": norms[6:]}
    assert found == pytest.approx({f"grad_norm_{name}": np.mean(part) for name, part in expected.items()})


def test_shallow_models_and_missing_gradients_have_none():
    assert layer_norms(layers_of(Stack(2))) == {}
    assert layer_norms(layers_of(Stack(4))) == {}


def test_the_blocks_of_t5_are_its_layers():
    from transformers import T5Config, T5EncoderModel

    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 3, "num_heads": 2, "vocab_size": 10}
    model = nn.ModuleDict({"transformer": T5EncoderModel(T5Config(**shape))})
    blocks = model["transformer"].encoder.block
    assert [{*map(id, layer)} for layer in layers_of(model)] == [{*map(id, one.parameters())} for one in blocks]


def test_columns_by_source():
    query, lookahead = SOURCES.index("query"), SOURCES.index("lookahead")
    sources = np.array([[query, lookahead], [query, query]], np.uint8)
    batch = GroupBatch(np.array([3, 5]), np.zeros((2, 3), np.int32), 2, None, sources)
    found = {name: pairs.astype(int).tolist() for name, pairs in source_columns(batch).items()}
    assert found == {
        "query": [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]],
        "lookahead": [[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
        "in_batch": [[0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]],
    }


def test_the_norm_of_a_source_is_that_of_the_loss_without_the_other_derivatives():
    torch.manual_seed(1)
    model, inputs = nn.Linear(3, 6), torch.randn(2, 3)

    def scores_and_loss():
        scores = model(inputs)
        return scores, torch.logsumexp(scores, dim=1).sum() - scores[:, 0].sum()

    first = torch.zeros(2, 6, dtype=torch.bool)
    first[:, 1:3] = True
    scores, loss = scores_and_loss()
    found = source_norms(loss, scores, model.parameters(), {"a": first, "b": ~first})
    for name, mask in (("a", first), ("b", ~first)):
        scores, loss = scores_and_loss()
        (by_score,) = torch.autograd.grad(loss, scores, retain_graph=True)
        model.zero_grad()
        for i, j in mask.nonzero().tolist():  # one pair at a time
            (by_score[i, j] * scores[i, j]).backward(retain_graph=True)
        slow = np.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
        assert float(found[f"grad_norm_{name}"]) == pytest.approx(slow, rel=1e-5)
    loss.backward()  # the graph is still there

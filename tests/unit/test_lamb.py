"""LAMB against the formula written out, one tensor at a time."""

import numpy as np
import pytest
import torch
from torch import nn

from hardneg.training.checkpoint import load_optimizer, optimizer_tensors
from hardneg.training.optim import lamb


class Written:
    """The update of one tensor, in float64."""

    def __init__(self, w, decay):
        self.w, self.decay = w.astype(np.float64), decay
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, g, rate):
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        update = self.m / (np.sqrt(self.v) + 1e-8) + self.decay * self.w
        size, change = min(np.linalg.norm(self.w), 10.0), np.linalg.norm(update)
        self.w = self.w - rate * (size / change if size > 0 and change > 0 else 1.0) * update


def model_of(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    return model


def set_gradients(model, draw):
    gradients = [draw.standard_normal(p.shape) for p in model.parameters()]
    for p, g in zip(model.parameters(), gradients, strict=True):
        p.grad = torch.tensor(g, dtype=torch.float32)
    return gradients


@pytest.mark.parametrize("scale", [1.0, 20.0, 0.0])  # 20: norms beyond the clamp; 0: no trust ratio
def test_it_equals_the_formula(scale):
    model, draw = model_of(scale), np.random.default_rng(1)
    optimizer = lamb(model, weight_decay=0.1)
    written = [Written(p.detach().numpy(), 0.1 if p.ndim > 1 else 0.0) for p in model.parameters()]
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (step + 1)
        for one, g in zip(written, set_gradients(model, draw), strict=True):
            one.step(g, 0.02 * (step + 1))
        optimizer.step()
    for p, one in zip(model.parameters(), written, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), one.w, rtol=1e-5, atol=1e-6)


def test_a_hand_computed_step():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(3.0)
    model.weight.grad = torch.full((1, 1), 2.0)
    optimizer = lamb(model)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    # whatever the gradient's size, one tensor of one number moves by rate * |w|: the update is divided by its norm
    assert model.weight.item() == pytest.approx(3.0 - 0.1 * 3.0)


def test_a_step_that_is_not_sound_changes_nothing():
    model, draw = model_of(1.0), np.random.default_rng(2)
    optimizer = lamb(model, weight_decay=0.1)
    set_gradients(model, draw)
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = 0.1
    optimizer.step()
    weights = [p.detach().clone() for p in model.parameters()]
    state = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
    for p in model.parameters():
        p.grad.fill_(float("nan"))
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(torch.equal(state[name], value) for name, value in optimizer_tensors(optimizer).items())


def test_its_state_is_saved_and_restored():
    one, other, draw = model_of(1.0), model_of(1.0), np.random.default_rng(3)
    first, second = lamb(one, weight_decay=0.1), lamb(other, weight_decay=0.1)
    gradients = set_gradients(one, draw)
    for group in (*first.param_groups, *second.param_groups):
        group["lr"] = 0.1
    first.step()
    other.load_state_dict(one.state_dict())
    load_optimizer(second, {name: value.clone() for name, value in optimizer_tensors(first).items()})
    for model, optimizer in ((one, first), (other, second)):
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.grad = torch.tensor(g, dtype=torch.float32)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

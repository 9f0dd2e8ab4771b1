"""Dropout drawn cheaply is dropout: share, scale, gradient, repeatability, and where it applies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hardneg.models import dropout
from hardneg.models.dropout import FastDropout, drop, seed_draws, use_fast_dropout


def test_drops_its_share_and_scales_what_is_kept():
    torch.manual_seed(0)
    dropped = drop(torch.ones(500_000), 0.1)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.1, abs=2e-3)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.9], rel=1e-4)


@pytest.mark.parametrize("others", [False, True])
def test_a_seed_reaches_other_devices_where_there_are_some(monkeypatch, others):
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    of_all, seeded = torch.manual_seed, []
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeded.append(seed) or of_all(seed))
    monkeypatch.setattr(dropout, "_other_devices", lambda: others)
    seed_draws(5)
    assert torch.rand(3).tolist() == expected
    assert seeded == [5] * others


def test_every_place_is_drawn_on_its_own():
    torch.manual_seed(0)
    kept = (torch.stack([drop(torch.ones(64, 37), 0.5) for _ in range(400)]) != 0).float()
    assert kept.mean(0).min() > 0.35  # 400 draws of one half: six standard deviations
    assert kept.mean(0).max() < 0.65
    flat = kept.flatten(1) - 0.5
    neighbours = (flat[:, 1:] * flat[:, :-1]).mean(0)
    assert neighbours.abs().max() < 0.25 * 6 / 400**0.5


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_gradient_is_that_of_a_fixed_mask(shape, dtype):
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    out = drop(x, 0.3)
    torch.manual_seed(1)
    mask = drop(torch.ones(shape, dtype=dtype), 0.3)
    assert out.dtype == dtype
    torch.testing.assert_close(out, x * mask)
    weights = torch.randn(shape, dtype=dtype)
    (out * weights).sum().backward()
    torch.testing.assert_close(x.grad, weights * mask)


def test_follows_the_seed_of_torch():
    def draw(seed):
        torch.manual_seed(seed)
        return drop(torch.ones(1000), 0.5), drop(torch.ones(1000), 0.5)

    assert all(torch.equal(a, b) for a, b in zip(draw(5), draw(5), strict=True))
    assert not torch.equal(*draw(5))
    assert not torch.equal(draw(5)[0], draw(6)[0])


def test_replaces_plain_dropout_everywhere_and_only_that():
    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.4)), Own(0.5)).eval()
    names = list(model.state_dict())
    use_fast_dropout(model)
    assert [type(model[0]), type(model[1][1]), type(model[2])] == [FastDropout, FastDropout, Own]
    assert (model[0].p, model[1][1].p) == (0.2, 0.4)
    assert list(model.state_dict()) == names
    x = torch.randn(5, 4)
    assert model[0](x) is x  # still in evaluation
    model.train()
    assert (model[0](torch.ones(100, 4)) == 0).any()

"""Schedules by hand, and fused AdamW against its formula."""

import math

import pytest
import torch
from torch import nn

from hardneg.training.optim import adamw, cyclical, linear


def rates(schedule, steps):
    return [schedule(step) for step in range(steps)]


def test_linear_by_hand():
    schedule = linear(2.0, warmup=0.2, horizon=10)  # rises in 2 steps, falls in 8
    expected = [1.0, 2.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]
    assert rates(schedule, 10) == expected
    assert rates(schedule, 13)[10:] == [0.0, 0.0, 0.0]


def test_linear_equals_a_slow_loop():
    peak, rise, horizon = 3e-4, 7, 50
    found = rates(linear(peak, warmup=rise, horizon=horizon), horizon)
    for step in range(horizon):
        share = (step + 1) / rise if step < rise else (horizon - step) / (horizon - rise)
        assert math.isclose(found[step], peak * share)
    assert max(found) == peak


@pytest.mark.parametrize(
    ("warmup", "horizon", "rise"),
    [(0.1, 25, 3), (0.1, 24, 2), (0.1, 15, 2), (0.1, 14, 1), (0.1, 4, 0), (0, 10, 0), (1, 10, 1), (4, 10, 4)],
)
def test_warmup_is_a_share_rounded_half_up_or_steps(warmup, horizon, rise):
    found = rates(linear(1.0, warmup=warmup, horizon=horizon), horizon)
    rising = [(step + 1) / rise for step in range(rise)]
    assert found[:rise] == rising
    assert found[rise] == 1.0
    assert found[rise + 1] < 1.0


def test_cyclical_begins_anew_where_it_is_told_and_decays_over_the_horizon():
    cycle = linear(1.0, warmup=2, horizon=10)
    schedule = cyclical(cycle, lambda step: max(first for first in (0, 3, 10) if first <= step))
    short, whole = [0.5, 1.0, 1.0], [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8]
    assert rates(schedule, 17) == short + whole + whole
    late = cyclical(cycle, lambda step: 0)  # nothing new: the rate comes to rest
    assert rates(late, 12) == rates(cycle, 12)
    assert rates(late, 12)[8:] == [2 / 8, 1 / 8, 0.0, 0.0]


# ---------------------------------------------------------------- AdamW


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.table = nn.Embedding(5, 4)
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def small(seed=0):
    torch.manual_seed(seed)
    return Small()


def test_matrices_decay_and_vectors_do_not():
    model = small()
    decayed, plain = adamw(model, weight_decay=0.3).param_groups
    assert decayed["weight_decay"] == 0.3
    assert plain["weight_decay"] == 0.0
    assert {id(p) for p in decayed["params"]} == {id(model.linear.weight), id(model.table.weight)}
    biases = [model.linear.bias, model.norm.weight, model.norm.bias]
    assert {id(p) for p in plain["params"]} == {id(p) for p in biases}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equals_a_written_out_adamw(weight_decay):
    model = small()
    optimizer = adamw(model, weight_decay=weight_decay)
    generator = torch.Generator().manual_seed(1)
    slow = {name: p.detach().double().clone() for name, p in model.named_parameters() if p.requires_grad}
    first = {name: torch.zeros_like(p) for name, p in slow.items()}
    second = {name: torch.zeros_like(p) for name, p in slow.items()}
    for step in range(1, 7):
        rate = 0.05 / step
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.grad = torch.randn(p.shape, generator=generator)
                g = p.grad.double()
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g * g
                if name in ("linear.weight", "table.weight"):
                    slow[name] = slow[name] - rate * weight_decay * slow[name]
                momentum = first[name] / (1 - 0.9**step)
                variance = second[name] / (1 - 0.999**step)
                slow[name] = slow[name] - rate * momentum / (variance.sqrt() + 1e-8)
        optimizer.step()
        for name, expected in slow.items():
            found = model.get_parameter(name).double()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(slow["norm.bias"], torch.zeros(4).double())


def test_the_kernel_skips_an_update_that_is_gated():
    model = small()
    optimizer = adamw(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    before = model.linear.weight.clone()
    for found_inf, same in ((1.0, True), (0.0, False)):
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            p.grad = torch.full_like(p, torch.nan if found_inf else 1.0)
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        assert torch.equal(before, model.linear.weight) is same
    assert all(float(state["step"]) == 1 for state in optimizer.state.values())
    assert all(torch.isfinite(p).all() for p in model.parameters())

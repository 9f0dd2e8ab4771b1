import itertools
from typing import get_args

import pytest
import torch

from hardneg.models.pooling import Pooling, pool

STATES = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0], [7.0, -1.0]])
BOUNDS = torch.tensor([0, 1, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("cls", [[1.0, 2.0], [3.0, 4.0]]),
        ("last", [[1.0, 2.0], [7.0, -1.0]]),
        ("mean", [[1.0, 2.0], [5.0, 1.0]]),
    ],
)
def test_by_hand(pooling, expected):
    assert pool(STATES, BOUNDS, pooling).tolist() == expected


def test_a_pooling_that_is_not_known_is_not_taken_for_the_mean():
    with pytest.raises(ValueError, match="'max' is not computed"):
        pool(STATES, BOUNDS, "max")


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_equals_a_loop_with_gradient(pooling):
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(60, 8, generator=generator, dtype=torch.float32, requires_grad=True)
    weights = torch.randn(4, 8, generator=generator)
    bounds = torch.tensor([0, 3, 4, 30, 60])
    pick = {"cls": lambda s: s[0], "last": lambda s: s[-1], "mean": lambda s: s.sum(0) / len(s)}[pooling]
    slow = torch.stack([pick(states[a:b]) for a, b in itertools.pairwise(bounds)])
    fast = pool(states, bounds, pooling)
    torch.testing.assert_close(fast, slow)
    gradients = [torch.autograd.grad((out * weights).sum(), states)[0] for out in (fast, slow)]
    torch.testing.assert_close(*gradients)


def test_half_precision_is_summed_in_float32():
    states = torch.full((4096, 1), 1.0078125, dtype=torch.bfloat16)
    mean = pool(states, torch.tensor([0, 4096]), "mean")
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(1.0078125)

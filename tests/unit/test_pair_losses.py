"""Pair losses: hand-computed values, slow loops, and what is masked."""

import math

import numpy as np
import pytest
import torch

from hardneg.losses import bce, contrastive, hardest, hinge, over_pairs, pairwise_nll, ranknet

PAIRS = {
    "nll": (pairwise_nll, lambda p, n: -math.log(math.exp(p) / (math.exp(p) + math.exp(n)))),
    "ranknet": (ranknet, lambda p, n: math.log(1 + math.exp(n - p))),
    "bce": (bce, lambda p, n: -math.log(1 / (1 + math.exp(-p))) - math.log(1 / (1 + math.exp(n)))),
    "hinge": (hinge, lambda p, n: max(0.0, 1.0 - p + n)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_equals_its_formula(name):
    loss, slow = PAIRS[name]
    for p, n in [(0.0, 0.0), (2.0, -1.0), (-0.5, 1.5), (0.3, 0.2)]:
        assert loss(torch.tensor(p), torch.tensor(n)).item() == pytest.approx(slow(p, n), abs=1e-6)


def test_hand_computed():
    assert pairwise_nll(torch.tensor(1.0), torch.tensor(1.0)).item() == pytest.approx(math.log(2))
    assert hinge(torch.tensor(2.0), torch.tensor(1.5), margin=0.2).item() == 0
    assert hinge(torch.tensor(2.0), torch.tensor(1.9), margin=0.2).item() == pytest.approx(0.1)


def test_large_scores_stay_finite():
    for loss in (pairwise_nll, ranknet, bce, hinge):
        assert torch.isfinite(loss(torch.tensor([-900.0, 900.0]), torch.tensor([900.0, -900.0]))).all()


@pytest.mark.parametrize("name", PAIRS)
def test_the_mean_over_negatives_equals_a_loop(name):
    loss, slow = PAIRS[name]
    draw = np.random.default_rng(0)
    scores = draw.standard_normal((5, 8)).astype(np.float32)
    targets, masked = draw.integers(0, 8, 5), draw.random((5, 8)) < 0.4
    masked[4] = True  # no negative is left
    masked[0, targets[0]] = True
    found = over_pairs(*map(torch.tensor, (scores, targets, masked)), loss, scale=1.5)
    for i, value in enumerate(found.tolist()):
        negatives = [j for j in range(8) if j != targets[i] and not masked[i, j]]
        losses = [slow(1.5 * scores[i, targets[i]], 1.5 * scores[i, j]) for j in negatives]
        assert value == pytest.approx(sum(losses) / max(len(losses), 1), abs=1e-5)


def test_a_masked_column_gets_no_gradient_even_if_it_is_infinite():
    scores = torch.tensor([[1.0, 2.0, float("inf")]], requires_grad=True)
    masked = torch.tensor([[False, False, True]])
    over_pairs(scores, torch.tensor([0]), masked, pairwise_nll).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 2] == 0


def test_the_hardest_is_the_highest_that_is_not_masked():
    scores = torch.tensor([[9.0, 3.0, 5.0, 7.0], [1.0, 8.0, 2.0, 4.0], [6.0, 1.0, 1.0, 1.0]])
    masked = torch.tensor([[False, False, False, True], [False] * 4, [True] * 4])
    left = hardest(scores, torch.tensor([0, 1, 0]), masked)
    assert (~left).nonzero().tolist() == [[0, 2], [1, 3]]
    mined = hardest(scores, torch.tensor([0, 1, 0]), masked, own=1)  # columns 1, 2 and 1 were mined
    assert (~mined).nonzero().tolist() == [[0, 1], [0, 2], [1, 2], [1, 3]]
    # one negative makes the two losses one
    one = over_pairs(scores[:2], torch.tensor([0, 1]), left[:2], pairwise_nll)
    assert torch.allclose(one, contrastive(scores[:2], torch.tensor([0, 1]), left[:2]), atol=1e-4)

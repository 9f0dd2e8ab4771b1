"""LambdaRank against loops written from the formulas, and what each rank is worth."""

import math

import numpy as np
import pytest
import torch

from hardneg.losses import lambda_rank, rank_worth
from reference_ranking import slow_lambda


@pytest.mark.parametrize("measure", ["RR", "nDCG"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("cut", [1, 4, 50])
def test_it_equals_a_loop(measure, weighted, cut):
    draw = np.random.default_rng(4)
    scores = draw.standard_normal((7, 12)).astype(np.float32)
    positive = draw.random((7, 12)) < 0.25
    valid = draw.random((7, 12)) < 0.8
    positive[5] = False  # a query without a positive in its list
    valid[6] = False
    ranks = np.argsort(draw.random((7, 12)), axis=1) + 1
    relevant = np.maximum(positive.sum(axis=1), 1) + draw.integers(0, 3, 7)
    found = lambda_rank(
        *map(torch.tensor, (scores, positive, ranks, valid, relevant)), measure=measure, cut=cut, weighted=weighted
    )
    for i, value in enumerate(found.tolist()):
        one = (scores[i], positive[i], ranks[i], valid[i], int(relevant[i]))
        assert value == pytest.approx(slow_lambda(*one, measure, cut, weighted), rel=1e-5, abs=1e-7)


def test_by_hand():
    # the positive at rank 3, negatives at 1 and 2
    scores, ranks = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[1, 2, 3]])
    positive, valid = torch.tensor([[False, False, True]]), torch.ones(1, 3, dtype=torch.bool)
    options = {"measure": "RR", "cut": 10}
    found = lambda_rank(scores, positive, ranks, valid, torch.tensor([1]), **options).item()
    first, second = (1 - 1 / 3) * math.log(1 + math.exp(2)), (1 / 2 - 1 / 3) * math.log(1 + math.exp(1))
    assert found == pytest.approx((first + second) / 2)


def test_a_cut_of_nought_would_be_a_loss_of_nought():
    # what the published default does: every weight is 0, so the cut is required here
    ranks = torch.tensor([[1, 2, 3]])
    assert rank_worth(ranks, torch.tensor([1]), measure="RR", cut=0).tolist() == [[0, 0, 0]]


def test_ndcg_of_several_positives_has_their_ideal():
    worth = rank_worth(torch.tensor([[1, 2, 3]]), torch.tensor([2]), measure="nDCG", cut=10)
    ideal = 1 + 1 / math.log2(3)
    assert worth[0].tolist() == pytest.approx([1 / ideal, 1 / math.log2(3) / ideal, 0.5 / ideal])

"""Losses against hand-computed values and slow loops, and which passages a batch masks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hardneg.losses import (
    bce,
    contrastive,
    hardest,
    hinge,
    lambda_rank,
    over_pairs,
    pairwise_nll,
    rank_worth,
    ranknet,
)
from hardneg.recipes.meanings import meaning_of
from hardneg.records import Positives
from hardneg.training.batches import GroupBatch, KnownPositives, masked_columns
from hardneg.training.objectives import group_loss
from reference_ranking import slow_lambda

# ---------------------------------------------------------------- contrastive


def test_contrastive_by_hand():
    scores = torch.tensor([[1.0, 0.0, 2.0]])
    loss = contrastive(scores, torch.tensor([0]), torch.tensor([[False, False, True]]), scale=2.0)
    assert math.isclose(loss.item(), math.log(math.exp(2) + 1) - 2, rel_tol=1e-6)


def test_contrastive_equals_a_slow_loop():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 12)).astype(np.float32)
    masked = rng.random((5, 12)) < 0.3
    targets = np.arange(5) * 2
    found = contrastive(torch.tensor(scores), torch.tensor(targets), torch.tensor(masked), scale=3.0)
    for i in range(5):
        columns = [j for j in range(12) if j == targets[i] or not masked[i, j]]
        total = sum(math.exp(3 * scores[i, j]) for j in columns)
        assert math.isclose(found[i].item(), math.log(total) - 3 * scores[i, targets[i]], rel_tol=1e-5)


def test_a_masked_column_has_no_gradient():
    scores = torch.zeros(1, 3, requires_grad=True)
    contrastive(scores, torch.tensor([0]), torch.tensor([[True, False, True]])).sum().backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [-0.5, 0.5, 0.0]


# ---------------------------------------------------------------- pairs

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


def test_pair_losses_by_hand():
    assert pairwise_nll(torch.tensor(1.0), torch.tensor(1.0)).item() == pytest.approx(math.log(2))
    assert hinge(torch.tensor(2.0), torch.tensor(1.5), margin=0.2).item() == 0
    assert hinge(torch.tensor(2.0), torch.tensor(1.9), margin=0.2).item() == pytest.approx(0.1)


def test_the_margin_of_hinge_is_in_logits():
    loss, free = group_loss("hinge", scale=20.0, margin=1.0), torch.zeros(1, 2, dtype=torch.bool)
    losses = [loss(torch.tensor([[0.5, low]]), torch.tensor([0]), free).item() for low in (0.44, 0.45, 0.475)]
    assert losses == pytest.approx([0.0, 0.0, 0.5], abs=1e-5)
    assert meaning_of("ance", "margin").unit == "logit"


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


# ---------------------------------------------------------------- LambdaRank


@pytest.mark.parametrize("measure", ["RR", "nDCG"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("cut", [1, 4, 50])
def test_lambda_rank_equals_a_loop(measure, weighted, cut):
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


def test_lambda_rank_by_hand():
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


# ---------------------------------------------------------------- batches


def batch_of(queries, passages):
    return GroupBatch(np.array(queries, np.int32), np.array(passages, np.int32), len(queries))


def test_known_positives_are_masked_by_identity_and_by_text():
    # query 3 has positives 10 and 11; passage 12 has the text of 11; query 7 has positive 20
    positives = Positives(np.array([3, 7], np.int32), np.array([0, 2, 3]), np.array([10, 11, 20], np.int32))
    keys = np.arange(30, dtype=np.uint64)
    keys[12] = keys[11]
    batch = batch_of([7, 3], [[20, 12], [10, 20]])
    mask = masked_columns(batch, KnownPositives(positives, keys), in_batch=True)
    assert mask.tolist() == [[True, False, False, True], [False, True, True, False]]


def test_positives_that_a_batch_carries_are_masked_too():
    positives = Positives(np.array([3, 7], np.int32), np.array([0, 1, 1]), np.array([10], np.int32))
    in_force = Positives(np.array([3, 7], np.int32), np.array([0, 1, 2]), np.array([11, 20], np.int32))
    keys = np.arange(30, dtype=np.uint64)
    batch = replace(batch_of([7, 3], [[20, 12], [10, 11]]), positives=in_force)
    mask = masked_columns(batch, KnownPositives(positives, keys), in_batch=True)
    assert mask.tolist() == [[True, False, False, False], [False, False, True, True]]
    assert batch.micro()[0].positives is in_force


def test_without_in_batch_only_the_own_group_counts():
    mask = masked_columns(batch_of([0, 1], [[1, 2, 3], [4, 5, 6]]), None, in_batch=False)
    assert mask.tolist() == [[False] * 3 + [True] * 3, [True] * 3 + [False] * 3]


def test_as_published_masks_nothing():
    assert not masked_columns(batch_of([0, 1], [[1, 2], [1, 2]]), None, in_batch=True).any()


def test_micro_batches_cover_the_batch_in_order():
    batch = GroupBatch(np.arange(5, dtype=np.int32), np.arange(10, dtype=np.int32).reshape(5, 2), 5, 2)
    parts = batch.micro()
    assert [len(part.query_rows) for part in parts] == [2, 2, 1]
    assert np.concatenate([part.passage_rows for part in parts]).tolist() == batch.passage_rows.tolist()
    assert all(part.step_queries == 5 for part in parts)


def test_distinct_passages_rebuild_the_groups():
    batch = batch_of([0, 1], [[5, 2, 2], [9, 5, 1]])
    rows, place = batch.distinct()
    assert rows.tolist() == [1, 2, 5, 9]
    assert rows[place].reshape(2, 3).tolist() == batch.passage_rows.tolist()
    assert batch.targets().tolist() == [0, 3]

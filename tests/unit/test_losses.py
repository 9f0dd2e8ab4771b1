"""Losses against hand-computed values and slow loops."""

import math

import numpy as np
import torch

from hardneg.losses import contrastive
from hardneg.records import Positives
from hardneg.training.batches import GroupBatch, KnownPositives, masked_columns


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

"""Losses with a teacher, and the mask by a guide: by hand, against slow loops, and that off means off."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.errors import NumericError
from hardneg.losses import contrastive, distil_kl
from hardneg.negatives.scores import Guide, StoredScores
from hardneg.training.batches import GroupBatch
from hardneg.training.guide_mask import GuideMask
from hardneg.training.objectives import distilled, group_loss, teacher_scores
from worlds.tiny_records import pool_of, positives_of


def batch_of(seed=0, queries=5, negatives=3):
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 40, (queries, 1 + negatives)).astype(np.int32)
    return GroupBatch(np.arange(queries, dtype=np.int32) + 10, rows, queries)


def tensors(seed=0, queries=5, negatives=3):
    draw = np.random.default_rng(seed)
    columns = queries * (1 + negatives)
    scores, teacher = draw.normal(size=(queries, columns)), draw.normal(size=(queries, 1 + negatives)) * 3
    masked = draw.random((queries, columns)) < 0.2
    targets = np.arange(queries) * (1 + negatives)
    return tuple(map(torch.tensor, (scores, targets, masked, teacher)))


def slow_term(by, scores, teacher, masked, scale, temperature):
    """Of one query's own group: the positive stands first, the others may be masked."""
    kept = [j for j in range(len(scores)) if j == 0 or not masked[j]]
    s, t = [scores[j] * scale for j in kept], [teacher[j] / temperature for j in kept]
    if by == "margin_mse":
        apart = [((s[0] - s[j]) - (t[0] - t[j])) ** 2 for j in range(1, len(kept))]
        return sum(apart) / max(len(apart), 1)
    p, q = ([math.exp(x) / sum(map(math.exp, values)) for x in values] for values in (s, t))
    return sum(b * (math.log(b) - math.log(a)) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("by", ["kl", "margin_mse"])
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_term_is_over_the_own_group_alone(by, weight):
    scores, targets, masked, teacher = tensors()
    plain = group_loss("contrastive", scale=2.0)
    taught = group_loss(
        "contrastive", scale=2.0, distill=by, distill_weight=weight, distill_scale=4.0, teacher_temperature=3.0
    )
    found = taught(scores, targets, masked, teacher)
    hard = plain(scores, targets, masked)
    for i in range(len(scores)):
        own = slice(int(targets[i]), int(targets[i]) + teacher.shape[1])
        term = slow_term(by, *(one.tolist() for one in (scores[i, own], teacher[i], masked[i, own])), 4.0, 3.0)
        expected = term if weight == 1.0 else (1 - weight) * hard[i].item() + weight * term
        assert found[i].item() == pytest.approx(expected, rel=1e-5)


def test_without_other_columns_it_is_cross_entropy_and_divergence():
    scores, _, _, teacher = tensors(queries=1, negatives=6)
    targets, masked = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 7, dtype=torch.bool)
    taught = distilled(lambda *given: contrastive(*given, scale=2.0), "kl", weight=0.4, scale=2.0, temperature=2.0)
    hard = contrastive(scores, targets, masked, scale=2.0)
    soft = distil_kl(scores, teacher, masked, scale=2.0, teacher_scale=0.5)
    expected = 0.6 * hard + 0.4 * soft
    torch.testing.assert_close(taught(scores, targets, masked, teacher), expected)


def test_by_hand():
    # two queries with a negative each; the teacher has 0.75 and 0.25 for the first, margins 2 and 1 for both
    scores = torch.tensor([[1.0, 1.0, 9.0, 9.0], [9.0, 9.0, 3.0, 1.0]])
    targets, free = torch.tensor([0, 2]), torch.zeros(2, 4, dtype=torch.bool)
    taught = group_loss("contrastive", scale=1.0, distill="kl", distill_weight=1.0)
    teacher = torch.tensor([[math.log(3.0), 0.0], [2.0, 0.0]])
    first, second = taught(scores, targets, free, teacher).tolist()
    assert first == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert second == pytest.approx(0, abs=1e-6)
    taught = group_loss("contrastive", scale=1.0, distill="margin_mse", distill_weight=1.0)
    assert taught(scores, targets, free, torch.tensor([[2.0, 0.0], [1.0, 0.0]])).tolist() == [4.0, 1.0]


def test_the_gradient_of_the_divergence_is_the_difference_of_shares():
    scores, targets, masked, teacher = tensors()
    scores.requires_grad_()
    taught = group_loss("contrastive", scale=2.0, distill="kl", distill_weight=1.0)
    taught(scores, targets, torch.zeros_like(masked), teacher).sum().backward()
    for i, start in enumerate(targets.tolist()):
        own = slice(start, start + teacher.shape[1])
        p, q = torch.softmax(scores.detach()[i, own] * 2, 0), torch.softmax(teacher[i], 0)
        torch.testing.assert_close(scores.grad[i, own], (p - q) * 2, atol=1e-5, rtol=1e-4)
        scores.grad[i, own] = 0
    assert not scores.grad.any()  # no other query's passages


def test_a_group_loss_without_a_teacher_is_what_it_was():
    scores, targets, masked, _ = tensors()
    expected = contrastive(scores, targets, masked, scale=2.0)
    assert torch.equal(group_loss("contrastive", scale=2.0)(scores, targets, masked), expected)
    assert hn.group_loss is group_loss


# ---------------------------------------------------------------- where the teacher's scores come from


def hashed(query_rows, passage_rows):
    return np.sin(query_rows * 37.0 + passage_rows * 11.0).astype(np.float32)


def test_stored_scores_are_those_of_the_pairs():
    draw = np.random.default_rng(2)
    lists = [draw.integers(0, 60, 8).tolist() for _ in range(20)]
    positives = [draw.choice(np.arange(60, 90), 2, replace=False).tolist() for _ in range(20)]
    pool = Guide(hashed, "d").scored(pool_of(lists, positives, query_rows=draw.permutation(99)[:20]))
    stored = StoredScores(pool)
    at = draw.integers(0, 20, 7)
    rows = np.array([[positives[i][1], *lists[i][3:6]] for i in at], np.int32)
    batch = GroupBatch(pool.query_rows[at], rows, 7)
    expected = hashed(np.repeat(pool.query_rows[at], 4), rows.ravel()).reshape(7, 4)
    assert np.array_equal(teacher_scores(batch, stored), expected)
    with pytest.raises(KeyError):
        stored(pool.query_rows[:1], np.array([95], np.int32))
    with pytest.raises(KeyError):
        stored(np.array([500], np.int32), np.array([1], np.int32))
    with pytest.raises(NumericError, match="a positive without a score"):
        StoredScores(pool.align(positives_of([[*one, 99] for one in positives], pool.query_rows)))


# ---------------------------------------------------------------- the guide's mask


class Looked:
    """A guide over 40 passages, some of which are documents of two vectors."""

    def __init__(self, documents=False, seed=5):
        draw = np.random.default_rng(seed)
        lengths = 1 + (np.arange(40) % 3 == 0) if documents else np.ones(40, int)
        self.chunks = np.concatenate([[0], np.cumsum(lengths)]) if documents else None
        self.vectors = {"q": draw.normal(size=(20, 6)), "p": draw.normal(size=(lengths.sum(), 6))}
        self.training_queries = SimpleNamespace(rows=lambda rows: self.vectors["q"][rows].astype(np.float16))
        self.passages = SimpleNamespace(rows=lambda rows: self.vectors["p"][rows].astype(np.float16))

    def score(self, query, passage):
        rows = [passage] if self.chunks is None else range(self.chunks[passage], self.chunks[passage + 1])
        query = self.vectors["q"].astype(np.float16).astype(np.float32)[query]
        return max(float(query @ self.vectors["p"].astype(np.float16).astype(np.float32)[row]) for row in rows)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("margin", [0.0, 0.5, -0.5])
def test_the_mask_equals_a_loop_over_pairs(documents, margin):
    guide, batch = Looked(documents), batch_of()
    found = GuideMask(guide, margin)(batch)
    width, flat = batch.passage_rows.shape[1], batch.passage_rows.ravel()
    for i, query in enumerate(batch.query_rows):
        own = guide.score(query, batch.passage_rows[i, 0])
        for j, row in enumerate(flat):
            expected = j != i * width and guide.score(query, row) > own - margin
            assert found[i, j] == expected, (i, j)
    assert 0 < found.sum() < found.size


def test_the_mask_by_hand():
    vectors = np.array([[0.5, 0], [0.6, 0], [0.45, 0], [0.2, 0]], np.float32)
    guide = SimpleNamespace(
        chunks=None,
        training_queries=SimpleNamespace(rows=lambda rows: np.array([[1.0, 0]] * len(rows))),
        passages=SimpleNamespace(rows=lambda rows: vectors[rows]),
    )
    batch = GroupBatch(np.array([0], np.int32), np.array([[0, 1, 2, 3]], np.int32), 1)
    for margin, expected in ((0.0, [1]), (0.1, [1, 2]), (-0.2, [])):
        assert np.flatnonzero(GuideMask(guide, margin)(batch)[0]).tolist() == expected

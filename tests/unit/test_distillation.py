"""Losses of distillation: hand-computed values, slow loops, gradients, and what is masked."""

import math

import numpy as np
import pytest
import torch

from hardneg.losses import distil_kl, margin_mse


def tensors(seed=0, rows=5, columns=8):
    """Scores, the teacher's, targets and a mask; of the last query only the target is left."""
    draw = np.random.default_rng(seed)
    scores, teacher = draw.normal(size=(2, rows, columns)) * 2
    targets, masked = draw.integers(0, columns, rows), draw.random((rows, columns)) < 0.3
    masked[-1] = True
    masked[np.arange(rows), targets] = False
    return tuple(map(torch.tensor, (scores, teacher, targets, masked)))


def slow_softmax(values):
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def slow_kl(scores, teacher, masked, scale, teacher_scale):
    kept = [j for j in range(len(scores)) if not masked[j]]
    p = slow_softmax([scores[j] * scale for j in kept])
    q = slow_softmax([teacher[j] * teacher_scale for j in kept])
    return sum(b * (math.log(b) - math.log(a)) for a, b in zip(p, q, strict=True))


def slow_margin_mse(scores, teacher, target, masked, scale):
    kept = [j for j in range(len(scores)) if not masked[j] and j != target]
    margins = [((scores[target] - scores[j]) * scale, teacher[target] - teacher[j]) for j in kept]
    return sum((a - b) ** 2 for a, b in margins) / max(len(kept), 1)


def test_divergence_by_hand():
    free = torch.zeros(1, 2, dtype=torch.bool)
    found = distil_kl(torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]]), free)
    assert found.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    found = distil_kl(torch.zeros(1, 2), torch.tensor([[math.log(9.0), 0.0]]), free, teacher_scale=0.5)
    assert found.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))  # temperature 2
    assert distil_kl(torch.tensor([[1.0, 4.0]]), torch.tensor([[3.0, 9.0]]), free, scale=2.0).item() == (
        pytest.approx(0, abs=1e-6)
    )


def test_margins_by_hand():
    scores, teacher = torch.tensor([[3.0, 1.0, 2.5]]), torch.tensor([[9.0, 4.0, 8.0]])
    free = torch.zeros(1, 3, dtype=torch.bool)
    found = margin_mse(scores, teacher, torch.tensor([0]), free)
    assert found.item() == pytest.approx(((2 - 5) ** 2 + (0.5 - 1) ** 2) / 2)
    masked = torch.tensor([[False, False, True]])
    assert margin_mse(scores, teacher, torch.tensor([0]), masked, scale=2.0).item() == pytest.approx((4 - 5) ** 2)


@pytest.mark.parametrize(("scale", "teacher_scale"), [(1.0, 1.0), (20.0, 0.5)])
def test_they_equal_slow_loops(scale, teacher_scale):
    scores, teacher, targets, masked = tensors()
    free = distil_kl(scores, teacher, masked, scale=scale, teacher_scale=teacher_scale)
    margins = margin_mse(scores, teacher, targets, masked, scale=scale)
    for i in range(len(scores)):
        one = scores[i].tolist(), teacher[i].tolist()
        assert free[i].item() == pytest.approx(slow_kl(*one, masked[i], scale, teacher_scale), rel=1e-5, abs=1e-5)
        expected = slow_margin_mse(*one, int(targets[i]), masked[i], scale)
        assert margins[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert (free[-1].item(), margins[-1].item()) == (0.0, 0.0)


def test_the_divergences_gradient_is_p_minus_q():
    scores, teacher, _, masked = tensors()
    scores.requires_grad_()
    teacher.requires_grad_()
    distil_kl(scores, teacher, masked, scale=3.0, teacher_scale=0.5).sum().backward()
    p = torch.softmax((scores * 3).masked_fill(masked, float("-inf")), dim=1)
    q = torch.softmax((teacher * 0.5).masked_fill(masked, float("-inf")), dim=1)
    assert torch.allclose(scores.grad, 3 * (p - q).detach(), atol=1e-6)
    assert teacher.grad is None


@pytest.mark.parametrize("name", ["kl", "margins"])
def test_gradients_equal_finite_differences(name):
    scores, teacher, targets, masked = tensors()

    def loss(student):
        if name == "kl":
            return distil_kl(student, teacher, masked, scale=2.0).sum()
        return margin_mse(student, teacher, targets, masked).sum()

    student = scores.clone().requires_grad_()
    loss(student).backward()
    for place in np.ndindex(*scores.shape):
        step = torch.zeros_like(scores)
        step[place] = 1e-2
        slope = (loss(scores + step) - loss(scores - step)) / 2e-2
        assert student.grad[place].item() == pytest.approx(slope.item(), abs=5e-3)


def test_what_is_masked_counts_nothing_even_if_it_is_infinite():
    scores = torch.tensor([[1.0, 2.0, float("inf")]], requires_grad=True)
    teacher = torch.tensor([[3.0, 1.0, float("nan")]])
    masked, targets = torch.tensor([[False, False, True]]), torch.tensor([0])
    losses = distil_kl(scores, teacher, masked), margin_mse(scores, teacher, targets, masked)
    assert torch.isfinite(torch.stack(losses)).all()
    torch.stack(losses).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0, 2] == 0


def test_large_scores_stay_finite():
    scores, teacher = torch.tensor([[-900.0, 900.0]]), torch.tensor([[900.0, -900.0]])
    found = distil_kl(scores, teacher, torch.zeros(1, 2, dtype=torch.bool))
    assert found.item() == pytest.approx(1800)

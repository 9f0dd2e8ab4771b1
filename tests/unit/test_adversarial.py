"""AR2's losses and IRGAN's: values and gradients by hand, slow loops, finite differences, what is masked."""

from functools import partial
from math import log

import numpy as np
import pytest
import torch

from hardneg.adversarial import (
    adversarial,
    distillation,
    entropy,
    irgan,
    preference,
    ranker_log_loss,
    ranker_nll,
    retriever_losses,
)
from hardneg.losses import bce, distil_kl, over_pairs
from reference_adversarial import (
    slope,
    slow_distillation,
    slow_entropy,
    slow_expected,
    slow_irgan,
    slow_log_loss,
    slow_nll,
    slow_p_theta,
    slow_reference,
)

LN2, LN3, LN4 = log(2), log(3), log(4)
reference = partial(adversarial, weighting="reference")
OF_BOTH = {"p_theta": adversarial, "reference": reference, "irgan": irgan, "distillation": distillation}
OF_RANKER = {"nll": ranker_nll, "log loss": ranker_log_loss}


def one(*values):
    return torch.tensor([values], dtype=torch.float64, requires_grad=True)


def free(scores):
    return torch.zeros(scores.shape, dtype=torch.bool)


def check(loss, scores, value, gradient):
    """Of one list, the loss and its gradient."""
    found = loss(scores)
    found.sum().backward()
    assert found.shape == (1,)
    assert found.item() == pytest.approx(value)
    assert scores.grad[0].tolist() == pytest.approx(gradient)


def tensors(seed=0, rows=6, columns=7):
    """The retriever's scores, the ranker's, and a mask that leaves the second list only its positive."""
    draw = np.random.default_rng(seed)
    scores, ranker = draw.normal(size=(2, rows, columns)) * 2
    masked = draw.random((rows, columns)) < 0.3
    masked[0], masked[1, 1:] = False, True
    return tuple(map(torch.tensor, (scores, ranker, masked)))


def lists(scores, ranker, masked):
    """The lists as plain numbers, without what is masked; column 0 always stays."""
    for i in range(len(scores)):
        kept = [0, *(j for j in range(1, scores.shape[1]) if not masked[i, j])]
        yield scores[i, kept].tolist(), ranker[i, kept].tolist(), kept


# ---------------------------------------------------------------- by hand


def test_the_rankers_cross_entropy_by_hand():
    scores = one(LN2, 0.0, 0.0)  # p = 1/2, 1/4, 1/4
    check(lambda x: ranker_nll(x, free(x)), scores, LN2, [-1 / 2, 1 / 4, 1 / 4])


def test_the_rankers_log_loss_by_hand():
    scores = one(LN3, 0.0, -LN3)  # sigmoids 3/4, 1/2, 1/4
    value = -log(3 / 4) - (log(1 / 2) + log(3 / 4)) / 2
    check(lambda x: ranker_log_loss(x, free(x)), scores, value, [-1 / 4, 1 / 4, 1 / 8])


def test_how_surely_the_ranker_prefers_the_positive_by_hand():
    assert preference(one(0.0, 0.0, -LN3, LN3))[0].tolist() == pytest.approx(
        [log(1 / 2), log(1 / 2), log(3 / 4), log(1 / 4)]
    )
    assert preference(one(0.0, -LN3), scale=2.0)[0, 1].item() == pytest.approx(log(9 / 10))


def test_weighting_by_p_theta_by_hand():
    scores, ranker = one(LN4, LN3, 0.0), one(0.0, 0.0, -LN3)  # p⁻ = 3/4, 1/4; r = log 1/2, log 3/4
    value = 3 / 4 * log(1 / 2) * log(3 / 4) + 1 / 4 * log(3 / 4) * log(1 / 4)
    mean = 3 / 4 * log(1 / 2) + 1 / 4 * log(3 / 4)
    gradient = [0.0, 3 / 4 * (log(1 / 2) - mean), 1 / 4 * (log(3 / 4) - mean)]
    assert gradient[1] == pytest.approx(3 / 16 * log(2 / 3))
    check(lambda x: adversarial(x, ranker, free(x)), scores, value, gradient)


def test_the_published_codes_weighting_by_hand():
    scores, ranker = one(LN4, LN3, 0.0), one(0.0, 0.0, -LN3)  # p = 4/8, 3/8, 1/8; r_0 = log 1/2 too
    value = log(1 / 2) * log(4 / 8) + log(1 / 2) * log(3 / 8) + log(3 / 4) * log(1 / 8)
    total = log(1 / 2) + log(1 / 2) + log(3 / 4)
    gradient = [log(1 / 2) - 4 / 8 * total, log(1 / 2) - 3 / 8 * total, log(3 / 4) - 1 / 8 * total]
    check(lambda x: reference(x, ranker, free(x)), scores, value, gradient)


def test_irgans_game_by_hand():
    scores, ranker = one(LN4, LN3, 0.0), one(5.0, 0.0, -LN3)  # p⁻ = 3/4, 1/4; a = log 1/2, log 3/4
    value = 3 / 4 * log(1 / 2) + 1 / 4 * log(3 / 4)
    gradient = [0.0, 3 / 4 * (log(1 / 2) - value), 1 / 4 * (log(3 / 4) - value)]
    check(lambda x: irgan(x, ranker, free(x)), scores, value, gradient)


def test_distillation_by_hand():
    scores, ranker = one(0.0, 0.0), one(2 * LN3, 0.0)  # at temperature 2, q = 3/4, 1/4
    check(lambda x: distillation(x, ranker, free(x), temperature=2.0), scores, LN2, [-1 / 4, 1 / 4])
    assert ranker.grad is None


def test_entropy_by_hand():
    assert entropy(one(LN2, 0.0, 0.0), free(one(0, 0, 0))).item() == pytest.approx(1.5 * LN2)
    assert entropy(torch.zeros(1, 16), torch.zeros(1, 16, dtype=torch.bool)).item() == pytest.approx(log(16))


@pytest.mark.parametrize(
    ("options", "adversarial_part"),
    [
        ({}, lambda s, r: slow_p_theta(s, r)),
        ({"weighting": "reference"}, lambda s, r: 8 * slow_reference(s, r)),
        ({"game": "irgan"}, lambda s, r: slow_irgan(s, r)),
    ],
)
def test_the_mixture_by_hand(options, adversarial_part):
    scores, ranker = one(LN4, LN3, 0.0), one(0.0, 0.0, -LN3)
    against, towards = (
        adversarial_part([LN4, LN3, 0], [0, 0, -LN3]),
        slow_distillation([LN4, LN3, 0], [0, 0, -LN3], 2),
    )
    for balance in (0.0, 0.25, 1.0):
        found = retriever_losses(
            scores, ranker, free(scores), step_queries=8, balance=balance, temperature=2.0, **options
        )
        assert found.adversarial.item() == pytest.approx(against)
        assert found.distillation.item() == pytest.approx(towards)
        assert found.total.item() == pytest.approx(balance * against + (1 - balance) * towards)


def test_the_published_codes_weighting_is_a_sum_over_the_batch_in_micro_batches_too():
    scores, ranker, masked = tensors(rows=8)
    whole = reference(scores, ranker, masked).sum()
    parts = [
        retriever_losses(*part, step_queries=8, weighting="reference", balance=1.0).total.sum() / 8
        for part in zip(scores.split(3), ranker.split(3), masked.split(3), strict=True)
    ]
    assert torch.allclose(sum(parts), whole)


# ---------------------------------------------------------------- slow loops


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("ranker_scale", [1.0, 0.5])
def test_they_equal_slow_loops(scale, ranker_scale):
    scores, ranker, masked = tensors()
    factors = {"scale": scale, "ranker_scale": ranker_scale}
    found = {name: loss(scores, ranker, masked, **factors) for name, loss in OF_BOTH.items()}
    warm = distillation(scores, ranker, masked, temperature=4.0, **factors)
    own = {name: loss(ranker, masked, scale=ranker_scale) for name, loss in OF_RANKER.items()}
    sharp = entropy(scores, masked, scale=scale)
    for i, (s, r, _) in enumerate(lists(scores * scale, ranker * ranker_scale, masked)):
        assert found["p_theta"][i].item() == pytest.approx(slow_p_theta(s, r))
        assert found["reference"][i].item() == pytest.approx(slow_reference(s, r))
        assert found["irgan"][i].item() == pytest.approx(slow_irgan(s, r))
        assert found["distillation"][i].item() == pytest.approx(slow_distillation(s, r, 1))
        assert warm[i].item() == pytest.approx(slow_distillation(s, r, 4))
        assert own["nll"][i].item() == pytest.approx(slow_nll(r), abs=1e-12)
        assert own["log loss"][i].item() == pytest.approx(slow_log_loss(r))
        assert sharp[i].item() == pytest.approx(slow_entropy(s), abs=1e-12)


@pytest.mark.parametrize(
    ("loss", "slow"),
    [
        (adversarial, slow_expected),
        (reference, slow_reference),
        (irgan, slow_irgan),
        (distillation, lambda s, r: slow_distillation(s, r, 1)),
    ],
    ids=OF_BOTH,
)
def test_gradients_are_those_of_slow_loops_by_p_theta_of_the_expectation(loss, slow):
    scores, ranker, masked = tensors(3)
    scores.requires_grad_()
    loss(scores, ranker, masked).sum().backward()
    for i, (s, r, kept) in enumerate(lists(scores.detach(), ranker, masked)):
        expected = [slope(lambda x, r=r: slow(x, r), s, k) for k in range(len(s))]
        assert scores.grad[i, kept].tolist() == pytest.approx(expected, abs=1e-8)
        assert scores.grad[i].abs().sum() == pytest.approx(scores.grad[i, kept].abs().sum())


# ---------------------------------------------------------------- gradients


def test_gradients_are_those_of_the_formulas():
    scores, ranker, _ = tensors(1)
    none, scale = free(scores), 1.7
    over = torch.softmax(scores * scale, dim=1)
    among = torch.cat([torch.zeros(len(scores), 1), torch.softmax(scores[:, 1:] * scale, dim=1)], dim=1)
    r, a = preference(ranker), torch.nn.functional.logsigmoid(-ranker)
    expected = {
        "p_theta": among * (r - (among * r).sum(dim=1, keepdim=True)),
        "reference": r - over * r.sum(dim=1, keepdim=True),
        "irgan": among * (a - (among * a).sum(dim=1, keepdim=True)),
        "distillation": over - torch.softmax(ranker, dim=1),
    }
    for name, loss in OF_BOTH.items():
        own = scores.clone().requires_grad_()
        loss(own, ranker, none, scale=scale).sum().backward()
        assert torch.allclose(own.grad, expected[name] * scale), name


def test_finite_differences_agree_in_float64():
    scores, ranker, masked = tensors(2)
    scores.requires_grad_()
    for loss in (reference, irgan, distillation):
        assert torch.autograd.gradcheck(lambda s, loss=loss: loss(s, ranker, masked, scale=0.7), scores)
    for loss in (*OF_RANKER.values(), entropy):
        assert torch.autograd.gradcheck(lambda s, loss=loss: loss(s, masked, scale=0.7), scores)


def test_the_best_of_the_ranker_gains_and_the_positive_gets_nothing_by_p_theta():
    for seed in range(20):
        scores, ranker, _ = tensors(seed)
        scores.requires_grad_()
        adversarial(scores, ranker, free(scores)).sum().backward()
        best = 1 + ranker[:, 1:].argmax(dim=1, keepdim=True)
        assert (scores.grad.gather(1, best) <= 0).all()
        assert not scores.grad[:, 0].any()
        assert torch.allclose(scores.grad.sum(dim=1), torch.zeros(len(scores), dtype=torch.float64))


@pytest.mark.parametrize("loss", [adversarial, irgan])
def test_a_single_candidate_gives_no_gradient(loss):
    for seed in range(5):
        scores, ranker, _ = tensors(seed)
        scores = scores[:, :2].clone().requires_grad_()
        loss(scores, ranker[:, :2], free(scores)).sum().backward()
        assert not scores.grad.any(), "its weight among the candidates is 1 whatever its score is"


def test_the_model_that_is_learned_from_gets_no_gradient():
    scores, ranker, masked = tensors()
    for loss in OF_BOTH.values():
        ranker.requires_grad_()
        own = scores.clone().requires_grad_()
        loss(own, ranker, masked).sum().backward()
        assert ranker.grad is None


# ---------------------------------------------------------------- known functions, masks, large scores


def test_they_are_what_other_losses_are_called():
    scores, ranker, masked = tensors()
    first = torch.zeros(len(scores), dtype=torch.long)
    found, pairs = ranker_log_loss(ranker.float(), masked), over_pairs(ranker, first, masked, bce)
    assert torch.allclose(found[2:], pairs[2:])  # of list 1, without candidates, the positive's own term is left
    assert torch.allclose(found[1], torch.nn.functional.softplus(-ranker[1, 0].float()))
    assert torch.allclose(
        ranker_nll(ranker, free(ranker)), torch.nn.functional.cross_entropy(ranker, first, reduction="none")
    )
    out = masked.clone()
    out[:, 0] = False
    of_teacher = entropy(ranker, masked)
    assert torch.allclose(
        distillation(scores, ranker, masked).float(), distil_kl(scores, ranker, out) + of_teacher.float()
    )


def test_what_is_masked_counts_nothing_even_if_it_is_infinite():
    scores, ranker, masked = tensors()
    bad = masked.clone()
    bad[:, 0] = False
    for value in (float("nan"), float("inf"), float("-inf")):
        spoilt, teacher = (x.masked_fill(bad, value) for x in (scores, ranker))
        for loss in OF_BOTH.values():
            own, sound = spoilt.clone().requires_grad_(), scores.clone().requires_grad_()
            found, expected = loss(own, teacher, masked), loss(sound, ranker, masked)
            assert torch.equal(found, expected)
            found.sum().backward()
            expected.sum().backward()
            assert torch.equal(own.grad, sound.grad)
            assert not own.grad[bad].any()
        for loss in (*OF_RANKER.values(), entropy):
            own = spoilt.clone().requires_grad_()
            found = loss(own, masked)
            assert torch.equal(found, loss(scores, masked))
            found.sum().backward()
            assert torch.isfinite(own.grad).all()


def test_a_list_without_candidates_is_worth_nothing():
    scores, ranker, masked = tensors()
    for loss in (adversarial, irgan):
        assert loss(scores, ranker, masked)[1] == 0
        assert loss(scores[:, :1], ranker[:, :1], masked[:, :1]).tolist() == [0] * len(scores)


def test_large_scores_stay_finite_and_results_are_float32():
    scores = torch.tensor([[900.0, -900.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    ranker, none = torch.tensor([[-900.0, 900.0, 0.0]]), torch.zeros(1, 3, dtype=torch.bool)
    found = [loss(scores, ranker, none) for loss in OF_BOTH.values()]
    found += [loss(scores, none) for loss in (*OF_RANKER.values(), entropy)]
    assert {loss.dtype for loss in found} == {torch.float32}
    total = torch.stack(found)
    assert torch.isfinite(total).all()
    total.sum().backward()
    assert torch.isfinite(scores.grad).all()

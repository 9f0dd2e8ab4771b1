"""Losses: pure functions of score tensors, float32, mean over queries.

Shapes: ``B`` queries, ``P`` passage columns. ``scores`` are raw products; ``logits = scores * scale``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

RankMeasure = Literal["RR", "nDCG"]
PairLoss = Callable[[Tensor, Tensor], Tensor]


def contrastive(scores: Tensor, targets: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """Softmax cross-entropy of each query's positive against the columns that are not masked.

    Parameters
    ----------
    scores : [B, P] raw scores.
    targets : [B] int64, the column of each query's positive.
    masked : [B, P] bool, the columns to leave out; the target's own column always stays.
    scale : factor from scores to logits (1 / temperature).

    Returns
    -------
    [B] losses in nats. This is ANCE-Tele's Eq. 3 with the cross entropy as l and scores as in its Eq. 1. Every
    other column is a negative; those of other queries, which its code adds, are masked for the equation itself.
    """
    logits = scores.float() * scale
    own = torch.zeros_like(masked).scatter_(1, targets[:, None], True)
    logits = logits.masked_fill(masked & ~own, float("-inf"))
    return torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)


# ---------------------------------------------------------------- losses of a positive's and a negative's logit


def pairwise_nll(positive: Tensor, negative: Tensor) -> Tensor:
    """``-log softmax([positive, negative])[0]`` of every pair, in nats (ANCE, Eq. 3, its log-softmax form).

    Its values equal those of :func:`ranknet`: two papers give one function two names.
    """
    return softplus(negative - positive)


def ranknet(positive: Tensor, negative: Tensor) -> Tensor:
    """``log(1 + exp(negative - positive))`` of every pair (STAR, Eqs. 14-15, with their sign put right)."""
    return softplus(negative - positive)


def bce(positive: Tensor, negative: Tensor) -> Tensor:
    """``-log sigmoid(positive) - log sigmoid(-negative)`` of every pair (ANCE, Section 2)."""
    return softplus(-positive) + softplus(negative)


def hinge(positive: Tensor, negative: Tensor, *, margin: float = 1.0) -> Tensor:
    """``max(0, margin - positive + negative)`` of every pair of logits (ANCE, Section 2)."""
    return torch.clamp(margin - positive + negative, min=0)


def over_pairs(scores: Tensor, targets: Tensor, masked: Tensor, loss: PairLoss, *, scale: float = 1.0) -> Tensor:
    """The mean of a pair loss over each query's negatives; 0 for a query that has none.

    Parameters
    ----------
    scores, targets, masked, scale : as in :func:`contrastive`; a masked column is no negative.

    Returns
    -------
    [B] losses.
    """
    logits = scores.float() * scale
    positive = logits.gather(1, targets[:, None])
    kept = ~masked.scatter(1, targets[:, None], True)
    losses = loss(positive, logits).masked_fill(~kept, 0.0)
    return losses.sum(dim=1) / kept.sum(dim=1).clamp(min=1)


def hardest(scores: Tensor, targets: Tensor, masked: Tensor, *, own: int = 0) -> Tensor:
    """[B, P] the mask that leaves only each query's highest-scored negative (NCE negatives; ANCE, Section 2).

    Parameters
    ----------
    own : number of columns right after each query's positive that hold negatives mined for it. The mask leaves
        these too, and looks for the highest-scored negative among all other columns.
    """
    left = masked.scatter(1, targets[:, None], True)
    column = torch.arange(masked.shape[1], device=masked.device)[None, :]
    mined = (column > targets[:, None]) & (column <= targets[:, None] + own)
    best = scores.detach().masked_fill(left | mined, float("-inf")).argmax(dim=1, keepdim=True)
    return torch.where(mined, left, torch.ones_like(masked).scatter(1, best, (left | mined).gather(1, best)))


def star(
    scores: Tensor, targets: Tensor, masked: Tensor, own: Tensor, *, alpha: float | None = None, scale: float = 1.0
) -> Tensor:
    """STAR's loss: RankNet over static hard negatives and the reused batch (Zhan et al., 2021, Section 6.1).

    Parameters
    ----------
    scores, targets, masked, scale : as in :func:`contrastive`; a masked column is no negative.
    own : [B, P] bool, the columns of each query's own hard negatives.
    alpha : None: the mean over all pairs, as in the published code, where pairs with own negatives are few. A
        number: ``alpha`` times the mean over the other pairs, plus the mean over pairs with own negatives
        (Eq. 13).

    Returns
    -------
    [B] values whose mean is the loss.
    """
    logits = scores.float() * scale
    kept = ~masked.scatter(1, targets[:, None], True)
    pairs = ranknet(logits.gather(1, targets[:, None]), logits).masked_fill(~kept, 0.0)
    if alpha is None:
        return len(pairs) * pairs.sum(dim=1) / kept.sum().clamp(min=1)
    hard, others = kept & own, kept & ~own
    means = [(pairs * one).sum(dim=1) / one.sum().clamp(min=1) for one in (others, hard)]
    return len(pairs) * (alpha * means[0] + means[1])


def lambda_rank(
    scores: Tensor,
    positive: Tensor,
    ranks: Tensor,
    valid: Tensor,
    relevant: Tensor,
    *,
    measure: RankMeasure,
    cut: int,
    weighted: bool = True,
) -> Tensor:
    """RankNet of each (positive, negative) pair, weighted by how much swapping the two changes the measure.

    LambdaRank (Burges, 2010), as ADORE uses it (Zhan et al., 2021, Eq. 15, with the sign put right).

    Parameters
    ----------
    scores : [B, n] the scores of each query's list.
    positive, valid : [B, n] bool: which entries are relevant; which are entries and not padding.
    ranks : [B, n] rank of each entry, from 1.
    relevant : [B] number of relevant passages of each query, in the list or not; nDCG's ideal needs it.
    measure : ``RR``: a pair's weight is the difference of reciprocal ranks; ``nDCG``: the difference of discounts
        divided by the ideal.
    cut : k of the measure; ranks beyond it are worth nothing.
    weighted : False gives every pair the same weight (the ablation, RankNet).

    Returns
    -------
    [B] means over a query's pairs; 0 where there is none.
    """
    pairs = (positive & valid)[:, :, None] & (~positive & valid)[:, None, :]
    losses = ranknet(scores.float()[:, :, None], scores.float()[:, None, :])
    if weighted:
        worth = rank_worth(ranks, relevant, measure=measure, cut=cut)
        losses = losses * (worth[:, :, None] - worth[:, None, :]).abs()
    return losses.masked_fill(~pairs, 0.0).sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp(min=1)


def rank_worth(ranks: Tensor, relevant: Tensor, *, measure: RankMeasure, cut: int) -> Tensor:
    """How much a relevant passage at each rank [B, n] adds to RR@cut (if alone) or nDCG@cut (gains 0 and 1)."""
    ranks = ranks.float()
    if measure == "RR":
        return torch.where(ranks <= cut, 1.0 / ranks, 0.0)
    discounts = torch.where(ranks <= cut, 1.0 / torch.log2(1.0 + ranks), 0.0)
    places = 1.0 / torch.log2(1.0 + torch.arange(1, cut + 1, device=ranks.device))
    ideal = torch.cumsum(places, 0)[relevant.clamp(1, cut) - 1]
    return discounts / ideal[:, None]


# ---------------------------------------------------------------- distillation: towards a teacher's scores


def distil_kl(
    scores: Tensor, teacher: Tensor, masked: Tensor, *, scale: float = 1.0, teacher_scale: float = 1.0
) -> Tensor:
    """Kullback-Leibler divergence of each query's scores from the teacher's, over its list.

    ``KL(q || p) = sum_i q_i (log q_i - log p_i)`` with ``q = softmax(teacher * teacher_scale)`` and
    ``p = softmax(scores * scale)`` over the columns that are not masked (listwise distillation: Hinton et al.,
    2015, Eq. 1; AR2's L_distill, Zhang et al., 2022, is this plus the entropy of q, which has no gradient). The
    gradient with respect to a logit is ``p_i - q_i``.

    Parameters
    ----------
    scores, teacher : [B, P] raw scores of student and teacher; the teacher gets no gradient.
    masked : [B, P] bool, the columns to leave out; at least one column of each query must stay.
    scale, teacher_scale : factors from scores to logits (1 / temperature).

    Returns
    -------
    [B] losses in nats.
    """
    log_p = torch.log_softmax((scores.float() * scale).masked_fill(masked, float("-inf")), dim=1)
    targets = (teacher.detach().float() * teacher_scale).masked_fill(masked, float("-inf"))
    log_q = torch.log_softmax(targets, dim=1).masked_fill(masked, 0.0)
    q = log_q.exp().masked_fill(masked, 0.0)
    return (q * (log_q - log_p.masked_fill(masked, 0.0))).sum(dim=1)


def margin_mse(scores: Tensor, teacher: Tensor, targets: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """Squared difference of the student's and the teacher's margins, mean over each query's negatives.

    ``((s_pos - s_neg) * scale - (t_pos - t_neg))^2`` (MarginMSE; Hofstätter et al., 2020). A query without
    negatives gives 0.

    Parameters
    ----------
    scores, teacher : [B, P] raw scores of student and teacher; the teacher gets no gradient.
    targets : [B] int64, the column of each query's positive.
    masked : [B, P] bool; a masked column is no negative.
    scale : factor of the student's margins.

    Returns
    -------
    [B] losses.
    """
    kept = ~masked.scatter(1, targets[:, None], True)
    apart = scores.float() * scale - teacher.detach().float()
    apart = (apart.gather(1, targets[:, None]) - apart).masked_fill(~kept, 0.0)
    return apart.square().sum(dim=1) / kept.sum(dim=1).clamp(min=1)

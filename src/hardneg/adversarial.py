"""Losses of the retriever and the ranker that train each other (AR2; Zhang et al., ICLR 2022), and IRGAN's game.

All are pure functions of the scores ``[B, 1 + n]`` of ``B`` queries: column 0 holds the positive, the other
columns hold its ``n`` candidates. ``s`` are the retriever's scores and ``R`` the ranker's. ``p`` is the softmax of
``s`` over the whole list, and ``p⁻`` the softmax over the candidates alone. A masked column is left out
everywhere; column 0 always stays. Results are ``[B]`` in nats, in float32 (in float64 for float64 scores). The
loss of one model gives the other model no gradient.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

Game = Literal["ar2", "irgan"]
Weighting = Literal["p_theta", "reference"]


class RetrieverLosses(NamedTuple):
    """What a retriever's step minimises for each query, and its two parts; a loss is the mean over queries."""

    total: Tensor  # [B]
    adversarial: Tensor  # [B]
    distillation: Tensor  # [B]


# ---------------------------------------------------------------- the ranker


def ranker_nll(scores: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """``-log softmax(R * scale)[0]``: the positive against its candidates (AR2, Eqs. 6 and 7).

    The gradient with respect to ``R_k`` is ``scale * (p_k - [k = 0])``.

    Parameters
    ----------
    scores : [B, 1 + n] the ranker's.
    masked : [B, 1 + n] bool, the columns to leave out.
    scale : tau, the factor from scores to logits.
    """
    return -_log_softmax(scores, _left_out(masked), scale)[:, 0]


def ranker_log_loss(scores: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """``-[log σ(R_0) + mean over i >= 1 of log(1 - σ(R_i))]``: each pair is relevant or not (AR2, Eq. 3; IRGAN).

    It is binary cross entropy in which the positive weighs as much as all its candidates together. Without
    candidates, only the positive's term is left. The gradient with respect to ``R_k`` is
    ``-scale * σ(-R_0 * scale)`` for ``k = 0``, else ``scale * σ(R_k * scale) / n``.

    Parameters
    ----------
    scores, masked, scale : as in :func:`ranker_nll`.
    """
    out = _all_but_candidates(masked)
    positive, others = (_wide(part) * scale for part in (scores[:, 0], scores.masked_fill(out, 0.0)))
    refused = softplus(others).masked_fill(out, 0.0)
    return softplus(-positive) + refused.sum(dim=1) / (~out).sum(dim=1).clamp(min=1)


# ---------------------------------------------------------------- the retriever


def preference(ranker: Tensor, *, scale: float = 1.0) -> Tensor:
    """``r_i = log σ(R_0 - R_i)`` [B, 1 + n]: how surely the ranker prefers the positive (AR2, Eq. 9).

    ``r_i`` is the log-probability that the ranker, given the positive and candidate i, chooses the positive.
    Column 0 holds ``log 1/2``. No gradient flows back.
    """
    logits = _wide(ranker.detach()) * scale
    return logsigmoid(logits[:, :1] - logits)


def adversarial(
    scores: Tensor,
    ranker: Tensor,
    masked: Tensor,
    *,
    weighting: Weighting = "p_theta",
    scale: float = 1.0,
    ranker_scale: float = 1.0,
) -> Tensor:
    """The retriever learns to give its probability to candidates that the ranker takes for the positive.

    ``r`` is that of :func:`preference`, and ``sg`` marks a factor through which no gradient flows:

    - ``p_theta``: ``Σ_{i>=1} sg(p⁻_i) r_i log p⁻_i`` (AR2, Eq. 10). The gradient with respect to ``s_k`` is
      ``scale * p⁻_k (r_k - Σ_j p⁻_j r_j)``, the gradient of ``E_{p⁻}[r]`` (Eq. 9). It is 0 for the positive, and
      at most 0 for the candidate with the highest R. The value itself is not an expectation and does not show
      progress.
    - ``reference``: ``Σ_{i>=0} r_i log p_i``, as the published code has it. The gradient is
      ``scale * (r_k - p_k Σ_j r_j)``. The published code sums over the batch (see :func:`retriever_losses`) and
      adds 1e-7 inside both logarithms; here the logarithms are exact.

    Parameters
    ----------
    scores, ranker : [B, 1 + n] the retriever's scores and the ranker's; the ranker gets no gradient.
    masked : [B, 1 + n] bool, the columns to leave out. With ``p_theta``, a query without candidates gives 0.
    scale, ranker_scale : factors from scores to logits, of the retriever and of the ranker.
    """
    over = _all_but_candidates(masked) if weighting == "p_theta" else _left_out(masked)
    r = preference(ranker, scale=ranker_scale).masked_fill(over, 0.0)
    log_p = _log_softmax(scores, over, scale)
    weights = log_p.detach().exp() * r if weighting == "p_theta" else r
    return (weights * log_p).masked_fill(over, 0.0).sum(dim=1)


def irgan(
    scores: Tensor, ranker: Tensor, masked: Tensor, *, scale: float = 1.0, ranker_scale: float = 1.0
) -> Tensor:
    """``Σ_{i>=1} p⁻_i a_i`` with ``a_i = log(1 - σ(R_i))``: IRGAN's game for the retriever (AR2, Eq. 3, Table 5).

    The gradient with respect to ``s_k`` is ``scale * p⁻_k (a_k - Σ_j p⁻_j a_j)``; the positive has none. The
    ranker's part of the game is :func:`ranker_log_loss`.

    Parameters
    ----------
    scores, ranker, masked, scale, ranker_scale : as in :func:`adversarial`; without candidates the loss is 0.
    """
    over = _all_but_candidates(masked)
    refused = logsigmoid(-_wide(ranker.detach()) * ranker_scale).masked_fill(over, 0.0)
    return (_log_softmax(scores, over, scale).exp() * refused).masked_fill(over, 0.0).sum(dim=1)


def distillation(
    scores: Tensor,
    ranker: Tensor,
    masked: Tensor,
    *,
    scale: float = 1.0,
    ranker_scale: float = 1.0,
    temperature: float = 1.0,
) -> Tensor:
    """Cross entropy ``-Σ q_i log p_i`` over the whole list with ``q = softmax(R / T)`` (AR2, Eqs. 11 and 12).

    This is :func:`hardneg.losses.distil_kl` plus the entropy of ``q``. The gradient with respect to ``s_k`` is
    ``scale * (p_k - q_k)``.

    Parameters
    ----------
    scores, ranker, masked, scale, ranker_scale : as in :func:`adversarial`.
    temperature : T, which the ranker's logits are divided by.
    """
    out = _left_out(masked)
    q = _log_softmax(ranker.detach(), out, ranker_scale / temperature).exp()
    return -(q * _log_softmax(scores, out, scale).masked_fill(out, 0.0)).sum(dim=1)


def retriever_losses(
    scores: Tensor,
    ranker: Tensor,
    masked: Tensor,
    *,
    step_queries: int,
    game: Game = "ar2",
    weighting: Weighting = "p_theta",
    balance: float = 0.5,
    scale: float = 1.0,
    ranker_scale: float = 1.0,
    temperature: float = 1.0,
) -> RetrieverLosses:
    """``λ L_adv + (1 - λ) L_distill``, of each query (AR2, Section 3.2).

    The loss of a step is the sum of all its queries' values divided by ``step_queries``. With ``reference``, the
    adversarial part is a sum over the batch, as in the published code, so its values are ``step_queries`` times
    those of :func:`adversarial`. The meaning of λ then depends on the batch size, which is 8 queries in that code.

    Parameters
    ----------
    scores, ranker, masked, scale, ranker_scale, temperature : as in :func:`distillation`.
    step_queries : queries of the whole optimiser step, over all its micro-batches.
    game : ``ar2``: :func:`adversarial` with this ``weighting``; ``irgan``: :func:`irgan`.
    balance : λ. 0 is distillation alone. 1 is no distillation; the positive then gets no gradient with ``p_theta``
        or in IRGAN's game.
    """
    factors = {"scale": scale, "ranker_scale": ranker_scale}
    if game == "irgan":
        against = irgan(scores, ranker, masked, **factors)
    else:
        against = adversarial(scores, ranker, masked, weighting=weighting, **factors)
        against = against * (step_queries if weighting == "reference" else 1)
    towards = distillation(scores, ranker, masked, temperature=temperature, **factors)
    return RetrieverLosses(balance * against + (1.0 - balance) * towards, against, towards)


def entropy(scores: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """``-Σ p_i log p_i`` over the list [B]: how sharp the retriever is (AR2, Section 4.4, Table 6).

    The paper takes the positive and the first 15 hits of test queries, and reports 2.10 with distillation and 1.70
    without; 16 equal scores give log 16 = 2.77. If the positive is among the hits, mask it there, because it
    already stands in column 0.

    Parameters
    ----------
    scores, masked, scale : as in :func:`ranker_nll`, the retriever's scores.
    """
    out = _left_out(masked)
    log_p = _log_softmax(scores, out, scale)
    return -(log_p.exp() * log_p.masked_fill(out, 0.0)).sum(dim=1)


# ---------------------------------------------------------------- lists


def _wide(scores: Tensor) -> Tensor:
    """The scores in float32, or in their own type if that is wider."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _left_out(masked: Tensor) -> Tensor:
    """The mask [B, 1 + n] of the columns that are not in the list; column 0 always is."""
    return torch.cat([torch.zeros_like(masked[:, :1]), masked[:, 1:]], dim=1)


def _all_but_candidates(masked: Tensor) -> Tensor:
    """The mask [B, 1 + n] of the columns that are not candidates; column 0 never is a candidate."""
    return torch.cat([torch.ones_like(masked[:, :1]), masked[:, 1:]], dim=1)


def _log_softmax(scores: Tensor, out: Tensor, scale: float) -> Tensor:
    """Log-probabilities over the columns that are not ``out``; columns that are ``out`` get -inf.

    If all columns of a row are out, they get finite numbers without a meaning instead, because a row of -inf would
    give NaN.
    """
    logits = _wide(scores).masked_fill(out, 0.0) * scale  # a masked NaN would spoil the gradient behind it
    return torch.log_softmax(logits.masked_fill(out & ~out.all(dim=1, keepdim=True), float("-inf")), dim=1)

"""Objectives: what a step minimises, as a loss over the scores of its training groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hardneg.arguments import checked
from hardneg.data.training_data import TrainingData
from hardneg.errors import SettingsError
from hardneg.losses import (
    PairLoss,
    bce,
    contrastive,
    distil_kl,
    hardest,
    hinge,
    margin_mse,
    over_pairs,
    pairwise_nll,
)
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.packing import upload
from hardneg.models.tokenizing import token_store
from hardneg.process.hardware import Precision
from hardneg.records import Float32, Int32
from hardneg.training.batches import Bool, GroupBatch, group_scores, masked_columns, no_negatives, source_columns
from hardneg.training.gradient_norms import source_norms
from hardneg.training.loop import Objective, StepOutput

LossName = Literal["contrastive", "pairwise_nll", "hinge", "bce"]
WITH_MARGIN = frozenset[LossName]({"hinge"})  # the losses that use ``margin``
DistillName = Literal["kl", "margin_mse"]
GroupLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (scores [b, p], targets [b], masked [b, p]) -> [b]
TaughtLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # also takes a teacher's scores [b, 1 + N]


def group_objective(
    data: TrainingData,
    encoder: BiEncoder,
    cache: Path,
    loss: GroupLoss | TaughtLoss,
    *,
    in_batch: bool,
    precision: Precision = "float32",
    cache_tokens: int | None = None,
    mask_known_positives: bool = True,
    passage_length: int | None = None,
    mask: Callable[[GroupBatch], Bool] | None = None,
    teacher: Callable[[Int32, Int32], Float32] | None = None,
    see: Callable[[Int32, Int32, Tensor], None] | None = None,
) -> Objective:
    """Make the objective that is the mean of ``loss`` over a step's queries.

    Parameters
    ----------
    cache : the folder of the token stores.
    in_batch : whether other queries' passages serve as negatives.
    precision : of the transformers' matrix products.
    cache_tokens : tokens of a chunk of the gradient cache; None: no gradient cache.
    mask_known_positives : True: a known positive of a query is never its negative. False: it may be one, as in the
        published code, unless people judged it relevant; the query itself is none.
    passage_length : tokens of a passage in steps, at most; None: as many as in search.
    mask : batch -> mask [b, b * (1 + N)] of further columns that are no negatives, such as a
        :class:`~hardneg.training.guide_mask.GuideMask`.
    teacher : query rows [n], passage rows [n] -> scores [n], for a bi-encoder times its own scale. With a teacher,
        ``loss`` also takes the teacher's scores [b, 1 + N] of each query's own group.
    see : called for each micro-batch with the query rows [b], the rows of their own negatives [b, N], and their
        :func:`margins`.
    """
    queries = token_store(encoder, data.collection, cache, "query")
    passages = token_store(encoder, data.collection, cache, "passage", most=passage_length)
    known = no_negatives(data, masked=mask_known_positives)

    def objective(batch: GroupBatch) -> StepOutput:
        scores = group_scores(encoder, batch, queries, passages, precision, cache_tokens=cache_tokens)
        left = masked_columns(batch, known, in_batch=in_batch)
        masked = upload(left if mask is None else left | mask(batch), scores.device)
        taught = () if teacher is None else (upload(teacher_scores(batch, teacher), scores.device),)
        targets = upload(batch.targets(), scores.device)
        losses = loss(scores, targets, masked, *taught)
        if see is not None:
            found = margins(scores.detach(), targets, masked, encoder.settings.scale)
            see(batch.query_rows, batch.passage_rows[:, 1:], found)
        total = losses.sum() / batch.step_queries
        if batch.sources is None:
            return StepOutput(total, once=cache_tokens is None)
        columns = {name: upload(pairs, scores.device) for name, pairs in source_columns(batch).items()}
        if not in_batch:
            del columns["in_batch"]
        norms = source_norms(total, scores, encoder.parameters(), columns)
        return StepOutput(total, norms, once=cache_tokens is None)

    return objective


def margins(scores: Tensor, targets: Tensor, masked: Tensor, scale: float) -> Tensor:
    """The margins [b, N] in logits of each query's positive over its own negatives; NaN for masked negatives.

    Parameters
    ----------
    scores, masked : [b, b * (1 + N)], the columns of all groups; a query's own group begins with its positive.
    targets : [b] the columns of the positives.
    """
    columns = targets[:, None] + torch.arange(scores.shape[1] // len(targets), device=scores.device)[None, :]
    own = scores.gather(1, columns)
    return (scale * (own[:, :1] - own[:, 1:])).masked_fill(masked.gather(1, columns)[:, 1:], torch.nan)


def teacher_scores(batch: GroupBatch, teacher: Callable[[Int32, Int32], Float32]) -> Float32:
    """The teacher's score [b, 1 + N] of each query and each passage of its own group."""
    shape = batch.passage_rows.shape
    return teacher(np.repeat(batch.query_rows, shape[1]), batch.passage_rows.ravel()).reshape(shape)


@checked
def group_loss(
    name: LossName,
    *,
    scale: float,
    margin: float = 1.0,
    only_hardest: bool = False,
    own: int = 0,
    distill: DistillName | None = None,
    distill_weight: float = 0.5,
    distill_scale: float | None = None,
    teacher_temperature: float = 1.0,
) -> Callable[..., Tensor]:
    """The loss of the given name, as a function of scores and, with ``distill``, of a teacher's scores.

    Parameters
    ----------
    scale : factor from scores to logits.
    margin : the margin of ``hinge``, in logits; in scores it is ``margin / scale``.
    only_hardest : of the in-batch negatives, use only the one that scores highest for each query (NCE). The
        ``own`` mined negatives of a query are used as well.
    own : number of mined negatives of each query.
    distill, distill_weight, distill_scale, teacher_temperature : see :func:`distilled`.

    Returns
    -------
    (scores [b, p], targets [b], masked [b, p]) -> [b] losses. With ``distill``, the teacher's scores [b, 1 + N]
    are a fourth argument.

    Raises
    ------
    SettingsError : a name is unknown, or a number is out of its range.
    """
    above_zero = {"scale": scale, "margin": margin, "distill_scale": distill_scale}
    for what, value in (above_zero | {"teacher_temperature": teacher_temperature}).items():
        if value is not None and not 0 < value < math.inf:
            raise SettingsError("OUT_OF_RANGE", f"{what} is {value}", "give a number above 0")
    if not 0 < distill_weight <= 1:
        raise SettingsError("OUT_OF_RANGE", f"distill_weight is {distill_weight}", "give a number in (0, 1]")
    if own < 0:
        raise SettingsError("OUT_OF_RANGE", f"own is {own}", "give 0 or more")
    pairs: dict[str, PairLoss] = {
        "pairwise_nll": pairwise_nll,
        "hinge": partial(hinge, margin=margin),
        "bce": bce,
    }

    def loss(scores: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        if only_hardest:
            masked = hardest(scores, targets, masked, own=own)
        if name == "contrastive":
            return contrastive(scores, targets, masked, scale=scale)
        return over_pairs(scores, targets, masked, pairs[name], scale=scale)

    if distill is None:
        return loss
    temperature = teacher_temperature
    return distilled(loss, distill, weight=distill_weight, scale=distill_scale or scale, temperature=temperature)


def distilled(
    loss: GroupLoss, by: DistillName, *, weight: float, scale: float, temperature: float = 1.0
) -> TaughtLoss:
    """A loss with a term that draws the scores of each query's own group towards a teacher's.

    It is ``(1 - weight) * loss + weight * term`` (Hinton et al., 2015, Section 2). The term is over the positive
    of a query and those of its N negatives that are not masked. In-batch negatives count only in ``loss``.

    Parameters
    ----------
    by : the term: ``kl``, :func:`~hardneg.losses.distil_kl`; ``margin_mse``, :func:`~hardneg.losses.margin_mse`.
    weight : the weight of the term, in (0, 1]; at 1 the term is the whole loss.
    scale : factor from the model's scores to logits in the term.
    temperature : divides the teacher's scores, which for a bi-encoder are its products times its own scale.
    """

    def taught(scores: Tensor, targets: Tensor, masked: Tensor, teacher: Tensor) -> Tensor:
        columns = targets[:, None] + torch.arange(teacher.shape[1], device=scores.device)[None, :]
        own, left = scores.gather(1, columns), masked.gather(1, columns)
        left[:, 0] = False
        if by == "kl":
            term = distil_kl(own, teacher, left, scale=scale, teacher_scale=1.0 / temperature)
        else:
            term = margin_mse(own, teacher / temperature, torch.zeros_like(targets), left, scale=scale)
        return term if weight == 1.0 else (1.0 - weight) * loss(scores, targets, masked) + weight * term

    return taught

"""Objectives: what a step minimises, as a loss over the scores of its training groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from hardneg.data.training_data import TrainingData
from hardneg.losses import PairLoss, bce, contrastive, hardest, hinge, over_pairs, pairwise_nll
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.packing import upload
from hardneg.models.tokenizing import token_store
from hardneg.process.hardware import Precision
from hardneg.training.batches import GroupBatch, KnownPositives, group_scores, masked_columns, source_columns
from hardneg.training.gradient_norms import source_norms
from hardneg.training.loop import Objective, StepOutput

LossName = Literal["contrastive", "pairwise_nll", "hinge", "bce"]
GroupLoss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (scores [b, p], targets [b], masked [b, p]) -> [b]


def group_objective(
    data: TrainingData,
    encoder: BiEncoder,
    cache: Path,
    loss: GroupLoss,
    *,
    in_batch: bool,
    precision: Precision = "float32",
    cache_tokens: int | None = None,
    mask_known_positives: bool = True,
) -> Objective:
    """Make the objective that is the mean of ``loss`` over a step's queries.

    Parameters
    ----------
    cache : the folder of the token stores.
    in_batch : whether other queries' passages serve as negatives.
    precision : of the transformers' matrix products.
    cache_tokens : tokens of a chunk of the gradient cache; None: no gradient cache.
    mask_known_positives : True: a known positive of a query is never its negative. False: it may be one, as in the
        published code.
    """
    queries = token_store(encoder, data.collection, cache, "query")
    passages = token_store(encoder, data.collection, cache, "passage")
    known = KnownPositives(data.known, data.collection.text_keys) if mask_known_positives else None

    def objective(batch: GroupBatch) -> StepOutput:
        scores = group_scores(encoder, batch, queries, passages, precision, cache_tokens=cache_tokens)
        masked = upload(masked_columns(batch, known, in_batch=in_batch), scores.device)
        losses = loss(scores, upload(batch.targets(), scores.device), masked)
        total = losses.sum() / batch.step_queries
        if batch.sources is None:
            return StepOutput(total)
        columns = {name: upload(pairs, scores.device) for name, pairs in source_columns(batch).items()}
        if not in_batch:
            del columns["in_batch"]
        return StepOutput(total, source_norms(total, scores, encoder.parameters(), columns))

    return objective


def group_loss(
    name: LossName, *, scale: float, margin: float = 1.0, only_hardest: bool = False, own: int = 0
) -> GroupLoss:
    """The loss of the given name, as a function of scores.

    Parameters
    ----------
    scale : factor from scores to logits.
    margin : the margin of ``hinge``.
    only_hardest : use only each query's highest-scored negative of the batch (NCE), beside its ``own`` mined ones.
    own : number of mined negatives of each query.
    """
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

    return loss

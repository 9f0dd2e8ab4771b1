"""Objectives of a ranker and of the retriever that it plays against, and a ranker's scores to learn from.

A stage sets the mode (training or not) only of the model that it trains at the moment. So :func:`frozen_scores`
turns off the dropout of the ranker itself, and afterwards restores the ranker's mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hardneg.adversarial import RetrieverLosses, entropy, ranker_log_loss, ranker_nll
from hardneg.data.token_pairs import PairStore
from hardneg.data.training_data import TrainingData
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.packing import plan_batches, upload
from hardneg.models.tokenizing import pair_store, token_store
from hardneg.negatives.pool import SOURCES
from hardneg.process.hardware import Precision
from hardneg.records import Int64, Side, TokenBatch
from hardneg.training.batches import Bool, GroupBatch, KnownPositives, best_chunks, group_scores, no_negatives
from hardneg.training.counted_tokens import counted
from hardneg.training.gradient_cache import cached
from hardneg.training.gradient_norms import source_norms
from hardneg.training.loop import Objective, StepOutput
from hardneg.training.sharing import shared

RankerLossName = Literal["cross_entropy", "bce"]
RankerLoss = Callable[[Tensor, Tensor], Tensor]  # (scores [b, 1 + n], masked [b, 1 + n]) -> [b]
AgainstRanker = Callable[..., RetrieverLosses]  # (scores, ranker, masked, all [b, 1 + n], step_queries=)
Scorer = Callable[[TokenBatch, Side], Tensor]  # pairs -> [pairs, 1]

LOSSES = {"cross_entropy": ranker_nll, "bce": ranker_log_loss}


def ranker_loss(name: RankerLossName, *, scale: float = 1.0) -> RankerLoss:
    """The ranker's loss of the given name, as a function of scores; ``bce`` is the binary log loss of IRGAN."""
    return partial(LOSSES[name], scale=scale)


def ranker_objective(
    data: TrainingData,
    ranker: CrossEncoder,
    cache: Path,
    loss: RankerLoss,
    *,
    precision: Precision = "float32",
    cache_tokens: int | None = None,
    mask_known_positives: bool = True,
) -> Objective:
    """Make the objective that is the mean of ``loss`` over a step's queries; each query has only its own group.

    Parameters
    ----------
    cache : the folder of the token stores.
    precision : of the transformer's matrix products.
    cache_tokens : tokens of a chunk of the gradient cache; None: no gradient cache.
    mask_known_positives : True: a known positive of a query, or a copy of its text, is never its negative. False:
        only what people judged relevant is none, and the passage that is the query itself.

    Raises
    ------
    SettingsError : a query may leave no room for its passage in a pair.
    """
    pairs = pair_store(ranker.tower, ranker.template, data.collection, cache)
    known = no_negatives(data, masked=mask_known_positives)

    def objective(batch: GroupBatch) -> StepOutput:
        scores = ranker_scores(ranker, batch, pairs, precision, cache_tokens=cache_tokens)
        losses = loss(scores, upload(own_mask(batch, known), scores.device))
        total = losses.sum() / batch.step_queries
        if batch.sources is None:
            return StepOutput(total, once=cache_tokens is None)
        columns = {name: upload(places, scores.device) for name, places in own_sources(batch).items()}
        norms = source_norms(total, scores, ranker.parameters(), columns)
        return StepOutput(total, norms, once=cache_tokens is None)

    return objective


def adversarial_objective(
    data: TrainingData,
    encoder: BiEncoder,
    ranker: CrossEncoder,
    cache: Path,
    loss: AgainstRanker,
    *,
    budget: int,
    precision: Precision = "float32",
    cache_tokens: int | None = None,
    mask_known_positives: bool = True,
    passage_length: int | None = None,
) -> Objective:
    """Make the objective of a retriever that learns from a ranker as it is at each step (AR2, Section 3.2).

    The two parts of the loss and the entropy of the retriever's list become facts of the step. Each is the mean
    over the step's queries.

    Parameters
    ----------
    ranker : scores every query's own group, without gradient and without dropout.
    cache : the folder of the token stores.
    loss : :func:`hardneg.adversarial.retriever_losses` with its options.
    budget : tokens that the ranker scores at once.
    precision, cache_tokens, mask_known_positives : as in :func:`ranker_objective`, but for the retriever.
    passage_length : tokens of a passage in the retriever's steps, at most; None: as many as in search.

    Raises
    ------
    SettingsError : a query may leave no room for its passage in a pair.
    """
    queries = token_store(encoder, data.collection, cache, "query")
    passages = token_store(encoder, data.collection, cache, "passage", most=passage_length)
    pairs = pair_store(ranker.tower, ranker.template, data.collection, cache)
    known = no_negatives(data, masked=mask_known_positives)

    def objective(batch: GroupBatch) -> StepOutput:
        wanted = frozen_scores(ranker, batch, pairs, precision, budget=budget)
        every = group_scores(encoder, batch, queries, passages, precision, cache_tokens=cache_tokens)
        scores, masked = own_columns(every), upload(own_mask(batch, known), every.device)
        losses = loss(scores, wanted, masked, step_queries=batch.step_queries)
        spread = entropy(scores.detach(), masked, scale=encoder.settings.scale)
        total, against, towards, width = (part.sum() / batch.step_queries for part in (*losses, spread))
        facts = {"adversarial": against.detach(), "distillation": towards.detach(), "entropy": width}
        if batch.sources is None:
            return StepOutput(total, facts, once=cache_tokens is None)
        columns = {name: upload(places, scores.device) for name, places in own_sources(batch).items()}
        norms = source_norms(total, scores, encoder.parameters(), columns)
        return StepOutput(total, facts | norms, once=cache_tokens is None)

    return objective


def own_columns(scores: Tensor) -> Tensor:
    """Every query's scores of its own passages [b, 1 + N], out of those of all columns [b, b * (1 + N)]."""
    queries = torch.arange(len(scores), device=scores.device)
    return scores.view(len(scores), len(scores), -1)[queries, queries]


def ranker_scores(
    ranker: CrossEncoder,
    batch: GroupBatch,
    pairs: PairStore,
    precision: Precision,
    *,
    cache_tokens: int | None = None,
) -> Tensor:
    """Scores [b, 1 + N] float32 of every query with its own passages, with gradient; each pair is read once.

    A document of several sequences has the score of its best sequence (MaxP). If there are several processes, each
    scores a part of the pairs, and all get all scores.

    Parameters
    ----------
    cache_tokens : score in chunks of so many tokens (gradient cache); None: all at once.
    """

    def score(tokens: TokenBatch, side: Side) -> Tensor:
        with torch.autocast(ranker.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return ranker.score(tokens)[:, None]

    return _scores(batch, pairs, counted(shared(cached(score, cache_tokens) if cache_tokens else score)))


def frozen_scores(
    ranker: CrossEncoder, batch: GroupBatch, pairs: PairStore, precision: Precision, *, budget: int
) -> Tensor:
    """Scores [b, 1 + N] as :func:`ranker_scores`, without gradient and without dropout, for a model to learn from.

    No random number is drawn, and the ranker is left in the mode that it had.

    Parameters
    ----------
    budget : most tokens that are scored at once; a longer pair is scored alone.
    """

    def score(tokens: TokenBatch, side: Side) -> Tensor:
        found = torch.zeros(len(tokens), 1, device=ranker.device)
        for rows in plan_batches(tokens.lengths, budget):
            found[upload(rows, found.device), 0] = ranker.score(tokens.take(rows))
        return found

    with ranker.inference(precision):
        return _scores(batch, pairs, shared(score)).detach()


def own_mask(batch: GroupBatch, known: KnownPositives | None) -> Bool:
    """The mask [b, 1 + N] of a query's own columns that are no negatives of it; the positive's column 0 is masked.

    Parameters
    ----------
    known : masks known positives; with None, only the positive in column 0 is masked.
    """
    mask = np.zeros(batch.passage_rows.shape, bool)
    if known is not None:
        rows, place = batch.distinct()
        queries = np.arange(len(mask))[:, None]
        mask |= known.mask(batch.query_rows, rows)[queries, place.reshape(mask.shape)]
    mask[:, 0] = True
    return mask


def own_sources(batch: GroupBatch) -> dict[str, Bool]:
    """For each source, the mask [b, 1 + N] of each query's own negatives from this source."""
    assert batch.sources is not None
    positive = np.zeros((len(batch.sources), 1), bool)
    return {
        SOURCES[code]: np.concatenate([positive, batch.sources == code], axis=1)
        for code in np.unique(batch.sources).tolist()
    }


def _scores(batch: GroupBatch, pairs: PairStore, score: Scorer) -> Tensor:
    query_rows, passage_rows, place = _distinct_pairs(batch)
    tokens, chunks = pairs.read_documents(query_rows, passage_rows)
    scores = score(tokens, "passage")[:, 0][None]
    if chunks is not None:
        scores = best_chunks(scores, chunks)
    return scores[0][upload(place, scores.device)]


def _distinct_pairs(batch: GroupBatch) -> tuple[Int64, Int64, Int64]:
    """Query and passage of each distinct pair [u], and the place of every column [b, 1 + N] among them.

    A pair that occurs several times, because a query or a passage is repeated, is one of the u distinct pairs.
    """
    shape = batch.passage_rows.shape
    columns = np.stack([np.repeat(batch.query_rows, shape[1]), batch.passage_rows.reshape(-1)], axis=1)
    distinct, place = np.unique(columns.astype(np.int64), axis=0, return_inverse=True)
    return distinct[:, 0], distinct[:, 1], place.reshape(shape).astype(np.int64)

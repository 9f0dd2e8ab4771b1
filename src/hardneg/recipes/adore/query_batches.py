"""Batches of queries without passages, and the lists of candidates that the queries of a batch train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.models.packing import upload
from hardneg.negatives.groups import epoch_order
from hardneg.records import Int32, Int64, Positives


@dataclass(frozen=True)
class QueryBatch:
    """The queries of a step, or of a micro-batch of it."""

    step: int
    query_rows: Int32  # [b]
    positions: Int64  # [b] of the queries among the training queries
    step_queries: int
    micro_queries: int | None = None
    epoch: int = 0  # the number of earlier visits of each query

    def micro(self) -> Sequence[QueryBatch]:
        """The micro-batches, in order."""
        size = self.micro_queries or max(len(self.query_rows), 1)
        return [
            replace(self, query_rows=self.query_rows[i : i + size], positions=self.positions[i : i + size])
            for i in range(0, len(self.query_rows), size)
        ]


class QueryBatches:
    """The queries of every step. An epoch has each training query once, in a keyed order."""

    def __init__(
        self, positives: Positives, *, queries_per_step: int, seed: int, micro_queries: int | None = None
    ) -> None:
        self.positives, self.queries_per_step, self.micro_queries = positives, queries_per_step, micro_queries
        self.order_of_epoch = lru_cache(1)(partial(epoch_order, positives.query_rows, seed=seed, episode=0))

    def __call__(self, step: int) -> QueryBatch:
        """The queries of one step (from 0)."""
        epoch, place = divmod(step, math.ceil(len(self.positives) / self.queries_per_step))
        chosen = self.order_of_epoch(epoch=epoch)[place * self.queries_per_step :][: self.queries_per_step]
        rows = self.positives.query_rows[chosen]
        return QueryBatch(step, rows, chosen, len(chosen), self.micro_queries, epoch)


@dataclass(frozen=True)
class CandidateLists:
    """The candidates that each query of a batch ranks, as padded lists."""

    rows: Int32  # [b, n] passage rows; 0 where there is no entry
    ranks: Int64  # [b, n] from 1
    positive: NDArray[np.bool_]  # [b, n]
    valid: NDArray[np.bool_]  # [b, n]
    relevant: Int64  # [b] the number of positives of the query, inside and outside of the list


def retrieved_lists(
    found: Int32, positives: Positives, duplicates: NDArray[np.bool_] | None = None
) -> CandidateLists:
    """The retrieved passages as lists, with D+ as labels.

    If a query retrieved none of its positives, all of them are appended; the j-th one gets rank n + j (as in
    ADORE's published code). If it retrieved some of them, those that it did not retrieve are left out.

    Parameters
    ----------
    found : [b, n] passage rows, best first, of the queries of ``positives``; -1 where the index found no more.
    duplicates : [b, n] whether a passage has the text of a positive; such passages are no negatives.
    """
    count, depth = found.shape
    most = int(np.diff(positives.offsets).max(initial=0))
    rows = np.zeros((count, depth + most), np.int32)
    rows[:, :depth] = found.clip(min=0)
    positive, valid = np.zeros(rows.shape, bool), np.zeros(rows.shape, bool)
    valid[:, :depth] = found >= 0
    for i in range(count):
        known = positives.of(i)
        positive[i, :depth] = np.isin(found[i], known)
        if not positive[i].any():
            rows[i, depth : depth + len(known)] = known
            positive[i, depth : depth + len(known)] = valid[i, depth : depth + len(known)] = True
    if duplicates is not None:
        valid[:, :depth] &= ~duplicates | positive[:, :depth]
    ranks = np.tile(np.arange(1, rows.shape[1] + 1), (count, 1))
    return CandidateLists(rows, ranks, positive, valid, np.diff(positives.offsets).astype(np.int64))


def given_lists(negatives: Sequence[Int32], positives: Positives) -> CandidateLists:
    """The given negatives and all positives of each query as lists; ranks are 0: :func:`ranks_of` finds them."""
    lists = [np.concatenate([positives.of(i), negatives[i]]) for i in range(len(positives))]
    width = max(map(len, lists))
    rows, positive, valid = (np.zeros((len(lists), width), kind) for kind in (np.int32, bool, bool))
    for i, one in enumerate(lists):
        rows[i, : len(one)], valid[i, : len(one)] = one, True
        positive[i, : len(positives.of(i))] = True
    return CandidateLists(
        rows, np.zeros(rows.shape, np.int64), positive, valid, np.diff(positives.offsets).astype(np.int64)
    )


def ranks_of(lists: CandidateLists, scores: Tensor, valid: Tensor) -> Tensor:
    """The ranks of the candidates: as retrieved, or for given lists by the scores of this step."""
    if lists.ranks.any():
        return upload(lists.ranks, scores.device)
    order = torch.argsort(scores.masked_fill(~valid, float("-inf")), dim=1, descending=True, stable=True)
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device).expand_as(order)
    return torch.zeros_like(order).scatter_(1, order, places)

"""Training groups as arrays: which passages a step scores, which pairs of it are no negatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Int32, Int64, Positives, offsets_of, owners

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class GroupBatch:
    """Queries with one positive and N hard negatives each; the positive stands in column 0."""

    query_rows: Int32  # [b]
    passage_rows: Int32  # [b, 1 + N]
    step_queries: int  # queries of the whole optimiser step, over which the loss is a mean
    micro_queries: int | None = None  # queries of a micro-batch; None: all at once

    def micro(self) -> Sequence[GroupBatch]:
        """The micro-batches, in order."""
        size = self.micro_queries or max(len(self.query_rows), 1)
        return [
            GroupBatch(self.query_rows[i : i + size], self.passage_rows[i : i + size], self.step_queries)
            for i in range(0, len(self.query_rows), size)
        ]

    def distinct(self) -> tuple[Int32, Int64]:
        """The distinct passages [u], and for every column of the flattened groups its place among them."""
        rows, place = np.unique(self.passage_rows, return_inverse=True)
        return rows, place.reshape(-1).astype(np.int64)

    def targets(self) -> Int64:
        """The column of each query's positive among the flattened groups [b]."""
        return np.arange(len(self.query_rows), dtype=np.int64) * self.passage_rows.shape[1]


class KnownPositives:
    """Which passages are positives of a query, by identity or by equal text.

    Parameters
    ----------
    positives : D+(q) of the training queries, ascending by query row.
    text_keys : [n_passages] a key of each passage's text, equal for equal texts.
    """

    def __init__(self, positives: Positives, text_keys: NDArray[np.uint64]) -> None:
        self.positives, self.text_keys = positives, text_keys

    def mask(self, query_rows: Int32, passage_rows: Int32) -> Bool:
        """[b, p] whether passage j is a positive of query i, or has the text of one."""
        known = self.positives.select(np.searchsorted(self.positives.query_rows, query_rows))
        keys = self.text_keys[known.passage_rows]
        mask = np.zeros((len(query_rows), len(passage_rows)), bool)
        np.logical_or.at(mask, owners(known.offsets), keys[:, None] == self.text_keys[passage_rows][None, :])
        return mask


def masked_columns(batch: GroupBatch, known: KnownPositives | None, *, in_batch: bool) -> Bool:
    """[b, b * (1 + N)] the columns that are no negatives of a query (its own positive's column included).

    Parameters
    ----------
    known : the known-positive mask; None leaves every pair in, as published.
    in_batch : whether other queries' passages serve as negatives.
    """
    queries, width = batch.passage_rows.shape
    mask = np.zeros((queries, queries * width), bool)
    if known is not None:
        rows, place = batch.distinct()
        mask |= known.mask(batch.query_rows, rows)[:, place]
    if not in_batch:
        own = owners(offsets_of(np.full(queries, width)))
        mask |= own[None, :] != np.arange(queries)[:, None]
    return mask

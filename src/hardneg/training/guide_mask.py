"""A mask of false negatives by a frozen model: what it scores above the positive of a query is no negative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Float32, Int32, take_spans
from hardneg.search.retriever import Retriever
from hardneg.training.batches import GroupBatch

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class GuideMask:
    """Says which columns of a step a guide takes for positives: GISTEmbed (Solatorio, 2024, arXiv 2402.16829).

    The mask of its Section 3.1, of in-batch and hard negatives alike, with the query as the anchor. The guide's
    vectors are looked up, so a step pays one small product.

    Attributes
    ----------
    guide : a frozen model over the collection.
    margin : a passage is masked if its similarity to the query is above that of the positive less ``margin``.
    """

    guide: Retriever
    margin: float = 0.0

    def __call__(self, batch: GroupBatch) -> Bool:
        """The mask [b, b * (1 + N)] of columns; that of a query's own positive is not masked."""
        rows, place = batch.distinct()
        similar = self.similarities(batch.query_rows, rows)[:, place]
        query, own = np.arange(len(similar)), batch.targets()
        mask: Bool = similar > similar[query, own][:, None] - np.float32(self.margin)
        mask[query, own] = False
        return mask

    def similarities(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """The guide's score [b, u] of each query, as training reads it, and each passage (MaxP)."""
        queries = self.guide.training_queries.rows(query_rows).astype(np.float32)
        chunks = self.guide.chunks
        if chunks is None:
            return queries @ self.guide.passages.rows(passage_rows).astype(np.float32).T
        rows, offsets = take_spans(chunks, passage_rows)
        each = queries @ self.guide.passages.rows(rows).astype(np.float32).T
        return np.maximum.reduceat(each, offsets[:-1], axis=1)

"""A mask of false negatives: a passage that a frozen model scores above a query's positive is no negative."""

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
    """Masks the columns of a step that a guide takes for positives: GISTEmbed (Solatorio, 2024, arXiv 2402.16829).

    The mask is that of Section 3.1 of the paper, with the query as the anchor. It covers in-batch and hard
    negatives alike. The guide's vectors are looked up, so a step only adds one small matrix product.

    Attributes
    ----------
    guide : a frozen model over the collection.
    margin : a passage is masked if its similarity to the query is above that of the positive less ``margin``.
    """

    guide: Retriever
    margin: float = 0.0

    def __call__(self, batch: GroupBatch) -> Bool:
        """The mask [b, b * (1 + N)] of columns; the column of a query's own positive is not masked."""
        rows, place = batch.distinct()
        similar = self.similarities(batch.query_rows, rows)[:, place]
        query, own = np.arange(len(similar)), batch.targets()
        mask: Bool = similar > similar[query, own][:, None] - np.float32(self.margin)
        mask[query, own] = False
        return mask

    def similarities(self, query_rows: Int32, passage_rows: Int32) -> Float32:
        """The guide's scores [b, u] of queries, as long as in training steps, and passages (MaxP)."""
        queries = self.guide.training_queries.rows(query_rows).astype(np.float32)
        chunks = self.guide.chunks
        if chunks is None:
            return queries @ self.guide.passages.rows(passage_rows).astype(np.float32).T
        rows, offsets = take_spans(chunks, passage_rows)
        each = queries @ self.guide.passages.rows(rows).astype(np.float32).T
        return np.maximum.reduceat(each, offsets[:-1], axis=1)

"""Retrieval at every step: the lists that the queries of a step find by the embeddings of that step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.models.packing import upload
from hardneg.recipes.adore.query_batches import CandidateLists, QueryBatch, given_lists, retrieved_lists
from hardneg.records import Int32, Positives
from hardneg.search.parts import search_in_step
from hardneg.search.retrieve import Index
from hardneg.training.batches import KnownPositives


class Retrieval:
    """Makes the lists of a step's queries, over an index of passages that do not change.

    Parameters
    ----------
    positives : D+(q) of all training queries.
    depth : the number of passages that a query retrieves.
    dtype : the dtype to which query vectors are rounded before the search, as in an evaluation.
    known : finds passages with the text of a positive, which are no negatives; None: any passage may be one.
    given : a batch -> the negatives of its queries, which replace the retrieved ones; None: no others.
    """

    def __init__(
        self,
        positives: Positives,
        index: Index,
        *,
        depth: int,
        dtype: torch.dtype,
        known: KnownPositives | None,
        given: Callable[[QueryBatch], Sequence[Int32]] | None,
    ) -> None:
        self.positives, self.index, self.depth, self.dtype = positives, index, depth, dtype
        self.known, self.given = known, given
        self.noted: dict[int, tuple[Any, list[float]]] = {}

    def lists(self, batch: QueryBatch, vectors: Tensor) -> CandidateLists:
        """The lists that the queries of a batch train on; what they retrieve is kept for :meth:`facts`."""
        positives = self.positives.select(batch.positions)
        found = search_in_step(self.index, vectors.to(self.dtype), self.depth)[1].cpu().numpy()
        used: Sequence[Int32] = list(found)
        if self.given is None:
            lists = retrieved_lists(found, positives, self._duplicates(positives, found))
        else:
            used = self.given(batch)
            lists = given_lists(used, positives)
        digest, shared = self.noted.setdefault(batch.step, (hashlib.sha256(), []))  # a step's micro-batches add up
        digest.update(found.tobytes())
        shared += [np.isin(one, real).mean() if len(one) else 0.0 for one, real in zip(used, found, strict=True)]
        return lists

    def _duplicates(self, positives: Positives, found: Int32) -> NDArray[np.bool_] | None:
        """[b, depth] passages that are no positive but have the text of one."""
        if self.known is None:
            return None
        return np.stack([self.known.mask(positives.query_rows[i : i + 1], row)[0] for i, row in enumerate(found)])

    def scores(self, vectors: Tensor, lists: CandidateLists) -> Tensor:
        """Scores [b, n] of the lists, with gradient to the queries; passages have the vectors of the index."""
        rows, place = np.unique(lists.rows, return_inverse=True)
        passages = self.index.vectors(rows).to(vectors.device)
        return (vectors @ passages.T).gather(1, upload(place.reshape(lists.rows.shape), vectors.device))

    def facts(self, step: int) -> dict[str, Any]:
        """The digest of what a step retrieved, and the share of retrieved passages among those that it trained on.

        The share over the steps is Figure 4a of Zhan et al., "Optimizing Dense Retrieval Model Training with Hard
        Negatives", SIGIR 2021.
        """
        digest, shared = self.noted.pop(step)
        return {"retrieved": digest.hexdigest()[:16], "overlap": float(np.mean(shared))}

"""Retrieval at every step: the lists that the queries of a step find by the embeddings of that step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.data.own_passages import NONE
from hardneg.models.packing import upload
from hardneg.recipes.adore.query_batches import CandidateLists, QueryBatch, given_lists, retrieved_lists
from hardneg.records import Int32, Positives
from hardneg.search.parts import search_in_step
from hardneg.search.retrieve import Index
from hardneg.training.batches import KnownPositives
from hardneg.training.loop import NotFinite

RR_CUT = 10  # k of the reciprocal rank in the metrics


@dataclass
class Noted:
    """What the queries of a step retrieved, gathered over its micro-batches."""

    digest: Any = field(default_factory=hashlib.sha256)
    overlap: list[float] = field(default_factory=list)  # a value for each query, as are the two below
    reciprocal_rank: list[float] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)

    def add(self, found: Int32, used: Sequence[Int32], positives: Positives) -> None:
        """Note the retrieved lists [b, depth] of some queries, and the passages that each query trains on."""
        self.digest.update(found.tobytes())
        for i, (one, real) in enumerate(zip(used, found, strict=True)):
            self.overlap.append(np.isin(one, real).mean() if len(one) else 0.0)
            rank, errors = ranked(real, positives.of(i))
            self.reciprocal_rank.append(1 / rank if 0 < rank <= RR_CUT else 0.0)
            self.errors.append(errors)


def without_itself(found: Int32, query_rows: Int32, own: tuple[Int32, Int32]) -> Int32:
    """The retrieved lists [b, k] without the passage that a query [b] is itself; -1 fills them up.

    Parameters
    ----------
    own : the queries that are passages, which ascend, and these passages.
    """
    queries, passages = own
    place = np.searchsorted(queries, query_rows)
    itself = np.append(passages, -1)[place]
    itself[np.append(queries, -1)[place] != query_rows] = -1
    left = found != itself[:, None]
    order = np.argsort(~left, axis=1, kind="stable")
    return np.take_along_axis(np.where(left, found, np.int32(-1)), order, axis=1)


def ranked(found: Int32, positives: Int32) -> tuple[int, int]:
    """The rank of the best positive in a list (0: it has none), and the list's pairwise errors (STAR, Eq. 5).

    The errors of a positive are the passages above it that are no positives. For a positive that is not in the
    list, they are all such passages of the list, so the paper's K is the length of the list.
    """
    found = found[found >= 0]
    relevant = np.isin(found, positives)
    above = np.cumsum(~relevant)
    places = np.flatnonzero(relevant)
    missed = len(positives) - len(places)
    errors = int(above[places].sum()) + missed * (int(above[-1]) if len(above) else 0)
    return (int(places[0]) + 1 if len(places) else 0), errors


class Retrieval:
    """Makes the lists of a step's queries, over an index of passages that do not change.

    Parameters
    ----------
    positives : D+(q) of all training queries.
    depth : the number of passages that a query retrieves.
    dtype : the dtype to which query vectors are rounded before the search, as in an evaluation.
    known : finds passages with the text of a positive, which are no negatives; None: any passage may be one.
    given : a batch -> the negatives of its queries, which replace the retrieved ones; None: no others.
    own : the queries that are passages themselves, and these passages, which are no hits of theirs.
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
        own: tuple[Int32, Int32] = NONE,
    ) -> None:
        self.positives, self.index, self.depth, self.dtype = positives, index, depth, dtype
        self.known, self.given, self.own = known, given, own
        self.noted: dict[int, Noted] = {}

    def lists(self, batch: QueryBatch, vectors: Tensor) -> CandidateLists:
        """The lists that the queries of a batch train on; what they retrieve is kept for :meth:`facts`.

        Raises
        ------
        NumericError : a vector is not finite; names the step and the queries.
        """
        positives = self.positives.select(batch.positions)
        if not bool(torch.isfinite(vectors).all()):
            raise NotFinite(batch.step, positives.query_rows.tolist())
        found = self._found(positives.query_rows, vectors.to(self.dtype))
        used: Sequence[Int32] = list(found)
        if self.given is None:
            lists = retrieved_lists(found, positives, self._duplicates(positives, found))
        else:
            used = self.given(batch)
            lists = given_lists(used, positives)
        self.noted.setdefault(batch.step, Noted()).add(found, used, positives)  # sums up micro-batches
        return lists

    def _found(self, query_rows: Int32, vectors: Tensor) -> Int32:
        """[b, depth] what the queries retrieve, one hit deeper if any training query is a passage itself."""
        deeper = len(self.own[0]) > 0
        k = min(self.depth + deeper, len(self.index))
        found: Int32 = search_in_step(self.index, vectors, k)[1].cpu().numpy()
        return without_itself(found, query_rows, self.own)[:, : self.depth] if deeper else found

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
        """What the queries of a step retrieved before it: a digest, and means over the queries.

        ``overlap`` is the share of the step's negatives that were retrieved, ``train_rr_10`` the reciprocal rank
        of the first positive (0 below rank 10), and ``train_errors`` the number of pairwise errors in the list.
        Over the steps they are Figures 4a and 4b of Zhan et al., "Optimizing Dense Retrieval Model Training with
        Hard Negatives", SIGIR 2021.
        """
        noted = self.noted.pop(step)
        return {
            "retrieved": noted.digest.hexdigest()[:16],
            "overlap": float(np.mean(noted.overlap)),
            "train_rr_10": float(np.mean(noted.reciprocal_rank)),
            "train_errors": float(np.mean(noted.errors)),
        }

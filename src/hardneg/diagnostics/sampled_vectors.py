"""Vectors of a few training queries, their positives and hardest negatives, kept of every state of the model.

Embeddings are deleted when the next state comes. The few vectors that are kept here are enough for pictures of how
queries and passages lie (t-SNE), for alignment and uniformity, and for a query's mean score over the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.data.training_data import TrainingData
from hardneg.negatives.candidates import Contains, candidates
from hardneg.records import Int32, Positives, Run, owners
from hardneg.storage.artifacts import load_array, open_artifact, publish

KIND = "sampled-vectors"
QUERIES, NEGATIVES = 100, 3
SEED = 0  # of the sample, which is the same in every state

Vectors = NDArray[np.floating]


@dataclass(frozen=True)
class SampledVectors:
    """Vectors of sampled training queries and of their passages, by one state of the model."""

    query_rows: Int32  # [n]
    queries: Vectors  # [n, dim]
    passage_rows: Int32  # [m] ascending
    passages: Vectors  # [m, dim]
    positives: Int32  # [n] passage row of each query's first positive
    negatives: Int32  # [n, 3] passage rows of the first hits that are irrelevant; -1 where there are fewer

    def of(self, rows: NDArray[np.integer]) -> Vectors:
        """The vectors [k, dim] of passages at these rows, which the sample must have."""
        return self.passages[np.searchsorted(self.passage_rows, rows)]


ARRAYS = ("query_rows", "queries", "passage_rows", "passages", "positives", "negatives")


def sampled(positives: Positives) -> Positives:
    """The training queries of the sample, which have a positive; at most 100."""
    known = positives.some()
    words = keyed_random.hash64(keyed_random.key(SEED, "geometry/sample"), known.query_rows)
    return known.select(np.sort(np.argsort(words, kind="stable")[:QUERIES]))


def hardest(run: Run, some: Positives, data: TrainingData, contains: Contains | None = None) -> Int32:
    """The first hits [n, 3] of each query that are no positives nor copies of them; -1 where there are fewer.

    ``contains`` tells which passages are no negatives although the qrels do not name them.
    """
    depth, keys = NEGATIVES if contains is None else None, data.collection.text_keys
    found = candidates(run, some, source="query", episode=0, depth=depth, text_keys=keys, contains=contains)
    rows = np.full((len(some), NEGATIVES), -1, np.int32)
    owner, place = owners(found.offsets), np.arange(len(found.passage_rows))
    place -= found.offsets[owner]
    first = place < NEGATIVES
    rows[owner[first], place[first]] = found.passage_rows[first]
    return rows


def save_sample(sample: SampledVectors, path: Path, inputs: Mapping[str, str]) -> None:
    """Publish the sample of a state at ``path``."""
    with publish(path, KIND, inputs=inputs, replace=True) as draft:
        for name in ARRAYS:
            draft.array(f"{name}.npy", getattr(sample, name))
        draft.facts["queries"] = len(sample.query_rows)


def load_sample(path: Path) -> SampledVectors:
    """Open the sample of a state at ``path``."""
    open_artifact(path, KIND)
    arrays: dict[str, Any] = {name: np.asarray(load_array(path / f"{name}.npy")) for name in ARRAYS}
    return SampledVectors(**arrays)

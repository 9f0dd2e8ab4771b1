"""How many of the negatives that a model was trained on are still near the query when it has learned from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardneg.artifacts import is_published
from hardneg.data.training_data import TrainingData
from hardneg.negatives.candidates import candidates
from hardneg.negatives.pool import NegativePool, load_pool
from hardneg.records import Positives, Run, owners, spans

DEPTH = 100


def informative_share(pool: NegativePool, run: Run, data: TrainingData, positives: Positives) -> float:
    """Mean over queries of the share of a query's negatives that are among its first 100 now (ANCE, Section 6.3).

    Parameters
    ----------
    pool : what was trained on; queries without negatives do not count.
    run : what the model finds now for the training queries.
    positives : D+(q), which are none of the 100.
    """
    keys = data.collection.text_keys
    now = candidates(run, positives, source="query", episode=pool.episode, depth=DEPTH, text_keys=keys)
    lengths = spans(pool.offsets)
    found = np.isin(pairs_of(pool), pairs_of(now))
    hits = np.bincount(owners(pool.offsets)[found], minlength=len(lengths))
    return float((hits[lengths > 0] / lengths[lengths > 0]).mean())


def pairs_of(pool: NegativePool) -> NDArray[np.int64]:
    """[P] one number for each query and negative of a pool."""
    return pool.query_rows[owners(pool.offsets)].astype(np.int64) << 32 | pool.passage_rows


def share_of_state(trained_on: Path | None, run: Run, data: TrainingData, positives: Positives) -> float | None:
    """The share of the negatives at ``trained_on``; None where there are none, or none that stayed for a step."""
    if trained_on is None or not is_published(trained_on):
        return None
    pool = load_pool(trained_on, n_passages=data.collection.n_passages, collection=data.collection.digest)
    return informative_share(pool, run, data, positives) if len(pool.passage_rows) else None

"""Forgetting: training queries that a model answered better before further training.

Figures 4 and 8 and Table 9 of Sun et al., "Reduce Catastrophic Forgetting of Dense Retrieval Training with
Teleportation Negatives", EMNLP 2022. The runs of all training queries are compared; positives stay in the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.evaluation.judged import JudgedHits
from hardneg.evaluation.measures import first_rank, relevant_hits
from hardneg.records import Int32, Int64, Positives, Run

Float64 = NDArray[np.float64]


def reciprocal_ranks(run: Run, positives: Positives, depth: int = 100) -> Float64:
    """Reciprocal rank of the best positive of every query [Q]; 0 if none is among the first ``depth`` hits."""
    return reciprocal_ranks_of(relevant_hits(run, positives), depth)


def reciprocal_ranks_of(hits: JudgedHits, depth: int = 100) -> Float64:
    """Reciprocal rank [Q] of the best relevant hit of every query; 0 if none is among the first ``depth`` hits."""
    rank = first_rank(hits, depth)
    return np.where(rank > 0, 1.0 / np.maximum(rank, 1), 0.0)


def forgetting_rate(before: Float64, after: Float64) -> float:
    """The share of queries whose reciprocal rank [Q] fell."""
    return float(np.mean(after < before))


def learned_share(before: Float64, after: Float64) -> float:
    """The share of queries whose reciprocal rank [Q] rose."""
    return float(np.mean(after > before))


def forgetting(ranks: Mapping[str, Float64], *, first: int = 1) -> list[dict[str, Any]]:
    """The shares of training queries forgotten and learned from each state of the model to the next.

    A query is forgotten if its RR@100 fell below that of the state before (ANCE-Tele, Fig. 4). The first episode,
    whose number is ``first``, is compared with the pretrained model.

    Parameters
    ----------
    ranks : state -> :func:`reciprocal_ranks` of all training queries [Q], in the order of training.
    """
    return [
        {
            "episode": episode,
            "before": before,
            "after": after,
            "forgotten": forgetting_rate(ranks[before], ranks[after]),
            "learned": learned_share(ranks[before], ranks[after]),
            "train_mrr_100": float(ranks[after].mean()),
        }
        for episode, (before, after) in enumerate(itertools.pairwise(ranks), first)
    ]


def sample_queries(query_rows: Int32, count: int = 10, *, seed: int) -> Int64:
    """Positions of ``count`` queries (all, if they are fewer), drawn without replacement; ascending."""
    words = keyed_random.hash64(keyed_random.key(seed, "forgetting/trajectories"), query_rows)
    whole = np.array([0, len(query_rows)])
    return np.sort(keyed_random.smallest(words, whole, np.array([count])))


def trajectories(reciprocals: Sequence[Float64], positions: Int64) -> Float64:
    """The reciprocal ranks of the queries at ``positions`` [count] in every episode [count, episodes]."""
    return np.stack([values[positions] for values in reciprocals], axis=1)

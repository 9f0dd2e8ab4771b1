"""Forgetting: training queries that a model answered better before it was trained further.

Figures 4 and 8 and Table 9 of Sun et al., "Reduce Catastrophic Forgetting of Dense Retrieval Training with
Teleportation Negatives", EMNLP 2022. Compared are raw runs of all training queries, before positives are dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.data.training_data import TrainingData
from hardneg.evaluation.measures import first_relevant_rank
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import relevant
from hardneg.records import Positives, Run

Float64 = NDArray[np.float64]


def reciprocal_ranks(run: Run, positives: Positives, depth: int = 100) -> Float64:
    """Reciprocal rank of the best positive of every query [Q]; 0 where none is among the first ``depth`` hits."""
    rank = first_relevant_rank(run, positives, depth)
    return np.where(rank > 0, 1.0 / np.maximum(rank, 1), 0.0)


def forgetting_rate(before: Float64, after: Float64) -> float:
    """Share of the queries whose reciprocal rank [Q] fell."""
    return float(np.mean(after < before))


def learned_share(before: Float64, after: Float64) -> float:
    """Share of the queries whose reciprocal rank [Q] rose."""
    return float(np.mean(after > before))


def forgetting(
    data: TrainingData, runs: Mapping[str, Run], contains: Contains | None = None, *, first: int = 1
) -> list[dict[str, Any]]:
    """Shares of the training queries forgotten and learned from each state of the model to the next.

    A query is forgotten when its MRR@100 fell below that of the state before (ANCE-Tele, Fig. 4). The ``first``
    episode, whatever its number, is set against the pretrained model. With ``contains``, a hit that contains an
    answer counts as much as a judged one: what is a positive in training may differ between the states.

    Parameters
    ----------
    runs : what the states found for the training queries, by their names and in their order.
    """
    ranks = {name: reciprocal_ranks(run, relevant(run, data, contains)) for name, run in runs.items()}
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

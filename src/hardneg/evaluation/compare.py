"""Comparisons of runs: paired tests, wins and losses, overlap, and the first rank where two runs differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.evaluation.judged import locate
from hardneg.evaluation.significance import bootstrap_interval, holm, paired_t_test, randomization_test
from hardneg.records import Int32, Int64, Qrels, Run, owners, pair_keys

_NONE = -1  # fills the ranks after a list has ended


@dataclass(frozen=True)
class Comparison:
    """How run ``a`` compares with run ``b`` by one measure."""

    a: str
    b: str
    measure: str
    difference: float  # mean of a minus mean of b
    interval: tuple[float, float]  # 95 %, bootstrapped over queries
    p: float  # of the randomisation test
    p_holm: float  # ``p`` adjusted (Holm) for all pairs compared together
    p_t: float  # of the paired t-test
    wins: int  # queries where a is better
    ties: int
    losses: int


def compare_runs(
    names: Sequence[str],
    values: Sequence[NDArray[np.float64]],
    *,
    measure: str,
    seed: int,
    permutations: int = 100_000,
) -> list[Comparison]:
    """Compare every pair of runs, in the order given.

    Parameters
    ----------
    values : for each run, the measure of every query [Q]; all runs have the same queries in the same order.
    """
    pairs = list(itertools.combinations(range(len(names)), 2))
    tests = [randomization_test(values[i], values[j], permutations=permutations, seed=seed) for i, j in pairs]
    return [
        Comparison(
            names[i],
            names[j],
            measure,
            difference=float(values[i].mean() - values[j].mean()),
            interval=bootstrap_interval(values[i] - values[j], seed=seed),
            p=p,
            p_holm=float(p_holm),
            p_t=paired_t_test(values[i], values[j]),
            wins=int(np.sum(values[i] > values[j])),
            ties=int(np.sum(values[i] == values[j])),
            losses=int(np.sum(values[i] < values[j])),
        )
        for (i, j), p, p_holm in zip(pairs, tests, holm(tests), strict=True)
    ]


def overlap(a: Run, b: Run, depth: int = 100, *, queries: Int32 | None = None) -> float:
    """Mean over ``queries`` of |A∩B| / max(|A|, |B|), of the first ``depth`` hits A and B of the two runs.

    Without ``queries``, over those of both runs. A query that one run lacks counts as 0; a query without a hit in
    either run is left out.
    """
    queries = np.union1d(a.query_rows, b.query_rows) if queries is None else queries
    tops = [top_rows(run, queries, depth) for run in (a, b)]
    longer = np.maximum(*[(top != _NONE).sum(axis=1) for top in tops])
    both = np.sort(np.hstack(tops), axis=1)
    shared = ((both[:, 1:] == both[:, :-1]) & (both[:, 1:] != _NONE)).sum(axis=1)
    found = longer > 0
    return float(np.mean(shared[found] / longer[found])) if found.any() else 0.0


def top_rows(run: Run, queries: Int32, depth: int) -> Int32:
    """The first ``depth`` hits of each query [Q, depth], in the run's order; -1 after the last hit."""
    place = locate(run.query_rows, queries)
    starts = np.where(place < 0, 0, run.offsets[place])
    ends = np.where(place < 0, 0, run.offsets[place + 1])
    index = starts[:, None] + np.arange(depth)
    inside = index < ends[:, None]
    top = np.full(index.shape, _NONE, np.int32)
    top[inside] = run.passage_rows[index[inside]]
    return top


UNJUDGED = np.iinfo(np.int32).min  # a judgement may have a grade below 0


@dataclass(frozen=True)
class Disagreement:
    """The first rank at which two runs differ, for each query."""

    rank: Int64  # [Q] from 1; 0 where the first hits are all the same
    passages: Int32  # [Q, 2] the hit of each run at this rank; -1 if it has none
    grades: Int32  # [Q, 2] their grades, ``UNJUDGED`` if they have none


def first_disagreement(a: Run, b: Run, queries: Int32, qrels: Qrels, depth: int = 100) -> Disagreement:
    """The first rank at which two runs differ for each of ``queries`` [Q], and the hits of both at this rank."""
    tops = np.stack([top_rows(run, queries, depth) for run in (a, b)], axis=2)  # [Q, depth, 2]
    differs = tops[:, :, 0] != tops[:, :, 1]
    at = np.argmax(differs, axis=1)
    rank = np.where(differs.any(axis=1), at + 1, 0)
    passages = np.where(rank[:, None] > 0, tops[np.arange(len(queries)), at], _NONE)
    return Disagreement(rank, passages, _grades(qrels, queries, passages))


def _grades(qrels: Qrels, queries: Int32, passages: Int32) -> Int32:
    """The grades of ``passages`` [Q, m] for ``queries`` [Q]."""
    keys = pair_keys(owners(qrels.offsets), qrels.passage_rows)
    order = np.argsort(keys, kind="stable")
    place = locate(qrels.query_rows, queries)[:, None]
    wanted = pair_keys(place, np.maximum(passages, 0))
    at = np.searchsorted(keys, wanted, sorter=order)
    found = (passages != _NONE) & (place >= 0) & (at < len(keys))
    found[found] = keys[order[at[found]]] == wanted[found]
    grades = np.full(passages.shape, UNJUDGED, np.int32)
    grades[found] = qrels.grades[order[at[found]]]
    return grades

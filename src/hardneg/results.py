"""What an experiment measured: measures by state, comparisons, forgetting; and several seeds pooled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.forgetting import forgetting_rate, learned_share, reciprocal_ranks
from hardneg.evaluation.measures import Evaluation, Measure, evaluate
from hardneg.evaluation.significance import bootstrap_interval, holm, randomization_test
from hardneg.mining import training_depth
from hardneg.progress import note
from hardneg.records import Run
from hardneg.search.bm25 import bm25_run
from hardneg.snapshot import Snapshot


def retrieve_all(state: Snapshot, data: TrainingData, *, depth: int, evaluation_depth: int) -> dict[str, Run]:
    """Every run of a state: training queries, the neighbours of their positives, dev and test."""
    k = training_depth(data.collection, data.train, depth)
    runs = {
        "train": state.search("query", data.train.query_rows, k),
        "lookahead": state.neighbours("lookahead", data.train.query_rows, data.train.first(), k),
    }
    for name, qrels in (("dev", data.dev), ("test", data.test)):
        if qrels is not None:
            runs[name] = state.search(name, qrels.query_rows, evaluation_depth)
    return runs


def evaluation_depth(measures: Sequence[Measure]) -> int:
    """How deep dev and test queries are searched for these measures."""
    return max(100, *(measure.cutoff or 1000 for measure in measures))


def bm25_judged(data: TrainingData, cache: Path, depth: int) -> dict[str, Run]:
    """BM25's runs of the dev and test queries, to measure against."""
    judged = {"dev": data.dev, "test": data.test}
    return {
        name: bm25_run(data.collection, qrels.query_rows, depth, cache)
        for name, qrels in judged.items()
        if qrels is not None
    }


def note_state(name: str, runs: Mapping[str, Run], data: TrainingData, measures: Sequence[Measure]) -> None:
    """Say how a state does on dev (on test where there is no dev)."""
    split, qrels = ("dev", data.dev) if data.dev is not None else ("test", data.test)
    if qrels is not None:
        found = evaluate(runs[split], qrels, measures[:1], id_rank=data.collection.passage_ids.id_rank)
        note(f"{name}: {split} " + ", ".join(f"{measure} {mean:.4f}" for measure, mean in found.means.items()))


def summarize(
    data: TrainingData, runs: Mapping[str, Mapping[str, Run]], measures: Sequence[Measure], *, seed: int
) -> dict[str, Any]:
    """The results of an experiment.

    Parameters
    ----------
    runs : by state (``bm25``, ``untrained``, ``episode-1``, ..., ``final``), the runs by name.
    """
    results: dict[str, Any] = {}
    judged = {name: qrels for name, qrels in (("test", data.test), ("dev", data.dev)) if qrels is not None}
    for split, qrels in judged.items():
        present = {state: found[split] for state, found in runs.items() if split in found}
        evaluations = {
            state: evaluate(run, qrels, measures, id_rank=data.collection.passage_ids.id_rank)
            for state, run in present.items()
        }
        results[split] = {state: evaluation.means for state, evaluation in evaluations.items()}
        if "comparisons" not in results:
            others = [state for state in ("untrained", "bm25") if state in evaluations]
            results["compared_on"] = split
            results["comparisons"] = compare_states(evaluations, [("final", other) for other in others], seed=seed)
    trained = [found["train"] for state, found in runs.items() if "train" in found]
    return {**results, "forgetting": forgetting(data, trained)}


def compare_states(
    evaluations: Mapping[str, Evaluation],
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int,
    permutations: int = 100_000,
) -> list[dict[str, Any]]:
    """Paired tests of state pairs (a, b) for every measure; ``difference`` is a - b.

    ``p`` is that of the two-sided randomisation test, ``p_holm`` corrected over all rows, and ``interval`` the
    95 % bootstrap interval of the difference over queries.
    """
    rows: list[dict[str, Any]] = []
    for a, b in pairs:
        for measure in evaluations[a].values:
            x, y = evaluations[a].values[measure], evaluations[b].values[measure]
            low, high = bootstrap_interval(x - y, seed=seed)
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "measure": measure,
                    "difference": float((x - y).mean()),
                    "interval": [low, high],
                    "p": randomization_test(x, y, permutations=permutations, seed=seed),
                }
            )
    for row, corrected in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = float(corrected)
    return rows


def forgetting(data: TrainingData, runs: Sequence[Run]) -> list[dict[str, float]]:
    """Shares of the training queries forgotten and learned by each episode, from the states' runs in order.

    A query is forgotten when its MRR@100 fell below that of the state before (ANCE-Tele, Fig. 4).
    """
    ranks = [reciprocal_ranks(run, data.train) for run in runs]
    return [
        {
            "episode": episode,
            "forgotten": forgetting_rate(before, after),
            "learned": learned_share(before, after),
            "train_mrr_100": float(after.mean()),
        }
        for episode, (before, after) in enumerate(itertools.pairwise(ranks), 1)
    ]


def pool_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation and values over seeds of every measure of every state."""
    first = next(iter(results.values()))
    pooled: dict[str, Any] = {"seeds": sorted(results)}
    for split in ("test", "dev"):
        pooled[split] = {
            state: {
                measure: spread([results[seed][split][state][measure] for seed in sorted(results)])
                for measure in measured
            }
            for state, measured in first[split].items()
        }
    return pooled


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation and the values themselves."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": deviation, "values": list(values)}

"""The searches of every state of the model while its embeddings are there; the runs are published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.pairwise_errors import errors_of_state
from hardneg.evaluation.measures import Measure
from hardneg.experiment.snapshot import State
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.mining import training_depth
from hardneg.process.distributed import by_leader
from hardneg.records import Qrels, Run


def search_state(
    state: State, data: TrainingData, measures: Sequence[Measure], *, depth: int, contains: Contains | None
) -> tuple[dict[str, Run], dict[str, dict[str, Any]]]:
    """Every run of a state, and its pairwise errors by split; its geometry is kept too.

    Parameters
    ----------
    depth : how far down training queries are mined.
    contains : what tells whether a passage contains an answer, where that makes it a positive.
    """
    runs = retrieve_all(state, data, depth=depth, evaluation_depth=evaluation_depth(measures), contains=contains)
    state.save_corpus_stats()
    return runs, by_leader(errors_of_state, state, asked_splits(state, data))


def retrieve_all(
    state: State,
    data: TrainingData,
    *,
    depth: int,
    evaluation_depth: int,
    contains: Contains | None,
) -> dict[str, Run]:
    """Every run of a state: training queries, the neighbours of their positives, dev and test.

    In every state, the final one too, test's queries are as long as search reads them and all others as training
    does: so dev compares states alike, on the way and at the end (the published scripts of ANCE-Tele).

    A state of which less is ``asked`` has the runs of dev and test alone, or that of dev.

    Parameters
    ----------
    contains : what tells whether a passage contains an answer, where that makes it a positive.
    """
    runs = {}
    if state.asked == "all":
        k = training_depth(data.collection, data.train, depth)
        runs["train"] = state.search("query", data.train.query_rows, k, as_trained=True)
        found = by_leader(current_positives, state, data, depth, contains).some()
        runs["lookahead"] = state.neighbours("lookahead", found.query_rows, found.first(), k)
    for name, qrels in asked_splits(state, data).items():
        runs[name] = state.search(name, qrels.query_rows, evaluation_depth, as_trained=name != "test")
    return runs


def evaluation_depth(measures: Sequence[Measure]) -> int:
    """How deep dev and test queries are searched for these measures."""
    return max(100, *(measure.cutoff or 1000 for measure in measures))


def judged_splits(data: TrainingData) -> dict[str, Qrels]:
    """The splits that judge; the first is the one that people look at."""
    both = {"test": data.test, "dev": data.dev}
    return {name: qrels for name, qrels in both.items() if qrels is not None}


def asked_splits(state: State, data: TrainingData) -> dict[str, Qrels]:
    """The splits of :func:`judged_splits` that a state is searched for: of a state asked for dev, that alone."""
    return {name: qrels for name, qrels in judged_splits(data).items() if state.asked != "dev" or name == "dev"}

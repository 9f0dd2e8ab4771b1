"""The searches of each state of the model, as long as it has embeddings; the runs are published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.pairwise_errors import errors_of_state
from hardneg.diagnostics.sampled_vectors import KIND, SampledVectors, hardest, sampled, save_sample
from hardneg.experiment.layout import run_of, sample_of
from hardneg.experiment.margins import report_queries
from hardneg.experiment.names import reads_as_trained
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.negatives.labels import current_positives
from hardneg.negatives.mining import training_depth
from hardneg.process.distributed import by_leader
from hardneg.records import Int32, Qrels, Run, distinct
from hardneg.search.bm25 import bm25_run
from hardneg.search.runs import KIND as RUN
from hardneg.search.runs import save_run
from hardneg.storage.artifacts import digest_json, is_current


def search_state(state: State, judge: Judge, *, depth: int) -> tuple[dict[str, Run], dict[str, dict[str, Any]]]:
    """Every run of a state, and its pairwise errors by split; its geometry and a few vectors are kept too.

    If the ``asked`` of a state is ``judged``, it has only the runs of dev and test; if ``dev``, only that of dev.

    Parameters
    ----------
    judge : has the training queries and the judged splits, dev and test.
    depth : how far down training queries are mined.
    """
    splits = {name: qrels for name, qrels in judge.data.judged.items() if state.asked != "dev" or name == "dev"}
    runs = search_training(state, judge, depth) if state.asked == "all" else {}
    runs |= search_judged(state, splits, judge)
    if encodes_some(state, judge):
        return runs, {}
    state.save_corpus_stats()
    by_leader(keep_sample, state, judge, runs.get("train"))
    return runs, by_leader(errors_of_state, state, splits)


def search_training(state: State, judge: Judge, depth: int) -> dict[str, Run]:
    """The runs of the training queries (``train``) and the neighbours of their positives (``lookahead``)."""
    data = judge.data
    k = training_depth(data.collection, data.train, depth)
    run = state.search("query", data.train.query_rows, k, as_trained=True)
    found = by_leader(current_positives, state, data, depth, judge.contains).some()
    return {"train": run, "lookahead": state.neighbours("lookahead", found.query_rows, found.first(), k)}


def search_judged(state: State, splits: Mapping[str, Qrels], judge: Judge) -> dict[str, Run]:
    """The runs of the queries of splits that judge, as deep as the judge asks, among the passages that it names.

    How long they are is the same in every state: see :func:`~hardneg.experiment.names.reads_as_trained`.
    """
    among = by_leader(lambda: judge.judged_among)
    return {name: search_split(state, name, qrels, judge, among.get(name)) for name, qrels in splits.items()}


def search_split(state: State, name: str, qrels: Qrels, judge: Judge, among: Int32 | None) -> Run:
    """The run of a split's queries among the passages of these rows; None: among all."""
    depth, as_trained = judge.depth_of(name), reads_as_trained(name)
    if among is None or not isinstance(state, Snapshot) or state.index is not None:
        return state.search(name, qrels.query_rows, depth, as_trained=as_trained)
    alone = encodes_some(state, judge)
    limited = state.limited(among, alone=alone)
    run = limited.search(name, qrels.query_rows, depth, as_trained=as_trained)
    if alone:
        limited.discard("passage")
    return run


def encodes_some(state: State, judge: Judge) -> bool:
    """Whether a state needs no passages but those among which dev is judged.

    Other states also mine, or are measured on test. A state between two steps is measured on dev alone, but
    negatives may be mined with its weights afterwards: then its vectors of all passages serve both.
    """
    if judge.dev_passages is None or state.asked == "all":
        return False
    if not isinstance(state, Snapshot):
        return state.asked == "dev"
    return not (state.mines or (state.asked != "dev" and "test" in judge.data.judged))


def bm25_judged(judge: Judge) -> dict[str, Run]:
    """BM25's runs of the dev and test queries, to measure against."""
    data, among = judge.data, judge.judged_among
    return {
        name: bm25_run(data.collection, qrels.query_rows, judge.depth_of(name), judge.cache, among=among.get(name))
        for name, qrels in data.judged.items()
    }


def keep_bm25_runs(runs: Mapping[str, Run], judge: Judge, folder: Path) -> None:
    """Publish BM25's runs of the splits that judge below ``folder``, for the report of an experiment that runs.

    The run of dev also says among which passages dev is judged.
    """
    for name, run in runs.items():
        inputs = {"collection": judge.data.collection.digest}
        settings = {"depth": judge.depth_of(name), **(judge.few_of_dev if name == "dev" else {})}
        save_run(run, run_of(folder, name), inputs=inputs, settings=settings)


def keep_bm25_lists(judge: Judge, path: Path, *, queries: int, depth: int) -> None:
    """Publish BM25's run of training queries at ``path``, once: the first list in which they meet a negative.

    Parameters
    ----------
    queries : at most so many, drawn at random; 0: no run is made.
    depth : how far down training queries are mined.
    """
    data = judge.data
    rows = report_queries(data.train.query_rows, queries)
    k = training_depth(data.collection, data.train, depth)
    inputs = {"collection": data.collection.digest, "queries": digest_json([rows.tolist(), k])}
    if len(rows) and not is_current(path, RUN, inputs):
        run = bm25_run(data.collection, rows, k, judge.cache)
        save_run(run, path, inputs=inputs, settings={"depth": k})


def keep_sample(state: State, judge: Judge, run: Run | None) -> None:
    """Publish a few vectors of a state beside its runs, once; a state without embeddings of its own has none.

    Parameters
    ----------
    run : of all training queries, by this state; None: they were not searched.
    """
    if run is None or not isinstance(state, Snapshot) or state.index is not None or state.chunks is not None:
        return
    data = judge.data
    inputs, path = {"collection": data.collection.digest, "model": state.digest}, sample_of(state.folder)
    some = sampled(data.train)
    if not len(some) or is_current(path, KIND, inputs):
        return
    first, negatives = some.first(), hardest(run, some, data, judge.contains)
    rows = distinct(np.concatenate([first, negatives[negatives >= 0]])).astype(np.int32)
    queries = np.asarray(state.queries_as(True).rows(some.query_rows))
    passages = np.asarray(state.passages.rows(rows))
    save_sample(SampledVectors(some.query_rows, queries, rows, passages, first, negatives), path, inputs)

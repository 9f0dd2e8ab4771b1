"""Measures of the runs in an experiment's folder: by query, and of states that ``results.json`` lacks yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hardneg.diagnostics.forgetting import reciprocal_ranks_of
from hardneg.diagnostics.judge import Judge
from hardneg.errors import HardnegError
from hardneg.evaluation.judged import JudgedHits
from hardneg.evaluation.measures import Evaluation, parse_measures, relevant_hits
from hardneg.experiment.layout import run_of
from hardneg.experiment.names import BM25
from hardneg.records import Int32
from hardneg.report.opened import Float64, Opened
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published

BY_DEFAULT = "RR@10 nDCG@10"


def judge_of(opened: Opened) -> Judge:
    """The judge of an experiment's runs, with the measures that its settings name."""
    named = opened.settings.get("settings", {}).get("measures", BY_DEFAULT)
    return Judge(opened.data_here, parse_measures(named), opened.cache)


def evaluations(opened: Opened) -> Mapping[str, Mapping[str, Evaluation]]:
    """The evaluation of every state's runs by state and split, query by query; empty without the collection."""
    if opened.data is None:
        return {}
    if "evaluations" not in opened.kept:
        opened.kept["evaluations"] = _evaluated(opened)
    found: Mapping[str, Mapping[str, Evaluation]] = opened.kept["evaluations"]
    return found


def _evaluated(opened: Opened) -> dict[str, dict[str, Evaluation]]:
    try:
        judge = judge_of(opened)
    except HardnegError as fault:
        opened.note(fault)
        return {}
    splits = opened.data_here.judged
    found: dict[str, dict[str, Evaluation]] = {}
    for state in opened.states:
        runs = {split: run for split in splits if (run := opened.run(state, split)) is not None}
        if runs:
            found[state.name] = opened.told(lambda runs=runs: judge.evaluate(runs), {})  # type: ignore[misc]
    return found


def of_bm25(opened: Opened) -> Mapping[str, Evaluation]:
    """The evaluation by split of BM25's runs, which stand in the folder from the beginning; {} without them.

    BM25 is no state of the model, so it is not among :func:`evaluations`.
    """
    if opened.data is None:
        return {}
    if "bm25 judged" not in opened.kept:
        none: dict[str, Evaluation] = {}
        opened.kept["bm25 judged"] = opened.told(lambda: _of_bm25(opened), none)
    found: Mapping[str, Evaluation] = opened.kept["bm25 judged"]
    return found


def _of_bm25(opened: Opened) -> dict[str, Evaluation]:
    folder = opened.layout.runs_of(BM25)
    places = {split: run_of(folder, split) for split in opened.data_here.judged}
    found = {split: place for split, place in places.items() if is_published(place)}
    return judge_of(opened).evaluate({split: load_run(place) for split, place in found.items()}) if found else {}


def means_of(opened: Opened) -> dict[str, dict[str, dict[str, Any]]]:
    """Measures by split, state and name: those of ``results.json``, else of the runs that are there."""
    splits = ("test", "dev")
    if opened.results and "seeds" not in opened.results:
        return {split: opened.results[split] for split in splits if opened.results.get(split)}
    by_state = {BM25: of_bm25(opened), **evaluations(opened)}
    found = {split: {state: by[split].means for state, by in by_state.items() if split in by} for split in splits}
    return {split: states for split, states in found.items() if states}


def training_ranks(opened: Opened) -> tuple[Int32, dict[str, Float64]]:
    """The training queries [Q], and by state the reciprocal rank of each one's best positive [Q].

    The states are those with a run of the same queries, in the order of training. Without the collection there are
    none.
    """
    if "ranks" not in opened.kept:
        opened.kept["ranks"] = _ranks(opened)
    found: tuple[Int32, dict[str, Float64]] = opened.kept["ranks"]
    return found


def _ranks(opened: Opened) -> tuple[Int32, dict[str, Float64]]:
    rows: Int32 = np.zeros(0, np.int32)
    found: dict[str, Float64] = {}
    for name, hits in training_hits(opened).items():
        asked = hits.qrels.query_rows
        if not found:
            rows = asked
        if np.array_equal(asked, rows):
            found[name] = reciprocal_ranks_of(hits)
    return rows, found


def training_hits(opened: Opened) -> dict[str, JudgedHits]:
    """The positives among the hits of training queries, by state with such a run, in the order of training."""
    if "training hits" not in opened.kept:
        judge = judge_of(opened)
        runs = {state.name: opened.run(state, "query") for state in opened.trained_states}
        opened.kept["training hits"] = {  # of whole lists, as an error counts at any place of them
            name: relevant_hits(run, judge.relevant(run, None)) for name, run in runs.items() if run is not None
        }
    found: dict[str, JudgedHits] = opened.kept["training hits"]
    return found

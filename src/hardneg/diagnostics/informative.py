"""Informative negatives: how many of a model's negatives are still near their query after training on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.encounters import keys_of
from hardneg.experiment.layout import informative_of, run_of
from hardneg.experiment.snapshot import State
from hardneg.keyed_random import UInt64
from hardneg.negatives.candidates import Contains, candidates
from hardneg.negatives.pool import NegativePool, open_pool
from hardneg.records import Int32, Positives, Run, owners, spans
from hardneg.storage.artifacts import is_current, is_published, publish, read_manifest

KIND = "informative-share"
DEPTH = 100
LISTS = "as mined"  # what takes a place among the first 100; before, copies and the query itself did, too


def informative_share(
    pool: NegativePool,
    run: Run,
    positives: Positives,
    text_keys: UInt64,
    *,
    copies: Int32 | None = None,
    no_negative: Contains | None = None,
) -> float:
    """Mean over queries of the share of a query's negatives that are among its first 100 hits (ANCE, Section 6.3).

    Parameters
    ----------
    pool : the negatives of training; queries without negatives do not count.
    run : the run of the trained model for the training queries. Where it is not deep enough to leave 100 hits
        without positives, those that it leaves count.
    positives : D+(q); they do not count among the 100.
    text_keys : [passages] equal for passages of equal text.
    copies : [passages] the first passage with the same text, -1 where there is no other: hits with one text take
        one place. None: all texts differ.
    no_negative : tells which passages are never a negative of their query, and do not count either.
    """
    if no_negative is not None:
        run = run.where(~no_negative(run.query_rows[owners(run.offsets)], run.passage_rows))
    now = candidates(
        run,
        positives,
        source="query",
        episode=pool.episode,
        depth=DEPTH,
        text_keys=text_keys,
        copies=copies,
    )
    lengths = spans(pool.offsets)
    mine, near = (replace(one, passage_rows=firsts(one.passage_rows, copies)) for one in (pool, now))
    found = np.isin(keys_of(mine), keys_of(near))
    hits = np.bincount(owners(pool.offsets)[found], minlength=len(lengths))
    return float((hits[lengths > 0] / lengths[lengths > 0]).mean())


def firsts(passage_rows: Int32, copies: Int32 | None) -> Int32:
    """The row [n] of the first passage that has the text of each of these [n]."""
    if copies is None:
        return passage_rows
    return np.where(copies[passage_rows] < 0, passage_rows, copies[passage_rows])


def share_of_state(state: State, run: Run, positives: Positives, data: TrainingData) -> float | None:
    """The informative share for the negatives that a state was trained on last; None if it had none.

    The share is stored beside the state's runs, because the negatives may be deleted later. One that an older
    version stored goes by other lists. It is computed again, or left out if the negatives are gone.
    """
    path, collection = informative_of(state.folder), data.collection
    if state.pool is None:
        return None
    if not is_published(state.pool):
        kept = read_manifest(path) if is_published(path, KIND) else None
        return kept.facts["share"] if kept is not None and kept.inputs.get("lists") == LISTS else None
    pool = open_pool(state.pool, collection)
    if not len(pool.passage_rows):
        return None
    ranked = run_of(state.folder, "query")
    inputs = {"pool": read_manifest(state.pool).digest, "run": read_manifest(ranked).digest, "lists": LISTS}
    if not is_current(path, KIND, inputs):
        with publish(path, KIND, inputs=inputs, replace=True) as draft:
            draft.facts["share"] = informative_share(
                pool,
                run,
                positives,
                collection.text_keys,
                copies=collection.copies,
                no_negative=data.no_negative,
            )
    return read_manifest(path).facts["share"]

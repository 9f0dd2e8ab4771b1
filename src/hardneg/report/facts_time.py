"""The timeline of an experiment as a table, and how old the negatives of each step were."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hardneg import keyed_random
from hardneg.diagnostics.counted_errors import errors_in_lists, most_errors
from hardneg.diagnostics.curves import smooth
from hardneg.diagnostics.encounters import keys_of
from hardneg.diagnostics.forgetting import reciprocal_ranks_of
from hardneg.diagnostics.timeline import TRAINER
from hardneg.experiment.names import BEGIN
from hardneg.experiment.states import StateRecord
from hardneg.negatives.pool import NegativePool, matches
from hardneg.records import owners, spans
from hardneg.report.facts_results import begins_of, placed, starting_state, step_of
from hardneg.report.lists import part_of, without_positives
from hardneg.report.measured import training_hits
from hardneg.report.opened import Opened, name_of_pool
from hardneg.report.table import NotMeant, NotRecorded, Table

LONGEST = 400  # bars, and points of a line
WINDOWS = 40  # steps are divided by this for the window of a moving mean
BY_STEP = ("step", "RR@10", "mean RR@10", "errors", "mean errors")
SAMPLED, SEED = 1_000, 0  # queries whose negatives are looked up in lists


def timeline_table(opened: Opened) -> Table:
    """When each stage ran, in seconds from the beginning; only the longest stages."""
    known = [row for row in opened.timing if "begun" in row and row["stage"] != BEGIN]
    if not known:
        raise NotRecorded("When stages ran was not recorded.")
    zero = min(row["begun"] for row in known)
    longest = sorted(known, key=lambda row: -row["seconds"])[:LONGEST]
    rows: list[dict[str, Any]] = [
        {
            "lane": "trainer" if row["stage"] in TRAINER else "inferencer",
            "stage": row["stage"],
            "what": ", ".join(
                f"{name} {row[name]}" for name in ("episode", "version", "run", "side") if name in row
            ),
            "from": round(row["begun"] - zero, 2),
            "to": round(row["begun"] - zero + row["seconds"], 2),
        }
        for row in sorted(longest, key=lambda row: row["begun"])
    ]
    return Table.of(rows)


def gap_table(opened: Opened) -> Table:
    """Steps between the model that mined the negatives and the step that uses them (ANCE, Figure 5)."""
    rows = [
        (row["step"], row["negative_version"], row["async_gap"])
        for row in opened.metrics
        if row.get("async_gap") is not None
    ]
    if not rows:
        raise NotMeant("Negatives were not refreshed while training ran, so there is no gap to show.")
    return Table(("step", "version", "gap"), tuple(rows[:: max(len(rows) // LONGEST, 1)]))


def overlap_by_step_table(opened: Opened) -> Table:
    """The share of training negatives that their queries retrieve, by step (STAR, Figure 4a).

    A recipe that retrieves at every step logs the share. For other recipes, the negatives of each pool are looked
    up in the lists of two states: those in which training on the pool began and ended. If every episode starts
    from scratch, the first of these is the starting model.
    """
    rows = [(row["step"], row["overlap"]) for row in opened.metrics if row.get("overlap") is not None]
    if rows:
        return Table(("step", "overlap"), tuple(rows[:: max(len(rows) // LONGEST, 1)]))
    found: dict[tuple[str, int], float] = {}
    for after, points in _ends_of_training(opened):
        pool = opened.pool_at(after.pool)
        if pool is None or after.pool is None or not len(pool.passage_rows):
            continue
        name = name_of_pool(after.pool)
        for state, step in points:
            if (name, step) not in found:
                found[name, step] = retrieved_share(opened, pool, state)
    if not found:
        raise NotMeant(
            "Training used in-batch negatives alone, so there are no mined ones to compare with the hits."
        )
    values = [(step, share, name) for (name, step), share in found.items() if share == share]  # no NaN
    return Table(("step", "overlap", "negatives"), tuple(values))


def _ends_of_training(opened: Opened) -> list[tuple[StateRecord, list[tuple[StateRecord, int]]]]:
    """The states that training made, each with the two (and steps) in which training on its pool began and ended.

    All were searched. The first of the two is left out if it was not searched.
    """
    states, begins = _searched(opened), begins_of(opened)
    if not opened.restarts:
        return [
            (after, [(one, step_of(one, begins)) for one in (before, after)]) for before, after in pairwise(states)
        ]
    starts = [one for one in states if one.name == starting_state(opened)]
    return [
        (after, [*((one, begins.get(after.episode, 0)) for one in starts), (after, step_of(after, begins))])
        for after in states
        if after.episode
    ]


def _searched(opened: Opened) -> list[StateRecord]:
    """The states with lists of the training queries, in the order of training; raises if there are under two."""
    found = [one for one in opened.trained_states if opened.has_run(one, "query")]
    if opened.trains_ranker:
        raise NotMeant("A ranker retrieves nothing.")
    if len(found) < 2:
        raise NotRecorded(
            "States were searched for dev and test alone (examine = judged), and steps did not retrieve, so this"
            " is not known."
            if opened.judged_alone
            else "This needs the hits of the training queries in two states, and they are not there."
        )
    return found


def retrieved_share(opened: Opened, pool: NegativePool, state: StateRecord) -> float:
    """The share of a query's negatives that are in its list at mining depth, mean over sampled queries.

    NaN if no sampled query has a negative. Positives do not count in the list.
    """
    rows = pool.query_rows[spans(pool.offsets) > 0]
    words = keyed_random.hash64(keyed_random.key(SEED, "report/overlap"), rows)
    some = np.sort(rows[np.argsort(words, kind="stable")[:SAMPLED]])
    run = opened.run(state, "query")
    if run is None or not len(some):
        return float("nan")
    part = pool.select(matches(pool.query_rows, some)[0])
    found = np.isin(keys_of(part), keys_of(without_positives(opened, part_of(run, some), some)))
    hits = np.bincount(owners(part.offsets)[found], minlength=len(part))
    return float((hits / spans(part.offsets)).mean())


def ranking_by_step_table(opened: Opened) -> Table:
    """How training queries rank their positives, by step (STAR, Figure 4b).

    A recipe that retrieves at every step logs the ranks of the step's queries before the step; further columns
    have moving means. For other recipes, there is a row for each state that searched the training queries, with
    the means over all of them; if every episode starts from scratch, ``episode`` says whose line a row is in.
    """
    rows = [row for row in opened.metrics if row.get("train_rr_10") is not None]
    if not rows:
        return _ranking_by_state(opened)
    width = max(len(rows) // WINDOWS, 1)
    ranks, errors = (np.array([row[name] for row in rows], float) for name in ("train_rr_10", "train_errors"))
    columns = (ranks, smooth(ranks, width), errors, smooth(errors, width))
    found = [(row["step"], *values) for row, *values in zip(rows, *(one.tolist() for one in columns), strict=True)]
    return Table(BY_STEP, tuple(found[:: max(len(found) // LONGEST, 1)]))


def _ranking_by_state(opened: Opened) -> Table:
    """Mean RR@10 and errors of all training queries in each state; the shortest list decides K."""
    _searched(opened)
    hits = training_hits(opened)
    k = min(map(most_errors, hits.values()))
    rows = []
    for state, place in placed(opened, opened.trained_states):
        if state.name in hits:
            known = spans(hits[state.name].qrels.offsets) > 0
            rank = float(reciprocal_ranks_of(hits[state.name], 10)[known].mean())
            errors = float(errors_in_lists(hits[state.name], k)[known].mean())
            of_state = dict(zip(BY_STEP[1:], (rank, rank, errors, errors), strict=True))
            rows.append(place | of_state)
    return Table.of(rows)

"""Tables of pairwise errors: of judged queries state by state, of training queries, and tests between states."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from hardneg.diagnostics.counted_errors import KIND as ERRORS
from hardneg.diagnostics.counted_errors import (
    PairwiseErrors,
    compare_errors,
    errors_in_lists,
    load_errors,
    most_errors,
)
from hardneg.experiment.layout import errors_of
from hardneg.experiment.names import FINAL, LAST, STARTED, UNTRAINED, shown
from hardneg.records import spans
from hardneg.report.facts_results import of_test
from hardneg.report.measured import training_hits
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded, Table
from hardneg.storage.artifacts import is_published, read_manifest

SEED, PERMUTATIONS, SAMPLES = 0, 20_000, 2_000  # of tests


def _errors(opened: Opened) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The pairwise errors by split and state."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for split in ("test", "dev"):
        for name, one in opened.results.get("pairwise_errors", {}).get(split, {}).items():
            found[split, name] = one
        for state in opened.states:
            if state.runs is not None and (split, state.name) not in found:
                place = errors_of(opened.layout / state.runs, split)
                if is_published(place):
                    found[split, state.name] = dict(read_manifest(place).facts)
    if not found:
        raise NotRecorded("Pairwise errors were not counted.")
    return found


def errors_table(opened: Opened) -> Table:
    """The mean errors of a query: all, and at most k of each positive.

    An error of a positive is an irrelevant passage that scores higher.
    """
    return Table.of(
        {
            "split": split,
            "state": shown(name),
            "all": one["total"],
            f"first {one['k']}": one["top"],
            "queries": one["queries"],
        }
        for (split, name), one in _errors(opened).items()
    )


def errors_distribution_table(opened: Opened) -> Table:
    """Shares of queries and of errors by a query's number of errors (in decades), before and after training."""
    found = _errors(opened)
    split = next(iter(found))[0]
    names = [name for of, name in found if of == split and name != UNTRAINED]
    after = opened.ended(names or [FINAL])
    rows = [
        {
            "state": shown(name),
            "errors of a query": "none" if row["least"] == 0 else f"{row['least']:,} to {row['below'] - 1:,}",
            "order": at,
            "queries": row["queries"],
            "errors": row["errors"],
        }
        for name in (UNTRAINED, after)
        if (split, name) in found
        for at, row in enumerate(found[split, name].get("distribution", []))
    ]
    if not rows:
        raise NotRecorded("Errors were not counted query by query.")
    return Table.of(rows)


def errors_by_query(opened: Opened, split: str) -> dict[str, PairwiseErrors]:
    """The errors of each state of training on a split, query by query, in the order of training."""
    found: dict[str, PairwiseErrors] = {}
    for state in opened.states:
        place = (
            None if state.runs is None or state.of is not None else errors_of(opened.layout / state.runs, split)
        )
        if place is not None and state.kind != "passing" and is_published(place, ERRORS):
            one = opened.told(lambda place=place: load_errors(place), None)  # type: ignore[misc]
            if one is not None:
                found[state.name] = one
    if LAST in found:  # the final state is a copy of an earlier one
        found.pop(FINAL, None)
    return found


def errors_tests_table(opened: Opened) -> Table:
    """Paired tests of the errors of each state against the one before, and of the last against the first."""
    split = next(iter(_errors(opened)))[0]
    found = errors_by_query(opened, split)
    names = [name for name in found if name != UNTRAINED or STARTED not in found]
    pairs = [(after, before) for before, after in pairwise(names)]
    if names and UNTRAINED in found and (end := (names[-1], UNTRAINED)) not in pairs and names[-1] != UNTRAINED:
        pairs.append(end)
    if not pairs:
        raise NotRecorded("This compares the errors of two states query by query; they were not kept.")
    rows = compare_errors(found, pairs, seed=SEED, permutations=PERMUTATIONS, samples=SAMPLES)
    return Table.of(
        {
            "split": split,
            "state": shown(row["a"]),
            "against": shown(row["b"]),
            "errors": row["errors"],
            **of_test(row, {"queries with fewer": row["fewer"], "queries with more": row["more"]}),
        }
        for row in rows
    )


def training_errors_table(opened: Opened) -> Table:
    """The errors of training queries in the lists that each state mined from, at most K of each positive.

    K is the same for all states; the state with the shortest list decides it.
    """
    found = training_hits(opened)
    if not found:
        raise NotRecorded("No run of the training queries is there.")
    k = min(map(most_errors, found.values()))
    rows: list[dict[str, Any]] = []
    for name, hits in found.items():
        errors = errors_in_lists(hits, k)[spans(hits.qrels.offsets) > 0]
        rows.append(
            {
                "split": "train",
                "state": shown(name),
                f"first {k}": float(errors.mean()),
                "median": float(np.median(errors)),
                "queries without errors": float(np.mean(errors == 0)),
                "queries": len(errors),
            }
        )
    return Table.of(rows)

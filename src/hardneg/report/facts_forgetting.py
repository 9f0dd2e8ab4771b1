"""Tables of forgetting: how many training queries were forgotten, which ones, and the ranks of ten of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from hardneg.diagnostics.forgetting import forgetting, sample_queries, trajectories
from hardneg.experiment.names import BEFORE, LAST, shown
from hardneg.negatives.facts import entries_of
from hardneg.report.measured import training_ranks
from hardneg.report.opened import Float64, Opened
from hardneg.report.table import NotMeant, NotRecorded, Table

SAMPLED, LISTED = 10, 20
SEED = 0


def ranks_of(opened: Opened) -> tuple[Any, dict[str, Float64]]:
    """The training queries and their reciprocal ranks by state; raises if there are fewer than two states."""
    if opened.trains_ranker:
        raise NotMeant("A ranker was trained, which retrieves nothing.")
    if opened.judged_alone:
        what = "States were searched for dev and test alone (examine = judged), so forgetting is not known."
        raise NotRecorded(what)
    rows, ranks = training_ranks(opened)
    if len(ranks) < 2:
        raise NotRecorded("Forgetting needs two states of the model with runs of the training queries.")
    return rows, ranks


def forgetting_table(opened: Opened) -> Table:
    """Shares of training queries forgotten and learned from state to state, and from the first to the last.

    If a trained state before the last was kept, one more row goes from the first state to that one.
    """
    found = opened.results.get("forgetting") if "seeds" not in opened.results else None
    if not found:
        found = forgetting(ranks_of(opened)[1])
    if len(found) > 1:
        first, kept = found[0]["before"], kept_before_the_last(opened)
        found = [*found, *over_all(opened, first, found[-1]["after"])]
        found += [row | {"kept": True} for row in (over_all(opened, first, kept) if kept else [])]
    return Table.of(
        {
            "from": shown(row["before"]),
            "to": shown(row["after"]) + " (kept)" * ("kept" in row),
            "forgotten": row["forgotten"],
            "learned": row["learned"],
            "MRR@100 then": row["train_mrr_100"],
        }
        for row in found
    )


def kept_before_the_last(opened: Opened) -> str:
    """The name of the trained state that was kept; "" if it is the last one, or the untrained model was kept."""
    name = str(opened.results.get("kept", {}).get("state", LAST))
    return "" if name in (LAST, *BEFORE) else name


def over_all(opened: Opened, first: str, last: str) -> list[dict[str, Any]]:
    """The row from the first state to the last, or to another; none if a run of theirs is gone or never was."""
    try:
        ranks = ranks_of(opened)[1]
        return [*map(dict, forgetting({name: ranks[name] for name in (first, last)}))]
    except (NotRecorded, KeyError):
        return []


def trajectories_table(opened: Opened) -> Table:
    """The reciprocal rank of ten sampled training queries in each state."""
    rows, ranks = ranks_of(opened)
    at = sample_queries(rows, SAMPLED, seed=SEED)
    values = trajectories(list(ranks.values()), at)
    ids = opened.data_here.collection.query_ids
    return Table.of(
        {"query": ids[int(rows[i])], "state": shown(name), "order": order, "RR@100": float(line[order])}
        for i, line in zip(at, values, strict=True)
        for order, name in enumerate(ranks)
    )


def forgotten_table(opened: Opened) -> Table:
    """The training queries that fell most between two states, with negatives that steps could draw then."""
    rows, ranks = ranks_of(opened)
    collection = opened.data_here.collection
    falls: list[tuple[float, int, str, str]] = []
    for before, after in pairwise(ranks):
        change = ranks[after] - ranks[before]
        for i in np.argsort(change, kind="stable")[:LISTED]:
            if change[i] < 0:
                falls.append((float(change[i]), int(i), before, after))
    return Table.of(
        {
            "query": collection.query_ids[row],
            "text": collection.query_texts[row],
            "from": shown(before),
            "to": shown(after),
            "rank before": rank_of(ranks[before][i]),
            "rank after": rank_of(ranks[after][i]),
            "in the pool": in_the_pool(opened, after, row),
        }
        for _, i, before, after in sorted(falls)[:LISTED]
        for row in [int(rows[i])]
    )


def rank_of(reciprocal: float) -> int | None:
    """The rank that a reciprocal rank stands for; None for 0, when no positive was found."""
    return round(1 / float(reciprocal)) if reciprocal > 0 else None


def in_the_pool(opened: Opened, state: str, query_row: int, most: int = 5) -> str:
    """The first negatives of a query in the pool that steps before a state drew from, as ids with sources."""
    record = opened.state(state)
    pool = opened.pool_at(record.pool) if record is not None else None
    if pool is None:
        return ""
    found = np.flatnonzero(pool.query_rows == query_row)
    if not len(found) or pool.offsets[i := int(found[0])] == pool.offsets[i + 1]:
        return "no negatives of its own"
    ids = opened.data_here.collection.passage_ids
    left = int(pool.offsets[i + 1] - pool.offsets[i]) - most
    told = [
        f"{ids[entry.passage_row]} ({'momentum, ' * entry.momentum}{entry.source})"
        for entry in entries_of(pool, i, most)
    ]
    more = [f"and {left} more"] if left > 0 else []
    return "; ".join([*told, *more])

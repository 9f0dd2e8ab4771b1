"""Tables of negatives: composition, new ones near d+, swing, and how many are still informative."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hardneg.diagnostics.composition import composition, composition_of_pools, draws_from_state, new_negatives
from hardneg.diagnostics.score_profile import in_batch_share
from hardneg.diagnostics.swing import CLASSES, Swing, swing, swing_cases
from hardneg.experiment.layout import informative_of
from hardneg.experiment.names import shown
from hardneg.negatives.pool import NegativePool
from hardneg.report.lists import RowLists, bm25_lists, depth_of, mined_lists, rows_of_pool
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded, Table
from hardneg.storage.artifacts import is_published, read_manifest

NEAR = 100  # first candidates among which a negative is informative
CASES, PASSAGES = 5, 3
FEWEST_FOR_SWING = 3
FIRST, POOL = "BM25", " pool"


def lists_or_none(opened: Opened, name: str) -> dict[str, RowLists]:
    """The candidates of each episode; empty if they are not known."""
    try:
        return mined_lists(opened, name)
    except NotRecorded:
        return {}


def composition_table(opened: Opened) -> Table:
    """The mined candidates of each episode by the list in which their query met them first.

    If BM25's lists were kept for only some training queries, only these are counted.
    """
    return Table.of(row for row in composed(opened) if row["list"] != FIRST and not row["list"].endswith(POOL))


def pools_table(opened: Opened) -> Table:
    """The training negatives of each episode by the list in which their query met them first.

    If the candidates of an episode are not known, it is by the source that drew a negative into a pool first.
    """
    if not opened.pools:
        raise NotRecorded(
            "No pool of negatives is here: the recipe takes them anew at every step, or they are gone."
        )
    query = drawn_from(opened)
    if any(name not in query for name, pool in opened.pools.items() if len(pool.passage_rows)):
        return Table.of(composition_of_pools(opened.pools, unit=opened.unit).rows())
    found = [row for row in composed(opened) if row["list"].endswith(POOL)]
    return Table.of(row | {"list": row["list"].removesuffix(POOL)} for row in found)


def composed(opened: Opened) -> list[dict[str, Any]]:
    """The composition of BM25's lists, the candidates and the pools, in the order in which training met them."""
    if "composition" not in opened.kept:
        lists = encountered(opened)
        pools = [name for name in lists if name.endswith(POOL)]
        opened.kept["composition"] = composition(lists, pools=pools).rows()
    found: list[dict[str, Any]] = opened.kept["composition"]
    return found


def drawn_from(opened: Opened) -> dict[str, RowLists]:
    """The candidates from which negatives were drawn; empty if they are not known.

    A state is also searched to be examined: a pool that was given, or is empty, has no negatives of its lists.
    """
    pools = opened.pools
    return {
        name: lists
        for name, lists in lists_or_none(opened, "query").items()
        if name not in pools or draws_from_state(pools[name])
    }


def encountered(opened: Opened) -> dict[str, RowLists]:
    """BM25's lists and each episode's candidates and pool; if BM25's lists were kept, only for their queries."""
    mined_lists(opened)  # says why there are none
    query, lookahead, first = drawn_from(opened), lists_or_none(opened, "lookahead"), bm25_lists(opened)
    if not query:
        raise NotRecorded("No negatives were drawn from what a state of the model retrieves.")
    lists = {} if first is None else {FIRST: first}
    for name, found in query.items():
        lists[f"{name} query"] = found
        if name in lookahead:
            lists[f"{name} lookahead"] = lookahead[name]
        if name in opened.pools:
            lists[f"{name}{POOL}"] = rows_of_pool(opened.pools[name])
    if first is None or all(len(one.query_rows) <= len(first.query_rows) for one in query.values()):
        return lists
    return {name: one.of_queries(first.query_rows) for name, one in lists.items()}


def momentum_table(opened: Opened) -> Table:
    """The size of each pool and, if there are episodes, the share that momentum carried over from older ones."""
    if not opened.pools:
        raise NotRecorded("No pool of negatives is here.")
    return Table.of(
        {
            "pool": name,
            "queries": len(pool),
            "negatives": len(pool.passage_rows),
            **({"of momentum": share_carried(pool)} if opened.unit == "episode" else {}),
        }
        for name, pool in opened.pools.items()
    )


def share_carried(pool: NegativePool) -> float:
    """The share of a pool that momentum carried over; 0 for an empty one."""
    return float(pool.momentum.mean()) if len(pool.passage_rows) else 0.0


def new_table(opened: Opened) -> Table:
    """New candidates of each episode, and the share of them that were near d+ in the episode before."""
    query, lookahead, first = mined_lists(opened), mined_lists(opened, "lookahead"), bm25_lists(opened)
    before = []
    if first is not None:
        query, lookahead = (
            {n: one.of_queries(first.query_rows) for n, one in of.items()} for of in (query, lookahead)
        )
        before = [first]
    return Table.of(
        {
            opened.unit: one.episode,
            "candidates": one.candidates,
            "new": one.new,
            "near d+ before": one.near,
            "share": one.share,
        }
        for one in new_negatives(query, lookahead, before=before)
    )


def lists_that_swing(opened: Opened) -> dict[str, RowLists]:
    """The candidates, if they are of as many episodes or refreshes as swing needs."""
    query = mined_lists(opened)
    if len(query) < FEWEST_FOR_SWING:
        several = {"episode": "episodes", "refresh": "refreshes"}[opened.unit]
        raise NotRecorded(f"Swing needs three {several} or more: mined, absent, and mined again.")
    return query


def swing_table(opened: Opened) -> Table:
    """Candidates that leave and return, by class; entries of pools that do so have rows of their own."""
    lists_that_swing(opened)
    found = {"candidates": swung(opened)}
    pools = {name: pool for name, pool in opened.pools.items() if len(pool.passage_rows)}  # not those in the batch
    if len(pools) >= FEWEST_FOR_SWING:
        found["pools"] = swing(pools)
    return Table.of(
        {"of": name, "class": CLASSES[at] if at < len(CLASSES) else None, **row}
        for name, one in found.items()
        for at, row in enumerate(one.rows())
    )


def swung(opened: Opened) -> Swing:
    """The swing of the candidates."""
    if "swing" not in opened.kept:
        opened.kept["swing"] = swing(mined_lists(opened))
    found: Swing = opened.kept["swing"]
    return found


def swing_cases_table(opened: Opened) -> Table:
    """Passages that swing, with texts and places by episode, of the queries that show swing best."""
    query = lists_that_swing(opened)
    collection = opened.data_here.collection
    cases = [
        case for row in swung(opened).clearest(CASES) for case in islice(swing_cases(query, int(row)), PASSAGES)
    ]
    return Table.of(
        {
            "query": collection.query_texts[case.query_row],
            "class": case.letter,
            "passage": collection.passage_ids[case.passage_row],
            "text": collection.texts[case.passage_row],
            **{name: place or None for name, place in zip(query, case.places, strict=True)},
        }
        for case in cases
    )


def informative_table(opened: Opened) -> Table:
    """Shares of negatives among a query's first 100: those of pools that steps drew from, and of the batch.

    Those of the batch are known where as many hits of each query were mined.
    """
    found = opened.results.get("informative") or kept_shares(opened)
    rows = [
        {"negatives": "in the pool, after training drew from it", "state": shown(name), "share": share}
        for name, share in found.items()
    ]
    deep = depth_of(opened) >= min(NEAR, opened.data_here.collection.n_passages)
    for name, lists in lists_or_none(opened, "query").items() if deep else ():
        share = in_batch_share(lists.cut(NEAR), opened.data_here.train)
        rows.append({"negatives": "in-batch, when mined", "state": name, "share": share})
    if not rows:
        raise NotRecorded("Which negatives are still near is not recorded.")
    return Table.of(rows)


def kept_shares(opened: Opened) -> dict[str, float]:
    """The share of each state's training negatives that are still near, as it is stored with its runs."""
    found: dict[str, float] = {}
    for state in opened.trained_states:
        place = informative_of(opened.layout / str(state.runs))
        if is_published(place):
            found[state.name] = float(read_manifest(place).facts["share"])
    return found

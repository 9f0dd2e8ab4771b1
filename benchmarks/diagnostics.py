"""Composition and swing of negatives against pandas, and the whole report at full size; lists are generated.

Each query has a run of 200 passages and a pool of 180 negatives in each of five episodes, and a run of BM25. The
passages of a query are drawn from 601 near it, so lists of different episodes share a third. The peer does what
a notebook does: it groups and merges frames. The contest named ``full`` has no peer, because pandas would need
more memory than most machines have.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from contest import Arrays, Contest, Run, main

SIZE = {"queries": 20_000, "episodes": 5, "depth": 200, "negatives": 180, "passages": 8_841_823}
FULL = {**SIZE, "queries": 100_000}
DEMO = {
    "queries": 6_483,
    "episodes": 2,
    "depth": 200,
    "negatives": 60,
    "passages": 8_327,
    "dim": 384,
}  # as the demo
NEAR = 601  # passages that a query's lists are drawn from; prime, so that every step visits all of them


class Lists(NamedTuple):
    """The parts of a run that diagnostics read; all runs share one array of scores."""

    query_rows: np.ndarray
    offsets: np.ndarray
    passage_rows: np.ndarray
    scores: np.ndarray


@cache
def falling(n: int, depth: int) -> np.ndarray:
    """The scores of n lists, each from the best to the last."""
    return np.tile(np.arange(depth, 0, -1, dtype=np.float32), n)


def drawn(size: Mapping[str, Any], depth: int, seed: int) -> Lists:
    """Draw, for each query, ``depth`` distinct passages near it, in an order that depends on the seed."""
    n = size["queries"]
    rng = np.random.default_rng(seed)
    step, start = rng.integers(1, NEAR, n), rng.integers(0, NEAR, n)
    base = np.arange(n, dtype=np.int64) * 1009 % size["passages"]
    rows = np.empty((n, depth), np.int32)
    for at in range(0, n, 4096):
        part = slice(at, at + 4096)
        near = (start[part, None] + step[part, None] * np.arange(depth)) % NEAR
        rows[part] = (base[part, None] + near * 7) % size["passages"]
    return Lists(
        np.arange(n, dtype=np.int32), np.arange(n + 1, dtype=np.int64) * depth, rows.ravel(), falling(n, depth)
    )


class Material(NamedTuple):
    """Runs and pools by episode, and BM25's run."""

    bm25: Lists
    runs: dict[str, Lists]
    near: dict[str, Lists]
    pools: dict[str, Any]


def material(size: Mapping[str, Any]) -> Material:
    """All lists of five episodes; half of a pool is momentum from the episode before."""
    episodes = range(1, size["episodes"] + 1)
    return Material(
        drawn(size, size["depth"], 0),
        {f"episode {i} query": drawn(size, size["depth"], i) for i in episodes},
        {f"episode {i} query": drawn(size, size["depth"], 100 + i) for i in episodes},
        {f"episode {i}": pool(size, i) for i in episodes},
    )


def pool(size: Mapping[str, Any], episode: int) -> Any:
    """A pool with its provenance; the arrays that diagnostics do not read are empty."""
    from hardneg.negatives.pool import SOURCES, NegativePool

    lists, none = drawn(size, size["negatives"], 200 + episode), np.zeros(0, np.int32)
    n = len(lists.passage_rows)
    half = np.arange(n) % 2 == 1
    return NegativePool(
        query_rows=lists.query_rows,
        positive_offsets=np.zeros(len(lists.query_rows) + 1, np.int64),
        positive_rows=none,
        offsets=lists.offsets,
        passage_rows=lists.passage_rows,
        sources=np.where(np.arange(n) % 4 < 2, SOURCES.index("query"), SOURCES.index("lookahead")).astype(
            np.uint8
        ),
        ranks=none,
        scores=none.astype(np.float32),
        episodes=(episode - (half & (episode > 1))).astype(np.int32),
        anchors=none,
        episode=episode,
    )


# ---------------------------------------------------------------- composition


def of_composition(given: Material) -> dict[str, Any]:
    """The lists of candidates and pools in the order in which training met them."""
    lists: dict[str, Any] = {"bm25": given.bm25}
    for (name, run), (other, negatives) in zip(given.runs.items(), given.pools.items(), strict=True):
        lists |= {name: run, f"{other} pool": negatives}
    return lists


def hardneg_composition(size: Mapping[str, Any]) -> Run:
    from hardneg.diagnostics.composition import composition

    given = material(size)
    lists = of_composition(given)
    pools = {f"{name} pool" for name in given.pools}

    def run() -> Arrays:
        return {"entries": composition(lists, pools=pools).entries}

    return run


def frames(lists: Mapping[str, Any]) -> Any:
    """All lists as one frame with a column for each of query, passage and list."""
    import pandas as pd

    parts = [
        pd.DataFrame(
            {
                "query": np.repeat(one.query_rows, np.diff(one.offsets)),
                "passage": one.passage_rows,
                "list": np.full(len(one.passage_rows), i, np.int8),
            }
        )
        for i, one in enumerate(lists.values())
    ]
    return pd.concat(parts, ignore_index=True)


def pandas_composition(size: Mapping[str, Any]) -> Run:
    lists = of_composition(material(size))
    frame, is_pool = frames(lists), np.array(["pool" in name for name in lists])

    def run() -> Callable[[], Arrays]:
        first = frame.groupby(["query", "passage"], sort=False)["list"].transform("min")
        counted = frame.groupby(["list", first.rename("first")]).size()
        return lambda: {"entries": columns(counted, is_pool)}

    return run


def columns(counted: Any, is_pool: np.ndarray) -> np.ndarray:
    """Entries by list (rows) and by the list that had them first (columns); the last column is for all pools."""
    entries = np.zeros((len(is_pool), len(is_pool)), np.int64)
    for (row, column), n in counted.items():
        entries[row, column] = n
    return np.column_stack([entries[:, ~is_pool], entries[:, is_pool].sum(axis=1)])


# ---------------------------------------------------------------- swing


def hardneg_swing(size: Mapping[str, Any]) -> Run:
    from hardneg.diagnostics.swing import swing

    runs = material(size).runs

    def run() -> Arrays:
        found = swing(runs)
        return {"left": found.left, "returned": found.returned}

    return run


def pandas_swing(size: Mapping[str, Any]) -> Run:
    runs = material(size).runs
    parts = [frames({"one": one})[["query", "passage"]] for one in runs.values()]

    def run() -> Callable[[], Arrays]:
        left, returned = [], []
        for now, after, later in zip(parts, parts[1:], parts[2:], strict=False):
            both = now.merge(after, how="left", on=["query", "passage"], indicator=True)
            gone = both.loc[both["_merge"] == "left_only", ["query", "passage"]]
            left.append(gone.groupby("query").size())
            returned.append(gone.merge(later, on=["query", "passage"]).groupby("query").size())
        return lambda: {
            name: np.stack([one.reindex(range(size["queries"]), fill_value=0) for one in of], axis=1)
            for name, of in (("left", left), ("returned", returned))
        }

    return run


# ---------------------------------------------------------------- all at full size


def hardneg_all(size: Mapping[str, Any]) -> Run:
    """Composition of candidates and of pools, new negatives near the positive, swing of both, and forgetting."""
    from hardneg.diagnostics.composition import composition, composition_of_pools, new_negatives
    from hardneg.diagnostics.forgetting import forgetting, reciprocal_ranks
    from hardneg.diagnostics.swing import swing
    from hardneg.records import Positives

    given = material(size)
    n = size["queries"]
    positives = Positives(
        np.arange(n, dtype=np.int32),
        np.arange(n + 1, dtype=np.int64),
        (np.arange(n, dtype=np.int64) * 1009 % size["passages"]).astype(np.int32),
    )
    lists = of_composition(given)

    def run() -> Arrays:
        found = composition(lists, pools={f"{name} pool" for name in given.pools}, positives=positives)
        new = new_negatives(given.runs, given.near, before=[given.bm25], positives=positives)
        ranks = {name: reciprocal_ranks(one, positives) for name, one in given.runs.items()}  # type: ignore[arg-type]
        return {
            "entries": found.entries,
            "pools": composition_of_pools(given.pools).entries,
            "new": np.array([one.new for one in new]),
            "returned": swing(given.runs).returned.sum(axis=0),
            "of_pools": swing(given.pools).returned.sum(axis=0),
            "forgotten": np.array([one["forgotten"] for one in forgetting(ranks)]),
        }

    return run


def hardneg_report(size: Mapping[str, Any]) -> Run:
    """The whole report of an experiment of this size; with vectors (``dim``) it has their map, and pictures."""
    import shutil
    import tempfile
    from pathlib import Path

    from report_world import write

    from hardneg.api.diagnose import audited
    from hardneg.experiment.layout import Layout
    from hardneg.report.make import write as write_report
    from hardneg.report.opened import Opened

    folder = Path(tempfile.mkdtemp(prefix="hardneg-report-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = write(folder / "exp", size, material(size))
    material_is_gone()

    def run() -> Arrays:
        opened = audited(Opened(Layout(folder / "exp"), data))
        report = write_report(opened, ["hardneg", "diagnose", "exp"], pictures="dim" in size)
        assert len(report.html) < 10_000_000
        return {"figures": np.array(len(report.tables)), "page": np.array(len(report.html))}

    return run


def material_is_gone() -> None:
    """Give back the memory of the generated lists, so that only the memory of the report is measured."""
    falling.cache_clear()


def equal(found: dict[str, dict[str, np.ndarray]]) -> dict[str, Any]:
    """All contenders found the same counts."""
    ours, *others = found.values()
    for other in others:
        for name, values in ours.items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)
    return {"equal": [*ours]}


def contest(name: str, contenders: Mapping[str, str], size: Mapping[str, Any], lists: int, **more: Any) -> Contest:
    """A contest over lists that have a given number of entries for each query."""
    return Contest(
        name=name,
        contenders={who: f"diagnostics:{where}" for who, where in contenders.items()},
        size=size,
        gate=equal,
        units=(size["queries"] * lists, "entries"),
        **more,
    )


PER_QUERY = SIZE["episodes"] * (SIZE["depth"] + SIZE["negatives"]) + SIZE["depth"]
PER_DEMO = DEMO["episodes"] * (DEMO["depth"] + DEMO["negatives"]) + DEMO["depth"]
CONTESTS = (
    contest(
        "composition",
        {"hardneg": "hardneg_composition", "pandas": "pandas_composition"},
        SIZE,
        PER_QUERY,
        repeats=3,
        goals={"pandas": 20.0},
    ),
    contest(
        "swing",
        {"hardneg": "hardneg_swing", "pandas": "pandas_swing"},
        SIZE,
        SIZE["episodes"] * SIZE["depth"],
        repeats=3,
        goals={"pandas": 20.0},
    ),
    contest("full", {"hardneg": "hardneg_all"}, FULL, PER_QUERY, repeats=1, rate=FULL["queries"] * PER_QUERY / 60),
    contest(
        "report", {"hardneg": "hardneg_report"}, FULL, PER_QUERY, repeats=1, rate=FULL["queries"] * PER_QUERY / 60
    ),
    contest(
        "demo-report",
        {"hardneg": "hardneg_report"},
        DEMO,
        PER_DEMO,
        repeats=3,
        rate=DEMO["queries"] * PER_DEMO / 10,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(CONTESTS))

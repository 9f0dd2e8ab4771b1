"""Tables of scores, gradients and geometry: what training did to the model, state by state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hardneg import keyed_random
from hardneg.diagnostics.geometry import hubness
from hardneg.diagnostics.score_profile import training_overlap
from hardneg.experiment.layout import GEOMETRY, geometry_of
from hardneg.experiment.names import shown
from hardneg.experiment.states import ends_of, without_copy
from hardneg.report.facts_results import POINTS, curve_of
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded, Table
from hardneg.storage.artifacts import is_published, load_array, open_artifact

LEVELS = (0.1, 0.5, 0.9)
DEPTH = 100
MOST_QUERIES, SEED = 20_000, 0  # whose scores are looked at
THIRDS = (
    {"grad_norm": "all parameters"}
    | {f"grad_norm_{name}": f"{name} third" for name in ("bottom", "middle", "top")}
    | {"grad_norm_last": "last layer"}
)


# ---------------------------------------------------------------- gradients


def gradients_table(opened: Opened) -> Table:
    """The norm of the gradient by step: of all parameters, by thirds of the layers, of the last layer."""
    return _norms(opened, THIRDS, "Gradient norms were not logged.")


def source_gradients_table(opened: Opened) -> Table:
    """The norm of the gradient that each source of negatives causes, by step."""
    names = {name for row in opened.metrics for name in row if name.startswith("grad_norm_")} - set(THIRDS)
    found = {name: name.removeprefix("grad_norm_").replace("_", "-") for name in sorted(names)}
    return _norms(opened, found, "Gradient norms by source were not logged.")


def _norms(opened: Opened, names: Mapping[str, str], otherwise: str) -> Table:
    curve, ends = curve_of(opened), ends_of(opened.states)
    begins = dict(zip(curve.episodes, curve.borders, strict=False))
    rows = [
        (begins.get(row["episode"], 0) + row["step"], row["episode"], label, row[name])
        for row in opened.metrics
        for name, label in names.items()
        if row.get(name) is not None and row["step"] <= ends.get(row["episode"], row["step"])
    ]
    if not rows:
        raise NotRecorded(otherwise)
    lines = len({row[2] for row in rows})
    steps = sorted({row[0] for row in rows})
    kept = set(steps[:: max(-(-len(steps) * lines // POINTS), 1)])
    return Table(("step", "episode", "of", "norm"), tuple(row for row in rows if row[0] in kept))


# ---------------------------------------------------------------- scores


def profile_table(opened: Opened) -> Table:
    """Quantiles over training queries of the scores of their first hits, each minus its query's hundredth.

    ANCE's Figure 3 subtracts the mean score over the corpus instead, which needs the vectors of the queries.
    """
    rows: list[dict[str, Any]] = []
    for state in opened.trained_states:
        if (run := opened.run(state, "query")) is None:
            continue
        ranks = np.array([1, 2, 3, 5, 10, 20, 30, 50, 75, DEPTH])
        full = np.flatnonzero(np.diff(run.offsets) >= DEPTH)
        if not len(full):
            continue
        words = keyed_random.hash64(keyed_random.key(SEED, "report/score-falls"), run.query_rows[full])
        full = full[np.sort(np.argsort(words, kind="stable")[:MOST_QUERIES])]
        at = run.offsets[full][:, None] + ranks - 1
        scores = np.asarray(run.scores)[at].astype(np.float64)
        found = np.quantile(scores - scores[:, -1:], LEVELS, axis=0)
        rows += [
            {"state": shown(state.name), "rank": int(rank), "10 %": low, "median": middle, "90 %": high}
            for rank, low, middle, high in zip(ranks, *found.tolist(), strict=True)
        ]
    if not rows:
        raise NotRecorded(f"No state has runs of training queries with {DEPTH} hits.")
    return Table.of(rows)


def overlap_table(opened: Opened) -> Table:
    """The share of the first irrelevant hits of dev and test queries that were negatives in training."""
    judged = opened.data_here.judged
    rows: list[dict[str, Any]] = []
    for state in opened.trained_states:
        pool = opened.pool_at(state.pool)
        for split, qrels in judged.items():
            run = opened.run(state, split)
            if pool is None or run is None or not len(pool.passage_rows):  # in-batch negatives are in no pool
                continue
            share = training_overlap(run, pool, positives=qrels.positives(), depth=DEPTH)
            rows.append({"split": split, "state": shown(state.name), "share": float(np.nanmean(share))})
    if not rows:
        raise NotRecorded(
            "States were searched for dev and test alone (examine = judged), so this figure leaves them out."
            if opened.judged_alone
            else "No state has both its negatives and a run of dev or test."
        )
    return Table.of(rows)


# ---------------------------------------------------------------- geometry


def geometry_table(opened: Opened) -> Table:
    """Mean cosine of passages, the corpus mean, and hubs among the first 10 hits of training queries, by state.

    States that were searched for dev and test alone have no hubs.
    """
    rows: list[dict[str, Any]] = []
    first = None
    for state in without_copy([one for one in opened.states if one.of is None and one.kind != "bm25"]):
        place = geometry_of(opened.layout / str(state.runs))
        if not is_published(place):
            continue
        facts = open_artifact(place, GEOMETRY).facts
        mean = np.asarray(load_array(place / "mean.npy"), np.float64)
        first = mean if first is None else first
        run = opened.run(state, "query")
        hubs = hubness(run, opened.data.collection.n_passages).as_json() if run is not None and opened.data else {}
        rows.append(
            {
                "state": shown(state.name),
                "mean cosine": facts.get("mean_pairwise_cosine"),
                "norm of the mean": float(np.linalg.norm(mean)),
                "cosine with the first mean": _cosine(first, mean),
                "most often among a first 10": hubs.get("largest"),
                "skewness": hubs.get("skewness"),
                "never among a first 10": hubs.get("never"),
            }
        )
    if not rows:
        raise NotRecorded("The geometry of the vectors was not kept.")
    return Table.of(rows)


def _cosine(a: Any, b: Any) -> float | None:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length and a.shape == b.shape else None

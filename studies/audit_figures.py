"""Figures of an audit whose truth is known, and the tables of several draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from audit_plants import Bool
from harness import table

from hardneg.diagnostics.audit import Audit

LENGTHS = (30, 100, 200, 500, 1000, 2000)
GRID = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.63, 1.0)
GRIDS = {"ranker": (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)}  # any score; GRID: 0 to 1
TOGETHER, ANY = "all together", "any of them"


# ---------------------------------------------------------------- figures of a draw


def figures(found: Audit, truth: Bool) -> dict[str, Any]:
    """Precision and recall of each signal by its threshold, and of the rankings by their length.

    Parameters
    ----------
    truth : [n] whether each pair was planted.
    """
    orders = {TOGETHER: found.order()}
    orders |= {
        one.name: np.argsort(-np.nan_to_num(one.strength, nan=-np.inf), kind="stable") for one in found.signals
    }
    fires = {one.name: one.fires for one in found.signals} | {ANY: found.fired > 0}
    return {
        "queries": len(found.pairs.pool),
        "pairs": len(truth),
        "planted": int(truth.sum()),
        "thresholds": {one.name: one.threshold for one in found.signals},
        "signals": {name: precision_recall(some, truth) for name, some in fires.items()},
        "grid": {
            one.name: {
                str(value): precision_recall(one.values >= value, truth) for value in GRIDS.get(one.name, GRID)
            }
            for one in found.signals
        },
        "ranking": {name: ranked(truth[order]) for name, order in orders.items()},
    }


def ranked(truth: Bool) -> dict[str, Any]:
    """The number of planted pairs among the first pairs, by length, and the average precision."""
    hits = np.cumsum(truth)
    precision = hits[truth] / (np.flatnonzero(truth) + 1)
    at = {str(length): int(hits[length - 1]) for length in LENGTHS if length <= len(hits)}
    return {"hits": at, "average precision": float(precision.mean()) if len(precision) else 0.0}


def precision_recall(fires: Bool, truth: Bool) -> dict[str, float]:
    """The number of named pairs, the share of these that was planted, and the share of plants that is named."""
    hits = int((fires & truth).sum())
    return {
        "named": int(fires.sum()),
        "precision": hits / max(int(fires.sum()), 1),
        "recall": hits / max(int(truth.sum()), 1),
    }


def lowest(grids: Sequence[Mapping[str, Mapping[str, float]]], share: float) -> float | None:
    """The lowest threshold of the grid from which on, in the mean, at least ``share`` of the named is planted."""
    for value in grids[0]:
        found = [grid[value] for grid in grids]
        if all(one["named"] for one in found) and np.mean([one["precision"] for one in found]) >= share:
            return float(value)
    return None


# ---------------------------------------------------------------- tables


def told_figures(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    """The tables of a collection: means over the draws, with the lowest and the highest."""
    if not found:
        return f"{name}: not run."
    one = found[0]
    head = f"{name}: {one['planted']:,} planted among {one['pairs']:,} negatives of {one['queries']:,} queries"
    head += f" ({one['planted'] / one['pairs']:.3f}), {len(found)} draw{'s' * (len(found) > 1)}."
    head += " Mean [lowest, highest] of the draws:"
    tables = [signals_table(found), ranking_table(found, precision), ranking_table(found, recall)]
    return "\n\n".join([head, *tables, halves(found)])


def signals_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Precision and recall of each signal from its threshold on."""
    rows = []
    for name in found[0]["signals"]:
        figures = {key: [one["signals"][name][key] for one in found] for key in ("named", "precision", "recall")}
        some = [value for value, named in zip(figures["precision"], figures["named"], strict=True) if named]
        cells = (counted(figures["named"]), spread(some), spread(figures["recall"]))
        rows.append((name, found[0]["thresholds"].get(name, ""), *cells))
    return table(("signal", "from", "named", "precision", "recall"), rows)


def counted(values: Sequence[float]) -> str:
    """The mean of counts; with a decimal if it would be rounded to 0."""
    mean = float(np.mean(values))
    return f"{mean:.1f}" if 0 < mean < 1 else f"{mean:,.0f}"


def halves(found: Sequence[Mapping[str, Any]]) -> str:
    """The lowest threshold of each signal from which on half of the pairs that it names are planted."""
    limits = {name: lowest([one["grid"][name] for one in found], 0.5) for name in found[0]["grid"]}
    told = ", ".join(f"{name} {'none' if value is None else value}" for name, value in limits.items())
    return f"The lowest threshold from which on half of the named are planted: {told}."


def precision(one: Mapping[str, Any], name: str, length: str) -> float:
    """The planted share of the first pairs."""
    return one["ranking"][name]["hits"][length] / int(length)


def recall(one: Mapping[str, Any], name: str, length: str) -> float:
    """The share of the planted pairs that is among the first pairs."""
    return one["ranking"][name]["hits"][length] / one["planted"]


def ranking_table(found: Sequence[Mapping[str, Any]], of: Callable[[Mapping[str, Any], str, str], float]) -> str:
    """The table of precision or recall of each ranking, by the number of first pairs."""
    lengths = [*found[0]["ranking"][TOGETHER]["hits"]]
    rows = [
        (name, *(spread([of(one, name, length) for one in found]) for length in lengths))
        for name in found[0]["ranking"]
    ]
    return table((f"{of.__name__} of the first", *lengths), rows)


def spread(values: Sequence[float]) -> str:
    """The mean, with the lowest and the highest value if they differ; a dash if there is no value."""
    if not values:
        return "–"
    mean = f"{np.mean(values):.2f}"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return mean if low == high else f"{mean} [{low}, {high}]"

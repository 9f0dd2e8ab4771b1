"""The timeline of an experiment as a table, and how old the negatives of each step were."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardneg.diagnostics.curves import smooth
from hardneg.diagnostics.timeline import TRAINER
from hardneg.experiment.layout import versions_in
from hardneg.report.opened import Opened
from hardneg.report.table import NotMeant, NotRecorded, Table
from hardneg.storage.artifacts import is_published, read_manifest

LONGEST = 400  # bars, and points of a line
WINDOWS = 40  # of a moving mean, one after the other
INSIDE = ("begin",)


def timeline_table(opened: Opened) -> Table:
    """When each stage ran, in seconds from the first: the longest ones."""
    known = [row for row in opened.timing if "begun" in row and row["stage"] not in INSIDE]
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
    mined = {
        number: int(read_manifest(place).inputs["step"])
        for number, place in versions_in(opened.layout.versions)
        if is_published(place)
    }
    rows = [
        (row["step"], row["negative_version"], row["step"] - mined[row["negative_version"]])
        for row in opened.metrics
        if row.get("negative_version") in mined
    ]
    if not rows:
        raise NotMeant("Negatives were not refreshed while training ran, so there is no gap to show.")
    return Table(("step", "version", "gap"), tuple(rows[:: max(len(rows) // LONGEST, 1)]))


def overlap_by_step_table(opened: Opened) -> Table:
    """The share of each step's negatives that its queries retrieve at that step (STAR, Figure 4a)."""
    rows = [(row["step"], row["overlap"]) for row in opened.metrics if row.get("overlap") is not None]
    if not rows:
        raise NotMeant("Negatives were not retrieved anew at every step (ADORE does so), so this is not known.")
    return Table(("step", "overlap"), tuple(rows[:: max(len(rows) // LONGEST, 1)]))


def ranking_by_step_table(opened: Opened) -> Table:
    """How the queries of each step ranked their positives before it, with moving means (STAR, Figure 4b)."""
    rows = [row for row in opened.metrics if row.get("train_rr_10") is not None]
    if not rows:
        raise NotMeant("Training queries were not searched at every step (ADORE does so), so this is not known.")
    width = max(len(rows) // WINDOWS, 1)
    ranks, errors = (np.array([row[name] for row in rows], float) for name in ("train_rr_10", "train_errors"))
    columns = (ranks, smooth(ranks, width), errors, smooth(errors, width))
    found = [(row["step"], *values) for row, *values in zip(rows, *(one.tolist() for one in columns), strict=True)]
    names = ("step", "RR@10", "mean RR@10", "errors", "mean errors")
    return Table(names, tuple(found[:: max(len(found) // LONGEST, 1)]))

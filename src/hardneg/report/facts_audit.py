"""Tables of suspected false negatives, from an audit of the experiment's last pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded, Table

AUDIT = "audit"  # where an opened experiment keeps what the audit found
LISTED = 50
LABELLED = 50  # pairs on the page, to label


def found_by(opened: Opened) -> Mapping[str, Any]:
    """What the audit found; raises :class:`NotRecorded` if there was none."""
    if AUDIT not in opened.kept:
        raise NotRecorded("No audit was made: it needs a pool and the collection.")
    facts: Mapping[str, Any] = opened.kept[AUDIT]
    return facts


def audited_table(opened: Opened) -> Table:
    """How much of the last pool was audited, and how much of that is suspected: one row."""
    found = found_by(opened)
    return Table.of(
        [
            {
                "queries audited": found["queries"],
                "of queries": found["of_queries"],
                "negatives audited": found["pairs"],
                "of entries": found["of_entries"],
                "judged before": found["judged"],
                "suspected": found["suspected"],
                "share": found["suspected"] / max(found["pairs"], 1),
            }
        ]
    )


def sampled_sentence(opened: Opened) -> str:
    """The sentence that says on a page that only some queries were audited; "" if all were, or none."""
    found = opened.kept.get(AUDIT, {})
    if not found or found["queries"] == found["of_queries"]:
        return ""
    return (
        f"This pool is large, so {found['queries']:,} of its {found['of_queries']:,} queries were audited, drawn"
        " at random. All counts here are of these queries. hardneg audit looks at all of them."
    )


def missing_sentence(opened: Opened) -> str:
    """The signals that are not known, and why, as ``hardneg audit`` says it; "" if there are none, or no audit."""
    missing = opened.kept.get(AUDIT, {}).get("left_out", {})
    told = [f"Not known: {name}, because {why}." for name, why in missing.items()]
    if "both" in missing and "retriever" not in missing:  # BM25's lists alone are missing
        told.append("`hardneg audit EXP` searches with BM25, too, and finds more.")
    return " ".join(told)


def signals_table(opened: Opened) -> Table:
    """The number of pairs and queries for which each signal fires."""
    return Table.of(
        {name: one[name] for name in ("signal", "threshold", "pairs", "queries", "meaning")}
        for one in found_by(opened)["signals"]
    )


def sources_table(opened: Opened) -> Table:
    """For each source of negatives the share of its pairs that is suspected."""
    return Table.of(
        {name: one[name] for name in ("source", "pairs", "suspected", "share")}
        for one in found_by(opened)["sources"]
    )


def suspects_table(opened: Opened) -> Table:
    """The most suspected pairs, the negative's text beside that of a positive."""
    return Table.of(
        {
            "query": one["query_id"],
            "text": one["query"],
            "negative": one["passage_id"],
            "its text": one["text"],
            "source": one["source"],
            "a positive's text": one["positives"][0]["text"] if one["positives"] else "",
            "signals": ", ".join(one["fired"]),
        }
        for one in found_by(opened)["suspects"][:LISTED]
    )


def suspects_of(opened: Opened) -> list[Mapping[str, Any]]:
    """The most suspected pairs with their texts; empty if no audit was made."""
    return list(opened.kept[AUDIT]["suspects"][:LABELLED]) if AUDIT in opened.kept else []


def suspected_queries(opened: Opened) -> list[int]:
    """The rows of the queries with a suspected negative, the most suspicious first."""
    if AUDIT not in opened.kept or opened.data is None:
        return []
    ids = list(dict.fromkeys(one["query_id"] for one in opened.kept[AUDIT]["suspects"]))
    rows = opened.data.collection.query_ids.rows(ids)
    return [int(row) for row in rows if row >= 0]

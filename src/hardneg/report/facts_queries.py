"""Tables of queries: where retrieval became better or worse, and the queries that moved most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hardneg.data.tokens import joined_passages
from hardneg.diagnostics.breakdown import (
    Group,
    Moved,
    by_label,
    by_source,
    by_value,
    lexical_overlap,
    most_moved,
    parts_of,
    positive_counts,
    query_lengths,
    source_counts,
)
from hardneg.evaluation.measures import first_relevant_rank
from hardneg.experiment.names import STARTED, UNTRAINED
from hardneg.records import Positives
from hardneg.report.facts_forgetting import ranks_of
from hardneg.report.measured import evaluations
from hardneg.report.opened import Float64, Opened
from hardneg.report.table import NotRecorded, Table

DEPTH = 1000
LISTED = 20
MOST_QUERIES = 20_000  # whose texts are read


class Change:
    """A measure of the same judged queries before and after training."""

    def __init__(self, opened: Opened) -> None:
        data = opened.data_here
        self.split = opened.results.get("compared_on") or next(iter(data.judged), "")
        found = evaluations(opened)
        through = {one.name for one in opened.states if one.of is not None}  # re-ranked, or searched over an index
        apart = {*through, STARTED}  # re-ranked, or the untrained weights with other settings
        names = [name for name in found if self.split in found[name] and name not in apart]
        if len(names) < 2:
            raise NotRecorded("No trained state of the model has been measured, so nothing can be compared.")
        self.first = UNTRAINED if UNTRAINED in names else names[0]
        self.last = opened.ended(names)
        one, other = found[self.first][self.split], found[self.last][self.split]
        self.measure = next(iter(one.values))
        both = ~(np.isnan(one.values[self.measure]) | np.isnan(other.values[self.measure]))
        self.query_rows = one.query_rows[both]
        self.before: Float64 = one.values[self.measure][both]
        self.after: Float64 = other.values[self.measure][both]
        judged = data.judged[self.split].positives()
        at = np.searchsorted(judged.query_rows, self.query_rows)  # both ascend
        order = np.argsort(judged.query_rows, kind="stable")
        at = order[np.searchsorted(judged.query_rows[order], self.query_rows)]
        self.positives: Positives = judged.select(at)


def change_of(opened: Opened) -> Change:
    """The change of the deciding measure, made once."""
    if "change" not in opened.kept:
        opened.kept["change"] = Change(opened)
    found: Change = opened.kept["change"]
    return found


def breakdown_table(opened: Opened) -> Table:
    """The mean change by query length, word overlap with the positives, number of positives, and part.

    The part of the collection is how the id of a query's first positive begins; the part of the queries is how the
    query's own id begins.
    """
    change = change_of(opened)
    collection = opened.data_here.collection
    some = slice(0, MOST_QUERIES)
    queries = collection.query_texts.take(change.query_rows[some])
    positives = change.positives.select(np.arange(len(queries)))
    titles, texts = (part.take(positives.passage_rows) for part in (collection.titles, collection.texts))
    texts = joined_passages(titles, texts, " ")  # as BM25 and models read them
    own = [texts[a:b] for a, b in zip(positives.offsets, positives.offsets[1:], strict=False)]
    properties: dict[str, Any] = {
        "words of the query": query_lengths(queries),
        "share of its words in a positive": lexical_overlap(queries, own),
        "positives": positive_counts(positives),
    }
    before, after = change.before[some], change.after[some]
    rows = [(name, group) for name, values in properties.items() for group in by_value(before, after, values)]
    judged = np.flatnonzero(
        np.diff(positives.offsets)
    )  # with labels by answers, a query may have no judged positive
    firsts = positives.passage_rows[positives.offsets[judged]]
    everyone = np.arange(len(queries))
    sources = {
        "part of the collection": (judged, collection.passage_ids.take(firsts) if len(firsts) else []),
        "part of the queries": (everyone, collection.query_ids.take(change.query_rows[some])),
    }
    for name, (which, ids) in sources.items():
        if (labels := parts_of(ids)) is not None:
            found = by_label(before[which], after[which], labels)
            rows += [(name, group) for group in sorted(found, key=lambda group: -group.queries)]
    return _groups_table(rows, change.measure)


def trained_breakdown_table(opened: Opened) -> Table:
    """The mean change of training queries by the source of their negatives in the pools."""
    if not opened.pools:
        raise NotRecorded(
            "No pool of negatives is here: the recipe takes them anew at every step, or they are gone."
        )
    rows, ranks = ranks_of(opened)
    first, *_, last = ranks.values()
    counts = source_counts(opened.pools.values(), rows)
    if not counts.any():
        raise NotRecorded("No pool says where its negatives are from.")
    groups = by_source(first, last, counts)
    if len(groups) < 2:
        raise NotRecorded("All training queries have the same shares of negatives from each source.")
    return _groups_table(groups, "RR@100")


def _groups_table(rows: Sequence[tuple[str, Group]], measure: str) -> Table:
    return Table.of(
        {
            "by": name,
            "group": group.name,
            "queries": group.queries,
            f"{measure} before": group.before,
            f"{measure} after": group.after,
            "difference": group.difference,
            "standard error": group.error,
            "better": group.better,
            "worse": group.worse,
        }
        for name, group in rows
    )


def moved_of(opened: Opened) -> tuple[list[Moved], list[Moved]]:
    """The judged queries that rose most and those that fell most."""
    if "moved" not in opened.kept:
        change = change_of(opened)
        ranks = []
        for name in (change.first, change.last):
            state = opened.state(name)
            run = opened.run(state, change.split) if state is not None else None
            if run is None:
                raise NotRecorded("The runs of the first and the last state are not there.")
            id_rank = opened.data_here.collection.passage_ids.id_rank  # ties as in the measures beside the ranks
            ranks.append(first_relevant_rank(run, change.positives, DEPTH, id_rank=id_rank))
        opened.kept["moved"] = most_moved(
            change.query_rows, change.before, change.after, ranks[0], ranks[1], count=LISTED
        )
    found: tuple[list[Moved], list[Moved]] = opened.kept["moved"]
    return found


def best_table(opened: Opened) -> Table:
    """The 20 queries that improved most, with texts and ranks."""
    return _moved_table(opened, moved_of(opened)[0])


def worst_table(opened: Opened) -> Table:
    """The 20 queries that lost most, with texts and ranks."""
    return _moved_table(opened, moved_of(opened)[1])


def _moved_table(opened: Opened, moved: list[Moved]) -> Table:
    change, collection = change_of(opened), opened.data_here.collection
    first = {int(row): i for i, row in enumerate(change.query_rows)}
    rows = []
    for one in moved:
        i = first[one.query_row]
        positives = change.positives.of(i)
        rows.append(
            {
                "query": collection.query_ids[one.query_row],
                "text": collection.query_texts[one.query_row],
                f"{change.measure} before": one.before,
                f"{change.measure} after": one.after,
                "rank before": one.rank_before or None,
                "rank after": one.rank_after or None,
                "positive": collection.texts[int(positives[0])] if len(positives) else None,
            }
        )
    return Table.of(rows)

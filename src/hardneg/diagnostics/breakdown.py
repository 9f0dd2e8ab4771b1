"""Where training made retrieval better or worse: by properties of the query, and the queries that moved most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg.data.near_copies import words_in
from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.records import Int32, Int64, Positives, spans

Float64 = NDArray[np.float64]


# ---------------------------------------------------------------- properties of queries


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters with their marks, digits and underscores, without case."""
    return words_in(text.casefold())


def query_lengths(queries: Sequence[str]) -> Int64:
    """The number of words of each query [Q]."""
    return np.array([len(words_of(text)) for text in queries], np.int64)


def lexical_overlap(queries: Sequence[str], positives: Sequence[Sequence[str]]) -> Float64:
    """The share of each query's distinct words that its best positive has [Q].

    Parameters
    ----------
    queries : [Q] texts.
    positives : [Q] the texts of each query's positives.

    NaN for a query without words or without positives.
    """
    shares = np.full(len(queries), np.nan)
    for i, (query, texts) in enumerate(zip(queries, positives, strict=True)):
        words = set(words_of(query))
        if words and len(texts):
            shares[i] = max(len(words.intersection(words_of(text))) for text in texts) / len(words)
    return shares


def positive_counts(positives: Positives) -> Int64:
    """The number of positives of each query [Q]."""
    return spans(positives.offsets)


MARKS = "/:#|._-"  # characters between the name of a part and the rest of an id, in the order of trial
MOST_PARTS = 12
OTHERS = "other parts"


def parts_of(ids: Sequence[str]) -> list[str] | None:
    """The part of a collection that each id names, before a mark, such as ``numpy`` in ``numpy.sum``.

    The mark is the first of :data:`MARKS` that all ids have and that divides them into few large parts: the
    :data:`MOST_PARTS` largest hold more than half of the ids. Smaller parts are :data:`OTHERS`. The result is None
    if ids name no part, or all ids name the same part.
    """
    for mark in MARKS:
        if not len(ids) or not all(mark in one[1:] for one in ids):
            continue
        names = [one[: one.index(mark, 1)] for one in ids]
        largest = dict(Counter(names).most_common(MOST_PARTS))
        if len(largest) > 1 and 2 * sum(largest.values()) > len(names):
            return [name if name in largest else OTHERS for name in names]
    return None


def source_counts(pools: Iterable[NegativePool], query_rows: Int32) -> Int64:
    """The negatives that each query [Q] was trained on, by the source that drew them: [Q, sources].

    A negative that momentum carried over counts in each pool that has it, under the source that drew it first.
    """
    counts = np.zeros((len(query_rows), len(SOURCES)), np.int64)
    order = np.argsort(query_rows, kind="stable")
    for pool in pools:
        at = np.searchsorted(query_rows[order], pool.query_rows).clip(max=max(len(order) - 1, 0))
        place = order[at] if len(order) else at
        known = query_rows[place] == pool.query_rows if len(order) else np.zeros(len(at), bool)
        cells = np.repeat(place * len(SOURCES), spans(pool.offsets)) + pool.sources
        found = np.bincount(cells[np.repeat(known, spans(pool.offsets))], minlength=counts.size)
        counts += found.reshape(counts.shape)
    return counts


# ---------------------------------------------------------------- groups of queries


class Group(NamedTuple):
    """The change of a measure for the queries of a group; values are from 0 to 1."""

    name: str
    queries: int
    before: float  # mean
    after: float  # mean
    difference: float  # mean of after - before
    error: float | None  # standard error of that mean; None for a single query
    better: int  # queries whose value rose
    worse: int  # queries whose value fell

    def as_json(self) -> dict[str, Any]:
        """The group as a row of a table."""
        return self._asdict()


def by_label(before: Float64, after: Float64, labels: Sequence[Any]) -> list[Group]:
    """The change in each group of queries with one label, such as the source of their judgements.

    Parameters
    ----------
    before, after : [Q] a measure of the same queries, of two states of the model.
    labels : [Q] labels, which are compared as texts; groups come in the order in which labels first appear.
    """
    names = list(dict.fromkeys(map(str, labels)))
    number = {name: i for i, name in enumerate(names)}
    return _groups(before, after, np.array([number[str(label)] for label in labels], np.int64), names)


def by_source(before: Float64, after: Float64, counts: Int64) -> list[tuple[str, Group]]:
    """The change in groups of training queries by the source of their negatives, as (property, group).

    Queries are grouped by the source of most of their negatives (the first of :data:`SOURCES` among equals). If
    that is the same for all queries that have negatives, groups by the share of each source, in quarters, are
    added.

    Parameters
    ----------
    counts : [Q, sources] as :func:`source_counts` gives them.
    """
    main = np.where(counts.any(axis=1), counts.argmax(axis=1), len(SOURCES))
    labels = [(*SOURCES, "none")[at] for at in main]
    groups = [("most of its negatives", group) for group in by_label(before, after, labels)]
    if len({label for label in labels if label != "none"}) > 1:
        return groups
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=1, keepdims=True)
    for at in np.flatnonzero(counts.any(axis=0)):
        quarters_of = by_value(before, after, shares[:, at])
        if len(quarters_of) > 1:
            groups += [(f"share of negatives from {SOURCES[at]}", group) for group in quarters_of]
    return groups


def by_value(
    before: Float64, after: Float64, values: NDArray[Any], edges: NDArray[Any] | None = None
) -> list[Group]:
    """The change in groups of queries by a number, such as their length, overlap or number of positives.

    Parameters
    ----------
    before, after : [Q] a measure of the same queries, of two states of the model.
    values : [Q] the number; queries with NaN form the group "unknown".
    edges : ascending; group i holds the values from edge i - 1 up, below edge i. By default :func:`quarters`.

    Groups without queries are left out.
    """
    numbers = np.asarray(values, np.float64)
    cuts = quarters(numbers) if edges is None else np.asarray(edges, np.float64)
    known = ~np.isnan(numbers)
    group = np.where(known, np.searchsorted(cuts, numbers, "right"), len(cuts) + 1)
    return _groups(before, after, group, [*_ranges(cuts), "unknown"])


def quarters(values: NDArray[Any]) -> Float64:
    """Edges that cut the known values [Q] into up to four groups of about one size; ascending, distinct."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not len(known):
        return np.zeros(0)
    edges = np.unique(np.quantile(known, [0.25, 0.5, 0.75], method="higher"))
    return edges[edges > known.min()]


def _ranges(edges: Float64) -> list[str]:
    """The name of the group below the first edge, between two edges, and from the last one up."""
    if not len(edges):
        return ["all"]
    texts = [f"{edge:.4g}" for edge in edges]
    inner = [f"{low} to below {high}" for low, high in pairwise(texts)]
    return [f"below {texts[0]}", *inner, f"{texts[-1]} or more"]


def _groups(before: Float64, after: Float64, group: Int64, names: Sequence[str]) -> list[Group]:
    """The change in each group; ``group`` [Q] numbers the ``names``."""
    found = []
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(names) + 1))
    for name, start, stop in zip(names, bounds[:-1], bounds[1:], strict=True):
        members = order[start:stop]
        if len(members):
            found.append(_group(name, before[members], after[members]))
    return found


def _group(name: str, before: Float64, after: Float64) -> Group:
    change, n = after - before, len(before)
    return Group(
        name,
        n,
        float(before.mean()),
        float(after.mean()),
        float(change.mean()),
        float(change.std(ddof=1) / np.sqrt(n)) if n > 1 else None,
        int(np.count_nonzero(change > 0)),
        int(np.count_nonzero(change < 0)),
    )


# ---------------------------------------------------------------- single queries


class Moved(NamedTuple):
    """A query whose value changed."""

    query_row: int
    before: float  # its value of the measure
    after: float
    rank_before: int  # of its best positive, from 1; 0 if the run does not reach it
    rank_after: int


def most_moved(
    query_rows: Int32,
    before: Float64,
    after: Float64,
    ranks_before: NDArray[np.integer],
    ranks_after: NDArray[np.integer],
    *,
    count: int = 20,
) -> tuple[list[Moved], list[Moved]]:
    """The queries that rose most and those that fell most, at most ``count`` of each, the largest change first.

    Equal changes ascend by query row. A query whose value did not change is in neither list.

    Parameters
    ----------
    query_rows : [Q] the queries of all the other arrays.
    before, after : [Q] a measure of two states of the model.
    ranks_before, ranks_after : [Q] as ``evaluation.measures.first_relevant_rank`` gives them.
    """
    change = after - before

    def listed(falls: Float64) -> list[Moved]:
        order = np.lexsort((query_rows, falls))
        chosen = order[falls[order] < 0][:count].tolist()
        return [
            Moved(int(query_rows[i]), float(before[i]), float(after[i]), int(ranks_before[i]), int(ranks_after[i]))
            for i in chosen
        ]

    return listed(-change), listed(change)

"""How much a ranker disagrees with the retriever whose hits it re-ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardneg.records import Run

DEPTH = 20  # first hits of the retriever whose pairs are compared


class Disagreement(NamedTuple):
    """Shares over the queries of two runs, from 0 (the same order) to 1 (the order reversed)."""

    queries: int
    first: float  # share of queries whose first hits differ
    swapped: float  # mean over queries of the share of pairs of the retriever's first hits that the ranker swaps


def disagreement(retriever: Run, ranker: Run, *, depth: int = DEPTH) -> Disagreement:
    """Compare two orders of the hits of the same queries; a query with fewer than two common hits is left out.

    Parameters
    ----------
    retriever : the run that is re-ranked.
    ranker : its hits in the ranker's order; queries in the same order.
    depth : how many of the retriever's first hits are compared; hits that the ranker's run lacks are left out.

    Raises
    ------
    ValueError : the runs are of different queries.
    """
    if not np.array_equal(retriever.query_rows, ranker.query_rows):
        raise ValueError("two runs of different queries cannot be compared")
    first, swapped = [], []
    for i in range(len(retriever)):
        one, other = retriever.hits(i)[0][:depth], ranker.hits(i)[0]
        place = {int(row): at for at, row in enumerate(other)}
        places = np.array([place[int(row)] for row in one if int(row) in place], np.int64)
        if len(places) > 1:
            first.append(one[0] != other[0])
            pairs = places[:, None] > places[None, :]
            swapped.append(np.triu(pairs, 1).sum() / (len(places) * (len(places) - 1) / 2))
    if not first:
        return Disagreement(0, float("nan"), float("nan"))
    return Disagreement(len(first), float(np.mean(first)), float(np.mean(swapped)))

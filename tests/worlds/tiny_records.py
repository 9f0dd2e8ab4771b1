"""Runs, positives and pools written down by hand, as lists; and all vectors of a store."""

from dataclasses import fields
from itertools import pairwise

import numpy as np

from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.records import Positives, Run, offsets_of


def rows_of(lists, kind=np.int32):
    """All entries of the lists in one array, and the offset where each list begins."""
    return np.array([row for one in lists for row in one], kind), offsets_of(
        np.array([*map(len, lists)], np.int64)
    )


def run_of(lists, scores=None, *, query_rows=None, **facts):
    """A run from lists of hits, for the queries 0, 1, …, or from {query row: list}.

    A hit is (row, score) or a passage row. A passage row at rank r scores 10 - r, unless ``scores`` [n] are given.
    """
    if isinstance(lists, dict):
        query_rows, lists = list(lists), list(lists.values())
    if any(isinstance(hit, tuple) for hits in lists for hit in hits):
        scores = [score for hits in lists for _, score in hits]
        lists = [[row for row, _ in hits] for hits in lists]
    if scores is None:
        scores = [9.0 - j for hits in lists for j in range(len(hits))]
    (rows, offsets), queries = rows_of(lists), range(len(lists)) if query_rows is None else query_rows
    return Run(np.array(queries, np.int32), offsets, rows, np.array(scores, np.float32), **facts)


def positives_of(lists, query_rows=None):
    """Positives with these passage rows, for the queries 0, 1, …, or for ``query_rows``."""
    (rows, offsets), queries = rows_of(lists), range(len(lists)) if query_rows is None else query_rows
    return Positives(np.array(queries, np.int32), offsets, rows)


def pool_of(
    lists, positives=None, *, query_rows=None, source="query", episode=1, episodes=None, anchor=-1, **facts
):
    """A pool with these passages for each query, with ranks 1, 2, … and scores -1, -2, …

    ``source`` and ``episodes`` are one value for all entries, or one for each.
    """
    (rows, offsets), queries = rows_of(lists), range(len(lists)) if query_rows is None else query_rows
    positive_rows, positive_offsets = rows_of([[1000]] * len(lists) if positives is None else positives)
    ranks = np.array([j + 1 for one in lists for j in range(len(one))], np.int32)
    sources = SOURCES.index(source) if isinstance(source, str) else source
    return NegativePool(
        query_rows=np.array(queries, np.int32),
        positive_offsets=positive_offsets,
        positive_rows=positive_rows,
        offsets=offsets,
        passage_rows=rows,
        sources=np.zeros(len(rows), np.uint8) + np.asarray(sources, np.uint8),
        ranks=ranks,
        scores=-ranks.astype(np.float32),
        episodes=np.zeros(len(rows), np.int32) + np.asarray(episode if episodes is None else episodes, np.int32),
        anchors=np.full(len(rows), anchor, np.int32),
        episode=episode,
        **facts,
    )


def as_lists(pool, name="passage_rows"):
    """An array of a pool's entries as a list for each query."""
    values = getattr(pool, name)
    return [values[a:b].tolist() for a, b in pairwise(pool.offsets)]


def assert_same(a, b):
    """Two pools have the same content, NaN scores included."""
    for field in fields(NegativePool):
        np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name), err_msg=field.name)


def vectors_of(embeddings):
    """All vectors [n, dim] of an embedding store."""
    return embeddings.rows(np.arange(embeddings.n))

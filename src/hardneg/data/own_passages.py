"""Queries that are passages of the corpus themselves, as in ArguAna and Quora.

The passage is then neither a hit of its query nor a negative. It has the id of the query and its text. Ids alone
may agree by chance, as where queries and passages are both numbered from 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardneg.data.collection import Collection
from hardneg.data.ids import IdSpace
from hardneg.data.text import TextColumn, hash_texts
from hardneg.keyed_random import UInt64
from hardneg.records import Int32, Int64, Positives, Run, owners, pair_keys

NONE: tuple[Int32, Int32] = (np.zeros(0, np.int32), np.zeros(0, np.int32))  # no query is a passage


def of_same_id(query_rows: Int32, queries: IdSpace, passages: IdSpace) -> tuple[Int32, Int32]:
    """The queries, of these [n], whose id a passage has, too, and the rows of these passages (both [m])."""
    rows = np.asarray(passages.rows(queries.take(query_rows)), np.int32)
    return query_rows[rows >= 0], rows[rows >= 0]


def own_passages(collection: Collection, query_rows: Int32) -> tuple[Int32, Int32]:
    """The queries, of these [n], that are passages themselves, and the rows of these passages (both [m]).

    The text of the query is that of the passage, alone or after its title.
    """
    queries, passages = of_same_id(query_rows, collection.query_ids, collection.passage_ids)
    asked = hash_texts(collection.query_texts.take(queries))
    same = collection.text_keys[passages] == asked
    titles, texts = lengths(collection.titles, passages), lengths(collection.texts, passages)
    # Where ids agree by chance, passages are longer; only one that is half blanks would shrink so much.
    left = np.flatnonzero(~same & (titles > 0) & (titles + texts < 2 * lengths(collection.query_texts, queries)))
    titled = zip(collection.titles.take(passages[left]), collection.texts.take(passages[left]), strict=True)
    same[left] = hash_texts([f"{title} {text}" for title, text in titled]) == asked[left]
    return queries[same], passages[same]


def lengths(column: TextColumn, rows: NDArray[np.integer]) -> Int64:
    """The length [n] in bytes of the strings of these rows."""
    return column.offsets[rows + 1] - column.offsets[rows]


def are_own(
    query_rows: Int32, passage_rows: Int32, own: tuple[Int32, Int32], text_keys: UInt64
) -> NDArray[np.bool_]:
    """Whether each passage [n] has the text of the one that its query [n] itself is.

    Parameters
    ----------
    own : as :func:`own_passages` gives them, for queries that ascend.
    text_keys : uint64 [n_passages], equal for equal texts.
    """
    queries, passages = own
    if not len(queries):
        return np.zeros(len(query_rows), bool)
    place = np.minimum(np.searchsorted(queries, query_rows), len(queries) - 1)
    return (queries[place] == query_rows) & (text_keys[passages[place]] == text_keys[passage_rows])


def without_pairs(run: Run, query_rows: Int32, passage_rows: Int32) -> Run:
    """The run without the hits that are one of these pairs [m] of a query and a passage."""
    if not len(query_rows):
        return run
    hits = pair_keys(run.query_rows[owners(run.offsets)], run.passage_rows)
    return run.where(~np.isin(hits, pair_keys(query_rows, passage_rows)))


def own_hits(relevant: Positives, collection: Collection) -> tuple[Int32, Int32]:
    """The queries of ``relevant`` that are passages themselves, and these passages, which are no hits of theirs.

    What is ``relevant`` to its query is left out, as it may be a hit.
    """
    queries, passages = own_passages(collection, relevant.query_rows)
    judged = pair_keys(relevant.query_rows[owners(relevant.offsets)], relevant.passage_rows)
    left = ~np.isin(pair_keys(queries, passages), judged)
    return queries[left], passages[left]


def without_own(run: Run, relevant: Positives, collection: Collection) -> Run:
    """The run without the hits that are their query itself, for the queries of ``relevant`` (:func:`own_hits`)."""
    return without_pairs(run, *own_hits(relevant, collection))

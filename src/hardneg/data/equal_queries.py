"""Training queries with the same text, under several ids: what is relevant to one of them is relevant to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.data.text import hash_texts
from hardneg.keyed_random import UInt64
from hardneg.records import Int32, Int64, Positives, owners


@dataclass(frozen=True)
class EqualQueries:
    """Tells which passages are relevant to another query with the same text, or have the text of such a one.

    A relevant passage is kept once for all queries of a text, so many equal queries take no more memory than
    others.

    Attributes
    ----------
    query_rows : [m], ascending: the queries whose text others have, too.
    group : [m], the number of the text.
    classes : [c], ascending: the keys of the texts of their relevant passages.
    shared : ascending: ``group * c + class`` of the relevant passages of each text.
    own : ascending: ``position * c + class`` of the relevant passages of each query.
    text_keys : [n_passages], equal for equal texts.
    """

    query_rows: Int32
    group: Int64
    classes: UInt64
    shared: Int64
    own: Int64
    text_keys: UInt64

    def __call__(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is one of these for its query [n], and has not the text of its own."""
        found = np.zeros(len(query_rows), bool)
        place = np.minimum(np.searchsorted(self.query_rows, query_rows), len(self.query_rows) - 1)
        asked = np.flatnonzero(self.query_rows[place] == query_rows)
        keys = self.text_keys[passage_rows[asked]]
        label = np.minimum(np.searchsorted(self.classes, keys), len(self.classes) - 1)
        hit = self.classes[label] == keys
        asked, label, place = asked[hit], label[hit], place[asked[hit]]
        of_text = among(self.shared, self.group[place] * len(self.classes) + label)
        of_query = among(self.own, place * len(self.classes) + label)
        found[asked] = of_text & ~of_query
        return found


def among(table: Int64, values: Int64) -> NDArray[np.bool_]:
    """Whether each value [n] is in ``table``, which ascends and is not empty."""
    return table[np.minimum(np.searchsorted(table, values), len(table) - 1)] == values


def equal_queries(known: Positives, texts: Sequence[str], text_keys: UInt64) -> EqualQueries | None:
    """The queries of ``known`` [Q] that share a text of ``texts`` [Q]; None if all have the same passages.

    Parameters
    ----------
    known : the positives of each query, and what people judged relevant to it.
    """
    _, group, counts = np.unique(hash_texts(texts), return_inverse=True, return_counts=True)
    members = np.flatnonzero(counts[group] > 1)
    members = members[np.argsort(known.query_rows[members], kind="stable")]
    some = known.select(members)
    if not len(some.passage_rows):
        return None
    owner = owners(some.offsets)
    classes, label = np.unique(text_keys[some.passage_rows], return_inverse=True)
    own = np.unique(owner * len(classes) + label)
    shared = np.unique(group[members][owner] * len(classes) + label)
    of_query = np.bincount(own // len(classes), minlength=len(members))
    of_text = np.bincount(shared // len(classes), minlength=len(counts))
    if (of_query == of_text[group[members]]).all():
        return None
    return EqualQueries(some.query_rows, group[members], classes, shared, own, text_keys)

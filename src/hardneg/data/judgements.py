"""People's judgements of single passages, in a file; they say, for example, which negatives are relevant.

The file has tab-separated columns with the header ``query-id``, ``passage-id``, ``label``, as the audit's page
saves it. A label overrides what the collection says of the pair. The columns may be called ``query_id`` and
``passage_id``, too, and there may be others: a table of ``hardneg audit --out`` with a column ``label`` is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hardneg.data.formats.lines import read_columns
from hardneg.data.ids import IdSpace
from hardneg.errors import InputError
from hardneg.keyed_random import UInt64, hash64, key
from hardneg.records import Int32, Int64, Positives, Qrels, offsets_of, owners, pair_keys
from hardneg.shown import counted
from hardneg.storage.artifacts import publish_file

Label = Literal["positive", "relevant", "negative", "unsure"]
LABELS: tuple[Label, ...] = get_args(Label)
MEANINGS: Mapping[Label, str] = {
    "positive": "it is relevant: no negative any more, and one more positive to train on",
    "relevant": "it is relevant: no negative any more, and no positive to train on either",
    "negative": "it is not relevant, whatever the collection or an answer in its text says",
    "unsure": "nothing is changed",
}
COLUMNS = ("query-id", "passage-id", "label")
RELEVANT: tuple[Label, ...] = ("positive", "relevant")


@dataclass(frozen=True)
class JudgedIds:
    """The judgements of a file, by query id and passage id; each pair occurs once."""

    path: Path
    pairs: Mapping[tuple[str, str], tuple[Label, int]]  # (query id, passage id) -> label, line

    def known(self, queries: IdSpace, passages: IdSpace) -> Judgements:
        """The judgements by row; raises :class:`InputError` where an id is unknown."""
        rows = []
        for kind, place, space in (("query", 0, queries), ("passage", 1, passages)):
            ids = [pair[place] for pair in self.pairs]
            rows.append(np.asarray(space.rows(ids), np.int32))
            unknown = np.flatnonzero(rows[-1] < 0).tolist()
            if unknown:
                n = len({ids[i] for i in unknown})
                what = f"{counted(n, f'{kind} id')} not in the collection: {ids[unknown[0]]!r:.80}"
                line = list(self.pairs.values())[unknown[0]][1]
                fix = "give the judgements of this collection"
                raise InputError("UNKNOWN_ID", what, fix, path=self.path, line=line)
        labels = np.array([LABELS.index(label) for label, _ in self.pairs.values()], np.uint8)
        order = np.lexsort((rows[1], rows[0]))
        return Judgements(rows[0][order], rows[1][order], labels[order], self.text())

    def text(self) -> str:
        """The text of the file as it is kept: sorted by query and passage, whatever the order of its lines was."""
        return _text_of({pair: label for pair, (label, _) in self.pairs.items()})


@dataclass(frozen=True)
class Judgements:
    """What people judged, by row, ascending by query and passage."""

    query_rows: Int32  # [n]
    passage_rows: Int32  # [n]
    labels: NDArray[np.uint8]  # [n] index into LABELS
    text: str

    @property
    def digest(self) -> str:
        """Identity of the judgements, the same for any order of the lines."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def overridden_by(self, others: Judgements) -> Judgements:
        """Both judgements together; where both label a pair, the label of ``others`` counts."""
        kept = ~np.isin(
            pair_keys(self.query_rows, self.passage_rows), pair_keys(others.query_rows, others.passage_rows)
        )
        queries = np.concatenate([self.query_rows[kept], others.query_rows])
        passages = np.concatenate([self.passage_rows[kept], others.passage_rows])
        labels = np.concatenate([self.labels[kept], others.labels])
        order = np.lexsort((passages, queries))
        text = _text_of(_pairs_in(self.text) | _pairs_in(others.text))
        return Judgements(queries[order], passages[order], labels[order], text)

    def pairs(self, *labels: Label) -> tuple[Int32, Int32]:
        """Query and passage rows [m] of the pairs with one of these labels."""
        some = np.isin(self.labels, [LABELS.index(label) for label in labels])
        return self.query_rows[some], self.passage_rows[some]

    def counts(self, some: NDArray[np.bool_] | None = None) -> dict[str, int]:
        """The number of pairs, or of ``some`` [n], with each label; labels without pairs are left out."""
        labels = self.labels if some is None else self.labels[some]
        return {label: n for i, label in enumerate(LABELS) if (n := int(np.count_nonzero(labels == i)))}

    def are(self, query_rows: Int32, passage_rows: Int32, *labels: Label) -> NDArray[np.bool_]:
        """Whether each pair [n] has one of these labels."""
        queries, passages = self.pairs(*labels)
        return np.isin(pair_keys(query_rows, passage_rows), pair_keys(queries, passages))

    def are_relevant(self, query_rows: Int32, passage_rows: Int32, text_keys: UInt64) -> NDArray[np.bool_]:
        """Whether each passage [n] is relevant for its query: it was judged so, or has the text of one that was.

        A passage that people judged negative for the query is not, whatever its text.

        Parameters
        ----------
        text_keys : [n_passages], equal for equal texts.
        """
        base, (queries, passages) = key(0, "judgements"), self.pairs(*RELEVANT)
        judged = hash64(base, queries, text_keys[passages])
        found = np.isin(hash64(base, query_rows, text_keys[passage_rows]), judged)
        return found & ~self.are(query_rows, passage_rows, "negative")

    def amend(self, positives: Positives) -> Positives:
        """Append passages labelled ``positive`` to their query's positives; remove those labelled ``negative``.

        Judgements of other queries are ignored. The remaining positives keep their order.
        """
        given = owners(positives.offsets)
        kept = ~self.are(positives.query_rows[given], positives.passage_rows, "negative")
        return _joined(positives.query_rows, given[kept], positives.passage_rows[kept], *self.pairs("positive"))

    def with_relevant(self, positives: Positives) -> Positives:
        """Append all passages judged relevant to their query's positives; none of these may be its negative."""
        return with_more(positives, *self.pairs(*RELEVANT))

    def extend(self, qrels: Qrels) -> Qrels:
        """Add the judgements to those of a split, for its queries: relevant ones have grade 1, negative ones 0.

        A relevant pair that has a grade above 0 keeps it.
        """
        queries, passages = self.pairs("positive", "relevant", "negative")
        at = _positions(qrels.query_rows, queries)
        queries, passages, at = queries[at >= 0], passages[at >= 0], at[at >= 0]
        relevant = self.are(queries, passages, *RELEVANT)
        owner = owners(qrels.offsets)
        old, new = pair_keys(owner, qrels.passage_rows), pair_keys(at, passages)
        before = np.zeros(len(new), np.int32)
        order = np.argsort(old, kind="stable")
        found = np.minimum(np.searchsorted(old[order], new), max(len(old) - 1, 0))
        there = old[order][found] == new if len(old) else np.zeros(len(new), bool)
        before[there] = qrels.grades[order[found[there]]]
        kept = ~np.isin(old, new)
        owner = np.concatenate([owner[kept], at])
        order = np.argsort(owner, kind="stable")
        grades = np.concatenate([qrels.grades[kept], np.where(relevant, np.maximum(before, 1), 0)])
        return Qrels(
            qrels.query_rows,
            offsets_of(np.bincount(owner, minlength=len(qrels))),
            np.concatenate([qrels.passage_rows[kept], passages])[order].astype(np.int32),
            grades[order].astype(np.int32),
        )


def can_hold(*ids: str) -> bool:
    """Whether a file of judgements can name these ids: a tab or a line break in one would end its column."""
    return not any(set("\t\r\n") & set(one) for one in ids)


def _text_of(labels: Mapping[tuple[str, str], str]) -> str:
    """The text of a file with these labels by query and passage id, sorted by both."""
    lines = ["\t".join(COLUMNS), *("\t".join((*pair, labels[pair])) for pair in sorted(labels))]
    return "\n".join(lines) + "\n"


def _pairs_in(text: str) -> dict[tuple[str, str], str]:
    """The labels of such a text, by query and passage id."""
    rows = (line.split("\t") for line in text.split("\n")[1:] if line)
    return {(query, passage): label for query, passage, label in rows}


def _positions(table: Int32, wanted: Int32) -> Int64:
    """The position in ``table``, which ascends, of each row [n]; -1 where it is not there."""
    at = np.searchsorted(table, wanted)
    inside = at < len(table)
    inside[inside] = table[at[inside]] == wanted[inside]
    return np.where(inside, at, -1)


def with_more(positives: Positives, queries: Int32, more: Int32) -> Positives:
    """Positives with passages ``more`` [m] appended to those of ``queries`` [m], unless they are there."""
    return _joined(positives.query_rows, owners(positives.offsets), positives.passage_rows, queries, more)


def _joined(query_rows: Int32, owner: Int64, passages: Int32, queries: Int32, more: Int32) -> Positives:
    """Positives with ``more`` [m] appended to those of ``queries`` [m], unless they are there."""
    at = _positions(query_rows, queries)
    new = (at >= 0) & ~np.isin(pair_keys(at, more), pair_keys(owner, passages))
    owner = np.concatenate([owner, at[new]])
    order = np.argsort(owner, kind="stable")
    rows = np.concatenate([passages, more[new]])[order].astype(np.int32)
    return Positives(query_rows, offsets_of(np.bincount(owner, minlength=len(query_rows))), rows)


def read_judgements(path: Path) -> JudgedIds:
    """Read a file of judgements.

    Raises
    ------
    InputError : there is no header; a line has another number of columns, an empty id or an unknown label; or a
        pair occurs twice with different labels.
    """
    pairs: dict[tuple[str, str], tuple[Label, int]] = {}
    for line, (query, passage, label) in read_columns(path, COLUMNS, underscores=True):
        if not query or not passage:
            what = f"the {COLUMNS[0] if not query else COLUMNS[1]} is empty"
            raise InputError("EMPTY_ID", what, "give the id", path=path, line=line)
        known = next((one for one in LABELS if one == label), None)
        if known is None:
            what = f"the label is {label!r:.40}"
            raise InputError("BAD_LABEL", what, f"give one of {', '.join(LABELS)}", path=path, line=line)
        before = pairs.get((query, passage))
        if before is not None and before[0] != known:
            what = f"query {query:.40}, passage {passage:.40}: labelled {before[0]} on line {before[1]}"
            raise InputError("CONFLICTING_LABELS", what, "keep one of them", path=path, line=line)
        pairs[query, passage] = before or (known, line)
    return JudgedIds(path, pairs)


def save_judgements(path: Path, judgements: Judgements) -> None:
    """Write judgements where :func:`read_judgements` reads them again, replacing what is there."""
    with publish_file(path) as stream:
        stream.write(judgements.text.encode())

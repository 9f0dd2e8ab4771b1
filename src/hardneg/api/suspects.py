"""Suspected pairs of an audit for people: with texts, the positive that is most alike first, and as a table."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.api.inspect import passage_facts
from hardneg.data.collection import Collection
from hardneg.data.judgements import can_hold
from hardneg.diagnostics.audit import Audit
from hardneg.diagnostics.text_runs import KnownRuns
from hardneg.negatives.pool import SOURCES
from hardneg.records import Int32, Int64, offsets_of
from hardneg.shown import counted
from hardneg.storage.artifacts import publish_file

log = logging.getLogger(__name__)

POSITIVES = 3  # shown beside a suspected pair


def suspects(collection: Collection, found: Audit, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """The facts of these pairs, in that order."""
    pairs, suspicion, positives = found.pairs, found.suspicion, found.pairs.pool.positives
    known = KnownRuns(collection.texts.__getitem__)
    query_of = dict(zip(chosen, pairs.positions[list(chosen)].tolist(), strict=True))
    shown: dict[int, Int32] = {}
    for query, group in itertools.groupby(sorted(chosen, key=query_of.__getitem__), key=query_of.__getitem__):
        some = list(group)
        alike = most_alike(pairs.passage_rows[some], positives.of(query), known.runs)
        shown |= {i: rows[:POSITIVES] for i, rows in zip(some, alike, strict=True)}
    return [
        suspect_facts(collection, found, i, shown[i]) | {"suspicion": round(float(suspicion[i]), 4)}
        for i in chosen
    ]


def suspect_facts(collection: Collection, found: Audit, i: int, shown: Int32) -> dict[str, Any]:
    """The i-th pair for people.

    Parameters
    ----------
    shown : the positives (rows) to show beside it.

    Returns
    -------
    ``query_id``, ``query``; ``passage_id``, ``title``, ``text`` of the negative; its ``source``, ``rank``,
    ``score``, ``episode`` and ``entries`` (how often the pool has it); ``positives``: at most three, those with
    the most similar texts first, each with ``passage_id``, ``title``, ``text``; ``signals``: value by signal
    (None: not known); ``fired``: their names.
    """
    pairs, pool = found.pairs, found.pairs.pool
    entry, position = int(pairs.entries[i]), int(pairs.positions[i])
    row, passage = int(pool.query_rows[position]), int(pool.passage_rows[entry])
    score = float(pool.scores[entry])
    values = {one.name: float(one.values[i]) for one in found.signals}
    return {
        "query_id": collection.query_ids[row],
        "query": collection.query_texts[row],
        **passage_facts(collection, passage),
        "source": SOURCES[pool.sources[entry]],
        "rank": int(pool.ranks[entry]) or None,
        "score": None if math.isnan(score) else score,
        "episode": int(pool.episodes[entry]),
        "entries": int(pairs.counts[i]),
        "positives": [passage_facts(collection, one) for one in shown.tolist()],
        "signals": {name: round(value, 4) if math.isfinite(value) else None for name, value in values.items()},
        "fired": [one.name for one in found.signals if one.fires[i]],
    }


def most_alike(passages: Int32, positives: Int32, runs: Callable[[int], Int64]) -> Iterator[Int32]:
    """For each passage [n] the positives (rows) of its query, the one with the most similar text first.

    The signal ``text`` speaks of that one. Equal ones keep their order. The positives are read and numbered once,
    as a query may have thousands.

    Parameters
    ----------
    runs : passage row -> the runs of its text, see :func:`~hardneg.diagnostics.text_runs.runs_of`.
    """
    if len(positives) < 2:
        yield from itertools.repeat(positives, len(passages))
        return
    texts = [runs(row) for row in positives.tolist()]
    lengths = np.array([len(one) for one in texts])
    offsets = offsets_of(lengths)
    every, numbers = np.unique(np.concatenate(texts), return_inverse=True)
    for passage in passages.tolist():
        own = runs(passage)
        marked = np.zeros(len(every), np.uint8)
        marked[np.intersect1d(every, own, assume_unique=True, return_indices=True)[1]] = 1
        both = np.diff(offsets_of(marked[numbers])[offsets])
        share = both / np.maximum(lengths + len(own) - both, 1)  # Jaccard
        yield positives[np.argsort(-share, kind="stable")]


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], signals: Sequence[str]) -> None:
    """Write pairs as tab-separated columns with a header; a tab or a line break of a text becomes a blank.

    Pairs whose ids have one are left out, with a warning: with another id the table could not be labelled.
    """
    plain = ("query_id", "passage_id", "suspicion", "source", "episode", "query", "title", "text")
    header = [
        "place",
        *plain,
        *(f"signal_{name}" for name in signals),
        "positive_id",
        "positive_title",
        "positive_text",
    ]
    held = [(place, row) for place, row in enumerate(rows, 1) if can_hold(row["query_id"], row["passage_id"])]
    if left := len(rows) - len(held):
        log.warning("%s: %s with a tab or a line break in an id left out", path, counted(left, "pair"))
    with publish_file(path) as stream:
        stream.write("\t".join(header).encode() + b"\n")
        for place, row in held:
            first = row["positives"][0] if row["positives"] else {}
            cells = [place, *(row[name] for name in plain), *(row["signals"][name] for name in signals)]
            cells += [first.get(name, "") for name in ("passage_id", "title", "text")]
            written = [
                cell_of(name, "" if cell is None else str(cell)) for name, cell in zip(header, cells, strict=True)
            ]
            stream.write("\t".join(written).encode() + b"\n")


def cell_of(column: str, text: str) -> str:
    """A cell of the table: an id as it is, unless it would end the cell; in a text, runs of blanks become one."""
    as_it_is = column.endswith("_id") and not set("\t\r\n") & set(text)
    return text if as_it_is else " ".join(text.split())

"""Plant known positives among the negatives of a pool: choose judgements to hold out, and make the pool.

A plant is a passage that is known to be relevant. Its judgement is held out, and it stands among the negatives.
There are two kinds.

``judged``: one of several judged positives of a query; the query keeps another.
``answered``: the only judged passage of a question. In its place, the question gets the passage that BM25 ranks
highest among those that contain its answer: the distant supervision that open-domain question answering trains on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.api.retrievers import retriever_for
from hardneg.data.collection import Collection
from hardneg.evaluation.answers import AnswerCache
from hardneg.models.source import ModelSource
from hardneg.negatives.mix import union
from hardneg.negatives.pool import SOURCES, NegativePool, empty_pool
from hardneg.negatives.sources import sample_source
from hardneg.records import Int32, Positives, Run, offsets_of, owners, pair_keys, spans
from hardneg.search.bm25 import bm25_run
from hardneg.search.retriever import Retriever
from hardneg.search.runs import load_run, save_run
from hardneg.storage.artifacts import is_published

Bool = NDArray[np.bool_]
Kind = Literal["judged", "answered"]
DEPTH = 250  # of the runs of the model and of BM25
FIRST = 3  # BM25's first passages for each question, which belong to the part of a collection


# ---------------------------------------------------------------- the queries and the passages


def joined(collection: Collection, splits: Iterable[str]) -> Positives:
    """The positives of several splits, ascending by query; no query is in two of the splits."""
    parts = [collection.qrels(split).positives().some() for split in splits]
    rows = np.concatenate([one.query_rows for one in parts])
    lengths = np.concatenate([spans(one.offsets) for one in parts])
    passages = np.concatenate([one.passage_rows for one in parts])
    return Positives(rows, offsets_of(lengths), passages).select(np.argsort(rows))


def kind_of(positives: Positives) -> Kind:
    """How positives are planted: of queries that have several, or else by answers."""
    return "judged" if spans(positives.offsets).max(initial=0) > 1 else "answered"


def chosen_from(positives: Positives) -> Positives:
    """The queries with several positives, and as many queries with one."""
    several = np.flatnonzero(spans(positives.offsets) > 1)
    others = drawn(np.flatnonzero(spans(positives.offsets) == 1), len(several))
    return positives.select(np.union1d(several, others))


def drawn(values: NDArray[Any], most: int) -> NDArray[Any]:
    """Draw at most ``most`` of the values, the same ones at every call."""
    return np.random.default_rng(0).permutation(values)[:most]


def part_of(collection: Collection, positives: Positives, most: int, cache: Path) -> tuple[Int32, Positives]:
    """Passages of a part of an open-domain collection, and the questions whose positive is one of them.

    The passages are the positives of ``most`` questions and BM25's first hits for these. The questions are at most
    three times as many.
    """
    some = positives.select(np.sort(drawn(np.arange(len(positives)), most)))
    run = bm25_run(collection, some.query_rows, FIRST, cache)
    rows = np.union1d(run.passage_rows, some.passage_rows)
    inside = np.flatnonzero(np.isin(positives.first(), rows))
    return rows, positives.select(np.sort(drawn(inside, 3 * most)))


@dataclass(frozen=True)
class Searched:
    """The runs of a model and of BM25 for some queries of a collection."""

    collection: Collection
    positives: Positives  # all known positives of the queries
    model: Run
    bm25: Run
    cache: Path

    @cached_property
    def answers(self) -> AnswerCache | None:
        """Tells which passages contain an answer; None if the collection has no answers."""
        return AnswerCache(self.collection, self.cache) if self.collection.has_answers else None

    def hold(self, most: int, draw: int) -> tuple[Positives, Positives]:
        """Hold out judgements; returns the positives that are left and those to plant, of the same queries."""
        rng = np.random.default_rng([1, draw])
        if kind_of(self.positives) == "judged":
            return hold_out(self.positives, most, rng)
        assert self.answers is not None, "a query with one positive needs answers"
        return hold_answered(self.positives, surrogates_of(self.bm25, self.positives, self.answers), most, rng)

    def mined(
        self, left: Positives, *, depth: int, count: int, draw: int, sources: Iterable[str] = ("query", "bm25")
    ) -> NegativePool:
        """Draw ``count`` negatives for each query and source, from the first ``depth`` hits of its list.

        Parameters
        ----------
        left : the passages that count as known positives.
        """
        lists = {"query": self.model, "bm25": self.bm25}
        options: dict[str, Any] = {"episode": 1, "depth": depth, "count": count, "seed": draw}
        options["text_keys"] = self.collection.text_keys
        return union([sample_source(lists[name], left, source=name, **options) for name in sources])


def search(
    collection: Collection, splits: Iterable[str], source: ModelSource, most: int, place: Path, cache: Path
) -> Searched:
    """Search the queries of the study; runs that are published at ``place`` are not made again.

    If plants are chosen by answers, only a part of the collection is searched (:func:`part_of`).
    """
    positives, part = joined(collection, splits), None
    if kind_of(positives) == "judged":
        positives = chosen_from(positives)
    else:
        part, positives = part_of(collection, positives, most, cache)
    rows = positives.query_rows
    bm25 = bm25_run(collection, rows, DEPTH, cache)
    if not is_published(place):
        retriever: Retriever = retriever_for(source, collection, cache)
        retriever = retriever if part is None else retriever.limited(part, alone=True)
        run = retriever.search_texts([collection.query_texts[row] for row in rows.tolist()], DEPTH)
        save_run(replace(run, query_rows=rows), place, inputs={"collection": collection.digest}, settings={})
    return Searched(collection, positives, load_run(place), bm25 if part is None else bm25.among(part), cache)


# ---------------------------------------------------------------- what is held out


def hold_out(positives: Positives, most: int, rng: np.random.Generator) -> tuple[Positives, Positives]:
    """Draw up to ``most`` positives, but never the last one of a query; returns those left and those drawn."""
    owner, left = owners(positives.offsets), spans(positives.offsets)
    drawn = np.zeros(len(owner), bool)
    for i in rng.permutation(len(owner)).tolist():
        if left[owner[i]] > 1 and drawn.sum() < most:
            left[owner[i]] -= 1
            drawn[i] = True
    return some(positives, ~drawn), some(positives, drawn)


def some(positives: Positives, mask: Bool) -> Positives:
    """The positives where ``mask`` [n] is true, of the same queries."""
    lengths = np.bincount(owners(positives.offsets)[mask], minlength=len(positives))
    return Positives(positives.query_rows, offsets_of(lengths), positives.passage_rows[mask])


def hold_answered(
    positives: Positives, surrogates: Int32, most: int, rng: np.random.Generator
) -> tuple[Positives, Positives]:
    """Replace the positive of up to ``most`` questions; returns the new positives and the replaced ones.

    Parameters
    ----------
    surrogates : [Q] the passage that replaces the positive of each question; -1: no passage can.
    """
    drawn = np.zeros(len(positives), bool)
    drawn[rng.permutation(np.flatnonzero(surrogates >= 0))[:most]] = True
    left = replace(positives, passage_rows=np.where(drawn, surrogates, positives.first()).astype(np.int32))
    return left, some(positives, drawn)


def surrogates_of(run: Run, positives: Positives, contains: AnswerCache) -> Int32:
    """The first passage [Q] in each question's list that has an answer and is no positive; -1 if none has."""
    owner = owners(run.offsets)
    first = dict(zip(positives.query_rows.tolist(), positives.first().tolist(), strict=True))
    found = contains.contains(run.query_rows[owner], run.passage_rows)
    found &= run.passage_rows != np.array([first[row] for row in run.query_rows.tolist()])[owner]
    lists, places = np.unique(owner[found], return_index=True)
    best = dict(zip(run.query_rows[lists].tolist(), run.passage_rows[found][places].tolist(), strict=True))
    return np.array([best.get(row, -1) for row in positives.query_rows.tolist()], np.int32)


# ---------------------------------------------------------------- a pool


def with_planted(pool: NegativePool, held: Positives) -> NegativePool:
    """A pool with the held-out passages among its negatives, as entries of the source ``file``.

    Parameters
    ----------
    held : the held-out positives, of the same queries.
    """
    n = len(held.passage_rows)
    extra = replace(
        empty_pool(pool.positives, pool.episode, pool.collection),
        offsets=held.offsets,
        passage_rows=held.passage_rows,
        sources=np.full(n, SOURCES.index("file"), np.uint8),
        ranks=np.zeros(n, np.int32),
        scores=np.full(n, np.nan, np.float32),
        episodes=np.full(n, pool.episode, np.int32),
        anchors=np.full(n, -1, np.int32),
    )
    return union([pool, extra])


def is_held(held: Positives, query_rows: Int32, passage_rows: Int32) -> Bool:
    """Whether each pair [n] was held out."""
    known = pair_keys(held.query_rows[owners(held.offsets)], held.passage_rows)
    return np.isin(pair_keys(query_rows, passage_rows), known)


# ---------------------------------------------------------------- a collection of a part


def published(
    source: Collection, rows: NDArray[np.integer], splits: Mapping[str, Positives], place: Path
) -> Collection:
    """Publish these passages and the queries of these splits; the same call opens them again."""
    if is_published(place):
        return Collection.open(place)
    queries = np.concatenate([one.query_rows for one in splits.values()]).tolist()
    columns = (source.passage_ids, source.titles, source.texts)
    return Collection.from_lists(
        [*zip(*(column.take(rows) for column in columns), strict=True)],
        {source.query_ids[row]: source.query_texts[row] for row in queries},
        {name: judged(source, one) for name, one in splits.items()},
        answers={source.query_ids[row]: source.answers(row) for row in queries} if source.has_answers else None,
        to=place,
    )


def judged(collection: Collection, positives: Positives) -> dict[str, list[str]]:
    """The ids of the positives, by the id of the query."""
    ids = collection.query_ids.take(positives.query_rows)
    return {id_: collection.passage_ids.take(positives.of(i)) for i, id_ in enumerate(ids)}


def moved(pool: NegativePool, source: Collection, other: Collection) -> NegativePool:
    """The pool with the rows of another collection, which has all of the pool's queries and passages."""
    queries, passages = (
        np.asarray(theirs.rows(ours.take(np.arange(n))), np.int32)
        for ours, theirs, n in (
            (source.query_ids, other.query_ids, source.n_queries),
            (source.passage_ids, other.passage_ids, source.n_passages),
        )
    )
    there = replace(
        pool,
        query_rows=queries[pool.query_rows],
        positive_rows=passages[pool.positive_rows],
        passage_rows=passages[pool.passage_rows],
        collection=other.digest,
    )
    assert min(there.query_rows.min(), there.positive_rows.min(), there.passage_rows.min()) >= 0
    return there.select(np.argsort(there.query_rows))

"""The collections of the study of AR2: whole ones, and random parts of them that fit a small machine.

A part has some of the training, dev and test queries, the positives of all of these, and a sample of the other
passages. It depends on the collection and the four numbers alone, so all seeds and all rows share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import called

from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.data.training_data import DevDraw, choose_splits
from hardneg.storage.artifacts import is_published

SEED = 0  # of all draws

Judged = dict[str, dict[str, int]]  # grades of passages by query


@dataclass(frozen=True)
class Size:
    """The size of a part of a collection; None: all.

    Attributes
    ----------
    queries, dev, test : queries of the splits.
    passages : passages in all; the positives of the queries are always among them.
    """

    queries: int | None = None
    dev: int | None = None
    test: int | None = None
    passages: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the part is the whole collection."""
        return not any((self.queries, self.dev, self.test, self.passages))

    def name(self, data: str) -> str:
        """The name of the part of a collection, with a letter and a number for each bound."""
        numbers = {"q": self.queries, "d": self.dev, "t": self.test, "p": self.passages}
        marks = [f"{letter}{count}" for letter, count in numbers.items() if count]
        return "-".join([called(data).rpartition(":")[2], *marks])


def is_absent(data: str) -> bool:
    """Whether a collection is a folder that does not exist. A name without a folder (pydocs) is never absent."""
    place = data.rpartition(":")[2]
    return "/" in place and not Path(place).is_dir()


def part_of(data: str, size: Size, folder: Path) -> str:
    """The collection to train on: the given one, or a part of it, published below ``folder`` at the first call."""
    if size.is_whole:
        return data
    place = folder / size.name(data)
    if not is_published(place):
        whole = collection_of(data)
        splits = splits_of(whole, size)
        asked = {query for judged in splits.values() for query in judged}
        Collection.from_lists(
            passages_of(whole, splits.values(), size.passages),
            queries_of(whole, asked),
            splits,
            answers=answers_of(whole, asked),
            to=place,
        )
    return str(place)


def splits_of(whole: Collection, size: Size) -> dict[str, Judged]:
    """The judgements of the drawn queries of train, dev and test."""
    parts = choose_splits(whole, draw=DevDraw(SEED))
    wanted = {"train": (parts.train, size.queries), "dev": (parts.dev, size.dev), "test": (parts.test, size.test)}
    return {
        name: drawn(judgements(whole, part), count) for name, (part, count) in wanted.items() if part is not None
    }


def judgements(whole: Collection, part: Any) -> Judged:
    """Grades by ids of queries and passages; 1 if the part holds positives without grades."""
    names, ends = whole.query_ids.take(part.query_rows), part.offsets.tolist()
    passages = whole.passage_ids.take(part.passage_rows)
    grades = getattr(part, "grades", np.ones(len(passages), np.int32)).tolist()
    return {
        name: dict(zip(passages[begin:end], grades[begin:end], strict=True))
        for name, begin, end in zip(names, ends[:-1], ends[1:], strict=True)
    }


def drawn(judged: Judged, count: int | None) -> Judged:
    """Draw ``count`` queries at random, in order of their ids; None: all."""
    names = sorted(judged)
    order = np.random.default_rng(SEED).permutation(len(names))[:count]
    return {names[i]: judged[names[i]] for i in sorted(order.tolist())}


def passages_of(whole: Collection, splits: Iterable[Judged], count: int | None) -> list[tuple[str, str, str]]:
    """The judged passages, and others drawn up to ``count`` in all, in the order of the collection."""
    needed = {passage for judged in splits for grades in judged.values() for passage in grades}
    names = whole.passage_ids.take(np.arange(whole.n_passages))
    others = [row for row, name in enumerate(names) if name not in needed]
    more = len(others) if count is None else max(count - len(needed), 0)
    chosen = set(np.random.default_rng(SEED).permutation(others)[:more].tolist())
    rows = np.array([row for row, name in enumerate(names) if name in needed or row in chosen])
    columns = (whole.passage_ids.take(rows), whole.titles.take(rows), whole.texts.take(rows))
    return list(zip(*columns, strict=True))


def queries_of(whole: Collection, asked: set[str]) -> dict[str, str]:
    """The texts of queries, by id."""
    rows = np.arange(whole.n_queries)
    texts = zip(whole.query_ids.take(rows), whole.query_texts.take(rows), strict=True)
    return {name: text for name, text in texts if name in asked}


def answers_of(whole: Collection, asked: set[str]) -> Mapping[str, Sequence[str]] | None:
    """The answers of queries, by id; None if the collection has no answers."""
    if not whole.has_answers:
        return None
    names = whole.query_ids.take(np.arange(whole.n_queries))
    return {name: whole.answers(row) for row, name in enumerate(names) if name in asked}

"""What public functions return: ordinary dicts and lists that also print as one line and show as tables."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from hardneg.data.ids import IdSpace
from hardneg.records import Run
from hardneg.shown import Columns, Shown, columns_of, counted

SPLITS = ("test", "dev")
OF_HITS = ("rank", "score", "passage_id", "title", "text")


class Results(Shown, dict[str, Any]):
    """What training returns, which ``results.json`` holds; as a table, a row for each state and split."""

    def line(self) -> str:
        """The measure that decides, of the trained model and of the untrained one."""
        split = next((name for name in SPLITS if self.get(name)), None)
        if split is None:
            return f"results without measures ({', '.join(self) or 'none'})"
        states = self[split]
        told = [
            f"{name} {mean(one):.4f}" for name in ("final", "untrained", "bm25") for one in firsts(states, name)
        ]
        measure = next(iter(next(iter(states.values()))))
        return f"results of {len(states)} states: {split} {measure} {', '.join(told)}"

    def columns(self, most: int | None = None) -> Columns:
        """The split, the state and its measures; of several seeds the means."""
        rows = [
            {"split": split, "state": state, **{name: mean(value) for name, value in measured.items()}}
            for split in SPLITS
            for state, measured in self.get(split, {}).items()
        ]
        return columns_of(rows)


class Evaluated(Shown, dict[str, Any]):
    """What evaluating a run returns; as a table, a row for each measure."""

    def line(self) -> str:
        """The measures, and the number of queries."""
        told = ", ".join(f"{name} {value:.4f}" for name, value in self["measures"].items())
        return f"{told} ({counted(self['queries'], 'query')})"

    def columns(self, most: int | None = None) -> Columns:
        """The measures and their means."""
        return {"measure": [*self["measures"]], "mean": [*self["measures"].values()]}


class Compared(Shown, list[dict[str, Any]]):
    """What comparing runs returns; as a table, a row for each measure and pair."""

    def line(self) -> str:
        """The first of the tests, and how many there are."""
        one = self[0]
        told = f"{one['a']} - {one['b']}: {one['measure']} {one['difference']:+.4f}, p {one['p']:.3g}"
        return told if len(self) == 1 else f"{told}; {len(self)} tests in all"

    def columns(self, most: int | None = None) -> Columns:
        """The fields of the tests."""
        return columns_of(self)


class Hits(Shown, list[dict[str, Any]]):
    """The hits of one text, best first; as a table, a row for each."""

    def line(self) -> str:
        """The number of hits, and the first hit."""
        if not self:
            return "no hits"
        one = self[0]
        return f"{len(self)} hits, the first {one['passage_id']} with {one['score']:.4f}"

    def columns(self, most: int | None = None) -> Columns:
        """The fields of the hits; empty columns where there are none."""
        return columns_of(self) or {name: [] for name in OF_HITS}


class Scores(Shown, dict[str, dict[str, float]]):
    """A run by ids: the score of each hit by query and passage; as a table, a row for each hit."""

    def line(self) -> str:
        """How many queries and hits there are."""
        return f"run of {counted(len(self), 'query')}, {sum(map(len, self.values())):,} hits"

    def columns(self, most: int | None = None) -> Columns:
        """The query, the passage, its rank and its score."""
        rows = (
            (query, passage, rank, score)
            for query, hits in self.items()
            for rank, (passage, score) in enumerate(hits.items(), 1)
        )
        found = [*islice(rows, most)]
        names = ("query_id", "passage_id", "rank", "score")
        return {name: [row[i] for row in found] for i, name in enumerate(names)}


def by_ids(run: Run, queries: IdSpace, passages: IdSpace) -> Scores:
    """A run of rows by ids, its hits in their order."""
    names = passages.take(run.passage_rows)
    scores, offsets = run.scores.tolist(), run.offsets.tolist()
    return Scores(
        {
            query: dict(zip(names[begin:end], scores[begin:end], strict=True))
            for query, begin, end in zip(queries.take(run.query_rows), offsets, offsets[1:], strict=False)
        }
    )


def firsts(states: Mapping[str, Mapping[str, Any]], name: str) -> list[Any]:
    """The value of a state by the deciding measure, in a list; empty if there is no such state."""
    return [next(iter(states[name].values()))] if states.get(name) else []


def mean(value: Any) -> float:
    """A measure's value; of several seeds their mean."""
    return float(value["mean"] if isinstance(value, Mapping) else value)

"""A cell of the study: one contender, on one collection, from one start, in so many minutes, with one seed.

The outcome of a cell is one small file without texts or ids. A study that was killed goes on with the next cell
whose file is missing.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from outcomes import Values, packed, unpacked, zipped

from hardneg.storage.artifacts import publish_file

FULL = "full"
AS_IS, ANEW = "as-is", "anew"
UNTRAINED, BM25 = "untrained", "bm25"
REFERENCES = (UNTRAINED, BM25)
MEASURES = ("nDCG@10", "RR@10", "R@100")  # the first one chooses on dev
DEPTH = 100  # hits of a test query
LARGE = 200_000  # bytes beyond which the kept file is compressed


@dataclass(frozen=True, order=True)
class Cell:
    """The six values that identify a cell of the study.

    Attributes
    ----------
    collection : its name for people.
    size : ``full``, or how many training queries were drawn at random.
    start : the model as it is, or with its top layers drawn anew.
    minutes : from texts to model; 0 if nothing is trained.
    """

    collection: str
    size: str
    start: str
    contender: str
    minutes: float
    seed: int

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        called = self.collection.replace(":", "-").replace("/", "-")
        return f"{called}.{self.size}.{self.start}.{self.minutes:g}min.{self.contender}.seed-{self.seed}"

    @property
    def reference(self) -> bool:
        """Whether the cell is a reference, which is not trained."""
        return self.contender in REFERENCES


@dataclass(frozen=True)
class Outcome:
    """The outcome of one cell.

    Attributes
    ----------
    cell : the cell.
    seconds : from the start of the contender's process to its model.
    stages : seconds of each stage.
    runs : point, steps, seconds, and dev by state of each run of the contender.
    chosen : point, state and dev of the model that was chosen, and dev of the model before training.
    facts : versions, processor, threads, lengths, precision.
    queries : the test measures of every query, in the order of their ids, packed.
    collection : digest of the collection, whose test queries all sizes share.
    fused : ``queries``, the test measures of the run fused with BM25's, and ``weight``, BM25's weight in the
        fusion. Empty for BM25, and for cells that were made before fusion was measured.
    """

    cell: Cell
    seconds: float
    stages: dict[str, float]
    runs: list[dict[str, Any]]
    chosen: dict[str, Any]
    facts: dict[str, Any]
    queries: dict[str, Any]
    collection: str
    version: int = field(default=1)
    fused: dict[str, Any] = field(default_factory=dict)

    def values(self, measure: str) -> Values:
        """The values of a measure, one for every test query."""
        return unpacked(self.queries[measure])

    @property
    def as_fused(self) -> Outcome:
        """The same cell, with the measures of its run fused with BM25's."""
        return replace(self, queries=self.fused["queries"])

    @property
    def over(self) -> bool:
        """Whether the cell took more than its time by over a twentieth."""
        return self.cell.minutes > 0 and self.seconds > 63 * self.cell.minutes

    def as_json(self) -> str:
        """The outcome as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)


def of_json(line: str) -> Outcome:
    """Read an outcome from its line of JSON."""
    known = json.loads(line)
    return Outcome(**{**known, "cell": Cell(**known["cell"])})


def packed_all(values: dict[str, Values]) -> dict[str, Any]:
    """Pack the measures of every query into few characters."""
    return {measure: packed(of_query, measure) for measure, of_query in values.items()}


# ---------------------------------------------------------------- files


def file_of(folder: Path, cell: Cell) -> Path:
    """The file of a cell's outcome."""
    return folder / "cells" / f"{cell.name}.json.gz"


def write(folder: Path, outcome: Outcome) -> None:
    """Write a cell's outcome to its file; a reader never sees half of a file."""
    path = file_of(folder, outcome.cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with publish_file(path) as stream:
        stream.write(gzip.compress(outcome.as_json().encode(), mtime=0))


def read_cells(folder: Path) -> dict[Cell, Outcome]:
    """All cells of a study's folder."""
    found = (of_json(gzip.decompress(path.read_bytes()).decode()) for path in folder.glob("cells/*.json.gz"))
    return {one.cell: one for one in found}


def read_kept(path: Path | None) -> dict[Cell, Outcome]:
    """The cells of a kept file, compressed or not; empty if there is no file."""
    found = [] if path is None else [place for place in (path, zipped(path)) if place.is_file()]
    if not found:
        return {}
    data = found[0].read_bytes()
    lines = (gzip.decompress(data) if found[0].suffix == ".gz" else data).decode().splitlines()
    return {one.cell: one for one in map(of_json, lines)}


def save_kept(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write one line for each outcome, in order. A large file is compressed, without a time in it."""
    data = "".join(one.as_json() + "\n" for one in sorted(outcomes, key=lambda one: one.cell)).encode()
    large = len(data) > LARGE
    path.parent.mkdir(parents=True, exist_ok=True)
    with publish_file(zipped(path) if large else path) as stream:
        stream.write(gzip.compress(data, mtime=0) if large else data)
    (path if large else zipped(path)).unlink(missing_ok=True)


# ---------------------------------------------------------------- which ones


def all_cells(
    collections: Sequence[str],
    sizes: Sequence[str],
    starts: Sequence[str],
    minutes: Sequence[float],
    contenders: Sequence[str],
    seeds: Sequence[int],
) -> list[Cell]:
    """The cells of a study: first the references, then seed by seed; cells of one comparison are neighbours.

    So a drift of the machine affects all contenders of a comparison alike, and a study that was stopped has
    complete comparisons.
    """
    cells = [Cell(name, FULL, AS_IS, BM25, 0, 0) for name in collections]
    cells += [Cell(name, FULL, start, UNTRAINED, 0, 0) for name in collections for start in starts]
    cells += [
        Cell(name, size, start, contender, budget, seed)
        for seed in seeds
        for budget in sorted(minutes)
        for start in starts
        for size in sizes
        for name in collections
        for contender in contenders
    ]
    return cells


def hours(cells: Iterable[Cell], jobs: int = 1, besides: float = 60.0) -> float:
    """Hours that cells take; each cell also takes ``besides`` seconds for its start and its test."""
    return sum(60 * cell.minutes + besides for cell in cells) / 3600 / jobs


def processors() -> list[int]:
    """The processors that this process may use."""
    return sorted(os.sched_getaffinity(0))

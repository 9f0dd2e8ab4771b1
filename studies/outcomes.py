"""Outcomes of a study's experiments: a line of figures for each, which stays when the folders are deleted.

A line holds the measures of every state, their values for every dev and test query, and which training queries
each episode forgot: enough to make every table, interval and p value again. It holds no texts and no ids.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import read_runs
from hardneg.data.training_data import DevDraw, choose_splits, labelled
from hardneg.diagnostics.forgetting import reciprocal_ranks
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.measures import parse_measures
from hardneg.negatives.labels import answers_of, relevant
from hardneg.records import Run
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published, publish_file, read_manifest

LARGE = 300_000  # a file of more bytes is compressed
SPLITS = ("dev", "test")
FELL, SAME, ROSE = "-=+"
STAGE = ("stage", "seconds", "run", "version", "model", "steps")  # the fields of the timing that are kept
INDEX = ("bytes", "rows", "dim", "recall")  # the fields of an index that are kept
RESULTS = (*SPLITS, "forgetting", "pairwise_errors", "informative", "entropy")

Values = NDArray[np.float64]  # of every query of a split, in order of the queries' ids


@dataclass(frozen=True)
class Outcome:
    """The outcome of one experiment.

    ``settings``: all that decides its figures, with the collection and the model. ``collection``: its digest, None
    if that was not recorded. ``results``: measures by split and state, forgetting, pairwise errors. ``timing``:
    seconds of each stage, on ``threads`` threads. ``queries``: by split, state and measure, the values for every
    query (:func:`packed`). ``changes``: for each episode a letter for every training query, whose MRR@100 fell
    (-), stayed (=) or rose (+). ``facts``: further figures of the tables.
    """

    experiment: str
    settings: dict[str, Any]
    results: dict[str, Any]
    threads: int = 1
    timing: list[dict[str, Any]] = field(default_factory=list)
    queries: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    collection: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The key of an outcome in its file: collection and experiment."""
        return str(self.settings.get("data", "")), self.experiment

    def mean(self, split: str, state: str, measure: str) -> float | None:
        """A measure of a state, or None."""
        found = self.results.get(split, {}).get(state, {}).get(measure)
        return None if found is None else float(found)

    def values(self, split: str, state: str, measure: str) -> Values | None:
        """A measure of a state for every query; None if it was not kept."""
        found = self.queries.get(split, {}).get(state, {}).get(measure)
        return None if found is None else unpacked(found)

    def changed(self, episode: int, how: str) -> Values | None:
        """Whether each training query fell (``-``) or rose (``+``) in an episode; None if that was not kept."""
        if len(self.changes) < episode:
            return None
        return np.array([letter == how for letter in self.changes[episode - 1]], np.float64)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage."""
        total: dict[str, float] = {}
        for row in self.timing:
            total[row["stage"]] = total.get(row["stage"], 0.0) + row["seconds"]
        return total


# ---------------------------------------------------------------- values in few characters


def packed(values: Values, measure: str) -> Any:
    """Values in a short form: the ranks for a reciprocal rank (0: beyond its cut-off), else each value once.

    A query that a measure does not count (NaN) becomes null.
    """
    if measure.startswith("RR@") and not np.isnan(values).any():
        return [round(1 / value) if value else 0 for value in values.tolist()]
    different, place = np.unique(values, return_inverse=True)
    return {
        "values": [None if math.isnan(value) else value for value in different.tolist()],
        "at": place.tolist(),
    }


def unpacked(found: Any) -> Values:
    """The values that were packed."""
    if isinstance(found, list):
        ranks = np.array(found, np.float64)
        return np.divide(1, ranks, out=np.zeros(len(ranks)), where=ranks > 0)
    return np.array(found["values"], np.float64)[np.array(found["at"], np.int64)]


# ---------------------------------------------------------------- the file


def read(path: Path | None) -> dict[tuple[str, str], Outcome]:
    """The outcomes of a file, compressed or not; empty if there is no file."""
    found = [] if path is None else [place for place in (path, zipped(path)) if place.is_file()]
    if not found:
        return {}
    data = found[0].read_bytes()
    text = (gzip.decompress(data) if found[0].suffix == ".gz" else data).decode()
    lines = [Outcome(**json.loads(line)) for line in text.splitlines()]
    return {one.key: one for one in lines}


def save(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write a line for each outcome. A large file is compressed, without a time, and its name ends in ``.gz``."""
    rows = [
        json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in sorted(outcomes, key=lambda one: one.key)
    ]
    data = "".join(rows).encode()
    large = len(data) > LARGE
    path.parent.mkdir(parents=True, exist_ok=True)
    with publish_file(zipped(path) if large else path) as stream:
        stream.write(gzip.compress(data, mtime=0) if large else data)
    (path if large else zipped(path)).unlink(missing_ok=True)


def zipped(path: Path) -> Path:
    """The name of the compressed form of a file."""
    return path.with_name(f"{path.name}.gz")


# ---------------------------------------------------------------- from an experiment's folder


@lru_cache
def opened(data: str, cache: Path) -> Collection:
    """A collection, opened once."""
    return collection_of(data, cache)


@dataclass(frozen=True)
class Source:
    """The source of outcomes: the collection, and the measures that are kept query by query."""

    data: str
    cache: Path
    measures: Sequence[str]

    @property
    def collection(self) -> Collection:
        """The collection, opened once."""
        return opened(self.data, self.cache)

    def by_query(self, run: Run, split: str) -> dict[str, Values]:
        """The measures of every query of a split."""
        collection, qrels = self.collection, self.collection.qrels(split)
        measures = parse_measures(" ".join(self.measures))
        id_rank = collection.passage_ids.id_rank
        found = evaluate_with_answers(
            run, qrels, measures, collection=collection, cache=self.cache, id_rank=id_rank
        )
        order = np.argsort(collection.query_ids.take(found.query_rows))
        return {str(measure): found.of(str(measure))[order] for measure in measures}


def collect(source: Source, folder: Path, settings: Mapping[str, Any], threads: int) -> Outcome | None:
    """The outcome of an experiment, read from its folder; None if it is not finished."""
    if not (folder / "results.json").is_file():
        return None
    results = json.loads((folder / "results.json").read_text())
    kept = {name: results[name] for name in RESULTS if name in results}
    queries = queries_of(source, folder, kept)
    changes = changes_of(source, folder, results.get("forgetting", []))
    return Outcome(
        folder.name,
        dict(settings),
        kept,
        threads,
        timing_of(folder),
        queries,
        changes,
        facts_of(folder),
        source.collection.digest if queries else None,
    )


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def timing_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the timing, stage after stage."""
    rows = [row for row in lines_of(folder / "timing.jsonl") if "stage" in row]  # not a fault that ended one
    return [{key: row[key] for key in STAGE if key in row} | {"seconds": round(row["seconds"], 2)} for row in rows]


def facts_of(folder: Path) -> dict[str, Any]:
    """The overlap of negatives with the hits of a step, and facts about an experiment's own index."""
    facts: dict[str, Any] = {}
    rows = [row for row in lines_of(folder / "metrics.jsonl") if "overlap" in row]
    if rows:
        facts["overlap"] = {"step": [row["step"] for row in rows], "value": [row["overlap"] for row in rows]}
    if is_published(folder / "index"):
        index = read_manifest(folder / "index").facts
        facts["index"] = {name: index[name] for name in INDEX if name in index}
    return facts


def queries_of(source: Source, folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """The packed measures of every query by split and state, for the states whose runs still exist.

    A run whose mean is not the mean in ``results.json`` belongs to another state, and is left out.
    """
    found: dict[str, Any] = {}
    for split in SPLITS:
        for state, means in results.get(split, {}).items():
            for run in runs_of(source, folder, state, split):
                values = source.by_query(run, split)
                if all(means_agree(values[measure], means.get(measure)) for measure in values):
                    of_state = {measure: packed(values[measure], measure) for measure in values}
                    found.setdefault(split, {})[state] = of_state
                    break
    return found


def means_agree(values: Values, mean: float | None) -> bool:
    """Whether values by query have the mean that was recorded."""
    return mean is not None and math.isclose(float(np.nanmean(values)), mean, abs_tol=1e-9)


def runs_of(source: Source, folder: Path, state: str, split: str) -> list[Run]:
    """The runs of a state for a split, from any place where the experiment may keep them."""
    places = [folder / place / split for place in places_of(state) if is_published(folder / place / split)]
    if places:
        return [load_run(place) for place in places]
    text = folder / f"runs/{state}.{split}.trec.gz"
    return [] if "/" in state or not text.is_file() else [read_run(source, text)]


def read_run(source: Source, path: Path) -> Run:
    """Read a run from a TREC file, with the rows of the collection."""
    collection = source.collection
    runs, _, _ = read_runs([path], collection.query_ids, collection.passage_ids)
    return runs[0]


def places_of(state: str) -> list[str]:
    """The folders in which an experiment may keep the runs of a state."""
    name, _, kind = state.partition("/")
    runs = f"runs-{kind}" if kind else "runs"
    _, _, number = name.partition("-")
    n = int(number) if number.isdigit() else None
    first = ["episodes/0", "episodes/1"]
    known = {
        "final": ["final"],
        "last": ["last"],
        "retriever": ["retriever"],
        "untrained": ["untrained", *first],
        "untrained-as-trained": first,
    }
    if n is not None:
        known |= {f"episode-{n}": [f"episodes/{n + 1}"], f"refresh-{n}": [f"episodes/{n}"]}
        known |= {f"step-{n}": [f"states/{n}"]}
    found = [f"{place}/{runs}" for place in known.get(name, [])]
    if name == f"iteration-{n}":
        found.append(f"episodes/1/{runs.replace('runs', f'runs-v{n:04d}', 1)}")
    return found


def changes_of(source: Source, folder: Path, forgetting: Sequence[Mapping[str, Any]]) -> list[str]:
    """The training queries that each episode forgot and learned; [] if the run of a state is gone."""
    names = [row.get("before") for row in forgetting] + [row.get("after") for row in forgetting[-1:]]
    found = [training_runs(folder, str(name)) for name in names]
    if not found or not all(found):
        return []
    settings = json.loads((folder / "settings.json").read_text())["settings"]
    data = labelled(choose_splits(source.collection, draw=DevDraw(settings["seed"])), settings)
    contains = answers_of(data, source.cache)
    ranks = [reciprocal_ranks(runs[0], relevant(runs[0], data, contains)) for runs in found]
    order = np.argsort(source.collection.query_ids.take(data.train.query_rows))
    signs = [np.sign(after - before)[order].astype(int) for before, after in itertools.pairwise(ranks)]
    told = [(row["forgotten"], row["learned"]) for row in forgetting]
    if told != [(float(np.mean(sign < 0)), float(np.mean(sign > 0))) for sign in signs]:
        return []
    return ["".join((SAME, ROSE, FELL)[value] for value in sign) for sign in signs]


def training_runs(folder: Path, state: str) -> list[Run]:
    """The runs of a state for the training queries."""
    places = [folder / place / "query" for place in places_of(state)]
    return [load_run(place) for place in places if is_published(place)]

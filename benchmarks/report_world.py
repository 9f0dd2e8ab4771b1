"""A generated experiment at full size, for the report: runs, pools and metrics on disk, texts generated when read.

The collection is in memory: its ids and texts are made from row numbers when they are asked for, so building it
costs nothing. Runs and pools are artefacts on disk, as training leaves them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

DIGEST = "0" * 64
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]
DEV = 6_980  # queries of dev, as MS MARCO has them
STEPS = 2_000  # of an episode


@dataclass(frozen=True)
class Column:
    """Strings by row, made when they are asked for."""

    name: str
    length: int
    words: int = 0  # of a text; 0: a string is only the name and the row

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> str:
        return f"{self.name}{int(row)}{self.tails[int(row) * 7 % len(WORDS)]}"

    @cached_property
    def tails(self) -> list[str]:
        """The words behind a row's number, by its remainder: a text costs about as much as one from a file."""
        orders = [[WORDS[(first + i * i) % len(WORDS)] for i in range(self.words)] for first in range(len(WORDS))]
        return ["".join(f" {word}" for word in order) for order in orders]

    def take(self, rows: Any) -> list[str]:
        return [self[row] for row in np.asarray(rows).tolist()]

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        return np.array([int(one.removeprefix(self.name)) for one in ids], np.int32)

    @cached_property
    def id_rank(self) -> np.ndarray:
        return np.broadcast_to(np.int32(0), self.length)  # ties are rare, so any order will do


class Generated:
    """The parts of a collection that a report reads."""

    def __init__(self, passages: int, queries: int, keys: Path) -> None:
        self.digest, self.path, self.has_answers = DIGEST, keys.parent, False
        self.passage_ids, self.titles = Column("p", passages), Column("title ", passages)
        self.texts = Column("passage ", passages, 60)
        self.query_ids, self.query_texts = Column("q", queries), Column("query ", queries, 6)
        np.save(keys, np.arange(passages, dtype=np.uint64))
        self.text_keys = np.load(keys, mmap_mode="r")
        self.n_passages, self.n_queries = passages, queries


def positives_of(size: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query rows, offsets and passage rows: one positive for each query, near which its lists lie."""
    queries = size["queries"]
    rows = np.arange(queries, dtype=np.int32)
    near = (np.arange(queries, dtype=np.int64) * 1009 % size["passages"]).astype(np.int32)
    return rows, np.arange(queries + 1, dtype=np.int64), near


def write(folder: Path, size: Mapping[str, Any], given: Any) -> Any:
    """Write the experiment to ``folder``; returns the data that its report is made from."""
    from hardneg.data.training_data import TrainingData
    from hardneg.experiment.folder import FORMAT, write_settings
    from hardneg.experiment.layout import Layout, run_of
    from hardneg.experiment.states import StateRecord, states_text
    from hardneg.records import Positives, Qrels

    layout, last, dev = Layout(folder), size["episodes"], min(DEV, size["queries"])
    folder.mkdir(parents=True)
    save(given.bm25, run_of(layout.runs_of("bm25"), "query"))
    records = [StateRecord("bm25", "bm25", asked="judged")]
    lists = [*zip(given.runs.values(), given.near.values(), strict=True)]
    for at in range(last + 1):  # the final model has the lists of the first one; only their size matters
        runs = layout.episode(at + 1).runs if at < last else layout.runs_of("final")
        name = "untrained" if at == 0 else f"episode-{at}" if at < last else "final"
        run, near = lists[at % last]
        save(run, run_of(runs, "query"))
        save(near, run_of(runs, "lookahead"))
        save(run, run_of(runs, "dev"), dev)
        if size.get("dim"):
            save_vectors(runs, size, at)
        pool = layout.relative(layout.episode(at).negatives) if at else None
        kind: Any = "episode" if 0 < at < last else name
        records.append(
            StateRecord(
                name, kind, episode=at or None, step=STEPS * bool(at), pool=pool, runs=layout.relative(runs)
            )
        )
    rows, offsets, near = positives_of(size)
    for at, one in enumerate(given.pools.values(), 1):
        save_negatives(one, layout.episode(at).negatives, offsets, near)
    layout.states.write_bytes(states_text(records))
    layout.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows_of(last)))
    layout.timing.write_text(json.dumps({"stage": "train", "begun": 0, "seconds": 1.0, "steps": STEPS}) + "\n")
    known = {"measures": "RR@10 R@100", "depth": size["depth"]}
    write_settings(
        folder,
        {"format": FORMAT, "recipe": "ance-tele", "inputs": {}, "result_settings": known, "settings": known},
    )
    collection: Any = Generated(size["passages"], size["queries"], folder / "keys.npy")
    judged = Qrels(rows[:dev], offsets[: dev + 1], near[:dev], np.ones(dev, np.int32))
    return TrainingData(collection, Positives(rows, offsets, near), dev=judged, test=None)


def save(lists: Any, path: Path, queries: int | None = None) -> None:
    """Publish lists as a run: all of them, or those of the first queries."""
    from hardneg.records import Run
    from hardneg.search.runs import save_run

    n = len(lists.query_rows) if queries is None else queries
    stop = int(lists.offsets[n])
    arrays = (lists.query_rows[:n], lists.offsets[: n + 1], lists.passage_rows[:stop], lists.scores[:stop])
    save_run(Run(*arrays, unit="passage", collection=DIGEST), path, inputs={}, settings={})


def save_negatives(pool: Any, path: Path, offsets: np.ndarray, positives: np.ndarray) -> None:
    """Publish a pool; the arrays that diagnostics do not read are filled in."""
    from hardneg.negatives.pool import save_pool

    n = len(pool.passage_rows)
    whole = replace(
        pool,
        positive_offsets=offsets,
        positive_rows=positives,
        ranks=np.ones(n, np.int32),
        scores=np.zeros(n, np.float32),
        anchors=np.full(n, -1, np.int32),
        collection=DIGEST,
    )
    save_pool(whole, path, settings={}, inputs={})


def save_vectors(runs: Path, size: Mapping[str, Any], state: int) -> None:
    """Publish the vectors of a few queries and their passages beside a state's runs, for the map."""
    from hardneg.diagnostics.sampled_vectors import NEGATIVES, QUERIES, SampledVectors, save_sample
    from hardneg.experiment.layout import sample_of

    rng = np.random.default_rng(state)
    rows, _, near = positives_of(size)
    some = np.sort(rng.choice(size["queries"], QUERIES, replace=False))
    negatives = rng.integers(0, size["passages"], (QUERIES, NEGATIVES)).astype(np.int32)
    passages = np.unique(np.concatenate([near[some], negatives.ravel()])).astype(np.int32)
    vectors = (rng.standard_normal((n, size["dim"])).astype(np.float16) for n in (QUERIES, len(passages)))
    queries, others = vectors
    save_sample(SampledVectors(rows[some], queries, passages, others, near[some], negatives), sample_of(runs), {})


def rows_of(episodes: int) -> list[dict[str, Any]]:
    """Metrics of every step: losses, and gradient norms of every hundredth."""
    return [
        {"step": step, "episode": episode, "model": "retriever", "loss": 1 / step, "grad_norm": 1 + 1 / step}
        | ({f"grad_norm_{name}": 1.0 for name in ("bottom", "middle", "top", "query")} if step % 100 == 1 else {})
        for episode in range(1, episodes + 1)
        for step in range(1, STEPS + 1)
    ]

"""The cost and quality of each kind of index: recall, bytes and milliseconds a query over one real collection.

Passages and queries are embedded once into ``--out``; every index is built there as by ``hardneg index`` and
searched for the test queries one at a time, as a service would. Indexes that are there are not built again.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Step, Study, arguments, begin, called, insert, keep, say, table
from numpy.typing import NDArray
from outcomes import Outcome, opened, packed
from torch import Tensor

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.records import Run
from hardneg.search.ann import FaissIndex
from hardneg.search.embedding_store import Embeddings
from hardneg.search.retrieve import Index, StoredIndex, index_run
from hardneg.search.vectors import as_tensor
from hardneg.storage.artifacts import is_published, read_manifest

MEASURE, DEPTHS, K = "RR@10", (10, 100), 100
TIMED = 300  # queries whose searches are timed, one by one
BEGIN, END = "<!-- table: written by studies/indexes.py -->\n", "<!-- end of table -->\n"
LISTS = 128
EXACT, OPTIONS = "exact", ("lists", "probes", "links", "ef_build", "ef", "subvectors")


def kinds(dim: int) -> dict[str, tuple[str, dict[str, int]]]:
    """The indexes to build over vectors of ``dim`` dimensions, by name; a code has 32, 16, 8 or 4 of them."""
    codes = {f"pq-{dim // each}": ("pq", {"subvectors": dim // each}) for each in (32, 16, 8, 4)}
    return {
        "flat": ("flat", {}),
        "ivf-8": ("ivf", {"lists": LISTS, "probes": 8}),
        "ivf-32": ("ivf", {"lists": LISTS, "probes": 32}),
        "hnsw-64": ("hnsw", {"links": 32, "ef_build": 200, "ef": 64}),
        "hnsw-256": ("hnsw", {"links": 32, "ef_build": 200, "ef": 256}),
        **codes,
        f"ivfpq-{dim // 8}": ("ivfpq", {"lists": LISTS, "probes": 32, "subvectors": dim // 8}),
    }


@dataclass(frozen=True)
class World:
    """A collection with its embeddings, and the queries to search for."""

    collection: Collection
    passages: Embeddings
    queries: Tensor  # [Q, dim]
    best: Run  # the run of exact search


def embedded(chosen: Namespace) -> World:
    """Embed both sides, unless the embeddings are there, and search exactly."""
    cache = chosen.out / "cache"
    for side in ("passage", "query"):
        hn.encode(chosen.data, chosen.model, chosen.out / side, side=side, cache=cache)
    collection, passages = opened(chosen.data, cache), Embeddings.open(chosen.out / "passage")
    rows = collection.qrels("test").query_rows
    queries = as_tensor(Embeddings.open(chosen.out / "query").rows(rows))
    best = index_run(StoredIndex(passages), queries, rows, K, collection.digest)
    return World(collection, passages, queries, best)


def built(chosen: Namespace, name: str, kind: str, settings: Mapping[str, Any]) -> Path:
    """The folder of an index, which is built first if it is not there."""
    path = chosen.out / "indexes" / name
    if not is_published(path):
        path.parent.mkdir(exist_ok=True)
        begun = time.perf_counter()
        hn.index(chosen.out / "passage", path, kind=kind, **settings)
        say(f"{name}: built in {time.perf_counter() - begun:.1f} s")
    return path


def recalls(run: Run, best: Run, depth: int) -> NDArray[np.float64]:
    """The share [Q] of exact search's first hits that are among the first hits of an index."""
    pairs = [(run.hits(i)[0][:depth], best.hits(i)[0][:depth]) for i in range(len(best))]
    return np.array([len(np.intersect1d(a, b)) / len(b) for a, b in pairs])


def milliseconds(index: Index, queries: Tensor) -> float:
    """The median time of searches for one query at a time, after one search that warms up."""
    took = []
    for i in range(min(TIMED, len(queries)) + 1):
        begun = time.perf_counter()
        index.search(queries[i % len(queries)][None], K)
        took.append(time.perf_counter() - begun)
    return 1000 * float(np.median(took[1:]))


def measured(study: Study, world: World, step: Step, index: Index, size: int) -> Outcome:
    """Size, quality and speed of one index."""
    collection, qrels = world.collection, world.collection.qrels("test")
    run = index_run(index, world.queries, qrels.query_rows, K, collection.digest)
    order = np.argsort(collection.query_ids.take(qrels.query_rows))
    values = study.source.by_query(run, "test")
    values |= {f"R@{depth} of exact": recalls(run, world.best, depth)[order] for depth in DEPTHS}
    facts = {"bytes": size, "passages": world.passages.n, "dim": world.passages.dim}
    return Outcome(
        step.name,
        study.settings_of(step),
        {"test": {"final": {name: float(found.mean()) for name, found in values.items()}}},
        study.threads,
        queries={"test": {"final": {name: packed(found, name) for name, found in values.items()}}},
        facts=facts | {"ms": milliseconds(index, world.queries), "timed": min(TIMED, len(world.queries))},
        collection=collection.digest,
    )


def planned(study: Study, dim: int) -> None:
    """Every index, and the search without one."""
    study.planning([Step(EXACT, "index", {"kind": "exact", "dim": dim})])
    study.planning(
        Step(name, "index", {"kind": kind, "dim": dim, **settings})
        for name, (kind, settings) in kinds(dim).items()
    )


def execute(study: Study, chosen: Namespace) -> None:
    """Build and measure the indexes whose outcomes are not kept."""
    missing = [step for step in study.plan.values() if not study.is_done(step.name)]
    world = embedded(chosen) if missing else None
    for step in missing:
        assert world is not None
        if step.name == EXACT:
            size = world.passages.n * world.passages.dim * world.passages.shards[0].dtype.itemsize
            study.add(measured(study, world, step, StoredIndex(world.passages), size))
            continue
        path = built(chosen, step.name, *kinds(chosen.dim)[step.name])
        study.add(measured(study, world, step, FaissIndex(path), read_manifest(path).facts["bytes"]))


def line_of(one: Outcome) -> list[str]:
    """Size, quality and speed of one index."""
    options = {name: one.settings[name] for name in OPTIONS if name in one.settings}
    label = f"`{one.settings['kind']}`" + "".join(f", {name} {value}" for name, value in options.items())
    means = one.results["test"]["final"]
    return [
        "none: exact search of the embeddings" if one.experiment == EXACT else label,
        f"{one.facts['bytes']:,}",
        f"{one.facts['bytes'] / one.facts['passages']:,.0f}",
        *(f"{means[f'R@{depth} of exact']:.3f}" for depth in DEPTHS),
        f"{means[MEASURE]:.4f}",
        f"{one.facts['ms']:.2f}",
    ]


def report(study: Study) -> str:
    """The table, with a description of its data."""
    found = list(study.outcomes().values())
    heads = ["index", "bytes", "a passage", *(f"R@{k} of exact" for k in DEPTHS), f"test {MEASURE}", "ms a query"]
    facts = found[0].facts
    queries = len(found[0].queries["test"]["final"][MEASURE])
    size = f"{facts['passages']:,} passages of {facts['dim']} dimensions"
    what = f"{size} and {queries:,} test queries, the first {K} hits."
    timed = f"Median of {facts['timed']} searches of one query at a time on {found[0].threads} CPU threads."
    about = f"{called(study.model)} on {called(study.data)}: {what}\n{timed}\n"
    return about + "\n" + table(heads, [line_of(one) for one in found])


def main(chosen: Namespace) -> None:
    """Build and measure missing indexes, keep their outcomes, write the table."""
    torch.set_num_threads(chosen.threads)
    study = begin(chosen, {}, MEASURE)
    planned(study, chosen.dim)
    if not chosen.only_report:
        execute(study, chosen)
    keep(study, chosen)
    text = report(study)
    if chosen.report:
        insert(chosen.report, text, BEGIN, END)
    say(text)


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--dim", type=int, default=384, help="dimensions of the encoder's vectors")


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

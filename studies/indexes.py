"""What each kind of index costs and finds: recall, bytes and milliseconds a query over one real collection.

Passages and queries are embedded once into ``--out``; every index is built there as by ``hardneg index`` and
searched for the test queries one at a time, as a service would. What stands there is not made again.
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness import arguments, called, insert, opened, say, table
from torch import Tensor

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.evaluation.measures import evaluate, parse_measures
from hardneg.records import Run
from hardneg.search.ann import FaissIndex, PassageIndex, StoredIndex, index_run
from hardneg.search.embedding_store import Embeddings
from hardneg.search.vectors import as_tensor
from hardneg.storage.artifacts import is_published, read_manifest

MEASURE, DEPTHS, K = "RR@10", (10, 100), 100
TIMED = 300  # queries whose searches are timed, one by one
BEGIN, END = "<!-- table: written by studies/indexes.py -->\n", "<!-- end of table -->\n"
LISTS = 128


def kinds(dim: int) -> dict[str, tuple[str, dict[str, int]]]:
    """What is built over vectors of ``dim`` dimensions, by name; codes stand for 32, 16, 8 and 4 dimensions."""
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
    """A collection embedded, and the queries that are searched."""

    collection: Collection
    passages: Embeddings
    queries: Tensor  # [Q, dim]
    best: Run  # what exact search finds


def embedded(chosen: Namespace) -> World:
    """Embed both sides, unless they stand there, and search exactly."""
    cache = chosen.out / "cache"
    for side in ("passage", "query"):
        hn.encode(chosen.data, chosen.model, chosen.out / side, side=side, cache=cache)
    collection, passages = opened(chosen.data, cache), Embeddings.open(chosen.out / "passage")
    rows = collection.qrels("test").query_rows
    queries = as_tensor(Embeddings.open(chosen.out / "query").rows(rows))
    best = index_run(StoredIndex(passages), queries, rows, K, collection.digest)
    return World(collection, passages, queries, best)


def built(chosen: Namespace, name: str, kind: str, settings: dict[str, int]) -> Path:
    """An index, built unless it stands there."""
    path = chosen.out / "indexes" / name
    if not is_published(path):
        path.parent.mkdir(exist_ok=True)
        begun = time.perf_counter()
        hn.index(chosen.out / "passage", path, kind=kind, **settings)
        say(f"{name}: built in {time.perf_counter() - begun:.1f} s")
    return path


def recall(run: Run, best: Run, depth: int) -> float:
    """Share of the exact first hits that are among the first of an index."""
    pairs = [(run.hits(i)[0][:depth], best.hits(i)[0][:depth]) for i in range(len(best))]
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in pairs]))


def milliseconds(index: PassageIndex, queries: Tensor) -> float:
    """The median of searches of one query at a time, after one that warms up."""
    took = []
    for i in range(min(TIMED, len(queries)) + 1):
        begun = time.perf_counter()
        index.search(queries[i % len(queries)][None], K)
        took.append(time.perf_counter() - begun)
    return 1000 * float(np.median(took[1:]))


def line_of(world: World, name: str, index: PassageIndex, size: int) -> list[str]:
    """Size, quality and speed of one index."""
    collection, qrels = world.collection, world.collection.qrels("test")
    run = index_run(index, world.queries, qrels.query_rows, K, collection.digest)
    found = evaluate(run, qrels, parse_measures(MEASURE), id_rank=collection.passage_ids.id_rank)
    recalls = [f"{recall(run, world.best, depth):.3f}" for depth in DEPTHS]
    mean, each = found.means[MEASURE], size / world.passages.n
    return [
        name,
        f"{size:,}",
        f"{each:,.0f}",
        *recalls,
        f"{mean:.4f}",
        f"{milliseconds(index, world.queries):.2f}",
    ]


def report(chosen: Namespace) -> str:
    """The table, and what it is of."""
    world = embedded(chosen)
    n, dim, queries = world.passages.n, world.passages.dim, len(world.queries)
    stored = n * dim * world.passages.shards[0].dtype.itemsize
    lines = [line_of(world, "none: exact search of the embeddings", StoredIndex(world.passages), stored)]
    for name, (kind, settings) in kinds(dim).items():
        path = built(chosen, name, kind, settings)
        options = ", ".join(f"{key} {value}" for key, value in settings.items())
        label = f"`{kind}`" + (f", {options}" if options else "")
        lines.append(line_of(world, label, FaissIndex(path), read_manifest(path).facts["bytes"]))
    heads = ["index", "bytes", "a passage", *(f"R@{k} of exact" for k in DEPTHS), f"test {MEASURE}", "ms a query"]
    what = f"{n:,} passages of {dim} dimensions and {queries:,} test queries, the first {K} hits."
    timed = f"Median of {min(TIMED, queries)} searches of one query at a time on {chosen.threads} CPU threads."
    about = f"{called(chosen.model)} on {called(chosen.data)}: {what}\n{timed}\n"
    return about + "\n" + table(heads, lines)


def main() -> None:
    """Build what is missing, measure, write the table."""
    chosen = arguments(__doc__ or "", lambda parser: None)
    torch.set_num_threads(chosen.threads)
    text = report(chosen)
    if chosen.report:
        insert(chosen.report, text, BEGIN, END)
    say(text)


if __name__ == "__main__":
    main()

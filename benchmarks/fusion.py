"""Fusion of two runs, and re-ranking without its model: 6,980 queries with 1,000 hits each.

Each contender starts from the objects that its users hold in memory: arrays, dictionaries, or ranx' objects. The
two runs share about half of their passages, and no two hits of a list have equal scores. Re-ranking uses scores
that are known already, so only the bookkeeping is timed. ``python benchmarks/fusion.py --queries 698`` takes a
tenth of the queries.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main

SIZE = {"queries": 6_980, "hits": 1_000, "passages": 8_841_823}
K = 1_000
RRF = 60
TOP = 10  # only these hits are compared, because peers break ties in their own ways

Scored = dict[str, dict[str, float]]


def material(size: Mapping[str, Any]) -> list[Any]:
    """Two runs over the same queries."""
    from hardneg.records import Run

    n, depth, passages = size["queries"], size["hits"], size["passages"]
    runs = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        first = (np.arange(n) * 1009 % passages)[:, None]
        drawn = np.argsort(rng.random((n, 2 * depth), dtype=np.float32), axis=1)[:, :depth]
        scores = 100 - np.cumsum(rng.uniform(0.01, 0.2, (n, depth)), axis=1)
        rows = ((first + drawn * 7) % passages).astype(np.int32).ravel()
        runs.append(
            Run(np.arange(n, dtype=np.int32), np.arange(n + 1) * depth, rows, scores.astype(np.float32).ravel())
        )
    return runs


def best(run: Any) -> Arrays:
    """The first scores of each query, which the gate compares."""
    return {"scores": run.cut(TOP).scores.reshape(len(run), -1).astype(np.float64)}


def hardneg(size: Mapping[str, Any], method: str) -> Run:
    from hardneg.search.fusion import Fusion, fuse

    runs = material(size)
    fusion = Fusion("linear") if method == "linear" else Fusion(rank_constant=RRF)

    def fused() -> Callable[[], Arrays]:
        found = fuse(runs, fusion=fusion, k=K)
        return lambda: best(found)

    return fused


def hardneg_rrf(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "rrf")


def hardneg_linear(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "linear")


def dictionaries(size: Mapping[str, Any]) -> list[Scored]:
    """The runs as nested dictionaries; an id is one string, however often it is used."""
    runs = material(size)
    ids: dict[int, str] = {}
    found = []
    for run in runs:
        names = [ids.setdefault(row, f"d{row}") for row in run.passage_rows.tolist()]
        values, ends = run.scores.tolist(), run.offsets.tolist()
        found.append(
            {f"q{i}": dict(zip(names[a:b], values[a:b], strict=True)) for i, (a, b) in enumerate(pairwise(ends))}
        )
    return found


def python(size: Mapping[str, Any], method: str) -> Run:
    """The fusion of a simple script: dictionaries, and a sort for each query."""
    runs = dictionaries(size)

    def worth(hits: dict[str, float]) -> dict[str, float]:
        if method == "rrf":
            ranked = sorted(hits, key=hits.__getitem__, reverse=True)
            return {name: 1 / (RRF + rank) for rank, name in enumerate(ranked, 1)}
        low, high = min(hits.values()), max(hits.values())
        return {name: (score - low) / (high - low) for name, score in hits.items()}

    def fused() -> Callable[[], Arrays]:
        found: Scored = {}
        for query in runs[0]:
            total: dict[str, float] = {}
            for run in runs:
                for name, value in worth(run[query]).items():
                    total[name] = total.get(name, 0.0) + value
            found[query] = dict(sorted(total.items(), key=lambda one: one[1], reverse=True)[:K])
        return lambda: firsts(found)

    return fused


def firsts(found: Mapping[str, Mapping[str, float]]) -> Arrays:
    """The first scores of each query, in the order of the queries."""
    return {"scores": np.array([list(found[f"q{i}"].values())[:TOP] for i in range(len(found))])}


def python_rrf(size: Mapping[str, Any]) -> Run:
    return python(size, "rrf")


def python_linear(size: Mapping[str, Any]) -> Run:
    return python(size, "linear")


def ranx(size: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    import ranx

    runs = [ranx.Run(found) for found in dictionaries(size)]

    def fused() -> Callable[[], Arrays]:
        found = ranx.fuse(runs, **options)
        return lambda: firsts(found.to_dict())

    return fused


def ranx_rrf(size: Mapping[str, Any]) -> Run:
    return ranx(size, {"norm": None, "method": "rrf", "params": {"k": RRF}})


def ranx_linear(size: Mapping[str, Any]) -> Run:
    return ranx(size, {"norm": "min-max", "method": "sum"})


# ---------------------------------------------------------------- re-ranking


def hardneg_rerank(size: Mapping[str, Any]) -> Run:
    from hardneg.search.rerank import rerank

    run = material(size)[0]
    scorer = _Known()

    def reranked() -> Callable[[], Arrays]:
        found = rerank(run, scorer, size["hits"])
        return lambda: best(found)

    return reranked


class _Known:
    """Scores that cost nothing: a hash of the passage's row."""

    def score(self, query_rows: np.ndarray, passage_rows: np.ndarray, **progress: Any) -> np.ndarray:
        return hashed(passage_rows)


def hashed(passage_rows: np.ndarray) -> np.ndarray:
    """A score for each passage, which depends on its row alone."""
    return ((passage_rows.astype(np.int64) * 40503) % 1_048_573).astype(np.float32)


def python_rerank(size: Mapping[str, Any]) -> Run:
    """The re-ranking of a simple script, with a dictionary of scores by query and passage."""
    run = dictionaries(size)[0]
    known = {
        query: {name: float(int(name[1:]) * 40503 % 1_048_573) for name in hits} for query, hits in run.items()
    }

    def reranked() -> Callable[[], Arrays]:
        found = {}
        for query, hits in run.items():
            scored = ((name, known[query][name]) for name in hits)
            found[query] = dict(sorted(scored, key=lambda one: one[1], reverse=True))
        return lambda: firsts(found)

    return reranked


def pyterrier_rerank(size: Mapping[str, Any]) -> Run:
    """The step of pyterrier after a model has filled the column of scores: it ranks the table anew."""
    import pandas as pd
    from pyterrier.model import add_ranks

    run = dictionaries(size)[0]
    rows = [(query, name) for query, hits in run.items() for name in hits]
    queries, names = map(list, zip(*rows, strict=True))
    table = pd.DataFrame({"qid": queries, "docno": names, "score": hashed(material(size)[0].passage_rows)})

    def reranked() -> Callable[[], Arrays]:
        found = add_ranks(table)
        return lambda: table_firsts(found)

    return reranked


def table_firsts(table: Any) -> Arrays:
    """The first scores of each query in a table of pyterrier's, whose ranks begin at 0."""
    first = table[table["rank"] < TOP]
    number = first["qid"].str[1:].astype(int).to_numpy()
    order = np.lexsort((first["rank"].to_numpy(), number))
    return {"scores": first["score"].to_numpy()[order].reshape(number.max() + 1, -1).astype(np.float64)}


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All contenders give the same best scores."""
    ours = found["hardneg"]["scores"]
    for name, arrays in found.items():
        np.testing.assert_allclose(arrays["scores"], ours, rtol=1e-5, atol=1e-6, err_msg=name)
    return {"mean of the best": round(float(ours[:, 0].mean()), 6)}


def contests(asked: int) -> list[Contest]:
    size = {**SIZE, "queries": asked}
    work = (float(asked), "queries/s")
    fused = [
        Contest(
            f"fuse-{method}",
            {name: f"fusion:{name.split()[0]}_{method}" for name in ("hardneg", "ranx", "python dictionaries")},
            size,
            gate,
            work,
            goals={"ranx": 5.0, "python dictionaries": 5.0},
        )
        for method in ("rrf", "linear")
    ]
    names = {"hardneg": "hardneg", "pyterrier": "pyterrier", "python dictionaries": "python"}
    contenders = {name: f"fusion:{function}_rerank" for name, function in names.items()}
    goals = dict.fromkeys(list(names)[1:], 5.0)
    return [*fused, Contest("rerank", contenders, size, gate, work, goals=goals)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--queries", type=int, default=SIZE["queries"])
    told, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    raise SystemExit(main(contests(told.queries)))

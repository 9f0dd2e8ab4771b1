"""Measures of a large run: 100 000 queries with 200 hits each, a few graded judgements a query.

Each contender starts from the objects that its users hold in memory (arrays, dictionaries, ranx objects) and gives
a value for each query and measure. No two hits of a query have equal scores, so rules for ties do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from contest import Arrays, Contest, Run, main

SIZE = {"queries": 100_000, "hits": 200, "passages": 1_000_000}
MEASURES = ("nDCG@10", "RR@10", "R@100", "AP")


def material(size: Mapping[str, Any]) -> tuple[Any, Any]:
    """A run and qrels. About three of four judged passages are among the hits, more often near the top."""
    from hardneg.records import Qrels, Run, offsets_of, owners

    rng = np.random.default_rng(7)
    n, depth, passages = size["queries"], size["hits"], size["passages"]
    stride = rng.integers(1, passages // depth, n)  # hits of a query are distinct
    rows = (rng.integers(0, passages, n)[:, None] + stride[:, None] * rng.permutation(depth)) % passages
    scores = 100 - np.cumsum(rng.uniform(0.01, 0.2, (n, depth)), axis=1)
    every = np.arange(n, dtype=np.int32)
    run = Run(every, np.arange(n + 1) * depth, rows.astype(np.int32).ravel(), scores.astype(np.float32).ravel())
    owner = owners(offsets_of(rng.integers(2, 7, n)))
    ranks = (rng.beta(0.5, 3, len(owner)) * depth).astype(np.int64)
    hit = rng.random(len(owner)) < 0.75
    judged = np.where(hit, rows[owner, ranks], rng.integers(0, passages, len(owner)))
    pairs, first = np.unique(owner * passages + judged, return_index=True)
    grades = np.where(np.diff(owner, prepend=-1) > 0, 1, rng.integers(0, 4, len(owner)))[first]
    counts = np.bincount(pairs // passages, minlength=n)
    return run, Qrels(every, offsets_of(counts), (pairs % passages).astype(np.int32), grades.astype(np.int32))


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg.evaluation.measures import evaluate, parse_measures

    run, qrels = material(size)
    measures = parse_measures(" ".join(MEASURES))
    ranks = np.argsort(np.argsort(names(size["passages"]))).astype(np.int32)
    return lambda: evaluate(run, qrels, measures, id_rank=ranks).values


def names(n: int) -> list[str]:
    return [f"d{row}" for row in range(n)]


def dictionaries(size: Mapping[str, Any]) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Qrels and run as the peers take them; an id is one string, however often it is used."""
    run, qrels = material(size)
    ids = names(size["passages"])

    def nested(passage_rows: np.ndarray, values: np.ndarray, offsets: np.ndarray) -> dict[str, dict[str, Any]]:
        keys, bare, ends = [ids[row] for row in passage_rows.tolist()], values.tolist(), offsets.tolist()
        return {f"q{i}": dict(zip(keys[a:b], bare[a:b], strict=True)) for i, (a, b) in enumerate(pairwise(ends))}

    judged = nested(qrels.passage_rows, qrels.grades, qrels.offsets)
    return judged, nested(run.passage_rows, run.scores, run.offsets)


def pytrec_eval(size: Mapping[str, Any]) -> Run:
    from pytrec_eval import RelevanceEvaluator

    judged, run = dictionaries(size)
    wanted = {"nDCG@10": "ndcg_cut_10", "RR@10": "recip_rank", "R@100": "recall_100", "AP": "map"}
    evaluator = RelevanceEvaluator(judged, {"ndcg_cut.10", "recip_rank", "recall.100", "map"})

    def evaluate() -> Callable[[], Arrays]:
        found = evaluator.evaluate(run)
        return lambda: columns(wanted, lambda name: (found[query][name] for query in judged), len(judged))

    return evaluate


def ranx(size: Mapping[str, Any]) -> Run:
    import ranx

    judged, run = (kind(found) for kind, found in zip((ranx.Qrels, ranx.Run), dictionaries(size), strict=True))
    wanted = {"nDCG@10": "ndcg@10", "RR@10": "mrr@10", "R@100": "recall@100", "AP": "map"}
    order = [int(query[1:]) for query in judged.get_query_ids()]

    def evaluate() -> Callable[[], Arrays]:
        found = ranx.evaluate(judged, run, [*wanted.values()], return_mean=False, save_results_in_run=False)

        def arrays() -> Arrays:
            return {name: np.asarray(found[theirs])[np.argsort(order)] for name, theirs in wanted.items()}

        return arrays

    return evaluate


def columns(wanted: Mapping[str, str], values: Callable[[str], Iterable[float]], n: int) -> Arrays:
    return {name: np.fromiter(values(theirs), np.float64, n) for name, theirs in wanted.items()}


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Every query's values agree. pytrec_eval's reciprocal rank has no cut-off, so the cut-off is applied here."""
    ours = found["hardneg"]
    for name, arrays in found.items():
        for measure, values in ours.items():
            theirs = arrays[measure]
            if name == "pytrec_eval" and measure == "RR@10":
                theirs = np.where(theirs < 0.1 - 1e-9, 0, theirs)
            np.testing.assert_allclose(theirs, values, rtol=1e-6, atol=1e-9, err_msg=f"{name} {measure}")
    return {measure: round(float(values.mean()), 6) for measure, values in ours.items()}


def contests() -> list[Contest]:
    contenders = {name: f"measures:{name}" for name in ("hardneg", "pytrec_eval", "ranx")}
    goals = {"pytrec_eval": 10.0, "ranx": 5.0}
    work = (float(SIZE["queries"]), "queries/s")
    return [Contest("measures", contenders, SIZE, gate, work, goals=goals)]


if __name__ == "__main__":
    raise SystemExit(main(contests()))

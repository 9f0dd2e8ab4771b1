"""Ranking pairs of real lengths: from strings to the scores of 100 passages for each query, nothing cached.

The ranker is MiniLM's transformer with a head of fixed random weights, which takes as long as a trained one. Every
passage is ranked once, so that nothing is gained by tokenising a passage of several queries once.
``python benchmarks/rank.py --queries 1000`` is the size of a whole test split.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contest, Run, main
from material import MODEL, docs, passages, queries, some

SIZE = {"queries": 4, "passages": 100, "length": 256}
GOAL = 1.5
BUDGET = 16384


def pairs(size: Mapping[str, Any]) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Texts of queries and of all passages, and the rows of each pair in them."""
    n, width = size["queries"], size["passages"]
    rows = np.resize(some(docs().n_passages, docs().n_passages), n * width)
    asked = queries(some(n, docs().n_queries))
    return asked, passages(rows), np.repeat(np.arange(n), width), np.arange(n * width)


def ranker_of(size: Mapping[str, Any]) -> Any:
    from hardneg.models.rankers import new_ranker
    from hardneg.models.source import ModelSource

    return new_ranker(ModelSource(MODEL, device="cpu"), seed=0, max_length=size["length"], use_titles=False)


def hardneg(size: Mapping[str, Any], precision: str = "float32") -> Run:
    from hardneg.data.tokens import token_batch
    from hardneg.models.pair_scores import score_pairs
    from hardneg.process.cpu import reuse_memory

    reuse_memory()
    ranker, (asked, texts, query_rows, passage_rows) = ranker_of(size), pairs(size)
    template = ranker.template

    def run() -> dict[str, np.ndarray]:
        asked_tokens = token_batch(asked, [], template.query, ranker.tokenizer)
        text_tokens = token_batch(texts, [], template.passage, ranker.tokenizer)
        kind: Any = precision
        sides = (asked_tokens, text_tokens, query_rows, passage_rows)
        return {"scores": score_pairs(ranker, *sides, budget=BUDGET, precision=kind)}

    return run


def hardneg_bfloat16(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "bfloat16")


def sentence_transformers(size: Mapping[str, Any], dtype: str = "float32") -> Run:
    from sentence_transformers import CrossEncoder

    from hardneg.models.rankers import save_ranker

    folder = Path(tempfile.mkdtemp()) / "ranker"
    save_ranker(ranker_of(size), folder)
    model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    asked, texts, query_rows, passage_rows = pairs(size)
    both = [(asked[q], texts[p]) for q, p in zip(query_rows, passage_rows, strict=True)]

    def run() -> dict[str, np.ndarray]:
        return {"scores": np.asarray(model.predict(both, show_progress_bar=False), np.float32)}

    return run


def sentence_transformers_bfloat16(size: Mapping[str, Any]) -> Run:
    return sentence_transformers(size, "bfloat16")


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All scores are those that hardneg computes in float32; the spread of scores is the measure in bfloat16."""
    wanted = found["hardneg float32"]["scores"]
    farthest = {}
    for name, arrays in found.items():
        farthest[name] = float(np.abs(arrays["scores"] - wanted).max())
        near = 0.5 * float(wanted.std()) if "bfloat16" in name else 1e-4
        assert farthest[name] < near, (name, farthest[name], near)
    return {"farthest_score": round(max(farthest.values()), 6), "spread": round(float(wanted.std()), 4)}


def contests(asked: int) -> list[Contest]:
    from hardneg.process.hardware import best_precision

    size = {**SIZE, "queries": asked}
    contenders = {"hardneg float32": "rank:hardneg", "CrossEncoder float32": "rank:sentence_transformers"}
    goals = {"CrossEncoder float32": GOAL}
    if best_precision("cpu") == "bfloat16":  # our default there
        contenders = {"hardneg bfloat16": "rank:hardneg_bfloat16", **contenders}
        contenders["CrossEncoder bfloat16"] = "rank:sentence_transformers_bfloat16"
        goals = {"CrossEncoder bfloat16": GOAL}
    return [Contest("rank", contenders, size, gate, (asked * SIZE["passages"], "pairs/s"), goals=goals)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--queries", type=int, default=SIZE["queries"])
    told, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    raise SystemExit(main(contests(told.queries)))

"""Mining hard negatives end to end: from a model's name and texts to negatives, nothing cached."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from contest import Contest, Run, main, told_threads
from material import MODEL, docs, model_folder, passages, queries, some

SIZE = {"queries": 200, "passages": 400, "negatives": 30}


def task(size: Mapping[str, Any]) -> tuple[list[str], list[str], np.ndarray]:
    """Texts of queries and passages, and the place of each query's positive."""
    judged = docs().qrels("train").positives()
    chosen = judged.select(some(size["queries"], len(judged)))
    own = np.unique(chosen.first())
    others = np.setdiff1d(some(docs().n_passages, docs().n_passages), own, assume_unique=False)
    rows = np.concatenate([own, others])[: size["passages"]]
    return queries(chosen.query_rows), passages(rows), np.searchsorted(own, chosen.first())


def hardneg(size: Mapping[str, Any]) -> Run:
    from hardneg import Collection, mine
    from hardneg.process.cpu import tune

    tune(told_threads())
    asked, texts, positives = task(size)
    made = Path(tempfile.mkdtemp())
    collection = Collection.from_lists(
        [(f"{i:06}", text) for i, text in enumerate(texts)],
        {f"{i:06}": text for i, text in enumerate(asked)},
        {"train": {f"{i:06}": [f"{p:06}"] for i, p in enumerate(positives)}},
        to=made / "collection",
    )

    def run() -> dict[str, np.ndarray]:
        folder = Path(tempfile.mkdtemp(dir=made))
        pool = mine(
            collection,
            MODEL,
            folder / "pool",
            sources=["query"],
            depth=size["negatives"],
            count=size["negatives"],
            cache=folder / "cache",
        )
        found = np.sort(np.asarray(pool.passage_rows).reshape(size["queries"], -1), axis=1)
        shutil.rmtree(folder)
        return {"negatives": found}

    return run


def sentence_transformers(size: Mapping[str, Any], dtype: str = "float32") -> Run:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    asked, texts, positives = task(size)
    place = {text: i for i, text in enumerate(texts)}
    dataset = Dataset.from_dict({"anchor": asked, "positive": [texts[i] for i in positives]})

    def run() -> dict[str, np.ndarray]:
        found = mine_hard_negatives(
            dataset,
            SentenceTransformer(model_folder(), device="cpu", model_kwargs={"dtype": dtype}),
            corpus=texts,
            num_negatives=size["negatives"],
            output_format="n-tuple",
            verbose=False,
        )
        columns = [found[f"negative_{i + 1}"] for i in range(size["negatives"])]
        rows = np.array([[place[text] for text in column] for column in columns]).T
        return {"negatives": np.sort(rows, axis=1)}

    return run


def sentence_transformers_bfloat16(size: Mapping[str, Any]) -> Run:
    return sentence_transformers(size, "bfloat16")


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All find the same negatives, except where rounding swaps passages of nearly equal scores."""
    ours, least = found["hardneg"]["negatives"], 1.0
    for name, arrays in found.items():
        theirs = arrays["negatives"]
        assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
        shared = np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(ours, theirs, strict=True)])
        assert shared > (0.97 if "bfloat16" in name else 0.99), (name, shared)
        least = min(least, float(shared))
    return {"shared_negatives": round(least, 4)}


def contests() -> list[Contest]:
    from hardneg.process.hardware import best_precision

    contenders = {"hardneg": "mine:hardneg", "sentence-transformers": "mine:sentence_transformers"}
    if best_precision("cpu") == "bfloat16":  # which hardneg takes there by default, and the peer only if told to
        contenders["sentence-transformers bfloat16"] = "mine:sentence_transformers_bfloat16"
    goals = {"sentence-transformers": 2.0}
    return [Contest("mine", contenders, SIZE, gate, (SIZE["passages"], "passages/s"), goals=goals)]


if __name__ == "__main__":
    raise SystemExit(main(contests()))

"""Ranking pairs of real lengths, from strings to the scores of 100 passages for each query, and training on pairs.

The ranker is MiniLM's transformer with a head of fixed random weights, which takes as long as a trained one. Every
passage is ranked once, so that nothing is gained by tokenising a passage of several queries once.
``python benchmarks/rank.py --queries 1000`` is the size of a whole test split.

``rank-train`` makes training steps of 8 queries with 1 positive and 15 negatives each, dropout on, by the cross
entropy over each query's group. CrossEncoderTrainer has it as ListNet with labels of which softmax makes 1 and 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import train
from contest import Contest, Run, main
from material import MODEL, docs, passages, queries, some

SIZE = {"queries": 4, "passages": 100, "length": 256}
GOAL = 1.5
TRAINING = {"queries": 8, "passages": 16, "length": 128, "steps": 1}
TRAINING_GOAL = 3.0
CERTAIN = 100.0  # a label that softmax turns into 1, beside labels of 0
RATE = 2e-5
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


# ---------------------------------------------------------------- training


def hardneg_training(size: Mapping[str, Any]) -> Run:
    import torch

    from hardneg.adversarial import ranker_nll
    from hardneg.data.token_pairs import PairStore
    from hardneg.data.tokens import TokenStore, token_batch
    from hardneg.process.cpu import reuse_memory
    from hardneg.training.batches import GroupBatch
    from hardneg.training.loop import StepOutput, train_steps
    from hardneg.training.optim import adamw
    from hardneg.training.ranker_objectives import own_mask, ranker_scores

    reuse_memory()
    ranker, (asked, texts, _, _) = ranker_of(size), pairs(size)
    sides = ((asked, ranker.template.query), (texts, ranker.template.passage))
    tokens = [token_batch(strings, [], template, ranker.tokenizer) for strings, template in sides]
    stores: list[Any] = [TokenStore(one.ids.astype(np.uint16), one.offsets, "of the benchmark") for one in tokens]
    store = PairStore(stores[0], stores[1], ranker.form, ranker.settings.max_length)
    b, width = size["queries"], size["passages"]
    rows = np.arange(b * width, dtype=np.int32).reshape(b, width)
    batch = GroupBatch(np.arange(b, dtype=np.int32), rows, b)

    def loss(part: GroupBatch) -> StepOutput:
        scores = ranker_scores(ranker, part, store, "float32")
        losses = ranker_nll(scores, torch.from_numpy(own_mask(part, None)))
        return StepOutput(losses.sum() / part.step_queries)

    first = train.check(ranker.eval(), lambda: loss(batch).loss)
    optimizer, done = adamw(ranker), 0

    def run() -> dict[str, np.ndarray]:
        nonlocal done
        stop = done + size["steps"]
        for _ in train_steps(
            ranker, loss, lambda _: batch, optimizer, lambda _: RATE, start=done, stop=stop, seed=1
        ):
            pass
        done = stop
        return first

    return run


def trainer_of_sentence_transformers(size: Mapping[str, Any]) -> Run:
    import torch
    from datasets import Dataset
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    from hardneg.models.rankers import save_ranker

    folder = Path(tempfile.mkdtemp()) / "ranker"
    save_ranker(ranker_of(size), folder)
    model = CrossEncoder(str(folder), device="cpu")
    asked, texts, _, _ = pairs(size)
    b, width = size["queries"], size["passages"]
    groups = [texts[i * width : (i + 1) * width] for i in range(b)]
    labels = [[CERTAIN, *[0.0] * (width - 1)]] * b
    objective = ListNetLoss(model, mini_batch_size=-1)
    first = train.check(model.eval(), lambda: objective([asked, groups], [torch.tensor(one) for one in labels]))
    columns = {"query": asked, "docs": groups, "labels": labels}
    dataset = Dataset.from_dict({name: column * size["steps"] for name, column in columns.items()})
    arguments = CrossEncoderTrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=b,
        max_steps=size["steps"],
        learning_rate=RATE,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    ready = CrossEncoderTrainer(model, arguments, train_dataset=dataset, loss=objective)

    def run() -> dict[str, np.ndarray]:
        ready.train()
        return first

    return run


def training_contest() -> Contest:
    contenders = {
        "hardneg float32": "rank:hardneg_training",
        "CrossEncoderTrainer": "rank:trainer_of_sentence_transformers",
    }
    work = (float(TRAINING["queries"] * TRAINING["passages"] * TRAINING["steps"]), "pairs/s")
    return Contest(
        "rank-train", contenders, TRAINING, train.gate, work, goals={"CrossEncoderTrainer": TRAINING_GOAL}
    )


def contests(asked: int) -> list[Contest]:
    from hardneg.process.hardware import best_precision

    size = {**SIZE, "queries": asked}
    contenders = {"hardneg float32": "rank:hardneg", "CrossEncoder float32": "rank:sentence_transformers"}
    goals = {"CrossEncoder float32": GOAL}
    if best_precision("cpu") == "bfloat16":  # our default there
        contenders = {"hardneg bfloat16": "rank:hardneg_bfloat16", **contenders}
        contenders["CrossEncoder bfloat16"] = "rank:sentence_transformers_bfloat16"
        goals = {"CrossEncoder bfloat16": GOAL}
    ranking = Contest("rank", contenders, size, gate, (asked * SIZE["passages"], "pairs/s"), goals=goals)
    return [ranking, training_contest()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--queries", type=int, default=SIZE["queries"])
    told, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    raise SystemExit(main(contests(told.queries)))

"""Ranking pairs of real lengths, from strings to the scores of 100 passages for each query, and training on pairs.

The ranker is MiniLM's transformer with a head of fixed random weights, which takes as long as a trained one. Every
passage is ranked once, so that nothing is gained by tokenising a passage of several queries once.
``python benchmarks/rank.py --queries 1000`` is the size of a whole test split.

``rank-train-512`` and its kin make training steps of 8 queries with 1 positive and 15 negatives each, dropout on,
by the cross entropy over each query's group. In CrossEncoderTrainer this loss is ListNet with labels that softmax
turns into 1 and 0. By default it pads each 8 pairs to their longest, and it can take all pairs of a step as one
batch.
``rank-memory`` makes steps of two sizes in three ways, and compares the memory that they take.

"the products alone" computes only the matrix products that hardneg cannot do without: its lower bound.
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
from contest import Contest, NotHere, Run, main
from material import MODEL, docs, passages, queries, some

SIZE = {"queries": 4, "passages": 100, "length": 256}
GOAL = 1.5
TRAINING = {"queries": 8, "passages": 16, "steps": 1, "micro_queries": 2}
LENGTHS = (512, 256, 128)  # the most tokens of a pair; 512 is the default of both tools
TRAINING_GOAL = 3.0
HELD_BYTES = 40 << 30  # memory that the peer needs for the longest pairs, or for all pairs in one batch
CERTAIN = 100.0  # a label that softmax turns into 1, beside labels of 0
RATE = 2e-5
BUDGET = 16384
WHOLE = -1  # the peer's value for all pairs in one mini-batch
CACHE_TOKENS = 1024


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
    """All scores are near those of hardneg in float32; in bfloat16, by half of their standard deviation."""
    wanted = found["hardneg float32"]["scores"]
    farthest = {}
    for name, arrays in measured(found).items():
        farthest[name] = float(np.abs(arrays["scores"] - wanted).max())
        near = 0.5 * float(wanted.std()) if "bfloat16" in name else 1e-4
        assert farthest[name] < near, (name, farthest[name], near)
    return {"farthest_score": round(max(farthest.values()), 6), "spread": round(float(wanted.std()), 4)}


def products(size: Mapping[str, Any], *, backward: bool = False) -> Run:
    """The matrix products of all layers; of the last, only keys and values, as first tokens need little more."""
    import torch

    from hardneg.data.token_pairs import PairStore
    from hardneg.data.tokens import token_batch
    from hardneg.models.packing import lay_out, plan_batches
    from hardneg.process.cpu import reuse_memory

    reuse_memory()
    ranker, (asked, texts, query_rows, passage_rows) = ranker_of(size), pairs(size)
    sides = ((asked, ranker.template.query), (texts, ranker.template.passage))
    stores = [token_batch(strings, [], template, ranker.tokenizer) for strings, template in sides]
    store = PairStore(stores[0], stores[1], ranker.form, ranker.settings.max_length)
    lengths = store.lengths(query_rows, passage_rows)
    config = ranker.tower.transformer.config
    h, wide, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[size.get("precision", "float32")]
    weights = [torch.randn(*shape, dtype=kind) for shape in (*[(h, h)] * 4, (h, wide), (wide, h))]
    batches = [lay_out(-np.sort(-lengths[rows]), torch.device("cpu")) for rows in plan_batches(lengths, BUDGET)]

    def multiply(x: torch.Tensor, y: torch.Tensor) -> None:
        found = x @ y
        if backward:
            _ = found @ y.mT, x.mT @ found

    @torch.no_grad()
    def run() -> dict[str, np.ndarray]:
        for layout in batches:
            states = {width: torch.randn(len(layout.positions), width, dtype=kind) for width in (h, wide)}
            for _ in range(config.num_hidden_layers - 1):
                for weight in weights:
                    multiply(states[len(weight)], weight)
                for count, length in layout.groups:
                    part = torch.ones(count * heads, length, h // heads, dtype=kind)
                    multiply(part, part.mT)
                    multiply(torch.ones(count * heads, length, length, dtype=kind), part)
            for weight in weights[:2]:
                multiply(states[h], weight)
        return {}

    return run


def products_of_training(size: Mapping[str, Any]) -> Run:
    return products(size, backward=True)


def measured(found: dict[str, dict[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    """The results of the contenders, without the contender that only multiplies."""
    return {name: arrays for name, arrays in found.items() if arrays}


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
    batch = GroupBatch(np.arange(b, dtype=np.int32), rows, b, size.get("micro_queries"))
    precision = size.get("precision", "float32")

    def loss(part: GroupBatch) -> StepOutput:
        scores = ranker_scores(ranker, part, store, precision, cache_tokens=size.get("cache_tokens"))
        losses = ranker_nll(scores, torch.from_numpy(own_mask(part, None)))
        return StepOutput(losses.sum() / part.step_queries)

    first = {} if "unchecked" in size else checked(ranker.eval(), batch, loss)
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


def checked(ranker: Any, batch: Any, loss: Any) -> dict[str, np.ndarray]:
    """Loss and gradient norm of the first step, without dropout, one micro-batch after another."""
    import torch

    total = 0.0
    for part in batch.micro():
        value = loss(part).loss
        value.backward()
        total += float(value.detach())
    norm = torch.nn.utils.get_total_norm([p.grad for p in ranker.parameters() if p.grad is not None])
    ranker.zero_grad(set_to_none=True)
    return {"loss": np.array(total), "norm": norm.numpy()}


def memory_of_steps(size: Mapping[str, Any], queries: int, **options: int) -> Run:
    """A training step whose result is how much more memory the process took than it held before."""
    from hardneg.process.memory import peak_memory

    step = hardneg_training({**size, "queries": queries, "unchecked": 1, **options})
    before = peak_memory()

    def run() -> dict[str, np.ndarray]:
        step()
        return {"mib": np.array((peak_memory() - before) >> 20)}

    return run


def whole_4(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 4)


def whole_12(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 12)


def micro_4(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 4, micro_queries=2)


def micro_12(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 12, micro_queries=2)


def cached_4(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 4, cache_tokens=CACHE_TOKENS)


def cached_12(size: Mapping[str, Any]) -> Run:
    return memory_of_steps(size, 12, cache_tokens=CACHE_TOKENS)


def memory_gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """Three times as many queries take about the same memory, except if the step is one batch."""
    taken = {name: float(arrays["mib"]) for name, arrays in found.items()}
    for kind in ("micro_queries", "gradient cache"):
        assert taken[f"12 queries, {kind}"] < 1.2 * taken[f"4 queries, {kind}"], taken
    assert taken["12 queries, one batch"] > 1.4 * taken["4 queries, one batch"], taken
    return taken


def memory_contest() -> Contest:
    kinds = {"micro_queries": "micro", "gradient cache": "cached", "one batch": "whole"}
    contenders = {
        f"{queries} queries, {kind}": f"rank:{name}_{queries}"
        for kind, name in kinds.items()
        for queries in (4, 12)
    }
    work = (float(TRAINING["passages"]), "pairs of a query/s")
    return Contest(
        "rank-memory", contenders, {"passages": 16, "length": 32, "steps": 1}, memory_gate, work, repeats=1
    )


def trainer_of_sentence_transformers(size: Mapping[str, Any], mini_batch_size: int | None = None) -> Run:
    import psutil
    import torch
    from datasets import Dataset
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    from hardneg.models.rankers import save_ranker

    holds_most = size["length"] == max(LENGTHS) or mini_batch_size == WHOLE
    if holds_most and psutil.virtual_memory().total < HELD_BYTES:
        raise NotHere(f"it keeps the passes of all pairs until the last, and {HELD_BYTES >> 30} GiB are not here")
    folder = Path(tempfile.mkdtemp()) / "ranker"
    save_ranker(ranker_of(size), folder)
    model = CrossEncoder(str(folder), device="cpu")
    asked, texts, _, _ = pairs(size)
    b, width = size["queries"], size["passages"]
    groups = [texts[i * width : (i + 1) * width] for i in range(b)]
    labels = [[CERTAIN, *[0.0] * (width - 1)]] * b
    objective = ListNetLoss(model, mini_batch_size=mini_batch_size)
    first = train.check(model.eval(), lambda: objective([asked, groups], [torch.tensor(one) for one in labels]))
    columns = {"query": asked, "docs": groups, "labels": labels}
    dataset = Dataset.from_dict({name: column * size["steps"] for name, column in columns.items()})
    arguments = CrossEncoderTrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=b,
        max_steps=size["steps"],
        learning_rate=RATE,
        bf16=size.get("precision") == "bfloat16",
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


def trainer_of_whole_batches(size: Mapping[str, Any]) -> Run:
    return trainer_of_sentence_transformers(size, WHOLE)


def training_gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    return train.gate(measured(found))


def training_contests() -> list[Contest]:
    """Contests of pairs of real lengths, up to the default of both tools; shorter pairs need less padding."""
    from hardneg.process.hardware import best_precision

    precision = best_precision("cpu")
    peer = f"CrossEncoderTrainer {precision}"
    contenders = {f"hardneg {precision}": "rank:hardneg_training", peer: "rank:trainer_of_sentence_transformers"}
    whole = {f"{peer}, one batch": "rank:trainer_of_whole_batches"}
    bound = {"the products alone": "rank:products_of_training"}
    size = {**TRAINING, "precision": precision}
    work = (float(TRAINING["queries"] * TRAINING["passages"] * TRAINING["steps"]), "pairs/s")
    return [
        Contest(
            f"rank-train-{length}",
            contenders | (whole if length < max(LENGTHS) else {}) | bound,  # the longest: 30 GiB, on paper
            {**size, "length": length},
            training_gate,
            work,
            goals={peer: TRAINING_GOAL},
        )
        for length in LENGTHS
    ]


def contests(asked: int) -> list[Contest]:
    from hardneg.process.hardware import best_precision

    size = {**SIZE, "queries": asked}
    contenders = {"hardneg float32": "rank:hardneg", "CrossEncoder float32": "rank:sentence_transformers"}
    goals = {"CrossEncoder float32": GOAL}
    if best_precision("cpu") == "bfloat16":  # our default there
        contenders = {"hardneg bfloat16": "rank:hardneg_bfloat16", **contenders}
        contenders["CrossEncoder bfloat16"] = "rank:sentence_transformers_bfloat16"
        goals = {"CrossEncoder bfloat16": GOAL}
    contenders["the products alone"] = "rank:products"
    ranking = Contest("rank", contenders, size, gate, (asked * SIZE["passages"], "pairs/s"), goals=goals)
    return [ranking, *training_contests(), memory_contest()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--queries", type=int, default=SIZE["queries"])
    told, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    raise SystemExit(main(contests(told.queries)))

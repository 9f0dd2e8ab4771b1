"""Training steps of 8 queries with 1 positive and 31 hard negatives each; dropout on, in-batch negatives too."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from contest import Contest, Run, main
from material import LENGTH, MODEL, docs, model_folder, passages, queries, random_model, some

if TYPE_CHECKING:
    from hardneg.process.hardware import Precision

SIZE = {"queries": 8, "passages": 32, "steps": 1, "length": LENGTH}
SCALE = 20.0
RATE = 2e-5


def groups(size: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Texts of the queries [b], and of their passages [b][1 + N]."""
    b, width = size["queries"], size["passages"]
    asked = queries(some(b, docs().n_queries))
    texts = passages(some(b * width, docs().n_passages))
    return asked, [texts[i * width : (i + 1) * width] for i in range(b)]


def hardneg(size: Mapping[str, Any], precision: Precision = "float32") -> Run:
    import torch

    from hardneg.data.tokens import TokenStore, token_batch
    from hardneg.losses import contrastive
    from hardneg.models.loading import load_encoder
    from hardneg.process.cpu import reuse_memory
    from hardneg.training.batches import GroupBatch, group_scores, masked_columns
    from hardneg.training.loop import StepOutput, train_steps
    from hardneg.training.optim import adamw

    reuse_memory()
    encoder = load_encoder(random_model(size["kind"]) if "kind" in size else MODEL)
    asked, texts = groups(size)
    template = replace(encoder.template("passage"), max_length=size["length"])

    def stored(strings: list[str]) -> TokenStore:
        tokens = token_batch(strings, [], template, encoder.tokenizer("passage"))
        return TokenStore(tokens.ids.astype(np.uint16), tokens.offsets, "of the benchmark")

    stores = stored(asked), stored([text for group in texts for text in group])
    b, width = size["queries"], size["passages"]
    batch = GroupBatch(np.arange(b, dtype=np.int32), np.arange(b * width, dtype=np.int32).reshape(b, width), b)

    def loss(part: GroupBatch) -> StepOutput:
        scores = group_scores(encoder, part, *stores, precision)
        masked = torch.from_numpy(masked_columns(part, None, in_batch=True))
        losses = contrastive(scores, torch.from_numpy(part.targets()), masked, scale=SCALE)
        return StepOutput(losses.sum() / part.step_queries)

    encoder.eval()
    first = check(encoder, lambda: loss(batch).loss)
    optimizer = adamw(encoder)
    done = 0

    def run() -> dict[str, np.ndarray]:
        nonlocal done
        stop = done + size["steps"]
        for _ in train_steps(
            encoder, loss, lambda _: batch, optimizer, lambda _: RATE, start=done, stop=stop, seed=1
        ):
            pass
        done = stop
        return first

    return run


def hardneg_bfloat16(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "bfloat16")


def check(model: Any, loss: Any) -> dict[str, np.ndarray]:
    """Loss and gradient norm of the first step, without dropout."""
    import torch

    value = loss()
    value.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad(set_to_none=True)
    return {"loss": value.detach().numpy(), "norm": norm.numpy()}


def sentence_transformers(size: Mapping[str, Any], bf16: bool = False) -> Run:
    import tempfile

    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(random_model(size["kind"]) if "kind" in size else model_folder(), device="cpu")
    model.max_seq_length = size["length"]
    asked, texts = groups(size)
    columns = {"anchor": asked, "positive": [group[0] for group in texts]}
    columns |= {f"negative_{i}": [group[i] for group in texts] for i in range(1, size["passages"])}
    objective = MultipleNegativesRankingLoss(model, scale=SCALE)
    features = [model.preprocess(column) for column in columns.values()]
    model.eval()
    first = check(model, lambda: objective(features, None))
    dataset = Dataset.from_dict({name: column * size["steps"] for name, column in columns.items()})

    def trainer() -> Any:
        arguments = SentenceTransformerTrainingArguments(
            tempfile.mkdtemp(),
            per_device_train_batch_size=size["queries"],
            max_steps=size["steps"],
            learning_rate=RATE,
            bf16=bf16,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        return SentenceTransformerTrainer(model, arguments, train_dataset=dataset, loss=objective)

    ready = trainer()

    def run() -> dict[str, np.ndarray]:
        ready.train()
        return first

    return run


def sentence_transformers_bfloat16(size: Mapping[str, Any]) -> Run:
    return sentence_transformers(size, bf16=True)


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All contenders compute the same loss and the same gradient before the first step."""
    ours = next(iter(found.values()))
    for name, arrays in found.items():
        for fact in ("loss", "norm"):
            far = abs(float(arrays[fact]) / float(ours[fact]) - 1)
            assert far < (0.05 if "bfloat16" in " ".join(found) else 1e-3), (name, fact, far)
    return {fact: round(float(value), 5) for fact, value in ours.items()}


def contests() -> list[Contest]:
    from hardneg.data.tokens import token_batch
    from hardneg.models.loading import load_encoder
    from hardneg.process.hardware import best_precision

    encoder = load_encoder(MODEL)
    template = replace(encoder.template("passage"), max_length=LENGTH)
    asked, texts = groups(SIZE)
    strings = [*asked, *(text for group in texts for text in group)]
    tokens = int(token_batch(strings, [], template, encoder.tokenizer("passage")).lengths.sum())
    precision = best_precision("cpu")
    suffix = "" if precision == "float32" else "_bfloat16"
    contenders = {
        f"hardneg {precision}": f"train:hardneg{suffix}",
        f"sentence-transformers {precision}": f"train:sentence_transformers{suffix}",
    }
    goals = {f"sentence-transformers {precision}": 4.0}
    return [Contest("train", contenders, SIZE, gate, (tokens * SIZE["steps"], "tokens/s"), goals=goals)]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main(contests()))

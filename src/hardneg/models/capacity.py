"""The memory that a batch takes inside an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORKSPACE = 64 << 20  # bytes that matrix products keep for themselves


def bytes_of_batch(configs: Sequence[Any], tokens: int) -> int:
    """The bytes that ``tokens`` take inside the widest of these transformers, by factors measured in float32."""
    widths = [16 * c.hidden_size + 3 * getattr(c, "intermediate_size", 4 * c.hidden_size) for c in configs]
    return tokens * max(widths) * 4 + WORKSPACE

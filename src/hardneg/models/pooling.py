"""From token states to one vector a sequence, on flat batches."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Pooling = Literal["cls", "mean", "last"]


def pool(states: Tensor, bounds: Tensor, pooling: Pooling) -> Tensor:
    """Pool flat token states into float32 vectors [n, h].

    Parameters
    ----------
    states : [T, h].
    bounds : [n + 1] int, where sequences begin and end; none is empty.
    pooling : the first token's state (``cls``), the last one's, or the mean of all, special tokens included.
    """
    if pooling == "cls":
        return states[bounds[:-1]].float()
    if pooling == "last":
        return states[bounds[1:] - 1].float()
    if pooling != "mean":
        raise ValueError(f"pooling = {pooling!r} is not computed here")
    # A bag of rows is summed by one thread in order, so that the bits do not depend on scheduling.
    rows = torch.arange(len(states), dtype=bounds.dtype, device=states.device)
    return F.embedding_bag(rows, states.float(), bounds[:-1], mode="mean")

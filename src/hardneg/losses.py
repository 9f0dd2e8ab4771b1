"""Losses: pure functions of score tensors, float32, mean over queries.

Shapes: ``B`` queries, ``P`` passage columns. ``scores`` are raw products; ``logits = scores * scale``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def contrastive(scores: Tensor, targets: Tensor, masked: Tensor, *, scale: float = 1.0) -> Tensor:
    """Softmax cross-entropy of each query's positive against the columns that are not masked.

    Parameters
    ----------
    scores : [B, P] raw scores.
    targets : [B] int64, the column of each query's positive.
    masked : [B, P] bool, columns left out; the target's own column stays whatever it says.
    scale : factor from scores to logits (1 / temperature).

    Returns
    -------
    [B] losses in nats (ANCE-Tele, Eq. 1, with every passage of the batch as a negative).
    """
    logits = scores.float() * scale
    own = torch.zeros_like(masked).scatter_(1, targets[:, None], True)
    logits = logits.masked_fill(masked & ~own, float("-inf"))
    return torch.logsumexp(logits, dim=1) - logits.gather(1, targets[:, None]).squeeze(1)

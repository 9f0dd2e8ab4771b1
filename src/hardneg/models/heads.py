"""What a retriever has after pooling: the head of ANCE's released models, or dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hardneg.models.linear import undrawn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


class AnceHead(nn.Module):
    """Linear + LayerNorm on the pooled vector (Xiong et al., 2021, released code)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = undrawn(width, width)
        self.norm = nn.LayerNorm(width)
        start = torch.Generator().manual_seed(
            0
        )  # a fresh head is part of the model, not of the experiment's draws
        nn.init.normal_(self.linear.weight, std=0.02, generator=start)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """[n, h] → [n, h]."""
        projected: Tensor = self.norm(self.linear(pooled))
        return projected


class DenseHead(nn.Module):
    """Linear layers, each with an activation, on the pooled vector: sentence-transformers' ``Dense`` modules.

    Parameters
    ----------
    weights : the weight [out, in] and the bias [out] or None of each layer, the first one first.
    activations : the name of each layer's activation, one of :data:`ACTIVATIONS`.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, Tensor | None]], activations: Sequence[str]) -> None:
        super().__init__()
        assert all(len(one) == after.shape[1] for (one, _), (after, _) in pairwise(weights))
        self.linears = nn.ModuleList()
        for weight, bias in weights:
            linear = undrawn(weight.shape[1], len(weight), bias=bias is not None)
            linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
            self.linears.append(linear)
        self.activations = tuple(activations)

    @property
    def width(self) -> int:
        """Size of the vectors that come out."""
        return int(self.linears[-1].out_features)  # type: ignore[arg-type]

    def forward(self, pooled: Tensor) -> Tensor:
        """[n, h] → [n, :attr:`width`]."""
        for linear, activation in zip(self.linears, self.activations, strict=True):
            pooled = ACTIVATIONS[activation]()(linear(pooled))
        return pooled


def identity_of(head: nn.Module | None) -> list[Any]:
    """What the identity of a model has to cover of a head, besides its weights."""
    return [list(head.activations)] if isinstance(head, DenseHead) else []

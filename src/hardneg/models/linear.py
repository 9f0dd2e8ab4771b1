"""Linear layers in bfloat16 whose product adds the bias, so that no result is written twice."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hardneg.process.hardware import adds_bias_in_bfloat16


class FastLinear(nn.Linear):
    """A linear layer as ``nn.Linear``, with the same bits.

    For a bfloat16 product with a bias, torch copies the bias to all rows of the result and adds the product to it.
    With AMX that copy takes an eighth of encoding, with AVX-512 BF16 a twentieth. oneDNN's
    operation does without it, but has no gradient.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [..., in] to [..., out]."""
        half = x.dtype == self.weight.dtype == torch.bfloat16 and x.device.type == "cpu"
        if (
            half
            and self.bias is not None
            and not torch.is_grad_enabled()
            and _is_dense(x)
            and adds_bias_in_bfloat16()
        ):
            mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return mapped
        return super().forward(x)


def _is_dense(x: Tensor) -> bool:
    """Whether torch, too, adds the bias before it rounds.

    If ``x`` is not contiguous, torch rounds the product first.
    """
    return x.is_contiguous() and bool(x.numel())


def use_fast_linear(model: nn.Module) -> None:
    """Turn every ``nn.Linear`` of ``model`` into a :class:`FastLinear`, in its place: hooks and weights stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FastLinear


def undrawn(width: int, out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer whose weights the caller sets; a new one of torch would take the program's random numbers."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, width, out, bias=bias)
    return layer

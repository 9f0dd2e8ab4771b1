"""Dropout in a few passes over memory on the CPU, where torch's own drawing takes a tenth of a training step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardneg.process.cpu import draws_dropout

STEPS = 1 << 16  # on the CPU probabilities are rounded to multiples of 1 / STEPS: one word gives four draws


def seed_draws(seed: int) -> None:
    """Seed torch's random numbers, of which dropout is drawn, on the CPU and on every other device there is.

    Where there is none, ``torch.manual_seed`` would still write down the whole Python stack at each
    call: one to two milliseconds.
    """
    if _other_devices():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@functools.cache
def _other_devices() -> bool:
    return torch.accelerator.is_available()


def drop(x: Tensor, p: float) -> Tensor:
    """Dropout of ``x`` with probability ``p``; what is kept is scaled up, so that the mean stays."""
    if not draws_dropout(x.device):
        return F.dropout(x, p)
    dropped = round(p * STEPS)
    dropped_out: Tensor = _Dropout.apply(x, _draws(x.shape) >= dropped - STEPS // 2, STEPS / (STEPS - dropped))
    return dropped_out


def _draws(shape: torch.Size) -> Tensor:
    """Uniform int16 numbers of this shape, from numpy's faster generator, whose seed torch's generator gives."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        -(1 << 63), (1 << 63) - 1, size=(shape.numel() + 3) // 4, dtype=np.int64, endpoint=True
    )
    return torch.from_numpy(words).view(torch.int16)[: shape.numel()].view(shape)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return _kept(x, keep, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return _kept(gradient, keep, ctx.scale), None, None


def _kept(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """``x * keep * scale``, where ``keep`` is bool.

    torch converts booleans one at a time, so they are read as bytes, whose conversion is vectorised.
    """
    return torch.addcmul(x.new_zeros(()), x, keep.view(torch.int8).to(x.dtype), value=scale)


class FastDropout(nn.Dropout):
    """Dropout as ``nn.Dropout``, computed by :func:`drop`."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of ``x``, of any shape; outside of training ``x`` itself comes back."""
        return drop(x, self.p) if self.training and self.p else x


def use_fast_dropout(model: nn.Module) -> None:
    """Put :class:`FastDropout` in the place of every ``nn.Dropout`` of ``model``."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                fast = FastDropout(child.p)
                setattr(module, name, fast.train(child.training))

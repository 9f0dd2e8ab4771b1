"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

Schedule = Callable[[int], float]
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """AdamW (betas 0.9 / 0.999, eps 1e-8), fused; biases and layer norms are not decayed.

    The learning rate is set at each step by the loop.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain = [p for name, p in named if p.ndim < 2]
    decayed = [p for name, p in named if p.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, fused=True)


def optimizers(name: str, *, weight_decay: float) -> Optimizers:
    """The function that makes an optimiser by its name: ``adamw`` or ``lamb``."""
    make = {"adamw": adamw}[name]
    return lambda model: make(model, weight_decay=weight_decay)


def linear(peak: float, *, warmup: float, horizon: int) -> Schedule:
    """Linear warm-up to ``peak``, then linear decay that reaches 0 after ``horizon`` steps.

    Parameters
    ----------
    warmup : steps, or when below 1 a share of the horizon. The first step is at ``peak / warmup``, not at 0.
    horizon : the full number of steps; stopping early does not shorten it.
    """
    rise = math.floor(warmup * horizon + 0.5) if warmup < 1 else int(warmup)

    def rate(step: int) -> float:
        if step < rise:
            return peak * (step + 1) / rise
        return peak * max(horizon - step, 0) / max(horizon - rise, 1)

    return rate


def cyclical(peak: float, *, warmup: float, period: int) -> Schedule:
    """A warm-up and a linear decay to 0 of their own in every ``period`` steps (ANCE's QA preset)."""
    cycle = linear(peak, warmup=warmup, horizon=period)
    return lambda step: cycle(step % period)

"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hardneg.shown import counted

log = logging.getLogger(__name__)
Schedule = Callable[[int], float]
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """AdamW (betas 0.9 / 0.999, eps 1e-8), fused; biases and layer norms are not decayed.

    The learning rate is set at each step by the loop.
    """
    return torch.optim.AdamW(groups_of(model, weight_decay), lr=0.0, fused=True)


def groups_of(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The trained parameters in two groups: matrices are decayed, biases and layer norms are not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al., 2020) as ANCE and STAR run it: no bias correction, weight norms clamped to [0, 10].

    ``update = m / (sqrt(v) + eps) + decay * w``; ``w -= lr * ratio * update`` with ``ratio = |w| / |update|`` for
    each tensor, or 1 if either norm is 0. Like torch's fused kernels, a step does nothing if ``found_inf`` is 1.
    """

    found_inf: torch.Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights from the gradients, without waiting for the device."""
        for group in self.param_groups:
            if weights := [p for p in group["params"] if p.grad is not None]:
                self._update(weights, group)

    def _update(self, weights: list[torch.Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), decay = group["betas"], group["weight_decay"]
        for p in weights:
            if not self.state[p]:
                self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        gradients = [p.grad for p in weights if p.grad is not None]
        means = [self.state[p]["exp_avg"] for p in weights]
        squares = [self.state[p]["exp_avg_sq"] for p in weights]
        rate = group["lr"]
        if self.found_inf is not None:  # if it is 1, neither the moments nor the weights may change
            sound = 1.0 - self.found_inf.reshape(())
            gradients = [torch.where(sound > 0, g, 0.0) for g in gradients]
            beta1, beta2 = 1.0 - (1.0 - beta1) * sound, 1.0 - (1.0 - beta2) * sound
            rate = sound * rate
        room = torch._foreach_mul(gradients, gradients)  # written again below: on the CPU new tensors take long
        for values, beta in (squares, beta2), (means, beta1):
            if values is means:
                torch._foreach_copy_(room, gradients)
            torch._foreach_mul_(room, 1.0 - beta)
            torch._foreach_mul_(values, beta)
            torch._foreach_add_(values, list(room))
        torch._foreach_copy_(room, squares)
        torch._foreach_sqrt_(room)
        torch._foreach_add_(room, group["eps"])
        updates = torch._foreach_div(means, room)
        if decay:
            torch._foreach_add_(updates, weights, alpha=decay)
        for p, update, w, u in zip(
            weights, updates, torch._foreach_norm(weights), torch._foreach_norm(updates), strict=True
        ):
            w = w.clamp(0.0, 10.0)
            p.sub_(update.mul_(torch.where((w > 0) & (u > 0), w / u, 1.0) * rate))


def lamb(model: nn.Module, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Make a :class:`Lamb` optimiser for a model; biases and layer norms are not decayed."""
    return Lamb(groups_of(model, weight_decay))


def optimizers(name: str, *, weight_decay: float) -> Optimizers:
    """The function that makes an optimiser by its name: ``adamw`` or ``lamb``."""
    make = {"adamw": adamw, "lamb": lamb}[name]
    return lambda model: make(model, weight_decay=weight_decay)


def steps_of_rise(warmup: float, horizon: int) -> int:
    """The steps of a warm-up that is given in steps or, when below 1, as a share of the horizon."""
    return math.floor(warmup * horizon + 0.5) if warmup < 1 else int(warmup)


def tell_low_peak(peak: float, *, warmup: float, horizon: int, made: int | None = None, of: str = "") -> None:
    """Warn if a linear schedule cannot rise to its highest value.

    Parameters
    ----------
    made : the steps after which it ends early or begins anew; None: all are made.
    of : the model that is trained, if there are several.
    """
    rise, steps = steps_of_rise(warmup, horizon), horizon if made is None else min(made, horizon)
    if rise <= max(steps, 1):
        return
    whose, whole = f" of the {of}" if of else "", counted(horizon, "step")
    length = f"has {whole}" if steps == horizon else f"of {whole} ends or begins anew after {steps:,}"
    told = "warmup = %g, and the schedule%s %s: the learning rate rises to %.3g only, not to %g"
    log.warning(told, warmup, whose, length, peak * steps / rise, peak)


def linear(peak: float, *, warmup: float, horizon: int) -> Schedule:
    """Linear warm-up to ``peak``, then linear decay that reaches 0 after ``horizon`` steps.

    Parameters
    ----------
    warmup : steps, or when below 1 a share of the horizon. The first step is at ``peak / warmup``, not at 0.
    horizon : the full number of steps; stopping early does not shorten it.
    """
    rise = steps_of_rise(warmup, horizon)

    def rate(step: int) -> float:
        if step < rise:
            return peak * (step + 1) / rise
        return peak * max(horizon - step, 0) / max(horizon - rise, 1)

    return rate


def cyclical(cycle: Schedule, begun: Callable[[int], int]) -> Schedule:
    """Restart the schedule ``cycle`` at each new cycle, as ANCE's code re-warms when new negatives take effect.

    Parameters
    ----------
    cycle : steps since the cycle began -> learning rate. The next cycle may begin before this one has ended.
    begun : step -> the first step of its cycle. It is called after the step's batch is made.
    """
    return lambda step: cycle(step - begun(step))

"""The training loop, a generator of optimiser steps; between two steps its caller can do other work."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hardneg import keyed_random
from hardneg.errors import NumericError
from hardneg.models.dropout import seed_draws
from hardneg.process.distributed import member
from hardneg.training.gradient_sums import GradientSums, add_gradients
from hardneg.training.optim import Schedule

RING = 64  # the queries of so many batches are remembered, to name them if a loss is not finite


@dataclass(frozen=True)
class StepOutput:
    """The result of an objective for one micro-batch: its loss and facts for the metrics."""

    loss: Tensor  # sum over the micro-batch's queries, divided by the queries of the whole step
    facts: dict[str, Tensor] = field(default_factory=dict)
    once: bool = False  # whether the backward pass is sure to accumulate each parameter's gradient only once


class Batch(Protocol):
    """What the loop needs of a batch: the rows of its queries, and its micro-batches."""

    @property
    def query_rows(self) -> Any:
        """The rows of the batch's queries."""
        ...

    def micro(self) -> Sequence[Any]:
        """The micro-batches, in order; the step's loss is the sum of theirs."""
        ...


Objective = Callable[[Any], StepOutput]


@dataclass(frozen=True)
class Step:
    """One finished optimiser step. ``loss`` and ``grad_norm`` stay on the device until they are read."""

    index: int  # the number of the step, from 0
    loss: Tensor
    learning_rate: float
    grad_norm: Tensor  # before clipping
    queries: int
    facts: dict[str, Tensor]
    confirm: Callable[[], None]  # raises if this step or an earlier one was not finite; call it before saving
    stop: int = 0  # the signal that one of several processes got before this step; 0: none


def train_steps(
    model: nn.Module,
    objective: Objective,
    batches: Callable[[int], Batch],
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    *,
    start: int,
    stop: int,
    seed: int,
    clip: float = 1.0,
    check_every: int = 10,
    probe: Callable[[int], dict[str, Tensor]] = lambda index: {},
) -> Iterator[Step]:
    """Make the optimiser steps ``start`` to ``stop - 1``, and yield after each.

    Parameters
    ----------
    objective : micro-batch -> :class:`StepOutput`; belongs to the recipe.
    batches : step -> batch; a pure function, so that any step can be made again.
    optimizer : its ``step`` must do nothing if its ``found_inf`` is 1, as in torch's fused kernels.
    schedule : step -> learning rate.
    seed : the dropout of a step is keyed by (seed, step) and by the process, so a resumed run draws the same.
    clip : the largest norm of the whole gradient.
    check_every : once a loss or gradient is not finite, the weights no longer change. The error is raised within
        this many steps, because reading the flag at every step would make each step wait for the device.
    probe : step -> facts of the gradient for the metrics; called before the gradient is clipped.

    Raises
    ------
    NumericError : a loss or gradient was NaN or Inf; names the first such step and its queries.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    guard = Guard(check_every)
    model.train()
    with GradientSums(in_order(model, parameters)) as sums:
        for index in range(start, stop):
            batch = batches(index)
            seed_draws(dropout_seed(seed, index))
            loss, facts = backward(objective, batch, sums.early)
            asked_to_stop = add_gradients(sums)
            facts |= probe(index)
            grad_norm = nn.utils.clip_grad_norm_(parameters, clip, foreach=True)
            rate = schedule(index)
            for group in optimizer.param_groups:
                group["lr"] = rate
            guard.watch(index, batch, optimizer, torch.isfinite(loss) & torch.isfinite(grad_norm))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if index + 1 == stop or guard.is_due():
                guard.read()
            yield Step(index, loss, rate, grad_norm, len(batch.query_rows), facts, guard.read, asked_to_stop)


def in_order(model: nn.Module, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parameters in the order in which the model names them, which is about that of their use."""
    places = {id(p): place for place, p in enumerate(model.parameters())}
    return sorted(parameters, key=lambda p: places.get(id(p), -1))


def dropout_seed(seed: int, step: int) -> int:
    """The seed of a step's dropout; if several processes share a step, each has its own."""
    process = member()[0]
    return keyed_random.key(seed, "dropout", step, *([process] if process else [])) >> 1


def backward(
    objective: Objective,
    batch: Batch,
    early: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Accumulate the gradient of all micro-batches; returns the sums of their losses (detached) and facts.

    Parameters
    ----------
    early : makes the block in which the last backward pass runs while its gradients are added up. A pass that may
        accumulate a parameter's gradient several times, as with the gradient cache, runs outside such a block; its
        gradients are added up later.
    """
    total: Tensor | None = None
    facts: dict[str, Tensor] = {}
    parts = batch.micro()
    for number, part in enumerate(parts, 1):
        output = objective(part)
        with early() if output.once and number == len(parts) else contextlib.nullcontext():
            output.loss.backward()
        total = output.loss.detach() if total is None else total + output.loss.detach()
        for name, value in output.facts.items():
            facts[name] = facts[name] + value if name in facts else value
    assert total is not None
    return total, facts


class Guard:
    """Freezes the weights from the first loss or gradient that is not finite, without waiting for the device."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.ring: deque[tuple[int, Iterable[int], Tensor]] = deque(maxlen=max(RING, every))
        self.unread = 0
        self.sound: Tensor | None = None  # whether all steps so far were finite

    def watch(self, index: int, batch: Batch, optimizer: torch.optim.Optimizer, finite: Tensor) -> None:
        """Make the coming update, and all later ones, depend on ``finite``, a bool on the device."""
        self.sound = finite if self.sound is None else self.sound & finite
        optimizer.found_inf = (~self.sound).float()  # type: ignore[attr-defined]  # fused kernels skip the update
        self.ring.append((index, batch.query_rows, finite))
        self.unread += 1

    def is_due(self) -> bool:
        """Whether the flags should be read now."""
        return self.unread >= self.every

    def read(self) -> None:
        """Read the flags of the steps since the last read; raises :class:`NotFinite` for the first bad step."""
        recent = list(self.ring)[-self.unread :] if self.unread else []
        self.unread = 0
        if self.sound is None or bool(self.sound):  # waits for the device once, and not at every step
            return
        for index, query_rows, finite in recent:
            if not bool(finite):
                raise NotFinite(index, [int(row) for row in query_rows])


class NotFinite(NumericError):
    """A step's loss or gradient was not finite; the stage adds the ids of the step's queries."""

    def __init__(self, step: int, query_rows: list[int]) -> None:
        shown = ", ".join(str(row) for row in query_rows[:8])
        super().__init__(
            "NOT_FINITE",
            f"loss or gradient of step {step} is not finite (query rows {shown})",
            "lower the learning rate or look at these queries' texts",
        )
        self.step, self.query_rows = step, query_rows

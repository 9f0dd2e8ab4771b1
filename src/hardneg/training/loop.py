"""The training loop, a generator: a recipe asks for steps and does between them what it needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hardneg import keyed_random
from hardneg.errors import NumericError
from hardneg.process.distributed import add_gradients, member
from hardneg.training.optim import Schedule

RING = 64  # batches whose query ids are kept to name, should a loss not be finite


@dataclass(frozen=True)
class StepOutput:
    """What an objective makes of one micro-batch."""

    loss: Tensor  # sum over the micro-batch's queries, divided by the queries of the whole step
    facts: dict[str, Tensor] = field(default_factory=dict)


class Batch(Protocol):
    """What the loop needs of a batch: the queries it holds, by row, and its micro-batches."""

    @property
    def query_rows(self) -> Any:
        """Rows of the queries."""
        ...

    def micro(self) -> Sequence[Any]:
        """The parts of the batch, in order; their losses add up."""
        ...


Objective = Callable[[Any], StepOutput]


@dataclass(frozen=True)
class Step:
    """One optimiser step that was made. ``loss`` and ``grad_norm`` stay on the device until they are read."""

    index: int  # 0-based; the step that was made
    loss: Tensor
    learning_rate: float
    grad_norm: Tensor  # before clipping
    queries: int
    facts: dict[str, Tensor]
    confirm: Callable[[], None]  # raises if this step or one before it was not finite; call it before saving


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
    """Make the optimiser steps ``start`` to ``stop - 1``, yielding after each.

    Parameters
    ----------
    objective : micro-batch -> :class:`StepOutput`; belongs to the recipe.
    batches : step -> batch; a pure function, so that any step can be made again.
    optimizer : its ``step`` does nothing where its ``found_inf`` is 1, as in torch's fused kernels.
    schedule : step -> learning rate.
    seed : dropout of a step is keyed by (seed, step), and by the process: a resumed run draws the same.
    clip : largest norm of the whole gradient.
    check_every : from the first loss or gradient that is not finite, the weights stay as they are; it is
        reported within this many steps, so that no step waits for the device.
    probe : what to note of a step's whole gradient, before it is clipped.

    Raises
    ------
    NumericError : a loss or gradient was NaN or Inf; names the first such step and its queries.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    guard = Guard(check_every)
    model.train()
    for index in range(start, stop):
        batch = batches(index)
        torch.manual_seed(dropout_seed(seed, index))
        loss, facts = backward(objective, batch)
        add_gradients(parameters)
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
        yield Step(index, loss, rate, grad_norm, len(batch.query_rows), facts, guard.read)


def dropout_seed(seed: int, step: int) -> int:
    """What a step's dropout is drawn from; where several processes share a step, each draws for its own part."""
    process = member()[0]
    return keyed_random.key(seed, "dropout", step, *([process] if process else [])) >> 1


def backward(objective: Objective, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Accumulate the gradient of all micro-batches; the step's loss (detached) and the facts, summed."""
    total: Tensor | None = None
    facts: dict[str, Tensor] = {}
    for part in batch.micro():
        output = objective(part)
        output.loss.backward()
        total = output.loss.detach() if total is None else total + output.loss.detach()
        for name, value in output.facts.items():
            facts[name] = facts[name] + value if name in facts else value
    assert total is not None
    return total, facts


class Guard:
    """Freezes the weights at the first step that is not finite, without waiting for the device."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.ring: deque[tuple[int, Iterable[int], Tensor]] = deque(maxlen=max(RING, every))
        self.unread = 0
        self.sound: Tensor | None = None  # whether all steps so far were finite

    def watch(self, index: int, batch: Batch, optimizer: torch.optim.Optimizer, finite: Tensor) -> None:
        """Gate the coming update, and all later ones, by ``finite``, a bool on the device."""
        self.sound = finite if self.sound is None else self.sound & finite
        optimizer.found_inf = (~self.sound).float()  # type: ignore[attr-defined]  # fused kernels skip the update
        self.ring.append((index, batch.query_rows, finite))
        self.unread += 1

    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self.unread >= self.every

    def read(self) -> None:
        """Look at the flags since the last look."""
        recent = list(self.ring)[-self.unread :] if self.unread else []
        self.unread = 0
        if self.sound is None or bool(self.sound):  # one look at the device, not one a step
            return
        for index, query_rows, finite in recent:
            if not bool(finite):
                raise NotFinite(index, [int(row) for row in query_rows])


class NotFinite(NumericError):
    """A step whose loss or gradient was not finite; the recipe names its queries by id."""

    def __init__(self, step: int, query_rows: list[int]) -> None:
        shown = ", ".join(str(row) for row in query_rows[:8])
        super().__init__(
            "NOT_FINITE",
            f"loss or gradient of step {step} is not finite (query rows {shown})",
            "lower the learning rate or look at these queries' texts",
        )
        self.step, self.query_rows = step, query_rows

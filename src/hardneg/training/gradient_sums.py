"""Adds up the gradients of several processes, in buckets; where that is safe, while the backward pass runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from hardneg.process.distributed import any_of, begin_sum, member
from hardneg.process.signals import stop_flag

BUCKET = 25 << 20  # bytes of gradients that are summed at once
ALIGNED = 16  # numbers: where a gradient begins in its bucket


def add_gradients(sums: GradientSums) -> int:
    """Put the sum over all processes in place of each gradient: :meth:`GradientSums.finish`, which says more."""
    return sums.finish()


class GradientSums:
    """The sums of the gradients of trained parameters over all processes of the group; alone, it does nothing.

    The parameters are put into buckets from the last to the first, about as a backward pass finishes them (Li et
    al., "PyTorch Distributed", 2020, Section 3.2.3). What a bucket holds, where, and the order of the buckets
    follow from the parameters alone. So neither what is ready when, nor whether a sum begins during the backward
    pass or after it, changes a bit of the result. Processes may differ in it.

    A parameter without a gradient on every process keeps none: it is not trained. Which these are is known after
    the backward pass only, so a bucket waits for all parameters that were trained in the step before. A parameter
    that nobody trained then has its place, and 0 in it; if it is trained now, its bucket is summed once more.

    Parameters
    ----------
    parameters : the trained parameters, in the model's order; the same on all processes.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.buckets = buckets_of(self.parameters)
        self.idle: Set[int] = frozenset()  # ids of the parameters that nobody trained in the step before
        self.begun = 0  # buckets whose sums have begun in this step
        self.missing: list[set[int]] | None = (
            None  # by bucket, what a backward pass must still give; None: in none
        )
        self.hooks: list[Any] = []

    def __enter__(self) -> GradientSums:
        if member()[1] > 1:
            self.hooks = [
                p.register_post_accumulate_grad_hook(partial(self._arrived, number))
                for number, bucket in enumerate(self.buckets)
                for p in bucket.parameters
            ]
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: object, trace: TracebackType | None) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    @contextlib.contextmanager
    def early(self) -> Iterator[None]:
        """In the block, which holds the last backward pass of a step, begin sums when their gradients are there.

        The pass must accumulate the gradient of each parameter once, as it does unless a hook in it runs another
        pass: the gradient cache does so.
        """
        if not self.hooks:
            yield
            return
        self.missing = [{id(p) for p in bucket.parameters} - self.idle for bucket in self.buckets]
        try:
            yield
        finally:
            self.missing = None

    def _arrived(self, number: int, p: Tensor) -> None:
        """Note that a pass has accumulated the gradient of a parameter of a bucket."""
        if self.missing is None:
            return
        if number < self.begun and id(p) not in self.idle:
            raise AssertionError("a gradient came after its sum had begun: the backward pass gave it twice")
        self.missing[number].discard(id(p))
        while self.begun < len(self.buckets) and not self.missing[self.begun]:
            self._begin_next()

    def _begin_next(self) -> None:
        self.buckets[self.begun].begin(lambda p: id(p) not in self.idle)
        self.begun += 1

    def finish(self) -> int:
        """Put the sum over all processes in place of each gradient.

        Whether a process was asked to stop travels with what says which parameters it trained. That no gradient is
        finite needs no message: the sum says so to all.

        Returns
        -------
        The signal that one of the processes was sent, the same on all; 0: none was.
        """
        if member()[1] == 1:
            return 0
        while self.begun < len(self.buckets):
            self._begin_next()
        found, *flags = any_of([stop_flag.heard or 0, *(int(p.grad is not None) for p in self.parameters)])
        used = {id(p) for p, some in zip(self.parameters, flags, strict=True) if some}
        for bucket in self.buckets:
            bucket.end(used - self.idle)
        late = used & self.idle
        for bucket in self.buckets:
            if bucket.begin(lambda p: id(p) in late):
                bucket.end(late)
        self.idle = {id(p) for p in self.parameters} - used
        self.begun = 0
        return found


class Bucket:
    """Parameters whose gradients are summed at once, and their places in one tensor."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.places = [0]
        for p in parameters:
            self.places.append(self.places[-1] + -(-p.numel() // ALIGNED) * ALIGNED)
        self.sums: dict[int, Tensor] = {}  # by parameter, its place; between begin and end
        self.wait: Callable[[], None] | None = None

    @torch.no_grad()
    def begin(self, chosen: Callable[[Tensor], bool]) -> bool:
        """Begin the sum of the gradients of the chosen parameters; the places of all others hold 0.

        The gradients lie in the sum from now on, so that they are not held twice.

        Returns
        -------
        Whether there is a sum: some are chosen, which all processes must agree on.
        """
        ours = [(p, place) for p, place in zip(self.parameters, self.places, strict=False) if chosen(p)]
        if not ours:
            return False
        flat = ours[0][0].new_zeros(self.places[-1])
        self.sums = {id(p): flat[place : place + p.numel()].view(p.shape) for p, place in ours}
        held = [p for p, _ in ours if p.grad is not None]
        if held:
            gradients = [p.grad for p in held if p.grad is not None]
            torch._foreach_copy_([self.sums[id(p)] for p in held], gradients)
        for p in held:
            p.grad = self.sums[id(p)]
        self.wait = begin_sum(flat)
        return True

    def end(self, used: Set[int]) -> None:
        """Wait for the sum, and put it in place of the gradient of each parameter that some process trained."""
        if self.wait is not None:
            self.wait()
        for p in self.parameters:
            if id(p) in self.sums:
                p.grad = self.sums[id(p)] if id(p) in used else None
        self.sums, self.wait = {}, None


def buckets_of(parameters: Sequence[Tensor]) -> list[Bucket]:
    """The parameters from the last to the first, in buckets of at most ``BUCKET`` bytes; a larger one is alone."""
    groups: list[list[Tensor]] = []
    size = 0
    for p in reversed(parameters):
        alike = bool(groups) and (p.dtype, p.device) == (groups[-1][0].dtype, groups[-1][0].device)
        size += p.numel() * p.element_size()
        if not alike or size > BUCKET:
            groups.append([])
            size = p.numel() * p.element_size()
        groups[-1].append(p)
    return [Bucket(group) for group in groups]

"""Adds up the gradients of several processes in buckets, during the backward pass where that is safe."""

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
ALIGNED = 16  # a gradient begins in its bucket at a multiple of so many numbers


def add_gradients(sums: GradientSums) -> int:
    """Replace each gradient by its sum over all processes; see :meth:`GradientSums.finish`."""
    return sums.finish()


class GradientSums:
    """The sums of the gradients of trained parameters over all processes of the group; without a group, no sums.

    The parameters are put into buckets from the last to the first, about as a backward pass finishes them (Li et
    al., "PyTorch Distributed", 2020, Section 3.2.3). The parameters alone determine the order of the buckets,
    their content and the place of each parameter. So every bit of the result is the same, whichever gradient is
    ready first, and whether a sum begins during the backward pass or after it. Processes may differ in both.

    A parameter that has no gradient on any process is not trained, and stays without a gradient. Which parameters
    are trained is known only after the backward pass. A bucket therefore waits for the parameters that were
    trained in the step before. The places of its other parameters hold 0; if such a parameter is trained now, its
    bucket is summed once more.

    Parameters
    ----------
    parameters : the trained parameters, in the model's order; the same on all processes.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self.buckets = buckets_of(self.parameters)
        self.idle: Set[int] = frozenset()  # ids of the parameters that no process trained in the step before
        self.begun = 0  # buckets whose sums have begun in this step
        self.missing: list[set[int]] | None = (
            None  # by bucket, ids of the parameters whose gradients have yet to come; None: outside ``early``
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
        """Begin the sum of each bucket within the block, as soon as all of its gradients are there.

        The block holds the last backward pass of a step. The pass must accumulate the gradient of each parameter
        only once. It does so unless a hook runs another pass within it, as the hook of the gradient cache does.
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
        """Replace each gradient by its sum over all processes.

        One message from each process says which parameters it trained and whether it was asked to stop. A gradient
        that is not finite needs no message: the sum is then not finite on any process.

        Returns
        -------
        The signal that was sent to one of the processes, the same number on all; 0: no signal was sent.
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

        From then on, the gradients are views of the tensor that is summed, so they are not held twice.

        Returns
        -------
        Whether a sum has begun, that is, whether any parameter was chosen. All processes must choose the same.
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
    """The parameters from the last to the first, in buckets of at most ``BUCKET`` bytes, one dtype and one device.

    A parameter of more bytes has a bucket to itself.
    """
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

"""What a caller's program has set in torch for its own work, and what must not reach ours. Loads no torch.

A call from a block of ``torch.autocast`` would make other vectors, which the cache would then give to everybody.
So would one after ``torch.set_float32_matmul_precision("high")``. One from a block without gradients could not
train. Commands and processes of ours have none of this.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

log = logging.getLogger(__name__)

FULL = {"ieee", "none"}  # torch's names of full precision; "none": nobody has chosen

_turn = threading.RLock()


_computed = False  # whether torch may have computed in this process: we were called while it was loaded
_forked = False  # whether this process is a fork of one in which it may have, and has not computed yet


class _Float32:
    """The default type of numbers that a caller had, and in how many blocks threads are now.

    torch has one default for all threads, so only the end of the last block puts the caller's back.
    """

    def __init__(self) -> None:
        self.lock, self.blocks, self.before = threading.Lock(), 0, None

    @contextlib.contextmanager
    def block(self, torch: Any) -> Iterator[None]:
        """Let numbers be float32 by default in the block."""
        with self.lock:
            found, first = torch.get_default_dtype(), self.blocks == 0
            if first:
                self.before = found
            self.blocks += 1
            if found != torch.float32:
                torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            with self.lock:
                self.blocks -= 1
                before = self.before if self.blocks == 0 else torch.float32
                if not first and found != torch.float32:  # a caller within another block has set it
                    before = found
                if torch.get_default_dtype() == torch.float32 != before:
                    torch.set_default_dtype(before)


class _Products:
    """How precise a caller lets products of float32 matrices be, and in how many blocks threads are now.

    torch has one choice for all threads. So the first block makes ours, and the end of the last one puts the
    caller's back. Blocks in between leave it: a search of another thread may have another one for its products.
    """

    def __init__(self) -> None:
        self.lock, self.blocks, self.restore = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def block(self, torch: Any) -> Iterator[None]:
        """Let products be in full float32 in the block: neither TF32 on CUDA nor bfloat16 on a CPU with AMX."""
        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.restore.enter_context(_in_full(torch))
        try:
            yield
        finally:
            with self.lock:
                self.blocks -= 1
                if self.blocks == 0:
                    self.restore.close()


@contextlib.contextmanager
def _in_full(torch: Any) -> Iterator[None]:
    """Choose full precision in the block, by torch's older function.

    The newer settings follow it. Parts of torch, its profiler for one, fail where they differ.
    """
    kinds = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    # What they follow, unless they are set themselves.
    above = torch.backends.cudnn.fp32_precision, torch.backends.mkldnn.fp32_precision
    before, older = [kind.fp32_precision for kind in kinds], None
    if FULL.issuperset(before):
        yield
        return
    with contextlib.suppress(RuntimeError):  # the caller has used both, and they differ
        older = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        # Else a function of the caller chose in the block.
        if all(kind.fp32_precision == "ieee" for kind in kinds):
            if older is not None:
                torch.set_float32_matmul_precision(older)
            for kind, precision, general in zip(kinds, before, above, strict=True):
                kind.fp32_precision = "none" if precision == general else precision


_float32, _products = _Float32(), _Products()


def _in_fork() -> None:
    """In a forked process no other thread runs, so none holds its turn, and none of torch's works."""
    global _turn, _forked, _float32, _products
    _turn, _forked, _float32, _products = threading.RLock(), _computed, _Float32(), _Products()


os.register_at_fork(after_in_child=_in_fork)


def _torch() -> Any:
    """The loaded torch; None where it is not loaded, or not yet whole."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_default_device") else None


def places_of_modules() -> str:
    """Where Python looks for modules in this process, as ``PYTHONPATH`` gives it to a new one.

    A process that is started with it and with ``-P`` finds the same packages, this one among them. The entry for
    the current folder is left out, and so is what is no text, as Python ignores it.
    """
    places = [place for place in sys.path if isinstance(place, str) and place]
    return os.pathsep.join(dict.fromkeys([*places, os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]))


@contextlib.contextmanager
def own_surroundings() -> Iterator[None]:
    """Work in the block as in a fresh program: with gradients, no autocast, in float32, on the CPU by default.

    Products of float32 matrices are in full float32, too.
    Afterwards all is as the caller has set it. Only what differs is changed.
    """
    torch = _torch()
    if torch is None:
        yield
        return
    _use_living_threads(torch)
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_float32.block(torch))
        stack.enter_context(_products.block(torch))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(_outside_blocks_of_autocast(torch))
        yield


@contextlib.contextmanager
def full_products() -> Iterator[None]:
    """Multiply float32 matrices in full precision in the block, as :func:`own_surroundings` lets them be."""
    import torch

    with _products.block(torch):
        yield


@contextlib.contextmanager
def _outside_blocks_of_autocast(torch: Any) -> Iterator[None]:
    """Let torch count no blocks of autocast around ours.

    It casts each weight once, and forgets the casts when the outermost block ends. If that were the caller's, a
    step would use the casts of the first step, and never see an update.
    """
    blocks = torch.autocast_increment_nesting() - 1
    for _ in range(blocks + 1):
        torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(blocks):
            torch.autocast_increment_nesting()


def _use_living_threads(torch: Any) -> None:
    """Let torch and faiss work on one thread in a forked process.

    OpenMP does not see that the parent's other threads are not there, and would wait for them for ever.
    """
    global _computed, _forked
    _computed, forked, _forked = True, _forked, False
    if not forked or torch.get_num_threads() == 1:
        return
    torch.set_num_threads(1)
    if (faiss := sys.modules.get("faiss")) is not None:
        faiss.omp_set_num_threads(1)
    what = "this process was forked from one that may have computed on several threads, so it works on one"
    log.warning("%s; to use more, fork before hardneg is first called", what)


@contextlib.contextmanager
def python_draws_kept() -> Iterator[None]:
    """Leave Python's random numbers as the caller had them, though a package that is imported draws some."""
    drawn = random.getstate()
    try:
        yield
    finally:
        random.setstate(drawn)


@contextlib.contextmanager
def kept_draws() -> Iterator[None]:
    """Leave torch's random numbers as the caller had them: the block may seed them for its own draws.

    So is its choice of deterministic algorithms, which a failed step on CUDA may leave switched on. Threads take
    turns: torch has one stream of random numbers for all of them, so two at once would disturb each other's draws.
    """
    with _own_turn(), _kept():
        yield


@contextlib.contextmanager
def _own_turn() -> Iterator[None]:
    turn = _turn  # the block may fork
    if not turn.acquire(blocking=False):
        log.warning("another thread of this process trains or plans; this one waits for it, as both draw numbers")
        turn.acquire()
    try:
        yield
    finally:
        turn.release()


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    import torch

    drawn, strict = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warns)
        torch.set_rng_state(drawn)
        if on_cuda is not None:
            torch.cuda.set_rng_state_all(on_cuda)
        elif torch.cuda.is_initialized():  # as torch would have seeded it at its first use
            torch.cuda.manual_seed_all(torch.initial_seed())

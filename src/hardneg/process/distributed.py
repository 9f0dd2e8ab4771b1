"""Rank and shard of this process, and the communication of processes that train together.

Work in shards needs only a rank. Training opens a group (:func:`group`): all processes run the same code in step,
and rank 0 alone publishes what is made once. Where there is no group, nothing here waits or communicates. Code
that trains need not know the world size; this module does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hardneg.errors import Interrupted, PeerError, SettingsError
from hardneg.process.launch import check_launch, local_rank, local_size, rank, world_size
from hardneg.process.meeting import ASSEMBLY, assemble, told_by_all
from hardneg.process.signals import stop_flag

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "agreed",
    "any_of",
    "apart",
    "barrier",
    "begin_sum",
    "by_consensus",
    "by_leader",
    "collect",
    "exchange",
    "group",
    "has_others",
    "is_leader",
    "leader_first",
    "local_rank",
    "local_size",
    "look_for_others",
    "member",
    "peers",
    "rank",
    "shard_of",
    "together",
    "world_size",
]  # what the launcher says stands here too

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

PATIENCE = timedelta(days=7)  # the others wait while rank 0 searches; a lost process is noticed by its connection
LINGER_SECONDS = 5.0

_members = 1  # processes of the open group; 1 where there is none
_astray = False  # whether rank 0 left an errand before its end: the others still do it, and receive nothing
_waiting = False  # whether this process works as if it were alone, and the others wait for it


def shard_of(text: str | None) -> tuple[int, int]:
    """The shard (i, n) that ``--shard i/n`` names; without it the launcher's rank and world size."""
    if text is None:
        check_launch()
        return rank(), world_size()
    left, _, right = text.partition("/")
    if left.isdecimal() and right.isdecimal() and int(left) < int(right):
        return int(left), int(right)
    raise SettingsError("BAD_SHARD", f"'{text}' is not a shard", "write --shard i/n with 0 <= i < n")


# ---------------------------------------------------------------- the group of processes that train together


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Open the group of all processes that the launcher started; nothing happens where there is only one.

    Tensors on the CPU go through gloo; those on CUDA through NCCL, if every process has a device of its own. A
    process that leaves with a fault does not wait for what NCCL has yet to send: another process may be gone.

    Raises
    ------
    SettingsError : the environment does not say who and where the others are.
    PeerError : not all came within ``ASSEMBLY``.
    """
    global _members, _astray
    check_launch("MASTER_ADDR", "MASTER_PORT")
    if world_size() == 1 or _members > 1:
        yield
        return
    import torch
    import torch.distributed as dist

    if dist.is_initialized():  # the group of a user's program: this process works alone
        yield
        return

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices:
        torch.cuda.set_device(local_rank() % devices)
    store = assemble()
    with peers():
        backend = "cpu:gloo,cuda:nccl" if _own_devices(store, bool(devices)) else "gloo"
        # A process that dies while they connect is noticed by nothing but this time; later, by its connection.
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world_size(), timeout=ASSEMBLY)
        dist.distributed_c10d._set_pg_timeout(PATIENCE)
    _members, _astray = world_size(), False
    sound = False
    try:
        yield
        sound = True
    finally:
        _members = 1
        if sound or backend == "gloo":
            dist.destroy_process_group()
        else:  # the other function waits until every kernel of NCCL has ended, and so for the other processes
            dist.distributed_c10d._abort_process_group()


def _own_devices(store: Any, cuda: bool) -> bool:
    """Whether each process computes on a CUDA device of its own; all processes come to the same answer.

    Parameters
    ----------
    store : where the processes have met; each writes there which device it has.
    cuda : whether this process has one.
    """
    import torch

    own = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if cuda else ""
    store.set(f"device/{rank()}", own)
    told = told_by_all(store, "device")
    return all(told) and len(set(told)) == len(told)


def member() -> tuple[int, int]:
    """The rank of this process and the size of the open group; (0, 1) where there is none."""
    return (rank(), _members) if _members > 1 else (0, 1)


def is_leader() -> bool:
    """Whether this process publishes what is made once: rank 0 of the group, or the only one."""
    return member()[0] == 0


@contextlib.contextmanager
def peers() -> Iterator[None]:
    """Turn the end of another process into a fault of one line (exit 8), in a block that waits for others.

    This process lingers for some seconds, or until the launcher asks it to stop. So the launcher sees the process
    that failed first end first.
    """
    try:
        yield
    except RuntimeError as fault:
        import torch

        if isinstance(fault, torch.OutOfMemoryError):  # of this process; the others are there
            raise
        until = time.monotonic() + LINGER_SECONDS
        while stop_flag.heard is None and time.monotonic() < until:
            time.sleep(0.05)
        stop_flag.check()  # all were asked to stop, and another did so sooner
        log.info("a message between processes failed: %s", fault)
        what = "another process of this command is gone, or does not answer"
        raise PeerError("PEER_LOST", what, "read its message, and run the same command again") from fault


@dataclass(frozen=True)
class Errand:
    """What rank 0 asks the waiting processes to do together with it: a function of a module, and its arguments."""

    do: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """The result of rank 0 for the processes that waited; or rank 0 was asked to stop, and they must stop too."""

    value: Any
    stopped: Interrupted | None = None


def by_leader(do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Wait until all processes are here, then let rank 0 call ``do`` as if it were alone; all get its result.

    So the other processes do not look at things that rank 0 may be about to change. While they wait, they do the
    errands of :func:`together`.
    """
    if _members == 1:
        return do(*args, **kwargs)
    barrier()
    if not is_leader():
        value: T = _serve()
        return value
    try:
        with _standing(1, waiting=True):
            found = do(*args, **kwargs)
    except Interrupted as stopped:
        if not _astray:
            _tell(Answer(None, stopped))
        raise
    _tell(Answer(found))
    return found


def together(do: Callable[..., T], *args: Any, **own: Any) -> T:
    """Let all processes call ``do``, also where rank 0 works alone inside :func:`by_leader`: then the others help.

    Parameters
    ----------
    do : a function of a module, which pickle can name, as it can send ``args``. The processes wait for each other
        in it.
    own : named arguments of this process only; processes that help call ``do`` without them.
    """
    global _astray
    if not _waiting:
        return do(*args, **own)
    with _standing(world_size(), waiting=False):
        _tell(Errand(do, args))
        _astray = True  # until the others are done with it, too
        found = do(*args, **own)
        _astray = False
    return found


def look_for_others() -> None:
    """Raise if another process of the group is gone, where this one works alone while the others wait for it."""
    if _waiting:
        together(_nothing)


def _nothing() -> None:
    """An errand that does nothing: a message that reaches only processes that live."""


def _serve() -> Any:
    """Do the errands of rank 0 until it gives its answer, which is returned."""
    while True:
        told = _tell(None)
        if isinstance(told, Answer) and told.stopped is not None:
            raise told.stopped
        if isinstance(told, Answer):
            return told.value
        told.do(*told.args)


def _tell(what: Errand | Answer | None) -> Any:
    """Send what rank 0 says to all processes, and return it."""
    import torch
    import torch.distributed as dist

    said: list[Any] = [what]
    with peers():
        dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
    return said[0]


@contextlib.contextmanager
def _standing(members: int, *, waiting: bool) -> Iterator[None]:
    """In the block, take this process for one of so many; ``waiting``: the others wait for it."""
    global _members, _waiting
    before = _members, _waiting
    _members, _waiting = members, waiting
    try:
        yield
    finally:
        _members, _waiting = before


def apart() -> bool:
    """Whether this process works alone inside :func:`by_leader`, while the others of its group wait.

    Such a process must not keep what all processes make together: the others would make it later, and would wait
    for this one.
    """
    return _waiting


def has_others() -> bool:
    """Whether other processes can help in :func:`together`: they work in step, or wait for this one."""
    return _members > 1 or _waiting


def leader_first(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Let rank 0 call ``make``, which publishes something; then all call it, and find that published."""

    def first() -> None:
        make(*args, **kwargs)

    if _members > 1:
        by_leader(first)
    return make(*args, **kwargs)


def any_of(flags: Sequence[int]) -> list[int]:
    """The largest value of each flag [n] over all processes."""
    if _members == 1:
        return list(flags)
    import torch
    import torch.distributed as dist

    values = torch.tensor(flags, dtype=torch.int32)
    with peers():
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values.tolist()


def sum_over_all(own: int) -> int:
    """The sum of a number over all processes."""
    if _members == 1:
        return own
    import torch

    return sum(int(part) for part in collect(torch.tensor([own]), everywhere=True))


def barrier() -> None:
    """Wait until all processes are here."""
    any_of([0])


@contextlib.contextmanager
def by_consensus() -> Iterator[None]:
    """Agree on whether to stop: in the block the stop flag is raised on all processes of the group, or on none.

    It is raised if any of them was asked to stop before the block.
    """
    (found,) = any_of([stop_flag.heard or 0])
    with agreed(found):
        yield


@contextlib.contextmanager
def agreed(found: int) -> Iterator[None]:
    """In the block the stop flag is raised on all processes of the group, or on none; alone it is as it is.

    Parameters
    ----------
    found : the signal that one of them was sent (0: none); all processes have been told of it.
    """
    if _members == 1:
        yield
        return
    with stop_flag.agreed(found):
        yield


# ---------------------------------------------------------------- tensors


def exchange(own: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The rows of every process, in order of rank; ``own`` [sizes[rank], dim] are those of this one."""
    import torch.distributed as dist

    most = max(sizes)
    padded = own.new_zeros(most, own.shape[1])
    padded[: len(own)] = own
    parts = [own.new_empty(most, own.shape[1]) for _ in sizes]
    with peers():
        dist.all_gather(parts, padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def collect(own: Tensor, *, everywhere: bool) -> list[Tensor]:
    """The tensor of every process, in order of rank; all have one shape and lie on the CPU.

    Parameters
    ----------
    everywhere : whether all processes get them; else rank 0 gets them, and the others get an empty list.
    """
    if _members == 1:
        return [own]
    import torch.distributed as dist

    own = own.contiguous()
    parts = [own.new_empty(own.shape) for _ in range(_members)] if everywhere or is_leader() else None
    with peers():
        if everywhere:
            dist.all_gather(parts, own)
        else:
            dist.gather(own, parts, dst=0)
    return parts or []


def begin_sum(own: Tensor) -> Callable[[], None]:
    """Begin to replace ``own`` by its sum over all processes; returns a function that waits until this is done.

    Other work may go on meanwhile, but must not touch ``own``. All processes begin the same sums in one order.
    """
    import torch.distributed as dist

    with peers():
        work = dist.all_reduce(own, async_op=True)

    def wait() -> None:
        with peers():
            work.wait()

    return wait

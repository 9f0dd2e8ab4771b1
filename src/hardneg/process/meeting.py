"""How the processes that a launcher started meet for a group: at one store, where rank 0 calls all of them."""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from typing import Any

from hardneg.errors import PeerError
from hardneg.process.launch import is_heard, rank, world_size
from hardneg.process.signals import stop_flag

ASSEMBLY = timedelta(minutes=10)  # how long processes wait for all to come
SETTLED_SECONDS = 30.0  # after which a call that was there before is taken for one of those that are here now
TICK_SECONDS = 0.05

_stores: dict[str, Any] = {}  # by address: where processes met. A process keeps it, because rank 0 serves it


def told_by_all(store: Any, what: str) -> list[str]:
    """What each process has written into the store, in order of rank; waiting ends after ``ASSEMBLY``.

    Raises
    ------
    RuntimeError : one of them did not write it. Interrupted : this process was asked to stop.
    """
    keys, end = [f"{what}/{one}" for one in range(world_size())], time.monotonic() + ASSEMBLY.total_seconds()
    while not store.check(keys):
        stop_flag.check()
        if time.monotonic() > end:
            raise RuntimeError(f"not all told their {what}")
        time.sleep(TICK_SECONDS)
    return [store.get(key).decode() for key in keys]


def assemble() -> Any:
    """The store where all processes have met for a new group; waiting ends after ``ASSEMBLY``, or at a signal."""
    end, reason = time.monotonic() + ASSEMBLY.total_seconds(), "too few came"
    try:
        whole = meet(end)
        store, sizes = (None, {""}) if whole is None else call_together(whole, end)
        if store is not None and len(sizes) == 1:
            return store
        if len(sizes) > 1:
            reason = f"some were told WORLD_SIZE = {' and some '.join(sorted(sizes))}"
            time.sleep(10 * TICK_SECONDS)  # the others look here, too
    except (RuntimeError, ValueError, OverflowError) as fault:
        reason = " ".join(str(fault).split())
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    what = f"{world_size()} processes did not all arrive at {place} ({reason:.200})"
    raise PeerError("NOT_TOGETHER", what, "start all of them, and read the message of each")


def call_together(whole: Any, end: float) -> tuple[Any, set[str]]:
    """A part of the store for the processes that are here now, and the world sizes that they were told.

    A launcher keeps its store when it starts all processes again, and so what those before them wrote. Therefore
    each process takes a name that nobody had. Rank 0 calls all names to a new place, again whenever it finds
    another name. Nobody dead can answer at that place, so where all have answered, all are here.

    A process beyond the world of rank 0 is never called. It learns so from the world size of the last call, if
    this came after it, or stays for ``SETTLED_SECONDS``: a rank 0 that is dead may have left it.

    Returns
    -------
    The part is None if too few came until ``end``, or if rank 0 does not call this process.
    """
    from torch.distributed import PrefixStore

    whole, own, size = PrefixStore("hardneg", whole), secrets.token_hex(16), str(world_size())
    places, answers = ([f"{what}/{one}" for one in range(world_size())] for what in ("name", "size"))
    called: list[str] = []
    before, settled = last_call(whole), time.monotonic() + SETTLED_SECONDS
    whole.set(f"name/{rank()}", own)
    while time.monotonic() < end:
        names = [whole.get(place).decode() for place in places if whole.check([place])] if rank() == 0 else []
        if names != called:
            called, call = names, f"{secrets.token_hex(16)} {size}"
            for name in (*names, "call"):
                whole.set(name, call)
        if whole.check([own]):
            place, of_leader = whole.get(own).decode().split()
            store = PrefixStore(place, whole)
            store.set(f"size/{rank()}", size)
            if of_leader != size:
                return store, {of_leader, size}
            if store.check(answers):
                return store, {store.get(answer).decode() for answer in answers}
        last = last_call(whole)
        if last and rank() >= int(last[1]) and (last != before or time.monotonic() > settled):
            return None, {last[1], size}
        stop_flag.check()
        time.sleep(TICK_SECONDS)
    return None, {size}


def last_call(whole: Any) -> list[str]:
    """The place to which rank 0 last called, and the world size that it was told; empty where there is none."""
    return whole.get("call").decode().split() if whole.check(["call"]) else []


def meet(end: float) -> Any:
    """The store of rank 0, or of the launcher; None if nobody listens there until ``end``."""
    import torch.distributed as dist

    host, port, first = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), rank() == 0
    place = f"{host}:{port}"
    if place in _stores:
        return _stores[place]
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _stores[place] = next(dist.rendezvous("env://", timeout=ASSEMBLY))[0]
        return _stores[place]
    while not first and not is_heard(host, port):
        stop_flag.check()
        if time.monotonic() > end:
            return None
        time.sleep(TICK_SECONDS)
    _stores[place] = dist.TCPStore(host, port, world_size(), first, wait_for_workers=False, timeout=ASSEMBLY)
    return _stores[place]

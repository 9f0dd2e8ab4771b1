"""One writer a directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from hardneg.disk import disk_faults
from hardneg.errors import BusyError


@contextlib.contextmanager
def lease(directory: Path) -> Iterator[None]:
    """Hold ``directory`` for this process; a second holder gets :class:`BusyError`, a dead one is forgotten.

    The lock is the kernel's (``flock``), so it cannot outlive its process; the file only says who holds it.
    """
    with disk_faults(directory):
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with disk_faults(directory):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as fault:
                holder = os.read(handle, 4096).decode(errors="replace").strip() or "another process"
                fix = "wait for it or stop it"
                raise BusyError("IN_USE", f"in use by {holder}", fix, path=directory) from fault
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)

"""One writer for each directory, and signs of life for processes that wait for another one."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hardneg.errors import BusyError, ResourceError
from hardneg.storage.digests import digest_json
from hardneg.storage.disk import make_folder, point, process_alive
from hardneg.storage.os_errors import disk_faults, elsewhere

log = logging.getLogger(__name__)

LOCK = ".lock"
LEASES = "leases"  # the folder of a cache in which the processes that make something there hold locks
NAME_SECONDS = 1.0  # how long a new holder may take to write its name
LOOK_SECONDS = 1.0  # the most that the time between two looks of an observer counts as silence

_held: set[int] = set()  # open files whose locks this process holds


def _let_go() -> None:
    """In a forked process, close the locks of its parent, which otherwise would last as long as this process."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def lease(directory: Path) -> Iterator[None]:
    """Hold ``directory`` for this process; a dead process holds nothing.

    The lock is the kernel's (``flock``), so it cannot outlive its process; the file only says who holds it.

    Raises
    ------
    BusyError : another process holds it (exit 6); the message says which.
    """
    with disk_faults(directory):
        make_folder(directory)
        point("open", directory / LOCK)
        handle = os.open(
            directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666
        )  # the name is written there, also by others with whom the umask shares files
        _held.add(handle)
    try:
        with disk_faults(directory):
            if not _locked(handle, directory):
                holder, fix = _holder(handle), "wait for it or stop it"
                if holder == _own_name():
                    holder, fix = f"{holder}, this program itself", "wait for the other call"
                raise BusyError("IN_USE", f"in use by {holder}", fix, path=directory)
            point("write", directory / LOCK)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{_own_name()}\n".encode(), 0)
        yield
    finally:
        if handle in _held:  # not in a process that was forked in the block
            _held.discard(handle)
            os.close(handle)


@contextlib.contextmanager
def sharing(directory: Path) -> Iterator[None]:
    """Hold ``directory`` together with others that hold it in this way; :func:`lease` refuses it meanwhile.

    While another process holds it alone, this waits. Where the disk has no locks, nothing is held.
    """
    with disk_faults(directory):
        make_folder(directory)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:
            log.debug("%s: this disk has no locks", directory)
        yield
    finally:
        if handle in _held:  # not in a process that was forked in the block
            _held.discard(handle)
            os.close(handle)


def made_once(
    directory: Path, is_made: Callable[[], bool], make: Callable[[], object], waiting: Callable[[], None]
) -> None:
    """Let one process make a thing that several need: it holds ``directory`` meanwhile, and the others wait.

    If that process dies, another one makes it.

    Parameters
    ----------
    waiting : called again and again while another process makes it; it sleeps for a moment.
    """
    told = False
    while not is_made():
        try:
            with lease(directory):
                if not is_made():
                    make()
        except BusyError as busy:
            if not told:
                log.info("%s: %s; waiting for it", directory.name, busy.what)
            told = True
            waiting()


def was_leased(directory: Path) -> bool:
    """Whether a process of hardneg ever held a directory: its lock is there, and names a process."""
    try:
        return re.fullmatch(r"process \d+ on \S+\n", (directory / LOCK).read_text()) is not None
    except (OSError, ValueError):
        return False


def _own_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _locked(handle: int, directory: Path) -> bool:
    """Whether the lock could be had; raises :class:`ResourceError` where the disk gives none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as fault:
        what = f"this disk has no locks ({fault.strerror})"
        fix = elsewhere(directory, "choose another place, or mount the disk with flock")
        raise ResourceError("NOT_WRITABLE", what, fix, path=directory) from fault
    return True


def holder_of(directory: Path) -> str:
    """The process that holds ``directory`` now, as its lock names it; "" if none does.

    This tries the lock for an instant in shared mode, so that two processes that look do not see each other.
    """
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        return _holder(handle)
    except OSError:  # a disk without locks
        return ""
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    """The name of a lock's holder.

    The file still names the previous holder for a moment, so the name of a dead process is not believed.
    """
    until = time.monotonic() + NAME_SECONDS
    while True:
        name = os.pread(handle, 4096, 0).decode(errors="replace").strip()
        here = re.fullmatch(rf"process (\d+) on {re.escape(socket.gethostname())}", name)
        if name and (here is None or int(here[1]) == os.getpid() or process_alive(int(here[1]))):
            return name
        if time.monotonic() > until:
            return "another process"
        time.sleep(0.02)


@contextlib.contextmanager
def holding(out: Path, cache: Path) -> Iterator[None]:
    """Be the only process that makes ``out``, in the block.

    The lock lies in the cache, so nothing is left beside the result.

    Raises
    ------
    BusyError : another process makes it now.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lease(cache / LEASES / digest_json(str(out.resolve()))[:32]))
        except BusyError as fault:
            raise BusyError(fault.code, fault.what, fault.fix, path=out) from fault
        yield


# ---------------------------------------------------------------- signs of life


class Heartbeat:
    """A counter in a file, which its holder raises while it works.

    A fault in writing it never disturbs that work.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def touch(self, count: int) -> None:
        """Write ``count``, the sum of work done, with this process and its host."""
        draft = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(f"{os.getpid()} {count} {socket.gethostname()}")
            os.replace(draft, self.path)
        except OSError:  # the work itself will meet a full disk
            log.debug("the heartbeat could not be written", exc_info=True)

    def read(self) -> str:
        """The line that the holder last wrote; "" where there is none yet."""
        try:
            return self.path.read_text()
        except OSError:
            return ""


class Observer:
    """An observer that tells how long a heartbeat has made no progress.

    It uses the clock of the observing process, since the clocks of two hosts do not agree. Only time in which it
    looks again and again counts. So if a batch system suspends the observer together with the holder, the holder
    has time to go on afterwards.
    """

    def __init__(self, heartbeat: Heartbeat, clock: Callable[[], float] = time.monotonic) -> None:
        self.heartbeat, self.clock = heartbeat, clock
        self.last, self.looked, self.silent = heartbeat.read(), clock(), 0.0

    def silence(self) -> float:
        """The seconds, as far as they count, since progress was last seen, or since this observer began."""
        before, self.looked = self.looked, self.clock()
        self.silent += min(self.looked - before, LOOK_SECONDS)
        if (now := self.heartbeat.read()) != self.last:
            self.last, self.silent = now, 0.0
        return self.silent

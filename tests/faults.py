"""Faults for tests: processes that die, disks that refuse, bits that flip."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

from hardneg import disk
from hardneg.disk import TEMPORARY
from hardneg.errors import HardnegError


def tree(folder):
    """Names and bytes of everything below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def temporaries(folder):
    """Names of what should not outlive a command."""
    return sorted(p.name for p in folder.rglob(f"{TEMPORARY}*"))


def flip(path, position, bit=0):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def settle(path):
    """Make a file look as old as most are, so that its digest is remembered."""
    os.utime(path, ns=(10**18, 10**18))


def dead_pid():
    """The number of a process that is no more."""
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def run_python(code, *arguments):
    """A process that runs ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=os.environ
    )


def fault_of(work):
    """The fault that ``work`` ends in, or None."""
    try:
        work()
    except HardnegError as fault:
        return fault
    return None


class Fate:
    """What happens at the n-th point that a process passes on its way to the disk; the points are kept.

    ``kill``, ``eio``, ``enospc`` happen before the change; ``tear`` is a kill, and ``short`` a full disk, half way
    through a write; ``power`` is a kill after which whatever was not flushed is gone too.
    """

    NUMBERS = {"eio": errno.EIO, "enospc": errno.ENOSPC, "short": errno.ENOSPC}  # noqa: RUF012

    def __init__(self, at=None, kind="eio", root=None):
        self.at, self.kind, self.root, self.points = at, kind, root, []
        self.unflushed = set()

    def __call__(self, action, path, data):
        now = len(self.points)
        self.points.append((action, str(path)))
        if now != self.at:
            if self.root:
                self.remember(action, path)
            return
        if self.kind in ("tear", "short") and action == "write" and len(data):
            with open(path, "ab") as stream:
                stream.write(bytes(data[: len(data) // 2]))
        if self.kind in self.NUMBERS:
            number = self.NUMBERS[self.kind]
            raise OSError(number, os.strerror(number), str(path))
        if self.kind == "power":
            self.lose()
        os.kill(os.getpid(), signal.SIGKILL)

    def remember(self, action, path):
        """Which files have bytes that no flush has followed; a file is known when its write is over."""
        if action in ("write", "written"):
            files = [path] if path.is_file() else path.rglob("*")
            self.unflushed.update(file.stat().st_ino for file in files if file.is_file())
        elif action == "sync" and path.is_file():
            self.unflushed.discard(path.stat().st_ino)

    def lose(self):
        """Cut what was not flushed, wherever it stands now."""
        for file in self.root.rglob("*"):
            if file.is_file() and file.stat().st_ino in self.unflushed:
                os.truncate(file, file.stat().st_size // 2)


@contextlib.contextmanager
def fate(at=None, kind="eio"):
    """Let it happen inside the block."""
    disk.watch = Fate(at, kind)
    try:
        yield disk.watch
    finally:
        disk.watch = None

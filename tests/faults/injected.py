"""Faults for tests: processes that die, disks that refuse, bits that flip."""

import contextlib
import errno
import os
import re
import sqlite3
import subprocess
import sys

from hardneg.errors import HardnegError
from hardneg.storage import disk
from hardneg.storage.digests import TABLE, cache_root
from hardneg.storage.disk import TEMPORARY

# The form of a fault's line, and the files that are only for people and differ from run to run.
LINE = re.compile(r"(?:(?P<path>\S.*?)(?::(?P<line>\d+))?: )?(?P<code>[A-Z][A-Z0-9_]+): \S.*; \S.*")
# places.json holds the command that began the experiment, with its paths.
TELEMETRY = ("timing.jsonl", "log.txt", ".lock", "learning_curve.png", "places.json")


class Payload:
    """An object that leaves a mark if it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def tree(folder):
    """The names and bytes of all files below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def temporaries(folder):
    """The names of temporary files, which should not outlive a command."""
    return sorted(p.name for p in folder.rglob(f"{TEMPORARY}*"))


def flip(path, position, bit=0):
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def settle(path):
    """Make a file look old enough that its digest is remembered."""
    os.utime(path, ns=(10**18, 10**18))


def rot(path, position):
    """Flip one bit as a failing disk does: no time of the file changes, so its remembered digest still counts."""
    before = path.stat()
    flip(path, position)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with contextlib.closing(sqlite3.connect(cache_root() / "digests.sqlite")) as database, database:
        change = f"UPDATE {TABLE} SET ctime = ? WHERE inode = ? AND ctime = ?"
        database.execute(change, (path.stat().st_ctime_ns, before.st_ino, before.st_ctime_ns))


def dead_pid():
    """The number of a process that has ended."""
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def run_python(code, *arguments):
    """Start a Python process that runs ``code``."""
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


NUMBERS = {"eio": errno.EIO, "enospc": errno.ENOSPC, "short": errno.ENOSPC}


class Fate:
    """A disk that refuses the n-th change of this process; it keeps a list of all changes.

    ``eio`` and ``enospc`` happen before the change; with ``short`` the disk gets full half way through a write.
    """

    def __init__(self, at=None, kind="eio"):
        self.at, self.kind, self.points = at, kind, []

    def __call__(self, action, path, data):
        self.points.append((action, str(path)))
        if len(self.points) - 1 == self.at:
            refuse(self.kind, action, path, data)


def refuse(kind, action, path, data):
    """Raise the error of a disk that refuses a change."""
    if kind == "short":
        write_half(action, path, data)
    raise OSError(NUMBERS[kind], os.strerror(NUMBERS[kind]), str(path))


def write_half(action, path, data):
    """Write only the first half of what should be written."""
    if action == "write" and len(data):
        with open(path, "ab") as stream:
            stream.write(bytes(data[: len(data) // 2]))


@contextlib.contextmanager
def fate(at=None, kind="eio"):
    """Let a disk refuse a change inside the block."""
    disk.watch = Fate(at, kind)
    try:
        yield disk.watch
    finally:
        disk.watch = None

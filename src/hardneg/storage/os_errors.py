"""Refusals of the operating system, each reported as one clear line."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from hardneg.errors import HardnegError, ResourceError
from hardneg.storage.digests import cache_root

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EXDEV,
)
SPARE_FILES = 512  # that a process may open besides those that it announces
TOLD = (*FULL, errno.EIO, errno.EROFS, errno.EFBIG)  # faults that a disk may report in the middle of a write


@contextlib.contextmanager
def disk_faults(path: Path, *, needed: int | None = None) -> Iterator[None]:
    """Turn what the system refuses at ``path`` in the block into one clear line (exit 5).

    Parameters
    ----------
    needed : bytes that will be written, where that is known.
    """
    try:
        yield
    except HardnegError:
        raise
    except Exception as fault:
        number = error_number(fault)
        if number in FULL:
            raise disk_full(path, needed) from fault
        if number in REFUSED:
            what = f"cannot write ({os.strerror(number)})"
            fix = elsewhere(path, "choose another place")
            raise ResourceError("NOT_WRITABLE", what, fix, path=path) from fault
        if number == errno.EFBIG:
            fix = "raise the limit of file sizes (ulimit -f), or choose another place"
            raise ResourceError("NOT_WRITABLE", f"cannot write ({os.strerror(number)})", fix, path=path) from fault
        if number == errno.EIO:
            what = "the disk reported an I/O error"
            raise ResourceError("IO_ERROR", what, "check the disk", path=path) from fault
        raise


def disk_full(path: Path, needed: int | None) -> ResourceError:
    """The fault of a full disk; it says how many bytes are free."""
    free = shutil.disk_usage(existing_parent(path)).free
    if needed is None:
        what = f"the disk is full: more is needed than the {free:,} bytes that are free"
    else:
        what = f"the disk is full: {needed:,} bytes are needed, {free:,} are free"
    return ResourceError("DISK_FULL", what, "free some space and run the command again", path=path)


def require_space(path: Path, needed: int) -> None:
    """Refuse to begin work that will not fit on the disk of ``path``.

    Raises
    ------
    ResourceError : ``needed`` bytes are more than are free.
    """
    with reading(path):
        free = shutil.disk_usage(existing_parent(path)).free
    if needed > free:
        raise disk_full(path, needed)


def error_number(fault: Exception) -> int:
    """The system's error number behind a fault, or 0; libraries in Rust and C++ give it in words."""
    if isinstance(fault, OSError) and fault.errno:
        return fault.errno
    if match := re.search(r"\(os error (\d+)\)", str(fault)):
        return int(match[1])
    return next((number for number in TOLD if os.strerror(number) in str(fault)), 0)


def existing_parent(path: Path) -> Path:
    """The nearest folder at or above ``path`` that exists."""
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path("/")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the system's refusal to read ``path`` into one clear line (exit 5).

    A missing file stays a ``FileNotFoundError``.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as fault:
        what = f"cannot read ({fault.strerror or fault})"  # a fault of Python itself has no number: a pipe
        fix = elsewhere(path, "check the file and its permissions")
        if fault.errno == errno.EMFILE:
            fix = "raise the limit of open files (ulimit -n)"
        raise ResourceError("UNREADABLE", what, fix, path=path) from fault


def allow_open_files(count: int) -> None:
    """Let this process hold so many files open besides those of now, as far as the system's hard limit goes.

    Each array that is mapped holds a file open, and the usual limit of a process is 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + count + SPARE_FILES
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and most > soft:
        with contextlib.suppress(OSError, ValueError):  # if it stays, the file too many is refused
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def elsewhere(path: Path, usual: str) -> str:
    """What to do about a place that the system refuses: nobody chose the user's cache, so it is told how to."""
    with contextlib.suppress(HardnegError, OSError):  # there is no home folder, or no working directory
        if cache_root() in (absolute := path.absolute(), *absolute.parents):
            return f"set HARDNEG_CACHE to a folder of yours: this is the cache, {cache_root()}"
    return usual

"""Writing to disk: a file is whole or absent, and what the system refuses is one clear line."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hardneg.errors import HardnegError, ResourceError

TEMPORARY = ".tmp-"

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
    errno.EFBIG,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
)


# ---------------------------------------------------------------- faults


@contextlib.contextmanager
def disk_faults(path: Path) -> Iterator[None]:
    """Turn the system's refusals at ``path`` into one clear line (exit 5)."""
    try:
        yield
    except HardnegError:
        raise
    except Exception as fault:
        number = error_number(fault)
        if number in FULL:
            free = shutil.disk_usage(existing_parent(path)).free
            what = f"the disk is full: more is needed than the {free:,} bytes that are free"
            fix = "free some space and run the command again"
            raise ResourceError("DISK_FULL", what, fix, path=path) from fault
        if number in REFUSED:
            what = f"cannot write ({os.strerror(number)})"
            raise ResourceError("NOT_WRITABLE", what, "choose another place", path=path) from fault
        if number == errno.EIO:
            what = "the disk reported an I/O error"
            raise ResourceError("IO_ERROR", what, "check the disk", path=path) from fault
        raise


def error_number(fault: Exception) -> int:
    """The system's error number behind a fault, else 0; Rust puts it in words, numpy says how little it wrote."""
    if isinstance(fault, OSError) and fault.errno:
        return fault.errno
    if match := re.search(r"\(os error (\d+)\)", str(fault)):
        return int(match[1])
    short = isinstance(fault, OSError) and re.fullmatch(r"\d+ requested and \d+ written", str(fault))
    return errno.ENOSPC if short else 0


def existing_parent(path: Path) -> Path:
    """The nearest folder at or above ``path`` that exists."""
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return folder
    return Path("/")


def check_writable(path: Path) -> None:
    """Fail now, before any computing, if nothing can be written at ``path``."""
    folder = existing_parent(path)
    with disk_faults(path), tempfile.TemporaryFile(dir=folder) as probe:  # gone whatever happens
        probe.write(b"x")


# ---------------------------------------------------------------- files


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def publish_file(path: Path) -> Iterator[BinaryIO]:
    """Write one file beside its place and rename it there when the block ends without a fault."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a rename would replace even a device
        raise ResourceError("NOT_WRITABLE", "this is no plain file", "choose another place", path=path)
    draft = temporary(path)
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
        try:
            with open(draft, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(draft, path)
            sync(path.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with publish_file(path) as stream:
        stream.write(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def remove(path: Path) -> None:
    """Delete a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ---------------------------------------------------------------- temporaries


def temporary(path: Path, role: str = "") -> Path:
    """A name beside ``path`` that says whose it is: processes of other machines cannot be asked if they live."""
    return path.parent / f"{TEMPORARY}{path.name}-{role}{os.getpid()}@{socket.gethostname()}"


def sweep(path: Path) -> None:
    """Delete what dead processes left of earlier attempts to publish at ``path``.

    An old artefact that stepped aside for one that never came is put back.
    """
    ours = re.compile(rf"{re.escape(TEMPORARY + path.name)}-(old-)?(\d+)@{re.escape(socket.gethostname())}")
    for leftover in list(path.parent.iterdir()):
        match = ours.fullmatch(leftover.name)
        if match and not process_alive(int(match[2])):
            if match[1] and not path.exists():
                os.rename(leftover, path)
            else:
                remove(leftover)


def process_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()

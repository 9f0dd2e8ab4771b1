"""The only module that changes files on the disk: a file is whole or absent, a refusal is one clear line.

Every change passes a *point*, so that tests can stop a process, or let the system refuse, at each point. Three
things are written elsewhere, because a fault in writing them must never disturb the work: the log, the heartbeats
and the cache of digests.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import logging
import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ResourceError
from hardneg.storage.os_errors import disk_faults, existing_parent
from hardneg.storage.places import check_no_stream

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
BUFFER = 1 << 20
LONGEST_NAME = 255  # bytes
NAMESPACE = "/proc/self/ns/pid"  # in it, each process has its own number
NEW, OLD, GONE = "new", "old", "gone"  # roles of temporaries: a draft, what stepped aside for it, what is deleted
UNLINKED = ".nfs"  # begins the names under which NFS keeps deleted files while a process has them open or mapped
NO_FOLDERS = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)  # given by disks that flush no folders

_unflushed = threading.Event()  # whether this was told
watch: Callable[[str, Path, Any], None] | None = None  # set by a test; called with every change before it happens


def point(action: str, path: Path, data: Any = b"") -> None:
    """Announce a change before it happens; ``data`` is what will be written."""
    log.debug("%s %s", action, path)
    if watch is not None:
        watch(action, path, data)


# ---------------------------------------------------------------- the primitive changes


class Stream(io.FileIO):
    """A file that is written; each call of the system passes a point."""

    def write(self, data: Any, /) -> int:
        """Write some of ``data``; returns the number of bytes."""
        point("write", Path(os.fsdecode(self.name)), data)
        return super().write(data)


def create(path: Path) -> BinaryIO:
    """Open a new file for writing."""
    point("open", path)
    return io.BufferedWriter(Stream(path, "wb"), BUFFER)


def write_array(stream: BinaryIO, values: NDArray[Any]) -> None:
    """Write an array as ``.npy``.

    A fault of these calls names its cause; a fault of ``numpy.save`` does not.
    """
    values = np.ascontiguousarray(values)
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(values))
    stream.write(values.reshape(-1).view(np.uint8).data)


@contextlib.contextmanager
def foreign(path: Path) -> Iterator[Path]:
    """Let another library write at ``path`` in the block, between two points."""
    point("write", path)
    yield path
    point("written", path)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk; a disk that flushes no folders is told once."""
    point("sync", path)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as fault:
        if fault.errno not in NO_FOLDERS or not path.is_dir():
            raise
        if not _unflushed.is_set():
            _unflushed.set()
            told = "%s: this disk flushes no folders (%s): a power cut may undo what was written last"
            log.warning(told, path, fault.strerror)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, and flush their names to the disk."""
    if path.is_dir():
        return
    check_no_stream(path)
    make_folder(path.parent)
    point("mkdir", path)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def rename(path: Path, to: Path) -> None:
    """Give a file or folder another name; a file that has it already is replaced."""
    point("rename", to)
    os.rename(path, to)


def remove(path: Path) -> None:
    """Delete a file or folder, if it is there.

    A folder is renamed first, so that its place never holds a half deleted one.
    """
    with disk_faults(path), contextlib.suppress(FileNotFoundError):  # another process has deleted it
        if path.is_dir() and not path.is_symlink():
            rename(path, aside := unused(path))
            delete(aside)
        elif os.path.lexists(path):
            point("remove", path)
            path.unlink()


def delete(path: Path) -> None:
    """Delete a temporary, file or folder, if it is there; another process may be deleting it, too.

    A file that a process maps stays on NFS, with the folders around it. The next :func:`sweep` tries again.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                delete(entry)
            point("remove", path)
            path.rmdir()
        elif os.path.lexists(path):
            point("remove", path)
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as fault:
        if not kept_by_nfs(path, fault.errno):
            raise


def kept_by_nfs(path: Path, number: int | None) -> bool:
    """Whether only NFS keeps a file or folder that could not be deleted; ``number`` is what the system gave."""
    if number == errno.EBUSY:
        return path.name.startswith(UNLINKED)
    left = (name for _, _, files in os.walk(path) for name in files)
    return number in (errno.ENOTEMPTY, errno.EEXIST) and all(name.startswith(UNLINKED) for name in left)


def files_below(folder: Path) -> list[Path]:
    """The files in a folder and its folders, in order of their names, without deleted ones that NFS keeps."""
    found = (path for path in folder.rglob("*") if not path.name.startswith(UNLINKED))
    return sorted(path for path in found if path.is_file())


def retire(aside: Path, path: Path) -> None:
    """Delete what stepped aside for something new at ``path``, under a name from which nothing is put back."""
    if os.path.lexists(aside):
        point("remove", aside)
        with contextlib.suppress(FileNotFoundError):
            os.rename(aside, gone := unused(path))
            delete(gone)


def forget(path: Path) -> None:
    """Delete a temporary after a fault; a fault of the deletion is ignored, so that the first one is reported."""
    with contextlib.suppress(OSError):
        delete(path)


# ---------------------------------------------------------------- files


@contextlib.contextmanager
def publish_file(
    path: Path, *, sidecar: Path | None = None, described: Callable[[Path], bytes] | None = None
) -> Iterator[BinaryIO]:
    """Write one file beside its place and rename it there when the block ends without a fault.

    Parameters
    ----------
    sidecar : a file that describes the replaced file, and is deleted with it.
    described : draft of the file -> content of its own ``sidecar``. Both drafts are whole before either takes its
        place, so a full disk changes nothing; only a kill between the two leaves the file without its sidecar.
    """
    path = named(path)
    for place in (path, sidecar):
        if place is not None and place.exists() and not place.is_file():  # a rename would replace even a device
            raise ResourceError("NOT_WRITABLE", "this is no plain file", "choose another place", path=place)
    check_no_stream(path)
    draft = temporary(path, NEW)
    with disk_faults(path):
        make_folder(path.parent)
        sweep(path)
        try:
            with create(draft) as stream:
                yield stream
            sync(draft)
            if sidecar is None or described is None:
                with stepping_aside(sidecar):
                    rename(draft, path)
            else:
                replace_both(draft, path, described(draft), sidecar)
            sync(path.parent)
        except BaseException:
            forget(draft)
            raise


def replace_both(draft: Path, path: Path, description: bytes, sidecar: Path) -> None:
    """Put a draft at ``path`` and its description at ``sidecar``: both, or neither if a fault comes before."""
    sweep(sidecar)
    beside, aside = temporary(sidecar, NEW), temporary(sidecar, GONE)
    try:
        with create(beside) as stream:
            stream.write(description)
        sync(beside)
        if sidecar.is_file():
            rename(sidecar, aside)
        rename(draft, path)
        rename(beside, sidecar)
    except BaseException:  # also of a signal just after a rename: what is there says how far it came
        if os.path.lexists(draft):
            if os.path.lexists(aside):
                os.rename(aside, sidecar)
        elif os.path.lexists(beside):
            os.rename(beside, sidecar)
        forget(beside)
        raise
    finally:
        forget(aside)


@contextlib.contextmanager
def stepping_aside(path: Path | None) -> Iterator[None]:
    """Delete a file when the block ends.

    A fault in the block brings the file back; only a crash in between does not.
    """
    if path is None or not path.is_file():
        yield
        return
    rename(path, aside := temporary(path, GONE))
    try:
        yield
    except BaseException:
        rename(aside, path)
        raise
    delete(aside)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file; it is there whole or not at all."""
    with publish_file(path) as stream:
        stream.write(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A value as the content of a JSON file; one that UTF-8 cannot hold, as some names of files, is escaped."""
    try:
        return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def append_lines(path: Path, data: bytes) -> None:
    """Add lines to a file and flush them to the disk.

    A crash may tear the last line; a refusal of the system leaves no trace.
    """
    with disk_faults(path):
        point("open", path)
        with Stream(path, "ab+") as stream:
            size = stream.seek(0, os.SEEK_END)
            if size and os.pread(stream.fileno(), 1, size - 1) != b"\n":
                data = b"\n" + data
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[stream.write(rest) :]
                point("sync", path)
                os.fsync(stream.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(stream.fileno(), size)
                raise


def check_writable(path: Path) -> None:
    """Refuse a place where nothing can be written, before anything is computed for it."""
    check_place(path)
    folder = existing_parent(path)
    with disk_faults(path):
        try:
            with tempfile.TemporaryFile(dir=folder) as probe:  # gone whatever happens
                probe.write(b"x")
        except FileNotFoundError as fault:  # as in /proc, where nobody makes files
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from fault


def check_place(path: Path) -> None:
    """Refuse a place that holds no files, and a name that is so long that no name of a draft can hold it."""
    check_no_stream(path)
    if (over := len(os.fsencode(temporary(path, GONE).name)) - LONGEST_NAME) > 0:
        what = f"the name is {over} bytes too long, since drafts have longer ones"
        raise ResourceError("NOT_WRITABLE", what, "choose a shorter name", path=path)


def named(path: Path) -> Path:
    """The path, absolute if it ends in no name, as ``.`` does."""
    return Path(path) if Path(path).name not in ("", "..") else Path(os.path.abspath(path))


# ---------------------------------------------------------------- temporaries


def temporary(path: Path, role: str) -> Path:
    """A name beside ``path`` that says which process, on which machine, it belongs to, and which thread.

    Nobody can ask whether a process of another machine lives, so its temporaries are never taken for stale. Two
    threads may make the same thing at once; the main thread has the number of the process and is not named.
    """
    process, thread = os.getpid(), threading.get_native_id()
    owner = f"{process}" if thread == process else f"{process}.{thread}"
    return path.parent / f"{TEMPORARY}{role}-{path.name}-{owner}@{machine()}"


def unused(path: Path) -> Path:
    """A temporary name for what is deleted at ``path``; NFS may still keep what had the first of these names."""
    names = (temporary(path.with_name(path.name + "~" * i), GONE) for i in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def machine() -> str:
    """The name of this machine, with the namespace of this process where the system tells it.

    A number names a process only within its namespace. Two containers may have one host's name, and each its own
    processes.
    """
    try:
        return f"{socket.gethostname()}+{os.stat(NAMESPACE).st_ino}"
    except OSError:
        return socket.gethostname()


def stale(folder: Path, *, held: bool = False) -> Iterator[tuple[Path, str, Path]]:
    """Yield the temporaries that dead processes of this machine left in a folder: path, role, intended place.

    Names of earlier versions have no namespace.

    Parameters
    ----------
    held : whether this process holds the folder, so that nobody else replaces anything there. Then also an old
        artefact is found that stepped aside in another container of this host's name, for one that never came.
    """
    host = re.escape(socket.gethostname())
    named = re.compile(
        rf"{re.escape(TEMPORARY)}({NEW}|{OLD}|{GONE})-(.+)-(\d+)(?:\.(\d+))?@({host}(?:\+\d+)?)", re.DOTALL
    )
    here = (machine(), socket.gethostname())
    for leftover in sorted(folder.iterdir()):
        if (match := named.fullmatch(leftover.name)) is None:
            continue
        role, place = match[1], folder / match[2]
        if match[5] not in here:
            if held and role == OLD and not os.path.lexists(place):
                yield leftover, role, place
        elif not owner_alive(int(match[3]), int(match[4] or match[3])):
            yield leftover, role, place


def stale_below(folder: Path, *, held: bool = False) -> Iterator[tuple[Path, str, Path]]:
    """Yield what :func:`stale` finds in ``folder`` and below, except inside of temporaries."""
    for place, folders, files in os.walk(folder):
        found = [name for name in (*folders, *files) if name.startswith(TEMPORARY)]
        folders[:] = sorted(name for name in folders if not name.startswith(TEMPORARY))
        if found:
            yield from stale(Path(place), held=held)


def sweep(path: Path) -> None:
    """Delete what dead processes left of attempts to publish at ``path``, and what they did not finish deleting.

    An old artefact that stepped aside for one that never came is put back. What is left of something else, and
    cannot be deleted, stays for its owner.
    """
    for leftover, role, place in list(stale(path.parent)):
        if place == path:
            settle(leftover, role, place)
        elif role == GONE:
            forget(leftover)


def sweep_below(folder: Path) -> None:
    """Delete or put back, as :func:`sweep` does, all that is stale below a folder that this process holds."""
    for leftover, role, place in list(stale_below(folder, held=True)):
        settle(leftover, role, place)


def settle(leftover: Path, role: str, place: Path) -> None:
    """Put an old artefact back where nothing has taken its place; delete any other temporary."""
    with disk_faults(place):
        if role == OLD and not os.path.lexists(place):
            with contextlib.suppress(FileNotFoundError):  # another process has put it back
                rename(leftover, place)
        else:
            delete(leftover)


def owner_alive(process: int, thread: int) -> bool:
    """Whether another process with this number, or another thread of this process, runs on this machine.

    What has this thread's own number was left by a dead one with the same number, as in containers.
    """
    if process != os.getpid():
        return process_alive(process)
    return thread != threading.get_native_id() and thread in {one.native_id for one in threading.enumerate()}


def process_alive(pid: int) -> bool:
    """Whether another process with this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()

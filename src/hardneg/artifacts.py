"""The only module that writes files: an artefact is whole or absent.

A folder is built beside its place under a temporary name, every file is flushed to disk, ``manifest.json`` is
written last, and one rename publishes it. Readers trust a manifest, never a file's existence.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ArtifactError, BusyError, HardnegError, InputError, ResourceError, TrustError

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
FORMAT_VERSION = 1
SETTLED_NS = 2_000_000_000  # coarsest clock of a file system: a file this fresh may change and keep its time

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


# ---------------------------------------------------------------- digests


def canonical_json(value: Any) -> bytes:
    """JSON with one spelling: sorted keys, no blanks, so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_folder(path: Path) -> str:
    """Digest of a foreign folder (a model from elsewhere): that of its files' names and bytes."""
    names = {p.relative_to(path): p for p in path.rglob("*") if p.is_file()}
    seen = {name.as_posix(): p for name, p in names.items() if not any(part[0] == "." for part in name.parts)}
    return digest_json({name: cached_digest(p) for name, p in seen.items()})


def cache_root() -> Path:
    """The user's cache folder: ``$HARDNEG_CACHE``, else ``~/.cache/hardneg``."""
    return Path(os.environ.get("HARDNEG_CACHE") or Path.home() / ".cache" / "hardneg")


def cached_digest(path: Path) -> str:
    """SHA-256 of a file, remembered by (device, inode, size, time of change) across processes."""
    status = path.stat()
    if time.time_ns() - status.st_mtime_ns < SETTLED_NS:
        return digest_file(path)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(sqlite3.connect(cache_root() / "digests.sqlite", timeout=10)) as database,
            database,
        ):
            database.execute(
                "CREATE TABLE IF NOT EXISTS digests (device INTEGER, inode INTEGER, size INTEGER,"
                " mtime INTEGER, sha256 TEXT, PRIMARY KEY (device, inode, size, mtime))"
            )
            query = "SELECT sha256 FROM digests WHERE device=? AND inode=? AND size=? AND mtime=?"
            row = database.execute(query, identity).fetchone()
            if row:
                return str(row[0])
            digest = digest_file(path)
            database.execute("INSERT OR REPLACE INTO digests VALUES (?,?,?,?,?)", (*identity, digest))
            return digest
    except (sqlite3.Error, OSError):  # no writable cache is no reason not to verify
        return digest_file(path)


# ---------------------------------------------------------------- manifests


@dataclass(frozen=True)
class Manifest:
    """What a published folder is, what made it, and the size and SHA-256 of each of its files."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # the settings that made it
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of what it was made from
    facts: Mapping[str, Any] = field(default_factory=dict)  # counts and the like, for readers
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # name -> (bytes, sha256)
    format_version: int = FORMAT_VERSION

    @property
    def digest(self) -> str:
        """Identity of the artefact: no time, host or path is in it."""
        return digest_json(self._content())

    def as_json(self) -> dict[str, Any]:
        """The manifest as it is written: its own digest is in it, so that it is verified too."""
        return {**self._content(), "digest": self.digest}

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": self.format_version,
            "kind": self.kind,
            "settings": dict(self.settings),
            "inputs": dict(self.inputs),
            "facts": dict(self.facts),
            "files": {name: {"bytes": size, "sha256": sha} for name, (size, sha) in sorted(self.files.items())},
        }


def read_manifest(path: Path) -> Manifest:
    """The manifest of an artefact folder, itself verified; the files it names are not looked at."""
    try:
        with reading(path / MANIFEST):
            raw = json.loads((path / MANIFEST).read_bytes())
        files = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in raw["files"].items()}
        manifest = Manifest(
            raw["kind"], raw["settings"], raw["inputs"], raw["facts"], files, raw["format_version"]
        )
        written = manifest.as_json()
    except (FileNotFoundError, NotADirectoryError) as fault:
        what = "no complete artefact is here (manifest.json is missing)"
        raise ArtifactError("NO_MANIFEST", what, "make it again", path=path) from fault
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        what = f"the manifest cannot be read ({fault})"
        raise ArtifactError("BAD_MANIFEST", what, "make the artefact again", path=path / MANIFEST) from fault
    if {**written, **raw} != written:
        what = "the manifest is not as it was written"
        raise ArtifactError("CORRUPT", what, "make the artefact again", path=path / MANIFEST)
    return manifest


def is_published(path: Path, kind: str | None = None) -> bool:
    """Whether a complete artefact (of this kind) stands at ``path``."""
    if not (path / MANIFEST).is_file():
        return False
    return kind is None or read_manifest(path).kind == kind


def open_artifact(path: Path, kind: str) -> Manifest:
    """The manifest of a folder of this ``kind``, its files verified: sizes always, digests on first use."""
    manifest = read_manifest(path)
    if manifest.format_version != FORMAT_VERSION:
        raise ArtifactError(
            "FORMAT_VERSION",
            f"format version {manifest.format_version}, this hardneg reads {FORMAT_VERSION}",
            "make the artefact again with this version",
            path=path,
        )
    if manifest.kind != kind:
        raise ArtifactError(
            "WRONG_KIND", f"this is a {manifest.kind}, not a {kind}", f"give the path of a {kind}", path=path
        )
    check_files(path, manifest, cached_digest)
    return manifest


def is_current(path: Path, kind: str, inputs: Mapping[str, str]) -> bool:
    """Whether an artefact of this ``kind``, made from these ``inputs``, stands at ``path``, whole.

    Raises
    ------
    ArtifactError : it stands there but a file of it is damaged.
    """
    if not is_published(path, kind) or dict(read_manifest(path).inputs) != dict(inputs):
        return False
    open_artifact(path, kind)
    return True


def verify(path: Path) -> Manifest:
    """Check every file of an artefact byte by byte, whatever the digest cache says."""
    manifest = read_manifest(path)
    check_files(path, manifest, digest_file)
    present = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    for name in sorted(present - set(manifest.files) - {MANIFEST}):
        raise ArtifactError("EXTRA_FILE", "a file the manifest does not name", "remove it", path=path / name)
    return manifest


def check_files(path: Path, manifest: Manifest, digest: Any) -> None:
    """Compare the files of a folder with its manifest."""
    for name, (size, sha) in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise ArtifactError(
                "MISSING_FILE", "the manifest names a file that is gone", "make it again", path=file
            )
        if file.stat().st_size != size:
            found = f"{file.stat().st_size} bytes, the manifest says {size}"
            raise ArtifactError("WRONG_SIZE", found, "make the artefact again", path=file)
        with reading(file):
            found = digest(file)
        if found != sha:
            what = f"SHA-256 {found[:12]}…, the manifest says {sha[:12]}…"
            raise ArtifactError("CORRUPT", what, "make the artefact again", path=file)


# ---------------------------------------------------------------- writing


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


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Draft:
    """A folder being built; :func:`publish` turns it into an artefact."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}

    def __truediv__(self, name: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def array(self, name: str, values: NDArray[Any]) -> None:
        """Write an array as ``name`` (``.npy``, no pickle)."""
        np.save(self / name, np.ascontiguousarray(values), allow_pickle=False)

    def json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (self / name).write_bytes(text.encode() + b"\n")


@contextlib.contextmanager
def publish(
    path: Path,
    kind: str,
    *,
    settings: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
) -> Iterator[Draft]:
    """Build an artefact folder in a draft and publish it at ``path`` when the block ends without a fault.

    Parameters
    ----------
    settings, inputs : recorded in the manifest: what made it, and the digests of what it was made from.
    replace : allow an existing artefact to be replaced; versions and pools are not.
    """
    path = Path(path)
    draft_path = temporary(path)
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
        if path.exists() and not replace:
            raise SettingsClash(path)
        draft_path.mkdir()
        try:
            draft = Draft(draft_path)
            yield draft
            seal(draft, kind, settings or {}, inputs or {})
            swap(draft_path, path)
        except BaseException:
            shutil.rmtree(draft_path, ignore_errors=True)
            raise


class SettingsClash(ArtifactError):
    """Something is already where an artefact should be published (usage, exit 2)."""

    status = 2

    def __init__(self, path: Path) -> None:
        super().__init__("EXISTS", "something is here already", "give a new path or remove it", path=path)


def seal(draft: Draft, kind: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Flush every file of the draft and write its manifest last."""
    files = {}
    for file in sorted(p for p in draft.path.rglob("*") if p.is_file()):
        sync(file)
        files[file.relative_to(draft.path).as_posix()] = (file.stat().st_size, digest_file(file))
    manifest = Manifest(kind, settings, inputs, draft.facts, files)
    target = draft.path / MANIFEST
    target.write_bytes(json.dumps(manifest.as_json(), indent=1, sort_keys=True).encode() + b"\n")
    sync(target)
    for folder in {p.parent for p in draft.path.rglob("*")}:
        sync(folder)


def swap(draft: Path, path: Path) -> None:
    """Rename the finished draft to its place; an old artefact steps aside, and is deleted or comes back."""
    aside = temporary(path, "old-")
    try:
        if path.exists():
            os.rename(path, aside)
        os.rename(draft, path)
        sync(path.parent)
    except BaseException:
        if not draft.exists():
            os.rename(path, draft)
        if aside.exists():
            os.rename(aside, path)
        raise
    remove(aside)


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


def remove(path: Path) -> None:
    """Delete a file or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def process_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


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


def read_json(path: Path) -> Any:
    """Read a JSON file of ours."""
    try:
        with reading(path):
            return json.loads(Path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as fault:
        raise InputError("NOT_FOUND", "no such file", "check the path", path=path) from fault
    except (ValueError, RecursionError) as fault:
        raise ArtifactError("BAD_JSON", f"not valid JSON ({fault})", "make it again", path=path) from fault


def load_array(path: Path, *, mmap: bool = True) -> NDArray[Any]:
    """Open an ``.npy`` array, memory-mapped and never unpickled."""
    try:
        if mmap:
            return np.lib.format.open_memmap(path, mode="r")
        with open(path, "rb") as stream:
            array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
            return array
    except Exception as fault:  # a damaged header can end in almost any
        if holds_pickle(path):
            what = "a pickle, which could run code, in place of a plain array"
            raise TrustError("UNSAFE_PICKLE", what, "get it as a plain array", path=path) from fault
        what = f"not a plain array ({fault})"
        raise ArtifactError("BAD_ARRAY", what, "make the artefact again", path=path) from fault


def holds_pickle(path: Path) -> bool:
    """Whether a file that is no plain array begins as a pickle, or as an array of Python objects."""
    if not path.is_file():
        return False
    with open(path, "rb") as stream:
        head = stream.read(4096)
    return head[:1] == b"\x80" or (head.startswith(np.lib.format.MAGIC_PREFIX) and b"|O" in head)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the system's refusal to read ``path`` into one clear line (exit 5); a missing file stays one."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as fault:
        what = f"cannot read ({fault.strerror})"
        raise ResourceError("UNREADABLE", what, "check the file and its permissions", path=path) from fault


# ---------------------------------------------------------------- one writer a directory


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

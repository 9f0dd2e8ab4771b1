"""Artefacts: folders that are whole or absent, and verified before use.

A folder is built beside its place under a temporary name, every file is flushed to disk, ``manifest.json`` is
written last, and one rename publishes it. Readers trust a manifest, never a file's existence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hardneg.errors import ArtifactError, HardnegError, ResourceError, SettingsError
from hardneg.storage import disk
from hardneg.storage.digests import cache_root, cached_digest, canonical_json, digest_file, digest_json
from hardneg.storage.disk import TEMPORARY, check_writable, json_bytes, publish_file, remove, write_json
from hardneg.storage.lease import lease
from hardneg.storage.manifest import (
    CARD,
    FORMAT_VERSION,
    MANIFEST,
    Manifest,
    again,
    read_manifest,
    read_manifest_file,
    version_of,
)
from hardneg.storage.os_errors import disk_faults, reading
from hardneg.storage.safe_read import holds_pickle, load_array, read_json

__all__ = [
    "CARD",
    "FORMAT_VERSION",
    "MANIFEST",
    "TEMPORARY",
    "Draft",
    "Manifest",
    "SettingsClash",
    "artifacts_below",
    "cache_root",
    "cached_digest",
    "canonical_json",
    "check_files",
    "check_outside",
    "check_version",
    "check_writable",
    "digest_file",
    "digest_json",
    "disk_faults",
    "holds_pickle",
    "is_current",
    "is_published",
    "json_bytes",
    "lease",
    "load_array",
    "move",
    "open_artifact",
    "place_in",
    "publish",
    "publish_file",
    "read_json",
    "read_manifest",
    "read_manifest_file",
    "reading",
    "remove",
    "verify",
    "write_json",
]  # what callers need of the modules below stands here too

# ---------------------------------------------------------------- reading


def is_published(path: Path, kind: str | None = None) -> bool:
    """Whether a complete artefact (of this kind) stands at ``path``."""
    with reading(path):  # a cache of another user may be closed to this one
        if not (path / MANIFEST).is_file():
            return False
    return kind is None or read_manifest(path, kind).kind == kind


def place_in(cache: Path, beside: Path | None, name: Path, check: Callable[[Path], object]) -> Path:
    """The place of an artefact: in ``beside`` if it stands only there and passes ``check``, else in ``cache``.

    A cache of another user may be closed to this one, and a copy of an experiment may lack files.
    """
    if beside is not None and not is_published(cache / name):
        with contextlib.suppress(HardnegError):
            if is_published(beside / name):
                check(beside / name)
                return beside / name
    return cache / name


NAMES_OF_KINDS = {
    "negatives": "a pool of negatives",
    "embeddings": "embeddings",
    "embedding-shard": "a part of embeddings",
    "index": "an index",
    "bm25": "an index of BM25",
    "answers": "a store of answers",
    "experiment": "an experiment",
}


def kind_named(kind: str) -> str:
    """The kind of an artefact as a sentence names one: ``a collection``, ``an index``."""
    return NAMES_OF_KINDS.get(kind, f"a {kind}")


def check_outside(path: Path) -> None:
    """Refuse a place within an artefact: what stood there would be deleted together with it."""
    for folder in path.absolute().parents:
        try:
            kind = read_manifest(folder).kind if is_published(folder) else ""
        except HardnegError:  # a manifest of something else, which many programs write under this name
            continue
        if kind:
            what = f"this place lies in {kind_named(kind)}, {folder}"
            raise SettingsError("EXISTS", what, "give a path outside of it", path=path)


def open_artifact(path: Path, kind: str) -> Manifest:
    """Open the manifest of a folder of this ``kind``, and verify the files that it names.

    Sizes are checked every time, digests on first use.
    """
    manifest = read_manifest(path, kind)
    check_version(path, manifest)
    if manifest.kind != kind:
        what = f"this is {kind_named(manifest.kind)}, not {kind_named(kind)}"
        raise ArtifactError("WRONG_KIND", what, f"give the path of {kind_named(kind)}", path=path)
    check_files(path, manifest, cached_digest)
    return manifest


def check_version(path: Path, manifest: Manifest) -> None:
    """Refuse an artefact of another format version than this hardneg writes."""
    if manifest.format_version != (ours := version_of(manifest.kind)):
        what = f"format version {manifest.format_version}, this hardneg reads {ours}"
        raise ArtifactError("FORMAT_VERSION", what, f"{again(path, manifest.kind)}, with this version", path=path)


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


def artifacts_below(folder: Path) -> Iterator[Path]:
    """Yield the folder of every artefact below ``folder``, except those inside another artefact or a temporary."""
    for place, folders, files in os.walk(folder):
        if MANIFEST in files and Path(place) != folder:
            folders.clear()
            yield Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith(TEMPORARY))


def verify(path: Path, digest: Callable[[Path], str] = digest_file) -> Manifest:
    """Check every file of an artefact byte by byte, without the cache of digests; returns the manifest."""
    manifest = read_manifest(path)
    check_files(path, manifest, digest)
    with reading(path):
        present = {file.relative_to(path).as_posix() for file in disk.files_below(path)}
    for name in sorted(present - set(manifest.files) - {MANIFEST, CARD}):
        if TEMPORARY not in name and not name.startswith("."):  # hidden: the hub and git leave files of their own
            raise ArtifactError("EXTRA_FILE", "a file the manifest does not name", "remove it", path=path / name)
    return manifest


def check_files(path: Path, manifest: Manifest, digest: Callable[[Path], str]) -> None:
    """Refuse a folder whose files have not the sizes and digests of the manifest; older manifests name a card."""
    fix = again(path, manifest.kind)
    for name, (size, sha) in manifest.files.items():
        if name == CARD:
            continue
        file = path / name
        with reading(file):
            there = file.stat().st_size if file.is_file() else None
        if there is None:
            raise ArtifactError("MISSING_FILE", "the manifest names a file that is gone", fix, path=file)
        if there != size:
            found = f"{there} bytes, the manifest says {size}"
            raise ArtifactError("WRONG_SIZE", found, fix, path=file)
        with reading(file):
            found = digest(file)
        if found != sha:
            what = f"SHA-256 {found[:12]}…, the manifest says {sha[:12]}…"
            raise ArtifactError("CORRUPT", what, fix, path=file)


# ---------------------------------------------------------------- publishing


class Draft:
    """A folder being built; :func:`publish` turns it into an artefact."""

    def __init__(self, path: Path, place: Path | None = None) -> None:
        self.path, self.place = path, place or path  # where it is built, and where it will stand
        self.facts: dict[str, Any] = {}

    def __truediv__(self, name: str) -> Path:
        self.check()
        file = self.path / name
        disk.make_folder(file.parent)
        return file

    def check(self) -> None:
        """Refuse to go on where somebody deleted the folder: what is written from now on would not be all."""
        if not self.path.is_dir():
            what = "somebody deleted what was being written, before it was whole"
            raise ResourceError("NOT_WRITABLE", what, "run the command again", path=self.place)

    def array(self, name: str, values: NDArray[Any]) -> None:
        """Write an array as ``name`` (``.npy``, no pickle)."""
        with disk_faults(self.place, needed=values.nbytes), disk.create(self / name) as stream:
            disk.write_array(stream, values)

    @contextlib.contextmanager
    def appending(self, name: str, dtype: DTypeLike) -> Iterator[Callable[[NDArray[Any]], None]]:
        """Write a vector of unknown length as ``name`` (``.npy``); yields a function that adds a piece."""
        dtype, written = np.dtype(dtype), 0
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        with disk.create(self / name) as stream:
            np.lib.format.write_array_header_1_0(stream, {**header, "shape": (0,)})
            begin = stream.tell()

            def append(values: NDArray[Any]) -> None:
                nonlocal written
                stream.write(values.astype(dtype, copy=False).tobytes())
                written += len(values)

            yield append
            stream.seek(0)
            np.lib.format.write_array_header_1_0(stream, {**header, "shape": (written,)})
            assert stream.tell() == begin  # numpy leaves room in a header for its length to grow

    def json(self, name: str, value: Any) -> None:
        """Write a JSON file."""
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        self.text(name, text + "\n")

    def text(self, name: str, text: str) -> None:
        """Write a text file in UTF-8."""
        with disk.create(self / name) as stream:
            stream.write(text.encode())


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
    replace : allow an existing artefact to be replaced; versions and pools are published without it.
    """
    path = disk.named(path)
    disk.check_place(path)
    draft = Draft(disk.temporary(path, disk.NEW), path)
    with disk_faults(path):
        disk.make_folder(path.parent)
        disk.sweep(path)
        if os.path.lexists(path) and not replace:
            raise SettingsClash(path)
        try:
            disk.make_folder(draft.path)
            yield draft
            seal(draft, kind, settings or {}, inputs or {})
            swap(draft.path, path, replace=replace)
        except BaseException:
            disk.forget(draft.path)
            raise


def move(path: Path, to: Path) -> None:
    """Give an artefact another place on the same disk, where nothing is yet."""
    with disk_faults(to):
        disk.make_folder(to.parent)
        disk.rename(path, to)
        for folder in (to.parent, path.parent):
            disk.sync(folder)


class SettingsClash(ArtifactError):
    """Something is already where an artefact should be published (usage, exit 2)."""

    status = 2

    def __init__(
        self,
        path: Path,
        what: str = "something is here already",
        fix: str = "give a new path or remove it",
    ) -> None:
        super().__init__("EXISTS", what, fix, path=path)


def seal(draft: Draft, kind: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Flush every file of the draft and write its manifest last."""
    draft.check()
    files = {}
    for file in disk.files_below(draft.path):
        disk.sync(file)
        if (name := file.relative_to(draft.path).as_posix()) != CARD:
            files[name] = (file.stat().st_size, digest_file(file))
    manifest = Manifest(kind, settings, inputs, draft.facts, files, version_of(kind))
    draft.text(MANIFEST, json.dumps(manifest.as_json(), indent=1, sort_keys=True) + "\n")
    disk.sync(draft.path / MANIFEST)
    for folder in sorted({p.parent for p in draft.path.rglob("*")}):
        disk.sync(folder)


def swap(draft: Path, path: Path, *, replace: bool) -> None:
    """Rename the finished draft to its place.

    An old artefact is renamed first; it is deleted afterwards, or put back after a fault.
    """
    aside = disk.temporary(path, disk.OLD)
    try:
        while not _take_place(draft, path, aside, replace=replace):
            disk.retire(aside, path)  # another process has published since: the old artefact is not needed
        disk.sync(path.parent)
    except BaseException:
        if not draft.exists():
            with contextlib.suppress(FileNotFoundError):
                disk.rename(path, draft)
        if os.path.lexists(aside) and not os.path.lexists(path):
            disk.rename(aside, path)
        disk.forget(aside)
        raise
    disk.retire(aside, path)


def _take_place(draft: Path, path: Path, aside: Path, *, replace: bool) -> bool:
    """Rename the draft to its place; False where another process published there in the same moment."""
    if os.path.lexists(path):
        if not replace:
            raise SettingsClash(path)
        with contextlib.suppress(FileNotFoundError):  # it steps aside for another process just now
            disk.rename(path, aside)
    try:
        disk.rename(draft, path)
    except OSError as fault:
        if fault.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True

"""Checks that artefacts, runs and experiments are whole. Loads no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Place
from hardneg.arguments import checked
from hardneg.data.collection import KIND as COLLECTION
from hardneg.data.collection import Collection
from hardneg.data.formats.folders import SIDECAR
from hardneg.data.formats.trec import verify_run
from hardneg.data.tokens import KIND as TOKENS
from hardneg.data.tokens import TokenStore
from hardneg.errors import ArtifactError, Faults, HardnegError, InputError, SettingsError
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import METRICS, RESULTS, SEAL, SETTINGS, STATES, VERSION_LOG, Layout
from hardneg.experiment.metrics import rows_of
from hardneg.experiment.results_manifest import KIND as EXPERIMENT
from hardneg.experiment.results_manifest import check_made, read_seal
from hardneg.negatives.pool import KIND as POOL
from hardneg.negatives.pool import load_pool
from hardneg.process.progress import track
from hardneg.search.embedding_store import KIND as EMBEDDINGS
from hardneg.search.embedding_store import Embeddings
from hardneg.search.runs import KIND as RUN
from hardneg.search.runs import load_run
from hardneg.storage import artifacts
from hardneg.storage.artifacts import (
    MANIFEST,
    Manifest,
    check_files,
    digest_file,
    read_json,
    read_manifest,
    reading,
)
from hardneg.storage.disk import TEMPORARY
from hardneg.storage.places import check_readable

# The function that checks what an artefact of each kind promises in addition to its checksums.
INVARIANTS: dict[str, Callable[[Path], Any]] = {
    COLLECTION: Collection.open,
    TOKENS: TokenStore.open,
    EMBEDDINGS: Embeddings.open,
    POOL: load_pool,
    RUN: load_run,
}


Digest = Callable[[Path], str]
Check = Callable[[Path, Digest], tuple[int, int]]


@dataclass(frozen=True)
class Verifiable:
    """Something that can be verified: ``check`` returns the numbers of files and bytes it read, or raises."""

    path: Path
    kind: str
    check: Check


@checked
def verify(*paths: Place) -> dict[str, Any]:
    """Check every checksum and invariant of what is at ``paths``, byte by byte; no digest is taken from the cache.

    Parameters
    ----------
    paths : artefacts, run files, experiments or any folders of them; everything in them is checked, also behind
        links to folders.

    Returns
    -------
    ``whole``; ``checked``: of each thing its ``path``, ``kind``, ``files``, ``bytes`` and whether it is ``whole``;
    ``faults``: ``path``, ``code``, ``what`` and ``fix`` of each; ``leftovers``: temporaries of processes that work
    or died, which nothing reads.

    Raises
    ------
    InputError : there is nothing at any of the paths. If there is something at one, a path without is a fault.
    ArtifactError : there is nothing that could be verified.
    """
    return verify_places(paths)[0]


def verify_places(paths: Sequence[Place]) -> tuple[dict[str, Any], list[HardnegError]]:
    """The report that :func:`verify` returns, and its faults as they were raised."""
    if not paths:
        raise SettingsError(
            "BAD_SETTING", "nothing is given to verify", "give an artefact, a run or an experiment"
        )
    checked: list[dict[str, Any]] = []
    found: list[HardnegError] = []
    everything = [(path, list(verifiable_at(path))) for path in map(Path, paths)]
    missing = [fault for path, here in everything if (fault := absent(path, here))]
    there = [one for _, here in everything for one in here]
    if not there:
        raise missing[0] if len(missing) == 1 else Faults(missing)
    with digesting([one.path for one in there]) as digest:
        for one in there:
            (files, size), fault = attempt(one, digest)
            found += [fault] if fault else []
            checked.append(
                {"path": str(one.path), "kind": one.kind, "files": files, "bytes": size, "whole": not fault}
            )
    found = sorted([*found, *missing], key=_place_among_faults)
    faults = [{"path": str(one.path), "code": one.code, "what": one.what, "fix": one.fix} for one in found]
    leftovers = [str(place) for path in paths for place in leftovers_below(Path(path))]
    return {"whole": not found, "checked": checked, "faults": faults, "leftovers": leftovers}, found


def _place_among_faults(fault: HardnegError) -> int:
    """Where a fault comes among the faults: damage first, which decides the exit status; what is missing last."""
    return 0 if isinstance(fault, ArtifactError) else 2 if fault.code == "NOT_FOUND" else 1


def absent(path: Path, here: Sequence[Verifiable]) -> HardnegError | None:
    """The fault of a path at which nothing can be verified; None if something can."""
    try:
        check_readable(path)
    except InputError as fault:
        return fault
    if not path.exists():
        return InputError("NOT_FOUND", "there is nothing here", "check the path", path=path)
    if not here:
        what = "there is nothing here that has a manifest"
        return ArtifactError("NO_MANIFEST", what, "give an artefact, a run or an experiment", path=path)
    return None


@contextlib.contextmanager
def digesting(places: Sequence[Path]) -> Iterator[Digest]:
    """A digest of files, read byte by byte, that reports how far it is."""
    total, done = sum(extent_of(place) for place in places), 0
    with track("verifying", "bytes") as tick:

        def digest(path: Path) -> str:
            nonlocal done
            found = digest_file(path)
            done += path.stat().st_size
            tick(min(done, total), total)
            return found

        yield digest


def extent_of(place: Path) -> int:
    """The bytes of all files at a place; what this user may not look at counts nothing."""
    size = 0
    with contextlib.suppress(OSError):
        for file in place.rglob("*") if place.is_dir() else [place]:
            with contextlib.suppress(OSError):
                size += file.stat().st_size if file.is_file() else 0
    return size


def attempt(one: Verifiable, digest: Digest) -> tuple[tuple[int, int], HardnegError | None]:
    """Verify one thing: the numbers of files and bytes that were checked, and the fault that was found, if any."""
    try:
        with reading(one.path):
            return one.check(one.path, digest), None
    except HardnegError as fault:
        fault.path = fault.path or one.path
        return (0, 0), fault


def verifiable_at(place: Path) -> Iterator[Verifiable]:
    """Yield what can be verified at and below a place; nothing inside an artefact is verified on its own.

    Links to folders are followed. A folder that is closed to this user is a fault, and so is a link that leads
    nowhere or into such a folder. Hidden links are not looked at: some editors leave there links to nothing.
    """
    if place.is_file():
        yield from verifiable_file(place)
        return
    closed: list[OSError] = []
    links: list[Path] = []
    for here, folders, files in walk(place, closed.append):
        if MANIFEST in files:
            folders.clear()
            yield Verifiable(here, kind_of(here), check_artifact)
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in sorted(files):
            yield from verifiable_file(here / name, alone=False)
        links += [
            here / name for name in sorted(files) if not name.startswith(".") and os.path.islink(here / name)
        ]
    yield from (Verifiable(link, "link", check_link) for link in links if not os.path.exists(link))
    for fault in closed:
        if not isinstance(fault, FileNotFoundError | NotADirectoryError):  # gone meanwhile, or a pipe
            yield Verifiable(Path(fault.filename), "folder", check_open)


def walk(
    place: Path, told: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk down from a place as ``os.walk`` does, then from each folder that a link on the way leads to, once.

    A link to a folder above the place is not followed. ``told`` is called for each folder that cannot be listed.
    """
    top, seen, waiting = place.resolve(), set(), [place]
    while waiting:
        for folder, folders, files in os.walk(waiting.pop(0), onerror=told):
            here, real = Path(folder), Path(folder).resolve()
            if real in seen or real in top.parents:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            yield here, folders, files
            waiting += [here / name for name in folders if os.path.islink(here / name)]


def verifiable_file(file: Path, *, alone: bool = True) -> Iterator[Verifiable]:
    """Yield the check of a file, chosen by its name.

    ``alone``: the user names the file, so it must be a run if it is nothing else.
    """
    if file.name in FILES:
        yield Verifiable(file, *FILES[file.name])
    elif file.name.endswith(SIDECAR):
        yield Verifiable(file.with_name(file.name.removesuffix(SIDECAR)), "run file", check_run)
    elif alone:
        yield Verifiable(file, "run file", check_run)


def kind_of(folder: Path) -> str:
    """The kind that a folder's manifest says; "?" where it cannot be read."""
    with contextlib.suppress(HardnegError):
        return read_manifest(folder).kind
    return "?"


# ---------------------------------------------------------------- checks: files and bytes, or a fault


def check_artifact(path: Path, digest: Digest) -> tuple[int, int]:
    """Check every file of an artefact, and what its kind promises in addition to checksums."""
    manifest = artifacts.verify(path, digest)
    INVARIANTS.get(manifest.kind, lambda path: None)(path)
    return extent(manifest)


def check_open(path: Path, digest: Digest) -> tuple[int, int]:
    """Refuse a folder that is closed to this user: nobody knows what is in it."""
    with contextlib.suppress(FileNotFoundError), reading(path):
        os.listdir(path)
    return 0, 0


def check_link(path: Path, digest: Digest) -> tuple[int, int]:
    """Refuse a link that cannot be followed: nobody knows whether what it led to is whole."""
    try:
        with reading(path):
            os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        what, fix = "a link to something that is not there", "bring it back, or remove the link"
        raise InputError("NOT_FOUND", what, fix, path=path) from None
    return 0, 0


def check_run(path: Path, digest: Digest) -> tuple[int, int]:
    """Check a run file and its manifest."""
    return extent(verify_run(path, digest))


def check_sealed(file: Path, digest: Digest) -> tuple[int, int]:
    """Check the files of a finished experiment, and that its artefacts are those that it made."""
    layout = Layout(file.parent)
    if not layout.settings.is_file() and not layout.seeds():  # what several seeds share has none
        what = "the settings of this experiment are missing"
        raise ArtifactError("MISSING_FILE", what, "restore this file", path=Layout(file.parent).settings)
    manifest = read_seal(file.parent)
    check_files(file.parent, manifest, digest)
    check_made(file.parent)
    return extent(manifest)


def check_settings(file: Path, digest: Digest) -> tuple[int, int]:
    """Check that an experiment's settings can be read."""
    read_settings(file.parent)
    return 1, file.stat().st_size


def check_rows(file: Path, digest: Digest) -> tuple[int, int]:
    """Check that a file holds lines of JSON."""
    rows_of(file)
    return 1, file.stat().st_size


def check_json(file: Path, digest: Digest) -> tuple[int, int]:
    """Check that a file holds valid JSON."""
    read_json(file)
    return 1, file.stat().st_size


def check_results(file: Path, digest: Digest) -> tuple[int, int]:
    """Check that results are valid JSON, and that those of an experiment of one seed are sealed."""
    layout = Layout(file.parent)
    if layout.settings.is_file() and not layout.seal.is_file():
        what = "the seal of this experiment is missing, but it has results"
        raise ArtifactError("MISSING_FILE", what, "run its command again, which seals it", path=layout.seal)
    return check_json(file, digest)


def extent(manifest: Manifest) -> tuple[int, int]:
    """The numbers of files and bytes that a manifest names."""
    return len(manifest.files), sum(size for size, _ in manifest.files.values())


FILES: dict[str, tuple[str, Check]] = {
    SEAL: (EXPERIMENT, check_sealed),
    SETTINGS: ("settings", check_settings),
    METRICS: ("metrics", check_rows),
    VERSION_LOG: ("versions", check_rows),
    STATES: ("states", check_rows),
    RESULTS: ("results", check_results),
}


def leftovers_below(folder: Path) -> Iterator[Path]:
    """Yield temporaries below a folder, whether their processes live or not."""
    for place, folders, files in walk(folder):
        yield from (place / name for name in sorted([*folders, *files]) if name.startswith(TEMPORARY))
        folders[:] = [name for name in folders if not name.startswith(TEMPORARY)]

"""Embedding stores on disk: shards of consecutive rows, each an artefact, under one manifest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import checked
from hardneg.errors import ArtifactError
from hardneg.records import Int32
from hardneg.storage.artifacts import (
    MANIFEST,
    TEMPORARY,
    Manifest,
    check_version,
    digest_file,
    is_published,
    load_array,
    open_artifact,
    publish_file,
    read_manifest,
    remove,
    write_json,
)
from hardneg.storage.disk import write_array
from hardneg.storage.manifest import version_of
from hardneg.storage.os_errors import allow_open_files

log = logging.getLogger(__name__)

KIND = "embeddings"
SHARD_KIND = "embedding-shard"
SHARD = "shard-"  # begins the names of their folders
VERSION = version_of(KIND)
COLLAPSED = 0.99  # mean pairwise cosine above which the vectors say next to nothing


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A published store of vectors, memory-mapped; opened by :meth:`open`.

    Attributes
    ----------
    shards : [rows, dim] float16 or float32 each, of consecutive rows.
    mean : corpus mean vector [dim] float64.
    mean_pairwise_cosine : over all pairs of different vectors; 0 where there is one vector.
    max_norm : the largest Euclidean norm.
    digest : identity of the vectors and of what made them.
    """

    path: Path
    n: int
    dim: int
    shards: tuple[NDArray[Any], ...]
    mean: NDArray[np.float64]
    mean_pairwise_cosine: float
    max_norm: float
    manifest: Manifest

    @classmethod
    @checked
    def open(cls, path: str | Path) -> Embeddings:
        """Open a finished store, its files verified; raises :class:`hardneg.errors.ArtifactError`."""
        path = Path(path)
        manifest = open_artifact(path, KIND)
        facts = manifest.facts
        allow_open_files(facts["shards"])
        return cls(
            path=path,
            n=facts["rows"],
            dim=facts["dim"],
            shards=tuple(load_array(path / shard_name(i) / "vectors.npy") for i in range(facts["shards"])),
            mean=np.asarray(load_array(path / "mean.npy", mmap=False)),
            mean_pairwise_cosine=facts["mean_pairwise_cosine"],
            max_norm=facts["max_norm"],
            manifest=manifest,
        )

    @property
    def digest(self) -> str:
        """Identity of the vectors and of what made them."""
        return self.manifest.digest

    def rows(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Vectors [len(rows), dim] of these rows, copied, in that order."""
        rows = np.asarray(rows)
        vectors = np.empty((len(rows), self.dim), self.shards[0].dtype)
        size = len(self.shards[0])
        owner = rows // size
        for shard in np.unique(owner):
            here = owner == shard
            vectors[here] = self.shards[shard][rows[here] - shard * size]
        return vectors


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a store that one of several processes holds: every n-th shard, as in encoding.

    Attributes
    ----------
    shards : [rows, dim] each, memory-mapped unless they were chosen by :meth:`among`.
    rows : [m] int32 the row in the store of each vector of the shards, ascending.
    max_norm : the largest Euclidean norm in the whole store.
    """

    shards: tuple[NDArray[Any], ...]
    rows: Int32
    max_norm: float

    @classmethod
    def open(cls, path: Path, own: int, processes: int) -> Part:
        """Open the shards ``own``, ``own + processes``, ... of a finished store; no other shard's files are read.

        Raises
        ------
        ArtifactError : a file of these shards is missing or damaged, or there is no such store.
        """
        store = read_manifest(path)
        check_version(path, store)
        shards, rows, ours = [], [np.zeros(0, np.int32)], range(own, store.facts["shards"], processes)
        allow_open_files(len(ours))
        for folder in (path / shard_name(i) for i in ours):
            facts = open_artifact(folder, SHARD_KIND).facts
            shards.append(load_array(folder / "vectors.npy"))
            rows.append(np.arange(facts["start"], facts["start"] + facts["rows"], dtype=np.int32))
        return cls(tuple(shards), np.concatenate(rows), store.facts["max_norm"])

    def among(self, chosen: Int32) -> Part:
        """The vectors of the ``chosen`` rows (ascending) that lie here; its rows are positions in ``chosen``."""
        place = np.flatnonzero(np.isin(chosen, self.rows, assume_unique=True)).astype(np.int32)
        if not len(place):
            return Part((), place, self.max_norm)
        at = np.searchsorted(self.rows, chosen[place])
        starts = np.cumsum([0, *map(len, self.shards)])
        owner = np.searchsorted(starts, at, side="right") - 1
        vectors = [shard[at[owner == i] - starts[i]] for i, shard in enumerate(self.shards)]
        return Part((np.concatenate(vectors),), place, self.max_norm)


def discard(path: str | Path) -> None:
    """Delete an embedding store, finished or unfinished; nothing happens where there is none."""
    path = Path(path)
    if not path.exists():
        return
    ours = ("shard-", "mean.npy", MANIFEST, TEMPORARY)
    if any(not entry.name.startswith(ours) for entry in path.iterdir()):
        raise ArtifactError(
            "NOT_EMBEDDINGS",
            "no embeddings are here",
            "give the folder of embeddings; nothing was deleted",
            path=path,
        )
    remove(path)


# ---------------------------------------------------------------- shards


@dataclass(frozen=True)
class BuildKey:
    """The digests of model and tokens, and the settings, that decide the bits of an embedding store."""

    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    def check(self, path: Path, manifest: Manifest) -> None:
        """Refuse an artefact that was made from something else; the fault says both values."""
        found = {**manifest.inputs, **manifest.settings}
        for key, wanted in {**self.inputs, **self.settings}.items():
            if found.get(key) != wanted:
                what = f"made with {key} {found.get(key)}, not {wanted}"
                fix = "give another folder, or delete this one"
                if key == "precision":
                    fix += f", or set HARDNEG_PRECISION={found.get(key)} to go on"
                raise ArtifactError("OTHER_INPUTS", what, fix, path=path)


@dataclass(frozen=True)
class Shard:
    """The rows ``start`` to ``stop`` of a store, and the folder of the shard that holds their vectors."""

    folder: Path
    start: int
    stop: int

    def is_made(self, origin: BuildKey) -> bool:
        """Whether the shard is published; a shard that was made from other inputs is refused."""
        if not is_published(self.folder):
            return False
        check_version(self.folder, manifest := read_manifest(self.folder))
        origin.check(self.folder, manifest)
        open_artifact(self.folder, SHARD_KIND)
        return True


def shard_name(i: int) -> str:
    """The name of the i-th shard's folder."""
    return f"{SHARD}{i:05d}"


def plan_shards(path: Path, n: int, rows: int) -> list[Shard]:
    """The shards of ``rows`` rows each that cover n rows; the last one may be shorter."""
    return [Shard(path / shard_name(i), start, min(start + rows, n)) for i, start in enumerate(range(0, n, rows))]


def finish(path: Path, shards: Sequence[Shard], origin: BuildKey, facts: Mapping[str, Any]) -> None:
    """Turn finished shards into a store: write the corpus mean vector, and one manifest over all files."""
    manifests = [open_artifact(shard.folder, SHARD_KIND) for shard in shards]
    n = shards[-1].stop
    total = np.sum([load_array(shard.folder / "sums.npy", mmap=False) for shard in shards], axis=0)
    with publish_file(path / "mean.npy") as stream:
        write_array(stream, total[0] / n)
    cosine = float((total[1] @ total[1] - n) / (n * (n - 1))) if n > 1 else 0.0
    facts = {
        **facts,
        "rows": n,
        "dim": total.shape[1],
        "shards": len(shards),
        "max_norm": max(manifest.facts["max_norm"] for manifest in manifests),
        "mean_pairwise_cosine": cosine,
    }
    files = _all_files(path, shards, manifests)
    write_json(path / MANIFEST, Manifest(KIND, origin.settings, origin.inputs, facts, files, VERSION).as_json())
    if cosine > COLLAPSED:
        log.warning(
            "%s: mean pairwise cosine %.4f: the vectors are nearly all alike and can hardly rank passages;"
            " check the model, its pooling and its prompts",
            path,
            cosine,
        )


def _all_files(path: Path, shards: Sequence[Shard], manifests: Sequence[Manifest]) -> dict[str, tuple[int, str]]:
    files = {}
    for shard, manifest in zip(shards, manifests, strict=True):
        files.update({f"{shard.folder.name}/{file}": entry for file, entry in manifest.files.items()})
    for file in (path / "mean.npy", *(shard.folder / MANIFEST for shard in shards)):
        files[file.relative_to(path).as_posix()] = (file.stat().st_size, digest_file(file))
    return files

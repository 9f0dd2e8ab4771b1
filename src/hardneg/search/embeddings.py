"""Embedding stores: a token store seen through an encoder, in shards of fixed row ranges.

Every shard is an artefact of its own, so encoding resumes where it stopped, and any number of processes can share
it without talking to each other; whoever finishes last merges the manifests.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.artifacts import (
    MANIFEST,
    Manifest,
    check_writable,
    digest_file,
    is_published,
    load_array,
    open_artifact,
    publish,
    publish_file,
    read_manifest,
    write_json,
)
from hardneg.errors import ArtifactError, InputError, NumericError, SettingsError
from hardneg.models.packing import plan_batches
from hardneg.records import Int64, Side, TokenBatch

log = logging.getLogger(__name__)

KIND = "embeddings"
SHARD_KIND = "embedding-shard"
SHARD_ROWS = 65536
COLLAPSED = 0.99  # mean pairwise cosine above which the vectors say next to nothing
BLOCK = 8192  # rows summed at a time

Dtype = Literal["float16", "float32"]
Progress = Callable[[int, int], None]  # tokens done, tokens in all


class Encoder(Protocol):
    """What encoding needs of a model."""

    @property
    def dim(self) -> int:
        """Size of a vector."""
        ...

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Vectors [n, dim] float32."""
        ...

    def digest(self) -> str:
        """Identity of weights, prompts, lengths and tokenizer."""
        ...


class Tokens(Protocol):
    """What encoding needs of a token store."""

    @property
    def digest(self) -> str:
        """Identity of the sequences."""
        ...

    @property
    def lengths(self) -> Int64:
        """Tokens of each sequence [n]."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: NDArray[np.integer]) -> TokenBatch:
        """The sequences of these rows."""
        ...


# ---------------------------------------------------------------- the store


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
    def open(cls, path: str | Path) -> Embeddings:
        """Open a finished store, its files verified; raises :class:`hardneg.errors.ArtifactError`."""
        path = Path(path)
        manifest = open_artifact(path, KIND)
        facts = manifest.facts
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

    def as_matrix(self) -> NDArray[Any]:
        """All vectors [n, dim]: the map itself where there is one shard, else a copy in memory."""
        return self.shards[0] if len(self.shards) == 1 else np.concatenate(self.shards)


def discard(path: str | Path) -> None:
    """Delete an embedding store, finished or not; nothing happens where there is none.

    The manifest goes first, so that a store half deleted is never taken for a whole one.
    """
    path = Path(path)
    if not path.exists():
        return
    if not is_published(path, KIND) and not any(path.glob("shard-*")):
        raise ArtifactError("NOT_EMBEDDINGS", "no embeddings are here", "nothing was deleted", path=path)
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path)


# ---------------------------------------------------------------- encoding


@dataclass(frozen=True)
class _Unit:
    """One shard to make: rows ``start`` to ``stop``."""

    folder: Path
    start: int
    stop: int


def encode_store(
    encoder: Encoder,
    tokens: Tokens,
    path: str | Path,
    *,
    side: Side,
    budget: int,
    dtype: Dtype = "float16",
    shard: tuple[int, int] = (0, 1),
    shard_rows: int = SHARD_ROWS,
    name: Callable[[int], str] = "row {}".format,
    progress: Progress | None = None,
) -> Embeddings | None:
    """Encode a token store into ``path``, or do what is left of it.

    Parameters
    ----------
    budget : tokens of one batch; with ``shard_rows`` it fixes the batches, and so the vectors' last bits.
    shard : (i, n): this process makes shards i, i + n, ...; whichever process finds all of them made finishes.
    name : what to call a row in a message.
    progress : called with the tokens done and those this call has to do.

    Returns
    -------
    The finished store, or None while other processes have shards to make.

    Raises
    ------
    NumericError
        A vector holds NaN or Inf, as stored, or is zero; its shard is not published.
    ArtifactError
        ``path`` holds embeddings of other inputs or settings, or a damaged shard.
    """
    path = Path(path)
    if not 0 <= shard[0] < shard[1]:
        raise SettingsError("BAD_SHARD", f"shard {shard[0]}/{shard[1]}", "count shards from 0")
    if len(tokens) == 0:
        raise InputError("NO_PASSAGES", "the token store is empty", "give at least one text", path=path)
    check_writable(path)
    inputs = {"encoder": encoder.digest(), "tokens": tokens.digest}
    settings = {"side": side, "budget": budget, "dtype": dtype, "shard_rows": shard_rows}
    units = list(_units(path, len(tokens), shard_rows))
    made = {unit.folder for unit in units if _is_made(unit, inputs, settings)}
    if is_published(path):
        return _reopen(path, inputs, settings)
    todo = [unit for unit in units[shard[0] :: shard[1]] if unit.folder not in made]
    report = _counter(progress, sum(int(tokens.lengths[unit.start : unit.stop].sum()) for unit in todo))
    for unit in todo:
        vectors = _encode_unit(encoder, tokens, unit, side, budget, dtype, report)
        _publish_unit(vectors, unit, name, inputs, settings)
    if not all(is_published(unit.folder, SHARD_KIND) for unit in units):
        return None
    _merge(path, units, inputs, settings)
    return Embeddings.open(path)


def shard_name(i: int) -> str:
    """Folder of the i-th shard."""
    return f"shard-{i:05d}"


def _units(path: Path, n: int, rows: int) -> Iterator[_Unit]:
    for i, start in enumerate(range(0, n, rows)):
        yield _Unit(path / shard_name(i), start, min(start + rows, n))


def _is_made(unit: _Unit, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """Whether the shard is there and whole; refused, if it was made from something else."""
    if not is_published(unit.folder):
        return False
    _refuse_other(unit.folder, read_manifest(unit.folder), inputs, settings)
    open_artifact(unit.folder, SHARD_KIND)
    return True


def _reopen(path: Path, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> Embeddings:
    embeddings = Embeddings.open(path)
    _refuse_other(path, embeddings.manifest, inputs, settings)
    return embeddings


def _refuse_other(path: Path, manifest: Manifest, inputs: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    found = {**manifest.inputs, **manifest.settings}
    for key, wanted in {**inputs, **settings}.items():
        if found.get(key) != wanted:
            what = f"made with {key} {found.get(key)}, not {wanted}"
            raise ArtifactError("OTHER_INPUTS", what, "give another folder, or delete this one", path=path)


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done, total)

    return advance


@torch.no_grad()  # inference mode would taint what a model caches
def _encode_unit(
    encoder: Encoder,
    tokens: Tokens,
    unit: _Unit,
    side: Side,
    budget: int,
    dtype: Dtype,
    report: Callable[[int], None],
) -> Tensor:
    """Vectors [rows, dim] of one shard, gathered on the encoder's device: no copy waits between batches."""
    lengths = np.asarray(tokens.lengths[unit.start : unit.stop])
    out: Tensor | None = None
    for batch in plan_batches(lengths, budget):
        vectors = encoder.encode(tokens.read(unit.start + np.asarray(batch)), side)
        if out is None:
            out = vectors.new_empty((len(lengths), vectors.shape[1]), dtype=getattr(torch, dtype))
        out[torch.as_tensor(batch, device=out.device)] = vectors.to(out.dtype)
        report(int(lengths[batch].sum()))
    assert out is not None  # a shard has rows
    return out


def _publish_unit(
    vectors: Tensor,
    unit: _Unit,
    name: Callable[[int], str],
    inputs: Mapping[str, str],
    settings: Mapping[str, Any],
) -> None:
    norms = vector_norms(vectors)
    check_norms(norms, lambda row: name(unit.start + row))
    stored = vectors.cpu().numpy()
    with publish(unit.folder, SHARD_KIND, settings=settings, inputs=inputs) as draft:
        draft.array("vectors.npy", stored)
        draft.array("sums.npy", _sums(stored))
        draft.facts.update(start=unit.start, rows=len(stored), dim=stored.shape[1], max_norm=float(norms.max()))


def _sums(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Sum of the vectors, and of the vectors brought to length 1 [2, dim]."""
    sums = np.zeros((2, vectors.shape[1]))
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)
        sums += block.sum(0), (block / np.linalg.norm(block, axis=1, keepdims=True)).sum(0)
    return sums


# ---------------------------------------------------------------- finishing


def _merge(path: Path, units: list[_Unit], inputs: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Finish a store whose shards are all there: the mean vector and one manifest over everything."""
    manifests = [open_artifact(unit.folder, SHARD_KIND) for unit in units]
    for unit, manifest in zip(units, manifests, strict=True):
        _refuse_other(unit.folder, manifest, inputs, settings)
    n = units[-1].stop
    total = np.sum([load_array(unit.folder / "sums.npy", mmap=False) for unit in units], axis=0)
    with publish_file(path / "mean.npy") as stream:
        np.save(stream, total[0] / n, allow_pickle=False)
    cosine = float((total[1] @ total[1] - n) / (n * (n - 1))) if n > 1 else 0.0
    facts = {
        "rows": n,
        "dim": manifests[0].facts["dim"],
        "shards": len(units),
        "max_norm": max(manifest.facts["max_norm"] for manifest in manifests),
        "mean_pairwise_cosine": cosine,
    }
    files = _all_files(path, units, manifests)
    write_json(path / MANIFEST, Manifest(KIND, settings, inputs, facts, files).as_json())
    if cosine > COLLAPSED:
        log.warning("%s: mean pairwise cosine %.4f: the vectors are nearly all alike", path, cosine)


def _all_files(path: Path, units: list[_Unit], manifests: list[Manifest]) -> dict[str, tuple[int, str]]:
    files = {}
    for unit, manifest in zip(units, manifests, strict=True):
        files.update({f"{unit.folder.name}/{file}": entry for file, entry in manifest.files.items()})
    for file in (path / "mean.npy", *(unit.folder / MANIFEST for unit in units)):
        files[file.relative_to(path).as_posix()] = (file.stat().st_size, digest_file(file))
    return files


# ---------------------------------------------------------------- vectors


def vector_norms(vectors: Tensor) -> Tensor:
    """Euclidean norms [n] float64 of float16 or float32 vectors [n, dim], to float32's precision."""
    return torch.cat([_norms(block.float()) for block in vectors.split(BLOCK)])


def _norms(vectors: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(vectors, dim=1).double()
    extreme = ~((norms > 1e-15) & (norms < 1e15))  # squares may have under- or overflowed
    if extreme.any():
        norms[extreme] = torch.linalg.vector_norm(vectors[extreme].double(), dim=1)
    return norms


def check_norms(norms: Tensor, name: Callable[[int], str]) -> None:
    """Raise :class:`NumericError` with the name of the first vector that is not finite or is zero."""
    bad = torch.nonzero(~(torch.isfinite(norms) & (norms > 0))).flatten()
    if len(bad):
        row, norm = int(bad[0]), float(norms[bad[0]])
        what = "is zero" if norm == 0 else "holds NaN or Inf (float16 ends at 65504)"
        raise NumericError(
            "BAD_VECTOR", f"the vector of {name(row)} {what} ({len(bad)} such)", "check the model and its input"
        )

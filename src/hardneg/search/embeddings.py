"""Embeddings: a token store seen through an encoder, in shards of fixed row ranges.

Every shard is an artefact, so encoding resumes where it stopped. Any number of processes can share the work
without talking to each other; the process that finishes last merges the manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.errors import InputError, SettingsError
from hardneg.models.packing import plan_batches, upload
from hardneg.records import Int64, Side, TokenBatch
from hardneg.search.embedding_store import (
    SHARD_KIND,
    BuildKey,
    Embeddings,
    Shard,
    discard,
    finish,
    plan_shards,
)
from hardneg.search.vectors import BLOCK, check_norms, vector_norms
from hardneg.storage.artifacts import SettingsClash, check_writable, disk_faults, is_published, publish
from hardneg.storage.disk import make_folder, sweep
from hardneg.storage.os_errors import require_space

__all__ = ["Dtype", "Embeddings", "discard", "encode_store", "encoding_memory"]

SHARD_ROWS, LEAST_ROWS = 65536, 2048  # of a shard
SHARES = 32  # shards of a store, if that makes none too large or small: processes share them

Dtype = Literal["float16", "float32"]
Name = Callable[[int], str]
Progress = Callable[[int, int], None]  # tokens done, tokens in all


class Encoder(Protocol):
    """The part of a model that encoding uses."""

    @property
    def dim(self) -> int:
        """Size of a vector."""
        ...

    @property
    def precision(self) -> str:
        """The precision that the encoder computes vectors in now; no part of its digest."""
        ...

    def working_memory(self, tokens: int) -> int:
        """Bytes that a batch of so many tokens takes inside the model."""
        ...

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """The vectors [n, dim] float32 of ``tokens``."""
        ...

    def digest(self, side: Side | None = None) -> str:
        """The identity of weights, settings and tokenizer, or of what one ``side`` has of them."""
        ...


class Tokens(Protocol):
    """The part of a token store that encoding uses."""

    @property
    def digest(self) -> str:
        """The identity of the sequences."""
        ...

    @property
    def lengths(self) -> Int64:
        """The number of tokens of each sequence [n]."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: NDArray[np.integer]) -> TokenBatch:
        """The sequences of these rows."""
        ...


def encoding_memory(encoder: Encoder, token_budget: int, texts: int) -> int:
    """The bytes that encoding takes besides the model: one batch inside it, and the vectors of a shard."""
    return encoder.working_memory(token_budget) + min(texts, SHARD_ROWS) * encoder.dim * 12


def encode_store(
    encoder: Encoder,
    tokens: Tokens,
    path: str | Path,
    *,
    side: Side,
    budget: int,
    dtype: Dtype = "float16",
    shard: tuple[int, int] = (0, 1),
    shard_rows: int | None = None,
    name: Name | None = None,
    facts: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Embeddings | None:
    """Encode a token store into embeddings at ``path``; shards that are there already are kept.

    Parameters
    ----------
    budget : tokens of one batch; with ``shard_rows`` it fixes the batches, and so the vectors' last bits.
    shard_rows : rows of a shard; None: :func:`rows_of_shard`, however many processes share the work.
    shard : (i, n): this process makes shards i, i + n, ...; a process that finds all shards made finishes the
        store.
    name : the id of a row, for messages.
    facts : what else readers of the vectors should know of the encoder.
    progress : called with the tokens done and those that this call has to do.

    Returns
    -------
    The finished store, or None while other processes have shards to make.

    Raises
    ------
    NumericError
        A vector holds NaN or Inf, as stored, or is zero; its shard is not published.
    ArtifactError
        ``path`` holds embeddings of other inputs or settings, or a damaged shard.
    InputError, SettingsError
        There is nothing to encode; ``shard`` makes no sense.
    """
    path, (i, n) = Path(path), shard
    if not 0 <= i < n:
        raise SettingsError("BAD_SHARD", f"shard {i}/{n}", "count shards from 0")
    if len(tokens) == 0:
        raise InputError("NOTHING_TO_ENCODE", "there are no texts", "give at least one")
    shard_rows = shard_rows or rows_of_shard(len(tokens))
    origin = key_of(encoder, tokens, side, budget=budget, dtype=dtype, shard_rows=shard_rows)
    shards = plan_shards(path, len(tokens), shard_rows)
    made = {shard.folder for shard in shards if shard.is_made(origin)}
    if is_published(path):
        embeddings = Embeddings.open(path)
        origin.check(path, embeddings.manifest)
        return embeddings
    todo = [shard for shard in shards[i::n] if shard.folder not in made]
    make_room(path, sum(shard.stop - shard.start for shard in todo) * encoder.dim * np.dtype(dtype).itemsize)
    _encode_shards(encoder, tokens, todo, origin, name, progress)
    if not all(is_published(shard.folder, SHARD_KIND) for shard in shards):
        return None
    finish(path, shards, origin, facts or {})
    return Embeddings.open(path)


def missing_parts(path: str | Path, rows: int, n: int) -> list[str]:
    """The parts, as ``i/n``, of a store of ``rows`` rows that have shards to make, here or in another process."""
    shards = plan_shards(Path(path), rows, rows_of_shard(rows))
    waiting = [not is_published(shard.folder, SHARD_KIND) for shard in shards]
    return [f"{i}/{n}" for i in range(n) if any(waiting[i::n])]


def key_of(
    encoder: Encoder, tokens: Tokens, side: Side, *, budget: int, dtype: Dtype, shard_rows: int
) -> BuildKey:
    """The inputs and settings that decide the embeddings of ``tokens`` by ``encoder`` in its present precision."""
    inputs = {"encoder": encoder.digest(side), "tokens": tokens.digest}
    how = {"side": side, "budget": budget, "dtype": dtype, "precision": encoder.precision}
    return BuildKey(inputs, {**how, "shard_rows": shard_rows})


def make_room(path: Path, size: int) -> None:
    """Make the folder of a store, delete what interrupted work left in it, and check that ``size`` bytes fit."""
    with disk_faults(path):
        make_folder(path)
        check_writable(path)
        sweep(path)
    require_space(path, size)


def rows_of_shard(n: int) -> int:
    """The rows of each shard of ``n`` rows.

    The number depends on ``n`` alone. So the batches, and the bits of the vectors, are the same however many
    processes share the work.
    """
    return min(max(-(-n // SHARES), LEAST_ROWS), SHARD_ROWS)


def _encode_shards(
    encoder: Encoder,
    tokens: Tokens,
    shards: list[Shard],
    origin: BuildKey,
    name: Name | None,
    progress: Progress | None,
) -> None:
    lengths = np.asarray(tokens.lengths)
    report = _counter(progress, sum(int(lengths[shard.start : shard.stop].sum()) for shard in shards))
    with ThreadPoolExecutor(1) as writer:  # a shard is written while the next one is encoded
        writing: Future[None] | None = None
        for shard in shards:
            if shard.is_made(origin):  # another process has made it in the meantime
                report(int(lengths[shard.start : shard.stop].sum()))
                continue
            vectors = _encode_shard(encoder, tokens, lengths, shard, origin, report)
            norms, stored = vector_norms(vectors).cpu(), vectors.cpu()
            if writing is not None:
                writing.result()
            writing = writer.submit(_publish_shard, stored, norms, shard, origin, name)
        if writing is not None:
            writing.result()


def _counter(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        if progress is not None:
            progress(done, total)

    return advance


@torch.no_grad()  # inference mode would taint what a model caches
def _encode_shard(
    encoder: Encoder,
    tokens: Tokens,
    lengths: Int64,
    shard: Shard,
    origin: BuildKey,
    report: Callable[[int], None],
) -> Tensor:
    """The vectors [rows, dim] of one shard.

    They are gathered on the encoder's device, so that no copy to the CPU waits between two batches.
    """
    dtype, side = getattr(torch, origin.settings["dtype"]), origin.settings["side"]
    lengths = lengths[shard.start : shard.stop]
    out: Tensor | None = None
    for batch in plan_batches(lengths, origin.settings["budget"]):
        vectors = encoder.encode(tokens.read(shard.start + batch), side)
        if out is None:
            out = vectors.new_empty((len(lengths), vectors.shape[1]), dtype=dtype)
        out[upload(batch, out.device)] = vectors.to(dtype)
        report(int(lengths[batch].sum()))
    assert out is not None  # a shard has rows
    return out


def _publish_shard(vectors: Tensor, norms: Tensor, shard: Shard, origin: BuildKey, name: Name | None) -> None:
    def called(position: int) -> str:
        row = shard.start + position
        return f"row {row}" if name is None else f"{name(row)} (row {row})"

    check_norms(norms, called)
    stored = vectors.numpy()
    try:
        with publish(shard.folder, SHARD_KIND, settings=origin.settings, inputs=origin.inputs) as draft:
            draft.array("vectors.npy", stored)
            draft.array("sums.npy", _sums(stored))
            facts = {"start": shard.start, "rows": len(stored), "dim": stored.shape[1]}
            draft.facts.update(facts, max_norm=float(norms.max()))
    except SettingsClash:  # another process was faster: from the same inputs it made the same
        if not shard.is_made(origin):
            raise


def _sums(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """The sum of the vectors, and the sum of the vectors brought to length 1: [2, dim] float64."""
    sums = np.zeros((2, vectors.shape[1]))
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)
        sums += block.sum(0), (block / np.linalg.norm(block, axis=1, keepdims=True)).sum(0)
    return sums

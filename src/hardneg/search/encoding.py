"""The settings that decide a model's embeddings, and the encoding of one side of a collection, or shards of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hardneg.data.collection import Collection
from hardneg.data.tokens import SomeTokens, TokenStore
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.distributed import has_others
from hardneg.process.hardware import Precision
from hardneg.process.memory import require
from hardneg.process.progress import Tick, silent, track, wait_for_another
from hardneg.records import Side
from hardneg.search.ann import traits
from hardneg.search.embeddings import Dtype, Embeddings, encode_store, encoding_memory
from hardneg.storage.artifacts import is_published

UNSEEN_SECONDS = 60  # how long NFS may remember that a file is not there, with its usual options


@dataclass(frozen=True)
class Encoding:
    """How a model's embeddings are made; all of it decides their bits."""

    token_budget: int = 16384
    dtype: Dtype = "float16"
    precision: Precision = "float32"


def encode_side(
    encoder: BiEncoder,
    collection: Collection,
    store: TokenStore | SomeTokens,
    path: Path,
    *,
    side: Side,
    encoding: Encoding,
    shard: tuple[int, int],
    counted: Tick = silent,
) -> Embeddings | None:
    """Encode one side of a collection, whose tokens are in ``store``, into embeddings at ``path``.

    Shards that are there already are kept.

    Parameters
    ----------
    counted : called, besides the progress report, with the tokens encoded so far and those to encode; shards that
        are there already count in neither.
    shard : (i, n): this process makes shards i, i + n, ...; the result is None while other processes have shards
        to make.

    Raises
    ------
    ResourceError : a batch does not fit into the memory that may be used; and what ``encode_store`` raises.
    """
    require(encoding_memory(encoder, encoding.token_budget, len(store)), "encoding", encoder.device.type)
    ids, texts = (collection.query_ids, "queries") if side == "query" else (collection.passage_ids, "passages")
    with encoder.inference(encoding.precision), track(f"encoding {texts}", "tokens", kind="encode") as tick:

        def progress(done: int, total: int) -> None:
            counted(done, total)
            tick(done, total)

        return encode_store(
            encoder,
            store,
            path,
            side=side,
            budget=encoding.token_budget,
            dtype=encoding.dtype,
            shard=shard,
            name=lambda row: ids[store.document(row)],
            facts=traits(encoder, side),
            progress=progress,
        )


def opened_soon(path: Path) -> Embeddings:
    """Open embeddings that another process has finished.

    NFS may say for a while that a file is not there, if it was asked before another machine wrote that file.
    """
    until = time.monotonic() + (UNSEEN_SECONDS if has_others() else 0)
    while not is_published(path) and time.monotonic() < until:
        wait_for_another()
    return Embeddings.open(path)

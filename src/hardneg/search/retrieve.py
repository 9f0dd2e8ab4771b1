"""From query vectors to runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.memory import room
from hardneg.progress import Tick, silent
from hardneg.records import Float32, Int32, Int64, Run, Unit, offsets_of, spans
from hardneg.search.embeddings import Embeddings
from hardneg.search.exact import ExactIndex
from hardneg.search.vectors import Vectors, as_tensor, check_norms, vector_norms


def resident(shards: Sequence[NDArray[Any]], device: str | torch.device) -> Sequence[Vectors]:
    """The shards on a CUDA device, if half of what is free there holds them; otherwise as they are.

    Every tile of queries passes over all passages; those on disk would be sent again each time.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return shards
    left = min(torch.cuda.mem_get_info(device)[0], room("cuda") or 1 << 62)
    if 2 * sum(shard.nbytes for shard in shards) > left:
        return shards
    return [as_tensor(shard).to(device) for shard in shards]


def search_run(
    query_vectors: NDArray[Any],
    query_rows: Int32,
    passages: Embeddings,
    k: int,
    *,
    collection_digest: str,
    device: str | torch.device = "cpu",
    tile: int | None = None,
    chunk: int | None = None,
    documents: Int64 | None = None,
    name: Callable[[int], str] = "query row {}".format,
    progress: Tick = silent,
) -> Run:
    """Search stored passages exactly.

    Parameters
    ----------
    query_vectors : [Q, dim], rounded to the passages' dtype first.
    query_rows : [Q] rows of the queries in the collection.
    documents : [D + 1] where the chunks of each document begin among the passages: the run is of documents then,
        each with the score of its best chunk (MaxP). None: a passage is a passage.
    tile, chunk, device : how it is computed, without effect on the run.
    name : what to call a query row in a message.
    progress : called with the queries done and all of them.

    Raises
    ------
    SettingsError, InputError, ArtifactError, NumericError
        See :meth:`hardneg.search.exact.ExactIndex.search`.
    """
    queries = torch.as_tensor(np.array(query_vectors, passages.shards[0].dtype))
    if len(queries):
        check_norms(vector_norms(queries), lambda i: name(int(query_rows[i])))
    shards = resident(passages.shards, device)
    index = ExactIndex(shards, tile=tile, chunk=chunk, device=device, max_norm=passages.max_norm)
    if documents is None:
        scores, rows = search_arrays(index, queries, k, progress)
    else:
        scores, rows = search_documents(index, queries, k, documents, progress)
    offsets = offsets_of(np.full(len(queries), rows.shape[1]))
    unit: Unit = "passage" if documents is None else "document"
    flat = rows.reshape(-1), scores.reshape(-1)
    return Run(np.asarray(query_rows, np.int32), offsets, *flat, unit, collection_digest)


def search_arrays(index: ExactIndex, queries: torch.Tensor, k: int, progress: Tick) -> tuple[Float32, Int32]:
    """Scores and rows [Q, k] of the best passages."""
    scores, rows = index.search(queries, k, progress=progress)
    return scores.cpu().numpy(), rows.cpu().numpy()


def search_documents(
    index: ExactIndex, queries: torch.Tensor, k: int, documents: Int64, progress: Tick = silent
) -> tuple[Float32, Int32]:
    """Scores and rows [Q, k] of the best documents, whose score is that of their best chunk (MaxP).

    A document's best chunk is the first of its chunks in a ranked list, so the first k documents met in it are the
    best, ties included: chunks of equal score rank by row, and so by document. Among ``(k - 1) * c + 1`` chunks
    there are k documents, where c is the most chunks of one. Twice k is tried first.
    """
    k = min(k, len(documents) - 1)
    enough = min((k - 1) * int(spans(documents).max()) + 1, len(index))
    scores, rows, found = first_documents(
        *search_arrays(index, queries, min(2 * k, enough), progress), documents, k
    )
    if len(short := np.flatnonzero(found < k)) and 2 * k < enough:
        again = search_arrays(index, queries[torch.from_numpy(short)], enough, silent)
        scores[short], rows[short], found[short] = first_documents(*again, documents, k)
    assert (found == k).all()
    return scores, rows


def first_documents(
    scores: Float32, chunks: Int32, documents: Int64, k: int
) -> tuple[Float32, Int32, NDArray[np.int64]]:
    """Scores and rows of the first ``k`` distinct documents of ranked chunks [Q, n]; how many there are [Q]."""
    owner = np.searchsorted(documents, chunks, side="right") - 1
    order = np.argsort(owner, axis=1, kind="stable")
    ordered = np.take_along_axis(owner, order, axis=1)
    first = np.zeros(owner.shape, bool)
    fresh = np.ones(owner.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    np.put_along_axis(first, order, fresh, axis=1)
    found = np.minimum(first.sum(axis=1), k)
    place = np.argsort(~first, axis=1, kind="stable")[:, :k]  # the first ones, in their order
    return (
        np.take_along_axis(scores, place, axis=1),
        np.take_along_axis(owner, place, axis=1).astype(np.int32),
        found,
    )

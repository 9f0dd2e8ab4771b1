"""From query vectors to runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.process.memory import room
from hardneg.process.progress import Tick, silent
from hardneg.records import Float32, Int32, Int64, Run, Unit, offsets_of, owners, spans
from hardneg.search.embeddings import Embeddings
from hardneg.search.exact import ExactIndex
from hardneg.search.pairs import tree_sum
from hardneg.search.runs import check_request
from hardneg.search.vectors import Vectors, as_tensor, check_norms, vector_norms

Search = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]

BLOCK = 1024  # ranked lists of chunks that are reduced to documents at once


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

    def search(vectors: torch.Tensor, hits: int) -> tuple[torch.Tensor, torch.Tensor]:
        # of lists that are searched again, deeper, nothing is told: they are few
        return index.search(vectors, hits, progress=progress if len(vectors) == len(queries) else silent)

    if documents is None:
        scores, rows = _arrays(search(queries, k))
    else:
        assert documents[-1] == len(index), "the chunks are those that were embedded"
        scores, rows, found = search_documents(search, queries, k, documents, whole=True)
        assert found.all()
    offsets = offsets_of(np.full(len(queries), rows.shape[1]))
    unit: Unit = "passage" if documents is None else "document"
    flat = rows.reshape(-1), scores.reshape(-1)
    return Run(np.asarray(query_rows, np.int32), offsets, *flat, unit, collection_digest)


def dot_products(a: NDArray[Any], b: NDArray[Any]) -> Float32:
    """The score of each pair of stored vectors [n, dim], bit for bit as a search gives it."""
    return tree_sum(as_tensor(a).double() * as_tensor(b).double()).float().numpy()


def search_documents(
    search: Search, queries: torch.Tensor, k: int, documents: Int64, *, whole: bool
) -> tuple[Float32, Int32, NDArray[np.bool_]]:
    """Scores and rows [Q, k] of the best documents, whose score is that of their best chunk (MaxP); where one is.

    A document's best chunk is the first of its chunks in a ranked list, so the first k documents met in it are the
    best, ties included: chunks of equal score rank by row, and so by document. Among ``(k - 1) * c + 1`` chunks
    there are k documents, where c is the most chunks of one.

    Parameters
    ----------
    search : (vectors [Q, dim], k) -> scores and rows [Q, k] of the best chunks; row -1 where there are fewer.
    documents : [D + 1] where the chunks of each document begin.
    whole : a shorter list is the beginning of a longer one, so twice k is tried first. Of an index that
        approximates it need not be.
    """
    k = check_request(len(queries), len(documents) - 1, k)
    owner = np.append(owners(documents), -1).astype(np.int32)  # no chunk, no document
    enough = min((k - 1) * int(spans(documents).max()) + 1, int(documents[-1]))
    first = min(2 * k, enough) if whole else enough
    scores, rows, found = first_documents(*_arrays(search(queries, first)), owner, k)
    if first < enough and len(short := np.flatnonzero(found < k)):
        again = _arrays(search(queries[torch.from_numpy(short)], enough))
        scores[short], rows[short], found[short] = first_documents(*again, owner, k)
    return scores, rows, (np.arange(k) < found[:, None]) & (rows >= 0)


def _arrays(hits: tuple[torch.Tensor, torch.Tensor]) -> tuple[Float32, Int32]:
    """Scores and rows as arrays."""
    scores, rows = hits
    return scores.cpu().numpy(), rows.cpu().numpy()


def first_documents(
    scores: Float32, chunks: Int32, owner: Int32, k: int
) -> tuple[Float32, Int32, NDArray[np.int64]]:
    """Scores and rows [Q, k] of the first distinct documents of ranked chunks [Q, n]; how many there are [Q].

    Parameters
    ----------
    owner : the document of each chunk.
    k : n at most; where fewer are found, what follows them means nothing.
    """
    best, rows = np.empty((len(scores), k), np.float32), np.empty((len(scores), k), np.int32)
    found = np.empty(len(scores), np.int64)
    for start in range(0, len(scores), BLOCK):
        part = slice(start, start + BLOCK)
        owned = owner[chunks[part]]
        place, found[part] = first_places(owned, k)
        best[part] = np.take_along_axis(scores[part], place, axis=1)
        rows[part] = np.take_along_axis(owned, place, axis=1)
    return best, rows, found


def first_places(values: Int32, k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the first ``k`` distinct values of each list [Q, n] stand [Q, k], and how many there are [Q]."""
    n = values.shape[1]
    keys = values.astype(np.int64) * n + np.arange(n)  # one sort brings equal values together, the first ahead
    keys.sort(axis=1)
    sorted_values, place = np.divmod(keys, n)
    place[:, 1:][sorted_values[:, 1:] == sorted_values[:, :-1]] = n
    found = np.minimum((place < n).sum(axis=1), k)
    place.sort(axis=1)
    return np.minimum(place[:, :k], n - 1), found

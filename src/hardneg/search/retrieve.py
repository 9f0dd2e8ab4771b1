"""From query vectors to runs: the form that every index has, exact search as an index, and MaxP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.process.memory import require, room
from hardneg.process.progress import Tick, silent
from hardneg.records import Float32, Int32, Int64, Run, Unit, offsets_of, owners, spans
from hardneg.search.embeddings import Embeddings
from hardneg.search.exact import ExactIndex
from hardneg.search.pairs import tree_sum
from hardneg.search.runs import check_request
from hardneg.search.vectors import Vectors, as_tensor, check_norms, vector_norms

log = logging.getLogger(__name__)

Search = Callable[[Tensor, int], tuple[Tensor, Tensor]]

CHEAP = 1 << 20  # hits whose lists take little memory
BLOCK = 1024  # ranked lists of chunks that are reduced to documents at once


class Index(Protocol):
    """An object that searches passages, and knows the vectors that it scores. One thread at a time may ask it.

    Attributes
    ----------
    dtype : the dtype of the stored vectors, to which queries are rounded.
    nested : whether a search for k hits always gives the first k of a deeper search; an approximate index may not.
    """

    dtype: torch.dtype
    nested: bool

    @property
    def path(self) -> Path:
        """The folder in which the index lies."""
        ...

    def __len__(self) -> int: ...

    @property
    def digest(self) -> str:
        """Identity of what is searched and of how it was made."""
        ...

    def search(self, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
        """Scores [Q, k] float32 and rows [Q, k] int32, best first, ties by row; -1 where there are fewer hits.

        Parameters
        ----------
        progress : called with the queries done and all of them.
        """
        ...

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """[n, dim] float32 the vectors of these passages as the index scores them."""
        ...

    def describe(self) -> dict[str, Any]:
        """Kind, options and digest, by which a later search finds the index again; {} for the embeddings alone."""
        ...

    def made_from(self) -> dict[str, Any]:
        """The facts, by name, that a searching model must share (``SHARED`` in :mod:`hardneg.search.ann`)."""
        ...


class OverEmbeddings:
    """The common base of exact indexes over stored embeddings: their vectors, and how they describe themselves."""

    nested = True

    def __init__(self, embeddings: Embeddings, rows: Int32 | None) -> None:
        self.embeddings, self.rows = embeddings, rows
        self.dtype = as_tensor(embeddings.shards[0][:0]).dtype

    def __len__(self) -> int:
        return self.embeddings.n if self.rows is None else len(self.rows)

    @property
    def path(self) -> Path:
        """See :class:`Index`."""
        return self.embeddings.path

    @property
    def digest(self) -> str:
        """See :class:`Index`: that of the embeddings."""
        return self.embeddings.digest

    def vectors(self, rows: NDArray[np.integer]) -> Tensor:
        """See :class:`Index`."""
        return as_tensor(self.embeddings.rows(rows)).float()

    def describe(self) -> dict[str, Any]:
        """See :class:`Index`: a later search needs nothing but the embeddings."""
        return {}

    def made_from(self) -> dict[str, Any]:
        """See :class:`Index`."""
        return {**self.embeddings.manifest.facts, **self.embeddings.manifest.inputs}


class StoredIndex(OverEmbeddings):
    """Exact search of stored embeddings, as an :class:`Index`.

    Parameters
    ----------
    device : where the products run; tile, chunk : see :class:`~hardneg.search.exact.ExactIndex`.
    resident : keep the vectors on a CUDA device for as long as this lives, if there is room (:func:`on_device`).
    rows : [n] rows of the passages that are searched, which ascend; None: all. Hits count from 0 among them.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        device: str | torch.device = "cpu",
        *,
        tile: int | None = None,
        chunk: int | None = None,
        resident: bool = False,
        rows: Int32 | None = None,
    ) -> None:
        super().__init__(embeddings, rows)
        if rows is not None:  # their vectors are copied into memory
            require(len(rows) * embeddings.dim * embeddings.shards[0].itemsize, "a search of some passages")
        chosen = embeddings.shards if rows is None else [embeddings.rows(rows)]
        shards = on_device(chosen, device) if resident else chosen
        self.exact = ExactIndex(shards, tile=tile, chunk=chunk, device=device, max_norm=embeddings.max_norm)

    def search(self, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
        """See :class:`Index`."""
        return self.exact.search(queries, k, progress=progress)


def on_device(shards: Sequence[NDArray[Any]], device: str | torch.device) -> Sequence[Vectors]:
    """The shards on a CUDA device, if half of what is free there holds them; otherwise as they are.

    Every tile of queries passes over all passages; those on disk would be sent again each time.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return shards
    left, most = torch.cuda.mem_get_info(device)[0], room("cuda")
    if 2 * sum(shard.nbytes for shard in shards) > (left if most is None else min(left, most)):
        return shards
    return [as_tensor(shard).to(device) for shard in shards]


def index_run(
    index: Index,
    vectors: Tensor,
    query_rows: Int32,
    k: int,
    collection: str,
    *,
    documents: Int64 | None = None,
    name: Callable[[int], str] = "query row {}".format,
    progress: Tick = silent,
) -> Run:
    """The run of queries over an index. Lists may be shorter than ``k``; a warning says how many are.

    Parameters
    ----------
    vectors : [Q, dim], rounded to the passages' dtype first.
    query_rows : [Q] rows of the queries in the collection.
    documents : [D + 1] where the chunks of each document begin among the passages of the index: the run is of
        documents then, each with the score of the best of its chunks that were found (MaxP).
    name : what to call a query row in a message.
    progress : called with the queries done and all of them.

    Raises
    ------
    SettingsError, InputError, ArtifactError, NumericError
        See :meth:`hardneg.search.exact.ExactIndex.search`.
    """
    queries = vectors.to(index.dtype)
    if len(queries):
        check_norms(vector_norms(queries), lambda i: name(int(query_rows[i])))

    def search(some: Tensor, hits: int) -> tuple[Tensor, Tensor]:
        # deeper searches have few queries: their progress is not reported
        return index.search(some, hits, progress=progress if len(some) == len(queries) else silent)

    unit: Unit = "passage" if documents is None else "document"
    if documents is None:
        scores, rows = _arrays(search(queries, k))
        found = rows >= 0
    else:
        assert documents[-1] == len(index), "the chunks are those that were embedded"
        scores, rows, found = search_documents(search, queries, k, documents, whole=index.nested)
    warn_if_short(lengths := found.sum(axis=1), found.shape[1])
    flat = (rows.reshape(-1), scores.reshape(-1)) if found.all() else (rows[found], scores[found])
    return Run(np.asarray(query_rows, np.int32), offsets_of(lengths), *flat, unit, collection)


def warn_if_short(lengths: NDArray[np.integer], k: int) -> None:
    """Warn how many lists have fewer than ``k`` hits; ``lengths`` [Q] are the numbers of hits."""
    if short := int((lengths < k).sum()):
        log.warning(
            "%s of %s queries found fewer than %d passages (at least %d): raise the probes or ef of the index",
            f"{short:,}",
            f"{len(lengths):,}",
            k,
            lengths.min(),
        )


def dot_products(a: NDArray[Any], b: NDArray[Any]) -> Float32:
    """The score of each pair of stored vectors [n, dim], bit for bit as a search gives it."""
    return tree_sum(as_tensor(a).double() * as_tensor(b).double()).float().numpy()


def search_documents(
    search: Search, queries: Tensor, k: int, documents: Int64, *, whole: bool
) -> tuple[Float32, Int32, NDArray[np.bool_]]:
    """Scores and rows [Q, k] of the best documents, and whether there is one [Q, k] bool.

    A document has the score of its best chunk (MaxP), which is the first of its chunks in a ranked list. So the
    first k documents met in the list are the best, ties included: chunks of equal score rank by row, and so by
    document. Among ``(k - 1) * c + 1`` chunks there are k documents, where c is the most chunks of one.

    Parameters
    ----------
    search : (vectors [Q, dim], k) -> scores and rows [Q, k] of the best chunks; row -1 where there are fewer.
    documents : [D + 1] where the chunks of each document begin.
    whole : whether a shorter list is always the beginning of a longer one. Then 2k chunks are tried first. Queries
        with too few documents are searched again as deep as is certain to do, or in steps where such lists would
        take much memory. For an approximate index it need not be.
    """
    k = check_request(len(queries), len(documents) - 1, k)
    owner = np.append(owners(documents), -1).astype(np.int32)  # no chunk, no document
    enough = min((k - 1) * int(spans(documents).max()) + 1, int(documents[-1]))
    depth = min(2 * k, enough) if whole else enough
    scores, rows, found = first_documents(*_arrays(search(queries, depth)), owner, k)
    while depth < enough and len(short := np.flatnonzero(found < k)):
        depth = enough if len(short) * enough <= CHEAP else min(4 * depth, enough)
        again = _arrays(search(queries[torch.from_numpy(short)], depth))
        scores[short], rows[short], found[short] = first_documents(*again, owner, k)
    return scores, rows, (np.arange(k) < found[:, None]) & (rows >= 0)


def _arrays(hits: tuple[Tensor, Tensor]) -> tuple[Float32, Int32]:
    """Turn scores and rows, which are tensors on any device, into arrays."""
    scores, rows = hits
    return scores.cpu().numpy(), rows.cpu().numpy()


def first_documents(
    scores: Float32, chunks: Int32, owner: Int32, k: int
) -> tuple[Float32, Int32, NDArray[np.int64]]:
    """Scores and rows [Q, k] of the first distinct documents of ranked chunks [Q, n], and how many there are [Q].

    Parameters
    ----------
    owner : the document of each chunk.
    k : n at most; where fewer documents are found, the entries after them have no meaning.
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
    """The positions [Q, k] of the first ``k`` distinct values of each list [Q, n], and how many there are [Q]."""
    n = values.shape[1]
    keys = values.astype(np.int64) * n + np.arange(n)  # one sort brings equal values together, the first ahead
    keys.sort(axis=1)
    sorted_values, place = np.divmod(keys, n)
    place[:, 1:][sorted_values[:, 1:] == sorted_values[:, :-1]] = n
    found = np.minimum((place < n).sum(axis=1), k)
    place.sort(axis=1)
    return np.minimum(place[:, :k], n - 1), found

"""From query vectors to runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardneg.memory import room
from hardneg.progress import Tick, silent
from hardneg.records import Int32, Run, Unit, offsets_of
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
    unit: Unit = "passage",
    name: Callable[[int], str] = "query row {}".format,
    progress: Tick = silent,
) -> Run:
    """Search stored passages exactly.

    Parameters
    ----------
    query_vectors : [Q, dim], rounded to the passages' dtype first.
    query_rows : [Q] rows of the queries in the collection.
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
    scores, rows = index.search(queries, k, progress=progress)
    offsets = offsets_of(np.full(len(queries), rows.shape[1]))
    flat = rows.cpu().numpy().reshape(-1), scores.cpu().numpy().reshape(-1)
    return Run(np.asarray(query_rows, np.int32), offsets, *flat, unit, collection_digest)

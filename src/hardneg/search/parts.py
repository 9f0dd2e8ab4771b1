"""Exact search by the processes of a group: each searches every query in its part of the passages.

The part of a process is the shards that it encodes. A score depends on its two vectors alone
(:mod:`hardneg.search.exact`), and hits rank by one number, made of score and row. So the best hits of all parts'
lists are, bit for bit, those of one process over all passages. No process reads, or holds, more than its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from hardneg.process.distributed import apart, by_leader, collect, member, together
from hardneg.process.progress import Tick, silent
from hardneg.records import Int32
from hardneg.search.counting import count_above
from hardneg.search.embedding_store import Embeddings, Part
from hardneg.search.exact import ExactIndex
from hardneg.search.retrieve import Index, OverEmbeddings, dot_products, on_device
from hardneg.search.runs import check_request
from hardneg.search.topk_selection import from_keys, rank_keys

NOTHING = torch.iinfo(torch.int64).min  # stands for a missing hit: below the key of any hit
AT_ONCE = 1 << 23  # hits of a process that are sent at once: 64 MiB
LEAST_QUERIES = 1024  # queries of a block, at least; each block passes over the passages once more


@dataclass(frozen=True)
class Place:
    """The passages to search and where they lie, in a form that one process can send to another.

    Attributes
    ----------
    path : the embedding store.
    rows : [n] of the passages that are searched, ascending; None: all.
    device : the kind of device; each process searches on its own device of this kind.
    resident : keep the vectors there, if there is room.
    """

    path: Path
    rows: Int32 | None
    device: str
    resident: bool

    def open(self) -> PartIndex:
        """The index of this process over its part."""
        part = Part.open(self.path, *member())
        device = torch.device(self.device, torch.cuda.current_device()) if self.device == "cuda" else "cpu"
        return PartIndex(part if self.rows is None else part.among(self.rows), device, resident=self.resident)


class PartIndex:
    """Exact search of the part of one process; its hits are numbers that compare with those of other parts.

    Parameters
    ----------
    part : it may be empty.
    """

    def __init__(self, part: Part, device: str | torch.device = "cpu", *, resident: bool = False) -> None:
        self.rows = torch.from_numpy(part.rows)
        shards = on_device(part.shards, device) if resident else part.shards
        self.exact = ExactIndex(shards, device=device, max_norm=part.max_norm) if len(part.rows) else None

    def keys(self, queries: Tensor, k: int, progress: Tick) -> Tensor:
        """Keys [Q, k] int64 of the best hits (:func:`~hardneg.search.topk_selection.rank_keys`), best first.

        ``NOTHING`` stands where there are fewer hits.
        """
        keys = torch.full((len(queries), k), NOTHING)
        if self.exact is not None:
            scores, rows = self.exact.search(queries, k, progress=progress)
            keys[:, : rows.shape[1]] = rank_keys(scores.cpu(), self.rows[rows.cpu().long()])
        return keys

    def above(self, queries: Tensor, which: Tensor, scores: Tensor, progress: Tick) -> Tensor:
        """How many passages of the part [n] score higher than ``scores`` [n], each for query ``which[i]``."""
        if self.exact is None or not len(which):
            return torch.zeros(len(which), dtype=torch.int64)
        rows = torch.zeros(len(which), dtype=torch.int32)
        return count_above(self.exact, queries, which, rows, scores=scores, progress=progress)[1].cpu()


class SharedIndex(OverEmbeddings):
    """Exact search of stored embeddings by all processes of the group, as an index.

    Either all processes ask it in step, and all get the hits. Or rank 0 asks it inside
    :func:`~hardneg.process.distributed.by_leader` while the others search their parts, and rank 0 gets the hits.

    Parameters
    ----------
    device : where the products run; other processes take theirs of the same kind.
    rows : [n] rows of the passages that are searched, which ascend; None: all. Hits count from 0 among them.
    """

    def __init__(
        self, embeddings: Embeddings, device: str | torch.device = "cpu", *, rows: Int32 | None = None
    ) -> None:
        super().__init__(embeddings, rows)
        self.place = Place(embeddings.path, rows, torch.device(device).type, resident=True)

    @cached_property
    def own(self) -> PartIndex:
        """The index over this process's part; it is kept when all processes ask in step."""
        return self.place.open()

    def search(self, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
        """See :class:`~hardneg.search.retrieve.Index`; scores and rows lie on the CPU."""
        k, queries = check_request(len(queries), len(self), k), queries.detach().cpu()
        if apart():
            return together(search_for_leader, self.place, queries, k, progress=progress)
        return search_part(self.own, queries, k, everywhere=True, progress=progress)

    def count_above(
        self, queries: Tensor, which: Tensor, rows: Tensor, *, progress: Tick = silent
    ) -> tuple[Tensor, Tensor]:
        """Scores and counts as :func:`~hardneg.search.counting.count_above` gives them, over all parts."""
        stored = queries.to(self.dtype)
        passages = self.embeddings.rows(rows.numpy())
        scores = torch.from_numpy(dot_products(stored[which].numpy(), passages))
        return scores, together(count_in_parts, self.place, stored, which, scores, progress=progress)


def search_in_step(index: Index, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The hits of a search, for all processes that call this in step; without parts, rank 0 searches for all."""
    return index.search(queries, k) if isinstance(index, SharedIndex) else by_leader(index.search, queries, k)


def search_for_leader(place: Place, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
    """Search the part of this process; rank 0 gets the hits of all, the others nothing."""
    return search_part(place.open(), queries, k, everywhere=False, progress=progress)


def search_part(
    own: PartIndex, queries: Tensor, k: int, *, everywhere: bool, progress: Tick
) -> tuple[Tensor, Tensor]:
    """Scores [Q, k] float32 and rows [Q, k] int32 of the best hits of all parts, from this process's ``own``.

    Parameters
    ----------
    everywhere : whether all processes get the hits, or rank 0 alone.
    """
    kept = len(queries) if everywhere or member()[0] == 0 else 0
    scores, rows = torch.empty(kept, k), torch.empty(kept, k, dtype=torch.int32)
    for block in blocks_of(len(queries), k):

        def tick(done: int, total: int, first: int = block.start) -> None:
            progress(first + done, len(queries))

        found = collect(own.keys(queries[block], k, tick), everywhere=everywhere)
        if found:
            scores[block], rows[block] = from_keys(torch.cat(found, dim=1).topk(k).values)
    return scores, rows


def blocks_of(queries: int, k: int) -> Iterator[slice]:
    """The queries in blocks whose hits are sent at once, the same on all processes."""
    size = max(AT_ONCE // k, LEAST_QUERIES)
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def count_in_parts(
    place: Place, queries: Tensor, which: Tensor, scores: Tensor, *, progress: Tick = silent
) -> Tensor:
    """How many passages of all parts [n] score higher than ``scores`` [n]; only rank 0 gets the counts."""
    found = collect(place.open().above(queries, which, scores, progress), everywhere=False)
    return torch.stack(found).sum(0) if found else torch.zeros(0, dtype=torch.int64)

"""Exact search: the best passages of every query, the same bits on every machine.

A stored vector *is* the vector. A score is the float64 dot product of two stored vectors, added by one fixed tree
over the dimension and rounded to float32; hits rank by score descending, then row ascending, also at the cut.
Matrix products, whose bits change with their shapes, only propose: a passage is dropped once k others are certain
to beat it (by gamma_n of Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1), and what is left
is scored exactly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hardneg.errors import ArtifactError, NumericError
from hardneg.process.memory import require, room, spare
from hardneg.process.progress import Tick, silent
from hardneg.search.codes import Codes, Coding
from hardneg.search.pairs import Pairs
from hardneg.search.proposals import FLOAT32, SAFE, SLACK, Precision, Product, choose, loss, most_lost
from hardneg.search.runs import HIT, check_request
from hardneg.search.topk_selection import Candidates, TooManyCandidates
from hardneg.search.vectors import Vectors, as_tensor, check_norms, vector_norms

TILE = {"cpu": 1024, "cuda": 8192}  # queries of one pass over the passages
CHUNK = {"cpu": 16384, "cuda": 65536}  # passages of one matrix product
SCORES = 1 << 22  # of one float32 product on the CPU: with more, which leave the cache, it takes a fifth longer
SLICE = {"cpu": 2048, "cuda": 65536}  # passages converted at a time: they stay in the processor's cache
PAIRS = {"cpu": 512, "cuda": 1 << 17}  # (query, passage) pairs scored at a time
REPAID = 200  # measuring the rounding of so many passages costs as much as it saves one query in candidates
CANDIDATE = 160_000  # multiplications for which bfloat16 saves the time of scoring a passage (AVX-512 BF16)
HELD = 96  # bytes that selecting takes for each passage held of a query, temporaries included
LARGE = 1 << 28  # bytes of a tile's buffers from which on it pays to look how much memory is free
FEW = 32  # queries of a tile, at least, where memory has no limit
LARGEST = 2.0**127  # scores stay below float32's largest number


class ExactIndex:
    """Passages to search, whole or in shards of consecutive rows, on disk, in memory or on a device.

    Parameters
    ----------
    passages : [n, dim] float16 or float32: an array, memory-mapped or not, a tensor, or a sequence of such shards.
    tile, chunk : queries and passages of one matrix product; they change the speed, never a result. By default
        they are as large as is of use, or as the process's memory limit and the free memory allow.
    device : where the products run; passages that lie elsewhere are copied there chunk by chunk.
    precision : the precision of the products that propose; no result depends on it. "auto" takes the fastest:
        "bfloat16" only where hardware multiplies it (AMX, AVX-512 BF16; CUDA from Ampere on), and "float16"
        instead for float16 vectors on CUDA; "int8" for few queries on processors that multiply bytes, and for
        fewer where numba is installed, once the searches repay keeping all passages as bytes, too.
    max_norm : the largest norm of a passage, where it is known; otherwise the passages are read once for it.

    Raises
    ------
    NumericError
        A passage vector holds NaN or Inf, or is zero.
    """

    def __init__(
        self,
        passages: Vectors | Sequence[Vectors],
        *,
        tile: int | None = None,
        chunk: int | None = None,
        device: str | torch.device = "cpu",
        precision: Precision = "auto",
        max_norm: float | None = None,
    ) -> None:
        shards = [passages] if isinstance(passages, Tensor | np.ndarray) else passages
        self.shards = [as_tensor(shard) for shard in shards]
        self.device, self.precision = torch.device(device), precision
        kind = self.device.type
        self.given_tile, self.given_chunk = tile, chunk
        self.tile, self.chunk = tile or TILE[kind], chunk or CHUNK[kind]
        self.slice, self.pairs = SLICE[kind], PAIRS[kind]
        self.starts = [0]
        for shard in self.shards:
            self.starts.append(self.starts[-1] + len(shard))
        self._starts = torch.tensor(self.starts, dtype=torch.int32, device=self.device)
        self.max_norm = max_norm if max_norm is not None else self._largest_norm()
        self.coding = Coding(self.shards, self.max_norm, self.device)
        self.coarse = False  # whether scores lie too close together for a product that rounds them

    def __len__(self) -> int:
        return self.starts[-1]

    def search(self, queries: Tensor, k: int, *, progress: Tick = silent) -> tuple[Tensor, Tensor]:
        """The best passages of every query.

        Parameters
        ----------
        queries : [Q, dim], rounded to the passages' dtype first.
        k : how many; all passages when there are fewer.
        progress : called with the queries done and all of them, tile by tile.

        Returns
        -------
        scores [Q, min(k, n)] float32, rows [Q, min(k, n)] int32, on the index's device.

        Raises
        ------
        SettingsError, InputError, ArtifactError, NumericError
            k is below 1; no queries or passages; another dimension; a query vector is not finite or zero.
        """
        k = check_request(len(queries), len(self), k)
        stored = self.stored(queries)
        product = self._product(stored, k)
        max_loss = self._loss_bound(len(stored)) if product.is_rounding else 0.0
        codes = self._codes(product, len(stored), k)
        held = codes.capacity(k) if codes else product.capacity(k, len(self))
        tile = self.given_tile or self.fitting_tile(min(self.tile, len(stored)), held, hits=len(stored) * k)
        scores = torch.empty(len(stored), k, device=self.device)
        rows = torch.empty(len(stored), k, dtype=torch.int32, device=self.device)
        for start in range(0, len(stored), tile):
            place = slice(start, start + tile)
            scores[place], rows[place] = self._search_tile(stored[place], k, product, max_loss, codes)
            progress(min(start + tile, len(stored)), len(stored))
        return scores, rows

    def fitting_tile(self, tile: int, held: int, scored: int | None = None, *, hits: int = 0) -> int:
        """The number of queries, at most ``tile``, whose buffers fit into memory with ``held`` candidates each.

        At most ``scored`` pairs of a query are scored; None: the candidates. Without a limit, large buffers on the
        CPU take what is to spare, but have room for a few queries. Under a limit, the ``hits`` of all queries have
        room beside the buffers, and CUDA's parts, in which passages are converted and pairs scored, become smaller
        where they would take more than half of it.
        """
        kind, dim, scored = self.device.type, self.shards[0].shape[1], held if scored is None else scored
        self.slice, self.pairs = SLICE[kind], PAIRS[kind]
        each = 9 * min(self.chunk, len(self)) + HELD * held
        left = room(kind)
        if left is None and (kind != "cpu" or tile * each <= LARGE):
            return tile

        def fixed(queries: int) -> int:
            return (8 * min(self.slice, len(self)) + 32 * min(self.pairs, queries * scored)) * dim

        if left is None:
            return min(tile, max(FEW, (spare() - fixed(tile)) // each))
        left -= HIT * hits
        while self.pairs > PAIRS["cpu"] and fixed(tile) > left // 2:
            self.slice, self.pairs = max(self.slice // 2, SLICE["cpu"]), self.pairs // 2
        require(HIT * hits + fixed(1) + each, "a search", kind)
        few = (left - fixed(0)) // (each + 32 * scored * dim)  # whose pairs are fewer than fit into one part
        return min(tile, max((left - fixed(tile)) // each, few, 1))

    def _largest_norm(self) -> float:
        largest = 0.0
        for start, part in self._chunks():
            norms = vector_norms(part.to(self.device))
            check_norms(norms, lambda row, start=start: f"passage row {start + row}")  # type: ignore[misc]
            largest = max(largest, float(norms.max()))
        return largest

    def stored(self, queries: Tensor) -> Tensor:
        """The queries [Q, dim] in the passages' dtype, on the index's device; refused as :meth:`search` says."""
        dim = self.shards[0].shape[1]
        if queries.shape[1] != dim:
            what = f"queries have dimension {queries.shape[1]}, passages {dim}"
            raise ArtifactError("OTHER_DIMENSION", what, "encode both with the same model")
        stored = queries.detach().to(self.device, self.shards[0].dtype)
        norms = vector_norms(stored)
        check_norms(norms, lambda row: f"query {row}")
        if (largest := float(norms.max()) * self.max_norm) >= LARGEST:
            raise NumericError("SCORE_OVERFLOW", f"scores reach {largest:.3g}", "scale the vectors down")
        return stored

    def _product(self, queries: Tensor, k: int) -> Product:
        norms, together = vector_norms(queries) * SLACK, min(self.given_tile or self.tile, len(queries))
        largest = max(float(norms.max()), self.max_norm)
        precision = "float32" if self.precision == "int8" else self.precision
        return choose(precision, queries, together, passages=len(self), k=k, largest=largest)

    def _codes(self, product: Product, queries: int, k: int) -> Codes | None:
        """The passages as bytes where these shall propose hits for so many ``queries``; else None."""
        if self.precision == "int8" and self.max_norm < SAFE:
            return self.coding.codes()
        searchable = self.precision == "auto" and product.scores == torch.float32 and self.device.type == "cpu"
        return self.coding.repaid(queries, k) if searchable else None

    def _search_tile(
        self, queries: Tensor, k: int, product: Product, max_loss: float, codes: Codes | None
    ) -> tuple[Tensor, Tensor]:
        pairs = Pairs(self, queries)
        if codes and (found := self._search_coded(pairs, queries, k, codes)):
            return found
        if product.rounds_scores and self.precision == "auto":
            if not self.coarse and (found := self._search_rounded(pairs, queries, k, product, max_loss)):
                return found
            product, max_loss = FLOAT32, 0.0
        margin = product.margin(queries, pairs.norms, self.max_norm, max_loss).to(product.scores)
        held = product.capacity(k, len(self))
        with product.leave():
            return Candidates(pairs, margin, k, held).best_of(self.products(queries, product))

    def _search_rounded(
        self, pairs: Pairs, queries: Tensor, k: int, product: Product, max_loss: float
    ) -> tuple[Tensor, Tensor] | None:
        """The hits of one tile by a product that rounds its scores; None where that does not tell passages apart.

        Where scores lie close together, the candidates that its wide margin lets through take more time than it
        saves. Then the index goes on in float32.
        """
        margin = product.margin(queries, pairs.norms, self.max_norm, max_loss).to(product.scores)
        held, repaid = product.capacity(k, len(self)), k + len(self) * queries.shape[1] // CANDIDATE
        if room(self.device.type) is None:  # some queries may have more than the mean
            held = min(max(held, min(2 * held, 2 * repaid)), len(self))
        candidates = Candidates(pairs, margin, k, held, settles=False)
        with contextlib.suppress(TooManyCandidates), product.leave():
            found = candidates.best_of(self.products(queries, product))
            self.coarse = float(candidates.count.double().mean()) > repaid
            return found
        self.coarse = True
        return None

    def _search_coded(self, pairs: Pairs, queries: Tensor, k: int, codes: Codes) -> tuple[Tensor, Tensor] | None:
        """The hits of one tile by way of codes; None where codes do not tell the passages apart."""
        if coded := codes.of(queries, pairs.norms):
            candidates = Candidates(pairs, coded.margin, k, codes.capacity(k), settles=False)
            with contextlib.suppress(TooManyCandidates):
                return candidates.best_of(codes.products(coded, self.given_chunk))
        self.coding.crowd()
        return None

    def _loss_bound(self, queries: int) -> float:
        """An upper bound of the norm of what rounding to bfloat16 takes from any passage.

        The bound is measured if there are enough ``queries`` to repay that; else it follows from the largest norm.
        """
        return (
            self.max_loss if queries * REPAID >= len(self) else most_lost(self.max_norm, self.shards[0].shape[1])
        )

    @cached_property
    def max_loss(self) -> float:
        """The largest norm of what rounding to bfloat16 takes from a passage; all passages are read for it."""
        many = SLICE["cpu" if room(self.device.type) is not None else self.device.type]  # few under a limit
        parts = (part.to(self.device) for _, chunk in self._chunks() for part in chunk.split(many))
        return max(float(loss(part, torch.bfloat16).max()) for part in parts)

    def _chunks(self, width: int | None = None) -> Iterator[tuple[int, Tensor]]:
        width = width or self.chunk
        for shard, first in zip(self.shards, self.starts, strict=False):
            for start in range(0, len(shard), width):
                yield first + start, shard[start : start + width]

    def _width(self, queries: int, product: Product) -> int:
        """The passages of one product with so many ``queries``: the scores stay in the processor's cache."""
        if self.given_chunk or self.device.type != "cpu" or product.is_rounding:
            return self.chunk
        return min(self.chunk, max(1, SCORES // queries // self.slice) * self.slice)

    def products(self, queries: Tensor, product: Product) -> Iterator[tuple[int, Tensor]]:
        """Yield the first passage and the scores [Q, chunk] of each chunk; the next one overwrites the buffer."""
        left = product.operand(queries)
        vectors = left.new_empty(min(self.slice, len(self)), left.shape[1])
        width = self._width(len(left), product)
        buffer = left.new_empty(len(left) * min(width, len(self)), dtype=product.scores)
        for start, chunk in self._chunks(width):
            scores = buffer[: len(left) * len(chunk)].view(len(left), len(chunk))
            if product.takes(chunk, left.device):
                product.multiply(left, chunk, scores)
            else:
                for i in range(0, len(chunk), self.slice):
                    part = chunk[i : i + self.slice]
                    converted = product.operand(part, vectors[: len(part)])
                    product.multiply(left, converted, scores[:, i : i + len(part)])
            yield start, scores

    def vectors(self, rows: Tensor) -> Tensor:
        """The stored vectors [n, dim] of passage ``rows`` [n], on the index's device."""
        if len(self.shards) == 1:
            return self.shards[0].index_select(0, rows.to(self.shards[0].device)).to(self.device)
        found = torch.empty(len(rows), self.shards[0].shape[1], dtype=self.shards[0].dtype, device=self.device)
        ascending, order = rows.sort()
        bounds = torch.searchsorted(ascending, self._starts).tolist()
        for shard, first, begin, end in zip(self.shards, self.starts, bounds, bounds[1:], strict=False):
            if begin < end:
                place = (ascending[begin:end] - first).to(shard.device)
                found[order[begin:end]] = shard.index_select(0, place).to(self.device)
        return found

"""Exact scores of pairs of stored vectors: float64 dot products, added by one fixed tree, rounded to float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hardneg.search.proposals import SLACK
from hardneg.search.topk_selection import positions
from hardneg.search.vectors import vector_norms

TOGETHER = 32  # pairs of a query from which on one product of a matrix and a vector scores them


class Stored(Protocol):
    """An index that gives the stored vectors of its passages."""

    device: torch.device
    max_norm: float  # at least the norm of any passage
    pairs: int  # pairs scored at a time

    def vectors(self, rows: Tensor) -> Tensor:
        """Stored vectors [n, dim] of passage ``rows`` [n]."""
        ...


class Pairs:
    """Exact scores of (query, passage) pairs for the queries of one tile [Q, dim] in stored precision."""

    def __init__(self, index: Stored, queries: Tensor) -> None:
        # Products of two stored numbers are exact in this type: 11 + 11 bits of 24, or 24 + 24 of 53.
        self.exact = torch.float32 if queries.dtype == torch.float16 else torch.float64
        self.index, self.queries = index, queries.to(self.exact)
        self.norms = vector_norms(queries) * SLACK
        # How far two float64 sums of the same products, added in any order, can be apart.
        self.doubt = self.norms * index.max_norm * ((queries.shape[1] + 16) * 2.0**-53)

    def scores(self, ids: Tensor, sums: Tensor, rows: Tensor) -> Tensor:
        """Scores [q, w] float32 of queries ``ids`` [q] and passages ``rows`` [q, w].

        ``sums`` [q, w] are their float64 dot products, added in any order. Nearly all of them certainly round to
        the same float32 as the sum of the fixed tree; only the others are added by the tree.
        """
        doubt = self.doubt[ids, None]
        scores = (sums - doubt).float()
        which, place = positions(scores != (sums + doubt).float())
        scores.view(-1)[place] = self._tree_sums(ids[which], rows.view(-1)[place]).float()
        return scores + 0.0  # makes 0.0 of -0.0

    def sums(self, which: Tensor, rows: Tensor) -> Tensor:
        """Float64 dot products [n] of query ``which[i]`` (ascending) and passage ``rows[i]``, in any order."""
        if self.index.device.type == "cpu" and len(rows) >= TOGETHER * len(self.queries):
            return self._sums_by_query(which, rows)
        return self._dots(which, rows, lambda products: products.sum(1, dtype=torch.float64))

    def _sums_by_query(self, which: Tensor, rows: Tensor) -> Tensor:
        """The sums that :meth:`sums` gives, computed query by query.

        So each query's passages are read, converted and multiplied while they are in the processor's cache.
        """
        sums = torch.empty(len(rows), dtype=torch.float64)
        bounds = torch.searchsorted(which, torch.arange(len(self.queries) + 1)).tolist()
        for query, begin, end in zip(self.queries, bounds, bounds[1:], strict=False):
            for start in range(begin, end, self.index.pairs):
                block = slice(start, min(start + self.index.pairs, end))
                torch.mv(self.index.vectors(rows[block]).double(), query.double(), out=sums[block])
        return sums

    def _tree_sums(self, which: Tensor, rows: Tensor) -> Tensor:
        return self._dots(which, rows, lambda products: tree_sum(products.double()))

    def _dots(self, which: Tensor, rows: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        """The sums [n] float64 that ``add`` makes of products [m, dim].

        Passages are read in the order of their rows, which is the order on the disk.
        """
        rows, order = rows.sort()
        which = which[order]
        sums = self.queries.new_empty(len(rows), dtype=torch.float64)
        for start in range(0, len(rows), self.index.pairs):
            block = slice(start, start + self.index.pairs)
            products = self.index.vectors(rows[block]).to(self.exact)
            sums[block] = add(products.mul_(self.queries.index_select(0, which[block])))
        return torch.empty_like(sums).index_copy_(0, order, sums)


def tree_sum(terms: Tensor) -> Tensor:
    """Sums [n] of the rows of ``terms`` [n, dim] float64, which it overwrites.

    The order is fixed: padded with zeros to a power of two, the upper half is added to the lower, and so on.
    """
    width = terms.shape[1]
    while width > 1:
        half = 1 << ((width - 1).bit_length() - 1)
        terms[:, : width - half] += terms[:, half:width]
        width = half
    return terms[:, 0]

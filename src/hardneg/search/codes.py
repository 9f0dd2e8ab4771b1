"""Passages with one byte a number: integer products propose where queries are few.

A search for few queries takes as long as reading the passages, and one byte a number is read four times as fast as
float32. The codes d' of a passage d and q' of a query q hold integers from -127 to 127, number by number::

    (d - center) * scale = d' + e_d          q / scale = unit * (q' + e_q)

The product of the left sides is q.d - q.center, which ranks passages as q.d does. In units of the query it is
``q'.d' + e_q.d' + (q' + e_q).e_d``. So q'.d', which integers compute without an error, is off by at most
``|e_q| |d'| + |q' + e_q| |e_d|`` (Cauchy-Schwarz); the largest |d'| and |e_d| of all passages are known. Passages
within twice the error of the k-th best are scored exactly. A second code holds what the first code leaves of the
query, and removes most of |e_q|.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hardneg.errors import SettingsError
from hardneg.process.memory import spare
from hardneg.search.byte_products import can_multiply, most_queries, multiply
from hardneg.search.proposals import DENSE, SAFE, SLACK, error_bound

TOP = 127
FINER = 2 * TOP  # steps of a query's second code in one step of its first code
LEAST_REACH = 2.0**-100
WIDEST = 2.0**100  # margins above this say nothing, and might not fit into float32
HELD = 32  # candidates held of a query, in units of k
PATIENCE = 3  # codes are given up after so many searches with more candidates than are held,
RARE = 100  # plus one for every so many searches in all
BLOCK = 1024  # passages converted at a time: they stay in the processor's cache
SCORES = 1 << 21  # scores of a chunk, at most; selecting has a fixed cost for each chunk
REPAID = 12  # after so many searches, codes made at first would have saved the time that making them takes
MANY = 1 << 24  # numbers (passages times dimension) below which codes do not pay
MOST_DIM = 1 << 16  # sums of products stay below 2^31
ALIGNED = 4  # dimensions are filled up to a multiple: torch gets products of single numbers wrong


@dataclass(frozen=True)
class Coded:
    """Queries as codes, with the margin of error of their products.

    ``codes`` [Q or 2 Q, dim] int8 are the first codes, then the second ones. ``margin`` [Q] float32: a passage
    whose product is that far below the k-th best is not among the k best.
    """

    codes: Tensor
    margin: Tensor


class Codes:
    """All passages [n, dim] of some shards as codes, in memory.

    Parameters
    ----------
    shards : float16 or float32, on the CPU, without NaN or Inf.
    max_norm : at least the norm of any passage.
    """

    def __init__(self, shards: Sequence[Tensor], max_norm: float) -> None:
        blocks = [block for shard in shards for block in shard.split(BLOCK) if len(block)]
        low = torch.stack([block.amin(0) for block in blocks]).amin(0).float()
        high = torch.stack([block.amax(0) for block in blocks]).amax(0).float()
        self.center = low / 2 + high / 2  # rounded: one end may be farther than the other
        self.scale = TOP / torch.maximum(high - self.center, self.center - low).clamp_(min=LEAST_REACH)
        self.max_norm, self.dim = max_norm, len(low)
        padded = -(-self.dim // ALIGNED) * ALIGNED
        self.codes = torch.zeros(sum(map(len, blocks)), padded, dtype=torch.int8)
        sizes, losses = [], []
        for block, codes in zip(blocks, self.codes.split(list(map(len, blocks))), strict=True):
            scaled = block.float().sub(self.center).mul_(self.scale)
            rounded = scaled.round().clamp_(-TOP, TOP)  # what is lost is measured
            codes[:, : self.dim] = rounded
            sizes.append(torch.linalg.vector_norm(rounded, dim=1).amax())
            losses.append(torch.linalg.vector_norm(scaled.sub_(rounded), dim=1).amax())
        self.largest = float(max(sizes)) * SLACK
        # Numbers below 128 were rounded twice in float32, and may have vanished where they were too small for it.
        self.loss = float(max(losses)) * SLACK + self.dim**0.5 * 2.0**-14

    def capacity(self, k: int) -> int:
        """The number of candidates of a query that are held: k, and those that a wide margin lets through."""
        return min(HELD * k + 64, len(self.codes))

    def of(self, queries: Tensor, norms: Tensor) -> Coded | None:
        """The codes of stored ``queries`` [Q, dim]; None where their margin is too wide to be of use.

        ``norms`` [Q] are upper bounds of the queries' norms.
        """
        scaled = queries.double() / self.scale.double()
        unit = scaled.abs().amax(1, keepdim=True) / TOP
        scaled /= unit
        first = scaled.round()
        left, second = scaled - first, torch.empty(0, self.dim)
        if len(queries) > 1:  # a lone query's second code takes longer than the candidates that it spares
            second = (left * FINER).round()
            left -= second / FINER
        codes = torch.zeros(len(first) + len(second), self.codes.shape[1], dtype=torch.int8)
        codes[:, : self.dim] = torch.cat([first, second])
        size = scaled.norm(dim=1)
        error = left.norm(dim=1) * self.largest + size * self.loss
        # float32 holds products and bounds: a few units of 2^-24 of the largest there can be.
        ranked = error_bound(self.dim, 2.0**-53, norms * self.max_norm) / unit[:, 0]
        margin = (2 * error + 2.0**-20 * size * self.largest + ranked) * SLACK
        return Coded(codes, margin.float()) if bool((margin < WIDEST).all()) else None

    def products(self, coded: Coded, chunk: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yield the first passage and the scores [Q, chunk] float32 of each chunk, in a buffer that is reused."""
        queries, rows = len(coded.margin), len(coded.codes)
        chunk = min(chunk or max(SCORES // queries, BLOCK), len(self.codes))
        sums, buffer = torch.empty(rows * chunk, dtype=torch.int32), torch.empty(queries * chunk)
        for start in range(0, len(self.codes), chunk):
            passages = self.codes[start : start + chunk]
            found = sums[: rows * len(passages)].view(rows, -1)
            scores = buffer[: queries * len(passages)].view(queries, -1)
            multiply(coded.codes, passages, found)
            scores.copy_(found[:queries])
            if rows > queries:
                scores.add_(found[queries:], alpha=1 / FINER)
            yield start, scores


class Coding:
    """The decision whether an index's passages are kept as codes, and when these are made.

    Parameters
    ----------
    shards, max_norm : of the passages.
    device : where they are searched.
    """

    def __init__(self, shards: Sequence[Tensor], max_norm: float, device: torch.device) -> None:
        self.shards, self.max_norm, self.device = shards, max_norm, device
        self.searches, self.crowded = 0, 0
        self.given_up = False
        self.made: Codes | None = None

    def codes(self) -> Codes:
        """The codes of all passages, which are made on the first call.

        Raises
        ------
        SettingsError : this machine does not multiply bytes without an error, or codes cannot hold these passages.
        """
        if self.made is None:
            if not self._can():
                what = "precision = 'int8': these passages cannot be searched in bytes here"
                raise SettingsError("BAD_SETTING", what, "use precision='auto'")
            self.made = Codes(self.shards, self.max_norm)
        return self.made

    def repaid(self, queries: int, k: int) -> Codes | None:
        """The codes, if a search for the ``k`` best of so many ``queries`` is faster with them; else None.

        Codes are made once the earlier searches would have saved, with codes, the time that making them takes.
        """
        n, dim = sum(map(len, self.shards)), self.shards[0].shape[1]
        if n * dim < MANY or n < DENSE * k or self.given_up or queries > self._most_queries:
            return None
        self.searches += 1
        needed = n * dim + 12 * SCORES  # two int32 and a float32 for each score
        if self.made is None and (self.searches < REPAID or not self._can() or needed > spare()):
            return None
        return self.codes()

    def crowd(self) -> None:
        """Count a search whose codes did not tell the passages apart; after a few, codes are given up."""
        self.crowded += 1
        if self.crowded >= PATIENCE + self.searches // RARE:
            self.given_up, self.made = True, None

    def _can(self) -> bool:
        fitting = self.max_norm < SAFE and self.shards[0].shape[1] <= MOST_DIM
        return fitting and self._most_queries > 0 and can_multiply()

    @cached_property
    def _most_queries(self) -> int:
        return most_queries(self.device, *(shard.device for shard in self.shards))

"""The selection half of exact search: passages that may be among the k best, found without sorting all scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

BITS = 5
BLOCK = 1 << BITS  # neighbouring scores that share one maximum
LAST = 2**31 - 1


class Scorer(Protocol):
    """Gives the exact scores of (query, passage) pairs."""

    def sums(self, which: Tensor, rows: Tensor) -> Tensor:
        """Float64 dot products [n] of query ``which[i]`` and passage ``rows[i]``, added in any order."""
        ...

    def scores(self, ids: Tensor, sums: Tensor, rows: Tensor) -> Tensor:
        """Scores [q, w] float32 of queries ``ids`` [q] and passages ``rows``, from any ``sums`` [q, w]."""
        ...


class TooManyCandidates(Exception):
    """More passages than can be held may be among the best, and approximate scores do not tell them apart."""


@dataclass(frozen=True)
class Found:
    """Proposals of all queries, one after another, as flat columns.

    ``which`` is the position of the query (ascending), ``rows`` the passage, ``values`` the approximate score.
    """

    which: Tensor  # [n] int64
    rows: Tensor  # [n] int32
    values: Tensor  # [n]

    def where(self, keep: Tensor) -> Found:
        """The proposals for which ``keep`` [n] holds."""
        return Found(self.which[keep], self.rows[keep], self.values[keep])


class Candidates:
    """For each query of a tile, the passages seen so far that may be among its k best.

    Parameters
    ----------
    scorer : gives exact scores.
    margin : [Q], in the dtype of the proposals: a passage this far below the k-th best proposal is out.
    k : hits wanted, at most as many as there are passages.
    capacity : proposals of a query that are held at most; more than k, or the number of all passages.
    settles : whether proposals that outgrow ``capacity`` are told apart by their exact scores, which needs
        proposals near the exact scores.

    Raises
    ------
    TooManyCandidates : more than ``capacity`` passages may be among the k best, and ``settles`` is false.
    """

    def __init__(self, scorer: Scorer, margin: Tensor, k: int, capacity: int, *, settles: bool = True) -> None:
        self.scorer, self.margin, self.k = scorer, margin, k
        self.capacity, self.settles = capacity, settles
        shape = (len(margin), capacity)
        self.values = margin.new_full(shape, -torch.inf)
        self.rows = torch.zeros(shape, dtype=torch.int32, device=margin.device)
        self.count = torch.zeros(len(margin), dtype=torch.int64, device=margin.device)
        self.floor = torch.full_like(margin, -torch.inf)
        self.stale = False  # whether the held proposals may give a higher floor

    def absorb(self, ids: Tensor, scores: Tensor, start: int) -> None:
        """Take in the approximate ``scores`` [len(ids), w] of passages ``start`` to ``start + w``."""
        blocks = in_blocks(scores)
        maxima = blocks.amax(2)
        if start == 0:
            self._raise_floor(ids, kth_largest(blocks, maxima, self.k))
        elif self.stale:
            self._follow(ids)
        found = above(self.floor[ids], blocks, maxima, start)
        crowded = self._crowded(ids, found)
        if crowded.any():
            self._compact(ids[crowded])
            found = found.where(found.values > self.floor[ids][found.which])
            crowded = self._crowded(ids, found)
        if crowded.any():
            if not self.settles:
                raise TooManyCandidates
            found = found.where(~crowded[found.which])
            self._split(ids[crowded], scores[crowded], start)
        self._append(ids, found)
        self.stale = 4 * len(found.which) > self.k * len(ids)  # much was new

    def best_of(self, proposals: Iterable[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
        """Exact scores [Q, k] float32 and rows [Q, k] int32, best first.

        ``proposals`` are the first passage and the approximate scores [Q, w] of one chunk after another.
        """
        everyone = torch.arange(len(self.count), device=self.count.device)
        for start, scores in proposals:
            self.absorb(everyone, scores, start)
        return self.best()

    def best(self) -> tuple[Tensor, Tensor]:
        """Exact scores [Q, k] float32 and rows [Q, k] int32 of what was taken in, best first."""
        everyone = torch.arange(len(self.count), device=self.count.device)
        if self.values.dtype != torch.float64:  # exact scores are costly
            self._compact(everyone)
        return self._ranked(everyone)

    def _crowded(self, ids: Tensor, found: Found) -> Tensor:
        news = torch.bincount(found.which, minlength=len(ids))
        return self.count[ids] + news > self.capacity

    def _split(self, ids: Tensor, scores: Tensor, start: int) -> None:
        """Take in more scores than can be held: there are many ties, or scores rise with the row."""
        width = scores.shape[1]
        if width <= self.capacity - self.k:
            self._settle(ids)  # leaves at most k, so the rest fits
            self.absorb(ids, scores, start)
            return
        blocks = in_blocks(scores)
        self._raise_floor(ids, kth_largest(blocks, blocks.amax(2), self.k))
        half = width // 2
        self.absorb(ids, scores[:, :half], start)
        self.absorb(ids, scores[:, half:], start + half)

    def _raise_floor(self, ids: Tensor, kth: Tensor) -> None:
        """Let the floor follow the k-th best value seen, ``kth`` [len(ids)]."""
        self.floor[ids] = torch.maximum(self.floor[ids], kth - self.margin[ids])

    def _append(self, ids: Tensor, found: Found) -> None:
        news = torch.bincount(found.which, minlength=len(ids))
        first = ids * self.capacity + self.count[ids] - (news.cumsum(0) - news)
        place = torch.arange(len(found.which), device=ids.device) + first[found.which]
        self.values.view(-1)[place] = found.values
        self.rows.view(-1)[place] = found.rows
        self.count[ids] += news

    def _take(self, ids: Tensor, floor: Tensor) -> Found:
        """Remove all proposals held for these queries, and return those above ``floor`` [len(ids)]."""
        width = int(self.count[ids].max())
        values, rows = self.values[ids, :width], self.rows[ids, :width]
        which, place = positions(values > floor[:, None])
        self.values[ids] = -torch.inf
        self.count[ids] = 0
        return Found(which, rows.view(-1)[place], values.view(-1)[place])

    def _follow(self, ids: Tensor) -> None:
        """Raise the floor to the k-th best proposal held, less the margin."""
        width = max(int(self.count[ids].max()), self.k)
        self._raise_floor(ids, self.values[ids, :width].topk(self.k, sorted=False).values.amin(1))

    def _compact(self, ids: Tensor) -> None:
        """Drop the proposals that are below the floor, after raising it."""
        self._follow(ids)
        self._append(ids, self._take(ids, self.floor[ids]))

    def _settle(self, ids: Tensor) -> None:
        """Keep only the k proposals of the best exact scores."""
        scores, rows = self._ranked(ids)
        self.values[ids] = -torch.inf
        self.values[ids, : scores.shape[1]] = scores.to(self.values.dtype)
        self.rows[ids, : scores.shape[1]] = rows
        self.count[ids] = self.count[ids].clamp(max=self.k)

    def _ranked(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and rows [q, at most k] of the best held proposals, by exact score; -inf where there are less."""
        width = int(self.count[ids].max())
        values, rows = self.values[ids, :width], self.rows[ids, :width]
        scores = self.scorer.scores(ids, self._sums(ids, values, rows), rows)
        return from_keys(rank_keys(scores, rows).topk(min(self.k, width)).values)

    def _sums(self, ids: Tensor, values: Tensor, rows: Tensor) -> Tensor:
        if values.dtype == torch.float64:
            return values
        which, place = positions(values > -torch.inf)
        sums = torch.full_like(values, -torch.inf, dtype=torch.float64)
        sums.view(-1)[place] = self.scorer.sums(ids[which], rows.view(-1)[place])
        return sums


# ---------------------------------------------------------------- selection


def in_blocks(scores: Tensor) -> Tensor:
    """Scores [q, w] as [q, W, BLOCK], filled up with -inf."""
    missing = -scores.shape[1] % BLOCK
    if missing:
        scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    return scores.reshape(len(scores), -1, BLOCK)


def kth_largest(blocks: Tensor, maxima: Tensor, k: int) -> Tensor:
    """A value [q] that at least k scores of each query reach, or -inf where there are fewer than k scores.

    It is the k-th largest maximum of a block where there are k blocks, which is found sooner than the k-th score.
    """
    values = maxima if maxima.shape[1] >= k else blocks.flatten(1)
    if values.shape[1] < k:
        return values.new_full((len(values),), -torch.inf)
    return values.topk(k, sorted=False).values.amin(1)


def above(floor: Tensor, blocks: Tensor, maxima: Tensor, start: int) -> Found:
    """The scores above their query's ``floor`` [q], as proposals; the first column is passage ``start``."""
    owner, place = positions(maxima > floor[:, None])
    values = blocks.flatten(0, 1).index_select(0, place)
    inner = torch.nonzero((values > floor[owner, None]).view(-1)).squeeze(1)
    which, hit = owner[inner >> BITS], place[inner >> BITS]
    rows = start + ((hit - which * maxima.shape[1]) << BITS) + (inner & (BLOCK - 1))
    return Found(which, rows.int(), values.view(-1)[inner])


def positions(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The row and the place in the flattened ``mask`` [n, m] of every true element, found without a division."""
    places = torch.nonzero(mask.view(-1)).squeeze(1)
    rows = torch.arange(len(mask), device=mask.device)
    return rows.repeat_interleave(mask.sum(1), output_size=len(places)), places


# ---------------------------------------------------------------- order


def rank_keys(scores: Tensor, rows: Tensor) -> Tensor:
    """Int64 keys that are larger for higher float32 scores, then for lower rows; no score is -0.0 or NaN."""
    bits = scores.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ LAST, bits).long()
    return (ordered << 32) | (LAST - rows.long())


def from_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The scores (float32) and rows (int32) of which :func:`rank_keys` made ``keys``."""
    ordered = (keys >> 32).int()
    bits = torch.where(ordered < 0, ordered ^ LAST, ordered)
    return bits.view(torch.float32), (LAST - (keys & 0xFFFFFFFF)).int()

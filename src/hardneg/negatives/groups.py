"""Drawing training groups: for each query one positive and N negatives of its pool.

Pure functions of the pool, the seed and the epoch: a resumed experiment or another worker draws alike, and
nothing is kept between steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.keyed_random import below, hash64, key, smallest
from hardneg.negatives.pool import NegativePool
from hardneg.records import Int32, Int64, spans, take_spans


@dataclass(frozen=True)
class Groups:
    """One training group a query: B queries, one positive and N negatives each."""

    query_rows: Int32  # [B]
    positive_rows: Int32  # [B]
    negative_rows: Int32  # [B, N]; a passage that stands twice in the pool can fill two columns
    sources: NDArray[np.uint8]  # [B, N] index into pool.SOURCES
    momentum: NDArray[np.bool_]  # [B, N]


def usable(pool: NegativePool, size: int = 1) -> Int64:
    """Positions of the queries that have a positive and, for a ``size`` above 0, a negative.

    The others are skipped and counted.
    """
    return np.flatnonzero((spans(pool.positive_offsets) > 0) & (spans(pool.offsets) >= min(size, 1)))


def epoch_order(query_rows: Int32, *, seed: int, episode: int, epoch: int) -> Int64:
    """A permutation of the training queries [Q], by the hash of their rows."""
    return np.argsort(hash64(key(seed, "epoch", episode, epoch), query_rows), kind="stable")


def draw_groups(
    pool: NegativePool,
    queries: NDArray[np.integer],
    epoch: int,
    *,
    size: int,
    seed: int,
    rotate: bool = True,
    fresh: bool = False,
) -> Groups:
    """One positive and ``size`` negatives for each of the ``queries`` (usable positions [B]).

    The entries of a query are shuffled once an episode; epoch t takes the window ``[t * size, (t + 1) *
    size)`` modulo their number, so that an entry returns only after all others (ANCE-Tele). With ``fresh``
    every epoch has its own shuffle and takes its beginning: a uniform draw at every visit (ANCE, STAR). Fewer
    entries than ``size`` are drawn with replacement. ``rotate`` goes through the positives epoch by epoch,
    from a random one; otherwise the first is taken.
    """
    index, offsets = take_spans(pool.offsets, queries)
    lengths = spans(offsets)
    assert (lengths >= min(size, 1)).all(), "queries without negatives are not usable"
    local = np.arange(len(index)) - np.repeat(offsets[:-1], lengths)
    rows = pool.query_rows[queries]
    shuffle = key(seed, "group/fresh", pool.episode, epoch) if fresh else key(seed, "group", pool.episode)
    order = smallest(hash64(shuffle, np.repeat(rows, lengths), local), offsets, lengths)

    column = np.arange(size)
    place = ((0 if fresh else epoch * size) + column) % lengths[:, None]
    words = hash64(key(seed, "group/small", pool.episode, epoch), rows[:, None], column)
    place = np.where(lengths[:, None] < size, below(words, lengths[:, None]), place)
    chosen = index[order[offsets[:-1, None] + place]]
    return Groups(
        query_rows=rows,
        positive_rows=_positive_rows(pool, queries, epoch, seed, rotate, 0 if fresh else pool.episode),
        negative_rows=pool.passage_rows[chosen],
        sources=pool.sources[chosen],
        momentum=pool.episodes[chosen] < pool.episode,
    )


def _positive_rows(
    pool: NegativePool, queries: NDArray[np.integer], epoch: int, seed: int, rotate: bool, episode: int
) -> Int32:
    """The positive of each query in this epoch [B]; a pool that is refreshed within an ``episode`` goes on."""
    first = pool.positive_offsets[queries]
    if not rotate:
        return pool.positive_rows[first]
    number = pool.positive_offsets[np.asarray(queries) + 1] - first
    assert (number > 0).all(), "queries without positives are not usable"
    start = below(hash64(key(seed, "group/positive", episode), pool.query_rows[queries]), number)
    return pool.positive_rows[first + (start + epoch) % number]

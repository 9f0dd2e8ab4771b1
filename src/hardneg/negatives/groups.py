"""Drawing training groups: for each query one positive and N negatives of its pool.

All functions are pure functions of the pool, the seed and the epoch. So a resumed experiment or another worker
draws the same groups, and no state is kept between steps.
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
    """Training groups: B queries, each with one positive and N negatives."""

    query_rows: Int32  # [B]
    positive_rows: Int32  # [B]
    negative_rows: Int32  # [B, N]; a passage that is twice in the pool can fill two columns
    sources: NDArray[np.uint8]  # [B, N] index into pool.SOURCES
    momentum: NDArray[np.bool_]  # [B, N]


def usable(pool: NegativePool, size: int = 1) -> Int64:
    """Positions of the queries that have a positive and, if ``size`` is above 0, a negative.

    Callers skip and count the other queries.
    """
    return np.flatnonzero((spans(pool.positive_offsets) > 0) & (spans(pool.offsets) >= min(size, 1)))


def epoch_order(query_rows: Int32, *, seed: int, episode: int, epoch: int) -> Int64:
    """A permutation of the training queries [Q]: positions, sorted by a keyed hash of their rows."""
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
    """Draw one positive and ``size`` negatives for each of the ``queries`` (usable positions [B]).

    The entries of a query are shuffled once an episode. Epoch t takes the window ``[t * size, (t + 1) * size)``
    modulo their number, so that an entry returns only after all others (ANCE-Tele). With ``fresh`` every epoch
    shuffles again and takes the first ``size``: a uniform draw at every visit (ANCE, STAR). If a query has fewer
    entries than ``size``, they are drawn with replacement. With ``rotate`` the positive changes from epoch to
    epoch, beginning with a random one; otherwise it is always the first.
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
    """The positive of each query in this epoch [B].

    The rotation depends on ``episode`` and not on the pool: a refresh within an episode does not restart it.
    """
    first = pool.positive_offsets[queries]
    if not rotate:
        return pool.positive_rows[first]
    number = pool.positive_offsets[np.asarray(queries) + 1] - first
    assert (number > 0).all(), "queries without positives are not usable"
    start = below(hash64(key(seed, "group/positive", episode), pool.query_rows[queries]), number)
    return pool.positive_rows[first + (start + epoch) % number]

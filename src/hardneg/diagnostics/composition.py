"""Composition of negatives: when training first met them, and how many of the new ones were near a positive.

Figures 5, 7, 9 and 10 of Sun et al., "Reduce Catastrophic Forgetting of Dense Retrieval Training with
Teleportation Negatives", EMNLP 2022.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.diagnostics.encounters import (
    BLOCK,
    DatedLists,
    Encounters,
    Lists,
    encounters,
    queries_of,
    sorted_keys,
)
from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.process.ahead import ahead
from hardneg.records import Int64, Positives

Float64 = NDArray[np.float64]

SORTED = 1 << 17  # entries sorted together
MASKED = 16  # up to so many lists, the sets of lists that share a passage are counted
OTHER = "other"  # the encounter of pool entries that none of the lists before the pool has
MOVING = ("query", "lookahead", "dynamic")  # sources that give other passages in each episode
ORDER = tuple(name for name in SOURCES if name not in MOVING) + MOVING  # within an episode


@dataclass(frozen=True)
class Composition:
    """Where the entries of each list were first met."""

    names: tuple[str, ...]  # [L] of the lists
    met: tuple[str, ...]  # [E] of the encounters, by time
    entries: Int64  # [L, E] entries of a list by their first encounter; repeats count
    carried: Int64  # [L] entries that momentum carried over from an older episode; 0 for a run

    def shares(self) -> Float64:
        """The share of each encounter in each list [L, E]; 0 for an empty list."""
        return self.entries / np.maximum(self.entries.sum(axis=1, keepdims=True), 1)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each list and encounter that has entries, for tables and charts."""
        shares = self.shares()
        return [
            {
                "list": self.names[i],
                "met": self.met[j],
                "entries": int(self.entries[i, j]),
                "share": float(shares[i, j]),
            }
            for i, j in zip(*np.nonzero(self.entries), strict=True)
        ]

    def __add__(self, other: Composition) -> Composition:
        """The composition of the queries of both, where the lists of a part of the queries are given at a time."""
        assert (self.names, self.met) == (other.names, other.met)
        entries, carried = self.entries + other.entries, self.carried + other.carried
        return Composition(self.names, self.met, entries, carried)


def composition(
    lists: Mapping[str, Lists],
    *,
    pools: Collection[str] = (),
    positives: Positives | None = None,
    block: int = SORTED,
) -> Composition:
    """Attribute every entry of every list to the list in which its query met the passage first.

    Parameters
    ----------
    lists : name -> candidates (ANCE-Tele, Figs. 5, 10) or pools (Fig. 9), in the order in which training met
        them: BM25, "episode 1 query", "episode 1 lookahead", "episode 1 pool", "episode 2 query", ...
    pools : names of the lists that are pools, whose entries were drawn from lists before them. A passage that
        first appears in a pool, because it was drawn at random for instance, was met as "other".
    positives : D+(q); an entry that is a positive of its query does not count. Entries with a positive's text do:
        give the lists that ``negatives.candidates`` makes where this matters.

    The lists must not be empty. They may belong to different queries; each query counts with the lists it has.
    """
    names = tuple(lists)
    known = 0 if positives is None else 1
    entries = _by_first([*([] if positives is None else [positives]), *lists.values()], block)[known:, known:]
    is_pool = np.array([name in pools for name in names], bool)
    columns = tuple(name for name in names if name not in pools)
    kept = entries[:, ~is_pool]
    if is_pool.any():
        columns, kept = (*columns, OTHER), np.column_stack([kept, entries[:, is_pool].sum(axis=1)])
    carried = [_carried(one) if name in pools else 0 for name, one in lists.items()]
    return Composition(names, columns, kept, np.array(carried, np.int64))


def composition_of_pools(pools: Mapping[str, NegativePool], *, block: int = BLOCK) -> Composition:
    """Attribute every entry of every pool to its first encounter, as far as pools tell (ANCE-Tele, Fig. 9).

    No runs are needed: an entry says which source drew it, and in which episode. A passage that an earlier episode
    mined but did not draw is not known to have been met then; give the runs to :func:`composition` to count it.
    Sources that do not change, such as BM25, are one encounter.

    Parameters
    ----------
    pools : name -> pool of an episode; at least one.
    """
    times = _Times.of(list(pools.values()))
    met = [DatedLists(pool, times.of_pool(pool)) for pool in pools.values()]
    counted = _count(met, len(times.names), block)
    columns = tuple(dict.fromkeys(times.names))
    entries = np.zeros((len(pools), len(columns)), np.int64)
    for name, column in zip(times.names, counted.T, strict=True):
        entries[:, columns.index(name)] += column
    carried = np.array([_carried(pool) for pool in pools.values()], np.int64)
    return Composition(tuple(pools), columns, entries, carried)


def _by_first(lists: Sequence[Lists], block: int) -> Int64:
    """The entries [lists, lists] of each list by the list in which their query first met the passage."""
    n = len(lists)
    together = np.zeros(1 << n if n <= MASKED else 0, np.int64)  # pairs by the lists that have them
    counts = np.zeros(n * n, np.int64)
    for part in ahead(sorted_keys(lists, queries_of(lists), block=block, guarded=False)):
        found = part.lists() if n <= MASKED else None
        if found is not None:
            together += np.bincount(found, minlength=len(together))
            continue
        times = part.times()
        pairs = times.astype(np.uint32)
        pairs *= np.uint32(n)
        pairs += part.first(times)
        counts += np.bincount(pairs, minlength=len(counts))
    return counts.reshape(n, n) + _spread(together, n)


def _spread(together: Int64, n: int) -> Int64:
    """The entries [n, n] of each list by the first list, given how many pairs each set of lists has."""
    sets = np.flatnonzero(together)
    first = np.log2(np.maximum(sets & -sets, 1)).astype(np.int64)  # the lowest bit: exact for powers of two
    return np.array([np.bincount(first[has], together[sets[has]], n) for has in _members(sets, n)], np.int64)


def _members(sets: Int64, n: int) -> list[NDArray[np.bool_]]:
    """For each list [n], which of these sets [m] have it."""
    return [(sets >> i & 1).astype(bool) for i in range(n)]


def _count(met: Sequence[DatedLists], times: int, block: int) -> Int64:
    """The entries [lists, times] by the time at which their query first met the passage."""
    counts = np.zeros(len(met) * times, np.int64)
    for part in ahead(encounters(met, queries_of([one.lists for one in met]), times=times, block=block)):
        counts += np.bincount(part.lists * times + part.first(), minlength=len(counts))
    return counts.reshape(len(met), times)


def _nothing() -> Positives:
    empty = np.zeros(0, np.int32)
    return Positives(empty, np.zeros(1, np.int64), empty)


def _carried(lists: Lists) -> int:
    return int(np.count_nonzero(lists.momentum)) if isinstance(lists, NegativePool) else 0


@dataclass(frozen=True)
class _Times:
    """The times of (episode, source), in the order in which training meets them."""

    lowest: int  # the first episode
    number: Int64  # [episodes * sources] the time of each; -1 where no pool has it
    names: tuple[str, ...]  # [times]

    @classmethod
    def of(cls, pools: Sequence[NegativePool]) -> _Times:
        lowest = min((int(pool.episodes.min(initial=pool.episode)) for pool in pools), default=0)
        highest = max((pool.episode for pool in pools), default=0)
        there = np.zeros((highest - lowest + 1) * len(ORDER), bool)
        for pool in pools:
            for start in range(0, len(pool.passage_rows), BLOCK):
                span = slice(start, start + BLOCK)
                there[_moments(pool.episodes[span], pool.sources[span], lowest)] = True
        number = np.where(there, np.cumsum(there) - 1, -1)
        moments = [divmod(int(at), len(ORDER)) for at in np.flatnonzero(there)]
        return cls(lowest, number, tuple(_name(lowest + episode, ORDER[source]) for episode, source in moments))

    def of_pool(self, pool: NegativePool) -> Any:
        """A function: entries of the pool [m] -> their times."""
        return lambda at: self.number[_moments(pool.episodes[at], pool.sources[at], self.lowest)]


def _moments(episodes: NDArray[np.integer], sources: NDArray[np.integer], lowest: int) -> Int64:
    """One number [n] for each episode and source, ascending with time."""
    place = np.array([ORDER.index(name) for name in SOURCES], np.int64)
    return (episodes.astype(np.int64) - lowest) * len(ORDER) + place[sources]


def _name(episode: int, source: str) -> str:
    return f"episode {episode} {source}" if source in MOVING else source


# ---------------------------------------------------------------- new negatives


@dataclass(frozen=True)
class NewNegatives:
    """The new candidates of an episode; all numbers count pairs of a query and a passage."""

    episode: str
    candidates: int
    new: int  # in no list before
    near: int | None  # of these, in ANN(d+) of the episode before; None: the first episode has none before it

    @property
    def share(self) -> float | None:
        """The share of the new candidates that were near the positive; None if there is nothing to divide."""
        return None if self.near is None or not self.new else self.near / self.new


def new_negatives(
    candidates: Mapping[str, Lists],
    near: Mapping[str, Lists],
    *,
    before: Sequence[Lists] = (),
    positives: Positives | None = None,
    block: int = BLOCK,
) -> list[NewNegatives]:
    """How many candidates each episode sees first, and how many of them were near d+ in the episode before.

    Figures 7 and 10 of ANCE-Tele. Being near a positive does not make a passage known: only ``candidates`` and
    ``before`` do.

    Parameters
    ----------
    candidates : episode -> its candidates ``ANN(q)``, in order of the episodes; at least one.
    near : episode -> the lookahead lists ``ANN(d+)`` of that episode, where they are there.
    before : lists that training met before the first episode, such as BM25's.
    positives : D+(q); a positive of its query is no candidate.
    """
    names, known = list(candidates), _nothing() if positives is None else positives
    count = len(names)
    met = [DatedLists(known, 0), *(DatedLists(one, count + 1) for one in before)]
    met += [DatedLists(near[name], 1 + i) for i, name in enumerate(names[:-1]) if name in near]
    met += [DatedLists(one, count + 2 + i) for i, one in enumerate(candidates.values())]
    totals = np.zeros((3, count), np.int64)
    for part in ahead(encounters(met, queries_of([one.lists for one in met]), times=2 * count + 2, block=block)):
        totals += _new(part, count)
    return [
        NewNegatives(name, all_, new, close if i and names[i - 1] in near else None)
        for i, (name, (all_, new, close)) in enumerate(zip(names, totals.T.tolist(), strict=True))
    ]


def _new(part: Encounters, count: int) -> Int64:
    """Candidates, new candidates, and new candidates near d+ [3, count] of a block of queries."""
    part = part.distinct()
    part = part.where(part.first() != 0)
    seen = part.times > count
    first = seen.copy()
    first[1:] &= part.begins[1:] | ~seen[:-1]
    first &= part.times >= count + 2
    pairs, episodes = part.pairs[first], part.times[first] - count - 2
    all_ = part.times[part.times >= count + 2] - count - 2
    close = _holds(part, pairs, episodes)  # the time of ANN(d+) of the episode before
    return np.stack([np.bincount(of, minlength=count) for of in (all_, episodes, episodes[close])])


def _holds(part: Encounters, pairs: Int64, times: Int64) -> NDArray[np.bool_]:
    """Whether each pair [m] was met at this time [m]."""
    order = np.searchsorted(part.pairs, pairs, "left")
    found = np.zeros(len(pairs), bool)
    left = np.flatnonzero(times > 0)
    while len(left):  # a pair has few times, so each step looks at one of them
        at = order[left]
        inside = at < len(part.pairs)
        left, at = left[inside], at[inside]
        same = part.pairs[at] == pairs[left]
        found[left[same & (part.times[at] == times[left])]] = True
        left = left[same & (part.times[at] < times[left])]
        order[left] += 1
    return found

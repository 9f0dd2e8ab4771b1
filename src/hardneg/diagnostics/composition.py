"""Composition of negatives: when training first met them, and how many of the new ones were near a positive.

Figures 5, 7, 9 and 10 of Sun et al., "Reduce Catastrophic Forgetting of Dense Retrieval Training with
Teleportation Negatives", EMNLP 2022.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.diagnostics.encounters import (
    BLOCK,
    DatedLists,
    Keys,
    Lists,
    encounters,
    queries_of,
    sorted_keys,
)
from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.records import Int64, Positives

Float64 = NDArray[np.float64]

SORTED = 1 << 17  # entries sorted together
WINDOW = 14  # episodes whose sets of times fit into 32 bits: two times each, and two for earlier lists
MASKED = 16  # with at most so many lists, pairs are counted by the set of lists that have them
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
                "first in": self.met[j],
                "entries": int(self.entries[i, j]),
                "share": float(shares[i, j]),
            }
            for i, j in zip(*np.nonzero(self.entries), strict=True)
        ]

    def __add__(self, other: Composition) -> Composition:
        """The composition over the queries of both, for lists that come for a part of the queries at a time."""
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
    positives : D+(q); an entry that is a positive of its query does not count. An entry with a positive's text
        counts; if that matters, give lists that ``negatives.candidates`` makes.

    At least one list must be given. Lists may belong to different queries; each query counts with its own lists.
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


def composition_of_pools(
    pools: Mapping[str, NegativePool], *, unit: str = "episode", block: int = BLOCK
) -> Composition:
    """Attribute every entry of every pool to its first encounter, as far as pools tell (ANCE-Tele, Fig. 9).

    No runs are needed: an entry says which source drew it, and in which episode. A passage that an earlier episode
    mined but did not draw is not known to have been met then; give the runs to :func:`composition` to count it.
    Sources that do not change, such as BM25, are one encounter.

    Parameters
    ----------
    pools : name -> pool of an episode; at least one.
    unit : what the field ``episode`` of an entry counts, see :func:`~hardneg.negatives.pool.counted_by`.
    """
    times = _Times.of(list(pools.values()), unit)
    met = [DatedLists(pool, times.of_pool(pool)) for pool in pools.values()]
    counted = _count(met, len(times.names), block)
    columns = tuple(dict.fromkeys(times.names))
    entries = np.zeros((len(pools), len(columns)), np.int64)
    for name, column in zip(times.names, counted.T, strict=True):
        entries[:, columns.index(name)] += column
    carried = np.array([_carried(pool) for pool in pools.values()], np.int64)
    return Composition(tuple(pools), columns, entries, carried)


def draws_from_state(pool: NegativePool) -> bool:
    """Whether a pool has negatives that its own episode drew from what a state of the model retrieves."""
    moving = np.isin(pool.sources, [SOURCES.index(name) for name in MOVING])
    return bool((moving & pool.drawn).any())


def _by_first(lists: Sequence[Lists], block: int) -> Int64:
    """The entries [lists, lists] of each list by the list in which their query first met the passage."""
    n = len(lists)
    together = np.zeros(1 << n if n <= MASKED else 0, np.int64)  # pairs by the lists that have them
    counts = np.zeros(n * n, np.int64)
    for part in sorted_keys(lists, queries_of(lists), block=block, numbered=False):
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
    for part in encounters(met, queries_of([one.lists for one in met]), times=times, block=block):
        counts += np.bincount(part.lists * times + part.first(), minlength=len(counts))
    return counts.reshape(len(met), times)


def _carried(lists: Lists) -> int:
    return int(np.count_nonzero(lists.momentum)) if isinstance(lists, NegativePool) else 0


@dataclass(frozen=True)
class _Times:
    """The times of (episode, source), in the order in which training meets them."""

    lowest: int  # the first episode
    number: Int64  # [episodes * sources] the time of each; -1 where no pool has it
    names: tuple[str, ...]  # [times]

    @classmethod
    def of(cls, pools: Sequence[NegativePool], unit: str) -> _Times:
        lowest = min((int(pool.episodes.min(initial=pool.episode)) for pool in pools), default=0)
        highest = max((pool.episode for pool in pools), default=0)
        there = np.zeros((highest - lowest + 1) * len(ORDER), bool)
        for pool in pools:
            for start in range(0, len(pool.passage_rows), BLOCK):
                span = slice(start, start + BLOCK)
                there[_moments(pool.episodes[span], pool.sources[span], lowest)] = True
        number = np.where(there, np.cumsum(there) - 1, -1)
        moments = [divmod(int(at), len(ORDER)) for at in np.flatnonzero(there)]
        names = tuple(_name(unit, lowest + episode, ORDER[source]) for episode, source in moments)
        return cls(lowest, number, names)

    def of_pool(self, pool: NegativePool) -> Any:
        """A function: entries of the pool [m] -> their times."""
        return lambda at: self.number[_moments(pool.episodes[at], pool.sources[at], self.lowest)]


def _moments(episodes: NDArray[np.integer], sources: NDArray[np.integer], lowest: int) -> Int64:
    """One number [n] for each episode and source, ascending with time."""
    place = np.array([ORDER.index(name) for name in SOURCES], np.int64)
    return (episodes.astype(np.int64) - lowest) * len(ORDER) + place[sources]


def _name(unit: str, episode: int, source: str) -> str:
    return f"{unit} {episode} {source}" if source in MOVING else source


# ---------------------------------------------------------------- new negatives


@dataclass(frozen=True)
class NewNegatives:
    """The new candidates of an episode; all numbers count pairs of a query and a passage."""

    episode: str
    candidates: int
    new: int  # in no list before
    near: int | None  # of these, in ANN(d+) of the episode before; None if there are no such lists

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
    block: int = SORTED,
) -> list[NewNegatives]:
    """How many candidates each episode sees first, and how many of them were near d+ in the episode before.

    Figures 7 and 10 of ANCE-Tele. Being near a positive does not make a passage known: only ``candidates`` and
    ``before`` do.

    Parameters
    ----------
    candidates : episode -> its candidates ``ANN(q)``, in order of the episodes; at least one.
    near : episode -> the lookahead lists ``ANN(d+)`` of that episode, if there are any.
    before : lists that training met before the first episode, such as BM25's.
    positives : D+(q); a positive of its query is no candidate.
    """
    known = [] if positives is None else [positives]
    spans = [slice(at, at + WINDOW) for at in range(0, len(candidates), WINDOW)]
    return [one for span in spans for one in _new_of(candidates, near, [*before], known, span, block)]


def _new_of(
    candidates: Mapping[str, Lists],
    near: Mapping[str, Lists],
    before: Sequence[Lists],
    positives: Sequence[Lists],
    span: slice,
    block: int,
) -> list[NewNegatives]:
    """The new negatives of some episodes.

    Each pair has a set of times. Time 0 means that the passage is a positive, and time 1 that it was met before
    these episodes. For the i-th of these episodes, time 2 + 2i means that it was in ANN(d+) of the episode before,
    and time 3 + 2i that it was among the candidates.
    """
    names = list(candidates)
    met = [(0, one) for one in positives]
    met += [(1, one) for one in [*before, *(candidates[name] for name in names[: span.start])]]
    for i, at in enumerate(range(*span.indices(len(names)))):
        met += [(2 + 2 * i, near[names[at - 1]])] if at and names[at - 1] in near else []
        met += [(3 + 2 * i, candidates[names[at]])]
    lists = [one for _, one in met]
    parts = sorted_keys(lists, queries_of(lists), times=[time for time, _ in met], block=block, numbered=False)
    sets, counts = _distinct_sets(parts)
    is_candidate = [(sets & 1 == 0) & _has(sets, 3 + 2 * i) for i in range(len(names[span]))]
    found, seen = [], _has(sets, 1)
    for i, (name, mine) in enumerate(zip(names[span], is_candidate, strict=True)):
        new, at = mine & ~seen, span.start + i
        close = int(counts[new & _has(sets, 2 + 2 * i)].sum()) if at and names[at - 1] in near else None
        found.append(NewNegatives(name, int(counts[mine].sum()), int(counts[new].sum()), close))
        seen = seen | mine
    return found


def _has(sets: NDArray[np.integer], time: int) -> NDArray[np.bool_]:
    """Which of these sets of times [m] have this time."""
    return (sets >> time & 1).astype(bool)


def _distinct_sets(parts: Iterator[Keys]) -> tuple[Int64, Int64]:
    """The sets of times [m] at which queries met passages, and how many pairs have each set [m]."""
    counted: Counter[int] = Counter()
    for part in parts:
        found = part.lists()
        sets = part.distinct().lists() if found is None else found
        assert sets is not None  # nothing is there twice
        counted.update(dict(zip(*(one.tolist() for one in np.unique(sets, return_counts=True)), strict=True)))
    return np.array([*counted], np.int64), np.array([*counted.values()], np.int64)

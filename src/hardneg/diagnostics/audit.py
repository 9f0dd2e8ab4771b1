"""An audit of false negatives: signals, and their sum, that tell which negatives of a pool are probably relevant.

Mined negatives that nobody judged are often relevant: Qu et al., "RocketQA" (NAACL 2021), Section 3.2, looked at
the best-ranked unjudged passages of MS MARCO, and found most of them so. Each signal gives every pair of a query
and a negative a value, and fires if the value reaches a threshold. A plain sum puts the signals together
(:func:`suspicion`), so that a person can tell why a pair is ranked high or low.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.data.own_passages import NONE, without_pairs
from hardneg.diagnostics.text_runs import NOTHING, KnownRuns, Texts
from hardneg.negatives.pool import SOURCES, NegativePool, matches
from hardneg.process.progress import EVERY, Tick, track
from hardneg.records import (
    Float32,
    Int32,
    Int64,
    Run,
    blocks,
    distinct,
    offsets_of,
    owners,
    pair_keys,
    spans,
    take_spans,
)

Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

TOGETHER = 1 << 14  # so many texts are numbered together, whatever the number of pairs


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of a query and a negative, query by query; the first entry of a pair gives its source."""

    pool: NegativePool
    entries: Int64  # [n] the first entry of each pair in the pool
    counts: Int64  # [n] how often the pool has the pair

    @classmethod
    def of(cls, pool: NegativePool) -> Pairs:
        """The pairs of a pool, in its order."""
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for start, stop in blocks(pool.offsets):
            low, high = pool.offsets[start], pool.offsets[stop]
            keys = owners(pool.offsets[start : stop + 1]) << 31 | pool.passage_rows[low:high]
            _, first, count = np.unique(keys, return_index=True, return_counts=True)
            order = np.argsort(first, kind="stable")
            found.append((low + first[order], count[order]))
        entries, counts = (np.concatenate(some) for some in zip(*found, strict=True))
        return cls(pool, entries, counts)

    def keep(self, mask: Bool) -> Pairs:
        """The pairs where ``mask`` [n] is true."""
        return Pairs(self.pool, self.entries[mask], self.counts[mask])

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def positions(self) -> Int64:
        """The position [n] of each pair's query in the pool."""
        return np.searchsorted(self.pool.offsets, self.entries, side="right") - 1

    @cached_property
    def offsets(self) -> Int64:
        """The offsets [Q + 1] of the pairs of each query of the pool."""
        return np.searchsorted(self.entries, self.pool.offsets)

    @property
    def query_rows(self) -> Int32:
        """The query row [n] of each pair."""
        return self.pool.query_rows[self.positions]

    @property
    def passage_rows(self) -> Int32:
        """The passage row [n] of each pair's negative."""
        return self.pool.passage_rows[self.entries]

    @property
    def sources(self) -> NDArray[np.uint8]:
        """The source [n] that drew each pair, as an index into ``pool.SOURCES``."""
        return self.pool.sources[self.entries]


# ---------------------------------------------------------------- texts


def likeness(pairs: Pairs, text_of: Texts) -> Float32:
    """The Jaccard similarity [n], 0 to 1, of each negative's text and the text of the most similar positive.

    It is the share of the runs of three words (:func:`runs_of`) that two texts have in common (Broder, "On the
    resemblance and containment of documents", 1997). It is computed exactly: MinHash serves to find similar texts
    among all passages, but here the pairs are given. Runs are compared by hashes of 64 bits.
    """
    known = KnownRuns(text_of)
    values, offsets = np.zeros(len(pairs), np.float32), pairs.offsets
    few = len(distinct(pairs.passage_rows)) + len(distinct(pairs.pool.positive_rows)) <= TOGETHER
    with track("comparing texts", "pairs") as tick:
        for start, stop in [(0, len(pairs.pool))] if few else blocks(offsets):  # each numbers its texts anew
            values[offsets[start] : offsets[stop]] = _likeness(pairs, start, stop, known.runs, tick)
        tick(len(pairs), len(pairs))
    return values


def _likeness(pairs: Pairs, start: int, stop: int, known: Callable[[int], Int64], tick: Tick) -> Float64:
    """The likeness of the pairs of the queries from ``start`` to ``stop``; each text's runs are numbered once.

    Parameters
    ----------
    tick : called with how many of all pairs are done, also while texts are read.
    """
    pool, offsets = pairs.pool, pairs.offsets[start : stop + 1] - pairs.offsets[start]
    owned = pool.positive_offsets[start : stop + 1] - pool.positive_offsets[start]
    negatives = pairs.passage_rows[pairs.offsets[start] : pairs.offsets[stop]]
    positives = pool.positive_rows[pool.positive_offsets[start] : pool.positive_offsets[stop]]
    rows, which = np.unique(np.concatenate([negatives, positives]), return_inverse=True)
    mine, theirs = which[: len(negatives)], which[len(negatives) :]
    asked = np.zeros(len(rows), bool)
    asked[theirs] = True
    asked[mine[np.repeat(spans(owned) > 0, spans(offsets))]] = True
    before, texts = int(pairs.offsets[start]), []
    for place, (row, ask) in enumerate(zip(rows.tolist(), asked.tolist(), strict=True)):
        if place % EVERY == 0:
            tick(before, len(pairs))
        texts.append(known(row) if ask else NOTHING)
    begins = offsets_of(np.array([len(one) for one in texts], np.int64))
    _, numbers = np.unique(np.concatenate([NOTHING, *texts]), return_inverse=True)
    marked = np.zeros(len(numbers) + 1, bool)
    values = np.zeros(len(negatives))
    for count, i in enumerate(np.flatnonzero((spans(owned) > 0) & (spans(offsets) > 0)).tolist()):
        low, high = offsets[i], offsets[i + 1]
        if count % EVERY == 0:
            tick(before + int(low), len(pairs))
        index, cuts = take_spans(begins, mine[low:high])
        runs = numbers[index]
        for positive in theirs[owned[i] : owned[i + 1]].tolist():
            own = numbers[begins[positive] : begins[positive + 1]]
            marked[own] = True
            both = np.diff(offsets_of(marked[runs].view(np.uint8))[cuts])
            marked[own] = False
            share = both / np.maximum(np.diff(cuts) + len(own) - both, 1)  # Jaccard
            values[low:high] = np.maximum(values[low:high], share)
    return values


# ---------------------------------------------------------------- ranks


def places(run: Run, query_rows: Int32, passage_rows: Int32) -> Int64:
    """The place [n] from 1 of each passage in the list of its query; 0 if it is not in the list.

    Parameters
    ----------
    run : a run with at most one list for each query.
    """
    rows, which = np.unique(query_rows, return_inverse=True)
    by_query = np.argsort(which, kind="stable")
    asked = np.searchsorted(which[by_query], np.arange(len(rows) + 1))
    lists, of_query = matches(run.query_rows, rows)
    hits = offsets_of(spans(run.offsets)[lists])[of_query]
    found = np.zeros(len(query_rows), np.int64)
    for start, stop in blocks(hits):
        some = by_query[asked[start] : asked[stop]]
        index, by_list = take_spans(run.offsets, lists[of_query[start] : of_query[stop]])
        owner = owners(hits[start : stop + 1] - hits[start])
        place = np.arange(len(index)) - by_list[owners(by_list)] + 1
        keys = owner << 31 | run.passage_rows[index]
        order = np.argsort(keys, kind="stable")
        wanted = (which[some] - start) << 31 | passage_rows[some]
        at = np.searchsorted(keys[order], wanted)
        there = at < len(keys)
        there[there] = keys[order[at[there]]] == wanted[there]
        found[some[there]] = place[order[at[there]]]
    return found


def above(run: Run, pairs: Pairs, mine: Int64) -> Bool:
    """Whether each negative [n] stands in the run above all positives of its query.

    Positives that are not in the run count as below all its hits.

    Parameters
    ----------
    mine : the place [n] of each negative in the run, as :func:`places` gives it.
    """
    positives = pairs.pool.positives
    owner = owners(positives.offsets)
    of_positives = places(run, positives.query_rows[owner], positives.passage_rows)
    of_positives[of_positives == 0] = np.iinfo(np.int64).max
    best = np.full(len(positives), np.iinfo(np.int64).max)
    np.minimum.at(best, owner, of_positives)
    return (mine > 0) & (mine < best[pairs.positions])


# ---------------------------------------------------------------- signals


@dataclass(frozen=True)
class Kind:
    """The meaning of a signal, and the threshold from which on it fires."""

    meaning: str
    threshold: float


KINDS: Mapping[str, Kind] = {
    "text": Kind("the text is like that of a positive (share of common runs of three words, or characters)", 0.3),
    "answer": Kind("the text contains an answer of the query", 1.0),
    "ranker": Kind("a ranker scores it no lower than any positive (difference of scores)", 0.0),
    "retriever": Kind("the states rank it above all positives, near the top (mean of 1 / log2(1 + rank))", 0.4),
    "both": Kind(
        "BM25 and the newest state rank it above all positives, near the top (the smaller 1 / log2(1 + rank))",
        0.25,
    ),
    "learned": Kind("steps that drew it scored it no lower than the positive (mean lead in logits)", 0.0),
}


@dataclass(frozen=True)
class Signal:
    """The values of a signal for every pair [n].

    Attributes
    ----------
    values : the signal fires for a pair if its value reaches the threshold. NaN: the value is not known, and the
        signal does not fire.
    strength : the numbers by which the signal orders pairs; a pair with a greater one is more suspected.
    """

    name: str
    values: Float32
    threshold: float
    strength: Float32

    @cached_property
    def fires(self) -> Bool:
        """Whether the signal fires for each pair [n]."""
        return np.asarray(self.values >= self.threshold)


@dataclass(frozen=True)
class StateRun:
    """The run of a state of the model for the queries of a pool."""

    name: str
    run: Run


Said = tuple[Float32, Float32]  # values and strength of a signal


def by_ranker(pairs: Pairs, score: Callable[[Int32, Int32], Float32]) -> Float32:
    """By how much the ranker's score of each negative [n] exceeds that of the best positive.

    The value is NaN for a query without positives.
    """
    positives, positions = pairs.pool.positives, pairs.positions
    owner = owners(positives.offsets)
    asked = np.concatenate([owner, positions])
    order = np.argsort(asked, kind="stable")  # the pairs of a query stand together
    passages = np.concatenate([positives.passage_rows, pairs.passage_rows])
    scores = np.empty(len(asked), np.float32)
    scores[order] = score(pairs.pool.query_rows[asked[order]], passages[order])
    return leads(scores[len(owner) :], positions, scores[: len(owner)], owner, len(positives))


def by_kept_scores(pairs: Pairs, of_entries: Float32, of_positives: Float32) -> Float32:
    """The result of :func:`by_ranker`, computed from the scores that a ranker left in the pool."""
    positives = pairs.pool.positives
    found = of_entries[pairs.entries]
    return leads(found, pairs.positions, of_positives, owners(positives.offsets), len(positives))


def leads(scores: Float32, positions: Int64, of_positives: Float32, owner: Int64, queries: int) -> Float32:
    """Each score [n] minus the best score of its query's positives; NaN if there is no such score."""
    best = np.full(queries, -np.inf, np.float32)
    np.fmax.at(best, owner, of_positives)
    best[np.isinf(best)] = np.nan
    return np.asarray(scores - best[positions])


def by_states(pairs: Pairs, states: Sequence[StateRun], own: tuple[Int32, Int32] = NONE) -> Said:
    """The signal ``retriever``: how near the top the states rank each negative.

    The value is the mean :func:`nearness` over the states, where a state that ranks the negative below a positive
    counts 0. Because it is a mean, it does not grow with the number of states. Pairs are ordered by the mean
    nearness alone, whether or not a positive is ranked higher. For ``own`` see :func:`standing`.
    """
    seen, near = np.zeros(len(pairs), np.float32), np.zeros(len(pairs), np.float32)
    with track("comparing lists", "states") as tick:
        for done, state in enumerate(states, 1):
            place, is_above = standing(state.run, pairs, own)
            near += place / len(states)
            seen += place * is_above / len(states)
            tick(done, len(states))
    return seen, near


def by_both(pairs: Pairs, bm25: Run, newest: Run, own: tuple[Int32, Int32] = NONE) -> Said:
    """The signal ``both``: the smaller nearness of two runs; 0 unless both rank it above all positives."""
    (one, one_above), (other, other_above) = standing(bm25, pairs, own), standing(newest, pairs, own)
    nearer = np.minimum(one, other)
    return nearer * (one_above & other_above), nearer


def nearness(found: Int64) -> Float32:
    """How near the top of its query's list each negative [n] stands: 1 / log2(1 + place); 0 if it is not there.

    This is the discount of nDCG: a difference of one place matters less, the further down the list it is. Places 1
    to 4 have 0.43 or more, places up to 15 have 0.25 or more.
    """
    return np.where(found > 0, 1 / np.log2(1 + np.maximum(found, 1)), 0).astype(np.float32)


def standing(run: Run, pairs: Pairs, own: tuple[Int32, Int32] = NONE) -> tuple[Float32, Bool]:
    """The nearness [n] of each negative, and whether it stands above all positives [n].

    The passages that are their query itself (``own``: queries [m], passages [m]) take no place, unless they are
    negatives of it, as older versions mined them.
    """
    left = ~np.isin(pair_keys(*own), pair_keys(pairs.query_rows, pairs.passage_rows))
    run = without_pairs(run, *(rows[left] for rows in own))
    mine = places(run, pairs.query_rows, pairs.passage_rows)
    return nearness(mine), above(run, pairs, mine)


# ---------------------------------------------------------------- all signals together


@dataclass(frozen=True)
class Audit:
    """The pairs of a pool with the values of all signals."""

    pairs: Pairs
    signals: tuple[Signal, ...]

    @property
    def fired(self) -> Int64:
        """How many signals fire for each pair [n]."""
        return np.sum([np.zeros(len(self.pairs), bool), *(one.fires for one in self.signals)], axis=0)

    @cached_property
    def suspicion(self) -> Float64:
        """How suspected each pair [n] is, see :func:`suspicion`."""
        return suspicion([one.strength for one in self.signals], len(self.pairs))

    def ranking(self) -> Int64:
        """The pairs that any signal fires for, the most suspected first; equal ones in the pool's order."""
        order = self.order()
        return order[self.fired[order] > 0]

    def order(self) -> Int64:
        """All pairs [n], the most suspected first; equal ones in the pool's order."""
        return np.argsort(-self.suspicion, kind="stable")

    def counts(self) -> list[dict[str, Any]]:
        """For each signal how many pairs it fires for, in all and by source of the negative."""
        return [
            {
                "signal": one.name,
                "threshold": one.threshold,
                "pairs": int(np.count_nonzero(one.fires)),
                "queries": len(distinct(self.pairs.positions[one.fires])),
                "by_source": by_source(self.pairs.sources[one.fires]),
                "meaning": KINDS[one.name].meaning,
            }
            for one in self.signals
        ]

    def sources(self) -> list[dict[str, Any]]:
        """For each source its pairs, for how many of them a signal fires, and the share of these."""
        every, some = by_source(self.pairs.sources), by_source(self.pairs.sources[self.fired > 0])
        return [
            {"source": name, "pairs": n, "suspected": some.get(name, 0), "share": some.get(name, 0) / n}
            for name, n in every.items()
        ]


def suspicion(strengths: Sequence[Float32], count: int) -> Float64:
    """How suspected each pair [n] is: the sum over the signals of -ln p, Fisher's way to combine tests.

    For each signal, p is the share, of the pairs for which it is known, for which it is at least as strong as for
    this pair. So no signal needs a weight or a scale; only the rarity of a strength counts. A signal that is not
    known for a pair (NaN) adds 1, the mean of -ln p over evenly spread p. The signals are not independent, so the
    sum orders pairs but is no probability (Fisher, "Statistical Methods for Research Workers", 1932, 21.1).
    """
    total = np.zeros(count)
    for strength in strengths:
        known = ~np.isnan(strength)
        values = strength[known].astype(np.float64)
        total[known] -= np.log(1 - np.searchsorted(np.sort(values), values) / max(len(values), 1))
        total[~known] += known.any()
    return total


def by_source(sources: NDArray[np.uint8]) -> dict[str, int]:
    """The number of pairs from each source that has any."""
    counts = np.bincount(sources, minlength=len(SOURCES)).tolist()
    return {name: n for name, n in zip(SOURCES, counts, strict=True) if n}


def audit_pairs(
    pairs: Pairs,
    *,
    text_of: Texts | None = None,
    answers: Callable[[Int32, Int32], Bool] | None = None,
    score: Callable[[Int32, Int32], Float32] | None = None,
    states: Sequence[StateRun] = (),
    leads: Callable[[Int32, Int32], Float32] | None = None,
    bm25: Run | None = None,
    own: tuple[Int32, Int32] = NONE,
    thresholds: Mapping[str, float] | None = None,
) -> Audit:
    """Compute the signals of the pairs; a signal whose inputs are not given is left out.

    Parameters
    ----------
    text_of : passage row -> text.
    answers : queries [n], passages [n] -> whether each passage contains an answer of its query.
    score : queries [n], passages [n] -> the ranker's score of each pair; None: those that the pool keeps, if any.
    states : in the order of training; the last is the newest.
    leads : queries [n], passages [n] -> the lead in logits of each passage over its query's positive, as the mean
        over the steps that were trained on the pair; NaN for a pair without such a step.
    bm25 : the run of BM25 for the queries of the pool.
    own : the hits of all these runs that are their query itself, see :func:`standing`.
    thresholds : signal -> the value from which on it fires; replaces the threshold of :data:`KINDS`.
    """
    said: dict[str, Said] = {}
    if text_of is not None:
        said["text"] = twice(likeness(pairs, text_of))
    if answers is not None:
        said["answer"] = twice(answers(pairs.query_rows, pairs.passage_rows).astype(np.float32))
    if score is not None:
        said["ranker"] = twice(by_ranker(pairs, score))
    elif pairs.pool.ranker_scores is not None and pairs.pool.positive_scores is not None:
        said["ranker"] = twice(by_kept_scores(pairs, pairs.pool.ranker_scores, pairs.pool.positive_scores))
    if states:
        said["retriever"] = by_states(pairs, states, own)
    if leads is not None:
        said["learned"] = twice(leads(pairs.query_rows, pairs.passage_rows))
    if bm25 is not None and states:
        said["both"] = by_both(pairs, bm25, states[-1].run, own)
    limits = {name: kind.threshold for name, kind in KINDS.items()} | dict(thresholds or {})
    signals = (Signal(name, said[name][0], limits[name], said[name][1]) for name in KINDS if name in said)
    return Audit(pairs, tuple(signals))


def twice(values: Float32) -> Said:
    """A signal that orders pairs by its values."""
    return values, values

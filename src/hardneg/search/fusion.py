"""Fusion: one run made of several over the same queries, by reciprocal ranks or by weighted scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ArtifactError, NumericError, SettingsError
from hardneg.evaluation.judged import locate
from hardneg.process.progress import Tick, silent
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, owners, spans, take_spans

Method = Literal["rrf", "linear"]
Normalisation = Literal["min-max", "z"]
Float64 = NDArray[np.float64]

BLOCK = 1 << 20  # hits that are fused together
PASSAGE_BITS = 31  # of a row
SCORE_BITS = 31  # of a float32 that is not negative
KEY_BITS = 63
MOST_POINTS = 5000  # of a grid


@dataclass(frozen=True)
class Fusion:
    """How the hits of several runs are scored together.

    Attributes
    ----------
    method : ``rrf``, reciprocal rank fusion: a passage at rank r of a run (from 1) gets ``w / (rank_constant + r)``
        (Cormack et al., 2009, with weights). ``linear``: it gets ``w`` times its score there, normalised.
    normalisation : of ``linear``, over a query's hits in one run. ``min-max``: (score - lowest) / (highest -
        lowest). ``z``: (score - lowest) / standard deviation; these are z-scores up to a constant of the list,
        which moves no passage past another. Where all scores of a list are equal, each of its hits counts 1.
    rank_constant : k of ``rrf``.

    A passage that a run lacks gets 0 from it; with ``linear`` this is what the lowest hit gets.
    """

    method: Method = "rrf"
    normalisation: Normalisation = "min-max"
    rank_constant: int = 60

    def contributions(self, scores: Float32, offsets: Int64) -> Float64:
        """What each hit [n] of one run's lists is worth, without the run's weight.

        Raises
        ------
        NumericError : ``linear`` meets a score that is NaN or infinite.
        """
        if self.method == "rrf":
            ranks = np.arange(1, len(scores) + 1) - offsets[:-1].repeat(spans(offsets))
            return 1.0 / (self.rank_constant + ranks)
        return normalised(scores, offsets, self.normalisation)


def normalised(scores: Float32, offsets: Int64, normalisation: Normalisation) -> Float64:
    """Scores [n] as distances above the lowest of their list, in its range or its standard deviation.

    See :class:`Fusion`.

    Raises
    ------
    NumericError : a score is NaN or infinite.
    """
    if not np.isfinite(scores).all():
        what = "a score is NaN or infinite, and cannot be normalised"
        raise NumericError("NAN_SCORE", what, "fuse by rrf, which looks at ranks only")
    lengths = spans(offsets)
    some = lengths > 0
    starts, counts = offsets[:-1][some], lengths[some]
    values = scores.astype(np.float64)
    values -= np.minimum.reduceat(values, starts).repeat(counts) if len(starts) else 0.0
    if not len(starts):
        return values
    if normalisation == "min-max":
        units = np.maximum.reduceat(values, starts)
    else:
        means = np.add.reduceat(values, starts) / counts
        units = np.sqrt(np.add.reduceat((values - means.repeat(counts)) ** 2, starts) / counts)
    flat = np.maximum.reduceat(values, starts) == 0  # all are equal
    values /= np.where(flat, 1.0, units).repeat(counts)
    values[flat.repeat(counts)] = 1.0
    return values


# ---------------------------------------------------------------- fusing


def fuse(
    runs: Sequence[Run],
    weights: Sequence[float] | None = None,
    *,
    fusion: Fusion | None = None,
    k: int | None = None,
    id_rank: Int32 | None = None,
    progress: Tick = silent,
) -> Run:
    """Fuse runs over the same collection into one, whose queries are those of any of them, ascending.

    Parameters
    ----------
    runs : two or more, each with its hits best first. A query that a run lacks gets nothing from it.
    weights : one for each run, 0 or more and not all 0; None: 1 each.
    fusion : how hits are scored; None: reciprocal rank fusion.
    k : the most hits of a query that are kept; None: all.
    id_rank : [passages] rank of each passage's id: of equal scores the greater stands first, as in a run's file.
        None: the lower row stands first, as in a search.
    progress : called with the queries done and all of them.

    Returns
    -------
    A run with scores that are summed in float64, in the order of ``runs``, and rounded to float32 before hits are
    ranked. Memory beyond the result is that of a block of queries.

    Raises
    ------
    SettingsError : fewer than two runs; weights that do not fit.
    ArtifactError : the runs are of different collections, or of passages and of documents.
    NumericError : see :meth:`Fusion.contributions`.
    """
    fusion = fusion or Fusion()
    factors = check_weights(weights, len(runs))
    collection = check_alike(runs)
    queries = np.unique(np.concatenate([run.query_rows for run in runs]))
    places = [locate(run.query_rows, queries) for run in runs]
    lengths = np.sum([_lengths(run, place) for run, place in zip(runs, places, strict=True)], axis=0)
    order = None if id_rank is None else (len(id_rank) - 1 - id_rank).astype(np.int32)  # the lower the better
    row_of = None if order is None else _inverse(order)
    parts: list[tuple[Int64, Int32, Float32]] = []
    for start, stop in _blocks(lengths):
        block = slice(start, stop)
        here = [place[block] for place in places]
        hits = _gather(runs, here, lengths[block], fusion, factors, order)
        parts.append(_ranked(*hits, bits=_bits(lengths), k=k, row_of=row_of))
        progress(stop, len(queries))
    none = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    counts, rows, scores = (np.concatenate(column) for column in zip(none, *parts, strict=True))
    return Run(queries.astype(np.int32), offsets_of(counts), rows, scores, runs[0].unit, collection)


def check_weights(weights: Sequence[float] | None, runs: int) -> tuple[float, ...]:
    """The weights of so many runs, 1 each by default; raises :class:`SettingsError` where they do not fit."""
    if runs < 2:
        raise SettingsError("ONE_RUN", "there is nothing to fuse", "give two runs or more")
    if weights is None:
        return (1.0,) * runs
    if len(weights) != runs:
        what = f"there are {len(weights)} weights for {runs} runs"
        raise SettingsError("BAD_WEIGHTS", what, "give one weight for each run, in their order")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        what = f"the weights are {', '.join(f'{weight:g}' for weight in weights)}"
        raise SettingsError("BAD_WEIGHTS", what, "give numbers from 0 up, and not only 0")
    return tuple(map(float, weights))


def check_alike(runs: Sequence[Run]) -> str:
    """The digest of the runs' collection; raises :class:`ArtifactError` where they do not rank the same things."""
    digests = list(dict.fromkeys(run.collection for run in runs if run.collection))
    if len(digests) > 1:
        what = f"one run is of the collection {digests[0][:12]}…, another of {digests[1][:12]}…"
        raise ArtifactError("OTHER_COLLECTION", what, "give runs over the same collection")
    if len(units := list(dict.fromkeys(run.unit for run in runs))) > 1:
        what = f"one run ranks {units[0]}s, another {units[1]}s"
        raise ArtifactError("OTHER_UNIT", what, "give runs of the same kind")
    return digests[0] if digests else ""


def _lengths(run: Run, place: Int64) -> Int64:
    """How many hits a run has of each query; -1 in ``place`` is a query that it lacks."""
    return np.where(place >= 0, spans(run.offsets)[place], 0) if len(run) else np.zeros(len(place), np.int64)


def _inverse(order: Int32) -> Int32:
    rows = np.empty(len(order), np.int32)
    rows[order] = np.arange(len(order), dtype=np.int32)
    return rows


def _bits(lengths: Int64) -> int:
    """Bits that number the hits of the longest list."""
    return int(lengths.max(initial=1)).bit_length()


def _blocks(lengths: Int64) -> Iterator[tuple[int, int]]:
    """Cut the queries into blocks of about ``BLOCK`` hits, few enough for keys of 63 bits."""
    most = 1 << (KEY_BITS - PASSAGE_BITS - _bits(lengths))
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + BLOCK, side="right")), start + 1)
        yield start, (stop := min(stop, start + most))
        start = stop


def _gather(
    runs: Sequence[Run],
    places: Sequence[Int64],
    lengths: Int64,
    fusion: Fusion,
    weights: Sequence[float],
    order: Int32 | None,
) -> tuple[Int64, Int32, Float64]:
    """All hits of a block's queries, by query and then by run: offsets [Q + 1], passages [n], their worth [n]."""
    offsets = offsets_of(lengths)
    passages, worth = np.empty(offsets[-1], np.int32), np.empty(offsets[-1])
    filled = offsets[:-1].copy()
    for run, place, weight in zip(runs, places, weights, strict=True):
        present = np.flatnonzero(place >= 0)
        index, inner = take_spans(run.offsets, place[present])
        to = np.arange(inner[-1])
        to += (filled[present] - inner[:-1]).repeat(spans(inner))
        rows = run.passage_rows[index]
        passages[to] = rows if order is None else order[rows]
        worth[to] = fusion.contributions(run.scores[index], inner) * weight
        filled[present] += spans(inner)
    return offsets, passages, worth


def _ranked(
    offsets: Int64, passages: Int32, worth: Float64, *, bits: int, k: int | None, row_of: Int32 | None
) -> tuple[Int64, Int32, Float32]:
    """The ranked passages of a block: how many each query has [Q], their rows and scores [m].

    Both sorts are of whole numbers that hold all that is sorted and where it stood, which is several times as fast
    as sorting positions.
    """
    passages, scores, owner = _joined(offsets, passages, worth, bits)
    counts = np.bincount(owner, minlength=len(offsets) - 1)
    place = np.arange(len(owner)) - offsets_of(counts)[owner]
    falling = (1 << SCORE_BITS) - 1 - scores.view(np.int32).astype(np.int64)
    keys = (owner << (SCORE_BITS + bits)) | (falling << bits) | place
    keys.sort()
    index = (keys & ((1 << bits) - 1)) + offsets_of(counts)[owner]
    if k is not None:
        index = index[place < k]  # the place in the sorted list now: the counts are the same
        counts = np.minimum(counts, k)
    rows = passages[index]
    return counts, rows if row_of is None else row_of[rows], scores[index]


def _joined(offsets: Int64, passages: Int32, worth: Float64, bits: int) -> tuple[Int32, Float32, Int64]:
    """Each distinct passage of each query, its summed worth, and its query [m], by query and passage."""
    owner = owners(offsets)
    place = np.arange(len(owner)) - offsets[owner]
    keys = (owner << (PASSAGE_BITS + bits)) | (passages.astype(np.int64) << bits) | place
    keys.sort()  # a passage's hits stand together, in the order of the runs; the owners stay where they are
    worth = worth[(keys & ((1 << bits) - 1)) + offsets[owner]]
    pairs = keys >> bits
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    sums = np.add.reduceat(worth, first) if len(first) else worth
    rows = (pairs[first] & ((1 << PASSAGE_BITS) - 1)).astype(np.int32)
    return rows, sums.astype(np.float32), owner[first]


def of_queries(run: Run, query_rows: Int32) -> Run:
    """The lists of these queries, in their order; those that the run lacks are left out."""
    place = locate(run.query_rows, query_rows)
    place = place[place >= 0]
    index, offsets = take_spans(run.offsets, place)
    return replace(
        run,
        query_rows=run.query_rows[place],
        offsets=offsets,
        passage_rows=run.passage_rows[index],
        scores=run.scores[index],
    )


# ---------------------------------------------------------------- tuning


@dataclass(frozen=True)
class Tuned:
    """The best weights of a grid, their value, and all that was tried, in order."""

    weights: tuple[float, ...]
    value: float
    tried: tuple[tuple[tuple[float, ...], float], ...]


def tune_weights(
    runs: Sequence[Run],
    measured: Callable[[Run], float],
    *,
    fusion: Fusion | None = None,
    steps: int = 10,
    k: int | None = None,
    id_rank: Int32 | None = None,
    progress: Tick = silent,
) -> Tuned:
    """Find the weights of the best fusion by trying each of :func:`grid`; of equal values the first tried stays.

    Parameters
    ----------
    runs : best restricted to the queries that are measured (:func:`of_queries`), for all others cost time.
    measured : the value of a fused run, the higher the better, such as a measure's mean over the dev queries.
    fusion, k, id_rank : as for :func:`fuse`; k must reach as deep as the measure does.
    steps : into how many parts a weight of 1 is cut.
    progress : called with the points tried and all of them.

    Raises
    ------
    SettingsError : fewer than two runs, or a grid of more than 5,000 points; and what :func:`fuse` raises.
    """
    check_weights(None, len(runs))
    points, tried = grid(len(runs), steps), []
    for done, weights in enumerate(points, 1):
        tried.append((weights, measured(fuse(runs, weights, fusion=fusion, k=k, id_rank=id_rank))))
        progress(done, len(points))
    best = max(tried, key=lambda one: one[1])  # the first of those that are equal
    return Tuned(*best, tuple(tried))


def grid(runs: int, steps: int = 10) -> list[tuple[float, ...]]:
    """All weights of so many runs that are multiples of 1 / steps and add up to 1, the most even ones first.

    Raises
    ------
    SettingsError : there are more than 5,000.
    """
    if (points := math.comb(steps + runs - 1, runs - 1)) > MOST_POINTS:
        what = f"{runs} runs have {points:,} weights to try in steps of 1/{steps}"
        raise SettingsError("BAD_WEIGHTS", what, f"fuse fewer runs, or give the weights ({MOST_POINTS:,} at most)")
    bars = itertools.combinations(range(steps + runs - 1), runs - 1)
    parts = [tuple(np.diff((-1, *bar, steps + runs - 1)) - 1) for bar in bars]
    parts.sort(key=lambda part: (sum(count * count for count in part), tuple(-count for count in part)))
    return [tuple(float(count / steps) for count in part) for part in parts]

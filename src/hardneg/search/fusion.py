"""Fusion: one run made of several over the same queries, by reciprocal ranks or by weighted scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ArtifactError, NumericError, SettingsError
from hardneg.evaluation.judged import locate
from hardneg.process.progress import Tick, silent
from hardneg.records import MIXED, Float32, Int32, Int64, Run, Unit, distinct, offsets_of, spans, take_spans
from hardneg.storage.artifacts import digest_json

Method = Literal["rrf", "linear"]
Normalisation = Literal["min-max", "z"]
Float64 = NDArray[np.float64]

BLOCK = 1 << 17  # hits that are fused together: what is made of them stays in the processor's cache
PASSAGE_BITS = 31  # of a row
SCORE_BITS = 31  # of a float32 that is not negative
WIDEST = 1e6  # of a weight, or 1 divided by it: scores are summed as float64 and kept as float32
MOST_POINTS = 5000  # of a grid


@dataclass(frozen=True)
class Fusion:
    """How the hits of several runs are scored together.

    Attributes
    ----------
    method : ``rrf``, reciprocal rank fusion: a passage at rank r of a run (from 1) gets ``w / (rank_constant +
        r)``, w being the run's weight (Cormack et al., 2009, where it is 1). ``linear``: it gets w times its score
        there, normalised.
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
        """The contribution of each hit [n] of one run's lists, without the run's weight.

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
    weights : one for each run, 0 or more and not all 0; None: 1 each. Queries that only runs of weight 0
        have are there without hits, and a file of the run lacks them.
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
    collection, unit = check_alike(runs)
    queries = distinct(np.concatenate([run.query_rows for run in runs]))
    # Hits of a run of weight 0 would stand behind all others: measures that look deep would count them.
    runs, factors = zip(*((run, weight) for run, weight in zip(runs, factors, strict=True) if weight), strict=True)
    places = [locate(run.query_rows, queries) for run in runs]
    lengths = np.stack([_lengths(run, place) for run, place in zip(runs, places, strict=True)])
    order = None if id_rank is None else (len(id_rank) - 1 - id_rank).astype(np.int32)  # the lower the better
    row_of = None if order is None else _inverse(order)
    parts: list[tuple[Int64, Int32, Float32]] = []
    for start, stop in _blocks(lengths):
        block = _Block.empty(lengths[:, start:stop])
        for run, place, weight, column in zip(runs, places, factors, block.columns, strict=True):
            block.fill(run, place[start:stop], column, order, fusion, weight)
        parts.append(block.ranked(k, row_of))
        progress(stop, len(queries))
    none = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)
    counts, rows, scores = (np.concatenate(column) for column in zip(none, *parts, strict=True))
    parts_ranked = sorted({run.limited for run in runs})
    limited = parts_ranked[0] if len(parts_ranked) == 1 else MIXED + digest_json(parts_ranked)
    return Run(queries.astype(np.int32), offsets_of(counts), rows, scores, unit, collection, limited)


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
    if not all(weight == 0 or 1 / WIDEST <= weight <= WIDEST for weight in weights):
        named = ", ".join(f"{weight:g}" for weight in weights)
        what = f"the weights are {named}, too large or too small to be summed"
        raise SettingsError("BAD_WEIGHTS", what, f"give 0, or numbers from {1 / WIDEST:g} to {WIDEST:g}")
    return tuple(map(float, weights))


def check_alike(runs: Sequence[Run]) -> tuple[str, Unit]:
    """The digest of the runs' collection, and what they rank.

    Passages and documents are both rows of a collection: BM25 reads a document whole, a model by its chunks.

    Raises
    ------
    ArtifactError : the runs are of different collections, or some rank chunks and others do not.
    """
    digests = list(dict.fromkeys(run.collection for run in runs if run.collection))
    if len(digests) > 1:
        what = f"one run is of the collection {digests[0][:12]}…, another of {digests[1][:12]}…"
        raise ArtifactError("OTHER_COLLECTION", what, "give runs over the same collection")
    units = list(dict.fromkeys(run.unit for run in runs))
    if "chunk" in units and len(units) > 1:
        what = f"one run ranks {units[0]}s, another {units[1]}s"
        raise ArtifactError("OTHER_UNIT", what, "give runs of the same kind")
    return digests[0] if digests else "", "document" if "document" in units else units[0]


def _lengths(run: Run, place: Int64) -> Int64:
    """How many hits a run has of each query; -1 in ``place`` is a query that it lacks."""
    return np.where(place >= 0, spans(run.offsets)[place], 0) if len(run) else np.zeros(len(place), np.int64)


def _inverse(order: Int32) -> Int32:
    rows = np.empty(len(order), np.int32)
    rows[order] = np.arange(len(order), dtype=np.int32)
    return rows


def _blocks(lengths: Int64) -> Iterator[tuple[int, int]]:
    """Cut queries, whose lists in each run have ``lengths`` [R, Q], into blocks that take ``BLOCK`` places.

    Lists in a block are padded to the longest, run by run. A query alone may take more.
    """
    start = 0
    while start < lengths.shape[1]:
        most = max(BLOCK // max(int(lengths[:, start].sum()), 1), 1)
        widths = np.maximum.accumulate(lengths[:, start : start + most], axis=1).sum(axis=0)
        fit = int((widths * np.arange(1, len(widths) + 1) <= BLOCK).sum())
        yield start, (start := start + max(fit, 1))


@dataclass(frozen=True)
class _Block:
    """The hits of a block of queries, one line a query: the hits of the first run, then of the second, and so on.

    Only whole numbers are sorted, which hold both the sort key and the place of the hit. This is ten times as fast
    as sorting places by keys.
    """

    keys: Int64  # [Q, W] passage and place of each hit; where there is no hit, a number beyond all passages
    worth: Float64  # [Q, W]
    columns: Int64  # [R] where the hits of each run begin

    @classmethod
    def empty(cls, lengths: Int64) -> _Block:
        """Room for lists of these lengths [R, Q]."""
        widths = lengths.max(axis=1)
        shape = lengths.shape[1], int(widths.sum())
        keys = np.broadcast_to(_nothing(shape[1]) | np.arange(shape[1]), shape).copy()
        return cls(keys, np.zeros(shape), offsets_of(widths)[:-1])

    @property
    def bits(self) -> int:
        """Bits of a key that say where a hit stood."""
        return _bits(self.keys.shape[1])

    def fill(
        self, run: Run, place: Int64, column: int, order: Int32 | None, fusion: Fusion, weight: float
    ) -> None:
        """Write a run's hits into the lines from ``column`` on; a query's list is at ``place`` [Q] in the run."""
        present = np.flatnonzero(place >= 0)
        passages, scores, offsets = _lists(run, place[present])
        rows = passages if order is None else order[passages]
        worth = fusion.contributions(scores, offsets) * weight
        (queries, width), lengths = self.keys.shape, spans(offsets)
        if len(rows) and (whole := len(rows) // queries) == lengths.min() == lengths.max():  # no line has a gap
            here = slice(column, column + whole)
            self.keys[:, here] = (rows.reshape(-1, whole).astype(np.int64) << self.bits) | np.arange(width)[here]
            self.worth[:, here] = worth.reshape(-1, whole)
            return
        to = np.arange(len(rows)) + (present * width + column - offsets[:-1]).repeat(lengths)
        self.keys.reshape(-1)[to] = (rows.astype(np.int64) << self.bits) | (to % max(width, 1))
        self.worth.reshape(-1)[to] = worth

    def ranked(self, k: int | None, row_of: Int32 | None) -> tuple[Int64, Int32, Float32]:
        """The ranked passages: how many each query has [Q], their rows and scores [m]."""
        scores, first = self.joined()
        mask, width = (1 << self.bits) - 1, self.keys.shape[1]
        falling = (1 << SCORE_BITS) - 1 - scores.view(np.int32).astype(np.int64)
        ranked = np.where(first, (falling << self.bits) | np.arange(width), _nothing(width))
        ranked.sort(axis=1)
        counts = first.sum(axis=1)
        if k is not None:
            ranked, counts = ranked[:, :k], np.minimum(counts, k)
        found = (ranked & mask) + (np.arange(len(ranked)) * width)[:, None]
        kept = np.arange(ranked.shape[1]) < counts[:, None]
        index = found.reshape(-1) if kept.all() else found[kept]
        rows = (self.keys.reshape(-1)[index] >> self.bits).astype(np.int32)
        return counts, rows if row_of is None else row_of[rows], scores.reshape(-1)[index]

    def joined(self) -> tuple[Float32, NDArray[np.bool_]]:
        """Sort the hits by passage; returns summed worths, and whether a hit is the first of its passage [Q, W].

        A passage's hits come in the order of the runs, and their worth is added in that order.
        """
        self.keys.sort(axis=1)
        mask, width = (1 << self.bits) - 1, self.keys.shape[1]
        place = (self.keys & mask) + (np.arange(len(self.keys)) * width)[:, None]
        worth = self.worth.reshape(-1)[place]
        total, passages = worth.copy(), self.keys >> self.bits
        first = passages < 1 << PASSAGE_BITS
        first[:, 1:] &= passages[:, 1:] != passages[:, :-1]
        for after in range(1, min(len(self.columns), width)):
            total[:, :-after] += worth[:, after:] * (passages[:, after:] == passages[:, :-after])
        return total.astype(np.float32), first


def _bits(width: int) -> int:
    """Bits that number the places of a line."""
    return width.bit_length()


def _nothing(width: int) -> int:
    """A key beyond those of all passages and scores."""
    return 1 << (max(PASSAGE_BITS, SCORE_BITS) + _bits(width))


def _lists(run: Run, place: Int64) -> tuple[Int32, Float32, Int64]:
    """Passages and scores [n] of the lists at ``place`` [Q], and their offsets; adjacent lists are not copied."""
    if len(place) and (np.diff(place) == 1).all():
        offsets = run.offsets[place[0] : place[-1] + 2]
        found = slice(offsets[0], offsets[-1])
        return run.passage_rows[found], run.scores[found], offsets - offsets[0]
    index, offsets = take_spans(run.offsets, place)
    return run.passage_rows[index], run.scores[index], offsets


def of_queries(run: Run, query_rows: Int32) -> Run:
    """The lists of these queries, in their order; those that the run lacks are left out."""
    place = locate(run.query_rows, query_rows)
    return run.select(place[place >= 0])


# ---------------------------------------------------------------- tuning


@dataclass(frozen=True)
class Tuned:
    """The best weights of a grid, and their value."""

    weights: tuple[float, ...]
    value: float


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
    runs : should hold only the queries that are measured (:func:`of_queries`), since all others cost time.
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
        tried.append(Tuned(weights, measured(fuse(runs, weights, fusion=fusion, k=k, id_rank=id_rank))))
        progress(done, len(points))
    return max(tried, key=lambda one: one.value)  # the first of those that are equal


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

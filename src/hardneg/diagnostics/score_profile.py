"""Scores of the first hits above the corpus, and whether negatives are among the informative few.

Figure 3 and Section 6.3 of Xiong et al., "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
Text Retrieval", ICLR 2021: few passages score much above the rest of the corpus, and only these are informative as
negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.diagnostics.encounters import Lists, keys_of
from hardneg.records import Float32, Int32, Int64, Positives, Run, owners, spans, take_spans

Float64 = NDArray[np.float64]

_BLOCK = 1 << 22  # entries looked at together


@dataclass(frozen=True)
class ScoreProfile:
    """The scores of the first hits of each query, minus the query's mean score over the corpus."""

    query_rows: Int32  # [Q]
    scores: Float32  # [Q, depth] on the scale of the run, by rank; NaN after the last hit

    def quantiles(self, levels: tuple[float, ...] = (0.1, 0.5, 0.9)) -> Float64:
        """Quantiles over the queries at each rank [levels, depth]; NaN at a rank that no query reaches."""
        found = np.full((len(levels), self.scores.shape[1]), np.nan)
        reached = ~np.isnan(self.scores).all(axis=0)
        found[:, reached] = np.nanquantile(self.scores[:, reached].astype(np.float64), levels, axis=0)
        return found


def corpus_means(queries: NDArray[np.floating], mean: NDArray[np.floating]) -> Float32:
    """The mean score over the corpus of each query [Q], which is the dot product with the corpus mean.

    Parameters
    ----------
    queries : [Q, dim] vectors.
    mean : [dim] the mean of all passage vectors.
    """
    return np.asarray(queries @ mean.astype(np.float32), np.float32)


def score_profile(run: Run, means: Float32, *, depth: int = 100) -> ScoreProfile:
    """The score profile of a run (ANCE, Fig. 3).

    Parameters
    ----------
    run : best hits first, of the model that made ``means``.
    means : [len(run)] the mean score of each query over the corpus; see :func:`corpus_means`.
    """
    first = run.cut(depth)
    owner = owners(first.offsets)
    place = np.arange(len(owner)) - first.offsets[owner]
    scores = np.full((len(run), depth), np.nan, np.float32)
    scores[owner, place] = first.scores - means[owner]
    return ScoreProfile(run.query_rows, scores)


def training_overlap(
    run: Run, negatives: Lists, *, positives: Positives | None = None, depth: int = 100
) -> Float64:
    """The share of each test query's first irrelevant hits that are negatives of some training query [Q].

    The percentages in ANCE's Fig. 3 compare testing with training negatives. Test queries have no training
    negatives of their own, so a hit counts if it is a negative of any training query. NaN for a query without
    irrelevant hits.

    Parameters
    ----------
    run : the run of the test queries, best hits first.
    negatives : pool or candidates of training.
    positives : D+ of the test queries; they do not count among the ``depth`` hits. None: all hits count.
    """
    owner, rows = _irrelevant(run, positives, depth)
    trained = np.zeros(int(rows.max(initial=-1)) + 1, bool)
    for start in range(0, len(negatives.passage_rows), _BLOCK):
        part = negatives.passage_rows[start : start + _BLOCK]
        trained[part[part < len(trained)]] = True
    count = np.bincount(owner, minlength=len(run))
    found = np.bincount(owner[trained[rows]], minlength=len(run))
    return np.where(count > 0, found / np.maximum(count, 1), np.nan)


def _irrelevant(run: Run, positives: Positives | None, depth: int) -> tuple[Int64, Int32]:
    """Query position and passage of the first ``depth`` hits of each query that are no positives."""
    if positives is None:
        first = run.cut(depth)
        return owners(first.offsets), first.passage_rows
    first = run.cut(depth + int(spans(positives.offsets).max(initial=0)))
    owner = owners(first.offsets)
    keep = ~np.isin(keys_of(first), keys_of(positives))
    before = np.concatenate([[0], np.cumsum(keep)])
    keep &= before[1:] - before[first.offsets[owner]] <= depth
    return owner[keep], first.passage_rows[keep]


def in_batch_share(near: Lists, positives: Positives) -> float:
    """The share of in-batch negatives that are informative, expected over all batches (ANCE, Section 6.3).

    An in-batch negative is the positive of another query of the step, which is drawn with equal chance from the
    other training queries, and from its positives if it has several. A known positive of the query itself is
    masked, and no negative. So the share is computed over all pairs of queries, and no batch is drawn. With B
    queries a step, a query meets about (B - 1) times this share of informative negatives.

    Parameters
    ----------
    near : the first 100 candidates of each training query, positives left out; one list a query.
    positives : D+ of all training queries, [Q].

    The mean is over the queries that have a positive; one without a list in ``near`` has no informative negatives.
    NaN if there are fewer than two queries with positives.
    """
    known = positives.some()
    if len(known) < 2:
        return float("nan")
    passages, which = np.unique(known.passage_rows, return_inverse=True)
    owner = owners(known.offsets)
    brought = np.bincount(which, 1.0 / spans(known.offsets)[owner])  # how often a random query has each
    weights = brought.astype(np.float64, copy=False)
    others = len(known) - np.bincount(owner, weights[which], minlength=len(known))
    informative = _weights_of(near, known, passages, weights)
    return float(np.mean(informative / np.where(others > 1e-9, others, np.inf)))


def _weights_of(near: Lists, known: Positives, passages: Int32, weights: Float64) -> Float64:
    """The sum over the list of each query of ``known`` [Q] of its passages' weights."""
    order = np.argsort(near.query_rows, kind="stable")
    at = np.minimum(np.searchsorted(near.query_rows, known.query_rows, sorter=order), max(len(order) - 1, 0))
    sums = np.zeros(len(known))
    if not len(order):
        return sums
    place = order[at]
    there = np.flatnonzero(near.query_rows[place] == known.query_rows)
    step = max(_BLOCK // max(int(spans(near.offsets).max(initial=1)), 1), 1)
    for start in range(0, len(there), step):
        queries = there[start : start + step]
        index, offsets = take_spans(near.offsets, place[queries])
        rows = near.passage_rows[index]
        where = np.minimum(np.searchsorted(passages, rows), len(passages) - 1)
        found = np.where(passages[where] == rows, weights[where], 0.0)
        sums[queries] = np.bincount(owners(offsets), found, minlength=len(queries))
    return sums

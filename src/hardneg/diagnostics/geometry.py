"""Geometry of the vectors: alignment, uniformity, mean cosine, hubs, and how norms drift.

Alignment and uniformity: Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
Uniformity on the Hypersphere", ICML 2020. Hubness: Radovanović, Nanopoulos and Ivanović, "Hubs in Space", JMLR
2010.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Int32, Int64, Run

Float64 = NDArray[np.float64]
Vectors = NDArray[np.floating]

_BLOCK = 1024  # vectors looked at together


def alignment(queries: Vectors, positives: Vectors, *, power: float = 2.0) -> float:
    """How near queries and positives lie on the sphere: the mean of |q - d+| ** ``power``; 0 is best.

    Wang and Isola, Section 4.1.1, with their default 2.

    Parameters
    ----------
    queries, positives : [n, dim] vectors of the same pairs, scaled to length 1 here; n is at least 1.
    """
    total = 0.0
    for start in range(0, len(queries), _BLOCK):
        part = slice(start, start + _BLOCK)
        apart = np.linalg.norm(directions(queries[part]) - directions(positives[part]), axis=1)
        total += float((apart**power).sum())
    return total / len(queries)


def uniformity(vectors: Vectors, *, scale: float = 2.0) -> float:
    """How evenly vectors cover the sphere: log of the mean of exp(-``scale`` * |x - y|²) over distinct pairs.

    Wang and Isola, Section 4.1.2, with their default 2. Lower is more even; 0 is the worst, all in one place. The
    time grows with n², so give a sample.

    Parameters
    ----------
    vectors : [n, dim], scaled to length 1 here; n is at least 2.
    """
    n, points, total = len(vectors), directions(vectors), 0.0
    for start in range(0, n, _BLOCK):
        for other in range(start, n, _BLOCK):
            cosines = points[start : start + _BLOCK] @ points[other : other + _BLOCK].T
            kernel = np.exp(-scale * np.maximum(2 - 2 * cosines, 0))
            total += float((np.triu(kernel, 1) if other == start else kernel).sum())  # each pair once
    return float(np.log(total / (n * (n - 1) / 2)))


def mean_cosine(vectors: Vectors) -> float:
    """The mean cosine over all pairs of two of these vectors [n, dim], n at least 2; 1: all have one direction."""
    n, total = len(vectors), np.zeros(vectors.shape[1])
    for part in _parts(vectors):
        total += directions(part).sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))


def directions(vectors: Vectors) -> Float64:
    """The vectors [n, dim] scaled to length 1; a zero vector is not changed."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(lengths > 0, lengths, 1)


def _parts(vectors: Vectors) -> Iterator[Vectors]:
    for start in range(0, len(vectors), _BLOCK):
        yield vectors[start : start + _BLOCK]


# ---------------------------------------------------------------- hubs


@dataclass(frozen=True)
class Hubness:
    """How often passages are among the first hits of queries (k-occurrences), most often first."""

    passage_rows: Int32  # [m] those that occur at all; ties ascend by row
    counts: Int64  # [m] queries that have the passage among their first ``depth`` hits
    depth: int
    n_passages: int
    skewness: float  # of the counts of all passages; 0 is symmetric, and hubs make it large

    @property
    def never(self) -> float:
        """The share of passages that are among no query's first hits (the antihubs)."""
        return 1 - len(self.passage_rows) / self.n_passages

    def as_json(self) -> dict[str, Any]:
        """Numbers that describe the whole: largest count, skewness, share of passages that never occur."""
        largest = int(self.counts[0]) if len(self.counts) else 0
        return {"depth": self.depth, "largest": largest, "skewness": self.skewness, "never": self.never}


def hubness(run: Run, n_passages: int, *, depth: int = 10) -> Hubness:
    """Count how often each passage is among a query's first ``depth`` hits.

    Parameters
    ----------
    run : best hits first.
    n_passages : the size of the corpus, at least 1; passages that never occur count for the skewness.
    """
    rows, counts = np.unique(run.cut(depth).passage_rows, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return Hubness(rows[order], counts[order], depth, n_passages, _skewness(counts, n_passages))


def _skewness(counts: Int64, n: int) -> float:
    """The third standardised moment of ``counts`` [m] and n - m zeros; 0 if all are equal."""
    mean = counts.sum() / n

    def moment(power: int) -> float:
        return float((((counts - mean) ** power).sum() + (n - len(counts)) * (-mean) ** power) / n)

    variance = moment(2)
    return moment(3) / variance**1.5 if variance > 0 else 0.0


# ---------------------------------------------------------------- norms


@dataclass(frozen=True)
class Drift:
    """How the vectors of the same texts changed from one state of the model to another."""

    before: Float64  # [n] norms
    after: Float64  # [n] norms
    cosines: Float64  # [n] of each text's two vectors; NaN where one is zero, or if the dimensions differ

    def as_json(self) -> dict[str, float]:
        """Mean norms before and after, their ratio, quantiles of the ratios of the texts, and the mean cosine."""
        ratios = self.after[self.before > 0] / self.before[self.before > 0]
        low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9]) if len(ratios) else [float("nan")] * 3
        known = self.cosines[~np.isnan(self.cosines)]
        return {
            "norm_before": float(self.before.mean()),
            "norm_after": float(self.after.mean()),
            "ratio": float(self.after.mean() / self.before.mean()) if self.before.any() else float("nan"),
            "ratio_10": float(low),
            "ratio_50": float(middle),
            "ratio_90": float(high),
            "cosine": float(known.mean()) if len(known) else float("nan"),
        }


def norm_drift(before: Vectors, after: Vectors) -> Drift:
    """Norms and cosines of the same texts, encoded by two states of the model.

    Parameters
    ----------
    before, after : [n, dim] vectors of the same rows, n at least 1; they are read in blocks.
    """
    norms = [np.concatenate([_norms(part) for part in _parts(vectors)]) for vectors in (before, after)]
    if before.shape[1] != after.shape[1]:
        return Drift(norms[0], norms[1], np.full(len(before), np.nan))
    dots = [
        np.einsum("nd,nd->n", np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(_parts(before), _parts(after), strict=True)
    ]
    lengths = norms[0] * norms[1]
    cosines = np.where(lengths > 0, np.concatenate(dots) / np.where(lengths > 0, lengths, 1), np.nan)
    return Drift(norms[0], norms[1], cosines)


def _norms(vectors: Vectors) -> Float64:
    return np.asarray(np.linalg.norm(np.asarray(vectors, np.float64), axis=1))

"""Counted pairwise errors: by query, stored beside a state's runs, and compared between states.

Table 1 and Figure 3 of Zhan et al., "Optimizing Dense Retrieval Model Training with Hard Negatives", SIGIR 2021.
The module loads no torch, so a report reads what :mod:`hardneg.diagnostics.pairwise_errors` counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.evaluation.judged import JudgedHits
from hardneg.evaluation.significance import bootstrap_interval, holm_within, randomization_test
from hardneg.records import Float32, Int32, Int64, offsets_of, owners, spans
from hardneg.storage.artifacts import load_array, open_artifact, publish

TOP = 200  # K of the paper
KIND = "pairwise-errors"
ARRAYS = ("query_rows", "offsets", "scores", "errors")


@dataclass(frozen=True)
class PairwiseErrors:
    """Errors of every positive, by query."""

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    scores: Float32  # [n] of the positives
    errors: Int64  # [n] irrelevant passages that score strictly higher (STAR, Eq. 3)

    def of_queries(self, top: int | None = None) -> Int64:
        """[Q] the sum over a query's positives of their errors, or of min(errors, ``top``) (STAR, Eqs. 5, 6)."""
        errors = self.errors if top is None else np.minimum(self.errors, top)
        return np.bincount(owners(self.offsets), errors, minlength=len(self.query_rows)).astype(np.int64)

    def mean(self, top: int | None = None) -> float:
        """The mean of :meth:`of_queries` over the queries that have a positive."""
        return float(self.of_queries(top)[spans(self.offsets) > 0].mean())

    def distribution(self) -> list[dict[str, Any]]:
        """Shares of the queries and of all errors, by decades of a query's errors (STAR, Fig. 3).

        A row is for queries with at least ``least`` and fewer than ``below`` errors; the first, for those without.
        """
        errors = self.of_queries()[spans(self.offsets) > 0]
        decades = np.char.str_len(errors.astype(str)) * (errors > 0)  # digits: exact, unlike a logarithm
        count = np.bincount(decades)
        total = np.bincount(decades, errors)
        return [
            {
                "least": 10 ** (i - 1) if i else 0,
                "below": 10**i,
                "queries": float(count[i] / len(errors)),
                "errors": float(total[i] / max(total.sum(), 1)),
            }
            for i in range(len(count))
        ]

    def as_json(self, top: int = TOP) -> dict[str, Any]:
        """The figures for ``results.json``.

        ``total`` is the mean number of errors of a query, ``top`` the mean if at most ``k`` count for each
        positive, ``queries`` the number of queries with positives; ``distribution`` is that of
        :meth:`distribution`.
        """
        return {
            "total": self.mean(),
            "top": self.mean(top),
            "k": top,
            "queries": int((spans(self.offsets) > 0).sum()),
            "distribution": self.distribution(),
        }


def save_errors(errors: PairwiseErrors, path: Path, inputs: Mapping[str, str]) -> None:
    """Publish errors query by query at ``path``."""
    with publish(path, KIND, inputs=inputs, replace=True) as draft:
        for name in ARRAYS:
            draft.array(f"{name}.npy", getattr(errors, name))
        draft.facts.update(errors.as_json())


def load_errors(path: Path) -> PairwiseErrors:
    """Open what :func:`save_errors` published."""
    open_artifact(path, KIND)
    return PairwiseErrors(**{name: load_array(path / f"{name}.npy") for name in ARRAYS})


# ---------------------------------------------------------------- of ranked lists


def most_errors(hits: JudgedHits, top: int = TOP) -> int:
    """The K for the lists of a run: ``top``, or the length of the shortest list, if less.

    Queries without a list do not count.
    """
    return int(hits.returned[hits.returned > 0].min(initial=top))


def errors_in_lists(hits: JudgedHits, k: int) -> Int64:
    """[Q] the sum over a query's positives of min(errors, K) in its list (STAR, Eq. 6); 0 without a list.

    A positive that a list does not reach has as many errors as the list has irrelevant passages, at most K. So a
    list of relevant passages alone has none, and bounds no other query's errors.

    Parameters
    ----------
    hits : as ``evaluation.measures.relevant_hits`` gives them; passages of equal score count in their order.
    k : no more than :func:`most_errors` of these.
    """
    found = hits.count(hits.query)
    above = hits.rank - (np.arange(len(hits.query)) - offsets_of(found)[hits.query])  # without positives above
    errors = np.bincount(hits.query, np.minimum(above, k), minlength=len(found)).astype(np.int64)
    return errors + (spans(hits.qrels.offsets) - found) * np.minimum(hits.returned - found, k)


# ---------------------------------------------------------------- between states


def compare_errors(
    states: Mapping[str, PairwiseErrors],
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int,
    permutations: int = 100_000,
    samples: int = 10_000,
    top: int = TOP,
) -> list[dict[str, Any]]:
    """Paired tests of the errors of the same queries in two states, all errors and the first ``top``.

    A row for each pair (a, b) and count: ``a``, ``b``, ``errors`` (``"all"`` or ``"first <top>"``), the mean
    ``difference`` a - b of a query, its 95 % bootstrap ``interval``, ``fewer`` and ``more`` (the shares of queries
    with fewer or more errors in a), ``p`` of the two-sided randomisation test, and ``p_holm``, corrected
    over the pairs of a count.

    Parameters
    ----------
    states : errors by state; those of a pair belong to the same queries.

    Raises
    ------
    ValueError : two states of a pair were counted on different queries.
    """
    rows: list[dict[str, Any]] = []
    for a, b in pairs:
        one, other = states[a], states[b]
        if not np.array_equal(one.query_rows, other.query_rows):
            raise ValueError(f"{a} and {b} have the errors of different queries")
        known = spans(one.offsets) > 0
        for name, most in (("all", None), (f"first {top}", top)):
            x, y = (part.of_queries(most)[known].astype(np.float64) for part in (one, other))
            low, high = bootstrap_interval(x - y, samples=samples, seed=seed)
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "errors": name,
                    "difference": float((x - y).mean()),
                    "interval": [low, high],
                    "fewer": float(np.mean(x < y)),
                    "more": float(np.mean(x > y)),
                    "p": randomization_test(x, y, permutations=permutations, seed=seed),
                }
            )
    adjusted = holm_within([row["errors"] for row in rows], [row["p"] for row in rows])
    for row, corrected in zip(rows, adjusted, strict=True):
        row["p_holm"] = float(corrected)
    return rows

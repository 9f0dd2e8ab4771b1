"""The figures of an experiment, computed from its measurements: measures by state, comparisons and forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardneg.diagnostics.forgetting import forgetting
from hardneg.diagnostics.measured import Measured
from hardneg.evaluation.measures import Evaluation, Measure
from hardneg.evaluation.significance import bootstrap_interval, holm_within, randomization_test
from hardneg.experiment.names import BEFORE, BM25, FINAL, LAST, RETRIEVED, STARTED, UNTRAINED

Seen = Mapping[str, Measured]  # by name, in the order of training


def dev_values(seen: Seen, last: str, measure: Measure) -> dict[str, float]:
    """The value on dev of every state that can be kept, in the order of training; empty without a dev split.

    If settings changed the model before training, both the model as it came and the state that training started
    from can be kept. If training is for an index, the value is that of the state as the index retrieves it; the
    model as it came was not searched through the index, so it is left out where settings changed it.

    Parameters
    ----------
    last : the name of the state after the last step; its value stands under ``last``.
    """
    found: dict[str, float] = {}
    indexed = {one.record.of: one for one in seen.values() if one.record.kind == "indexed"}
    before = (STARTED,) if STARTED in indexed else BEFORE
    for name, one in seen.items():
        can_be_kept = one.record.of is None and (one.place is not None or name in (*before, last))
        through = indexed.get(name, one)
        if can_be_kept and "dev" in through.evaluations:
            found[LAST if name == last else name] = through.evaluations["dev"].means[str(measure)]
    return found


def summarize(seen: Seen, *, seed: int, first_episode: int = 1) -> dict[str, Any]:
    """The entries of ``results.json`` about the states of an experiment.

    If no state was searched for the training queries, ``examined`` says so, in place of the figures that compare
    their runs.

    Parameters
    ----------
    seen : the measured states, with figures; ``bm25`` first, ``final`` last.
    seed : the seed of the significance tests.
    """
    evaluations = by_split({name: one.evaluations for name, one in seen.items()})
    results: dict[str, Any] = {}
    for split, found in evaluations.items():
        results[split] = {name: evaluation.means for name, evaluation in found.items()}
        if "comparisons" not in results:
            results["compared_on"] = split
            others = [other for other in (UNTRAINED, STARTED, BM25, RETRIEVED) if other in found]
            results["comparisons"] = compare_states(found, [(FINAL, other) for other in others], seed=seed)
    shares = {name: one.informative for name, one in seen.items() if one.informative is not None}
    errors = {"pairwise_errors": by_split({name: one.errors for name, one in seen.items()})}
    if all(one.record.asked != "all" for one in seen.values()):
        return {**results, **errors, "examined": "judged"}
    return {
        **results,
        "forgetting": forgetting(ranks_of(seen), first=first_episode),
        **errors,
        "informative": shares,
    }


def ranks_of(seen: Seen) -> dict[str, Any]:
    """The reciprocal ranks [Q] of every state of training; indexed and re-ranked forms are left out."""
    ranks = {name: one.ranks for name, one in seen.items() if one.ranks is not None and one.record.of is None}
    if LAST in ranks:  # the final one is one of those before
        ranks.pop(FINAL, None)
    return ranks


def by_split(states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures by state and split, regrouped by split and state."""
    splits = list(dict.fromkeys(split for found in states.values() for split in found))
    return {split: {s: found[split] for s, found in states.items() if split in found} for split in splits}


def compare_states(
    evaluations: Mapping[str, Evaluation],
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int,
    permutations: int = 100_000,
) -> list[dict[str, Any]]:
    """Paired tests of state pairs (a, b) for every measure; ``difference`` is a - b.

    ``p`` is that of the two-sided randomisation test, and ``interval`` the 95 % bootstrap interval of the
    difference over queries. ``p_holm`` is corrected over the pairs of a measure, as in :func:`compare`, except
    those of a state and its copy, such as the untrained model where it was kept: there is nothing to test.
    """
    rows: list[dict[str, Any]] = []
    tested: list[dict[str, Any]] = []
    for a, b in pairs:
        copied = all(np.array_equal(evaluations[a].of(m), evaluations[b].of(m)) for m in evaluations[a].values)
        for measure in evaluations[a].values:
            x, y = evaluations[a].of(measure), evaluations[b].of(measure)
            low, high = bootstrap_interval(x - y, seed=seed)
            rows.append(
                {
                    "a": a,
                    "b": b,
                    "measure": measure,
                    "difference": float((x - y).mean()),
                    "interval": [low, high],
                    "p": randomization_test(x, y, permutations=permutations, seed=seed),
                    "p_holm": 1.0,
                }
            )
            tested += [] if copied else rows[-1:]
    adjusted = holm_within([row["measure"] for row in tested], [row["p"] for row in tested])
    for row, corrected in zip(tested, adjusted, strict=True):
        row["p_holm"] = float(corrected)
    return rows

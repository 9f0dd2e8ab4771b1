"""Pools the results of an experiment that was run with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SHARES = ("forgotten", "learned", "train_mrr_100")


def pool_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation and values over seeds, for every measure of every state and for forgetting.

    A state that not all seeds have is left out (such as the last one, if another was kept). Forgetting is pooled
    between states that all seeds went through; asynchronous runs may go through different ones. The measures
    of states fused with BM25 are pooled, too; their tests are those of each seed alone.
    """
    seeds = sorted(results)
    pooled: dict[str, Any] = {"seeds": seeds} | pooled_measures([results[seed] for seed in seeds])
    if all("fused" in results[seed] for seed in seeds):
        fused = [results[seed]["fused"] for seed in seeds]
        pooled["fused"] = {name: fused[0][name] for name in ("method", "rank_constant")} | pooled_measures(fused)
    steps = [{(row["before"], row["after"]): row for row in results[seed].get("forgetting", [])} for seed in seeds]
    shared = [step for step in steps[0] if all(step in found for found in steps)]
    if (examined := results[seeds[0]].get("examined")) is not None:
        pooled["examined"] = examined
    else:
        pooled["forgetting"] = [
            {"before": step[0], "after": step[1]}
            | {name: spread([found[step][name] for found in steps]) for name in SHARES}
            for step in shared
        ]
    if (among := results[seeds[0]].get("dev_among")) is not None:  # all seeds hold out the same queries
        pooled["dev_among"] = among
    if kept := {str(seed): results[seed]["kept"] for seed in seeds if "kept" in results[seed]}:
        pooled["kept"] = kept
    if tried := {str(seed): results[seed]["tried"] for seed in seeds if "tried" in results[seed]}:
        pooled["tried"] = tried
    return pooled


def pooled_measures(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By split and state, the spread of every measure of the states that all ``results`` have."""
    return {
        split: {
            state: {name: spread([found[split][state][name] for found in results]) for name in measured}
            for state, measured in results[0][split].items()
            if all(state in found[split] for found in results)
        }
        for split in ("test", "dev")
        if split in results[0]
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """The mean, the sample standard deviation (0 for a single value) and the values themselves."""
    if len(set(values)) == 1:  # rounding would give a mean beside them, and a deviation
        return {"mean": float(values[0]), "std": 0.0, "values": list(values)}
    deviation = float(np.std(values, ddof=1))
    return {"mean": float(np.mean(values)), "std": deviation, "values": list(values)}

"""Several executions of an experiment that differ in their seeds, pooled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def pool_seeds(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation and values over seeds of every measure of every state."""
    seeds = sorted(results)
    pooled: dict[str, Any] = {"seeds": seeds}
    for split in ("test", "dev"):
        if split in results[seeds[0]]:
            pooled[split] = {
                state: {name: spread([results[seed][split][state][name] for seed in seeds]) for name in measured}
                for state, measured in results[seeds[0]][split].items()
            }
    return pooled


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (0 of one value) and the values themselves."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "std": deviation, "values": list(values)}

"""Figures over the seeds of a way of training: means with their spread, and what so many seeds can show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student


def over_seeds(values: Sequence[float], form: str = ".4f") -> str:
    """A mean, with the standard deviation if there are several values."""
    if not values:
        return "not run"
    spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def detectable(differences: NDArray[np.float64], seeds: int) -> float:
    """The smallest true difference of the means that so many ``seeds`` show in four of five studies.

    That is by a paired t-test over seeds at the level of 5 %, if the differences spread over seeds as these do. It
    is the usual approximation, (t(0.975) + t(0.8)) s / sqrt(n) (Cohen, "Statistical power analysis", 1988).
    """
    quantiles = student.ppf(0.975, seeds - 1) + student.ppf(0.8, seeds - 1)
    return float(quantiles * np.std(differences, ddof=1) / np.sqrt(seeds))

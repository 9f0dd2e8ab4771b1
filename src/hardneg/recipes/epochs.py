"""The number of steps of so many passes over the queries; no torch is loaded, as advice counts steps, too."""

from __future__ import annotations

import math

from hardneg.arguments import LARGEST
from hardneg.errors import SettingsError

ROUNDED = 1e-12  # by so much of them, rounding may have made steps more: 1.1 · 100 is 110.00000000000001 in floats


def steps_of_epochs(epochs: float, queries: int, size: int) -> int:
    """The steps of so many passes over ``queries``, of ``size`` queries each; a part of a step is made whole.

    Raises
    ------
    SettingsError : there are more steps than can be counted.
    """
    steps = epochs * math.ceil(queries / size)
    if steps > LARGEST:
        raise SettingsError("BAD_SETTING", f"{epochs:g} epochs are {steps:g} steps", "give fewer epochs")
    return math.ceil(steps * (1 - ROUNDED))

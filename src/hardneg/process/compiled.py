"""The decorator of loops that numba compiles. Importing this module loads numba, which is an extra.

It raises an ImportError if numba is told to compile nothing: Python would take minutes for such a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import config, njit

if getattr(config, "DISABLE_JIT", 0):  # set from the environment
    raise ImportError("NUMBA_DISABLE_JIT is set")


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as compiled code that runs without Python's lock; it is cached on disk if there is a place."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no place for the cache
        return njit(nogil=True)(function)

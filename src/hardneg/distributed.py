"""Rank and shard of this process, and the flag that asks every process to stop.

The only place that knows the world size.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from hardneg.errors import Interrupted, SettingsError


def rank() -> int:
    """Number of this process, as ``torchrun`` sets it; 0 when alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes work together; 1 when alone."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def shard_of(text: str | None) -> tuple[int, int]:
    """(i, n) of ``--shard i/n``, else of the launcher's rank and world size."""
    if text is None:
        return rank(), world_size()
    left, _, right = text.partition("/")
    if left.isdecimal() and right.isdecimal() and int(left) < int(right):
        return int(left), int(right)
    raise SettingsError("BAD_SHARD", f"'{text}' is not a shard", "write --shard i/n with 0 <= i < n")


class StopFlag:
    """Raised by SIGINT or SIGTERM; work looks at it where it can stop and resume.

    A second signal aborts at once: artefacts are atomic, so nothing is lost but the work since the last one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def install(self) -> None:
        """Listen for the signals in this process."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def __bool__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Stop here if asked to."""
        if self.signal is not None:
            name = signal.Signals(self.signal).name
            raise Interrupted("STOPPED", f"stopped by {name}", "run the same command again to resume")


stop_flag = StopFlag()

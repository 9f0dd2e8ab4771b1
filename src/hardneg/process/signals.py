"""The flag that asks this process to stop, where it can stop and resume."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from hardneg.errors import Interrupted


class StopFlag:
    """A flag that SIGINT or SIGTERM raises; work looks at it where it can stop and resume.

    A second signal aborts at once: artefacts are atomic, so nothing is lost but the work since the last one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the signal to stop for
        self.heard: int | None = None  # the signal that this process received
        self.together = False
        self.asked = False  # by this process itself

    def install(self) -> None:
        """Listen for the signals in this process."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.heard is not None:
            raise KeyboardInterrupt
        self.heard = number
        if not self.together:
            self.signal = number

    def ask(self, *, together: bool) -> None:
        """Ask this process to stop as a signal does.

        Parameters
        ----------
        together : whether others work with it; then all stop where they next agree on it, and not before.
        """
        self.asked, self.heard = True, self.heard or signal.SIGTERM
        if not together:
            self.signal = self.heard

    def forget(self) -> None:
        """Lower the flag if :meth:`ask` raised it: the process goes on with something else."""
        if self.asked:
            self.asked, self.heard, self.signal = False, None, None

    def __bool__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Stop here, by raising :class:`Interrupted`, if the flag is raised."""
        if self.signal is not None:
            name = signal.Signals(self.signal).name
            raise Interrupted("STOPPED", f"stopped by {name}", "run the same command again to resume")

    @contextlib.contextmanager
    def agreed(self, number: int) -> Iterator[None]:
        """In the block, raise the flag for the signal on which all processes agreed (0: none) and for no other."""
        self.together, self.signal = True, number or None
        try:
            yield
        finally:
            self.together, self.signal = False, self.signal or self.heard


stop_flag = StopFlag()

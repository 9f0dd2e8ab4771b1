"""The flag that asks this process to stop, where it can stop and resume."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Iterator
from types import FrameType

from hardneg.errors import Interrupted


def stops() -> tuple[signal.Signals, ...]:
    """The signals at which this process stops.

    SIGHUP, which comes when the terminal is closed, is among them unless somebody had it ignored (``nohup``).
    """
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else []))


def leave_terminal() -> None:
    """Write no more to a terminal that was closed: a line that fails would end the work before it is saved."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, number)
                os.close(null)


class StopFlag:
    """A flag that SIGINT, SIGTERM or SIGHUP raises; work looks at it where it can stop and resume.

    A second signal aborts at once: artefacts are atomic, so nothing is lost but the work since the last one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the signal to stop for
        self.heard: int | None = None  # the signal that this process received
        self.together = False
        self.asked = False  # by this process itself
        self.asker = 0  # the thread that asked: others have work of their own, which goes on
        self.joined = False  # whether it is raised for what another process heard or asked

    def install(self) -> None:
        """Listen for the signals in this process."""
        for number in stops():
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.heard is not None:
            raise KeyboardInterrupt
        self.heard = number
        if not self.together:
            self.signal = number

    def ask(self, *, together: bool) -> None:
        """Ask this thread to stop as a signal does; other threads of this process go on.

        Parameters
        ----------
        together : whether others work with it; then all stop where they next agree on it, and not before.
        """
        self.asked, self.asker = True, threading.get_ident()
        self.heard = self.heard or signal.SIGTERM
        if not together:
            self.signal = self.heard

    def forget(self) -> None:
        """Lower the flag if :meth:`ask` raised it, here or in another process, to go on with other work."""
        if self.asked or self.joined:
            self.asked, self.joined, self.heard, self.signal = False, False, None, None

    def __bool__(self) -> bool:
        return self.signal is not None and (not self.asked or self.asker == threading.get_ident())

    def check(self) -> None:
        """Stop here, by raising :class:`Interrupted`, if the flag is raised."""
        if self and self.signal is not None:
            name = signal.Signals(self.signal).name
            raise Interrupted(
                "STOPPED", f"stopped by {name}", "run the same command again; it goes on from what is kept"
            )

    @contextlib.contextmanager
    def agreed(self, number: int) -> Iterator[None]:
        """In the block, raise the flag for the signal on which all processes agreed (0: none) and for no other."""
        self.together, self.signal = True, number or None
        self.joined = bool(number) and self.heard is None
        try:
            yield
        finally:
            self.together, self.signal = False, self.signal or self.heard


stop_flag = StopFlag()

"""Progress with rate and time left: a bar on a terminal, plain lines every few seconds elsewhere.

Work reports by calling ``tick(done, total)``; silent unless the command line turns reporting on.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from hardneg.distributed import stop_flag

Tick = Callable[[int, int], None]

PLAIN_SECONDS = 5.0

enabled = False


def turn_on() -> None:
    """Report progress on stderr from now on."""
    global enabled
    enabled = True


@contextlib.contextmanager
def track(title: str, unit: str = "") -> Iterator[Tick]:
    """Report the work of the block under ``title``; every tick is also a place to stop."""
    show = _silent if not enabled else _Bar(title, unit) if sys.stderr.isatty() else _Lines(title, unit)

    def tick(done: int, total: int) -> None:
        show(done, total)
        stop_flag.check()

    try:
        yield tick
    finally:
        close = getattr(show, "close", None)
        if close:
            close()


def note(message: str) -> None:
    """One plain line for the reader of the terminal."""
    if enabled:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def _silent(done: int, total: int) -> None:
    """Report nothing."""


class _Lines:
    """Plain lines: at most one every few seconds, and a last one if any was written."""

    def __init__(self, title: str, unit: str) -> None:
        self.title, self.unit = title, unit
        self.begun = self.last = time.monotonic()
        self.first = 0
        self.started = False

    def __call__(self, done: int, total: int) -> None:
        if not self.started:  # a resumed task begins in the middle
            self.started, self.first = True, done if done < total else 0
        now = time.monotonic()
        if now - self.last >= PLAIN_SECONDS:
            self.last = now
            note(f"{self.title}: {describe(done, total, self.first, now - self.begun, self.unit)}")


class _Bar:
    """A bar on the terminal."""

    def __init__(self, title: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
        )
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task(title, total=None, text="")
        self.unit, self.begun, self.first = unit, time.monotonic(), -1
        self.progress.start()

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done if done < total else 0
        text = describe(done, total, self.first, time.monotonic() - self.begun, self.unit).split(", ")
        self.progress.update(self.task, completed=done, total=total, text=", ".join(text[:2]))

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()


def describe(done: int, total: int, first: int, seconds: float, unit: str) -> str:
    """``done/total, rate, time left``."""
    rate = (done - first) / max(seconds, 1e-9)
    left = clock((total - done) / rate) if rate > 0 else "?"
    return f"{done:,}/{total:,} {unit}, {rate:,.1f}/s, {left} left".replace("  ", " ").replace(" ,", ",")


def clock(seconds: float) -> str:
    """Seconds as a person reads them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"

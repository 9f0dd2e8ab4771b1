"""Progress with rate and time left: a bar on a terminal, plain lines every few seconds elsewhere.

Work reports by calling ``tick(done, total)``; silent unless the command line turns reporting on.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hardneg.process.signals import stop_flag

log = logging.getLogger(__name__)

T = TypeVar("T")
Tick = Callable[[int, int], None]  # done and total; 0 where the total is not known

PLAIN_SECONDS = 5.0
EVERY = 1 << 10  # items between two reports

enabled = False
muted = False  # reporting stays off
beats = 0  # grows with every sign of progress; a process that hangs does not


def pulse() -> None:
    """Count a sign of life of this process, even if it only waits."""
    global beats
    beats += 1


def turn_on() -> None:
    """Report progress on stderr from now on, unless it is muted."""
    global enabled
    enabled = not muted


def mute(silent: bool) -> None:
    """Let :func:`turn_on` do nothing, or turn reporting on again."""
    global muted
    muted = silent


@contextlib.contextmanager
def track(title: str, unit: str = "") -> Iterator[Tick]:
    """Report the work of the block under ``title``; every tick is also a place to stop."""
    show = silent if not enabled else _Bar(title, unit) if sys.stderr.isatty() else _Lines(title, unit)

    def tick(done: int, total: int) -> None:
        pulse()
        show(done, total)
        stop_flag.check()

    try:
        yield tick
    finally:
        close = getattr(show, "close", None)
        if close:
            close()


def counted(items: Iterable[T], title: str, unit: str, total: int = 0) -> Iterator[T]:
    """Yield ``items`` as they are, and report how many of ``total`` (0: unknown) were taken, under ``title``."""
    with track(title, unit) as tick:
        done = 0
        for done, item in enumerate(items, 1):
            yield item
            if done % EVERY == 0:
                tick(done, total)
        tick(done, total)


def note(message: str) -> None:
    """Write one line to the terminal, where reporting is on."""
    if enabled:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def say(message: str) -> None:
    """Write one line to the terminal and to the log of an experiment."""
    note(message)
    log.info(message)


def silent(done: int, total: int) -> None:
    """Ignore the progress that is reported."""


class _Lines:
    """Progress as plain lines: at most one every few seconds, and a last one if any was written."""

    def __init__(self, title: str, unit: str) -> None:
        self.title, self.pace = title, Pace(unit)
        self.last = time.monotonic()
        self.written, self.pending = False, ""

    def __call__(self, done: int, total: int) -> None:
        self.pending = f"{self.title}: {self.pace(done, total)}"
        if time.monotonic() - self.last >= PLAIN_SECONDS:
            self.written = True
            self._write()

    def _write(self) -> None:
        note(self.pending)
        self.last, self.pending = time.monotonic(), ""

    def close(self) -> None:
        """Write the last line that was held back, if any line was written before."""
        if self.written and self.pending:
            self._write()


class _Bar:
    """Progress as a bar on the terminal."""

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
        self.pace = Pace(unit)
        self.progress.start()

    def __call__(self, done: int, total: int) -> None:
        text = self.pace(done, total).split(", ")
        self.progress.update(self.task, completed=done, total=total or None, text=", ".join(text[:2]))

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()


class Pace:
    """The rate of some work, and how far it is, in words.

    The rate counts from the first report, since a resumed task begins in the middle.
    """

    def __init__(self, unit: str) -> None:
        self.unit, self.begun = unit, time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int, total: int) -> str:
        """The text ``done/total, rate, time left`` at this moment."""
        now = time.monotonic()
        if self.first is None:
            self.first = 0 if done >= total else done
            self.begun = self.begun if done >= total else now
        return describe(done, total, self.first, now - self.begun, self.unit)


def describe(done: int, total: int, first: int, seconds: float, unit: str) -> str:
    """The text ``done/total, rate, time left``, or ``done, rate`` where ``total`` is 0."""
    rate = (done - first) / max(seconds, 1e-9)
    left = clock((total - done) / rate) if rate > 0 else "?"
    speed = f"{rate:,.1f}" if rate >= 1 else f"{rate:.2g}"
    text = f"{done:,}/{total:,} {unit}, {speed}/s, {left} left" if total else f"{done:,} {unit}, {speed}/s"
    return text.replace("  ", " ").replace(" ,", ",")


def clock(seconds: float) -> str:
    """A number of seconds as a person reads it, such as ``2m05s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"

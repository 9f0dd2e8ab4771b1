"""Progress with rate and time left: a bar on a terminal or in a notebook, else plain lines every few seconds.

Work reports by calling ``tick(done, total)``. Nothing is shown unless the command line turns reporting on, or a
notebook's kernel runs. Where the stages of the whole work are known (:mod:`hardneg.process.stages`), each line
says which stage is running, and how long all stages take.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from hardneg.callers import in_callers_words
from hardneg.hidden import harmless
from hardneg.process import stages
from hardneg.process.signals import stop_flag
from hardneg.surroundings import python_draws_kept

log = logging.getLogger(__name__)

T = TypeVar("T")
Tick = Callable[[int, int], None]  # done and total; 0 where the total is not known

PLAIN_SECONDS = 5.0
CELL_SECONDS = 0.25  # between two pictures of a notebook's bar
WAIT_SECONDS = 0.2  # between two looks at what another process makes
EVERY = 1 << 10  # items between two reports

enabled = False
muted = False  # reporting stays off
_wanted: bool | None = None  # what a caller of the library asks for
beats = 0  # grows with every sign of progress; a process that hangs does not
waits = 0  # how many of the beats were made in waiting for another process


def pulse() -> None:
    """Count a sign of life of this process, even if it only waits."""
    global beats
    beats += 1


def wait_for_another() -> None:
    """Sleep for a moment while another process works for this one too; the stop flag is obeyed here."""
    global waits
    waits += 1
    pulse()
    stop_flag.check()
    time.sleep(WAIT_SECONDS)


def turn_on() -> None:
    """Report progress on stderr from now on, unless it is muted."""
    global enabled
    enabled = not muted


def mute(silent: bool) -> None:
    """Decide whether :func:`turn_on` does nothing (``silent``), or turns reporting on."""
    global muted
    muted = silent


@contextlib.contextmanager
def track(title: str, unit: str = "", *, kind: str = "") -> Iterator[Tick]:
    """Report the work of the block under ``title``; every tick also obeys the stop flag.

    Parameters
    ----------
    kind : the kind of work, by which the stages of the whole count it; "": they do not count it.
    """
    show, course = shower(title, unit), stages.course()
    with contextlib.ExitStack() as stack:
        meter = stack.enter_context(course.measuring(kind)) if course and kind else None
        stack.callback(getattr(show, "close", lambda: None))

        def tick(done: int, total: int) -> None:
            pulse()
            if meter is not None:
                meter.report(done, total)
            show(done, total)
            stop_flag.check()

        yield tick


def shower(title: str, unit: str) -> Tick:
    """The function that shows the progress of some work now: in a notebook, as a bar, as lines, or not at all."""
    course = stages.course()
    title = title if course is None else course.place + title
    if not is_shown():
        return silent
    if in_notebook():
        return _Cell(title, unit)
    return _Bar(title, unit) if Unfailing(sys.stderr).isatty() else _Lines(title, unit)


def is_shown() -> bool:
    """Whether progress is shown now: as :func:`showing` says, else where it is on, or in a notebook."""
    return (enabled or in_notebook()) if _wanted is None else _wanted


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return "ipykernel.kernelapp" in sys.modules and "IPython" in sys.modules


@contextlib.contextmanager
def showing(wanted: bool | None) -> Iterator[None]:
    """Show progress in the block, or do not show it; None: as it is outside the block."""
    global _wanted
    before, _wanted = _wanted, _wanted if wanted is None else wanted and not muted
    try:
        yield
    finally:
        _wanted = before


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
    """Write one line to the terminal, where reporting is on; it names options to commands, else keywords."""
    if is_shown():
        message = harmless(in_callers_words(message))
        stream = Unfailing(sys.stdout if in_notebook() else sys.stderr)  # a notebook shows stderr as a fault
        stream.write(message + "\n")
        stream.flush()


def say(message: str) -> None:
    """Write one line to the terminal and to the log of an experiment, as :func:`note` does."""
    note(message)
    log.info(in_callers_words(message))


class LogFile(logging.FileHandler):
    """A log file that never stops training: records that cannot be written are dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of the log to the file."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file; buffered records are dropped if the disk is full."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore a record that could not be written."""


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[None]:
    """While the block runs, write all that the library logs to a file of the experiment."""
    handler = LogFile(path, encoding="utf-8", errors="backslashreplace", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    library = logging.getLogger("hardneg")
    with _notes_logged(library):
        library.addHandler(handler)
        try:
            yield
        finally:
            library.removeHandler(handler)
            handler.close()


@contextlib.contextmanager
def _notes_logged(library: logging.Logger) -> Iterator[None]:
    """Let a library log its notes in the block, unless a program has set its level.

    The handlers that are there get no more than before: a program would show the notes twice.
    """
    usual = library.getEffectiveLevel()
    if library.level != logging.NOTSET or usual <= logging.INFO:
        yield
        return

    def as_before(record: logging.LogRecord) -> bool:
        if record.levelno >= usual or record.name.partition(".")[0] != library.name:
            return True
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None and logger is not library and logger.level == logging.NOTSET:
            logger = logger.parent
        return logger is not library  # a level of its own let the record pass before, too

    below = [one for name, one in library.manager.loggerDict.items() if name.startswith(f"{library.name}.")]
    inner = [handler for one in below if isinstance(one, logging.Logger) for handler in one.handlers]
    others = [*inner, *library.handlers, *logging.getLogger().handlers]
    for one in others:
        one.addFilter(as_before)
    library.setLevel(logging.INFO)
    try:
        yield
    finally:
        library.setLevel(logging.NOTSET)
        for one in others:
            one.removeFilter(as_before)


def silent(done: int, total: int) -> None:
    """Ignore the progress that is reported."""


class Unfailing:
    """A stream whose faults end no work: whoever read it may be gone, as ``head``, or a connection that was lost.

    Parameters
    ----------
    stream : where it writes; None, as Python has it in services without one: nowhere.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write what can be written; returns the length of the text."""
        with contextlib.suppress(OSError, ValueError):  # the latter: the stream was closed
            if self.stream is not None:
                self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, if anybody takes it."""
        with contextlib.suppress(OSError, ValueError):
            if self.stream is not None:
                self.stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return bool(self.stream.isatty())
        except (AttributeError, ValueError):  # there is none, or it was replaced or closed
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


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
        with python_draws_kept():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[text]}")
        stream: Any = Unfailing(getattr(sys.stderr, "rich_proxied_file", sys.stderr))  # not another bar's
        # What is printed to a terminal stands above the bar; what is printed to a file or a pipe must go there.
        prints = Unfailing(sys.stdout).isatty()
        console = Console(file=stream)
        self.progress = Progress(*columns, console=console, transient=True, redirect_stdout=prints)
        self.task = self.progress.add_task(title, total=None, text="")
        self.pace = Pace(unit)
        self.progress.start()

    def __call__(self, done: int, total: int) -> None:
        self.progress.update(self.task, completed=done, total=total or None, text=self.pace(done, total))

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()


class _Cell:
    """Progress as a bar in the output of a notebook's cell; it goes when the work is done."""

    def __init__(self, title: str, unit: str) -> None:
        self.title, self.pace = title, Pace(unit)
        self.last = time.monotonic()
        self.handle: Any = None

    def __call__(self, done: int, total: int) -> None:
        text = self.pace(done, total)
        if time.monotonic() - self.last >= CELL_SECONDS:
            self._show(bar_html(self.title, text, done, total))

    def _show(self, source: str) -> None:
        from IPython.display import HTML, display  # it is installed: the kernel belongs to it

        self.last = time.monotonic()
        if self.handle is None:
            self.handle = display(HTML(source), display_id=True)
        else:
            self.handle.update(HTML(source))

    def close(self) -> None:
        """Take the bar away."""
        if self.handle is not None:
            self._show("")


def bar_html(title: str, text: str, done: int, total: int) -> str:
    """A bar as HTML: the title, how far the work is, and its text."""
    value = f' value="{done}" max="{total}"' if total else ""
    return f"<div>{escape(title)} <progress{value}></progress> {escape(text)}</div>"


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
        text = describe(done, total, self.first, now - self.begun, self.unit)
        course = stages.course()
        return text if course is None or not total else of_all(text, done / total, course, now)


def of_all(text: str, share: float, course: stages.Course, now: float) -> str:
    """The text of a piece of work, with its share and the time of all stages, where that is known."""
    count, *pace = text.split(", ")
    left = course.left()
    if left is None:
        pace = [part.replace(" left", " more") for part in pace]  # of this stage alone
    else:
        pace = [*pace[:1], stages.about(left, now - course.begun + left)]
    return ", ".join((count, f"{100 * share:.0f} %", *pace))


def describe(done: int, total: int, first: int, seconds: float, unit: str) -> str:
    """The text ``done/total, rate, time left``: no total where that is 0, and no rate before one is known."""
    rate = (done - first) / max(seconds, 1e-9)
    count = f"{done:,}/{total:,} {unit}".rstrip() if total else f"{done:,} {unit}".rstrip()
    if rate <= 0:
        return count
    speed = f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
    left = f", {clock((total - done) / rate)} left" if done < total else ""
    return f"{count}, {speed}/s{left}"


def size_text(count: float) -> str:
    """A number of bytes as a person reads it, such as ``1.5 GiB``."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{max(count / 2**20, 0.1):.1f} MiB"


def clock(seconds: float) -> str:
    """A number of seconds as a person reads it, such as ``2m05s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"

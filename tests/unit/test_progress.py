"""Progress: silent by default, plain lines every few seconds elsewhere than on a terminal, a bar on one."""

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hardneg.errors import Interrupted
from hardneg.process import progress
from hardneg.process.progress import clock, describe, note, track
from hardneg.process.signals import StopFlag


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def watch(monkeypatch):
    watch = Clock()
    monkeypatch.setattr(progress, "time", watch)
    return watch


@pytest.fixture
def reporting(monkeypatch):
    monkeypatch.setattr(progress, "enabled", False)  # put back what turn_on changes
    progress.turn_on()


def work(watch, ticks, *, unit="texts", seconds=1.0):
    """Report these (done, total), so many seconds apart."""
    with track("encoding", unit) as tick:
        for done, total in ticks:
            watch.now += seconds
            tick(done, total)


def lines_of(capsys):
    out, err = capsys.readouterr()
    assert out == ""  # results go there
    return err.splitlines()


# ---------------------------------------------------------------- silence


def test_nothing_is_reported_unless_asked(watch, capsys):
    assert not progress.enabled
    work(watch, [(i, 100) for i in range(1, 101)])
    note("hello")
    assert lines_of(capsys) == []


# ---------------------------------------------------------------- plain lines


@pytest.mark.usefixtures("reporting")
def test_plain_lines_come_every_few_seconds_with_rate_and_time_left(watch, capsys):
    work(watch, [(10 * i, 1000) for i in range(1, 13)])
    assert lines_of(capsys) == [
        "encoding: 50/1,000 texts, 10.0/s, 1m35s left",
        "encoding: 100/1,000 texts, 10.0/s, 1m30s left",
        "encoding: 120/1,000 texts, 10.0/s, 1m28s left",  # the last one: where it ended
    ]


@pytest.mark.usefixtures("reporting")
def test_items_of_unknown_number_are_counted(watch, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 100)

    def items():
        for i in range(1150):
            watch.now += 1 / 128
            yield i

    assert list(progress.counted(items(), "importing", "passages")) == list(range(1150))
    assert lines_of(capsys) == ["importing: 700 passages, 128/s", "importing: 1,150 passages, 128/s"]


def test_counting_is_a_place_to_stop(monkeypatch):
    flag = StopFlag()
    monkeypatch.setattr(progress, "stop_flag", flag)
    monkeypatch.setattr(progress, "EVERY", 2)
    flag.signal = signal.SIGTERM
    with pytest.raises(Interrupted):
        list(progress.counted(range(10), "importing", "passages"))


@pytest.mark.usefixtures("reporting")
def test_short_work_says_nothing(watch, capsys):
    work(watch, [(i, 4) for i in range(1, 5)])
    assert lines_of(capsys) == []


@pytest.mark.usefixtures("reporting")
def test_slow_work_says_something_at_every_report(watch, capsys):
    work(watch, [(1, 4), (2, 4), (4, 4)], seconds=60)
    assert lines_of(capsys) == [
        "encoding: 1/4 texts",  # the first report has no rate yet
        "encoding: 2/4 texts, 0.017/s, 2m00s left",
        "encoding: 4/4 texts, 0.025/s",
    ]


@pytest.mark.usefixtures("reporting")
def test_the_rate_of_resumed_work_counts_only_what_is_done_now(watch, capsys):
    work(watch, [(900 + i, 1000) for i in range(6)])
    assert lines_of(capsys) == [
        "encoding: 904/1,000 texts, 1.0/s, 1m36s left",
        "encoding: 905/1,000 texts, 1.0/s, 1m35s left",
    ]


@pytest.mark.usefixtures("reporting")
def test_work_done_in_one_report_has_the_rate_of_all_of_it(watch, capsys):
    work(watch, [(80, 80)], seconds=8)
    assert lines_of(capsys) == ["encoding: 80/80 texts, 10.0/s"]


@pytest.mark.usefixtures("reporting")
def test_the_last_line_is_not_said_twice_and_is_said_after_a_fault(watch, capsys):
    work(watch, [(i, 10) for i in range(1, 11)])
    assert len(lines_of(capsys)) == 2

    def ticks():
        yield from ((i, 10) for i in range(1, 8))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(watch, ticks())
    assert [line.split(",")[0] for line in lines_of(capsys)] == ["encoding: 5/10 texts", "encoding: 7/10 texts"]


@pytest.mark.usefixtures("reporting")
def test_notes_are_plain_lines(capsys):
    note("no dev split")
    assert lines_of(capsys) == ["no dev split"]


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((30, 100, 10, 10.0, "texts"), "30/100 texts, 2.0/s, 35s left"),
        ((30, 100, 10, 10.0, ""), "30/100, 2.0/s, 35s left"),
        ((0, 100, 0, 10.0, "texts"), "0/100 texts"),
        ((8_841_823, 8_841_823, 0, 1.0, ""), "8,841,823/8,841,823, 8,841,823/s"),
    ],
)
def test_how_far_work_is(arguments, text):
    assert describe(*arguments) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (61, "1m01s"),
        (3599.6, "1h00m"),
        (3660, "1h01m"),
        (360_000, "100h00m"),
    ],
)
def test_seconds_as_a_person_reads_them(seconds, text):
    assert clock(seconds) == text


# ---------------------------------------------------------------- stops and terminals


def test_every_report_is_a_place_to_stop(monkeypatch):
    flag = StopFlag()
    monkeypatch.setattr(progress, "stop_flag", flag)
    with track("encoding") as tick:
        tick(1, 2)
        flag._receive(15, None)
        with pytest.raises(Interrupted, match="STOPPED: stopped by SIGTERM"):
            tick(2, 2)


BAR = """
import sys, time
from hardneg.process import progress
if "silent" not in sys.argv:
    progress.turn_on()
with progress.track("encoding", "texts") as tick:
    for done in range(1, 6):
        time.sleep(0.06)
        tick(done, 5)
        if "print" in sys.argv:
            print("step", done)
print("done")
"""


def on_a_terminal(*arguments, prints="done\n"):
    """What the work above writes on a terminal, while it ``prints`` this to another place."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", BAR, *arguments]
    child = subprocess.Popen(command, stderr=theirs, stdout=subprocess.PIPE, text=True, env=environment)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(ours, 65536):
            seen += chunk
    os.close(ours)
    out, _ = child.communicate(timeout=300)
    assert (child.returncode, out) == (0, prints)
    return seen.decode()


def test_on_a_terminal_there_is_a_bar_and_it_goes_away():
    text = on_a_terminal()
    assert "encoding" in text
    assert "5/5 texts" in text
    assert "/s" in text
    assert text.rstrip().endswith("\x1b[2K")  # the line was erased


def test_on_a_terminal_too_nothing_is_reported_unless_asked():
    assert on_a_terminal("silent") == ""


def test_what_is_printed_to_a_file_does_not_go_to_the_bars_terminal():
    """As ``on_step`` prints a record of each step in ``python train.py > steps.jsonl``."""
    text = on_a_terminal("print", prints="".join(f"step {i}\n" for i in range(1, 6)) + "done\n")
    assert "5/5 texts" in text
    assert "step" not in text


def test_a_thread_that_stops_itself_stops_no_other_one():
    """A web service may search in some threads while one trains, whose callback fails."""
    flag = StopFlag()
    with ThreadPoolExecutor(1) as other:
        other.submit(flag.ask, together=False).result()
        flag.check()
        assert not flag
        with pytest.raises(Interrupted):
            other.submit(flag.check).result()
        other.submit(flag.forget).result()
        other.submit(flag.check).result()


def test_a_process_that_stopped_because_another_asked_goes_on_with_something_else_too():
    flag = StopFlag()
    with flag.agreed(signal.SIGTERM), pytest.raises(Interrupted):
        flag.check()
    assert flag
    flag.forget()
    flag.check()


def test_a_signal_of_its_own_is_not_forgotten():
    flag = StopFlag()
    flag.heard = signal.SIGTERM
    with flag.agreed(signal.SIGTERM):
        pass
    flag.forget()
    assert flag


def test_a_bar_leaves_the_random_numbers_of_python(monkeypatch):
    """rich draws some when it is first imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    before = random.getstate()
    progress._Bar("searching", "queries").close()
    assert random.getstate() == before


def test_where_there_is_no_stream_nothing_is_shown(monkeypatch, watch):
    """Python has none in a service that was started without one."""
    monkeypatch.setattr(sys, "stderr", None)
    with progress.showing(True), track("searching", "queries") as tick:
        tick(1, 9)
        watch.now += 60
        tick(2, 9)
        note("a line")


class Gone:
    """A stream that nobody reads any more, or that was closed, by the fault that writing to it gives."""

    def __init__(self, fault):
        self.fault = fault

    def write(self, text):
        raise self.fault

    flush = isatty = lambda self: self.write("")


@pytest.mark.parametrize(
    "fault", [ValueError("I/O operation on closed file"), BrokenPipeError(), OSError(5, "I/O")]
)
def test_work_goes_on_when_nobody_reads_its_progress(monkeypatch, watch, fault):
    """As in ``hardneg train ... 2>&1 | head``, or when the connection to a terminal is lost."""
    monkeypatch.setattr(sys, "stderr", Gone(fault))
    if not isinstance(fault, ValueError):
        monkeypatch.setattr(Gone, "isatty", lambda self: False)
    with progress.showing(True), track("searching", "queries") as tick:
        tick(1, 9)
        watch.now += 60
        tick(2, 9)
        note("a line")


def test_a_bar_goes_on_when_its_terminal_is_gone():
    ours, theirs = pty.openpty()
    lost = BAR.replace("    for done", f"    import os; os.close({ours})\n    for done")
    command = [sys.executable, "-c", lost]
    environment = os.environ | {"TERM": "xterm"}
    child = subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.PIPE, text=True, env=environment, pass_fds=[ours]
    )
    os.close(theirs)
    os.close(ours)
    out, _ = child.communicate(timeout=300)
    assert (child.returncode, out) == (0, "done\n")

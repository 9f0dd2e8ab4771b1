"""One writer a directory; signs of life are judged by the observer's clock."""

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from faults.injected import dead_pid, fate, fault_of, run_python
from hardneg.errors import BusyError, Interrupted, ResourceError
from hardneg.process import progress
from hardneg.process.signals import stop_flag
from hardneg.storage.lease import LOCK, Heartbeat, Observer, holder_of, holding, lease, made_once

HOLDER = """
import sys, time
from pathlib import Path
from hardneg.storage import artifacts
with artifacts.lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp/.lock").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(ResourceError, match="NOT_WRITABLE"), lease(tmp_path / "exp"):
        pytest.fail("held")
    assert holder_of(tmp_path / "exp") == ""
    assert (tmp_path / "mine.txt").read_text() == "keep me"


@pytest.fixture
def holder(tmp_path):
    child = run_python(HOLDER, tmp_path / "experiment")
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_second_holder_is_told_at_once_who_holds(tmp_path, holder):
    begun = time.monotonic()
    with pytest.raises(BusyError) as raised, lease(tmp_path / "experiment"):
        pytest.fail("held twice")
    assert time.monotonic() - begun < 1
    assert raised.value.status == 6
    assert str(raised.value) == (
        f"{tmp_path / 'experiment'}: IN_USE: in use by process {holder.pid} on {socket.gethostname()};"
        " wait for it or stop it"
    )
    assert holder.poll() is None
    with pytest.raises(BusyError), lease(tmp_path / "experiment"):  # being refused takes nothing away
        pass


def test_who_waits_for_another_process_shows_life_and_stops_when_told(tmp_path, holder, monkeypatch):
    place = tmp_path / "experiment"
    made = []

    def wait():
        begun = progress.beats
        with pytest.raises(Interrupted):
            made_once(place, lambda: False, lambda: made.append(1), progress.wait_for_another)
        return progress.beats - begun

    monkeypatch.setattr(progress, "WAIT_SECONDS", 0.01)
    timer = threading.Timer(0.5, lambda: monkeypatch.setattr(stop_flag, "signal", signal.SIGTERM))
    timer.start()
    assert wait() > 5
    assert not made
    monkeypatch.setattr(stop_flag, "signal", None)
    threading.Timer(0.3, holder.kill).start()  # it dies, so another process makes it
    made_once(place, lambda: bool(made), lambda: made.append(1), progress.wait_for_another)
    assert made == [1]
    made_once(place, lambda: bool(made), lambda: made.append(2), progress.wait_for_another)
    assert made == [1]


def test_who_holds_a_directory_is_known_without_holding_it(tmp_path, holder):
    folder = tmp_path / "experiment"
    assert holder_of(folder) == f"process {holder.pid} on {socket.gethostname()}"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert holder_of(folder) == "", "its name still stands in the file"
    assert holder_of(tmp_path / "elsewhere") == ""
    assert not (tmp_path / "elsewhere").exists()


def test_the_lease_of_a_killed_holder_is_free(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease(tmp_path / "experiment"):
        assert (tmp_path / "experiment/.lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_a_lease_ends_with_its_block_even_by_a_fault(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lease(tmp_path), lease(tmp_path / "other"):
            raise ZeroDivisionError
    with lease(tmp_path), pytest.raises(BusyError, match=f"process {os.getpid()} on"), lease(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL])
def test_a_lease_that_the_file_system_cannot_give_is_not_called_busy(tmp_path, monkeypatch, number):
    def no_locks(handle, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    told = rf"{tmp_path}: NOT_WRITABLE: this disk has no locks \({os.strerror(number)}\); choose another place"
    with pytest.raises(ResourceError, match=told), lease(tmp_path):
        pass
    assert holder_of(tmp_path) == ""


def test_a_lease_on_a_full_disk_is_refused_and_given_back(tmp_path):
    for at in range(100):
        with fate(at, "enospc") as seen:
            fault = fault_of(lambda: contextlib.ExitStack().enter_context(lease(tmp_path / "experiment")))
        if fault is None:
            break
        assert fault.code == "DISK_FULL"
        with lease(tmp_path / "experiment"):
            pass
    assert [action for action, _ in seen.points] == ["open", "write"]


def test_a_holder_that_has_not_said_its_name_yet_is_waited_for(tmp_path, holder):
    lock = tmp_path / "experiment/.lock"
    name = lock.read_text()
    lock.write_text(f"process {dead_pid()} on {socket.gethostname()}\n")  # that of the holder before
    threading.Timer(0.3, lock.write_text, [name]).start()
    with pytest.raises(BusyError, match=f"in use by process {holder.pid} on"), lease(tmp_path / "experiment"):
        pass
    lock.write_text("")
    begun = time.monotonic()
    with pytest.raises(BusyError, match="in use by another process"), lease(tmp_path / "experiment"):
        pass
    assert time.monotonic() - begun < 2


RACER = """
import sys, time
from pathlib import Path
from hardneg.errors import BusyError
from hardneg.storage.lease import lease
folder = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
taken, refused, end = 0, 0, time.monotonic() + 1.5
# A busy core may serve one of the two alone until the time is over.
while time.monotonic() < end or (not taken and time.monotonic() < end + 30):
    try:
        with lease(folder):
            taken += 1
            (folder / "inside").mkdir()  # fails if another is there
            (folder / "inside").rmdir()
    except BusyError:
        refused += 1
print(taken, refused)
"""


def test_two_processes_that_race_are_never_inside_together(tmp_path):
    arguments = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 2
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=300)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    taken, refused = zip(*((int(a), int(b)) for a, b in said), strict=True)
    assert min(taken) > 0
    assert sum(refused) > 0


def test_what_is_made_is_held_elsewhere(tmp_path):
    out, cache = tmp_path / "out", tmp_path / "cache"
    said = f"{out}: IN_USE: in use by process {os.getpid()} on .*, this program itself; wait for the other call"
    with holding(out, cache), pytest.raises(BusyError, match=said), holding(out, cache):
        pass
    assert not out.exists()


# ---------------------------------------------------------------- signs of life


def test_silence_is_measured_by_the_observers_own_clock(tmp_path):
    now = 100.0
    heart = Heartbeat(tmp_path / "roles/trainer.beat")
    observer = Observer(heart, lambda: now)
    for now in (101.0, 102.0, 103.0):  # noqa: B007  # the observer's clock reads it
        silence = observer.silence()
    assert silence == 3
    heart.touch(1)
    os.utime(heart.path, (0, 0))  # another host's clock says what it likes
    assert observer.silence() == 0
    now = 103.5
    assert observer.silence() == 0.5
    now = 104.0
    assert observer.silence() == 1
    heart.touch(1)  # no progress is no sign of life
    assert observer.silence() == 1
    heart.touch(2)
    assert observer.silence() == 0


def test_an_observer_that_was_suspended_itself_has_not_seen_any_silence(tmp_path):
    now = 100.0
    observer = Observer(Heartbeat(tmp_path / "roles/trainer.beat"), lambda: now)
    now = 5000.0
    assert observer.silence() == 1


def test_a_heartbeat_says_whose_it_is_and_disturbs_nobody(tmp_path):
    heart = Heartbeat(tmp_path / "trainer.beat")
    assert heart.read() == ""
    heart.touch(7)
    pid, count, host = heart.read().split()
    assert (int(pid), int(count), host) == (os.getpid(), 7, socket.gethostname())
    assert [p.name for p in tmp_path.iterdir()] == ["trainer.beat"]
    (tmp_path / "file").write_text("in the way")
    Heartbeat(tmp_path / "file/trainer.beat").touch(1)


def test_whoever_waits_finds_what_the_holder_made(tmp_path):
    made, held = [], threading.Event()

    def hold():
        with lease(tmp_path):
            held.set()
            time.sleep(0.3)
            made.append("first")

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    made_once(tmp_path, lambda: bool(made), lambda: made.append("second"), progress.wait_for_another)
    holder.join()
    assert made == ["first"]


def test_a_process_that_is_forked_while_a_directory_is_held_does_not_hold_it(tmp_path):
    """It may live longer than the block, as a worker that a function of the user's starts."""
    into, out = os.pipe()
    begun, begins = os.pipe()
    with lease(tmp_path):
        if (child := os.fork()) == 0:
            os.close(out)
            os.write(begins, b"!")
            os.read(into, 1)  # returns when the parent has closed its end
            os._exit(0)
        os.read(begun, 1)  # a child that has not begun has not let go yet
    with lease(tmp_path):
        assert holder_of(tmp_path)
    for end in (into, out, begun, begins):
        os.close(end)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_that_leaves_the_block_does_not_free_the_directory(tmp_path):
    child = None
    with contextlib.suppress(ZeroDivisionError), lease(tmp_path):
        if (child := os.fork()) == 0:
            raise ZeroDivisionError
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(BusyError), lease(tmp_path):
            pytest.fail("held twice")
    if child == 0:
        os._exit(0)


def test_a_group_that_shares_files_shares_locks(tmp_path):
    """Else the second user of a cache could hold nothing there."""
    before = os.umask(0o002)
    try:
        with lease(tmp_path / "shared"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "shared" / LOCK).stat().st_mode & 0o777 == 0o664

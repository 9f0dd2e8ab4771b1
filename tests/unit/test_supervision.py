"""When the supervisor takes a role for hung, and what it says then."""

import io
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import hardneg
from hardneg.experiment.folder import Experiment
from hardneg.recipes.roles import supervision
from hardneg.recipes.roles.jobs import Job
from hardneg.recipes.roles.supervision import BEGIN_SECONDS, RETRIES, RoleFailed, Worker

SILENT = 10.0
JOB = Job("ance", "trainer", "exp", "data", {}, {}, {}, 0, {}, None, True)


class Process:
    """A process that works until it is killed."""

    def __init__(self, *arguments, **options):
        self.stdin, self.stderr, self.status = io.StringIO(), io.StringIO(), None

    def poll(self):
        return self.status

    def kill(self):
        self.status = -9

    def wait(self, seconds=None):
        return self.status


class Watched:
    """A role that is watched, a clock, and the role's heart."""

    def __init__(self, folder, monkeypatch):
        fake = SimpleNamespace(Popen=Process, PIPE=None, DEVNULL=None)
        monkeypatch.setattr(supervision, "subprocess", fake)
        monkeypatch.setattr(supervision, "BACKOFF", (0.0,))
        self.now = 0.0
        self.worker = Worker(JOB, Experiment(folder, folder / "cache"), silent_seconds=SILENT)
        self.follow()

    def follow(self):
        self.worker.observer.clock = lambda: self.now
        self.worker.observer.looked = self.now

    def lives(self, seconds, look=0.5):
        """Whether the role is not killed in so many seconds without a sign of life."""
        for _ in range(int(seconds / look)):
            self.now += look
            self.worker._watch_beat()
        return self.worker.process.poll() is None


@pytest.fixture
def watched(tmp_path, monkeypatch):
    return Watched(tmp_path, monkeypatch)


def test_loading_a_model_may_take_longer_than_silence_after_the_first_sign_of_life(watched):
    watched.worker.beat.touch(0)
    assert watched.lives(SILENT + BEGIN_SECONDS - 2)
    watched.worker.beat.touch(1)
    assert watched.lives(SILENT - 2)
    assert not watched.lives(4)


def test_a_job_that_was_suspended_and_goes_on_is_not_killed(watched):
    for count in range(3):
        watched.worker.beat.touch(count)
        assert watched.lives(1)
    assert watched.lives(3600, look=3600), "the supervisor itself was suspended"
    watched.worker.beat.touch(4)
    assert watched.lives(SILENT - 2)


def test_who_is_killed_as_silent_again_and_again_is_told_which_setting_allows_more(watched):
    for _ in range(RETRIES):
        assert not watched.lives(SILENT + BEGIN_SECONDS + 2)
        assert watched.worker.is_busy(), "it is started again"
        watched.follow()
    assert not watched.lives(SILENT + BEGIN_SECONDS + 2)
    said = (
        r"the trainer ended 6 times in a row \(by SIGKILL, because it gave no sign of life for 10 s\); "
        r"if it only works slowly, allow it more: --set silent_seconds=100"
    )
    with pytest.raises(RoleFailed, match=said):
        watched.worker.is_busy()


def written_by_a_role(script, lines, folder, monkeypatch):
    """What the supervisor reads of a role that runs this script, once it has so many lines."""

    def started(command, **options):
        return subprocess.Popen([sys.executable, "-c", script], **options)

    fake = SimpleNamespace(Popen=started, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(supervision, "subprocess", fake)
    worker = Worker(JOB, Experiment(folder, folder / "cache"), silent_seconds=SILENT)
    worker.process.wait(30)
    until = time.monotonic() + 30
    while len(worker.tail) < lines and time.monotonic() < until:
        time.sleep(0.01)
    worker.stop()
    return list(worker.tail)


def test_what_a_role_writes_is_read_whatever_its_encoding(tmp_path, monkeypatch):
    """Else the supervisor would read no more of it, and the role could write no more."""

    script = "import os; os.write(2, b'caf\\xe9\\nmore\\n')"
    assert written_by_a_role(script, 2, tmp_path, monkeypatch) == [r"caf\xe9", "more"]


def test_a_role_loads_no_module_of_the_current_folder(tmp_path, monkeypatch):
    """A file of the user's may have the name of a module that the role needs."""
    (tmp_path / "queue.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a notebook
    script = "import queue, sys; import hardneg; print(hardneg.__file__, file=sys.stderr)"
    assert written_by_a_role(script, 1, tmp_path, monkeypatch) == [hardneg.__file__]


@pytest.mark.parametrize(("status", "passed"), [(1, 8), (127, 8), (2, 2), (7, 7), (70, 70)])
def test_a_role_that_fails_gives_a_status_of_the_table(watched, status, passed):
    watched.worker.process.status = status
    with pytest.raises(RoleFailed, match=f"the trainer ended with exit status {status} ") as failed:
        watched.worker.is_busy()
    assert failed.value.status == passed

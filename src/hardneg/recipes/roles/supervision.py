"""A supervisor that starts, watches and stops the roles of an experiment, and restarts killed and hung ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import IO

from hardneg.errors import BusyError, HardnegError, Interrupted, PeerError
from hardneg.experiment.folder import Experiment
from hardneg.process.progress import note
from hardneg.process.signals import stop_flag
from hardneg.recipes.roles.jobs import Job
from hardneg.recipes.roles.peers import heartbeat_of
from hardneg.recipes.settings import TrainingSettings
from hardneg.storage.lease import Observer
from hardneg.surroundings import places_of_modules

log = logging.getLogger(__name__)

BEGIN_SECONDS = 120.0  # a role's additional time to load everything, before its second sign of life
STOP_SECONDS = 30.0  # a role's time to stop at a signal; then it is killed
# Statuses of a role that is started again: it was stopped, or an orphan of an earlier supervisor, which is about
# to end, still has the role.
PASSING = (Interrupted.status, BusyError.status)
FAULTS = {HardnegError.status, *(kind.status for kind in HardnegError.__subclasses__())}
REST = ("STOPPED:", "PEER_LOST:")  # beginnings of the lines of a group's other processes when one has failed
ABOVE = "its error is in a line above; correct that, and run the same command again"
RETRIES = 5  # restarts in a row without a new version
BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)


class Worker:
    """The process of a role, or the one that leads the role's group; it is restarted when it is killed or hangs.

    Parameters
    ----------
    silent_seconds : a role that has begun and gives no sign of life for so long has hung.
    """

    def __init__(self, job: Job, experiment: Experiment, *, silent_seconds: float) -> None:
        self.job, self.beat = job, heartbeat_of(experiment, job.role)
        self.silent_seconds = silent_seconds
        self.failures = 0
        self.tail: deque[str] = deque(maxlen=20)
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hardneg", "role"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",  # a role's libraries may write in another encoding than Python reads
            env={**os.environ, **same_modules(), **self.job.environment},
            start_new_session=True,  # Ctrl-C comes to the supervisor, which passes it on
        )
        assert self.process.stdin
        assert self.process.stderr
        forward = partial(copy_context().run, self._forward, self.process.stderr)  # notes know who has called
        threading.Thread(target=forward, daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            told = dataclasses.asdict(self.job) | {"parent": os.getpid()}
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.flush()
        self.observer = Observer(self.beat)
        self.signs, self.hung, self.former = 0, False, process_of(self.observer.last)

    def _forward(self, stream: IO[str]) -> None:
        """Show each line that the role writes, with the role's name before it."""
        with stream:
            for line in stream:
                self.tail.append(line.rstrip("\n"))
                note(f"{self.job.role}: {line.rstrip()}")

    def is_busy(self) -> bool:
        """Whether the role still works; restarts it if it was killed or hangs.

        Raises
        ------
        PeerError : the role ended with a fault, or was restarted too often; the error has the role's exit status.
        """
        if (status := self.process.poll()) is None:
            self._watch_beat()
            return True
        if status == 0:
            return False
        if status > 0 and status not in PASSING:  # the role's own fault, which it has reported
            what = f"the {self.job.role} ended with exit status {status} ({self._fault():.200})"
            raise RoleFailed(what, status)
        if self.failures >= RETRIES:
            what = f"the {self.job.role} ended {RETRIES + 1} times in a row ({self._end(status)})"
            fix = f"if it only works slowly, allow it more: --set silent_seconds={10 * self.silent_seconds:g}"
            raise RoleFailed(what, status, *([fix] if self.hung else []))
        note(f"WARNING: the {self.job.role} was stopped ({self._end(status)}); it is started again")
        log.warning("the %s was stopped (%s); it is started again", self.job.role, self._end(status))
        self._wait(BACKOFF[min(self.failures, len(BACKOFF) - 1)])
        self.failures += 1
        self._start()
        return True

    def _end(self, status: int) -> str:
        """How the role ended, in words."""
        silent = f", because it gave no sign of life for {self.silent_seconds:g} s"
        return describe_end(status) + (silent if self.hung else "")

    def _fault(self) -> str:
        """The last line of the role that no process wrote only because another one of its group failed."""
        said = [line for line in self.tail if not line.startswith(REST)] or self.tail
        return said[-1] if said else ""

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stop_flag.check()
            time.sleep(0.05)

    def _watch_beat(self) -> None:
        """Kill a role that has fallen silent.

        It gives its first sign of life before it loads its models, so only the second one tells that it has begun.
        """
        before, silence = self.observer.last, self.observer.silence()
        if self.observer.last != before:
            self.signs += process_of(self.observer.last) != self.former
        elif silence > self.silent_seconds + (BEGIN_SECONDS if self.signs < 2 else 0):
            self.hung = True
            self.process.kill()
            self.process.wait()

    def forgive(self) -> None:
        """Forget earlier failures, because the worker has made progress."""
        self.failures = 0

    def stop(self) -> None:
        """Ask the role to stop, and kill it if it does not stop in ``STOP_SECONDS``."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def process_of(beat: str) -> str:
    """The process that gave a sign of life."""
    return beat.partition(" ")[0]


class RoleFailed(PeerError):
    """A role that cannot go on; carries the exit status of its fault, or its own where that is none of a fault."""

    def __init__(self, what: str, status: int, fix: str = ABOVE) -> None:
        super().__init__("ROLE_FAILED", what, fix)
        self.status = status if status in FAULTS else PeerError.status  # Python itself may have failed to start


def same_modules() -> dict[str, str]:
    """The environment in which a role finds the modules of this process, where this process finds them."""
    places = [*places_of_modules().split(os.pathsep), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, places))), "PYTHONSAFEPATH": "1"}


def describe_end(status: int) -> str:
    """How a process ended, in words."""
    return f"by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class Team:
    """The trainer and the inferencer of an experiment, watched together."""

    def __init__(self, trainer: Worker, inferencer: Worker) -> None:
        self.trainer, self.inferencer = trainer, inferencer

    def __call__(self, done: int, *, both: bool = False) -> bool:
        """Whether training goes on.

        Parameters
        ----------
        done : a count of what is complete; when it changes, earlier failures of the roles are forgiven.
        both : whether the inferencer also has work that the trainer does not wait for. Then training goes on until
            both have ended.
        """
        stop_flag.check()
        if done != getattr(self, "seen", None):
            self.seen = done
            self.trainer.forgive()
            self.inferencer.forgive()
        busy = self.trainer.is_busy()
        if busy or both:
            mines = self.inferencer.is_busy()
            return busy or mines
        return False


@contextlib.contextmanager
def team(jobs: Sequence[Job], experiment: Experiment, settings: TrainingSettings) -> Iterator[Team]:
    """Start both roles; stop them, whatever happens, when the block ends."""
    with contextlib.ExitStack() as stack:
        workers = []
        for job in jobs:
            workers.append(Worker(job, experiment, silent_seconds=settings.silent_seconds))
            stack.callback(workers[-1].stop)
        yield Team(*workers)

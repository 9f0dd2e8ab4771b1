"""Two processes on one experiment: the trainer and the inferencer, and who starts, watches and stops them.

A role is told what to do by one line of JSON on its standard input, which then stays open: when it ends, whoever
started the role is gone, and the role stops where nothing is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hardneg import progress
from hardneg.artifacts import lease
from hardneg.data.collection import Collection
from hardneg.data.training_data import choose_splits
from hardneg.distributed import stop_flag
from hardneg.errors import BusyError, Interrupted, PeerError, SettingsError
from hardneg.experiment import Experiment, join_experiment
from hardneg.integrations.tensorboard import boarding
from hardneg.memory import limit_memory, limit_of
from hardneg.models.code import allow_code, allowed_code
from hardneg.operations.opening import collection_of
from hardneg.operations.origin import remember_collection
from hardneg.operations.starting import Base, Splits
from hardneg.progress import note
from hardneg.refreshing import beat_of
from hardneg.runtime import set_threads
from hardneg.training_settings import Recipe, TrainingSettings

log = logging.getLogger(__name__)

BEGIN_SECONDS = 120.0  # to load everything, before the first sign of life
STOP_SECONDS = 30.0  # for a role to stop at a signal; then it is killed
ORPHAN_SECONDS = 6.0  # the same, where nobody is left to kill it
# Stopped, or somebody has the role: an orphan of an earlier supervisor, which is about to end.
PASSING = (Interrupted.status, BusyError.status)
RETRIES = 5  # restarts in a row without a new version
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclasses.dataclass(frozen=True)
class Job:
    """All that a role must know, ready for JSON."""

    recipe: str
    role: str
    out: str
    data: str
    base: Mapping[str, Any]
    settings: Mapping[str, Any]
    splits: Mapping[str, str]
    split_seed: int  # of the queries that are held out
    inputs: Mapping[str, str]
    cache: str | None
    supervised: bool  # somebody restarts the other roles: wait for them however long it takes
    code: Sequence[str] = ()  # revisions at which models may run their own
    threads: int | None = None
    max_ram: str | None = None
    max_vram: str | None = None


def jobs_of(
    recipe: Recipe,
    roles: Sequence[str],
    out: Path,
    collection: Collection,
    splits: Splits,
    base: Base,
    settings: TrainingSettings,
    inputs: Mapping[str, str],
    cache: Path | None,
    *,
    split_seed: int,
    supervised: bool,
) -> list[Job]:
    """The jobs of these roles, which share the threads and the memory of this process, and its CUDA devices."""
    import torch

    share = max(len(roles), 1)
    several = base.device == "cuda" and torch.cuda.device_count() >= share > 1
    return [
        Job(
            recipe.name,
            role,
            str(out.absolute()),
            str(collection.path.absolute()),
            dataclasses.asdict(base) | {"device": f"cuda:{number}" if several else base.device},
            settings.model_dump(mode="json"),
            dataclasses.asdict(splits),
            split_seed,
            dict(inputs),
            None if cache is None else str(cache.absolute()),
            supervised,
            allowed_code(),
            max(torch.get_num_threads() // share, 1),
            *(None if limit is None else str(limit // share) for limit in map(limit_of, ("cpu", "cuda"))),
        )
        for number, role in enumerate(roles)
    ]


# ---------------------------------------------------------------- in the role


def take_role(recipe: Recipe, job: Job) -> None:
    """Be the trainer or the inferencer of an experiment until there is nothing left to do.

    Raises
    ------
    BusyError : another process has this role.
    """
    if job.role not in recipe.roles:
        raise SettingsError("NO_ROLE", f"{recipe.name} has no role '{job.role}'", f"use {', '.join(recipe.roles)}")
    set_threads(job.threads)
    limit_memory(job.max_ram, job.max_vram)
    allow_code(*job.code)
    out, settings = Path(job.out), recipe.settings.model_validate(dict(job.settings), strict=False)
    data = choose_splits(collection_of(job.data, job.cache), **job.splits, seed=job.split_seed)
    assert data.digest == job.inputs["splits"]
    base = Base(**job.base)
    with (
        lease(out / "roles" / job.role),
        join_experiment(
            out,
            recipe=recipe.name,
            settings=settings,
            inputs=job.inputs,
            cache=Path(job.cache) if job.cache else None,
        ) as experiment,
        beat_of(experiment, job.role).beating(lambda: progress.beats),
        boarding(experiment, settings.tensorboard),
    ):
        remember_collection(out, data.collection)
        patience = math.inf if job.supervised else settings.silent_seconds
        recipe.roles[job.role](settings, data, lambda: base.load(settings), experiment, patience)


def read_job(stream: IO[str]) -> Job:
    """The job that whoever started this process wrote; from now on, its end is the sign to stop."""
    told = json.loads(stream.readline())
    die_with_parent()
    if os.getppid() != told.pop("parent"):  # it died before the system could be told
        raise PeerError("ORPHANED", "the supervisor is gone", "run the same command again")
    job = Job(**told)
    threading.Thread(target=_stop_at_end, args=(stream,), daemon=True).start()
    return job


def die_with_parent() -> None:
    """Let the system kill this process when its parent dies, even if it is stopped; what is published is whole."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux does; elsewhere the stream's end must do
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop_at_end(stream: IO[str]) -> None:
    """Stop this process when the stream ends; at the latest after ``ORPHAN_SECONDS``."""
    stream.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(Interrupted.status)


# ---------------------------------------------------------------- outside of it


class Worker:
    """A role in a process of its own, restarted when it is killed or hangs.

    Parameters
    ----------
    silent_seconds : a role that has begun and gives no sign of life for so long has hung.
    """

    def __init__(self, job: Job, experiment: Experiment, *, silent_seconds: float) -> None:
        self.job, self.beat = job, beat_of(experiment, job.role)
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
            start_new_session=True,  # Ctrl-C comes to the supervisor, which passes it on
        )
        assert self.process.stdin
        assert self.process.stderr
        threading.Thread(target=self._forward, args=(self.process.stderr,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            told = dataclasses.asdict(self.job) | {"parent": os.getpid()}
            self.process.stdin.write(json.dumps(told) + "\n")
            self.process.stdin.flush()
        self.last, self.since = self.beat.read(), time.monotonic()
        self.begun = False

    def _forward(self, stream: IO[str]) -> None:
        """Show what the role says, with its name before it."""
        for line in stream:
            self.tail.append(line.rstrip("\n"))
            note(f"{self.job.role}: {line.rstrip()}")

    def is_busy(self) -> bool:
        """Whether it still works; restarts it if it was killed or hangs.

        Raises
        ------
        PeerError : it ended with a fault, or too often; its status is the role's.
        """
        if (status := self.process.poll()) is None:
            self._watch_beat()
            return True
        if status == 0:
            return False
        if status > 0 and status not in PASSING:  # a fault of its own, told already
            last = self.tail[-1] if self.tail else ""
            raise RoleFailed(f"the {self.job.role} ended with exit status {status} ({last:.200})", status)
        if self.failures >= RETRIES:
            what = f"the {self.job.role} ended {RETRIES + 1} times in a row ({describe_end(status)})"
            raise RoleFailed(what, status if status > 0 else PeerError.status)
        note(f"WARNING: the {self.job.role} was stopped ({describe_end(status)}); it is started again")
        log.warning("the %s was stopped (%s); it is started again", self.job.role, describe_end(status))
        self._wait(BACKOFF[min(self.failures, len(BACKOFF) - 1)])
        self.failures += 1
        self._start()
        return True

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stop_flag.check()
            time.sleep(0.05)

    def _watch_beat(self) -> None:
        """Kill a role that has fallen silent."""
        if (now := self.beat.read()) != self.last:
            self.begun = self.begun or now.startswith(f"{self.process.pid} ")
            self.last, self.since = now, time.monotonic()
        elif time.monotonic() - self.since > self.silent_seconds + (0 if self.begun else BEGIN_SECONDS):
            log.warning("the %s gave no sign of life for %.0f s and is killed", self.job.role, self.silent_seconds)
            self.process.kill()
            self.process.wait()

    def forgive(self) -> None:
        """It did something new: earlier failures do not count."""
        self.failures = 0

    def stop(self) -> None:
        """Ask it to stop, and see to it that it does."""
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


class RoleFailed(PeerError):
    """A role that cannot go on; carries the exit status of its fault."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__("ROLE_FAILED", what, "its own line stands above; correct that, and run this again")
        self.status = status


def describe_end(status: int) -> str:
    """How a process ended, in words."""
    return f"by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class Team:
    """The trainer and the inferencer of an experiment, watched together."""

    def __init__(self, trainer: Worker, inferencer: Worker) -> None:
        self.trainer, self.inferencer = trainer, inferencer

    def __call__(self, versions: int) -> bool:
        """Whether training goes on; ``versions``: how many are complete, so that progress is known."""
        stop_flag.check()
        if versions != getattr(self, "seen", None):
            self.seen = versions
            self.trainer.forgive()
            self.inferencer.forgive()
        busy = self.trainer.is_busy()
        if busy:
            self.inferencer.is_busy()
        return busy


@contextlib.contextmanager
def team(jobs: Sequence[Job], experiment: Experiment, settings: TrainingSettings) -> Iterator[Team]:
    """Start both roles; stop them, whatever happens, when the block ends."""
    with contextlib.ExitStack() as stack:
        workers = []
        for job in jobs:
            workers.append(Worker(job, experiment, silent_seconds=settings.silent_seconds))
            stack.callback(workers[-1].stop)
        yield Team(*workers)

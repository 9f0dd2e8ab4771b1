"""Real processes that start in a tenth of a second: forks of this one, which has loaded everything already."""

import contextlib
import functools
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
import types
from typing import ClassVar

from hardneg import cli
from hardneg.recipes.roles import supervision
from loaded import MODULES


class Forked:
    """The part of ``subprocess.Popen`` that the supervisor needs, as a fork that runs ``hardneg role``."""

    living: ClassVar[list] = []
    inherited: ClassVar[list] = []  # living processes of the parent, kept so that they are not closed again
    prepare = staticmethod(lambda: None)  # called in the new process, before anything else

    def __init__(self, args, **options):
        assert args[1:] == ["-m", "hardneg", "role"]
        into, out = os.pipe(), os.pipe()
        self.pid, self.status = fork(
            lambda: cli.run(["role"]), stdin=into[0], stderr=out[1], prepare=Forked.prepare
        )
        os.close(into[0])
        os.close(out[1])
        self.stdin, self.stderr = os.fdopen(into[1], "w"), os.fdopen(out[0])
        Forked.living.append(self)

    def poll(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, seconds=None):
        end = None if seconds is None else time.monotonic() + seconds
        while self.poll() is None:
            if end and time.monotonic() > end:
                raise subprocess.TimeoutExpired("role", seconds)
            time.sleep(0.01)
        return self.status

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def supervise_forks(patch):
    """Let the supervisor fork its processes; other code, such as matplotlib, starts processes as usual."""
    forking = types.SimpleNamespace(**{**vars(subprocess), "Popen": Forked})
    patch.setattr(supervision, "subprocess", forking)


def fork(work, *, stdin=None, stderr=None, prepare=lambda: None):
    """Fork a process that exits with the status that ``work`` returns; returns (process id, None)."""
    load()
    if pid := os.fork():
        return pid, None
    status = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null if stdin is None else stdin, 0)
        os.dup2(null, 1)
        os.dup2(null if stderr is None else stderr, 2)
        close_leases()
        for other in Forked.living:  # a new program would not inherit these streams
            for stream in (other.stdin, other.stderr):
                if not stream.closed:
                    os.close(stream.fileno())  # not stream.close(): its lock may have been held at the fork
        Forked.inherited.extend(Forked.living)
        Forked.living.clear()  # so that forks of this process start with an empty list
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        prepare()
        status = work()
    except KeyboardInterrupt:  # a new program that is asked to stop while it starts just ends
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)


@functools.cache
def load():
    """Import here, once, what commands import when they need it; otherwise every fork would import it."""
    for name in MODULES:
        importlib.import_module(name)


def close_leases():
    """Let go of the leases that a fork holds with its parent; a new program would not have inherited them."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").endswith("/.lock"):
                os.close(int(name))

"""Several processes that train together, started by ``torchrun`` or, quicker, forked from this process.

Embedding shards are small, so that the processes have several to share. A test can let one process fail in one
step, or when it is about to call a function.
"""

import faulthandler
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from faults.forked import fork

FAIL = (
    "FAIL"  # environment: rank:step:how; the process ends by a fault, or a signal (kill), unless it was restarted
)
DIE = "DIE"  # environment: module:function:n; at its n-th call (from 1) rank 0 is killed,
DIE_RANK = "DIE_RANK"  # or the rank that this variable names


def command_of(data, model, out, settings, recipe="ance-tele"):
    """The arguments of ``hardneg`` that train a recipe with these settings."""
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    return ["train", recipe, "--data", str(data), "--model", str(model), "--out", str(out), *sets]


def torchrun(count, arguments, log, **environment):
    """Start ``hardneg`` in ``count`` processes; their stderr and the launcher's goes to the file ``log``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    with open(log, "w") as stream:
        return subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=stream, env=environment)


def forked(count, arguments, log):
    """Run ``hardneg`` in ``count`` forked processes; returns their exit statuses."""
    return together(count, lambda rank: run(arguments), log)


def together(count, work, log):
    """Call ``work(rank)``, which returns an exit status, in ``count`` processes; returns all statuses."""
    return [wait(child) for child in launch(count, work, log)]


def started(count, arguments, log, **environment):
    """Start ``hardneg`` in ``count`` processes with additional environment variables, and do not wait."""

    def work(rank):
        os.environ.update(environment)
        return run(arguments)

    return launch(count, work, log)


def free_port():
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(count, work, log):
    """Start ``count`` processes of one launch, each of which calls ``work(rank)``; returns their process ids."""
    children, port = [], free_port()
    with open(log, "w") as stream:
        for rank in range(count):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            environment = {name: str(value) for name, value in names.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

            def start(environment=environment, rank=rank):
                os.environ.update(environment)
                return work(rank)

            children.append(fork(start, stderr=stream.fileno())[0])
    return children


def in_group(count, work, log):
    """Call ``work(rank)`` in ``count`` processes of an open group; all must succeed."""
    from hardneg.process.distributed import group

    def start(rank):
        faulthandler.dump_traceback_later(60, repeat=True)
        with group():
            work(rank)
        return 0

    assert together(count, start, log) == [0] * count, Path(log).read_text()


def wait(child, seconds=300):
    """Wait for a child, which is killed if it takes too long; returns its exit status."""
    end = time.monotonic() + seconds
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(found[1])


def finish(count, arguments, log):
    """Run ``hardneg`` in ``count`` processes to the end; all must succeed."""
    assert forked(count, arguments, log) == [0] * count, Path(log).read_text()


def arrays_of(folder):
    """The arrays of an artefact."""
    return {file.stem: np.load(file) for file in sorted(folder.glob("*.npy"))}


def die_at(module, name, count):
    """Let this process be killed when it calls a function for the ``count``-th time."""
    place, left = importlib.import_module(module), [int(count)]
    call = getattr(place, name)

    def failing(*args, **named):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **named)

    setattr(place, name, failing)


def run(arguments):
    """Run ``hardneg`` in this process, with the failure that the environment asks for."""
    from hardneg import cli
    from hardneg.errors import InputError
    from hardneg.search import embeddings
    from hardneg.training.batches import VisitBatches

    faulthandler.dump_traceback_later(120, repeat=True)  # shows where it hangs
    embeddings.LEAST_ROWS = 16
    rank, step, how = os.environ.get(FAIL, "::").split(":")
    if rank == os.environ["RANK"] and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":

        def failing(self, index, make=VisitBatches.__call__):
            if index == int(step):
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise InputError("A_FAULT", "this process fails", "nothing")
            return make(self, index)

        VisitBatches.__call__ = failing
    if DIE in os.environ and os.environ["RANK"] == os.environ.get(DIE_RANK, "0"):
        die_at(*os.environ[DIE].split(":"))
    return cli.run([*arguments, "--device=cpu", "--threads=1", "--json"])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

"""The job of a role of an experiment, and how the role gets it; a role is one process or a group of processes.

A role reads its job from one line of JSON on its standard input, which then stays open. If the input ends, the
process that started the role is gone; then the role stops at the next place where nothing is lost. If the job is
for a group, this process starts the others, leads them and computes nothing. They find the job in the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from hardneg.errors import Interrupted, PeerError
from hardneg.process.memory import limit_of, sharers_of
from hardneg.process.threads import visible_devices
from hardneg.process.torchrun import end_as, run_group

ORPHAN_SECONDS = 6.0  # a role without its supervisor has so long to stop where nothing is lost; then it is ended
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h
JOB = "HARDNEG_JOB"  # the environment variable that holds the job for the processes of a group


@dataclasses.dataclass(frozen=True)
class Job:
    """All that a role must know, ready for JSON."""

    recipe: str
    role: str
    out: str
    data: str
    source: Mapping[str, Any]  # of the models
    settings: Mapping[str, Any]
    splits: Mapping[str, str]
    draw: Mapping[str, Any]  # of the queries that are held out
    inputs: Mapping[str, str]
    cache: str | None
    supervised: bool  # a supervisor restarts the other roles, so this one waits for them without limit
    threads: int | None = None  # of each process
    max_ram: str | None = None  # of all processes that share it
    max_vram: str | None = None
    ram_sharers: int = 1  # processes that share max_ram
    vram_sharers: int = 1
    processes: int = 1  # that work together as this role
    devices: str | None = None  # the CUDA devices that they see; None: all that this process sees

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the environment of the role's processes has besides those of this process."""
        seen = {} if self.devices is None else {"CUDA_VISIBLE_DEVICES": self.devices}
        return seen | ({"OMP_NUM_THREADS": str(self.threads)} if self.processes > 1 else {})


def jobs_of(job: Job, roles: Sequence[str], groups: Mapping[str, int]) -> list[Job]:
    """The job of each of these roles, which share the threads, the memory and the CUDA devices of this process.

    Parameters
    ----------
    groups : role -> number of its processes; 1 for a role that is not named. If there are enough devices, each
        process gets a device of its own, in the order of the roles. Otherwise all processes see all devices and
        may share one.
    """
    import torch

    counts = [groups.get(role, 1) for role in roles]
    total, device = max(sum(counts), 1), job.source["device"]
    names = visible_devices() if device == "cuda" else []
    several = len(names) >= total > 1
    shared = {"cpu": sharers_of("cpu") * total, "cuda": sharers_of("cuda") * (1 if several else total)}
    ram, vram = (whole_limit(kind) for kind in ("cpu", "cuda"))
    return [
        dataclasses.replace(
            job,
            role=role,
            threads=max(torch.get_num_threads() // total, 1),
            max_ram=ram,
            max_vram=vram,
            ram_sharers=shared["cpu"],
            vram_sharers=shared["cuda"],
            processes=count,
            devices=",".join(part) if several else None,
        )
        for role, count, part in zip(roles, counts, parts_of(names, counts), strict=True)
    ]


def whole_limit(device: str) -> str | None:
    """The limit of all processes that share it, of this type of device; None where there is none."""
    limit = limit_of(device)
    return None if limit is None else str(limit * sharers_of(device))


def parts_of(names: Sequence[str], counts: Sequence[int]) -> Iterator[Sequence[str]]:
    """Yield consecutive parts of the names, one with so many names for each of the counts."""
    begin = 0
    for count in counts:
        yield names[begin : begin + count]
        begin += count


# ---------------------------------------------------------------- in the role


def read_job(stream: IO[str]) -> Job:
    """Read the job, and see to it that this process stops when the process that gave the job is gone.

    Parameters
    ----------
    stream : the standard input, whose end asks the process to stop. A process of a group does not read it: it has
        the job from the process that leads the group, and dies with that process.
    """
    given = os.environ.pop(JOB, None)
    told = json.loads(stream.readline() if given is None else given)
    die_with_parent()
    if os.getppid() != told.pop("parent"):  # the parent died before the line above
        raise PeerError("ORPHANED", "the supervisor is gone", "run the same command again")
    if given is None:
        threading.Thread(target=_stop_at_end, args=(stream,), daemon=True).start()
    return Job(**told)


def lead(job: Job) -> int:
    """Start the group of a role and wait for its end; this process ends like the first process that failed."""
    one = dataclasses.replace(job, processes=1)
    os.environ[JOB] = json.dumps(dataclasses.asdict(one) | {"parent": os.getpid()})
    return end_as(run_group(["role"], job.processes))


def die_with_parent() -> None:
    """Let the system kill this process when its parent dies, even if this process is stopped.

    A kill is safe, because artefacts are published whole.
    """
    with contextlib.suppress(OSError, AttributeError):  # only Linux can; elsewhere the end of the stream must do
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop_at_end(stream: IO[str]) -> None:
    """Stop this process when the stream ends; at the latest after ``ORPHAN_SECONDS``."""
    stream.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(Interrupted.status)

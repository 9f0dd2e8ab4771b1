"""The trainer and the inferencer, two processes that work on one experiment: their job, and how they do it.

A role reads its job from one line of JSON on its standard input, which then stays open. If the input ends, the
process that started the role is gone; then the role stops at the next place where nothing is lost.
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
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from hardneg.data.importing import open_data
from hardneg.data.training_data import Splits, amended
from hardneg.errors import Interrupted, PeerError, SettingsError
from hardneg.experiment.folder import Experiment, join_experiment, kept_judgements
from hardneg.experiment.layout import Layout
from hardneg.experiment.provenance import remember_collection
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.source import ModelSource
from hardneg.process import progress
from hardneg.process.cpu import tune
from hardneg.process.distributed import is_leader
from hardneg.process.memory import limit_memory, limit_of
from hardneg.recipes.ance.refreshing import heartbeat_of
from hardneg.recipes.frozen import frozen_models
from hardneg.recipes.settings import Recipe
from hardneg.recipes.starting_model import starting_encoder
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import lease

log = logging.getLogger(__name__)

ORPHAN_SECONDS = 6.0  # to stop where nothing is lost when whoever started the role is gone; then it ends
PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


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
    split_seed: int  # of the queries that are held out
    inputs: Mapping[str, str]
    cache: str | None
    supervised: bool  # somebody restarts the other roles: wait for them however long it takes
    threads: int | None = None
    max_ram: str | None = None
    max_vram: str | None = None


def jobs_of(job: Job, roles: Sequence[str]) -> list[Job]:
    """The job for each of these roles, which share the threads, memory and CUDA devices of this process."""
    import torch

    share, device = max(len(roles), 1), job.source["device"]
    several = device == "cuda" and torch.cuda.device_count() >= share > 1
    ram, vram = (None if limit is None else str(limit // share) for limit in map(limit_of, ("cpu", "cuda")))
    return [
        dataclasses.replace(
            job,
            role=role,
            source={**job.source, "device": f"cuda:{number}" if several else device},
            threads=max(torch.get_num_threads() // share, 1),
            max_ram=ram,
            max_vram=vram,
        )
        for number, role in enumerate(roles)
    ]


# ---------------------------------------------------------------- in the role


def take_role(recipe: Recipe, job: Job) -> None:
    """Be the trainer or the inferencer of an experiment until there is nothing left to do.

    In a group of processes all of them are: rank 0 holds the role, and gives signs of life.

    Raises
    ------
    BusyError : another process has this role.
    """
    if job.role not in recipe.roles:
        raise SettingsError("NO_ROLE", f"{recipe.name} has no role '{job.role}'", f"use {', '.join(recipe.roles)}")
    tune(job.threads)
    limit_memory(job.max_ram, job.max_vram)
    out, settings = Path(job.out), recipe.settings.model_validate(dict(job.settings), strict=False)
    collection = open_data(job.data, cache=None if job.cache is None else Path(job.cache))
    data = settings.data_of(collection, Splits(**job.splits), seed=job.split_seed)
    data = amended(data, kept_judgements(out, collection))
    assert data.digest == job.inputs["splits"]
    source = ModelSource(**dict(job.source) | {"allow_code": tuple(job.source["allow_code"])})
    with (
        lease(Layout(out).role(job.role)) if is_leader() else contextlib.nullcontext(),
        join_experiment(
            out,
            recipe=recipe.name,
            settings=settings,
            inputs=job.inputs,
            data=data,
            source=source,
            cache=Path(job.cache) if job.cache else None,
        ) as experiment,
        alive(experiment, job.role),
        tensorboard_writer(experiment, settings.tensorboard and is_leader()),
    ):
        remember_collection(out, data.collection)
        patience = math.inf if job.supervised else settings.silent_seconds
        base = partial(starting_encoder, source, settings)
        training = TrainingRun(
            settings, data, experiment, frozen_models(settings, source, base, data, experiment.cache)
        )
        recipe.roles[job.role](training, base, patience)


def alive(experiment: Experiment, role: str) -> contextlib.AbstractContextManager[None]:
    """While the block runs, show the other role signs of life of rank 0, which waits for all of its group."""
    if not is_leader():
        return contextlib.nullcontext()
    return heartbeat_of(experiment, role).beating(lambda: progress.beats)


def read_job(stream: IO[str]) -> Job:
    """Read the job from standard input; from now on, the end of this input asks the process to stop."""
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

"""The work of a process that takes the role of trainer or inferencer in an experiment."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.config import differences
from hardneg.data.importing import open_data
from hardneg.data.training_data import DevDraw, Splits, amended
from hardneg.errors import SettingsError
from hardneg.experiment.folder import Experiment, check_judgements, join_experiment, other_inputs
from hardneg.experiment.layout import Layout
from hardneg.experiment.provenance import remember_collection
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.source import ModelSource
from hardneg.process import progress
from hardneg.process.cpu import tune
from hardneg.process.distributed import is_leader
from hardneg.process.memory import limit_memory
from hardneg.process.threads import pick_device
from hardneg.recipes.frozen import frozen_models
from hardneg.recipes.roles.jobs import Job
from hardneg.recipes.roles.peers import heartbeat_of
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.starting_model import starting_encoder
from hardneg.recipes.starting_ranker import ranker_of
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import lease

OTHERS_SECONDS = 5.0  # between two signs of life of a process that is not rank 0


def take_role(recipe: Recipe, job: Job) -> None:
    """Be the trainer or the inferencer of an experiment until all work of this role is done.

    In a group, all processes take the role; rank 0 holds its lock.

    Raises
    ------
    BusyError : another process has this role.
    """
    if job.role not in recipe.roles:
        raise SettingsError("NO_ROLE", f"{recipe.name} has no role '{job.role}'", f"use {', '.join(recipe.roles)}")
    tune(job.threads)
    limit_memory(job.max_ram, job.max_vram, processes=job.ram_sharers, vram_processes=job.vram_sharers)
    out, settings = Path(job.out), recipe.settings.model_validate(dict(job.settings), strict=False)
    collection = open_data(job.data, cache=None if job.cache is None else Path(job.cache))
    data = settings.data_of(collection, Splits(**job.splits), draw=DevDraw(**job.draw))
    data = amended(data, check_judgements(out, collection, job.inputs.get("judgements")))
    if changed := differences({"splits": job.inputs["splits"]}, {"splits": data.digest}):
        raise other_inputs(changed, out)
    source = source_of(job)
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
        recipe.roles[job.role](training, base, patience, **given_of(recipe, settings, source))


def given_of(recipe: Recipe, settings: TrainingSettings, source: ModelSource) -> dict[str, Any]:
    """The further arguments of a role's function: the ranker to begin with, if the recipe trains one."""
    if not recipe.facts.takes_ranker:
        return {}
    return {"ranker": ranker_of(source, settings)}


def source_of(job: Job) -> ModelSource:
    """The models of a job, on this process's own device if its group has several devices."""
    device = pick_device() if job.source["device"] == "cuda" else job.source["device"]
    return ModelSource(**dict(job.source) | {"allow_code": tuple(job.source["allow_code"]), "device": device})


def alive(experiment: Experiment, role: str) -> contextlib.AbstractContextManager[None]:
    """While the block runs, show signs of life of the group: to the other role, and to a supervisor.

    Each process gives them, because rank 0 may wait long for a slower one. Rank 0 alone gives the sign that comes
    before any work is done; the others give theirs seldom, since they mostly work while rank 0 does, and not while
    they wait for it: it may hang.
    """
    beat = heartbeat_of(experiment, role)
    if is_leader():
        return beat.beating(lambda: progress.beats)

    def worked() -> int:
        return progress.beats - progress.waits

    return beat.beating(worked, every=OTHERS_SECONDS, last=worked())

"""Refreshes of the negatives in an experiment: its versions, its published models, and the next job of mining."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hardneg.errors import PeerError
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import geometry_of, number_of, versions_in
from hardneg.experiment.names import UNTRAINED, Asked
from hardneg.experiment.snapshot import ArchivedState, Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.labels import answers_of, current_positives
from hardneg.negatives.pool import save_pool
from hardneg.process import stages
from hardneg.recipes.ance.versions import (
    Mode,
    Versions,
    read_rows,
    scheduled_version,
    source_step,
    split_lines,
    version_at,
)
from hardneg.recipes.roles.peers import POLL_SECONDS, Supervisor
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_published, read_manifest, remove
from hardneg.training.checkpoint import checkpoints

EPISODE = 1  # all steps are of one stage; a refresh begins an episode for diagnostics only

DONE = (-1, -1)  # stands for: there is no job any more


def versions_of(experiment: Experiment) -> Versions:
    """The versions of an experiment's negatives."""
    return Versions(experiment.layout.versions)


def state_name(version: int) -> str:
    """The name of the state that mines a version."""
    return UNTRAINED if version == 0 else f"refresh-{version}"


def state_facts(version: int) -> dict[str, Any]:
    """The kind of the state that mines a version, and the episode that made it."""
    return {"kind": "version", "episode": EPISODE} if version else {"kind": "untrained"}


def runs_of(experiment: Experiment, version: int) -> Path:
    """The folder of the runs of the state that mines a version."""
    return experiment.layout.episode(version).runs


def newest_export(experiment: Experiment) -> int:
    """The step of the newest published model; 0 if none is published yet."""
    steps = [step for step, path in experiment.layout.exports() if is_published(path)]
    return max(steps, default=0)


def is_trained(experiment: Experiment, steps: int) -> bool:
    """Whether the final model, which is trained for so many steps, is published."""
    models = [experiment.layout.last_model, experiment.layout.model]  # the first, if the best is kept
    return any(is_published(model) and read_manifest(model).inputs.get("step") == str(steps) for model in models)


def mining_state(
    training: TrainingRun, miner: BiEncoder, version: int, step: int, pool: Path | None = None
) -> Snapshot:
    """The state that mines a version; its model is that of a step."""
    runs, facts = runs_of(training.experiment, version), state_facts(version)
    return training.state(miner, state_name(version), runs, step=step, pool=pool, **facts)


def archived_state(
    experiment: Experiment, version: int, step: int, pool: Path | None, asked: Asked = "all"
) -> ArchivedState:
    """The state that mined a version in an earlier run; only its runs are left."""
    return ArchivedState(
        state_name(version),
        runs_of(experiment, version),
        step=step,
        pool=pool,
        asked=asked,
        **state_facts(version),
    )


def version_before(mode: Mode, experiment: Experiment, step: int, every: int) -> Path | None:
    """The folder of the version in force just before ``step``; None at step 0.

    In ``async`` the log says which one: the newest version may come later than the model that mines the next one.
    """
    if step == 0:
        return None
    last = in_force(experiment, step - 1) if mode == "async" else scheduled_version(mode, step - 1, every)
    return versions_of(experiment).path(last)


def next_job(mode: Mode, experiment: Experiment, *, every: int, refreshes: int) -> tuple[int, int] | None:
    """The next (version, step of its model) to mine; None if there is none yet, ``DONE`` if training is over."""
    versions = versions_of(experiment)
    newest = versions.newest()
    if newest is None:
        return 0, 0
    if is_trained(experiment, (refreshes + 1) * every):
        return DONE
    if mode == "async":
        step = newest_export(experiment)
        return (newest + 1, step) if step > versions.step(newest) else None
    version = newest + (2 if mode == "async-fixed" and newest == 0 else 1)
    step = source_step(mode, version, every)
    return (version, step) if version <= refreshes and is_published(experiment.layout.exported(step)) else None


def publish_version(training: TrainingRun[Any], state: Snapshot, version: int) -> None:
    """Publish the candidates of a state as a version of the negatives: top ``depth`` without D+, within bounds."""
    stages.begin("mine")
    data, experiment, settings = training.data, training.experiment, training.settings
    contains = answers_of(data, experiment.cache)
    with experiment.timed("mine", version=version, step=state.step, mined=0) as facts:
        positives = current_positives(state, data, settings.depth, contains)
        pool = training.mined(state, positives, contains, episode=version)
        facts["mined"] = pool.mined
    inputs = {"collection": data.collection.digest, "miner": state.digest, "step": str(state.step)}
    inputs |= training.guide_inputs
    told = {"depth": settings.depth, **settings.bounds}
    save_pool(pool, versions_of(experiment).path(version), settings=told, inputs=inputs)


def is_mined(experiment: Experiment, version: int) -> bool:
    """Whether a version was completed, even if it was deleted afterwards: what its state measured never is."""
    versions = versions_of(experiment)
    newest = versions.newest()
    older = newest is not None and version < newest
    return versions.is_complete(version) or (older and is_published(geometry_of(runs_of(experiment, version))))


def step_of(experiment: Experiment, version: int) -> int:
    """The step whose model mined a version, even if the version was deleted afterwards."""
    versions = versions_of(experiment)
    if versions.is_complete(version):
        return versions.step(version)
    return int(read_manifest(geometry_of(runs_of(experiment, version))).facts["step"])


def delete_models(experiment: Experiment, *, before: int) -> None:
    """Delete the models that were published before this step; they mine no version any more."""
    for step, path in experiment.layout.exports():
        if step < before:
            remove(path)


def delete_old(experiment: Experiment, *, used: Path | None, keep: int | None) -> None:
    """Delete models that are no newer than that of the newest version, and old versions.

    A version is kept as long as a run that resumes from a kept checkpoint may need it.

    Parameters
    ----------
    used : the version that the newest measured state was trained on; later states need no older one.
    keep : the number of newest versions to keep in any case; None: all of them.
    """
    versions = versions_of(experiment)
    newest = versions.newest()
    mined = -1 if newest is None else versions.step(newest)
    delete_models(experiment, before=mined + 1)
    if newest is None or keep is None or used is None:
        return
    oldest = min(number_of(used), newest - keep + 1, needed_from(experiment))
    for number, path in versions_in(versions.folder):
        if is_published(path) and number < oldest:
            remove(path)


def needed_from(experiment: Experiment) -> int:
    """The oldest version that training needs if it resumes from its oldest checkpoint."""
    kept = checkpoints(experiment.layout.episode(EPISODE).checkpoints)
    return in_force(experiment, number_of(kept[0]) if kept else 0)


def in_force(experiment: Experiment, step: int) -> int:
    """The version that a step was made with, by the log; 0 before the log has one."""
    log = experiment.layout.version_log
    return version_at(read_rows(log, split_lines(log)[0]), step) or 0


def mined_states(
    experiment: Experiment,
    working: Supervisor,
    *,
    mode: Mode,
    every: int,
    steps: int,
    keep: int | None,
    weights: Mapping[int, Path],
    asked: Asked = "all",
) -> Iterator[ArchivedState]:
    """Yield the state that mined each version when the version is complete, while two processes train and mine.

    Parameters
    ----------
    every : steps between two published models.
    steps : all steps of training.
    keep : the number of newest versions to keep, besides those that resuming needs; None: all of them.
    weights : step -> the folder of its weights, for the steps whose weights are kept.
    asked : the queries that the states were searched for.

    Raises
    ------
    PeerError : a role failed, or training ended without a model.
    """
    versions, version = versions_of(experiment), 0
    while True:
        busy = working(version)  # before looking for versions, so that the last ones are not missed
        newest = versions.newest()
        while newest is not None and version <= newest:
            if is_mined(experiment, version):
                step = step_of(experiment, version)
                used = version_before(mode, experiment, step, every)
                state = archived_state(experiment, version, step, used, asked)
                state.weights = weights.get(step)
                yield state
                delete_old(experiment, used=used, keep=keep)
            version += 1
        if not busy:
            break
        time.sleep(POLL_SECONDS)
    if not is_trained(experiment, steps):
        raise PeerError("NO_FINAL_MODEL", "training ended without a model", "look at the log, run it again")

"""Any recipe, from its arguments to its results."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.api.diagnose import report_seeds, report_training
from hardneg.api.inputs import Data, Place
from hardneg.api.minutes import fitted
from hardneg.api.planning import origins, planned
from hardneg.api.prepare import Task, prepare
from hardneg.api.start import (
    Start,
    be_role,
    execution,
    finished_already,
    open_start,
    role_jobs,
    say_start,
    with_ranker,
)
from hardneg.api.train_ranker import train_ranker
from hardneg.diagnostics.results import (
    EvaluationPlan,
    Handling,
    evaluate_states,
    kept_state,
    save_state,
)
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.diagnostics.timeline import draw_timeline
from hardneg.errors import HardnegError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.experiment.observers import Observers
from hardneg.experiment.results_manifest import write_results
from hardneg.experiment.snapshot import State
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.process.agreement import check_told_alike
from hardneg.process.distributed import by_leader, group, is_leader
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import note
from hardneg.process.stages import following
from hardneg.recipes.frozen import frozen_models
from hardneg.recipes.many_devices import ALONE, parse_devices
from hardneg.recipes.microbenchmarks import timed_once
from hardneg.recipes.roles.supervision import team
from hardneg.recipes.settings import Recipe
from hardneg.recipes.training_run import TrainingRun
from hardneg.recipes.untrained import from_own
from hardneg.storage.safe_read import read_json


@group()  # all processes join before one of them writes
def train_seeds(task: Task) -> dict[str, Any]:
    """The results of one experiment, or the pooled results of one for each seed; {} if one role was run."""
    check_told_alike(told_to(task))
    if task.role is not None:
        be_role(task, task.role)
        return {}
    task = fitted(task)
    if task.seeds == 1:
        return trainer_of(task)(task)
    tasks, results = task.each_seed, {}
    train = trainer_of(tasks[0])
    for one in tasks:
        note(f"seed {one.settings.seed}")
        results[one.settings.seed] = train(one)
    pooled = pool_seeds(results)
    if is_leader():
        known = is_known(task.place, pooled)
        write_results(task.place, pooled)
        if not known or not Layout(task.place).report.is_file():
            report_seeds(task.place, task.data, task.cache)
    return pooled


def told_to(task: Task) -> dict[str, Any]:
    """What all processes that train together must have been told alike; places may differ by machine."""
    return {
        "recipe": task.recipe.name,
        **task.settings.model_dump(mode="json"),
        "data": task.data.collection.digest,
        **{f"--{name}": value for name, value in dataclasses.asdict(task.splits).items()},
        "--seeds": task.seeds,
        "--minutes": task.minutes,
        "--role": task.role,
    }


def is_known(folder: Path, results: Mapping[str, Any]) -> bool:
    """Whether a folder has these results already."""
    place = Layout(folder).results
    try:
        return place.is_file() and read_json(place) == json.loads(json.dumps(results))
    except HardnegError:  # it is damaged
        return False


def trainer_of(task: Task) -> Callable[[Task], dict[str, Any]]:
    """The function that trains one experiment; what all seeds start from is opened once."""
    if task.recipe.trains == "ranker":
        return train_ranker
    start = open_start(task, compare_texts=True)
    return lambda one: train_once(one, with_ranker(start, one))


def train_once(task: Task, start: Start) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    recipe, settings, data, source, out = task.recipe, task.settings, task.data, task.source, task.place
    warn_if_emulated(settings.precision, source.device_here)
    jobs = role_jobs(task, start.inputs, settings.roles)
    with execution(task, start.inputs) as experiment:
        if (done := finished_already(task, experiment)) is not None:
            return done
        frozen = frozen_models(settings, source, start.base, data, experiment.cache)
        training = TrainingRun(settings, data, experiment, frozen)
        plan = evaluation_plan(task, start)
        others = partial(recipe.others, experiment.layout, data, source, plan.settings)
        say_start(start, experiment, settings.course, data.collection)
        with (
            contextlib.ExitStack() as stack,
            tensorboard_writer(experiment, settings.tensorboard and is_leader()),
        ):

            def states() -> Iterator[State]:
                given = dict(start.given)
                if jobs:  # they start when the first state is asked for
                    given["working"] = stack.enter_context(team(jobs, experiment, settings))
                return recipe.run(training, start.base, **given)

            stack.enter_context(following(start.stages))
            stack.enter_context(experiment.observed(Observers(*task.observers)))
            evaluate_states(
                from_own(start.own, training, states),
                data,
                experiment,
                plan,
                bm25=bm25_judged,
                untrained=start.untrained,
                handling=Handling(partial(kept_state, started=start.base), save_state, others=others),
            )
        if jobs:
            draw_timeline(experiment.layout.timeline, experiment.timing)
        if is_leader():
            report_training(out, data, experiment.cache)
        return by_leader(lambda: dict(experiment.results))


def evaluation_plan(task: Task, start: Start) -> EvaluationPlan:
    """What is measured of the states of an experiment, and what its model card says."""
    settings, source = task.settings, task.source
    ranker = f", with the ranker {source.of_ranker.name} to learn from" if source.ranker else ""
    return EvaluationPlan(
        measures=settings.judging,
        depth=settings.depth,
        seed=settings.seed,
        first_episode=settings.first_episode,
        keep=settings.keep,
        about=f"A dense retriever trained with hardneg by {task.recipe.about} from {source.name}{ranker}.",
        settings=settings.card_values(ranker_given=bool(source.ranker)),
        base_model=source.hub_name,
        trained_start=source.trained_name,
        own=start.own_settings,
        in_steps=settings.train_passage_length,
        how="" if start.own is None else start.own.how,
        dev_passages=settings.dev_passages,
        bm25_lists=settings.bm25_lists if settings.examine == "all" else 0,
    )


def plan(
    recipe: Recipe,
    data: Data,
    model: Place,
    out: Place | None = None,
    *,
    estimate: bool = False,
    devices: str | int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Check everything that training needs, and say what it would do; see :func:`hardneg.api.recipes.plan`."""
    many = parse_devices(str(devices))
    if many != ALONE and not estimate:
        raise SettingsError("USAGE", f"devices = {devices} without an estimate", "ask for one, too: --estimate")
    task = prepare(recipe, data, model, out, **options)
    if many.mining and getattr(task.settings, "mode", "sync") == "sync":
        what = f"devices = {devices} has a group that mines: only ance and ar2 in an asynchronous mode have one"
        fix = f"write {many.count + many.mining}, or take ance or ar2 with mode = async-fixed"
        raise SettingsError("BAD_DEVICES", what, fix)
    with timed_once():  # so that an estimate of the epochs that fit comes to the time that was asked for
        fitting = fitted(task, devices=many)
        found = planned(fitting, measure=estimate, devices=many)
    return {"settings": found.pop("settings"), "origins": origins(task, fitting.settings), **found}

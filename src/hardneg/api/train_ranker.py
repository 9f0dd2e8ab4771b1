"""The training of a ranker, from its arguments to its results."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hardneg.api.diagnose import report_training
from hardneg.api.inputs import source_at
from hardneg.api.prepare import Task
from hardneg.api.start import (
    execution,
    finished_already,
    indexed,
    inputs_of,
    say_what_differs,
    say_where_it_ended,
)
from hardneg.diagnostics.cards import gain_lines
from hardneg.diagnostics.reranked import kept_ranker, ranking_gains, save_state
from hardneg.diagnostics.results import EvaluationPlan, Handling, evaluate_states
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.experiment.observers import Observers
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import open_encoder
from hardneg.process.distributed import by_leader, is_leader, world_size
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import clock, is_shown, size_text
from hardneg.process.stages import Planned, following
from hardneg.recipes.cost_model import judged_queries
from hardneg.recipes.estimate import add_beside, add_exchange, add_search, add_words, ranker_memory, ranker_seconds
from hardneg.recipes.frozen import FrozenModels, frozen_models
from hardneg.recipes.frozen_cost import frozen_work
from hardneg.recipes.many_devices import Devices
from hardneg.recipes.microbenchmarks import ranking_cost
from hardneg.recipes.ranker import RANKER, RankerTraining, RankerWork, fresh_ranker
from hardneg.recipes.starting_model import starting_encoder
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Side

log = logging.getLogger(__name__)


def train_ranker(task: Task) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    recipe, data, source, out = task.recipe, task.data, task.source, task.place
    settings = ranker_settings(task)
    warn_if_emulated(settings.precision, source.device_here)
    ranker, given, inputs = open_ranker_start(task)
    with execution(task, inputs) as experiment:
        if (done := finished_already(task, experiment)) is not None:
            return done
        training = TrainingRun(settings, data, experiment, frozen_of(task, experiment.cache))
        if is_leader():
            say_where_it_ended(experiment, settings.course)
            say_what_differs(experiment, ranker.device.type, world_size())
        base = partial(fresh_ranker, source, settings, log.debug)  # it was told of above
        first = [ranker]  # training starts with the one that is open; the next is read again
        with (
            tensorboard_writer(experiment, settings.tensorboard and is_leader()),
            following(shown_stages(task, ranker)),
            experiment.observed(Observers(*task.observers)),
        ):
            evaluate_states(
                recipe.run(training, lambda: first.pop() if first else base(), **given),
                data,
                experiment,
                ranker_plan(task, ranker),
                bm25=bm25_judged,
                untrained=base,
                handling=Handling(
                    kept_ranker,
                    save_state,
                    besides=lambda seen, judge: ranking_gains(seen, judge, settings.rerank, experiment.layout),
                    model=RANKER,
                    task="text-ranking",
                ),
            )
        if is_leader():
            report_training(out, data, experiment.cache)
        results = by_leader(lambda: dict(experiment.results))
    if is_leader():
        for line in gain_lines(results):
            log.info(line)
    return results


def shown_stages(task: Task, ranker: CrossEncoder) -> list[Planned]:
    """The stages of training; empty if no progress is shown."""
    if not is_shown():
        return []
    work: RankerWork = task.recipe.plan(task.settings, task.data, ranker)
    return work.stages(retrieved=task.retriever is not None)


def ranker_settings(task: Task) -> RankerTraining:
    """The settings of a task that trains a ranker."""
    assert isinstance(task.settings, RankerTraining)
    return task.settings


def open_ranker_start(task: Task) -> tuple[CrossEncoder, dict[str, Any], dict[str, str]]:
    """The ranker that training starts with; the pool and the retriever that are given; the digests of all."""
    given = dict(task.given.arguments)
    ranker = fresh_ranker(task.source, ranker_settings(task))
    inputs = inputs_of(task, ranker)
    if task.retriever is not None:
        given["retriever"] = first_retriever(task)
        inputs["retriever"] = given["retriever"].digest()
    return ranker, given, inputs


def frozen_of(task: Task, cache: Path) -> FrozenModels | None:
    """The frozen models that training a ranker uses, to filter or to teach."""
    starting = partial(starting_encoder, task.source, task.settings)
    return frozen_models(task.settings, task.source, starting, task.data, cache)


def first_retriever(task: Task) -> BiEncoder:
    """The retriever that ranks first, read as the trained model is."""
    assert task.retriever is not None
    return open_encoder(source_at(task.retriever, device=task.source.device, allow_bin=task.source.allow_bin))


def ranker_plan(task: Task, ranker: CrossEncoder) -> EvaluationPlan:
    """What is measured of the states, and what the model card says: the length, if one was asked for, as it is."""
    settings, source = ranker_settings(task), task.source
    length = settings.max_length and ranker.settings.max_length
    return EvaluationPlan(
        measures=settings.judging,
        depth=settings.depth,
        seed=settings.seed,
        keep=settings.keep,
        about=f"A ranker (cross-encoder) trained with hardneg by {task.recipe.about} from {source.name}.",
        settings=settings.result_values() | {"max_length": length},
        base_model=source.hub_name,
        trained_start=source.trained_name,
    )


# ---------------------------------------------------------------- what it would do


def plan_ranker(task: Task, ranker: CrossEncoder, *, measure: bool, devices: Devices) -> dict[str, Any]:
    """What training a ranker would do; with ``measure`` also how long, on such devices, timed on a sample here."""
    settings = ranker_settings(task)
    work: RankerWork = task.recipe.plan(settings, task.data, ranker)
    facts = {
        "passages": task.data.collection.n_passages,
        "training queries": len(task.data.train),
        "ranks first": task.retriever or "BM25",
        "pairs of a step": work.episode.queries_per_step * work.episode.passages_per_query,
        "pairs trained on": work.trained,
        "pairs scored to measure": work.scored,
        "optimiser steps": work.episode.steps,
        **({"seeds": task.seeds} if task.seeds > 1 else {}),
    }
    mined = work.with_mining(settings, retrieved=task.retriever is not None, pool=task.given.pool is not None)
    cost = replace(mined, devices=devices, indexed=indexed(task))
    beside = frozen_work(settings, cost, task.source, task.given.pool, None)
    facts |= {name: count for one in beside for name, count in one.facts.items()}
    plan: dict[str, Any] = {"episodes": [work.episode.as_json()], "facts": facts}
    if measure:
        of_pairs = ranking_cost(ranker, task.data, settings.precision, cost.optimizer, recompute=cost.recompute)
        train = ranker_seconds(of_pairs, cost, [work.episode])
        seconds = {"train": train, "measure": of_pairs.scored * work.scored}
        add_exchange(seconds, cost, work.episode.steps, 4 * sum(p.numel() for p in ranker.parameters()))
        first = None if task.retriever is None else first_retriever(task)
        taken = ranker_memory(of_pairs, cost, work.episode, ranker, first)
        if first is not None:
            queries = len(task.data.train) + judged_queries(task.data)
            add_search(seconds, cost, first, queries, settings.depth, sides=get_args(Side))
        add_words(seconds, cost)
        for one in beside:
            taken += add_beside(seconds, cost, one).memory
        seconds = {stage: task.seeds * value for stage, value in seconds.items()}
        plan["seconds"] = seconds | {"total": sum(seconds.values())}
        plan["bytes"] = {"memory": taken}
        facts |= {f"time to {stage}": clock(value) for stage, value in seconds.items()}
        facts["time in all, about"] = clock(plan["seconds"]["total"])
        facts["memory, about"] = size_text(taken)
        facts |= devices.facts
    return {"settings": settings.model_dump(mode="json"), **plan}

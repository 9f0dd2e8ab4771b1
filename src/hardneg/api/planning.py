"""Says what a task would do: its episodes and facts, and with a sample of the work its time, disk and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from hardneg.api.prepare import Task
from hardneg.api.start import Start, open_start, planned_work, with_ranker
from hardneg.api.train_ranker import open_ranker_start, plan_ranker
from hardneg.models.bi_encoder import BiEncoder
from hardneg.recipes.estimate import describe_work
from hardneg.recipes.frozen_cost import frozen_work
from hardneg.recipes.many_devices import ALONE, Devices
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.usual import BOUNDS

IN_STEPS = {"epochs": "steps", "first_epochs": "first_steps"}  # lengths -> what counts in their place if given
LOOKED_AT = 512  # texts of a side that a plan looks at


def planned(task: Task, *, measure: bool, devices: Devices = ALONE) -> dict[str, Any]:
    """What a task would do; nothing is trained.

    Parameters
    ----------
    measure : also time the work on a sample, for such ``devices``.

    Returns
    -------
    As :func:`~hardneg.api.recipes.plan` does, without ``origins``.
    """
    return planner(task, devices=devices)(task.settings, measure=measure)


def origins(task: Task, settings: TrainingSettings) -> dict[str, str]:
    """Where the value of each setting of a task comes from, by name; those with their default are left out.

    Parameters
    ----------
    settings : those that the task would use: its own, or those that fit into its minutes.
    """
    computed = "for these data" if task.minutes is None else f"to fit {task.minutes:g} minutes"
    found = {}
    for name, field in type(task.told).model_fields.items():
        value = getattr(settings, name)
        if value != getattr(task.told, name):
            found[name] = computed
        elif value != field.get_default(call_default_factory=True) or task.told.is_told(name):
            found[name] = task.told.origin_of(name)
    return found | {name: f"{found[name]}, and not used: steps are given" for name in unused(task.told) & {*found}}


def unused(settings: TrainingSettings) -> set[str]:
    """The settings of lengths that do not count, because steps are given in their place."""
    fields = type(settings).model_fields
    pairs = {epochs: steps for epochs, steps in IN_STEPS.items() if epochs in fields and steps in fields}
    found = {epochs for epochs, steps in pairs.items() if getattr(settings, steps) is not None}
    return found | {*BOUNDS} if found and found == {*pairs} else found


def planner(task: Task, *, devices: Devices = ALONE) -> Callable[..., dict[str, Any]]:
    """A function (settings, measure=) -> the plan of the task with settings that differ in their lengths alone.

    What training starts from is opened once.
    """
    if task.recipe.trains == "ranker":
        ranker = open_ranker_start(task)[0]
        return lambda settings, measure: plan_ranker(
            dataclasses.replace(task, settings=settings), ranker, measure=measure, devices=devices
        )
    start = with_ranker(open_start(task, compare_texts=False), task)
    if start.own is not None:
        start = dataclasses.replace(start, own=dataclasses.replace(start.own, load=cache(start.own.load)))
    return partial(described, task, start, start.base(), devices)


def described(
    task: Task, start: Start, encoder: BiEncoder, devices: Devices, settings: TrainingSettings, *, measure: bool
) -> dict[str, Any]:
    """What a task that trains a retriever would do with these settings."""
    ranker = {"ranker": start.given["ranker"]} if "ranker" in start.given else {}
    work = planned_work(task, settings, encoder, **ranker)
    frozen = frozen_work(settings, work, task.source, task.given.pool, start.inputs.get("teacher"))
    work = dataclasses.replace(work, beside=[*work.beside, *frozen], devices=devices)
    found = describe_work(work, encoder, seeds=task.seeds, measure=measure, own=start.own)
    cuts = [length.sample_cut(task.data.collection, LOOKED_AT) for length in start.lengths]
    found["facts"] |= {f"cut {cut.plural}": cut.told for cut in cuts}
    return {"settings": settings.model_dump(mode="json"), **found}

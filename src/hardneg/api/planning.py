"""Says what a task would do: its episodes and facts, and with a sample of the work its time, disk and memory."""

from __future__ import annotations

import dataclasses
from typing import Any

from hardneg.api.prepare import Task
from hardneg.api.start import open_start, with_ranker
from hardneg.api.train_ranker import plan_ranker
from hardneg.recipes.estimate import describe_work
from hardneg.recipes.frozen_cost import frozen_work
from hardneg.recipes.many_devices import ALONE, Devices

LOOKED_AT = 512  # texts of a side that a plan looks at


def planned(task: Task, *, measure: bool, devices: Devices = ALONE) -> dict[str, Any]:
    """What a task would do; nothing is trained.

    Parameters
    ----------
    measure : also time the work on a sample, for such ``devices``.

    Returns
    -------
    As :func:`~hardneg.api.train.plan` does.
    """
    if task.recipe.trains == "ranker":
        return plan_ranker(task, measure=measure, devices=devices)
    start = with_ranker(open_start(task, compare_texts=False), task)
    encoder = start.base()
    ranker = {"ranker": start.given["ranker"]} if "ranker" in start.given else {}
    work = task.recipe.plan(task.settings, task.data, encoder, **ranker)
    frozen = frozen_work(task.settings, work, task.source, task.given.pool, start.inputs.get("teacher"))
    work = dataclasses.replace(work, beside=[*work.beside, *frozen], devices=devices)
    found = describe_work(work, encoder, seeds=task.seeds, measure=measure, own=start.own)
    cuts = [length.sample_cut(task.data.collection, LOOKED_AT) for length in start.lengths]
    found["facts"] |= {f"cut {cut.plural}": cut.told for cut in cuts}
    return {"settings": task.settings.model_dump(mode="json"), **found}

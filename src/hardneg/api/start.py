"""What an experiment starts from: opened, checked, and said before training begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.api.overrides import overridden
from hardneg.api.prepare import Task
from hardneg.api.retrievers import matching_index
from hardneg.data.training_data import TrainingData
from hardneg.errors import SettingsError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.code import allowed_code
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import Cut
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import texts_digest
from hardneg.negatives.pool import load_pool
from hardneg.process.distributed import is_leader
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import say
from hardneg.recipes.ance.roles import Job, jobs_of, take_role
from hardneg.recipes.frozen import frozen_models
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.starting_model import as_it_came, say_what_differs, starting_encoder
from hardneg.recipes.training_run import TrainingRun
from hardneg.recipes.untrained import Own, cuts_of
from hardneg.storage.artifacts import read_manifest


@dataclasses.dataclass(frozen=True)
class Start:
    """What an experiment starts from, besides the weights.

    Attributes
    ----------
    given : the pool or the index to begin with, as a recipe takes it.
    inputs : digests of all that it starts from.
    own : the model as it came, if training does not start from it.
    own_settings : those of the model as it came.
    """

    given: dict[str, Any]
    inputs: dict[str, str]
    own: Own | None
    own_settings: EncoderSettings


def open_start(task: Task, *, compare_texts: bool) -> tuple[BiEncoder, Start]:
    """The model that training starts from, and what else it starts from, checked.

    Parameters
    ----------
    compare_texts : also compare the texts of a given index, which may tokenise them.
    """
    given = open_given(task.recipe, task.negatives, task.data, task.settings)
    encoder = starting_encoder(task.source, task.settings)
    task.recipe.check(task.settings, task.data, encoder)
    if task.index_folder is not None:  # its texts are compared now: what is wrong must not become an input
        texts = partial(texts_digest, encoder, task.data.collection, task.stores) if compare_texts else None
        given["index"] = matching_index(task.index_folder, encoder, encoder.digest("passage"), texts)
    inputs = inputs_of(task.data, encoder, task.negatives, given)
    base = partial(starting_encoder, task.source, task.settings)
    frozen = frozen_models(task.settings, task.source, base, task.data, task.stores)
    if frozen is not None:
        frozen.check(given.get("given"))
        inputs |= frozen.digests
    return encoder, Start(given, inputs, *as_it_came(task.source, task.settings, encoder))


def open_given(
    recipe: Recipe, negatives: Path | None, data: TrainingData, settings: TrainingSettings
) -> dict[str, Any]:
    """The pool to begin with, checked against the collection; a later first episode needs one."""
    if negatives is not None and not recipe.facts.takes_pool:
        what = f"{recipe.name} mines its own negatives and begins with no pool"
        raise SettingsError("BAD_SETTING", what, "leave the pool out, or train ance-tele with it")
    if negatives is None:
        if settings.first_episode > 1:
            what = f"episode {settings.first_episode} is the first, and there are no negatives for it"
            raise SettingsError("NO_POOL", what, "give --negatives, or begin with episode 1")
        return {}
    collection = data.collection
    return {"given": load_pool(negatives, n_passages=collection.n_passages, collection=collection.digest)}


def inputs_of(
    data: TrainingData, encoder: BiEncoder, negatives: Path | None, given: Mapping[str, Any]
) -> dict[str, str]:
    """Digests of all that an experiment starts from."""
    inputs = {"collection": data.collection.digest, "model": encoder.digest(), "splits": data.digest}
    if encoder.code:
        inputs["code"] = "+".join(encoder.code)
    if negatives is not None:
        inputs["negatives"] = read_manifest(negatives).digest
    if "index" in given:
        inputs["index"] = given["index"].digest
    return inputs


def role_jobs(task: Task, inputs: Mapping[str, str], roles: Sequence[str]) -> list[Job]:
    """What each of these roles of an experiment is told."""
    source = dataclasses.replace(task.source, allow_code=allowed_code())  # with that of copies that will be saved
    job = Job(
        task.recipe.name,
        role="",
        out=str(task.place.absolute()),
        data=str(task.data.collection.path.absolute()),
        source=dataclasses.asdict(source),
        settings=task.settings.model_dump(mode="json"),
        splits=dataclasses.asdict(task.splits),
        split_seed=task.split_seed,
        inputs=dict(inputs),
        cache=None if task.cache is None else str(task.cache.absolute()),
        supervised=task.role is None,
    )
    return jobs_of(job, roles)


def be_role(task: Task, role: str) -> None:
    """Be one role of an experiment, beside other processes, until there is nothing left to do."""
    warn_if_emulated(task.settings.precision, task.source.device_here)
    inputs = open_start(task, compare_texts=True)[1].inputs
    take_role(task.recipe, *role_jobs(task, inputs, [role]))


def say_start(training: TrainingRun, source: ModelSource, start: Start, encoder: BiEncoder) -> list[Cut]:
    """Say what differs from the model as it came, and from where the experiment began; what lengths cut.

    Parameters
    ----------
    encoder : the model that training starts from.
    """
    say_what_differs(training.experiment, source.device_here)
    for line in overridden(training.settings, source, encoder):
        say(line)
    cuts = cuts_of(encoder, start.own_settings, training.data, training.experiment) if is_leader() else []
    if cuts:
        say("; ".join(map(str, cuts)))
    return cuts

"""Any recipe, from its arguments to its results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Data, Place
from hardneg.api.overrides import overridden
from hardneg.api.prepare import Task, prepare
from hardneg.api.retrievers import matching_index
from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.results import EvaluationPlan, evaluate_states, is_measured
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.diagnostics.timeline import draw_timeline
from hardneg.errors import SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import Experiment, open_experiment
from hardneg.experiment.provenance import remember_collection
from hardneg.experiment.results_manifest import write_results
from hardneg.experiment.snapshot import State
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.code import allowed_code
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import Cut
from hardneg.models.tokenizing import texts_digest
from hardneg.negatives.pool import load_pool
from hardneg.process.distributed import by_leader, group, is_leader
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import note, say
from hardneg.recipes.ance.roles import Job, jobs_of, take_role
from hardneg.recipes.ance.supervision import team
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.starting_model import as_it_came, say_what_differs, starting_encoder, untrained_encoder
from hardneg.recipes.untrained import Own, cuts_of, cuts_of_sample, from_own, lengths_of
from hardneg.storage.artifacts import read_manifest


@group()  # joined by all before one begins to write
def train_seeds(task: Task) -> dict[str, Any]:
    """The results of one experiment, or of several with a seed each, pooled."""
    if task.seeds == 1:
        return train_once(task)
    results = {}
    for seed in range(task.settings.seed, task.settings.seed + task.seeds):
        note(f"seed {seed}")
        results[seed] = train_once(task.seeded(seed))
    pooled = pool_seeds(results)
    if is_leader():
        write_results(task.place, pooled)
    return pooled


def train_once(task: Task) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    settings, source, out = task.settings, task.source, task.place
    warn_if_emulated(settings.precision, source.device_here)
    encoder, given, inputs = open_start(task, compare_texts=True)
    jobs = jobs_of(job_of(task, inputs), settings.roles if task.role is None else [task.role])
    if task.role is not None:
        take_role(task.recipe, jobs[0])
        return {}
    own, own_settings = as_it_came(source, settings, encoder)
    with open_experiment(
        out,
        recipe=task.recipe.name,
        settings=settings,
        inputs=inputs,
        data=task.data,
        source=source,
        cache=task.cache,
        grows=settings.may_grow,
    ) as experiment:
        remember_collection(out, task.data.collection)
        if by_leader(lambda: is_measured(experiment.results, parse_measures(settings.measures))):
            note(f"{out}: finished already")
        else:
            cuts = say_start(task, experiment, encoder, own_settings)
            del encoder  # from here on it would only take memory
            run_recipe(task, experiment, given, jobs, own=own, cuts=cuts)
        return by_leader(lambda: dict(experiment.results))


def say_start(task: Task, experiment: Experiment, encoder: BiEncoder, own: EncoderSettings) -> list[Cut]:
    """Say what differs from the model as it came, and from where the experiment began; what lengths cut."""
    say_what_differs(experiment, task.source.device_here)
    for line in overridden(task.settings, task.source, encoder):
        say(line)
    cuts = cuts_of(encoder, own, task.data, experiment) if is_leader() else []
    if cuts:
        say("; ".join(map(str, cuts)))
    return cuts


def run_recipe(
    task: Task,
    experiment: Experiment,
    given: dict[str, Any],
    jobs: Sequence[Job],
    *,
    own: Own | None,
    cuts: Sequence[Cut],
) -> None:
    """Let the recipe run, with its roles in processes of their own if it has any, and measure its states."""
    recipe, settings, data, source = task.recipe, task.settings, task.data, task.source
    with (
        contextlib.ExitStack() as stack,
        tensorboard_writer(experiment, settings.tensorboard and is_leader()),
    ):

        def states() -> Iterator[State]:
            if jobs:  # they start when the first state is asked for
                given["working"] = stack.enter_context(team(jobs, experiment, settings))
            return recipe.run(settings, data, partial(starting_encoder, source, settings), experiment, **given)

        evaluate_states(
            from_own(own, settings, data, experiment, states),
            data,
            experiment,
            EvaluationPlan(
                measures=parse_measures(settings.measures),
                depth=settings.depth,
                seed=settings.seed,
                first_episode=settings.first_episode,
                keep=settings.keep,
                about=f"A dense retriever trained with hardneg by {recipe.about} from {source.name}.",
                settings=settings.result_values(),
                base_model=source.hub_name,
                lengths=lengths_of(cuts),
                how="" if own is None else own.how,
            ),
            bm25=partial(bm25_judged, data, experiment.cache),
            untrained=partial(untrained_encoder, source, settings),
        )
    if jobs:
        draw_timeline(experiment.layout.timeline, experiment.timing)


def open_start(task: Task, *, compare_texts: bool) -> tuple[BiEncoder, dict[str, Any], dict[str, str]]:
    """What training starts from, checked: the model, what is given besides it, and the digests of all.

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
    return encoder, given, inputs_of(task.data, encoder, task.negatives, given)


def job_of(task: Task, inputs: Mapping[str, str]) -> Job:
    """What every role of an experiment is told."""
    source = dataclasses.replace(task.source, allow_code=allowed_code())  # with that of copies that will be saved
    return Job(
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


def plan(
    recipe: Recipe,
    data: Data,
    model: Place,
    out: Place | None = None,
    *,
    estimate: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Check everything that training needs, and say what it would do; nothing is trained.

    All but one thing: the texts of an index are compared when they are tokenised, which may take long.

    Parameters
    ----------
    estimate : also how long it would take here, and how much memory, timed on a sample.
    options : and all others as :func:`prepare` describes them: what training takes.

    Returns
    -------
    ``settings``; ``episodes``: for each ``episode``, ``queries``, ``steps`` and ``passages_per_query``; ``facts``.

    Raises
    ------
    As :func:`~hardneg.api.recipes.train`.
    """
    task = prepare(recipe, data, model, out, **options)
    encoder, _, _ = open_start(task, compare_texts=False)
    own, own_settings = as_it_came(task.source, task.settings, encoder)
    planned = recipe.plan(task.settings, task.data, encoder, seeds=task.seeds, measure=estimate, own=own)
    planned["facts"] |= {f"cut {cut.plural}": cut.told for cut in cuts_of_sample(encoder, own_settings, task.data)}
    return {"settings": task.settings.model_dump(mode="json"), **planned}

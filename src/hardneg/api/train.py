"""Any recipe, from its arguments to its results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Data, Place
from hardneg.api.overrides import overridden
from hardneg.api.prepare import prepare
from hardneg.api.retrievers import matching_index
from hardneg.data.training_data import Splits, TrainingData
from hardneg.diagnostics.results import evaluate_states, is_measured
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.diagnostics.timeline import draw_timeline
from hardneg.errors import SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import open_experiment
from hardneg.experiment.layout import Layout
from hardneg.experiment.provenance import remember_collection
from hardneg.experiment.results_manifest import write_results
from hardneg.experiment.snapshot import State
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import texts_digest
from hardneg.negatives.pool import load_pool
from hardneg.process.distributed import by_leader, group, is_leader
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import note, say
from hardneg.recipes.ance.roles import jobs_of, take_role
from hardneg.recipes.ance.supervision import team
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.starting_model import as_it_came, say_what_differs, starting_encoder, untrained_encoder
from hardneg.recipes.untrained import cuts_of, cuts_of_sample, from_own, lengths_of
from hardneg.storage.artifacts import read_manifest

Execute = Callable[[Path, TrainingSettings], dict[str, Any]]


def train(recipe: Recipe, data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Run a recipe and return the results; the same call resumes, or extends what may grow (``episodes``).

    Parameters
    ----------
    options : and all others as :func:`prepare` describes them.

    Returns
    -------
    What ``results.json`` holds: ``test`` and ``dev``: measures by state; ``comparisons``; ``forgetting``;
    ``pairwise_errors`` by split and state. Of several seeds: ``seeds``, and for every measure its ``mean``,
    ``std`` and ``values``. Of a role: {}.

    Raises
    ------
    As :func:`prepare`, and
    ArtifactError : something in ``out`` is damaged; the index is damaged, of another model or other passages, or
        not the one that the experiment began with.
    BusyError : another process works in ``out``.
    NumericError : a loss or gradient was not finite.
    """
    task = prepare(recipe, data, model, out, **options)
    execute = partial(
        train_once,
        recipe,
        data=task.data,
        splits=task.splits,
        role=task.role,
        split_seed=task.settings.seed,  # every seed holds out the same queries
        source=task.source,
        cache=task.cache,
        negatives=task.negatives,
        index_folder=task.index_folder,
    )
    assert task.out is not None
    return train_seeds(execute, task.out, task.settings, task.seeds)


@group()  # joined by all before one begins to write
def train_seeds(execute: Execute, place: Path, settings: TrainingSettings, count: int) -> dict[str, Any]:
    """The results of one experiment, or of ``count`` with a seed each, pooled."""
    if count == 1:
        return execute(place, settings)
    results = {}
    for seed in range(settings.seed, settings.seed + count):
        note(f"seed {seed}")
        results[seed] = execute(Layout(place).seed(seed).path, settings.model_copy(update={"seed": seed}))
    pooled = pool_seeds(results)
    if is_leader():
        write_results(place, pooled)
    return pooled


def train_once(
    recipe: Recipe,
    out: Path,
    settings: TrainingSettings,
    *,
    data: TrainingData,
    splits: Splits,
    source: ModelSource,
    cache: Path | None,
    negatives: Path | None,
    index_folder: Path | None,
    role: str | None,
    split_seed: int,
) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    measures = parse_measures(settings.measures)
    encoder = starting_encoder(source, settings)
    recipe.check(settings, data, encoder)
    warn_if_emulated(settings.precision, source.device_here)
    given = open_given(recipe, negatives, data, settings)
    if index_folder is not None:  # its texts are compared now: what is wrong must not become an input
        texts = partial(texts_digest, encoder, data.collection, cache or Layout(out).cache)
        given["index"] = matching_index(index_folder, encoder, encoder.digest("passage"), texts)
    inputs = inputs_of(data, encoder, negatives, given)
    roles = settings.roles if role is None else [role]
    places = (out, data.collection, splits, source, settings, inputs, cache)
    jobs = jobs_of(recipe, roles, *places, split_seed=split_seed, supervised=role is None)
    if role is not None:
        take_role(recipe, jobs[0])
        return {}
    own, own_settings = as_it_came(source, settings, encoder)
    with open_experiment(
        out,
        recipe=recipe.name,
        settings=settings,
        inputs=inputs,
        data=data,
        source=source,
        cache=cache,
        grows=settings.may_grow,
    ) as experiment:
        remember_collection(out, data.collection)
        if by_leader(lambda: is_measured(experiment.results, measures)):
            note(f"{out}: finished already")
        else:
            say_what_differs(experiment, source.device_here)
            for line in overridden(settings, source, encoder):
                say(line)
            cuts = cuts_of(encoder, own_settings, data, experiment) if is_leader() else []
            if cuts:
                say("; ".join(map(str, cuts)))
            del encoder  # from here on it would only take memory
            with (
                contextlib.ExitStack() as stack,
                tensorboard_writer(experiment, settings.tensorboard and is_leader()),
            ):

                def states() -> Iterator[State]:
                    if jobs:
                        given["working"] = stack.enter_context(team(jobs, experiment, settings))
                    yield from recipe.run(
                        settings, data, partial(starting_encoder, source, settings), experiment, **given
                    )

                evaluate_states(
                    from_own(own, settings, data, experiment, states),
                    data,
                    experiment,
                    measures,
                    depth=settings.depth,
                    seed=settings.seed,
                    first_episode=settings.first_episode,
                    about=f"A dense retriever trained with hardneg by {recipe.about} from {source.name}.",
                    settings=settings.result_values(),
                    base_model=source.hub_name,
                    lengths=lengths_of(cuts),
                    how="" if own is None else own.how,
                    keep=settings.keep,
                    untrained=partial(untrained_encoder, source, settings),
                )
            if jobs:
                draw_timeline(experiment.layout.timeline, experiment.timing)
        return by_leader(lambda: dict(experiment.results))


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
    """Check everything that :func:`train` needs, and say what it would do; nothing is trained.

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
    As :func:`train`.
    """
    task = prepare(recipe, data, model, out, **options)
    open_given(recipe, task.negatives, task.data, task.settings)
    encoder = starting_encoder(task.source, task.settings)
    recipe.check(task.settings, task.data, encoder)
    if task.index_folder is not None:
        matching_index(task.index_folder, encoder, encoder.digest("passage"), None)
    own, own_settings = as_it_came(task.source, task.settings, encoder)
    planned = recipe.plan(task.settings, task.data, encoder, seeds=task.seeds, measure=estimate, own=own)
    planned["facts"] |= {f"cut {cut.plural}": cut.told for cut in cuts_of_sample(encoder, own_settings, task.data)}
    return {"settings": task.settings.model_dump(mode="json"), **planned}

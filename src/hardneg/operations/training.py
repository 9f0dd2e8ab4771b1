"""Any recipe, from its arguments to its results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.data.training_data import TrainingData, choose_splits
from hardneg.diagnostics.timeline import draw_timeline
from hardneg.errors import ArtifactError, SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import SETTINGS, open_experiment
from hardneg.experiment.results import conduct, is_measured
from hardneg.experiment.seeds import pool_seeds
from hardneg.experiment.settings import Recipe, TrainingSettings
from hardneg.integrations.tensorboard import boarding
from hardneg.models.capacity import warn_if_emulated
from hardneg.models.tokenizing import texts_digest
from hardneg.negatives.pool import load_pool
from hardneg.operations.opening import Data, Place, at_least, cache_at, check_folder, collection_of
from hardneg.operations.origin import remember_collection
from hardneg.operations.roles import jobs_of, take_role
from hardneg.operations.settings import recipe_settings
from hardneg.operations.starting import DEFAULT_SPLITS, Base, Splits
from hardneg.operations.states import open_index
from hardneg.operations.supervision import team
from hardneg.process.distributed import by_leader, group, is_leader, world_size
from hardneg.process.progress import note
from hardneg.process.runtime import pick_device
from hardneg.storage.artifacts import SettingsClash, read_manifest
from hardneg.storage.sealed import write_results

LOG, CACHE, ROLES, TIMELINE = "log.txt", "cache", "roles", "timeline.png"
Execute = Callable[[Path, TrainingSettings], dict[str, Any]]


def train(
    recipe: Recipe,
    data: Data,
    model: str,
    out: Place,
    *,
    preset: str | None = None,
    config: Place | None = None,
    settings: TrainingSettings | None = None,
    splits: Splits = DEFAULT_SPLITS,
    seeds: int = 1,
    negatives: Place | None = None,
    index_folder: Place | None = None,
    passage_model: str | None = None,
    allow_bin: bool = False,
    cache: Place | None = None,
    device: str | None = None,
    role: str | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Run a recipe and return the results; the same call resumes, or extends what may grow (``episodes``).

    Parameters
    ----------
    model, passage_model : the pretrained encoder, and a second one for the passages where there are two towers.
    out : the experiment's folder; the trained encoder stands in ``out/model``.
    preset, config, settings, values : see :func:`recipe_settings`; ``values`` are settings by name.
    splits : which splits train, steer and judge.
    seeds : executions with seeds seed, seed + 1, ..., each in ``out/seed-<s>``, pooled in ``out/results.json``.
    negatives : a pool to train the first episode with, instead of mining.
    index_folder : what :func:`~hardneg.operations.indexing.index` built over the embeddings of this model, for
        ``adore`` to train for, and to search the trained model with. It is not copied, for it may be large:
        ``settings.json``, ``results.json`` and the model's manifest name it by its digest, by which it is known
        again when the experiment goes on, wherever it lies then.
    allow_bin : read a pretrained model whose weights come only as ``.bin``, by torch's restricted loader.
    cache : where derived stores live; default ``out/cache``.
    role : be one role of a recipe that has several (``trainer``, ``inferencer``), beside other processes or
        machines on the same files, and return {}; without it this process starts and watches them all.

    Returns
    -------
    What ``results.json`` holds: ``test`` and ``dev``: measures by state; ``comparisons``; ``forgetting``;
    ``pairwise_errors`` by split and state. Of several seeds: ``seeds``, and for every measure its ``mean``,
    ``std`` and ``values``.

    Raises
    ------
    SettingsError : settings are wrong (:class:`~hardneg.errors.Faults`: all of them), or a split does not exist.
    ArtifactError : ``out`` holds another experiment, or something in it is damaged; the index is damaged, of
        another model or other passages, or not the one that the experiment began with.
    BusyError : another process works in ``out``.
    NumericError : a loss or gradient was not finite.
    """
    place, count = Path(out), at_least("seeds", seeds)
    if role is not None and count > 1:
        what = f"a role of {count} experiments at once"
        raise SettingsError("BAD_SETTING", what, "give each seed its own roles: --set seed=N, another --out")
    stores = None if cache is None else cache_at(cache)
    chosen = recipe_settings(recipe, preset, config, settings=settings, device=device, out=place, **values)
    chosen = chosen.with_index(index_folder is not None)
    check_processes(recipe, chosen, role)
    check_experiment(place, count)
    collection = collection_of(data, cache)
    parts = choose_splits(collection, **dataclasses.asdict(splits), seed=chosen.seed)
    if parts.held_out:
        note(f"no dev split: {parts.held_out} training queries are held out (--dev none to keep them)")
    execute = partial(
        train_once,
        recipe,
        data=parts,
        splits=splits,
        role=role,
        split_seed=chosen.seed,  # every seed holds out the same queries
        base=Base(model, passage_model, allow_bin, pick_device(device)),
        cache=stores,
        negatives=None if negatives is None else Path(negatives),
        index_folder=None if index_folder is None else Path(index_folder),
    )
    return train_seeds(execute, place, chosen, count)


@group()  # joined by all before one begins to write
def train_seeds(execute: Execute, place: Path, settings: TrainingSettings, count: int) -> dict[str, Any]:
    """The results of one experiment, or of ``count`` with a seed each, pooled."""
    if count == 1:
        return execute(place, settings)
    results = {}
    for seed in range(settings.seed, settings.seed + count):
        note(f"seed {seed}")
        results[seed] = execute(place / f"seed-{seed}", settings.model_copy(update={"seed": seed}))
    pooled = pool_seeds(results)
    if is_leader():
        write_results(place, pooled)
    return pooled


def check_processes(recipe: Recipe, settings: TrainingSettings, role: str | None) -> None:
    """Refuse several processes where a recipe knows of one, or has roles that are processes themselves."""
    if world_size() > 1 and (not recipe.together or settings.roles or role):
        what = f"{recipe.name} is trained by one process, and {world_size()} were started"
        raise SettingsError("ONE_PROCESS", what, "start it without torchrun")


def check_experiment(out: Path, seeds: int) -> None:
    """Refuse a place that cannot be written to, or that holds anything but such an experiment."""
    check_folder(out)
    one, several = (out / SETTINGS).is_file(), any(out.glob("seed-*"))
    fix = "give a new folder, or the number of seeds it was made with"
    if one and seeds > 1:
        raise ArtifactError("ONE_SEED", "this holds an experiment of one seed", fix, path=out)
    if several and not one and seeds == 1:
        raise ArtifactError("SEVERAL_SEEDS", "this holds the experiments of several seeds", fix, path=out)
    others = [] if one or several or not out.is_dir() else [path for path in out.iterdir() if path.name[0] != "."]
    if any(path.name not in (LOG, CACHE, ROLES) for path in others):  # what stands there before settings do
        raise SettingsClash(out)


def train_once(
    recipe: Recipe,
    out: Path,
    settings: TrainingSettings,
    *,
    data: TrainingData,
    splits: Splits,
    base: Base,
    cache: Path | None,
    negatives: Path | None,
    index_folder: Path | None,
    role: str | None,
    split_seed: int,
) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    measures = parse_measures(settings.measures)
    encoder = base.load(settings)
    recipe.check(settings, data, encoder)
    warn_if_emulated(settings.precision, base.device)
    inputs = {"collection": data.collection.digest, "model": encoder.digest(), "splits": data.digest}
    if encoder.code:
        inputs["code"] = "+".join(encoder.code)
    given = open_given(recipe, negatives, data, settings)
    if negatives is not None:
        inputs["negatives"] = read_manifest(negatives).digest
    if index_folder is not None:  # its texts are compared now: what is wrong must not become an input
        texts = partial(texts_digest, encoder, data.collection, cache or out / CACHE)
        given["index"] = open_index(index_folder, encoder, encoder.digest("passage"), texts)
        inputs["index"] = given["index"].manifest.digest
    del encoder
    roles = settings.roles if role is None else [role]
    places = (out, data.collection, splits, base, settings, inputs, cache)
    jobs = jobs_of(recipe, roles, *places, split_seed=split_seed, supervised=role is None)
    if role is not None:
        take_role(recipe, jobs[0])
        return {}
    with open_experiment(
        out, recipe=recipe.name, settings=settings, inputs=inputs, cache=cache, grows=settings.may_grow
    ) as experiment:
        remember_collection(out, data.collection)
        if by_leader(lambda: is_measured(experiment.results, measures)):
            note(f"{out}: finished already")
        else:
            with contextlib.ExitStack() as stack, boarding(experiment, settings.tensorboard and is_leader()):
                if jobs:
                    given["working"] = stack.enter_context(team(jobs, experiment, settings))
                conduct(
                    recipe.run(settings, data, partial(base.load, settings), experiment, **given),
                    data,
                    experiment,
                    measures,
                    depth=settings.depth,
                    seed=settings.seed,
                    first_episode=settings.first_episode,
                    about=f"A dense retriever trained with hardneg by {recipe.about} from {base.name}.",
                    settings=settings.result_values(),
                    base_model=base.hub_name,
                )
            if jobs:
                draw_timeline(experiment / TIMELINE, experiment.timing)
        return by_leader(lambda: dict(experiment.results))


def open_given(
    recipe: Recipe, negatives: Path | None, data: TrainingData, settings: TrainingSettings
) -> dict[str, Any]:
    """The pool to begin with, checked against the collection; a later first episode needs one."""
    if negatives is not None and not recipe.takes_pool:
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
    model: str,
    out: Place | None = None,
    *,
    settings: TrainingSettings,
    splits: Splits = DEFAULT_SPLITS,
    seeds: int = 1,
    negatives: Place | None = None,
    index_folder: Place | None = None,
    passage_model: str | None = None,
    allow_bin: bool = False,
    measure: bool = False,
    cache: Place | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Check everything that :func:`train` needs, and say what it would do; nothing is trained.

    All but one thing: the texts of an index are compared when they are tokenised, which may take long.

    Parameters
    ----------
    measure : also how long it would take here, and how much memory, timed on a sample.

    Returns
    -------
    ``settings``; ``episodes``: for each ``episode``, ``queries``, ``steps`` and ``passages_per_query``; ``facts``.

    Raises
    ------
    As :func:`train`.
    """
    if out is not None:
        check_experiment(Path(out), at_least("seeds", seeds))
    settings = settings.with_index(index_folder is not None)
    collection = collection_of(data, cache)
    parts = choose_splits(collection, **dataclasses.asdict(splits), seed=settings.seed)
    open_given(recipe, None if negatives is None else Path(negatives), parts, settings)
    encoder = Base(model, passage_model, allow_bin, pick_device(device)).load(settings)
    recipe.check(settings, parts, encoder)
    if index_folder is not None:
        open_index(index_folder, encoder, encoder.digest("passage"), None)
    return {
        "settings": settings.model_dump(mode="json"),
        **recipe.plan(settings, parts, encoder, seeds=seeds, measure=measure),
    }

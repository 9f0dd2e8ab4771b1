"""Checks the arguments of training, which its plan takes too, and opens them without computing anything."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from hardneg.api.external import note_given
from hardneg.api.inputs import (
    Data,
    Place,
    amended_by,
    at_least,
    cache_at,
    check_folder,
    check_inputs,
    check_name,
    collection_of,
    source_at,
)
from hardneg.api.settings import (
    check_one_filter,
    check_seeds,
    dev_draw,
    in_another_order,
    note_lifted,
    note_replaced,
    recipe_settings,
    splits_of,
    trained_by,
    warn_of_more_held_out,
    with_negatives,
    with_steps,
)
from hardneg.arguments import checked
from hardneg.callers import in_callers_words
from hardneg.data.collection import Collection
from hardneg.data.training_data import DEFAULT_SPLITS, NONE, DevDraw, Splits, TrainingData
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.evaluation.answers import check_answers
from hardneg.experiment.layout import BEFORE_SETTINGS, Layout
from hardneg.experiment.observers import Told
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import NegativePool, open_pool
from hardneg.process.distributed import world_size
from hardneg.process.launch import is_launched
from hardneg.process.progress import note, say
from hardneg.process.threads import pick_device, visible_devices
from hardneg.recipes.group_settings import MiningSettings
from hardneg.recipes.ranker import RankerTraining
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.records import spans
from hardneg.search.ann import open_index
from hardneg.search.retrieve import Index
from hardneg.storage.artifacts import SettingsClash, check_outside, read_manifest

log = logging.getLogger(__name__)

COUNTED = ("steps", "stop_step", "first_steps")  # settings that win over epochs
MOST_SEEDS = 1000
A_YEAR = 366 * 24 * 60  # minutes


@dataclasses.dataclass(frozen=True)
class Given:
    """The pool and the index that a recipe begins with besides a model, opened; most recipes need neither.

    Attributes
    ----------
    pool : the negatives of the first episode; index : the index that is searched in place of embeddings.
    inputs : their digests, by the names of an experiment's inputs.
    """

    pool: NegativePool | None = None
    index: Index | None = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the recipe is run with."""
        named = {"given": self.pool, "index": self.index}
        return {name: one for name, one in named.items() if one is not None}


@dataclasses.dataclass(frozen=True)
class Task:
    """A training task: its arguments, checked and opened, before anything is computed."""

    recipe: Recipe
    settings: TrainingSettings  # for these data, with epochs turned into steps
    data: TrainingData
    splits: Splits
    source: ModelSource
    out: Path | None
    seeds: int
    given: Given
    cache: Path | None
    role: str | None
    groups: Mapping[str, int]  # processes of each role; empty: one each
    retriever: str | None
    observers: tuple[Told | None, Told | None]  # of steps, and of states
    draw: DevDraw  # every seed holds out the same queries
    told: TrainingSettings  # as they were given
    minutes: float | None = None  # how long it may take, if that decides the epochs

    @property
    def place(self) -> Path:
        """The experiment's folder; a plan may have none."""
        assert self.out is not None
        return self.out

    @property
    def stores(self) -> Path:
        """The folder of derived stores; for a plan without an experiment's folder, the user's cache."""
        return self.cache or (cache_at(None) if self.out is None else Layout(self.out).cache)

    @property
    def each_seed(self) -> list[Task]:
        """The task of each seed, with a folder of its own."""
        return [self.seeded(self.settings.seed + number) for number in range(self.seeds)]

    def seeded(self, seed: int) -> Task:
        """Give the task of one seed among several, with a folder of its own."""
        settings = self.settings.model_copy(update={"seed": seed})
        return dataclasses.replace(self, settings=settings, out=Layout(self.place).seed(seed).path, seeds=1)


@checked
def prepare(
    recipe: Recipe,
    data: Data,
    model: Place,
    out: Place | None,
    *,
    preset: str | None = None,
    config: Place | None = None,
    settings: TrainingSettings | None = None,
    splits: Splits = DEFAULT_SPLITS,
    seeds: int = 1,
    minutes: float | None = None,
    negatives: Place | int | list[int] | None = None,
    index_folder: Place | None = None,
    filter_by: Place | None = None,
    teacher: Place | None = None,
    ranker: Place | None = None,
    judgements: Place | None = None,
    passage_model: Place | None = None,
    allow_bin: bool = False,
    cache: Place | None = None,
    device: str | None = None,
    role: str | None = None,
    trainer_devices: int | None = None,
    inferencer_devices: int | None = None,
    retriever: Place | None = None,
    on_step: Told | None = None,
    on_state: Told | None = None,
    progress: bool | None = None,
    **values: Any,
) -> Task:
    """Check the arguments of training, which are those of its plan too.

    Parameters
    ----------
    model, passage_model : the pretrained encoder, and a second one for the passages where there are two towers.
    out : the experiment's folder; the trained encoder stands in ``out/model``.
    preset, config, settings, values : see :func:`recipe_settings`; ``values`` are settings by name.
    splits : which splits train, steer and judge, by default those that ``config`` names; a line says which.
    seeds : executions with seeds seed, seed + 1, ..., each in ``out/seed-<s>``, pooled in ``out/results.json``.
    minutes : so long training may take here, measuring included; it decides the epochs, by an estimate. An
        experiment that was begun keeps its epochs. With several seeds, each has so long.
    negatives : a pool to train the first episode with, instead of mining; or a number, the negatives of a query in
        a step, as for ``--negatives``.
    index_folder : an index that :func:`~hardneg.api.index.index` built over the embeddings of this model:
        ``adore`` trains for it, and the trained model searches it. It may be large, so it is not copied.
        ``settings.json``, ``results.json`` and the model's manifest record its digest; when the experiment goes
        on, the index is recognised by the digest, wherever it lies then.
    filter_by : a frozen model, bi-encoder or cross-encoder, whose scores the bounds on mined negatives apply to.
    teacher : a frozen model whose scores are distilled, as the setting ``distill`` says; without it, the scores
        stored with ``negatives`` are, if all negatives are from there, else those of ``filter_by``.
    ranker : the cross-encoder that ``ar2`` begins with; without it, ``ar2`` makes one from the model and a new
        head.
    judgements : a file of people's judgements of training queries, as the audit's page saves it. Passages labelled
        relevant are not used as negatives, and passages labelled positive are trained on as positives. Dev and
        test are measured as without it.
    allow_bin : read a pretrained model whose weights come only as ``.bin``, by torch's restricted loader.
    cache : where derived stores live; default ``out/cache``.
    role : run only this role of a recipe that has several (``trainer``, ``inferencer``), while other processes or
        machines run the others on the same files. Without it, one process starts and watches all roles.
    trainer_devices, inferencer_devices : the numbers of processes that train and that mine, each on its own CUDA
        device or all on the CPU. If only one number is given, the other is 1. Losses are the same as with one
        process each.
    retriever : for the recipe ``ranker``: the model that ranks first and mines; by default BM25.
    on_step, on_state : functions that are told of each step and of each state that was measured, see
        :class:`~hardneg.experiment.observers.Observers`.
    progress : whether progress is shown; by default in a notebook, and not in a program.

    Raises
    ------
    SettingsError : settings are wrong (:class:`~hardneg.errors.Faults`: all of them), or a split does not exist.
    InputError : no query can be trained on, or a split that is named cannot be measured on.
    ArtifactError : ``out`` holds another experiment; the pool or the index is damaged, or of another collection.
    TrustError : a pickle stands in the place of the index.
    """
    place, count = path_of(out), count_of(seeds)
    if role is not None and count > 1:
        what = f"one role cannot serve {count} seeds at once"
        raise SettingsError("BAD_SETTING", what, "give each seed its own roles: --set seed=N, another --out")
    stores = None if cache is None else cache_at(cache)
    # these are values of the settings, and not the places of a model and of a pool
    if filter_by in words_of(MiningSettings, "filter_by") and not Path(filter_by).exists():
        values, filter_by = values | {"filter_by": filter_by}, None
    if negatives in words_of(recipe.settings, "negatives"):
        values, negatives = values | {"negatives": negatives}, None
    if filter_by is not None:
        check_one_filter(filter_by, values)
        values |= {"filter_by": "given"}
    layers: Any = {"settings": settings, "beside": arguments_by_name(), **values}
    if isinstance(negatives, int | list):
        layers["usual"], negatives = with_negatives(values.get("usual"), negatives), None
    chosen = recipe_settings(recipe, preset, config, device=device, out=place, **layers)
    splits = splits_of(splits, config)
    chosen = chosen.with_index(index_folder is not None).with_frozen(filter_by is not None, teacher is not None)
    check_processes(recipe, chosen, role)
    check_minutes(minutes, chosen, role)
    counts = {"trainer": trainer_devices, "inferencer": inferencer_devices}
    groups = role_groups(recipe, chosen, role, counts, pick_device(device))
    check_told(chosen, on_step)
    check_retriever(recipe, chosen, retriever, pool=negatives is not None)
    if place is not None:
        check_experiment(place, count)
    check_ranker(recipe, ranker)
    if splits.dev == NONE:  # refused before the collection and the models are opened
        chosen.check_dev(False)
    check_inputs(judgements)
    models = {"ranker": ranker, "filter_by": filter_by, "teacher": teacher}
    beside = {name: str(one) for name, one in models.items() if one is not None}
    source = source_at(model, passage_model, **beside, allow_bin=allow_bin, device=pick_device(device))
    collection = collection_of(data, cache)
    if negatives is None:
        note_given(data, collection)
    before = trained_by(model)
    same_data = {"collection": collection.digest, "train": splits.train}
    draw = dev_draw(place, before, chosen.seed, **same_data)
    parts = amended_by(open_splits(chosen, collection, splits, draw), judgements)
    chosen = in_another_order(recipe.name, chosen, before, parts, seeds=count, out=place)
    check_seeds(place, range(chosen.seed, chosen.seed + count))
    given_settings, chosen = chosen, with_steps(chosen, len(parts.train), place)
    if minutes is None:
        note_replaced(given_settings, chosen)
        note_lifted(given_settings, len(parts.train))
    warn_of_more_held_out(before, parts, draw.seed)
    given = open_given(recipe, chosen, parts.collection, path_of(negatives), path_of(index_folder))
    check_given(given.pool, parts, path_of(negatives))
    warn_of_bounds(chosen, path_of(negatives))
    return Task(
        recipe=recipe,
        settings=chosen,
        data=parts,
        splits=splits,
        source=source,
        out=None if place is None else place.absolute(),  # the caller may change its working directory meanwhile
        seeds=count,
        given=given,
        cache=stores,
        role=role,
        groups=groups,
        retriever=None if retriever is None else str(retriever),
        observers=(on_step, on_state),
        draw=draw,
        told=given_settings,
        minutes=minutes,
    )


def words_of(settings: type[TrainingSettings], name: str) -> tuple[str, ...]:
    """The words that a setting is one of; () for a setting that the recipe lacks."""
    return get_args(settings.model_fields[name].annotation) if name in settings.model_fields else ()


def count_of(seeds: int) -> int:
    """Check the number of seeds, which each make an experiment; returns it."""
    if at_least("seeds", seeds) > MOST_SEEDS:
        what = f"seeds = {seeds} is a number of experiments"
        raise SettingsError("BAD_SETTING", what, f"give {MOST_SEEDS:,} or less; seed = N (--seed N) sets the seed")
    return seeds


def arguments_by_name() -> dict[str, str]:
    """How a Python caller gives each argument that is not a setting, by its name."""
    parameters = inspect.signature(prepare).parameters.values()
    return {one.name: f"the argument {one.name}" for one in parameters if one.kind is one.KEYWORD_ONLY}


def path_of(place: Place | None) -> Path | None:
    """A place that may be left out."""
    return None if place is None else Path(place)


def open_splits(settings: TrainingSettings, collection: Collection, splits: Splits, draw: DevDraw) -> TrainingData:
    """The training, dev and test data, labelled; raises if they lack what the settings measure by.

    Parameters
    ----------
    draw : how queries are held out as dev, if there is no dev split.
    """
    check_answers(settings.judging, collection)
    if collection.n_passages < 2:
        what = "the collection has a single passage, so no query has a negative"
        raise InputError("NO_NEGATIVES", what, "give the texts that answer other questions, too")
    data = settings.data_of(collection, splits, draw=draw)
    settings.check_dev(data.dev is not None)
    note(data.chosen)
    if data.held_out and draw.seed != settings.seed:
        say(f"dev is held out with seed = {draw.seed}, as before: the model learnt from the other queries")
    return data


def open_given(
    recipe: Recipe, settings: TrainingSettings, collection: Collection, pool: Path | None, index: Path | None
) -> Given:
    """Open the pool and the index that training begins with; a first episode after 1 needs a pool.

    The index is checked against the model later, when the model is open; see
    :func:`~hardneg.search.ann.check_index`.
    """
    if pool is not None and not recipe.facts.takes_pool:
        what = f"{recipe.name} mines its own negatives and begins with no pool"
        raise SettingsError("BAD_SETTING", what, "leave the pool out, or train ance-tele with it")
    settings.check_pool(pool is not None)
    negatives = searched = None
    inputs = {}
    if pool is not None:
        negatives = open_pool(pool, collection)
        inputs["negatives"] = read_manifest(pool).digest
    if index is not None:
        searched = open_index(index)
        inputs["index"] = searched.digest
    return Given(negatives, searched, inputs)


def check_given(pool: NegativePool | None, data: TrainingData, place: Path | None) -> None:
    """Refuse a pool without negatives of training queries; if some queries lack them, say how many have some."""
    if pool is None:
        return
    having = pool.query_rows[spans(pool.offsets) > 0]
    found = int(np.isin(data.train.query_rows, having).sum())
    if not found:
        what = f"this pool of {len(pool):,} queries has no negative of the {len(data.train):,} training queries"
        raise InputError("NO_NEGATIVES", what, "give a pool that was mined for this split", path=place)
    if found < len(data.train):
        note(f"{place}: the pool has negatives of {found:,} of {len(data.train):,} training queries")


def warn_of_bounds(settings: TrainingSettings, pool: Path | None) -> None:
    """Say that bounds do not apply to the negatives of a given pool, which no model of this training mined."""
    if pool and isinstance(settings, MiningSettings) and settings.bounds and settings.filter_by == "miner":
        told = "%s: its negatives are all kept, since %s would compare scores of the model that mines; "
        told += "to filter them too, name a model (--filter-by M, or filter_by = start)"
        log.warning(in_callers_words(told), pool, " and ".join(settings.bounds))


def check_processes(recipe: Recipe, settings: TrainingSettings, role: str | None) -> None:
    """Refuse a role that the settings lack, and several processes in place of the one that starts the roles.

    A role may be a group of processes itself.
    """
    if role is not None and role not in settings.roles:
        what, fix = f"{recipe.name} has no role '{role}'", f"use {', '.join(settings.roles)}"
        if not settings.roles:
            what += " with these settings: one process mines and trains in turn"
            fix = "leave it out, or set mode = async-fixed" if recipe.roles else "leave it out"
        raise SettingsError("NO_ROLE", what, fix)
    if world_size() > 1 and settings.roles and role is None:
        what = f"{recipe.name} starts its roles from one process here, but {world_size()} processes were started"
        each = f"each by a torchrun of its own (--role {', --role '.join(settings.roles)})"
        fix = f"start one, without torchrun, with trainer_devices and inferencer_devices; or {each}"
        raise SettingsError("ONE_PROCESS", what, fix)


def check_minutes(minutes: float | None, settings: TrainingSettings, role: str | None) -> None:
    """Refuse a time that is none, and settings or processes with which it cannot decide how long training is."""
    if minutes is None:
        return
    told, fields = f"minutes = {minutes:g}", type(settings).model_fields
    counted = [name for name in COUNTED if name in fields]
    if not 0 < minutes <= A_YEAR:
        raise SettingsError("BAD_SETTING", told, f"give a number above 0, at most {A_YEAR:,}")
    if settings.roles or role is not None or world_size() > 1:
        what = f"{told}, but several processes train and mine"
        raise SettingsError("BAD_SETTING", what, "set epochs; --estimate says how long they take")
    if given := [name for name in ("epochs", "min_steps", *counted) if name in fields and settings.is_told(name)]:
        what = f"{told} with {' and '.join(given)}, which also says how long training is"
        raise SettingsError("BAD_SETTING", what, "give one of them")
    if getattr(settings, "epochs", None) is None or any(getattr(settings, name) for name in counted):
        what = f"{told}, but these settings count steps"
        raise SettingsError("BAD_SETTING", what, "leave them out, or use a preset that counts epochs")


def role_groups(
    recipe: Recipe, settings: TrainingSettings, role: str | None, counts: Mapping[str, int | None], device: str
) -> dict[str, int]:
    """The number of processes of each role, from the numbers that were given; {} if none was.

    Raises
    ------
    SettingsError : there are no roles here, or something else starts them, or there are too few devices.
    """
    given = {f"{name}_devices": count for name, count in counts.items() if count is not None}
    if not given:
        return {}
    for name, count in given.items():
        at_least(name, count)
    asked = ", ".join(f"{name} = {count}" for name, count in given.items())
    if not settings.roles:
        what, fix = f"{asked}, but {recipe.name} mines and trains in turn", "leave it out"
        if hasattr(settings, "mode"):
            what = f"{asked}, but {recipe.name} with mode = {settings.mode} mines and trains in turn"
            fix = f"leave it out, or set mode = {beside_mode(settings)}"
        raise SettingsError("BAD_SETTING", what, fix)
    if role is not None:
        what = f"{asked} with role = {role}, which is one group by itself"
        raise SettingsError("BAD_SETTING", what, "give torchrun that number, or leave the role out")
    if is_launched():
        what = f"{asked}, but this process was started by torchrun"
        raise SettingsError("ONE_PROCESS", what, "start it without: it starts a torchrun for each role")
    check_devices(asked, sum(count or 1 for count in counts.values()), device)
    return {name: count or 1 for name, count in counts.items()}


def beside_mode(settings: TrainingSettings) -> str:
    """The first mode of a recipe in which its roles run at the same time."""
    return next(mode for mode in words_of(type(settings), "mode") if mode != "sync")


def check_devices(asked: str, needed: int, device: str) -> None:
    """Refuse more processes than there are CUDA devices, and several processes on one named CUDA device."""
    if device.startswith("cuda:"):
        what = f"{asked} on the device {device} alone"
        raise SettingsError("BAD_SETTING", what, "say which ones by CUDA_VISIBLE_DEVICES, or leave it out")
    found = len(visible_devices()) if device == "cuda" else needed
    if found < needed:
        what = f"{asked} need {needed} CUDA devices, but there are {found}"
        raise SettingsError("NO_DEVICE", what, "ask for fewer, or for the device cpu")


def check_told(settings: TrainingSettings, on_step: Told | None) -> None:
    """Refuse ``on_step`` where another process makes the steps."""
    if on_step is not None and settings.roles:
        what = f"on_step with mode = {getattr(settings, 'mode', '')}, where another process makes the steps"
        raise SettingsError("BAD_SETTING", what, "leave it out, and read them with hn.follow")


def check_retriever(recipe: Recipe, settings: TrainingSettings, retriever: Place | None, *, pool: bool) -> None:
    """Refuse a retriever for a recipe that trains one, and settings that do not fit what ranks first.

    A line warns of each setting of a ranker that has no effect with what is given.
    """
    if isinstance(settings, RankerTraining):
        settings.check_first(retriever=retriever is not None, pool=pool)
        for line in settings.idle(retriever=retriever is not None, pool=pool):
            log.warning("%s", line)
    if retriever is not None and recipe.trains != "ranker":
        what = f"a retriever is given, but {recipe.name} trains one"
        raise SettingsError("BAD_SETTING", what, "give it as the model, or leave it out")


def check_ranker(recipe: Recipe, ranker: Place | None) -> None:
    """Refuse a ranker for a recipe that trains none."""
    if ranker is not None and not recipe.facts.takes_ranker:
        what = f"{recipe.name} trains a retriever alone and takes no ranker"
        raise SettingsError("BAD_SETTING", what, "leave it out, or train ar2 with it")


def check_experiment(out: Path, seeds: int) -> None:
    """Refuse a place that cannot be written to, or that holds anything but an experiment of so many seeds.

    A new one must lie outside of artefacts, which may be replaced as a whole. ``check_seeds`` looks at the seeds.
    """
    check_name(out.absolute())
    check_folder(out)
    layout = Layout(out)
    one, several = layout.settings.is_file(), bool(layout.seeds())
    fix = "give a new folder, or the number of seeds it was made with"
    if one and seeds > 1:
        raise ArtifactError("ONE_SEED", "this holds an experiment of one seed", fix, path=out)
    if several and not one and seeds == 1:
        raise ArtifactError("SEVERAL_SEEDS", "this holds the experiments of several seeds", fix, path=out)
    if not one and not several:
        check_outside(out)
    others = [] if one or several or not out.is_dir() else [path for path in out.iterdir() if path.name[0] != "."]
    layout.check_settings()
    if any(path.name not in BEFORE_SETTINGS for path in others):
        raise SettingsClash(out)

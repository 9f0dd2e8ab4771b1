"""Opens, checks and reports what an experiment starts from, before training begins."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from hardneg import __version__
from hardneg.api.diagnose import report_again
from hardneg.api.overrides import overridden
from hardneg.api.prepare import Task
from hardneg.data.collection import Collection
from hardneg.diagnostics.results import is_measured
from hardneg.experiment.course import Course
from hardneg.experiment.folder import Experiment, check_begun, keep_judgements, open_experiment, record_of
from hardneg.experiment.provenance import remember_collection
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.code import allowed_code
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.lengths import Length, lengths_of
from hardneg.models.loading import read_model
from hardneg.models.recomputing import check_recomputing
from hardneg.models.tokenizing import texts_digest
from hardneg.process.distributed import by_leader, is_leader, world_size
from hardneg.process.hardware import name_of, warn_if_emulated
from hardneg.process.progress import is_shown, note, say
from hardneg.process.stages import Planned
from hardneg.recipes.cost_model import CostModel
from hardneg.recipes.estimate import take_sample
from hardneg.recipes.frozen import check_stored, frozen_inputs
from hardneg.recipes.roles.jobs import Job, jobs_of
from hardneg.recipes.roles.taking import take_role
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.stages import stages_of
from hardneg.recipes.starting_model import own_encoder, settings_of, starting_encoder, trained_encoder
from hardneg.recipes.starting_ranker import ranker_of
from hardneg.recipes.untrained import Own, own_model
from hardneg.search.ann import check_index
from hardneg.search.bm25 import has_bm25
from hardneg.shown import counted

log = logging.getLogger(__name__)

ROUNDED = "figures will agree but for rounding, so files will not have the same bytes"
DRAWN = "dropout may be drawn otherwise, so figures may differ as those of two seeds do"
RULED = "other negatives or queries may be drawn, and dev judged otherwise, so figures may differ"
RULES = 1  # raised when the same settings and weights mine, draw, train or judge otherwise than before


@dataclasses.dataclass(frozen=True)
class Start:
    """What an experiment starts from, without the weights.

    Attributes
    ----------
    given : the pool, the index or the ranker to begin with, as a recipe takes it.
    inputs : digests of all that it starts from.
    base : makes a fresh model as training starts with it.
    untrained : makes the model as it came; if that is not possible, the model as training starts with it.
    own : the model as it came, if training does not start from it.
    own_settings : the settings of the model as it came.
    lengths : the lengths at which texts are cut.
    changes : what differs from the model as it came, a line each.
    device : the device of the model: ``cpu`` or ``cuda``.
    processes : the number of processes that train together; if roles are groups of processes,
        ``trainer + inferencer``.
    chunks : the sequences of a passage that the model reads, at most.
    stages : the stages of training, in order; empty if no progress is shown.
    """

    given: Mapping[str, Any]
    inputs: Mapping[str, str]
    base: Callable[[], BiEncoder]
    untrained: Callable[[], BiEncoder]
    own: Own | None
    own_settings: EncoderSettings
    lengths: Sequence[Length]
    changes: Sequence[str]
    device: str
    processes: int | str = 1
    chunks: int = 1
    stages: Sequence[Planned] = ()


def open_start(task: Task, *, compare_texts: bool) -> Start:
    """Open and check what training starts from; the weights are read, but not kept.

    Parameters
    ----------
    compare_texts : also compare the texts of a given index, which may tokenise the collection.
    """
    source, settings = task.source, task.settings
    model = read_model(source)
    encoder = trained_encoder(model, settings)
    task.recipe.check(settings, task.data, encoder)
    settings.check_chunks(encoder.settings.chunks)
    if settings.recompute_layers:
        check_recomputing(encoder)
    if task.given.index is not None:  # a wrong index must not become an input of the experiment
        texts = partial(texts_digest, encoder, task.data.collection, task.stores) if compare_texts else None
        check_index(task.given.index, encoder, digest=encoder.digest("passage"), tokens=texts)
    base, load = partial(starting_encoder, source, settings), partial(own_encoder, source, settings)
    came = settings_of(model, settings.prompts)
    reinit = settings.reinit_layers
    inputs = inputs_of(task, encoder)
    own = None if came is None else own_model(came, encoder.settings, load, reinit=reinit)
    return Start(
        task.given.arguments,
        inputs,
        base,
        untrained=base if came is None else load,
        own=own,
        own_settings=came or encoder.settings,
        lengths=lengths_of(encoder, came or encoder.settings, settings.train_passage_length),
        changes=overridden(settings, model, encoder),
        device=encoder.device.type,
        processes=" + ".join(map(str, task.groups.values())) or world_size(),
        chunks=encoder.settings.chunks,
        stages=shown_stages(task, encoder, own),
    )


def shown_stages(task: Task, encoder: BiEncoder, own: Own | None) -> list[Planned]:
    """The stages of training, with lengths of texts from a sample; empty if no progress is shown."""
    if not is_shown():
        return []
    work = planned_work(task, task.settings, encoder)
    judged = task.data.dev is not None or task.data.test is not None
    return stages_of(work, take_sample(work, encoder), as_it_came=own is not None and judged)


def planned_work(task: Task, settings: TrainingSettings, encoder: BiEncoder, **ranker: Any) -> CostModel:
    """The work that the recipe of a task that trains a retriever plans for these settings."""
    pool = {} if task.given.pool is None else {"given": task.given.pool}
    work: CostModel = task.recipe.plan(settings, task.data, encoder, **pool, **ranker)
    return dataclasses.replace(work, indexed=indexed(task))


def indexed(task: Task) -> bool:
    """Whether BM25's index lies in the cache already, in that of each seed if each has its own."""
    if task.cache is None and task.out is None:
        return False
    caches = [one.stores for one in ([task] if task.seeds == 1 or task.out is None else task.each_seed)]
    return all(has_bm25(task.data.collection, cache) for cache in caches)


def with_ranker(start: Start, task: Task) -> Start:
    """What one seed starts from: with a ranker if the recipe takes one; the seed draws the ranker's new head."""
    if not task.recipe.facts.takes_ranker:
        return start
    ranker = ranker_of(task.source, task.settings)
    tell_chunks(ranker.model.settings.chunks, start.chunks)
    inputs = {**start.inputs, "ranker": ranker.model.digest()}
    return dataclasses.replace(start, given={**start.given, "ranker": ranker}, inputs=inputs)


def tell_chunks(ranker: int, retriever: int) -> None:
    """Warn of a ranker that reads more, or fewer, chunks of a document than the retriever."""
    if ranker != retriever:
        told = (
            "the ranker reads %s of a document, and the retriever %s; set chunks = %d where the ranker is trained"
        )
        log.warning(told, *(counted(chunks, "chunk") for chunks in (ranker, retriever)), retriever)


def inputs_of(task: Task, model: BiEncoder | CrossEncoder) -> dict[str, str]:
    """Digests of all that an experiment starts from."""
    inputs = {"collection": task.data.collection.digest, "model": model.digest(), "splits": task.data.digest}
    if task.data.judgements is not None:
        inputs["judgements"] = task.data.judgements.digest
    if model.code:
        inputs["code"] = "+".join(model.code)
    check_stored(task.settings, task.source.teacher, task.given.pool, task.data)
    frozen = frozen_inputs(task.recipe.facts, task.settings, task.source, task.given.pool)
    return inputs | dict(task.given.inputs) | frozen


@contextlib.contextmanager
def execution(task: Task, inputs: Mapping[str, str]) -> Iterator[Experiment]:
    """Open the experiment of a task, which starts from these inputs; it is unfinished if a model of it is gone."""
    settings = task.settings
    with open_experiment(
        task.place,
        recipe=task.recipe.name,
        settings=settings,
        inputs=inputs,
        data=task.data,
        source=task.source,
        cache=task.cache,
        grows=settings.may_grow,
        fixed=settings.may_not_grow,
    ) as experiment:
        remember_collection(task.place, task.data.collection)
        by_leader(experiment.reopen_without_models)
        yield experiment


def finished_already(task: Task, experiment: Experiment) -> dict[str, Any] | None:
    """The results of an experiment that is finished, which a line says, and whose report is made if it is gone."""
    if not by_leader(lambda: is_measured(experiment.results, task.settings.judging)):
        return None
    note(f"{task.place}: finished already")
    if is_leader():
        report_again(task.place, task.data, experiment.cache)
    return by_leader(lambda: dict(experiment.results))


def role_jobs(task: Task, inputs: Mapping[str, str], roles: Sequence[str]) -> list[Job]:
    """The job of each of these roles of an experiment, as its process is told."""
    source = dataclasses.replace(task.source, allow_code=allowed_code())  # also that of copies that will be saved
    job = Job(
        task.recipe.name,
        role="",
        out=str(task.place.absolute()),
        data=str(task.data.collection.path.absolute()),
        source=dataclasses.asdict(source),
        settings=task.settings.model_dump(mode="json"),
        splits=dataclasses.asdict(task.splits),
        draw=dataclasses.asdict(task.draw),
        inputs=dict(inputs),
        cache=None if task.cache is None else str(task.cache.absolute()),
        supervised=task.role is None,
    )
    return jobs_of(job, roles, task.groups)


def be_role(task: Task, role: str) -> None:
    """Run one role of an experiment until nothing is left to do, while other processes run the other roles."""
    warn_if_emulated(task.settings.precision, task.source.device_here)
    inputs = with_ranker(open_start(task, compare_texts=True), task).inputs
    record = record_of(task.recipe.name, task.settings, inputs, task.data, task.source)

    def keep() -> None:  # nothing of this command is kept in another experiment
        check_begun(task.place, record, task.settings, task.data)
        keep_judgements(task.place, task.data)

    by_leader(keep)
    take_role(task.recipe, *role_jobs(task, inputs, [role]))


def say_start(start: Start, experiment: Experiment, course: Course, collection: Collection) -> None:
    """Say what differs from an earlier execution and from the model as it came, and estimate what lengths cut."""
    if not is_leader():
        return
    say_where_it_ended(experiment, course)
    say_what_differs(experiment, start.device, start.processes)
    for line in start.changes:
        say(line)
    say("; ".join(str(length.sample_cut(collection)) for length in start.lengths))


def say_where_it_ended(experiment: Experiment, course: Course) -> None:
    """Say that training goes on, and at about which step; nothing if no step was made before."""
    if rows := experiment.metrics.read():
        episode = f" of episode {rows[-1]['episode']}" if course.several_episodes else ""
        say(f"{experiment.path}: goes on where it ended, which was about step {rows[-1]['step']:,}{episode}")


def say_what_differs(experiment: Experiment, device: str, processes: int | str) -> None:
    """Say in a line what changed of the machine and of the versions since the last execution, and what that does.

    With other threads, or on another processor, figures agree except for rounding. Each process draws dropout for
    its own texts, and CUDA draws it otherwise than a CPU; other versions may change anything. The number of the
    version does not say whether hardneg does the same as before: ``RULES`` does.
    """
    where = {
        "threads": torch.get_num_threads(),
        "processes": processes,
        "device": device,
        "hardware": name_of(device),
        "hardneg": __version__,
        "rules": RULES,
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
    }
    changed = experiment.begin(where)
    if changed:
        told = [f"{name} {then} before, {now} now" for name, (then, now) in changed.items() if then is not None]
        if len(told) < len(changed):  # only an earlier version left facts out
            told.append(f"an earlier hardneg before, {__version__} now")
        rounded = {"threads", "hardware"} if device == "cpu" else {"threads"}
        effect = RULED if "rules" in changed else ROUNDED if changed.keys() <= rounded else DRAWN
        say(f"{experiment.path}: {', '.join(told)}; {effect}")

"""Any recipe, from its arguments to its results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from hardneg.api.diagnose import report_training
from hardneg.api.inputs import Data, Place
from hardneg.api.prepare import Task, prepare
from hardneg.api.start import Start, be_role, open_start, role_jobs, say_start
from hardneg.diagnostics.results import EvaluationPlan, evaluate_states, is_measured
from hardneg.diagnostics.search_state import bm25_judged
from hardneg.diagnostics.seeds import pool_seeds
from hardneg.diagnostics.timeline import draw_timeline
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import open_experiment
from hardneg.experiment.provenance import remember_collection
from hardneg.experiment.results_manifest import write_results
from hardneg.experiment.snapshot import State
from hardneg.experiment.tensorboard import tensorboard_writer
from hardneg.models.lengths import Cut
from hardneg.models.source import ModelSource
from hardneg.process.distributed import by_leader, group, is_leader
from hardneg.process.hardware import warn_if_emulated
from hardneg.process.progress import note
from hardneg.recipes.ance.supervision import team
from hardneg.recipes.estimate import describe_work
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.starting_model import starting_encoder, untrained_encoder
from hardneg.recipes.training_run import TrainingRun
from hardneg.recipes.untrained import cuts_of_sample, from_own, lengths_of


@group()  # joined by all before one begins to write
def train_seeds(task: Task) -> dict[str, Any]:
    """The results of one experiment, or of several with a seed each, pooled; of a role: {}."""
    if task.role is not None:
        be_role(task, task.role)
        return {}
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
    recipe, settings, data, source, out = task.recipe, task.settings, task.data, task.source, task.place
    warn_if_emulated(settings.precision, source.device_here)
    encoder, start = open_start(task, compare_texts=True)
    jobs = role_jobs(task, start.inputs, settings.roles)
    with open_experiment(
        out,
        recipe=recipe.name,
        settings=settings,
        inputs=start.inputs,
        data=data,
        source=source,
        cache=task.cache,
        grows=settings.may_grow,
    ) as experiment:
        remember_collection(out, data.collection)
        if by_leader(lambda: is_measured(experiment.results, parse_measures(settings.measures))):
            note(f"{out}: finished already")
            return by_leader(lambda: dict(experiment.results))
        training = TrainingRun(settings, data, experiment)
        cuts = say_start(training, source, start, encoder)
        del encoder  # from here on it would only take memory
        with (
            contextlib.ExitStack() as stack,
            tensorboard_writer(experiment, settings.tensorboard and is_leader()),
        ):

            def states() -> Iterator[State]:
                if jobs:  # they start when the first state is asked for
                    start.given["working"] = stack.enter_context(team(jobs, experiment, settings))
                return recipe.run(training, partial(starting_encoder, source, settings), **start.given)

            evaluate_states(
                from_own(start.own, training, states),
                data,
                experiment,
                evaluation_plan(recipe, settings, source, start, cuts),
                bm25=partial(bm25_judged, data, experiment.cache),
                untrained=partial(untrained_encoder, source, settings),
            )
        if jobs:
            draw_timeline(experiment.layout.timeline, experiment.timing)
        if is_leader():
            report_training(out, data)
        return by_leader(lambda: dict(experiment.results))


def evaluation_plan(
    recipe: Recipe, settings: TrainingSettings, source: ModelSource, start: Start, cuts: Sequence[Cut]
) -> EvaluationPlan:
    """What is measured of the states of an experiment, and what its model card says."""
    return EvaluationPlan(
        measures=parse_measures(settings.measures),
        depth=settings.depth,
        seed=settings.seed,
        first_episode=settings.first_episode,
        keep=settings.keep,
        about=f"A dense retriever trained with hardneg by {recipe.about} from {source.name}.",
        settings=settings.result_values(),
        base_model=source.hub_name,
        lengths=lengths_of(cuts),
        how="" if start.own is None else start.own.how,
    )


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
    encoder, start = open_start(task, compare_texts=False)
    work = recipe.plan(task.settings, task.data, encoder)
    planned = describe_work(work, encoder, seeds=task.seeds, measure=estimate, own=start.own)
    cuts = cuts_of_sample(encoder, start.own_settings, task.data)
    planned["facts"] |= {f"cut {cut.plural}": cut.told for cut in cuts}
    return {"settings": task.settings.model_dump(mode="json"), **planned}

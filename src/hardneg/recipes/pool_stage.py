"""The stage of an episode that trains a retriever on a pool of negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hardneg.models.bi_encoder import BiEncoder
from hardneg.recipes.measured_states import DevEvaluator, MeasuredStage
from hardneg.recipes.rate_trials import chosen_rate
from hardneg.recipes.settings import Episode
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import read_manifest
from hardneg.training.loop import Batch, Objective
from hardneg.training.optim import linear


def stage_on_pool(
    training: TrainingRun,
    episode: Episode,
    encoder: BiEncoder,
    *,
    objective: Objective,
    batches: Callable[[int], Batch],
    models: Mapping[Path, int],
    began: Path | None = None,
) -> MeasuredStage:
    """The stage that trains a model on the negatives of an episode and measures states between steps.

    If several learning rates are to be tried, that is done here, and the stage goes on with the best one.

    Parameters
    ----------
    models : folder -> number of steps after which the model is saved there.
    began : folder of the runs of ``encoder``; None: the folder of the episode.
    """
    settings, number = training.settings, episode.episode
    schedule_of = partial(linear, warmup=settings.warmup, horizon=episode.scheduled)
    retriever = training.trainee(encoder, objective, batches, schedule_of(settings.rates[0]), models)
    inputs = {"pool": read_manifest(training.experiment.layout.episode(number).negatives).digest}
    rate = chosen_rate(training, episode, retriever, schedule_of, inputs)
    retriever = replace(retriever, schedule=settings.schedule_over(episode.scheduled, rate, made=episode.steps))
    dev = DevEvaluator(training, episode, start=began)
    return MeasuredStage(training, retriever, dev, episode=number, inputs=inputs)

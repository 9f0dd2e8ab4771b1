"""STAR: static hard negatives, mined once, and the batch reused as random ones (Zhan et al., 2021).

The warm-up model that mines is ``--model``. Every visit of a query draws one of its hard negatives afresh; the
other queries' positives and hard negatives of the step serve as random negatives, which keeps training stable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardneg.data.training_data import TrainingData
from hardneg.experiment.folder import Experiment
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.losses import star as star_loss
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.labels import answers_of, current_positives
from hardneg.negatives.mining import mine_candidates
from hardneg.negatives.pool import KIND as POOL
from hardneg.negatives.pool import NegativePool, load_pool, save_pool
from hardneg.process.distributed import leader_first
from hardneg.recipes import catalogue
from hardneg.recipes.estimate import describe_work, work_of
from hardneg.recipes.measured_states import passed, train_on_pool
from hardneg.recipes.settings import Episode, MiningSettings, Recipe, state_of_episode
from hardneg.recipes.untrained import Own
from hardneg.storage.artifacts import is_current
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.objectives import GroupLoss
from hardneg.training.stage import steps_made


class Star(MiningSettings):
    """Settings of the recipe; the presets hold the paper's values."""

    negatives_per_query: int = Field(1, ge=1)
    alpha: Annotated[float, Field(ge=0)] | Literal["implicit"] = "implicit"
    epochs: float = Field(100, gt=0)
    steps: int | None = Field(None, ge=1)  # of the whole schedule; wins over epochs
    stop_step: int | None = Field(None, ge=1)  # ends training early, without shortening the schedule
    positives: Literal["rotate", "first"] = "rotate"

    def horizon(self, queries: int) -> int:
        """Steps of the schedule."""
        return self.steps or self.bounded(math.ceil(self.epochs * math.ceil(queries / self.queries_per_step)))

    def episode_of(self, queries: int) -> Episode:
        """What training does with so many queries."""
        horizon = self.horizon(queries)
        steps = min(self.stop_step or horizon, horizon)
        return Episode(1, queries, steps, self.queries_per_step, 1 + self.negatives_per_query, horizon)


def star(
    settings: Star,
    data: TrainingData,
    base: Callable[[], BiEncoder],
    experiment: Experiment,
    *,
    given: NegativePool | None = None,
) -> Iterator[State]:
    """Mine once and train (Zhan et al., 2021, Section 6.1). Everything that is published already is reused.

    Yields the warm-up model and the final one.

    Parameters
    ----------
    given : static hard negatives made elsewhere, instead of mined ones.
    """
    state = state_of_episode(settings, data, experiment, base(), 1, 1)
    yield state
    pool = leader_first(static_negatives, settings, state, data, experiment, given)
    state.discard()
    encoder = train(settings, data, pool, base(), experiment)
    yield from passed(settings, experiment, 1, before=steps_made(experiment / settings.last_model))
    yield state_of_episode(settings, data, experiment, encoder, 2, 1)


def static_negatives(
    settings: Star, state: Snapshot, data: TrainingData, experiment: Experiment, given: NegativePool | None
) -> NegativePool:
    """The top ``depth`` of the warm-up model without D+, or what was given."""
    path, collection = experiment.layout.episode(1).negatives, data.collection
    inputs = {"collection": collection.digest, "splits": data.digest, "miner": state.digest}
    if not is_current(path, POOL, inputs):
        with experiment.timed("mine", episode=1):
            contains = answers_of(data, experiment.cache)
            positives = current_positives(state, data, settings.depth, contains)
            if given is None:
                pool = mine_candidates(
                    state,
                    positives,
                    "query",
                    episode=1,
                    depth=settings.depth,
                    seed=settings.seed,
                    filters=settings.filters,
                    contains=contains,
                )
            else:
                pool = import_pool(given, positives, 1, collection.text_keys, contains)
        save_pool(pool, path, settings=settings.result_values(), inputs=inputs)
    return load_pool(path, n_passages=collection.n_passages, collection=collection.digest)


def train(
    settings: Star, data: TrainingData, pool: NegativePool, start: BiEncoder, experiment: Experiment
) -> BiEncoder:
    """Train on static hard negatives and the reused batch; the model that it makes."""
    positions = trainable(pool, settings.negatives_per_query)
    episode = settings.episode_of(len(positions))
    batches = VisitBatches(
        data.train,
        lambda step: pool,
        queries_per_step=settings.queries_per_step,
        negatives=settings.negatives_per_query,
        seed=settings.seed,
        positions=positions,
        rotate=settings.positives == "rotate",
        micro_queries=settings.micro_queries,
    )
    loss, models = loss_of(settings, start.settings.scale), {experiment / settings.last_model: episode.steps}
    return train_on_pool(
        settings, data, experiment, episode, start, pool, batches=batches, loss=loss, in_batch=True, models=models
    )


def loss_of(settings: Star, scale: float) -> GroupLoss:
    """STAR's loss over the columns of a step: the hard negatives stand behind each query's positive."""
    alpha = None if settings.alpha == "implicit" else settings.alpha

    def loss(scores: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        column = torch.arange(scores.shape[1], device=scores.device)[None, :]
        own = (column > targets[:, None]) & (column <= targets[:, None] + settings.negatives_per_query)
        return star_loss(scores, targets, masked, own, alpha=alpha, scale=scale)

    return loss


def plan(
    settings: Star, data: TrainingData, encoder: BiEncoder, *, seeds: int, measure: bool, own: Own | None = None
) -> dict[str, Any]:
    """What the experiment would do, and with ``measure`` what it would take here."""
    episodes = [settings.episode_of(len(data.train))]
    work = work_of(settings, data, episodes, states=2, entries=settings.depth, in_batch=True, mined=1)
    return describe_work(work, encoder, seeds=seeds, measure=measure, own=own)


ABOUT = "STAR (Zhan et al., 2021)"

RECIPE = Recipe(catalogue.STAR, Star, star, plan, about=ABOUT, together=True)

"""STAR: static hard negatives that are mined once, and the passages of the batch as random negatives.

The recipe is that of Zhan et al., 2021. The warm-up model that mines is ``--model``. Each visit of a query draws
from its hard negatives anew. The positives and hard negatives of the step's other queries serve as random
negatives, which keeps training stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from hardneg.data.training_data import TrainingData
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.losses import star as star_loss
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.pool import NegativePool
from hardneg.process.distributed import by_leader
from hardneg.recipes import catalogue
from hardneg.recipes.cost_model import CostModel, work_of
from hardneg.recipes.group_settings import TrialSettings
from hardneg.recipes.measured_states import MeasuredStage
from hardneg.recipes.mined_among import (
    embeds_all,
    limited_miner,
    part_mined,
    passages_for,
    positives_by_bm25,
    visited,
)
from hardneg.recipes.pool_stage import stage_on_pool
from hardneg.recipes.settings import Episode, Recipe
from hardneg.recipes.training_run import TrainingRun
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.objectives import GroupLoss
from hardneg.training.stage import steps_made


class Star(TrialSettings):
    """Settings of the recipe; the presets hold the paper's values."""

    negatives_per_query: int = Field(1, ge=1)
    alpha: Annotated[float, Field(ge=0)] | Literal["implicit"] = "implicit"
    epochs: float = Field(100, gt=0)
    steps: int | None = Field(None, ge=1)  # of the whole schedule; wins over epochs
    stop_step: int | None = Field(None, ge=1)  # ends training early, without shortening the schedule
    positives: Literal["rotate", "first"] = "rotate"
    # mine only for the queries that the schedule visits, among so many first hits of BM25 for these queries, and
    # their positives. None, or if all passages are embedded anyway: mine for all queries, among all passages
    mine_passages: int | None = Field(None, ge=1)

    def check_pool(self, given: bool) -> None:
        """Refuse also to draw more negatives than are mined, if none are given; and to mine if some are."""
        super().check_pool(given)
        if given:
            self.check_idle("with negatives that are given, where none are mined", "mine_passages")
        else:
            self.check_draws("negatives_per_query", self.negatives_per_query, ("depth", "top"))

    def horizon(self, queries: int) -> int:
        """Steps of the schedule."""
        return self.steps or self.steps_in(self.epochs, queries)

    def episode_of(self, queries: int) -> Episode:
        """The one episode of training on so many queries."""
        horizon = self.horizon(queries)
        steps = min(self.stop_step or horizon, horizon)
        width = 1 + self.negatives_per_query
        return Episode(1, queries, steps, self.queries_per_step, width, horizon, shared="all")


def star(
    training: TrainingRun[Star], base: Callable[[], BiEncoder], *, given: NegativePool | None = None
) -> Iterator[State]:
    """Mine once and train (Zhan et al., 2021, Section 6.1). Everything that is published already is reused.

    Yields the warm-up model and the final one.

    Parameters
    ----------
    given : static hard negatives made elsewhere, instead of mined ones.
    """
    among = training.settings.mine_passages if given is None else None
    if among is not None and embeds_all(training):
        among = None
    state = training.state_of_episode(
        base(), 1, 1, mines=among is None and training.searches_for(mined=given is None)
    )
    yield state
    inputs = training.inputs | {"miner": state.digest}
    if among is None:
        pool = training.pool(1, inputs, partial(static_negatives, training, state, given))
    else:
        pool = negatives_among(training, state, among, inputs)
    state.discard()
    unmined = 0 if among is None else len(training.data.train) - len(pool)
    encoder = stage_of(training, pool, base(), unmined).train()
    yield from training.measured_states(1, before=steps_made(training.last_model))
    yield training.state_of_episode(encoder, 2, 1)


def static_negatives(
    training: TrainingRun[Star], state: Snapshot, given: NegativePool | None, contains: Contains | None
) -> NegativePool:
    """The top ``depth`` hits of the warm-up model without D+, or the given negatives."""
    positives = current_positives(state, training.data, training.settings.depth, contains)
    if given is not None:
        return training.given_pool(given, positives, contains, by_answers=training.data.by_answers)
    return training.mined(state, positives, contains)


def negatives_among(
    training: TrainingRun[Star], state: Snapshot, hits: int, inputs: Mapping[str, str]
) -> NegativePool:
    """The top ``depth`` of the warm-up model among BM25's first ``hits``, for the queries that it will train on.

    With labels by answers BM25 finds the positives, because the model has not ranked all passages.
    """
    settings, train = training.settings, training.data.train
    needed = settings.queries_per_step * settings.episode_of(len(train)).steps
    queries = visited(train, needed=needed, seed=settings.seed)
    positives = by_leader(positives_by_bm25, training, queries, settings.depth)
    miner = limited_miner(state, by_leader(passages_for, training, positives, hits))
    pool = training.pool(1, inputs, partial(training.mined, miner, positives), miner=miner)
    miner.discard("passage")
    return pool


def stage_of(training: TrainingRun[Star], pool: NegativePool, start: BiEncoder, unmined: int) -> MeasuredStage:
    """The stage that trains on hard negatives, which are mined once, and on the passages of the batch.

    Parameters
    ----------
    unmined : the number of queries without mined negatives, because the schedule does not visit them. The length
        of the schedule still counts them.
    """
    settings = training.settings
    positions = trainable(pool, settings.negatives_per_query)
    episode = settings.episode_of(len(positions) + unmined)
    batches = VisitBatches(
        pool.positives,
        lambda step: pool,
        queries_per_step=settings.queries_per_step,
        negatives=settings.negatives_per_query,
        seed=settings.seed,
        positions=positions,
        rotate=settings.positives == "rotate",
        micro_queries=settings.micro_queries,
    )
    objective = training.objective(start, loss_of(settings, start.settings.scale), in_batch=True, pool=pool)
    models = {training.last_model: episode.steps}
    return stage_on_pool(training, episode, start, objective=objective, batches=batches, models=models)


def loss_of(settings: Star, scale: float) -> GroupLoss:
    """STAR's loss over the columns of a step: the hard negatives stand behind each query's positive."""
    alpha = None if settings.alpha == "implicit" else settings.alpha

    def loss(scores: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        column = torch.arange(scores.shape[1], device=scores.device)[None, :]
        own = (column > targets[:, None]) & (column <= targets[:, None] + settings.negatives_per_query)
        return star_loss(scores, targets, masked, own, alpha=alpha, scale=scale)

    return loss


def plan(
    settings: Star, data: TrainingData, encoder: BiEncoder, *, given: NegativePool | None = None
) -> CostModel:
    """The work that the experiment would do; with given negatives the model searches only for positives."""
    one = settings.episode_of(len(data.train))
    hits = settings.mine_passages if given is None else None
    part = part_mined(data, hits, needed=one.steps * one.queries_per_step)
    mined = int(given is None or data.by_answers)
    return work_of(settings, data, [one], states=2, entries=settings.depth, mined=mined, part=part)


ABOUT = "STAR (Zhan et al., 2021)"

RECIPE = Recipe(catalogue.STAR, Star, star, plan, about=ABOUT)

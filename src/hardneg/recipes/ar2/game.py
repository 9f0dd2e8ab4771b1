"""The game of a retriever and a ranker: what each draws and learns from, and one stage for both (AR2)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hardneg import keyed_random
from hardneg.adversarial import retriever_losses
from hardneg.experiment.names import RANKER
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import KIND as RANKER_KIND
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.rankers import load_ranker, save_ranker
from hardneg.negatives.pool import NegativePool
from hardneg.process import stages
from hardneg.recipes.ar2.refreshes import candidates_at
from hardneg.recipes.ar2.settings import EPISODE, FIRST_RANKER, Ar2
from hardneg.recipes.starting_ranker import StartingRanker
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import read_manifest
from hardneg.training.batches import GroupBatch, VisitBatches
from hardneg.training.optim import Schedule
from hardneg.training.ranker_objectives import (
    RankerLossName,
    adversarial_objective,
    ranker_loss,
    ranker_objective,
)
from hardneg.training.stage import RETRIEVER, Trainee, kind_of

# ---------------------------------------------------------------- the ranker's warm-up


def first_ranker(training: TrainingRun[Ar2], start: StartingRanker) -> CrossEncoder:
    """D⁰: the given ranker, or a new one after its warm-up on the first candidates (AR2, Appendix A.3)."""
    settings, place = training.settings, training.experiment.layout.first_ranker
    if not start.is_new:
        return start.model
    steps, rate = settings.first_ranker_steps, settings.first_ranker_learning_rate
    trainee = ranker_trainee(
        training,
        copy.deepcopy(start.model),
        Drawn(training, "first-ranker", settings.first_ranker_queries_per_step, lambda step: 0),
        settings.schedule_over(steps, rate, of="first ranker"),
        {place: steps},
        loss="cross_entropy",
        title="first ranker",
    )
    stage = training.stage([trainee], episode=FIRST_RANKER, inputs=inputs_of(training))
    stages.begin(kind_of(RANKER))
    stage.advance(RANKER, steps)
    return load_ranker(place, device=start.model.device)


# ---------------------------------------------------------------- both in one stage


class Drawn:
    """The batches of a model: queries with a positive and negatives drawn anew from the candidates in force.

    The two models draw independently of each other: they see different queries, and different candidates of a
    query. D⁰ draws independently as well, because otherwise the ranker's first turn would repeat D⁰'s batches.

    Parameters
    ----------
    model : the model that learns from the batches: the retriever, the ranker, or ``first-ranker`` (D⁰).
    version_at : step -> the refresh whose candidates are in force.
    """

    def __init__(
        self, training: TrainingRun[Ar2], model: str, queries: int, version_at: Callable[[int], int]
    ) -> None:
        settings = training.settings
        self.training, self.version_at = training, version_at
        self.loaded: tuple[int, NegativePool] | None = None
        self.batches = VisitBatches(
            training.data.train,
            self.pool_at,
            queries_per_step=queries,
            negatives=settings.negatives_per_query,
            seed=settings.seed if model == RETRIEVER else keyed_random.key(settings.seed, model),
            rotate=settings.positives == "rotate",
            micro_queries=settings.micro_queries if model == RETRIEVER else settings.ranker_micro_queries,
        )

    def pool_at(self, step: int) -> NegativePool:
        """The candidates in force at a step."""
        version = self.version_at(step)
        if self.loaded is None or self.loaded[0] != version:
            self.loaded = version, self.training.read_pool(candidates_at(self.training, version))
        return self.loaded[1]

    def __call__(self, step: int) -> GroupBatch:
        """The batch of a step (from 0)."""
        return self.batches(step)

    def facts(self, step: int) -> dict[str, int]:
        """The refresh that a step drew from, for the metrics."""
        return {"negative_version": self.version_at(step)}


def inputs_of(training: TrainingRun[Ar2]) -> dict[str, str]:
    """Digests of what the stages train on: the first candidates decide all others."""
    return training.inputs | {"pool": read_manifest(candidates_at(training, 0)).digest}


def ranker_trainee(
    training: TrainingRun[Ar2],
    ranker: CrossEncoder,
    batches: Drawn,
    schedule: Schedule,
    models: Mapping[Path, int],
    *,
    loss: RankerLossName,
    title: str = "",
) -> Trainee:
    """The ranker as a stage trains it (AR2, Eqs. 6 and 7; in IRGAN's game the binary log loss of Eq. 3)."""
    objective = ranker_objective(
        training.data, ranker, training.experiment.cache, ranker_loss(loss), **training.settings.of_objective
    )
    return training.trainee(
        ranker,
        objective,
        batches,
        schedule,
        models,
        name=RANKER,
        save=save_ranker,
        kind=RANKER_KIND,
        facts=batches.facts,
        title=title,
    )


def retriever_trainee(training: TrainingRun[Ar2], encoder: BiEncoder, ranker: CrossEncoder) -> Trainee:
    """The retriever as the stage trains it, against the ranker as the ranker is at each step."""
    settings, layout = training.settings, training.experiment.layout
    batches = Drawn(training, RETRIEVER, settings.queries_per_step, partial(settings.version_of, RETRIEVER))
    loss = partial(
        retriever_losses,
        game=settings.game,
        weighting=settings.weighting,
        balance=settings.balance,
        scale=encoder.settings.scale,
        temperature=settings.temperature,
    )
    objective = adversarial_objective(
        training.data,
        encoder,
        ranker,
        training.experiment.cache,
        loss,
        budget=settings.token_budget,
        **settings.of_retriever,
    )
    return training.trainee(
        encoder,
        objective,
        batches,
        settings.schedule_over(settings.steps, of=RETRIEVER),
        {training.last_model: settings.steps},
        intermediate={layout.state(step).model: step for step in settings.kept_steps},
        facts=batches.facts,
    )


class Game:
    """Both models in one stage: each has one schedule and one optimiser over all iterations.

    Parameters
    ----------
    encoder : G⁰, which is trained.
    ranker : D⁰; a copy of it is trained.
    before : positions (steps made, by model) at which something still has to be made.

    Attributes
    ----------
    learner : the ranker that is trained.
    """

    def __init__(
        self,
        training: TrainingRun[Ar2],
        encoder: BiEncoder,
        ranker: CrossEncoder,
        before: Sequence[Mapping[str, int]] = (),
    ) -> None:
        settings, layout = training.settings, training.experiment.layout
        self.settings, self.encoder, self.learner = settings, encoder, copy.deepcopy(ranker)
        own = ranker_trainee(
            training,
            self.learner,
            Drawn(training, RANKER, settings.ranker_queries_per_step, partial(settings.version_of, RANKER)),
            settings.schedule_over(settings.steps_of_ranker, settings.ranker_learning_rate, of=RANKER),
            {layout.ranker: settings.steps_of_ranker},
            loss="bce" if settings.game == "irgan" else "cross_entropy",
        )
        self.stage = training.stage(
            [own, retriever_trainee(training, encoder, self.learner)],
            episode=EPISODE,
            inputs=inputs_of(training),
            before=before,
        )

    def advance(self, model: str, iteration: int) -> None:
        """Make the turn of a model in an iteration (from 1), or the steps that are left of it."""
        stages.begin(kind_of(model))
        self.stage.advance(model, self.settings.after(iteration)[model])

    def is_over(self, model: str, iteration: int) -> bool:
        """Whether the turn of a model in an iteration is over."""
        return self.stage.finished or self.stage.made[model] >= self.settings.after(iteration)[model]

    def stands_after(self, model: str, iteration: int) -> bool:
        """Whether the weights of a model are those after its turn in an iteration."""
        return self.stage.at(**{model: self.settings.after(iteration)[model]})

"""AR2: a retriever that looks for what the ranker takes for the positive, and this ranker (Zhang et al., 2022).

The retriever G⁰ gives every query its candidates; the ranker D⁰ is warmed up on them, or given. Then both train in
turns: the ranker to tell the positive from candidates, the retriever to rank high what the ranker is taken in by
(:mod:`hardneg.adversarial`). After each turn of the retriever the candidates are mined anew. Each model has one
schedule and one optimiser over all iterations.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hardneg import keyed_random
from hardneg.adversarial import retriever_losses
from hardneg.data.training_data import TrainingData
from hardneg.errors import InputError
from hardneg.experiment.names import UNTRAINED
from hardneg.experiment.snapshot import ArchivedState, Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import KIND as RANKER_KIND
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import load_ranker, save_ranker
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.mining import mine_candidates
from hardneg.negatives.pool import NegativePool
from hardneg.process import stages
from hardneg.process.distributed import by_leader
from hardneg.recipes import catalogue
from hardneg.recipes.ar2.pipeline import Pipelines
from hardneg.recipes.ar2.settings import EPISODE, FIRST_RANKER, RANKER, Ar2
from hardneg.recipes.estimate import Beside, CostModel, judged_queries, queries_of_step, work_of
from hardneg.recipes.settings import Recipe
from hardneg.recipes.starting_ranker import StartingRanker
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_published, read_manifest
from hardneg.training.batches import GroupBatch, VisitBatches
from hardneg.training.optim import Schedule, linear
from hardneg.training.ranker_objectives import (
    RankerLossName,
    adversarial_objective,
    ranker_loss,
    ranker_objective,
)
from hardneg.training.stage import RETRIEVER, Trainee, kind_of

log = logging.getLogger(__name__)


def check(settings: Ar2, data: TrainingData, encoder: BiEncoder) -> None:
    """Refuse more negatives than there are passages, and warn of what is easily missed."""
    passages = data.collection.n_passages
    if settings.negatives_per_query >= passages:
        what = f"negatives_per_query = {settings.negatives_per_query} of {passages} passages, one of them positive"
        raise InputError("NO_NEGATIVES", what, "draw fewer")
    for line in settings.doubts:
        log.warning("%s", line)


def ar2(training: TrainingRun[Ar2], base: Callable[[], BiEncoder], *, ranker: StartingRanker) -> Iterator[Any]:
    """Train both models (AR2, Algorithm 1, in either order); afterwards they stand in ``model/`` and ``ranker/``.

    Everything that is published already is reused. Yields the state of the retriever behind every refresh, with
    what the ranker of the same iteration makes of its runs and of those of G⁰, and the final one.

    Parameters
    ----------
    ranker : D⁰; one with a new head is warmed up first, on the first candidates.
    """
    settings, encoder = training.settings, base()
    first = training.state(encoder, UNTRAINED, runs_of(training, 0), step=0, kind="untrained")
    yield first
    pipelines = Pipelines(training)
    pipelines.keep_sharpness(first)
    refresh(training, first, 0)
    first.discard()
    start = first_ranker(training, ranker)
    place = training.experiment.layout.first_ranker if ranker.is_new else None
    yield from pipelines.of(first, "first-ranker", lambda: start, place)
    game = Iterations(training, first, start)
    for number in range(1, settings.iterations):
        yield from game.play(number)
    final = game.finish()
    pipelines.keep_sharpness(final)
    yield from pipelines.of(final, "first-ranker", lambda: start, place)
    for state in (first, final):
        yield from pipelines.of(state, "ranker", game.last_ranker, training.experiment.layout.ranker)
    yield final


# ---------------------------------------------------------------- refreshes


def runs_of(training: TrainingRun[Ar2], version: int) -> Path:
    """Where the runs of the state behind a refresh are kept."""
    episode = training.experiment.layout.episode(EPISODE)
    return episode.version_runs(version) if version else episode.runs


def candidates(training: TrainingRun[Ar2], version: int) -> Path:
    """Where the candidates of a refresh stand."""
    return training.experiment.layout.episode(EPISODE).version(version)


def refresh(training: TrainingRun[Ar2], state: Snapshot, version: int) -> None:
    """Publish the top ``depth`` of a state without D+ as the candidates of a refresh, unless they stand there."""
    settings, data = training.settings, training.data

    def mine(contains: Contains | None) -> NegativePool:
        return mine_candidates(
            state,
            current_positives(state, data, settings.depth, contains),
            "query",
            episode=version,
            depth=settings.depth,
            seed=settings.seed,
            filters=settings.filters,
            guide=training.guide,
            contains=contains,
        )

    path = candidates(training, version)
    if by_leader(is_published, path):
        return
    _ = state.passages, state.training_queries  # all encode together what one mines with
    training.pool(EPISODE, training.inputs | {"miner": state.digest}, mine, path=path, version=version)


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
        linear(rate, warmup=settings.warmup, horizon=steps),
        {place: steps},
        loss="cross_entropy",
    )
    stage = training.stage([trainee], episode=FIRST_RANKER, inputs=inputs_of(training))
    stages.begin(kind_of(RANKER))
    stage.advance(RANKER, steps)
    return load_ranker(place, device=start.model.device)


# ---------------------------------------------------------------- both in one stage


class Drawn:
    """The batches of a model: queries with a positive and negatives drawn anew from the candidates in force.

    The two models draw apart from each other: they see other queries, and other candidates of a query. So does D⁰,
    or the ranker's first turn would repeat D⁰'s batches.

    Parameters
    ----------
    model : who learns from them: the retriever, the ranker, or ``first-ranker`` (D⁰).
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
            self.loaded = version, self.training.read_pool(candidates(self.training, version))
        return self.loaded[1]

    def __call__(self, step: int) -> GroupBatch:
        """The batch of a step (from 0)."""
        return self.batches(step)

    def facts(self, step: int) -> dict[str, int]:
        """The refresh that a step drew from, for the metrics."""
        return {"negative_version": self.version_at(step)}


def inputs_of(training: TrainingRun[Ar2]) -> dict[str, str]:
    """Digests of what the stages train on: the first candidates decide all others."""
    return training.inputs | {"pool": read_manifest(candidates(training, 0)).digest}


def ranker_trainee(
    training: TrainingRun[Ar2],
    ranker: CrossEncoder,
    batches: Drawn,
    schedule: Schedule,
    models: Mapping[Path, int],
    *,
    loss: RankerLossName,
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
    )


def retriever_trainee(training: TrainingRun[Ar2], encoder: BiEncoder, ranker: CrossEncoder) -> Trainee:
    """The retriever as the stage trains it, against the ranker as that is at each step."""
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
        settings.schedule_over(settings.steps),
        {training.last_model: settings.steps},
        intermediate={layout.state(step).model: step for step in settings.kept_steps},
        facts=batches.facts,
    )


class Iterations:
    """All iterations: the turns of both models, and the refreshes between them.

    Parameters
    ----------
    first : the state of G⁰, whose encoder is trained.
    ranker : D⁰; a copy of it is trained.
    """

    def __init__(self, training: TrainingRun[Ar2], first: Snapshot, ranker: CrossEncoder) -> None:
        self.training, self.settings, self.first, self.encoder = training, training.settings, first, first.encoder
        self.pipelines, self.learner = Pipelines(training), copy.deepcopy(ranker)
        settings, layout = training.settings, training.experiment.layout
        own = ranker_trainee(
            training,
            self.learner,
            Drawn(training, RANKER, settings.ranker_queries_per_step, partial(settings.version_of, RANKER)),
            linear(settings.ranker_learning_rate, warmup=settings.warmup, horizon=settings.steps_of_ranker),
            {layout.ranker: settings.steps_of_ranker},
            loss="bce" if settings.game == "irgan" else "cross_entropy",
        )
        self.stage = training.stage(
            [own, retriever_trainee(training, self.encoder, self.learner)],
            episode=EPISODE,
            inputs=inputs_of(training),
            before=by_leader(self._todo),
        )

    def play(self, number: int) -> Iterator[Any]:
        """An iteration (from 1) and the refresh that the next one draws from; not the last iteration."""
        if self.settings.order == "ranker-first":
            self._advance(RANKER, number)
            self._advance(RETRIEVER, number)
            state = yield from self._refresh(number)
        else:
            self._advance(RETRIEVER, number)
            state = yield from self._refresh(number)
            self._advance(RANKER, number)
        yield from self.pipelines.of(state, RANKER, lambda: self._now(number))
        yield from self.pipelines.of(self.first, f"{RANKER}-{number}", lambda: self._now(number))

    def finish(self) -> Snapshot:
        """The last iteration; returns the state of the retriever after its last turn."""
        settings, number = self.settings, self.settings.iterations
        if settings.order == "ranker-first":
            self._advance(RANKER, number)
            self._advance(RETRIEVER, number)
            return self._final()
        self._advance(RETRIEVER, number)
        final = self._final()
        refresh(self.training, final, number)
        self._advance(RANKER, number)
        return final

    def last_ranker(self) -> CrossEncoder:
        """The ranker after its last step."""
        return load_ranker(self.training.experiment.layout.ranker, device=self.learner.device)

    def _now(self, iteration: int) -> CrossEncoder:
        """The ranker, which must be as it is after so many iterations."""
        assert self.stage.at(**self.settings.after(iteration))
        return self.learner

    def _advance(self, model: str, iteration: int) -> None:
        stages.begin(kind_of(model))
        self.stage.advance(model, self.settings.after(iteration)[model])

    def _refresh(self, version: int) -> Generator[State, None, State]:
        """The state that mines the candidates of a refresh, which it publishes; or what is left of that state."""
        step, pool = version * self.settings.retriever_steps, candidates(self.training, version - 1)
        weights = self.training.experiment.layout.state(step).model if step in self.settings.kept_steps else None
        facts: dict[str, Any] = {"pool": pool, "weights": weights, "episode": EPISODE, "kind": "version"}
        name, runs = f"iteration-{version}", runs_of(self.training, version)
        if by_leader(is_published, candidates(self.training, version)):
            if self.stage.at(**self.settings.at_refresh(version)):  # a kill may have come between that and this
                self.training.state(self.encoder, name, runs, step=step).discard()
            old = ArchivedState(name, runs, step=step, asked=self.settings.examine, **facts)
            yield old
            return old
        state = self.training.state(self.encoder, name, runs, step=step, **facts)
        yield state
        self.pipelines.keep_sharpness(state)
        refresh(self.training, state, version)
        state.discard()
        return state

    def _final(self) -> Snapshot:
        settings, training = self.settings, self.training
        encoder = load_encoder(str(training.last_model), device=self.encoder.device)
        pool = candidates(training, settings.iterations - 1)
        return training.final_state(encoder, settings.steps, pool, episode=EPISODE)

    def _todo(self) -> list[dict[str, int]]:
        """The positions of refreshes and of re-ranking that are not published yet."""
        settings, training, pipelines = self.settings, self.training, self.pipelines
        versions, between = range(1, settings.refreshes + 1), range(1, settings.iterations)
        unmined = [version for version in versions if not is_published(candidates(training, version))]
        unranked = [
            number
            for number in between
            if not pipelines.are_published(runs_of(training, number), RANKER)
            or not pipelines.are_published(self.first.folder, f"{RANKER}-{number}")
        ]
        return [*map(settings.at_refresh, unmined), *map(settings.after, unranked)]


def plan(settings: Ar2, data: TrainingData, encoder: BiEncoder, ranker: StartingRanker | None = None) -> CostModel:
    """What the experiment would do, of both models.

    Parameters
    ----------
    ranker : what the ranker begins as; None: a new one.
    """
    is_new = ranker is None or ranker.is_new
    first = [settings.first_episode_of(len(data.train))] if is_new else []
    own, turns = settings.episodes_of(len(data.train))
    work = work_of(
        settings,
        data,
        [own],
        states=settings.iterations + 1,
        entries=settings.depth,
        in_batch=False,
        mined=settings.refreshes + 1,
    )
    live = own.steps * queries_of_step(own) * own.passages_per_query
    reranked = settings.pipelines * judged_queries(data) * min(settings.rerank_depth, data.collection.n_passages)
    model = None if ranker is None else partial(getattr, ranker, "model")
    beside = Beside("the ranker", model, live + reranked, [*first, turns], models=1 + is_new)
    models = len(settings.kept_steps)
    order = settings.stages(new_ranker=is_new)
    return replace(work, pools=settings.refreshes + 1, models=models, beside=[beside], order=order)


RECIPE = Recipe(catalogue.AR2, Ar2, ar2, plan, about="AR2 (Zhang et al., 2022)", check=check)

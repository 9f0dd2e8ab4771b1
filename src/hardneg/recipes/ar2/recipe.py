"""AR2: a retriever and a ranker that train each other as adversaries (Zhang et al., 2022).

The retriever G⁰ gives every query its candidates; the ranker D⁰ is warmed up on them, or given. Then the models
train in turns. The ranker learns to tell the positive from candidates. The retriever learns to rank passages high
that the ranker takes for the positive (:mod:`hardneg.adversarial`). After each turn of the retriever the
candidates are mined anew. Each model has one schedule and one optimiser over all iterations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.sharpness import check_sharpness
from hardneg.errors import InputError
from hardneg.experiment.names import BY_FIRST, RANKER
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.rankers import load_ranker
from hardneg.process.distributed import by_leader
from hardneg.recipes import catalogue
from hardneg.recipes.ar2.beside import be_trainer, infer, states_beside
from hardneg.recipes.ar2.game import Game, first_ranker
from hardneg.recipes.ar2.pipeline import Pipelines
from hardneg.recipes.ar2.ranker_card import ABOUT, publish_ranker
from hardneg.recipes.ar2.refreshes import archived_state, candidates_at, refresh, runs_of, state_behind
from hardneg.recipes.ar2.settings import EPISODE, Ar2
from hardneg.recipes.cost_model import Beside, CostModel, judged_queries, queries_of_step, work_of
from hardneg.recipes.roles.peers import INFERENCER, TRAINER, Supervisor
from hardneg.recipes.settings import Recipe
from hardneg.recipes.starting_ranker import StartingRanker
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_published
from hardneg.training.stage import RETRIEVER

log = logging.getLogger(__name__)

EXPORTS = 2  # published states of each model that wait for the inferencer in mode async-fixed


def check(settings: Ar2, data: TrainingData, encoder: BiEncoder) -> None:
    """Refuse more negatives than there are passages, and warn of effects that are easily missed."""
    passages = data.collection.n_passages
    if settings.negatives_per_query >= passages:
        what = f"negatives_per_query = {settings.negatives_per_query} of {passages} passages, one of them positive"
        raise InputError("NO_NEGATIVES", what, "draw fewer")
    for line in settings.doubts:
        log.warning("%s", line)


def ar2(
    training: TrainingRun[Ar2],
    base: Callable[[], BiEncoder],
    *,
    ranker: StartingRanker,
    working: Supervisor | None = None,
) -> Iterator[Any]:
    """Train both models (AR2, Algorithm 1, in either order); afterwards they stand in ``model/`` and ``ranker/``.

    Everything that is published already is reused. Yields the state of the retriever after every iteration. Each
    is followed by two pipelines: the ranker of the same iteration re-ranks its runs, and those of G⁰. The final
    state comes last.

    Parameters
    ----------
    ranker : D⁰; a ranker with a new head is warmed up first, on the first candidates.
    working : in mode async-fixed, the supervisor of the two processes, which run
        :func:`~hardneg.recipes.ar2.beside.be_trainer` and :func:`~hardneg.recipes.ar2.beside.infer`.
    """
    layout, device = training.experiment.layout, ranker.model.device
    if not ranker.is_new and (idle := training.settings.first_ranker_given):
        log.warning("no effect of %s: the ranker is given, and so it is not trained first", ", ".join(idle))

    def first_one() -> CrossEncoder:
        return load_ranker(layout.first_ranker, device=device) if ranker.is_new else ranker.model

    first = (
        yield from in_turn(training, base, ranker) if working is None else states_beside(training, working, ranker)
    )
    pipelines, final = Pipelines(training), final_state(training, device)
    pipelines.keep_sharpness(final)
    place = layout.first_ranker if ranker.is_new else None
    yield from pipelines.of(final, BY_FIRST, first_one, place)
    for state in (first, final):
        yield from pipelines.of(state, RANKER, lambda: load_ranker(layout.ranker, device=device), layout.ranker)
    yield final


def in_turn(
    training: TrainingRun[Ar2], base: Callable[[], BiEncoder], ranker: StartingRanker
) -> Generator[Any, None, State]:
    """Train, and stop training for every refresh; returns the state of G⁰."""
    first, pipelines = state_behind(training, base(), 0), Pipelines(training)
    yield first
    pipelines.keep_sharpness(first)
    refresh(training, first, 0)
    first.discard()
    start = first_ranker(training, ranker)
    place = training.experiment.layout.first_ranker if ranker.is_new else None
    yield from pipelines.of(first, BY_FIRST, lambda: start, place)
    game = Iterations(training, first, start)
    for number in range(1, training.settings.iterations):
        yield from game.play(number)
    game.finish()
    return first


def final_state(training: TrainingRun[Ar2], device: Any) -> Snapshot:
    """The state of the retriever after its last turn."""
    settings = training.settings
    pool = candidates_at(training, settings.version_of(RETRIEVER, settings.steps - 1))
    encoder = load_encoder(str(training.last_model), device=device)
    return training.final_state(encoder, settings.steps, pool, episode=EPISODE)


class Iterations:
    """All iterations: the turns of both models, and the refreshes between them.

    Parameters
    ----------
    first : the state of G⁰, whose encoder is trained.
    ranker : D⁰; a copy of it is trained.
    """

    def __init__(self, training: TrainingRun[Ar2], first: Snapshot, ranker: CrossEncoder) -> None:
        self.training, self.settings, self.first = training, training.settings, first
        self.pipelines = Pipelines(training)
        self.game = Game(training, first.encoder, ranker, by_leader(self._todo))
        self.stage = self.game.stage

    def play(self, number: int) -> Iterator[Any]:
        """Play an iteration (from 1) other than the last, with the refresh that the next one draws from."""
        if self.settings.order == "ranker-first":
            self.game.advance(RANKER, number)
            self.game.advance(RETRIEVER, number)
            state = yield from self._refresh(number)
        else:
            self.game.advance(RETRIEVER, number)
            state = yield from self._refresh(number)
            self.game.advance(RANKER, number)
        now = partial(self._now, number)
        yield from self.pipelines.of(state, RANKER, now, passing=True)
        yield from self.pipelines.of(self.first, f"{RANKER}-{number}", now, passing=True)

    def finish(self) -> None:
        """Play the last iteration, which has a refresh only if the ranker has the second turn."""
        number = self.settings.iterations
        if self.settings.order == "ranker-first":
            self.game.advance(RANKER, number)
            self.game.advance(RETRIEVER, number)
            return
        self.game.advance(RETRIEVER, number)
        refresh(self.training, final_state(self.training, self.game.encoder.device), number)
        self.game.advance(RANKER, number)

    def _now(self, iteration: int) -> CrossEncoder:
        """The ranker after so many iterations; no later turn may have begun."""
        assert self.stage.at(**self.settings.after(iteration))
        return self.game.learner

    def _refresh(self, version: int) -> Generator[State, None, State]:
        """Yield the state that mines a refresh, and publish its candidates unless they are published.

        If they are, only the archived state is yielded.
        """
        if by_leader(is_published, candidates_at(self.training, version)):
            if self.stage.at(**self.settings.at_refresh(version)):  # a run may have been killed in between
                state_behind(self.training, self.game.encoder, version).discard()
            old = archived_state(self.training, version)
            by_leader(check_sharpness, old)
            yield old
            return old
        state = state_behind(self.training, self.game.encoder, version)
        yield state
        self.pipelines.keep_sharpness(state)
        refresh(self.training, state, version)
        state.discard()
        return state

    def _todo(self) -> list[dict[str, int]]:
        """The positions of refreshes and of re-ranking that are not published yet."""
        settings, training, pipelines = self.settings, self.training, self.pipelines
        versions, between = range(1, settings.refreshes + 1), range(1, settings.iterations)
        unmined = [version for version in versions if not is_published(candidates_at(training, version))]
        unranked = [
            number
            for number in between
            if not pipelines.are_published(runs_of(training, number), RANKER)
            or not pipelines.are_published(self.first.folder, f"{RANKER}-{number}")
        ]
        return [*map(settings.at_refresh, unmined), *map(settings.after, unranked)]


def plan(settings: Ar2, data: TrainingData, encoder: BiEncoder, ranker: StartingRanker | None = None) -> CostModel:
    """The work that the experiment would do with both models.

    Parameters
    ----------
    ranker : the ranker to begin with; None: a new one.
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
        mined=settings.refreshes + 1,
    )
    live = own.steps * queries_of_step(own) * own.passages_per_query
    each = judged_queries(data) * min(settings.rerank_depth, data.collection.n_passages)
    model = None if ranker is None else partial(getattr, ranker, "model")
    waiting = min(EXPORTS, settings.iterations - 1) if settings.roles else 0
    rankers = 1 + is_new + (waiting if settings.rerank_depth else 0)
    beside = Beside("the ranker", model, live, [*first, turns], rankers, settings.pipelines * each)
    models = len(settings.kept_steps) or waiting
    order, runs = settings.stages(new_ranker=is_new), settings.reranks(new_ranker=is_new)
    if settings.roles:  # all but the final model's pipelines is done in other processes
        order, runs = ("measure",) * work.states, (*[0] * (work.states - 2), 3, 0)
    reranks = [number * each for number in runs]
    return replace(
        work, pools=settings.refreshes + 1, models=models, beside=[beside], order=order, reranks=reranks
    )


RECIPE = Recipe(
    catalogue.AR2,
    Ar2,
    ar2,
    plan,
    about=ABOUT,
    roles={TRAINER: be_trainer, INFERENCER: infer},
    check=check,
    others=publish_ranker,
)

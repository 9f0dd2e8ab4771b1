"""ANCE-Tele: training with teleportation negatives (Sun et al., 2022).

In every episode the newest model mines the negatives of the next one, and three kinds are mixed: passages near
the query, passages near the positive (lookahead: what the model will confuse later), and the pool of the episode
before (momentum: what it would forget).

With ``first = in_batch``, which the paper does not have, the first episode mines nothing: it trains on the other
passages of each step. The first model that mines has then seen every training query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from hardneg.data.training_data import TrainingData
from hardneg.errors import SettingsError
from hardneg.experiment.course import Course, course_of_episodes
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.candidates import ALL, Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.mining import mine_pool
from hardneg.negatives.mix import nearest
from hardneg.negatives.pool import NegativePool, empty_pool
from hardneg.negatives.scores import Guide
from hardneg.recipes import catalogue
from hardneg.recipes.cost_model import CostModel, work_of
from hardneg.recipes.group_settings import TrialSettings
from hardneg.recipes.measured_states import MeasuredStage
from hardneg.recipes.pool_stage import stage_on_pool
from hardneg.recipes.settings import Episode, Recipe, per_episode
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Positives
from hardneg.storage.artifacts import read_manifest
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.objectives import group_loss
from hardneg.training.stage import steps_made


class AnceTele(TrialSettings):
    """Settings of the recipe; the presets hold the papers' values."""

    given_alone: ClassVar[str] = "episodes = 1"

    # episodes
    episodes: int = Field(3, ge=1)
    start_episode: int = Field(1, ge=1)  # later ones begin from given negatives
    start: Literal["scratch", "continue"] = "scratch"
    group_sizes: Literal["reference", "paper"] = "reference"
    passages_reference: list[PositiveInt] = Field([16, 32, 32], min_length=1)
    passages_paper: list[PositiveInt] = Field([32, 32, 32], min_length=1)
    epochs: float = Field(3, gt=0)
    steps: int | None = Field(None, ge=1)  # of the whole schedule; wins over epochs
    stop_fraction: float = Field(0.1, gt=0, le=1)
    stop_step: int | None = Field(None, ge=1)  # wins over stop_fraction

    # in_batch: the first episode mines nothing; a pass over the queries with a step's other passages as negatives
    first: Literal["mined", "in_batch"] = "mined"
    first_queries: int | None = Field(None, ge=1)  # of its steps; None: queries_per_step
    first_epochs: float = Field(1, gt=0)
    first_steps: int | None = Field(None, ge=1)  # wins over first_epochs

    # negatives
    in_batch: bool = True
    count: int = Field(30, ge=1)  # n: the newly mined part is 2n
    alpha: float = Field(0.5, ge=0, lt=1)  # momentum : new = alpha : 1 - alpha
    beta: float = Field(0.5, ge=0, lt=1)  # lookahead : query = beta : 1 - beta
    momentum: Literal["weighted", "accumulate"] = "weighted"
    dedup: bool = False
    extra: list[Literal["bm25", "random"]] = Field([])
    lookahead: Literal["first", "all"] = "first"
    positives: Literal["rotate", "first"] = "rotate"

    @field_validator("start_episode")
    @classmethod
    def _is_an_episode(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("episodes", value):
            raise ValueError(f"there are {info.data['episodes']} episodes")
        return value

    @property
    def unscored(self) -> bool:
        """Whether training has negatives besides those of a given pool: episodes after the first one mine."""
        return self.first_episode < self.episodes

    def check(self) -> None:
        """Refuse also a source that is named twice, and groups without a negative."""
        super().check()
        self.check_groups()
        self.check_used()
        if len(set(self.extra)) < len(self.extra):
            what = f"extra = {self.extra}: a source stands twice"
            raise SettingsError("REPEATED_SOURCE", what, "name each once")
        if "bm25" in self.extra and self.filters != ALL and self.filter_by == "miner":
            what = "the score bounds apply to the mining model's scores, and BM25 scores are on another scale"
            fix = "leave out extra = bm25 or the bounds, or set filter_by = start"
            raise SettingsError("NO_MARGIN", what, fix)

    def check_used(self) -> None:
        """Refuse also settings that others leave without effect."""
        if self.first == "mined":
            own = "with first = mined, where the first episode is like the others"
            self.check_idle(own, "first_queries", "first_epochs", "first_steps")
        elif self.start_episode > 1:
            own = f"with start_episode = {self.start_episode}, which leaves out the first episode"
            self.check_idle(own, "first", "first_queries", "first_epochs", "first_steps")
        if self.momentum == "accumulate":
            self.check_idle(
                "with momentum = accumulate, which takes the whole pool of the episode before", "alpha"
            )
        if not self.in_batch and self.has_negatives(self.start_episode):
            self.check_masked("with in_batch = false")
        if self.beta == 0:
            self.check_idle("with beta = 0, where nothing near a positive is mined", "lookahead")
        used, other = "passages_reference", "passages_paper"
        if self.group_sizes == "paper":
            used, other = other, used
        if not self.is_given(used):  # who gives both, as --negatives does, need not think of group_sizes
            self.check_idle(f"with group_sizes = {self.group_sizes}, which reads {used}", other)

    def check_groups(self) -> None:
        """Refuse an episode whose groups are of one passage, if a step has no other passages for them."""
        last = min(self.episodes, max(self.start_episode + 1, len(self.sizes)))  # the last size repeats
        episodes = range(self.start_episode, last + 1)
        if max(map(self.passages_per_query, episodes)) == 1:
            mined = any(map(self.has_negatives, episodes))
            self.check_taught(f"passages_{self.group_sizes} = 1" if mined else "first = in_batch")
        for episode in episodes:
            own = self.has_negatives(episode)
            if self.passages_per_query(episode) > 1:
                continue
            if own and not self.in_batch:
                what = f"episode {episode} has 1 passage for a query, its positive, and in_batch = false"
                fix = f"set 2 or more in passages_{self.group_sizes}, or in_batch = true"
                raise SettingsError("BAD_SETTING", what, fix)
            size = self.queries_per_step if own else self.first_queries or self.queries_per_step
            self.check_shared(f"passages_{self.group_sizes} = 1" if own else "first = in_batch", size)

    def check_pool(self, given: bool) -> None:
        """Refuse also given negatives for a first episode that trains on in-batch negatives alone."""
        super().check_pool(given)
        if given and not self.has_negatives(self.start_episode):
            what = "negatives are given, but first = in_batch trains the first episode without any"
            raise SettingsError("BAD_SETTING", what, "set first = mined, or leave them out")

    def has_negatives(self, episode: int) -> bool:
        """Whether an episode has mined or given negatives; a first one with ``in_batch`` has none."""
        return episode > 1 or self.first == "mined"

    @property
    def may_grow(self) -> tuple[str, ...]:
        """More episodes extend a finished experiment, unless it kept only the best state."""
        return ("episodes",) if self.keep == "last" else ()

    @property
    def first_episode(self) -> int:
        """Number of the first episode."""
        return self.start_episode

    @property
    def course(self) -> Course:
        """Episodes that mine; the names of all states say in which one they are."""
        return course_of_episodes(
            first=self.start_episode,
            episodes=self.episodes,
            in_batch=self.first == "in_batch",
            restarts=self.start == "scratch",
            carries_over=self.momentum != "accumulate",
        )

    def passages_per_query(self, episode: int) -> int:
        """1 positive + N negatives of an episode."""
        if not self.has_negatives(episode):
            return 1
        return per_episode(self.sizes, episode)

    @property
    def sizes(self) -> list[int]:
        """The passages of a query, for each episode; the last value repeats."""
        return self.passages_reference if self.group_sizes == "reference" else self.passages_paper

    def horizon(self, queries: int) -> int:
        """Steps of the learning-rate schedule, which early stops do not shorten."""
        return self.steps or self.steps_in(self.epochs, queries)

    def for_data(self, queries: int) -> AnceTele:
        """The settings with the steps of a first episode with ``in_batch``, if ``--epochs`` lifted its bounds."""
        if not self.lifted or self.first_steps or self.has_negatives(self.start_episode):
            return self
        steps = self.model_copy(update=self.lifted).episode_of(queries, 1).steps
        same = steps == self.episode_of(queries, 1).steps
        return self if same else self.model_copy(update={"first_steps": steps})

    def stop(self, horizon: int) -> int:
        """Steps that every episode but the last one makes."""
        return min(self.stop_step or max(int(nearest(self.stop_fraction * horizon)), 1), horizon)

    def trial_steps(self, episode: Episode) -> int:
        """The steps of a trial, at most those of the early stop: a single episode, too, keeps its model there."""
        steps = super().trial_steps(episode)
        return min(steps, self.stop(episode.scheduled)) if self.has_negatives(episode.episode) else steps

    def episode_of(self, queries: int, episode: int) -> Episode:
        """The episode of this number, for this many queries.

        Only the last episode, and a first one with ``in_batch``, make all steps of their schedule.
        """
        if not self.has_negatives(episode):
            size = self.first_queries or self.queries_per_step
            steps = self.first_steps or self.steps_in(self.first_epochs, queries, size)
            return Episode(episode, queries, steps, size, 1, steps, "all")
        horizon, width = self.horizon(queries), self.passages_per_query(episode)
        steps = horizon if episode == self.episodes else self.stop(horizon)
        shared: Literal["none", "all"] = "all" if self.in_batch else "none"
        return Episode(episode, queries, steps, self.queries_per_step, width, horizon, shared)


def ance_tele(
    training: TrainingRun[AnceTele], base: Callable[[], BiEncoder], *, given: NegativePool | None = None
) -> Iterator[State]:
    """Run all episodes (ANCE-Tele, Section 4); afterwards the trained model stands in ``model/``.

    An episode mines with the last model of the episode before, whichever state is best on dev. Yields each state
    of the model while its embeddings are there: the pretrained model, the states that were measured between two
    steps, the model after every episode, and the final one. Everything that is published already is reused, so an
    interrupted experiment resumes.

    Parameters
    ----------
    base : makes the pretrained encoder; called whenever a fresh one is needed.
    given : negatives for the first episode, trained on instead of mined ones.
    """
    settings, layout, miner, pool = training.settings, training.experiment.layout, base(), None
    for episode in range(settings.start_episode, settings.episodes + 1):
        mined = settings.has_negatives(episode) and (given is None or pool is not None)
        mines = training.searches_for(mined=mined)
        state = training.state_of_episode(miner, episode, settings.episodes, mines=mines)
        yield state
        pool = episode_pool(training, state, pool, episode, given if pool is None else None)
        start = base() if settings.start == "scratch" else miner
        miner = stage_of(training, pool, start, episode).train()
        state.discard()
        model = training.last_model if episode == settings.episodes else layout.episode(episode).model
        yield from training.measured_states(episode, before=steps_made(model))
    yield training.state_of_episode(miner, settings.episodes + 1, settings.episodes)


def episode_pool(
    training: TrainingRun[AnceTele],
    state: Snapshot,
    previous: NegativePool | None,
    episode: int,
    given: NegativePool | None,
) -> NegativePool:
    """The training pool of an episode, mixed from what its miner finds and the previous pool (Eqs. 4-8).

    The pool does not depend on the number of later episodes, so its manifest names only the episodes so far.
    """
    data, depth = training.data, training.settings.depth
    inputs = {"collection": data.collection.digest, "miner": state.digest}
    if previous is not None and not training.settings.has_negatives(episode - 1):
        previous = None  # the episode before had no negatives that the model could forget
    if previous is not None:
        before = training.experiment.layout.episode(episode - 1)
        inputs["previous"] = read_manifest(before.negatives).digest

    def mine(contains: Contains | None) -> NegativePool:
        positives = current_positives(state, data, depth, contains)
        if not training.settings.has_negatives(episode):
            return empty_pool(positives, episode, data.collection.digest)
        if given is not None:
            return training.given_pool(given, positives, contains, episode=episode, by_answers=data.by_answers)
        told: dict[str, Any] = {"contains": contains, "guide": training.guide, "by_answers": data.by_answers}
        return mix_episode(training.settings, state, positives, previous, episode, **told)

    return training.pool(episode, inputs, mine, episodes=episode)


def mix_episode(
    settings: AnceTele,
    state: Snapshot,
    positives: Positives,
    previous: NegativePool | None,
    episode: int,
    contains: Contains | None,
    guide: Guide | None = None,
    *,
    by_answers: bool = False,
) -> NegativePool:
    """The mix of a state's query and lookahead candidates, momentum from the previous pool, and extra sources."""
    return mine_pool(
        state,
        positives,
        previous,
        sources=["query", *(["lookahead"] if settings.beta > 0 else []), *settings.extra],
        episode=episode,
        depth=settings.depth,
        size=2 * settings.count,
        count=settings.count,
        alpha=settings.alpha,
        beta=settings.beta,
        seed=settings.seed,
        mode=settings.momentum,
        dedup=settings.dedup,
        anchors=settings.lookahead,
        filters=settings.filters,
        guide=guide,
        contains=contains,
        by_answers=by_answers,
    )


def stage_of(training: TrainingRun[AnceTele], pool: NegativePool, start: BiEncoder, episode: int) -> MeasuredStage:
    """Training on an episode's pool, which makes the miner of the next episode, or the final model.

    Episodes before the last stop early, without shortening the schedule. The last one makes all steps, and its
    model at the early stop is kept too: if the finished experiment is extended, the next episode mines with that
    model.
    """
    settings, layout = training.settings, training.experiment.layout
    own = settings.has_negatives(episode)
    negatives = settings.passages_per_query(episode) - 1
    positions = trainable(pool, negatives)
    planned = settings.episode_of(len(positions), episode)
    batches = VisitBatches(
        pool.positives,
        lambda step: pool,
        queries_per_step=planned.queries_per_step,
        negatives=negatives,
        seed=settings.seed,
        positions=positions,
        episode=episode,
        rotate=settings.positives == "rotate",
        fresh=False,
        micro_queries=settings.micro_queries,
    )
    stop = settings.stop(planned.scheduled) if own else planned.steps
    models = {layout.episode(episode).model: stop}
    if episode == settings.episodes:
        models[training.last_model] = planned.steps
    loss, shared = group_loss("contrastive", scale=start.settings.scale), settings.in_batch or not own
    return stage_on_pool(
        training,
        planned,
        start,
        objective=training.objective(start, loss, in_batch=shared, pool=pool, taught=negatives > 0),
        batches=batches,
        models=models,
        began=layout.episode(settings.start_episode).runs if settings.start == "scratch" else None,
    )


def plan(
    settings: AnceTele, data: TrainingData, encoder: BiEncoder, *, given: NegativePool | None = None
) -> CostModel:
    """The work that the experiment would do; for an episode with given negatives nothing is mined."""
    numbers = range(settings.start_episode, settings.episodes + 1)
    episodes = [settings.episode_of(len(data.train), episode) for episode in numbers]
    pools = sum(map(settings.has_negatives, numbers))
    mined, new = pools - (given is not None), settings.count * (2 + len(settings.extra))
    entries = math.ceil(2 * settings.count / (1 - settings.alpha)) + settings.count * len(settings.extra)
    if settings.momentum == "accumulate":  # the first pool has one new part, the next one two, and so on
        entries = math.ceil(new * pools * (pools + 1) / 2 / len(episodes))
    anchors = len(data.train.passage_rows) / len(data.train) if settings.lookahead == "all" else 1.0
    work = work_of(
        settings,
        data,
        episodes,
        states=len(episodes) + 1,
        entries=entries,
        mined=len(episodes) if data.by_answers else mined,
        lists=1 + (settings.beta > 0) * anchors,
        words=mined * ("bm25" in settings.extra),
    )
    if work.examined and settings.lookahead == "all":  # examining searches only around the first positive
        work = replace(work, mined=mined * anchors)
    return replace(work, mined_pools=pools or len(episodes))  # an episode in the batch finds positives alone


ABOUT = "ANCE-Tele (Sun et al., 2022)"

RECIPE = Recipe(catalogue.ANCE_TELE, AnceTele, ance_tele, plan, about=ABOUT)

"""ANCE: one long run whose negatives are mined again and again from its own recent weights (Xiong et al., 2021).

The *trainer* publishes its model every ``refresh_every`` steps. The *inferencer* encodes the corpus with it,
searches the training queries and publishes a new version of the negatives, which the trainer follows. ``sync``
does both in one process, in turn; ``async`` and ``async-fixed`` do them in two, at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from hardneg.config import operational
from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.search_state import search_state
from hardneg.errors import SettingsError
from hardneg.experiment.course import Course
from hardneg.experiment.folder import Experiment
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.process.distributed import by_leader
from hardneg.recipes import catalogue
from hardneg.recipes.ance.refreshed_pool import RefreshedPool
from hardneg.recipes.ance.refreshing import (
    DONE,
    EPISODE,
    archived_state,
    delete_models,
    delete_old,
    is_mined,
    mined_states,
    mining_state,
    next_job,
    publish_version,
    runs_of,
    version_before,
)
from hardneg.recipes.ance.versions import Mode, longest_in_force
from hardneg.recipes.cost_model import CostModel, work_of
from hardneg.recipes.group_settings import GroupSettings
from hardneg.recipes.measured_states import DevEvaluator, MeasuredStage, judge_of, runs_path, weights_path
from hardneg.recipes.roles.peers import (
    INFERENCER,
    TRAINER,
    Supervisor,
    Wait,
    heartbeat_of,
    no_wait,
    publish_model,
    published_model,
    wait_for_peer,
)
from hardneg.recipes.settings import Episode, Recipe
from hardneg.recipes.training_run import TrainingRun
from hardneg.shown import as_set
from hardneg.training.batches import VisitBatches
from hardneg.training.objectives import LossName, group_loss
from hardneg.training.optim import Schedule, cyclical
from hardneg.training.stage import steps_made

EXPORTS = 2  # published models that exist at once if no more are published while a version is made
NEEDED = 2  # versions that resuming or the results may need besides those that are kept


class Ance(GroupSettings):
    """Settings of the recipe; the presets hold the paper's values."""

    steps_instead: ClassVar[Mapping[str, str]] = {"refresh_every": "epochs"}

    mode: Mode = "sync"
    refresh_every: int = Field(10_000, ge=1)  # m
    refreshes: int = Field(10, ge=0)  # (refreshes + 1) * m steps are made
    epochs: float | None = Field(None, gt=0)  # m follows from them, within min_steps and max_steps
    # Steps over which the rate decays. None: as many as are made; with cyclical as many as there are training
    # queries, because ANCE's code uses the number of lines of its training data (drivers/run_ann_dpr.py).
    horizon: int | None = Field(None, ge=1)
    schedule: Literal["single", "cyclical"] = "single"  # cyclical: begins anew where a version takes effect
    negatives_per_query: int = Field(1, ge=1)
    loss: LossName = "pairwise_nll"
    margin: float = Field(1.0, gt=0)  # of hinge
    in_batch: bool = False
    positives: Literal["rotate", "first"] = "rotate"
    max_staleness: int | None = Field(None, ge=1)  # most steps between mining and use (async)
    stale: Literal["wait", "stop"] = "wait"  # what to do beyond it
    keep_versions: int | None = operational(None, ge=1)  # besides those that resuming needs; None: all

    @property
    def roles(self) -> Sequence[str]:
        """Trainer and inferencer; empty if one process does the work of both."""
        return () if self.mode == "sync" else (TRAINER, INFERENCER)

    @property
    def course(self) -> Course:
        """One episode, whose negatives are mined again and again."""
        return Course(mines="refreshes")

    @property
    def may_grow(self) -> tuple[str, ...]:
        """More refreshes extend an experiment of which nothing else depends on how many there are."""
        return () if self.may_not_grow else ("refreshes",)

    @property
    def may_not_grow(self) -> Mapping[str, str]:
        """Why ``refreshes`` may not grow, if something else depends on how many there are."""
        why = ""
        if isinstance(self.measure_every, float):
            why = f"measure_every = {as_set(self.measure_every)} is a share of all steps"
        elif self.keep == "best":
            why = "with keep = best, training cannot go on from the state that it chose"
        elif not self.horizon and self.schedule == "single":
            why = "without horizon, the learning rate falls to 0 at the last step"
        return {"refreshes": why} if why else {}

    @property
    def steps(self) -> int:
        """Steps that are made."""
        return (self.refreshes + 1) * self.refresh_every

    @property
    def kept_steps(self) -> range:
        """The steps of the published models whose weights are kept, because one may be the best on dev."""
        return range(self.refresh_every, self.steps if self.keep == "best" else 0, self.refresh_every)

    @property
    def longest_cycle(self) -> int:
        """The most steps that a version is in force by the schedule; in ``async`` it may be longer."""
        return longest_in_force(self.mode, self.refresh_every)

    def episode_of(self, queries: int) -> Episode:
        """The one episode of training on so many queries; all versions belong to it."""
        width = 1 + self.negatives_per_query
        shared: Literal["none", "all"] = "all" if self.in_batch else "none"
        return Episode(EPISODE, queries, self.steps, self.queries_per_step, width, shared=shared)

    def for_data(self, queries: int) -> Ance:
        """The settings with ``epochs`` turned into steps between refreshes; refuses steps that do not fit."""
        if self.epochs is None:
            return self
        steps = self.steps_of_part(self.epochs, queries, self.refreshes + 1)
        known = self.model_copy(update={"refresh_every": steps})
        known.check_steps()
        return known

    def check(self) -> None:
        """Refuse also a staleness that cannot occur, settings without effect, and steps that do not fit."""
        super().check()
        self.check_margin(self.loss)
        if self.max_staleness is None:
            self.check_idle("without max_staleness, so that nothing is too old", "stale")
        self.check_draws("negatives_per_query", self.negatives_per_query, ("depth", "top"))
        if not self.in_batch:
            self.check_masked("with in_batch = false")
        if self.epochs is None:  # else for_data checks the steps, because it knows them
            self.check_bounded()
            self.check_steps()
        if self.measure_every and self.mode != "sync":
            what = f"measure_every = {self.measure_every} with mode = {self.mode}: it measures every version"
            raise SettingsError("BAD_SETTING", what, "set measure_every = none, or mode = sync")
        if self.max_staleness is not None and self.mode != "async":
            what = f"max_staleness = {self.max_staleness} with mode = {self.mode}, which has a schedule"
            raise SettingsError("BAD_SETTING", what, "leave it out, or use mode = async")

    def check_steps(self) -> None:
        """Refuse steps that do not fit the staleness, and a schedule that ends before training does."""
        if self.max_staleness is not None and self.max_staleness < self.refresh_every:
            what = f"max_staleness = {self.max_staleness} is less than refresh_every = {self.refresh_every}"
            raise SettingsError("BAD_SETTING", what, "models are published only so often: allow at least as many")
        if self.schedule == "cyclical" and self.horizon is not None and self.horizon < self.longest_cycle:
            what = f"horizon = {self.horizon} ends before a cycle of {self.longest_cycle} steps does"
            raise SettingsError("BAD_SETTING", what, "give a longer horizon, or refresh more often")
        if self.horizon is not None and self.horizon < self.steps and self.schedule == "single":
            what = (
                f"horizon = {self.horizon} ends before the {self.steps} steps do: the rate of the rest would be 0"
            )
            raise SettingsError("BAD_SETTING", what, "give a longer horizon, or fewer refreshes")


def ance(
    training: TrainingRun[Ance], base: Callable[[], BiEncoder], *, working: Supervisor | None = None
) -> Iterator[State]:
    """Train with refreshed negatives (ANCE, Section 4). Everything that is published already is reused.

    Yields the state that mines each version of the negatives, and the final state.

    Parameters
    ----------
    working : in the asynchronous modes, the supervisor of the two processes, which run :func:`train` and
        :func:`infer`.
    """
    settings, experiment = training.settings, training.experiment
    if working is None:
        yield from alternate(training, base)
    else:
        yield from mined_states(
            experiment,
            working,
            mode=settings.mode,
            every=settings.refresh_every,
            steps=settings.steps,
            keep=settings.keep_versions,
            weights=weights_of(training),
            asked=settings.examine,
        )
    last = training.last_model
    encoder, made = load_encoder(str(last), device=base().device), steps_made(last)
    used = version_before(settings.mode, experiment, made, settings.refresh_every)
    yield training.final_state(encoder, made, used)


def alternate(training: TrainingRun[Ance], base: Callable[[], BiEncoder]) -> Iterator[State]:
    """Mine and train in turn."""
    settings, experiment = training.settings, training.experiment
    encoder, stage, end = base(), None, settings.steps
    for version in range(settings.refreshes + 1):
        step = version * settings.refresh_every
        if step >= end:  # patience ended it
            break
        used = version_before(settings.mode, experiment, step, settings.refresh_every)
        weights = weights_of(training).get(step)
        if by_leader(is_mined, experiment, version):
            old = archived_state(experiment, version, step, used, settings.examine)
            old.weights = weights
            yield old
        else:
            miner = encoder if step == 0 else published_model(experiment, step, encoder.device)
            state = mining_state(training, miner, version, step, used)
            state.weights = weights
            yield state
            publish_together(training, state, version)
        by_leader(delete_old, experiment, used=used, keep=settings.keep_versions)
        stage = stage or stage_of(training, encoder, no_wait)  # now negatives are there
        train(stage, experiment, step + settings.refresh_every, settings.steps)
        if stage.finished:
            end = steps_made(training.last_model)
        until = min(step + settings.refresh_every, end)
        yield from training.measured_states(EPISODE, after=step, before=until)


def weights_of(training: TrainingRun[Ance]) -> dict[int, Path]:
    """The folders of the weights that are kept, by step."""
    return {step: weights_path(training.experiment, EPISODE, step) for step in training.settings.kept_steps}


def publish_together(training: TrainingRun[Ance], state: Snapshot, version: int) -> None:
    """Publish the version that a state mines, with all processes searching; then delete the state's embeddings."""
    if training.frozen is not None:
        training.frozen.open_together()
    by_leader(publish_version, training, state, version)
    state.discard()


# ---------------------------------------------------------------- the trainer


def train(stage: MeasuredStage, experiment: Experiment, until: int, steps: int) -> None:
    """Train until ``until`` of all ``steps`` are made, which is the next refresh; then publish the model."""
    stage.advance(until)
    if not stage.finished and stage.made == until < steps:
        publish_model(stage.encoder, experiment, until)


def stage_of(training: TrainingRun[Ance], encoder: BiEncoder, wait: Wait) -> MeasuredStage:
    """The stage that trains all steps, each on the negatives in force.

    Parameters
    ----------
    wait : waits for a version.
    """
    settings, data = training.settings, training.data
    pool = RefreshedPool(
        training,
        settings.mode,
        every=settings.refresh_every,
        wait=wait,
        max_staleness=settings.max_staleness,
        stop_when_stale=settings.stale == "stop",
    )
    loss = group_loss(settings.loss, scale=encoder.settings.scale, margin=settings.margin)
    # In sync mode the evaluator on dev keeps the best weights, and no others.
    kept = {} if settings.mode == "sync" else {path: step for step, path in weights_of(training).items()}
    retriever = training.trainee(
        encoder,
        training.objective(encoder, loss, in_batch=settings.in_batch),
        VisitBatches(
            data.train,
            pool,
            queries_per_step=settings.queries_per_step,
            negatives=settings.negatives_per_query,
            seed=settings.seed,
            rotate=settings.positives == "rotate",
            micro_queries=settings.micro_queries,
            varying=data.by_answers and settings.mask_known_positives,
        ),
        schedule_of(settings, len(data.train), pool.first_step),
        models={training.last_model: settings.episode_of(len(data.train)).steps},
        intermediate=kept,
        facts=pool.facts,
    )
    dev = dev_evaluator_of(training) if settings.mode == "sync" else None
    return MeasuredStage(training, retriever, dev, episode=EPISODE, inputs=training.inputs)


def dev_evaluator_of(training: TrainingRun[Ance]) -> DevEvaluator:
    """The evaluator on dev; if the best state is kept, it also measures the states that mine at refreshes."""
    settings, every = training.settings, training.settings.refresh_every

    def runs(experiment: Experiment, episode: int, step: int) -> Path:
        behind = runs_of(experiment, step // every)
        return runs_path(experiment, episode, step) if step % every else behind

    return DevEvaluator(
        training,
        settings.episode_of(len(training.data.train)),
        start=runs_of(training.experiment, 0),
        besides=settings.kept_steps,
        runs=runs,
        lasting=lambda step: step % every == 0,
    )


def be_trainer(training: TrainingRun[Ance], base: Callable[[], BiEncoder], patience: float) -> None:
    """Train as the trainer does; an inferencer without a sign of life for ``patience`` seconds is given up."""
    settings, experiment = training.settings, training.experiment
    stage = stage_of(training, base(), wait_for_peer(heartbeat_of(experiment, INFERENCER), patience))
    for until in range(settings.refresh_every, settings.steps + 1, settings.refresh_every):
        train(stage, experiment, until, settings.steps)


def schedule_of(settings: Ance, queries: int, first_step: Callable[[int], int]) -> Schedule:
    """The learning rate of every step.

    Parameters
    ----------
    queries : the number of training queries.
    first_step : step -> the step at which the version in force took effect.
    """
    if settings.schedule == "single":
        return settings.schedule_over(settings.horizon or settings.steps)
    horizon = settings.horizon or max(queries, settings.longest_cycle)  # the rate must not reach 0 within a cycle
    return cyclical(settings.schedule_over(horizon, made=settings.longest_cycle), first_step)


# ---------------------------------------------------------------- the inferencer


def infer(training: TrainingRun[Ance], base: Callable[[], BiEncoder], patience: float) -> None:
    """Mine as the inferencer does: a version with each model that the mode needs, until training is over.

    A trainer without a sign of life for ``patience`` seconds is given up.
    """
    settings, data, experiment = training.settings, training.data, training.experiment
    judge = judge_of(settings, data, experiment.cache)
    wait = wait_for_peer(heartbeat_of(experiment, TRAINER), patience)
    todo = partial(next_job, settings.mode, experiment, every=settings.refresh_every, refreshes=settings.refreshes)
    while (job := by_leader(wait, todo, "a model to mine with")) != DONE:
        version, step = job
        by_leader(delete_models, experiment, before=step)  # nobody else may look after them
        miner = base() if step == 0 else published_model(experiment, step, base().device)
        state = mining_state(training, miner, version, step)
        search_state(state, judge, depth=settings.depth)  # before the embeddings are deleted
        publish_together(training, state, version)


# ---------------------------------------------------------------- the plan


def plan(settings: Ance, data: TrainingData, encoder: BiEncoder) -> CostModel:
    """The work that the experiment would do."""
    one = settings.episode_of(len(data.train))
    # In async-fixed, version 0 serves as version 1, which is not mined.
    versions = settings.refreshes + 1 - (settings.mode == "async-fixed" and settings.refreshes > 0)
    work = work_of(
        settings,
        data,
        [one],
        states=versions + 1,
        entries=settings.depth,
        mined=versions,
        both=sum(step % settings.refresh_every == 0 for step in settings.measured_steps(one)),
    )
    kept = versions if settings.keep_versions is None else min(versions, settings.keep_versions + NEEDED)
    turn = ("measure",) if settings.roles else ("measure", "mine", "train")  # roles are other processes
    order = (*(turn * versions), "measure")
    models = min(settings.refreshes, EXPORTS) + (len(settings.kept_steps) if settings.roles else 0)
    return replace(work, pools=kept, models=models, order=order)


RECIPE = Recipe(
    catalogue.ANCE,
    Ance,
    ance,
    plan,
    about="ANCE (Xiong et al., 2021)",
    roles={TRAINER: be_trainer, INFERENCER: infer},
)

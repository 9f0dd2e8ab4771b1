"""Warm-up and the baselines: training on negatives that no trained model chose.

The baselines are those of ANCE (Xiong et al., 2021, Section 5) and of STAR (Zhan et al., 2021, Section 7.2.2).
A *mixture* names the sources of a query's negatives, joined by ``+``: ``in_batch`` (the other passages of the
step), ``nce`` (only the hardest of those), ``random`` (of the corpus), ``bm25`` and ``file`` (a given pool). Mined
sources share a query's draws equally: ``bm25+random`` is 1:1, ``bm25+in_batch`` is DPR. Several mixtures are
trained one after the other: X -> Y. ANCE's tables call ``in_batch`` Rand; STAR's tables call ``random`` Rand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from hardneg.data.training_data import TrainingData
from hardneg.errors import SettingsError
from hardneg.experiment.course import Course, course_of_mixtures
from hardneg.experiment.snapshot import State
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.mining import Corpus
from hardneg.negatives.mix import balanced, union
from hardneg.negatives.pool import NegativePool, empty_pool
from hardneg.recipes import catalogue
from hardneg.recipes.cost_model import CostModel, work_of
from hardneg.recipes.group_settings import BOUNDS, TrialSettings
from hardneg.recipes.measured_states import MeasuredStage
from hardneg.recipes.pool_stage import stage_on_pool
from hardneg.recipes.settings import Episode, Recipe, per_episode
from hardneg.recipes.training_run import TrainingRun
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.objectives import LossName, group_loss
from hardneg.training.stage import steps_made

MINED, SHARED = ("bm25", "random", "file"), ("in_batch", "nce")


class Warmup(TrialSettings):
    """Settings of the recipe; the presets hold the papers' values."""

    given_alone: ClassVar[str] = "mixtures = file+in_batch"

    mixtures: list[str] = Field(["bm25"], min_length=1)  # one after the other
    negatives: list[PositiveInt] = Field([1], min_length=1)  # mined ones of a query and step; the last repeats
    count: int = Field(100, ge=1)  # negatives of each mined source that the pool keeps for a query
    loss: LossName | Literal["auto"] = "auto"  # contrastive with in_batch and nce, pairwise_nll otherwise
    margin: float = Field(1.0, gt=0)  # of hinge
    epochs: float = Field(3, gt=0)
    steps: list[PositiveInt] | None = None  # of each mixture's schedule; wins over epochs
    stop_step: int | None = Field(None, ge=1)  # ends a mixture early, without shortening its schedule
    positives: Literal["rotate", "first"] = "rotate"

    def check(self) -> None:
        """Refuse also mixtures of unknown or contradictory sources, or without a negative."""
        super().check()
        for episode, mixture in enumerate(self.mixtures, 1):
            sources_of(mixture)
            if not self.mined(episode):
                self.check_shared(f"the mixture {mixture}", self.queries_per_step)
            self.check_drawn(episode)
        if not any(map(self.drawn, range(1, len(self.mixtures) + 1))):
            named = f"mixtures = {', '.join(self.mixtures)}"
            self.check_taught(named)
            self.check_idle(f"with {named}, where nothing is mined", "negatives", "count", *BOUNDS, "filter_by")
        if not any(map(shares, self.mixtures)):
            self.check_masked(f"with mixtures = {', '.join(self.mixtures)}, which have no in-batch negatives")
        self.check_margin(self.loss)
        if self.bounds and self.filter_by == "miner":
            what = f"{', '.join(self.bounds)} on negatives that no model scores"
            them = "it" if len(self.bounds) == 1 else "them"
            fix = f"give --filter-by M, set filter_by = start, or leave {them} out"
            raise SettingsError("NO_MARGIN", what, fix)

    def check_drawn(self, episode: int) -> None:
        """Refuse to draw more negatives in an episode than its sources give; a given pool may have any number."""
        sources = self.mined(episode)
        if sources and "file" not in sources:
            bounds = ("count", "top", *(["depth"] if "bm25" in sources else []))
            self.check_draws("negatives", self.drawn(episode), bounds, len(sources))

    def check_pool(self, given: bool) -> None:
        """Refuse also given negatives if no mixture uses them, and a mixture with ``file`` if none are given."""
        super().check_pool(given)
        takes = any("file" in sources_of(mixture) for mixture in self.mixtures)
        if takes and not given:
            raise SettingsError("NO_POOL", "source 'file' has no negatives", "give --pool")
        if given and not takes:
            what = f"negatives are given, but no mixture takes them ({', '.join(self.mixtures)})"
            raise SettingsError("BAD_SETTING", what, "set mixtures = file+in_batch, or leave the negatives out")

    def horizon(self, queries: int, episode: int) -> int:
        """Steps of a mixture's schedule."""
        if self.steps:
            return per_episode(self.steps, episode)
        return self.steps_in(self.epochs, queries)

    def episode_of(self, queries: int, episode: int) -> Episode:
        """The episode that trains on a mixture, for so many queries."""
        horizon = self.horizon(queries, episode)
        steps = min(self.stop_step or horizon, horizon)
        shared = shared_in(self.mixtures[episode - 1])
        return Episode(episode, queries, steps, self.queries_per_step, 1 + self.drawn(episode), horizon, shared)

    @property
    def course(self) -> Course:
        """An episode for each mixture, whose number names of states have if there are several."""
        return course_of_mixtures(self.mixtures)

    def mined(self, episode: int) -> list[str]:
        """The sources of an episode that are mined beforehand."""
        return [source for source in sources_of(self.mixtures[episode - 1]) if source in MINED]

    @property
    def unscored(self) -> bool:
        """Whether training draws negatives besides a given pool's: a mixture mines from more than ``file``."""
        return any(self.mined(episode) not in ([], ["file"]) for episode in range(1, len(self.mixtures) + 1))

    def drawn(self, episode: int) -> int:
        """The number of mined negatives that a query has in each step."""
        return per_episode(self.negatives, episode) if self.mined(episode) else 0


def sources_of(mixture: str) -> list[str]:
    """The sources of a mixture; raises :class:`SettingsError` for an unknown or repeated source."""
    sources = [source.strip() for source in mixture.split("+")]
    known = (*MINED, *SHARED)
    if unknown := [source for source in sources if source not in known]:
        what = f"mixtures: {unknown[0]!r:.40} is no source"
        raise SettingsError("UNKNOWN_SOURCE", what, f"join any of {', '.join(known)} by +")
    if len(set(sources)) < len(sources) or set(SHARED) <= set(sources):
        what = f"mixtures: '{mixture}' names a source twice"
        raise SettingsError("REPEATED_SOURCE", what, "name each once; nce is the hardest of in_batch")
    return sources


def shared_in(mixture: str) -> Literal["none", "all", "hardest"]:
    """Which passages of a step's other queries are negatives of a query in a mixture."""
    sources = sources_of(mixture)
    return "hardest" if "nce" in sources else "all" if "in_batch" in sources else "none"


def shares(mixture: str) -> bool:
    """Whether passages of a step's other queries are negatives in a mixture."""
    return shared_in(mixture) != "none"


def warmup(
    training: TrainingRun[Warmup], base: Callable[[], BiEncoder], *, given: NegativePool | None = None
) -> Iterator[State]:
    """Train on every mixture in turn, each from the model of the one before.

    Yields each state of the model while its embeddings are there. What is published already is reused.

    Parameters
    ----------
    given : the negatives of source ``file``.
    """
    settings, encoder, mixtures = training.settings, base(), len(training.settings.mixtures)
    for episode in range(1, mixtures + 1):
        state = training.state_of_episode(encoder, episode, mixtures, mines=False)
        yield state
        state.discard()
        inputs = training.inputs | {"sources": "+".join(settings.mined(episode))}
        pool = training.pool(episode, inputs, partial(mixture_pool, training, episode, given))
        encoder = stage_of(training, pool, encoder, episode).train()
        made = steps_made(training.experiment.layout.episode(episode).model)
        yield from training.measured_states(episode, before=made)
    yield training.state_of_episode(encoder, mixtures + 1, mixtures)


def mixture_pool(
    training: TrainingRun[Warmup], episode: int, given: NegativePool | None, contains: Contains | None
) -> NegativePool:
    """All negatives of the mined sources of an episode; empty if the mixture has only in-batch negatives."""
    settings, collection = training.settings, training.data.collection
    sources, corpus = settings.mined(episode), Corpus(collection, training.experiment.cache)
    positives = current_positives(corpus, training.data, settings.depth, contains)
    pools = []
    if "file" in sources:
        assert given is not None  # see check_pool
        pools.append(training.given_pool(given, positives, contains, episode=episode))
    pools += [
        training.mined(corpus, positives, contains, source, episode=episode, count=settings.count)
        for source in sources
        if source != "file"
    ]
    return union([empty_pool(positives, episode, collection.digest), *balanced(pools, settings.seed)])


def stage_of(training: TrainingRun[Warmup], pool: NegativePool, start: BiEncoder, episode: int) -> MeasuredStage:
    """The stage that trains on one mixture."""
    settings, layout = training.settings, training.experiment.layout
    mixture = settings.mixtures[episode - 1]
    shared = shares(mixture)
    name: LossName = "contrastive" if shared else "pairwise_nll"
    loss = group_loss(
        name if settings.loss == "auto" else settings.loss,
        scale=start.settings.scale,
        margin=settings.margin,
        only_hardest="nce" in sources_of(mixture),
        own=settings.drawn(episode),
    )
    positions = trainable(pool, settings.drawn(episode))
    planned = settings.episode_of(len(positions), episode)
    models = {layout.episode(episode).model: planned.steps}
    if episode == len(settings.mixtures):
        models[training.last_model] = planned.steps
    batches = VisitBatches(
        training.data.train,
        lambda step: pool,
        queries_per_step=settings.queries_per_step,
        negatives=settings.drawn(episode),
        seed=settings.seed,
        positions=positions,
        episode=episode,
        rotate=settings.positives == "rotate",
        micro_queries=settings.micro_queries,
    )
    taught = settings.drawn(episode) > 0
    objective = training.objective(start, loss, in_batch=shared, pool=pool, taught=taught)
    return stage_on_pool(training, planned, start, objective=objective, batches=batches, models=models)


def plan(
    settings: Warmup, data: TrainingData, encoder: BiEncoder, *, given: NegativePool | None = None
) -> CostModel:
    """The work that the experiment would do; the models search nothing, whether or not negatives are given."""
    numbers = range(1, len(settings.mixtures) + 1)
    words = sum(("bm25" in settings.mined(episode)) + data.by_answers for episode in numbers)
    episodes = [settings.episode_of(len(data.train), episode) for episode in numbers]
    return work_of(
        settings,
        data,
        episodes,
        states=len(episodes) + 1,
        entries=settings.count * max(len(settings.mined(episode)) for episode in numbers),
        words=words,
    )


ABOUT = "warm-up"

RECIPE = Recipe(catalogue.WARMUP, Warmup, warmup, plan, about=ABOUT)

"""A ranker: a cross-encoder, trained on groups of one positive and n negatives, measured by what it re-ranks.

The loss is the cross entropy over a query's group (AR2; Zhang et al., ICLR 2022, Eq. 2), or the binary cross
entropy of each pair, in which the positive weighs as much as all its negatives together (AR2, Eq. 3). Negatives
come from a given pool, from BM25, from a given retriever, or at random from the corpus. Every state re-ranks the
first hits of the same runs, those of BM25 or of the retriever. These runs are also measured by themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.reranked import RankedState, Reranker
from hardneg.errors import SettingsError
from hardneg.experiment.course import Course
from hardneg.experiment.names import RETRIEVED, UNTRAINED, Kind, reads_as_trained
from hardneg.experiment.snapshot import ArchivedState, Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder, RankerSettings
from hardneg.models.rankers import load_ranker, new_ranker, open_ranker, save_ranker
from hardneg.models.recomputing import check_recomputing
from hardneg.models.reinit import reinitialize
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives, with_pool_positives
from hardneg.negatives.mining import Corpus
from hardneg.negatives.mix import balanced, union
from hardneg.negatives.pool import NegativePool, empty_pool
from hardneg.process.distributed import by_leader
from hardneg.process.progress import say
from hardneg.process.stages import Amount, Planned
from hardneg.recipes import catalogue
from hardneg.recipes.cost_model import CostModel, judged_queries, work_of
from hardneg.recipes.group_settings import MiningSettings
from hardneg.recipes.measured_states import DevEvaluator, MeasuredStage
from hardneg.recipes.settings import Episode, Recipe
from hardneg.recipes.stages import FIRST, LAST, MEASURE, MINE, RANKING
from hardneg.recipes.starting_ranker import as_long_as_it_takes
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Run
from hardneg.search.bm25 import bm25_run
from hardneg.search.rerank import RankerScorer
from hardneg.storage.artifacts import digest_json, read_manifest
from hardneg.training.batches import VisitBatches, trainable
from hardneg.training.ranker_objectives import RankerLossName, ranker_loss, ranker_objective
from hardneg.training.stage import steps_made

RANKER = "ranker"  # the model's name in metrics and checkpoints
EPISODE = 1
FIRST_HITS = "first"  # the source that is the given pool, or else the model that ranks first
States = RankedState | Snapshot | ArchivedState


class RankerTraining(MiningSettings):
    """Settings of the recipe."""

    refused: ClassVar[tuple[str, ...]] = (  # those of encoders
        "towers",
        "pooling",
        "head",
        "normalize",
        "dim",
        "prompts",
        "search_query_length",
        "train_passage_length",
        "dev_passages",
    )

    sources: list[Literal["first", "bm25", "query", "random"]] = Field([])  # none: first
    negatives_per_query: int = Field(7, ge=1)
    count: int = Field(100, ge=1)  # negatives of each source that the pool keeps for a query
    loss: RankerLossName = "cross_entropy"
    max_length: int | None = Field(None, ge=5, le=8192)  # tokens of a pair
    epochs: float = Field(1, gt=0)
    steps: PositiveInt | None = None  # of the schedule; wins over epochs
    stop_step: int | None = Field(None, ge=1)  # ends training early, without shortening the schedule
    positives: Literal["rotate", "first"] = "rotate"
    filter_by: Literal["miner", "given"] = "miner"  # not start: a new ranker's head is random
    rerank: int = Field(100, ge=1)  # hits of a dev or test query that are re-ranked to measure a state

    @property
    def course(self) -> Course:
        """One episode that trains a ranker alone."""
        return Course(trains="ranker")

    def check(self) -> None:
        """Refuse also settings that no ranker has."""
        super().check()
        if given := [name for name in self.refused if getattr(self, name) is not None]:
            what = f"{given[0]} = {getattr(self, given[0])}: a ranker has no such setting"
            raise SettingsError("BAD_SETTING", what, "leave it out")
        self.check_masked("for a ranker, which has no in-batch negatives")
        self.check_kept("for a ranker, of whose training neither is kept", "bm25_lists", "pair_margins")
        if len(set(self.sources)) < len(self.sources):
            what = f"a source stands twice in {', '.join(self.sources)}"
            raise SettingsError("REPEATED_SOURCE", what, "name each once")

    def named(self, *, retriever: bool, pool: bool) -> list[str]:
        """The sources by their own names, each once, given whether a retriever ranks first, else BM25 does.

        ``first`` is left out if a pool is given in its place.
        """
        first = "query" if retriever else "bm25"
        named: Sequence[str] = self.sources or [FIRST_HITS]
        known = [one for one in named if not (pool and one == FIRST_HITS)]
        return list(dict.fromkeys(first if one == FIRST_HITS else one for one in known))

    def check_first(self, *, retriever: bool, pool: bool) -> None:
        """Refuse sources that need a retriever if none is given, and bounds on scores that nothing gives.

        Raises
        ------
        SettingsError : as mining would raise it later, when a state is measured already.
        """
        sources = self.named(retriever=retriever, pool=pool)
        if "query" in sources and not retriever:
            what = "sources have query, but no retriever is given to mine with"
            raise SettingsError("NO_MODEL", what, "give --retriever, or sources = bm25")
        if not pool:
            bounds = ("count", "top", *(["depth"] if "random" not in sources else []))
            self.check_draws("negatives_per_query", self.negatives_per_query, bounds, len(sources))
        if self.filter_by != "miner" or not self.bounds:
            return
        if "random" in sources and not retriever:
            what = f"{', '.join(self.bounds)} on random negatives, which no model scores"
            raise SettingsError("NO_MARGIN", what, "leave random out, or give --filter-by M or --retriever M")
        if "bm25" in sources and (margins := [name for name in self.bounds if name.endswith("_margin")]):
            what = f"{', '.join(margins)} on negatives of BM25, which has no margin to the positive's score"
            raise SettingsError("NO_MARGIN", what, "set max_score or top instead, or give --filter-by M")

    def idle(self, *, retriever: bool, pool: bool) -> list[str]:
        """Lines on settings that the given retriever and pool, or their absence, leave without effect."""
        sources, found = self.named(retriever=retriever, pool=pool), []
        from_depth = {*sources} - {"random"} or self.labels == "answers"  # by answers, a search finds positives
        idle = ["count"] if not sources else []
        idle += [] if from_depth else ["depth"]
        if names := ", ".join(filter(self.is_given, idle)):
            why = "random negatives have no ranks" if sources else "the negatives of a pool alone are trained on"
            found.append(f"no effect of {names}: {why}")
        if self.is_given("store_dtype") and not retriever and self.filter_by != "given":
            found.append("no effect of store_dtype: without a retriever nothing is embedded")
        return found

    def horizon(self, queries: int) -> int:
        """Steps of the schedule."""
        return self.steps or self.steps_in(self.epochs, queries)

    def episode_of(self, queries: int) -> Episode:
        """The one episode of training on so many queries."""
        horizon = self.horizon(queries)
        steps = min(self.stop_step or horizon, horizon)
        return Episode(EPISODE, queries, steps, self.queries_per_step, 1 + self.negatives_per_query, horizon)

    @property
    def ranker_overrides(self) -> dict[str, Any]:
        """The settings of the ranker that replace its own."""
        return {name: value for name in RankerSettings.names() if (value := getattr(self, name, None)) is not None}


def fresh_ranker(source: ModelSource, settings: RankerTraining, tell: Callable[[str], None] = say) -> CrossEncoder:
    """A fresh ranker as training starts with it: the one that is given, or an encoder with a new head.

    The head is drawn from the seed of training; ``tell`` takes a line that says so.

    Raises
    ------
    SettingsError : two models are given, or an error of :func:`~hardneg.models.rankers.load_ranker`.
    """
    if source.passage_model is not None:
        what = "a second model is given for the passages, but a ranker reads both sides in one"
        raise SettingsError("TWO_MODELS", what, "leave the second model out")
    try:
        given = partial(open_ranker, dataclasses.replace(source, ranker=source.model))
        ranker = as_long_as_it_takes(given, settings.ranker_overrides, tell)
    except SettingsError as fault:
        if fault.code != "NOT_A_RANKER":
            raise
        fresh = partial(new_ranker, source, seed=settings.seed, tell=tell)
        ranker = as_long_as_it_takes(fresh, settings.ranker_overrides, tell)
    if settings.recompute_layers:
        check_recomputing(ranker)
    if settings.reinit_layers:
        reinitialize(ranker.tower.transformer, settings.reinit_layers, seed=settings.reinit_seed)
    return ranker


# ---------------------------------------------------------------- what is re-ranked


class FirstRuns:
    """The runs that every state of a ranker re-ranks: a retriever's over the collection, or BM25's.

    Parameters
    ----------
    retriever : the retriever that ranks first; None: BM25 does.
    """

    def __init__(self, training: TrainingRun[RankerTraining], retriever: BiEncoder | None) -> None:
        self.training, self.kept = training, dict[str, Run]()
        self.state: Snapshot | None = None
        if retriever is not None:
            runs = training.experiment.layout.runs_of(RETRIEVED)
            self.state = training.state(retriever, RETRIEVED, runs, kind="retriever")
            self.state.asked, self.state.sparing = "judged", True

    def run(self, split: str, depth: int) -> Run:
        """The run of a split (dev or test), at least ``depth`` hits deep."""
        depth = max(depth, self.training.settings.rerank)
        if split not in self.kept:
            rows = self.training.data.judged[split].query_rows
            if self.state is None:
                data, experiment = self.training.data, self.training.experiment
                self.kept[split] = by_leader(bm25_run, data.collection, rows, depth, experiment.cache)
            else:
                self.kept[split] = self.state.search(split, rows, depth, as_trained=reads_as_trained(split))
        return self.kept[split]


def ranked_state(
    training: TrainingRun[RankerTraining],
    first: FirstRuns,
    ranker: CrossEncoder,
    name: str,
    runs: Path,
    **facts: Any,
) -> RankedState:
    """A state of the ranker over these first runs; ``facts`` as :class:`RankedState` takes them."""
    settings, data = training.settings, training.data
    pairs = pair_store(ranker.tower, ranker.template, data.collection, training.experiment.cache)
    how: Any = {"budget": settings.token_budget, "precision": settings.precision}
    scorer = RankerScorer(ranker, pairs, collection=data.collection, **how)
    digest = digest_json([ranker.digest(), settings.precision])
    reranker = Reranker(scorer, digest, settings.rerank, training.experiment.timed)
    like = partial(ranked_state, training, first)
    return RankedState(ranker, reranker, first.run, name, runs, like=like, **facts)


# ---------------------------------------------------------------- training


def train_ranker(
    training: TrainingRun[RankerTraining],
    base: Callable[[], CrossEncoder],
    *,
    given: NegativePool | None = None,
    retriever: BiEncoder | None = None,
) -> Iterator[States]:
    """Train on groups of a pool; yields the retriever, if there is one, and then each state of the ranker.

    What is published already is reused.

    Parameters
    ----------
    given : a pool to train on, in place of the source ``first``; other sources are joined to it.
    retriever : ranks first, and mines ``query`` negatives; None: BM25 ranks first.
    """
    settings, layout = training.settings, training.experiment.layout
    first = FirstRuns(training, retriever)
    if first.state is not None:
        yield first.state
    ranker = base()
    of_state = partial(ranked_state, training, first)
    yield of_state(ranker, UNTRAINED, layout.episode(EPISODE).runs, kind="untrained")
    sources = settings.named(retriever=first.state is not None, pool=given is not None)
    of = {"sources": "+".join(sources), **({} if first.state is None else {"retriever": first.state.digest})}
    pool = training.pool(EPISODE, training.inputs | of, partial(ranker_pool, training, first, given, sources))
    stage_of(training, pool, ranker, of_state).advance()
    yield from training.measured_states(EPISODE, before=steps_made(layout.episode(EPISODE).model))
    last = load_ranker(str(training.last_model), device=ranker.device)
    name: Kind = settings.last_state
    facts = {"weights": training.last_model, "kind": name, "episode": EPISODE}
    yield of_state(last, name, layout.runs_of(name), pool=layout.episode(EPISODE).negatives, **facts)


def ranker_pool(
    training: TrainingRun[RankerTraining],
    first: FirstRuns,
    given: NegativePool | None,
    sources: Sequence[str],
    contains: Contains | None,
) -> NegativePool:
    """All negatives that may be drawn: those of a given pool, and those that are mined, as many of each source."""
    settings, collection = training.settings, training.data.collection
    corpus = first.state or Corpus(collection, training.experiment.cache)
    positives = current_positives(corpus, training.data, settings.depth, contains)
    pools = [] if given is None else [training.given_pool(given, positives, contains)]
    pools += [training.mined(corpus, positives, contains, source, count=settings.count) for source in sources]
    if len(pools) > 1:  # a step draws from all of them alike
        pools = balanced(pools, settings.seed, least=settings.negatives_per_query)
    return union([empty_pool(positives, EPISODE, collection.digest), *pools])


def stage_of(
    training: TrainingRun[RankerTraining],
    pool: NegativePool,
    ranker: CrossEncoder,
    of_state: Callable[..., RankedState],
) -> MeasuredStage:
    """The stage that trains a ranker on a pool and measures states between steps."""
    settings, layout, experiment = training.settings, training.experiment.layout, training.experiment
    positions = trainable(pool, settings.negatives_per_query)
    planned = settings.episode_of(len(positions))
    batches = VisitBatches(
        training.data.train,
        lambda step: pool,
        queries_per_step=settings.queries_per_step,
        negatives=settings.negatives_per_query,
        seed=settings.seed,
        positions=positions,
        episode=EPISODE,
        rotate=settings.positives == "rotate",
        micro_queries=settings.micro_queries,
    )
    objective = ranker_objective(
        with_pool_positives(training.data, pool),
        ranker,
        experiment.cache,
        ranker_loss(settings.loss, scale=settings.scale or 1.0),
        **settings.of_objective,
    )
    models = {layout.episode(EPISODE).model: planned.steps, training.last_model: planned.steps}
    schedule = settings.schedule_over(planned.scheduled)
    how: Mapping[str, Any] = {"name": RANKER, "save": save_ranker, "kind": "ranker"}
    trainee = training.trainee(ranker, objective, batches, schedule, models, **how)
    inputs = {"pool": read_manifest(layout.episode(EPISODE).negatives).digest}
    dev = DevEvaluator(training, planned, made=of_state, save=save_ranker)
    return MeasuredStage(training, trainee, dev, episode=EPISODE, inputs=inputs)


# ---------------------------------------------------------------- what it would do


@dataclasses.dataclass(frozen=True)
class RankerWork:
    """The work that training a ranker would do.

    Attributes
    ----------
    rerank : hits of a dev or test query that are re-ranked.
    states : the number of times that dev and test are re-ranked.
    passed : the number of further times that dev alone is re-ranked.
    """

    data: TrainingData
    episode: Episode
    rerank: int
    states: int
    passed: int

    @property
    def trained(self) -> int:
        """The number of pairs that are trained on."""
        step = min(self.episode.queries_per_step, self.episode.queries) * self.episode.passages_per_query
        return step * self.episode.steps

    @property
    def scored(self) -> int:
        """The number of pairs that are scored to measure states."""
        judged = {name: len(qrels) for name, qrels in self.data.judged.items()}
        hits = min(self.rerank, self.data.collection.n_passages)
        return hits * (self.states * sum(judged.values()) + self.passed * judged.get("dev", 0))

    def stages(self, *, retrieved: bool) -> list[Planned]:
        """The stages of training; ``retrieved``: whether a retriever ranks first, which is measured too."""
        judged = {name: len(qrels) for name, qrels in self.data.judged.items()}
        hits = min(self.rerank, self.data.collection.n_passages)
        state = Planned(MEASURE, {"score": Amount(hits * sum(judged.values()))})
        on_the_way = Amount(hits * self.passed * judged.get("dev", 0))
        own = Planned(RANKING, {RANKING: Amount(self.episode.steps), "score": on_the_way})
        first = [Planned(FIRST), *([Planned(MEASURE)] if retrieved else [])]
        return [*first, state, Planned(MINE), own, state, Planned(LAST)]

    def with_mining(self, settings: RankerTraining, *, retrieved: bool, pool: bool) -> CostModel:
        """The work over the collection, with mining, and BM25's runs of dev and test if it ranks first.

        Parameters
        ----------
        retrieved, pool : whether a retriever ranks first, else BM25 does; whether a pool is given.
        """
        lists, sources = max(len(settings.sources), 1), settings.named(retriever=retrieved, pool=pool)
        words = ("bm25" in sources) + (self.data.by_answers and not retrieved)
        mining: dict[str, Any] = {"entries": settings.count * lists, "mined": 1, "lists": lists, "words": words}
        work = work_of(settings, self.data, [self.episode], states=0, **mining)
        return work if retrieved else dataclasses.replace(work, by_words=work.by_words + judged_queries(self.data))


def plan(settings: RankerTraining, data: TrainingData, ranker: CrossEncoder) -> RankerWork:
    """The work that the experiment would do."""
    episode = settings.episode_of(len(data.train))
    return RankerWork(data, episode, settings.rerank, 2, len(settings.measured_steps(episode)))


ABOUT = "groups of one positive and several negatives"

RECIPE = Recipe(catalogue.RANKER, RankerTraining, train_ranker, plan, about=ABOUT, trains="ranker")

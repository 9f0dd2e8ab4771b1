"""The work of an experiment: the counts from which its time, memory and disk are estimated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.judge import MOST
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.process.hardware import Precision
from hardneg.recipes.many_devices import ALONE, Devices
from hardneg.recipes.settings import Episode, TrainingSettings


@dataclass(frozen=True)
class Beside:
    """The work of a model beside the trained retriever: a ranker, or a frozen model that filters or teaches.

    Attributes
    ----------
    name : the name of the model in texts: ``the ranker``, ``the teacher``.
    model : makes the model; None: the model that training starts from, whose vectors exist anyway.
    scored : the number of pairs of a query and a passage that it scores without gradient. For a bi-encoder, only
        the encoding of the texts is counted.
    reranked : the number of further pairs that it scores to re-rank runs that are measured.
    episodes : the training of this model; empty if it is not trained.
    models : the number of folders of its weights that are kept, if it is trained.
    """

    name: str
    model: Callable[[], BiEncoder | CrossEncoder] | None
    scored: int
    episodes: Sequence[Episode] = ()
    models: int = 0
    reranked: int = 0

    @property
    def trained(self) -> int:
        """The number of pairs that the model is trained on."""
        return sum(one.steps * queries_of_step(one) * one.passages_per_query for one in self.episodes)

    @property
    def steps(self) -> int:
        """The number of its optimiser steps."""
        return sum(one.steps for one in self.episodes)

    def share_from(self, episode: int) -> float:
        """The share of its training that is in this episode or a later one."""
        pairs = [(one.episode, one.steps * queries_of_step(one) * one.passages_per_query) for one in self.episodes]
        return sum(count for number, count in pairs if number >= episode) / self.trained if self.trained else 0.0

    @property
    def facts(self) -> dict[str, int]:
        """The counts, for people."""
        counts = {
            f"pairs that {self.name} is trained on": self.trained,
            f"pairs that {self.name} scores": self.scored,
            f"pairs that {self.name} re-ranks": self.reranked,
        }
        return {what: count for what, count in counts.items() if count}


class Last(NamedTuple):
    """The final state: how often it encodes the queries and the corpus, and for how many queries it searches."""

    queries: float
    corpora: float
    searched: float


class Part(NamedTuple):
    """The shares of passages and of training queries that a state mines."""

    passages: float
    queries: float


ALL_OF_THEM = Part(1.0, 1.0)


@dataclass(frozen=True)
class CostModel:
    """The work of an experiment: the counts from which its time, memory and disk are estimated."""

    data: TrainingData
    episodes: Sequence[Episode]
    states: int  # the number of states that search for the training queries and those of dev and test
    depth: int
    entries: int  # entries of a pool for a query
    micro_queries: int | None  # queries whose passages meet in one softmax; None: all of a step
    chunk_tokens: int | None  # tokens of a chunk of the gradient cache; None: it is off
    recompute: bool  # whether the backward pass computes layers again
    checkpoint_every: int
    token_budget: int
    store_dtype: str
    precision: Precision
    optimizer: str = "adamw"  # the name of the one that makes the steps
    passage_length: int | None = None  # tokens of a passage in steps, at most; None: as many as in search
    encoded: tuple[float, float] | None = None  # times that queries and corpus are encoded; None: once a state
    shares: Sequence[float] = ()  # of the corpus that each of the states encodes, in order; empty: all of it
    among: float = 1.0  # share of the passages that a state measured on dev alone encodes
    mined: float = 0  # further searches for all training queries, to mine; a search of a part counts as a fraction
    pools: int | None = None  # pools that are kept; None: one for each episode
    sets: int = 1  # of vectors of all texts that lie on the disk at a time
    models: int = 0  # models that are kept besides those of the episodes and the final one
    query_side: bool = False  # every step searches, and trains the query side alone, which is untied
    index: int = 0  # bytes of the index that is built; 0: none is
    faiss: bool = False  # an index of faiss is searched, whether it is built or given
    by_words: float = 0  # queries that BM25 searches for, whether to measure it, to mine or to find positives
    indexed: bool = False  # BM25's index lies in the cache already
    passed: int = 0  # states that are measured on dev alone
    rates: int = 1  # learning rates; if there are several, the first episode begins with a trial of each
    trial_steps: int = 0  # of each
    examined: bool = True  # every state is searched for training queries and their positives' neighbours
    mined_pools: int = 0  # pools that are made, whether or not they are kept
    lists: float = 1  # ranked lists that a pool draws from for a query, on average
    compared: int = 0  # candidates of a training query in such a pool, whose scores a guide would compare
    beside: Sequence[Beside] = ()
    devices: Devices = ALONE  # the devices for which the time is estimated
    order: Sequence[str] = ()  # the kinds of its stages; empty: each episode measures, mines and trains
    reranks: Sequence[int] = ()  # pairs that a ranker re-ranks in each stage of ``order``; empty: none

    @property
    def last(self) -> Last:
        """The part of the work of all states that is the final one's, which mines nothing."""
        judged, corpora = judged_queries(self.data), self.shares[-1] if self.shares else 1.0
        if self.examined:
            return Last(1.0, corpora, 2 * len(self.data.train) + judged)
        return Last(judged / max(self.data.collection.n_queries, 1), corpora, judged)

    @property
    def tried(self) -> int:
        """The steps of trials from which training does not go on."""
        return (self.rates - 1) * self.trial_steps

    @property
    def trained(self) -> list[Episode]:
        """The episodes as they are trained: before the rest of the first one, the steps of each trial."""
        if not self.trial_steps:
            return [*self.episodes]
        first, *others = self.episodes
        trial = replace(first, steps=self.trial_steps)
        return [*[trial] * self.rates, replace(first, steps=first.steps - self.trial_steps), *others]

    @property
    def every_episode(self) -> list[tuple[str, Episode]]:
        """The episodes of all models that are trained, in order, each with the name of its model."""
        beside = ((one.name, episode) for one in self.beside for episode in one.episodes)
        found = [*(("the retriever", episode) for episode in self.episodes), *beside]
        return sorted(found, key=lambda one: one[1].episode)


def work_of(
    settings: TrainingSettings,
    data: TrainingData,
    episodes: Sequence[Episode],
    *,
    states: int,
    entries: int,
    mined: int = 0,
    both: int = 0,
    lists: float = 1,
    part: Part = ALL_OF_THEM,
    words: float = 0,
) -> CostModel:
    """The work of an experiment with these settings; for ADORE, ``states`` includes those measured between steps.

    Parameters
    ----------
    mined : the number of states that negatives are mined with.
    both : the number of ``states`` that are also measured as states between steps.
    lists : the number of ranked lists that each of these states makes for a training query, on average.
    part : the shares of passages and queries that such a state mines, unless it embeds all to be measured.
    words : the number of searches of BM25 for a training query, besides those that find the passages of ``part``.
    """
    judged, shares, among = settings.examine == "judged", [1.0] * states, dev_share(settings, data)
    passed = sum(len(settings.measured_steps(one)) for one in episodes) - both
    trials = [steps for one in episodes if (steps := settings.trial_steps(one))]
    passed += len(trials) * len(settings.rates)
    queries: float = states
    if judged:
        if data.test is not None or among == 1.0 or settings.keeps_start:
            part = ALL_OF_THEM
        elif part is not ALL_OF_THEM:
            words += part.queries * (1 + data.by_answers)
        share = judged_queries(data) / max(data.collection.n_queries, 1)
        shares = shares_of_states(data, states=states, mined=mined, among=among, part=part)
        # The model that training starts from mines first, unless the first episode, or all, mine nothing.
        guide = settings.keeps_start and data.test is None and among < 1.0 and mined < len(episodes)
        queries = mined * part.queries + states * share + guide
        if guide:
            shares[0] += guide
    return CostModel(
        data,
        episodes,
        states=states,
        depth=settings.depth,
        entries=entries,
        micro_queries=settings.micro_queries,
        chunk_tokens=settings.chunk_tokens,
        recompute=settings.recompute_layers,
        checkpoint_every=settings.checkpoint_every,
        token_budget=settings.token_budget,
        store_dtype=settings.store_dtype,
        precision=settings.precision,
        optimizer=settings.optimizer,
        passage_length=settings.train_passage_length,
        sets=1 + (settings.keep == "best" and not settings.roles),  # the newest state's, and the best one's
        models=(1 + bool(passed)) * (settings.keep == "best"),  # the last state, and the best within an episode
        by_words=words * len(data.train) + always_by_words(settings, data, episodes),
        passed=passed,
        rates=len(settings.rates),
        trial_steps=sum(trials),
        examined=not judged,
        mined_pools=mined or len(episodes),
        lists=lists,
        compared=max(entries, math.ceil(lists * settings.depth)),
        mined=mined * lists * part.queries * part.passages if judged else 0,
        encoded=(queries, sum(shares) + passed * among),
        shares=shares,
        among=among,
    )


def always_by_words(settings: TrainingSettings, data: TrainingData, episodes: Sequence[Episode]) -> int:
    """The number of queries that BM25 searches for with every recipe: to be measured, and for the report.

    Where dev is judged among its hits, it also searches for dev once for all states that are measured at the end,
    and once for those on the way of each episode.
    """
    examined = settings.examine == "all" and settings.course.trains == "retriever"
    lists = min(settings.bm25_lists, len(data.train)) if examined else 0
    among = 0
    if settings.dev_passages is not None and data.dev is not None:
        between = sum(bool(settings.measured_steps(one) or settings.trial_steps(one)) for one in episodes)
        among = (1 + between) * len(data.dev)
    return judged_queries(data) + lists + among


def dev_share(settings: TrainingSettings, data: TrainingData) -> float:
    """The share of the passages among which dev is judged, at most: it is less if queries share hits."""
    if settings.dev_passages is None or data.dev is None:
        return 1.0
    among = settings.dev_passages * len(data.dev) / max(data.collection.n_passages, 1)
    return among if among < MOST else 1.0


def shares_of_states(data: TrainingData, *, states: int, mined: int, among: float, part: Part) -> list[float]:
    """The share of the corpus that each state encodes, in order, where a part of it is encoded apart.

    A state that does not mine and is measured on dev alone needs only the passages that dev is judged among. The
    last state mines only if all do; an episode that mines nothing is the first one.
    """
    other = among if data.test is None else 1.0
    miner = 1.0 if part == ALL_OF_THEM else part.passages + among
    first = max(states - 1 - mined, 0)
    return [miner if first <= i < first + mined else other for i in range(states)]


def judged_queries(data: TrainingData) -> int:
    """The number of queries of dev and test."""
    return sum(len(qrels) for qrels in (data.dev, data.test) if qrels is not None)


def queries_of_step(episode: Episode) -> int:
    """The number of queries of every step but the last one of an epoch."""
    return min(episode.queries_per_step, episode.queries)

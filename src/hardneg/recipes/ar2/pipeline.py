"""The ranker behind the retriever, measured: its order of the first hits of a state's runs (AR2, Tables 3, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hardneg.diagnostics.judge import evaluation_depth
from hardneg.diagnostics.reranked import Reranker
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.layout import reranked_runs, run_of
from hardneg.experiment.names import Asked, Kind
from hardneg.experiment.snapshot import State
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.tokenizing import pair_store
from hardneg.process.distributed import by_leader
from hardneg.recipes.ar2.settings import Ar2
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Int32, Run, Side
from hardneg.search.rerank import RankerScorer
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published


class PipelineState:
    """A state of the retriever as a ranker re-ranks it: its runs are that state's in the order of the ranker.

    Parameters
    ----------
    base : the state of the retriever.
    by : the ranker's name for people, behind that of the state (``final/ranker``).
    reranker : None: the runs are published already.
    ranker : where the ranker's weights stand, if they are kept.
    """

    kind: Kind = "reranked"
    asked: Asked = "judged"
    pool: Path | None = None
    weights: Path | None = None

    def __init__(self, base: State, by: str, reranker: Reranker | None, *, ranker: Path | None = None) -> None:
        self.base, self.by, self.reranker, self.ranker_place = base, by, reranker, ranker
        self.folder = reranked_runs(base.folder, by)
        self.step, self.episode = base.step, base.episode

    @property
    def of(self) -> str:
        """The name of the state whose runs these are."""
        return self.base.name

    @property
    def name(self) -> str:
        """The name of the retriever's state and the ranker's; the first may be renamed after it was made."""
        return f"{self.base.name}/{self.by}"

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run of a split, re-ranked, ``k`` deep; it is published once."""
        if self.reranker is None:
            return load_run(self.folder / name).cut(k)
        first = self.base.search(
            name, query_rows, k, as_trained=as_trained
        )  # published: its model may be another now
        return self.reranker.run(first, self.folder / name, title=f"re-ranking {name}").cut(k)

    def save_corpus_stats(self) -> None:
        """Do nothing: a ranker has no vectors."""

    def discard(self, *sides: Side) -> None:
        """Do nothing: a ranker has no vectors."""


class Pipelines:
    """The pipelines of an experiment: what rankers make of the retriever's runs of dev and test."""

    def __init__(self, training: TrainingRun[Ar2]) -> None:
        self.training, self.splits = training, training.data.judged
        self.depth = evaluation_depth(parse_measures(training.settings.measures))
        self.k = training.settings.rerank_depth

    def are_published(self, runs: Path, by: str) -> bool:
        """Whether the pipeline of the state with these runs stands there; so too where none is asked for."""
        folder = reranked_runs(runs, by)
        return not self.k or all(is_published(run_of(folder, name)) for name in self.splits)

    def of(
        self, base: State, by: str, ranker: Callable[[], CrossEncoder], place: Path | None = None
    ) -> Iterator[PipelineState]:
        """The pipeline of a state, if any is asked for; its runs are published before it is given.

        Parameters
        ----------
        ranker : gives the ranker if the runs are not there.
        place : where the ranker's weights are kept.
        """
        if not self.k or not self.splits:
            return
        ready = by_leader(self.are_published, base.folder, by)
        state = PipelineState(base, by, None if ready else self._reranker(ranker()), ranker=place)
        for name, qrels in self.splits.items():
            state.search(name, qrels.query_rows, self.depth, as_trained=name != "test")
        yield state

    def _reranker(self, ranker: CrossEncoder) -> Reranker:
        training = self.training
        pairs = pair_store(ranker.tower, ranker.template, training.data.collection, training.experiment.cache)
        scorer = RankerScorer(ranker, pairs, budget=training.settings.token_budget)
        return Reranker(scorer, ranker.digest(), self.k, training.experiment.timed)

"""Pipelines, which are measured: a ranker re-ranks the first hits of a retriever's runs (AR2, Tables 3, 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hardneg.diagnostics.reranked import Reranker
from hardneg.diagnostics.search_state import encodes_some, search_judged
from hardneg.diagnostics.sharpness import keep_sharpness
from hardneg.errors import ArtifactError
from hardneg.experiment.layout import reranked_runs, run_of
from hardneg.experiment.names import Asked, Kind, reads_as_trained
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.tokenizing import pair_store
from hardneg.process.distributed import by_leader
from hardneg.recipes.ar2.settings import Ar2
from hardneg.recipes.measured_states import judge_of
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Int32, Run, Side, spans
from hardneg.search.rerank import RankerScorer
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import digest_json, is_published


class PipelineState:
    """A state of the retriever as a ranker re-ranks it: its runs are those of the state in the ranker's order.

    Parameters
    ----------
    base : the state of the retriever.
    first : split -> the run of the state, as deep as the state is measured.
    by : the ranker's name for people, which follows the name of the state (``final/ranker``).
    reranker : re-ranks the runs; None: the re-ranked runs are published already.
    ranker : the folder of the ranker's weights, if they are kept.
    """

    kind: Kind = "reranked"
    asked: Asked = "judged"
    pool: Path | None = None
    weights: Path | None = None

    def __init__(
        self,
        base: State,
        by: str,
        first: Callable[[str], Run],
        reranker: Reranker | None,
        *,
        ranker: Path | None = None,
    ) -> None:
        self.base, self.by, self.first, self.reranker, self.ranker_place = base, by, first, reranker, ranker
        self.folder = reranked_runs(base.folder, by)
        self.step, self.episode = base.step, base.episode

    @property
    def of(self) -> str:
        """The name of the state whose runs these are."""
        return self.base.name

    @property
    def name(self) -> str:
        """The names of the retriever's state and of the ranker; the state may be renamed later."""
        return f"{self.base.name}/{self.by}"

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run of a split, re-ranked, ``k`` deep; it is published once."""
        if self.reranker is None:
            return load_run(self.folder / name).cut(k)
        return self.reranker.run(self.first(name), self.folder / name, title=f"re-ranking {name}").cut(k)

    def save_corpus_stats(self) -> None:
        """Do nothing: a ranker has no vectors."""

    def discard(self, *sides: Side) -> None:
        """Do nothing: a ranker has no vectors."""


def longest(run: Run) -> int:
    """The length of the longest list of a run."""
    return int(spans(run.offsets).max(initial=0))


class Pipelines:
    """The pipelines of an experiment: the retriever's runs of dev and test, re-ranked by rankers."""

    def __init__(self, training: TrainingRun[Ar2]) -> None:
        self.training, self.splits = training, training.data.judged
        self.judge = judge_of(training.settings, training.data, training.experiment.cache)
        self.k = training.settings.rerank_depth

    def are_published(self, runs: Path, by: str) -> bool:
        """Whether the pipeline of the state with these runs is published; also true if nothing is re-ranked."""
        folder = reranked_runs(runs, by)
        return not self.k or all(is_published(run_of(folder, name)) for name in self.splits)

    def of(
        self,
        base: State,
        by: str,
        ranker: Callable[[], CrossEncoder],
        place: Path | None = None,
        *,
        passing: bool = False,
    ) -> Iterator[PipelineState]:
        """Yield the pipeline of a state, unless nothing is re-ranked; its runs are published before that.

        Runs that were published for measures of fewer hits are made again.

        Parameters
        ----------
        ranker : makes or loads the ranker; called only if the runs are not published, or too short.
        place : the folder in which the ranker's weights are kept; None: they are not.
        passing : whether the ranker may be gone when the runs are published.

        Raises
        ------
        ArtifactError : runs are too short, and the ranker is gone.
        """
        if not self.k or not self.splits:
            return
        ready = by_leader(self.are_published, base.folder, by)
        if ready and (short := self._short(base, by)) is not None:
            if passing:
                what = "this run is re-ranked, and of fewer hits than the measures ask for"
                fix = "its ranker is gone: ask for no more, or train in a new folder"
                raise ArtifactError("OTHER_RUN", what, fix, path=short)
            ready = False
        state = PipelineState(
            base, by, partial(self.first_run, base), None if ready else self._reranker(ranker()), ranker=place
        )
        for name, qrels in self.splits.items():
            state.search(name, qrels.query_rows, self.judge.depth_of(name))
        yield state

    def _short(self, base: State, by: str) -> Path | None:
        """A published run of a pipeline that is shorter than the run that it re-ranks; None: there is none."""
        folder = reranked_runs(base.folder, by)
        pairs = [(self.first_run(base, name), run_of(folder, name)) for name in self.splits]
        return by_leader(
            lambda: next((path for run, path in pairs if longest(load_run(path)) < longest(run)), None)
        )

    def first_run(self, base: State, name: str) -> Run:
        """The run of a split that a ranker re-ranks: the run by which the state is measured.

        The published run is read, because training may have changed the model since.
        """
        return search_judged(base, {name: self.splits[name]}, self.judge)[name]

    def keep_sharpness(self, state: Snapshot) -> None:
        """Publish how sharp a state is, by the runs that judge it; of some passages if it embeds no others."""
        data, cache = self.training.data, self.training.experiment.cache
        among = by_leader(lambda: self.judge.judged_among).get("dev") if encodes_some(state, self.judge) else None
        if among is None:
            keep_sharpness(state, data, cache, partial(search_judged, state, self.splits, self.judge))
            return
        limited = state.limited(among, alone=True)
        keep_sharpness(limited, data, cache, partial(self._search_dev, limited))
        limited.discard("passage")

    def _search_dev(self, limited: Snapshot) -> dict[str, Run]:
        """The run of dev of a state among the passages that it embeds, which stay embedded."""
        rows = self.splits["dev"].query_rows
        return {"dev": limited.search("dev", rows, self.judge.depth_of("dev"), as_trained=reads_as_trained("dev"))}

    def _reranker(self, ranker: CrossEncoder) -> Reranker:
        training = self.training
        collection, precision = training.data.collection, training.settings.precision
        pairs = pair_store(ranker.tower, ranker.template, collection, training.experiment.cache)
        budget = training.settings.token_budget
        scorer = RankerScorer(ranker, pairs, budget=budget, precision=precision, collection=collection)
        return Reranker(scorer, digest_json([ranker.digest(), precision]), self.k, training.experiment.timed)

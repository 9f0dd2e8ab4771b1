"""Measurement of re-ranking: runs whose first k hits a model re-ranks, compared with the runs as they are.

The run of a re-ranked state is published once, so a killed experiment scores no pair twice. The values of every
query are kept, so that tests can pair them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.measured import Measured
from hardneg.diagnostics.summary import compare_states
from hardneg.evaluation.measures import Evaluation, Float64
from hardneg.experiment.layout import Layout, run_of
from hardneg.experiment.names import BM25, FINAL, RETRIEVED, UNTRAINED, Asked, Kind
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.rankers import load_ranker, save_ranker
from hardneg.process.distributed import by_leader
from hardneg.process.progress import Tick, silent, track
from hardneg.records import Float32, Int32, Qrels, Run, Side, owners, pair_keys, spans
from hardneg.search.rerank import PairScorer, rerank
from hardneg.search.retriever import Timed, untimed
from hardneg.search.runs import KIND, load_run, save_run
from hardneg.storage.artifacts import is_current, is_published

AS_IT_IS, RERANKED = "as it is", "reranked"


@dataclass(frozen=True)
class Reranker:
    """A model that re-ranks the first hits of runs.

    Attributes
    ----------
    scorer : scores pairs of rows of the collection.
    model : the model's digest.
    k : how many hits of each query are re-ranked.
    timed : measures the time of a block, as ``Experiment.timed`` does.
    """

    scorer: PairScorer
    model: str
    k: int
    timed: Timed = untimed

    def run(
        self, run: Run, path: Path | None = None, *, title: str = "re-ranking", depth: int | None = None
    ) -> Run:
        """A run with its first ``k`` hits re-ranked, published at ``path`` unless that holds it already.

        Rank 0 of several processes scores, and all get the run; without ``path`` each scores for itself.

        Parameters
        ----------
        title : the title of the progress that people see.
        depth : the depth to which the run was searched, although lists may be shorter; None: the longest list.
        """
        run = run if depth is None else run.cut(max(depth, self.k))
        if path is None:
            return self._made(run, title)
        facts = {"model": self.model, "run": digest_of(run), "collection": run.collection, "k": str(self.k)}

        def make() -> None:
            if not is_current(path, KIND, facts):
                deep = depth or int(spans(run.offsets).max(initial=0))
                with self.timed("rerank", run=path.name, queries=len(run), k=self.k):
                    found = self._made(run, title)
                save_run(found, path, inputs=facts, settings={"k": deep})

        by_leader(make)
        return load_run(path) if depth is None else load_run(path).cut(depth)

    def _made(self, run: Run, title: str) -> Run:
        with track(title, "pairs", kind="score") as tick:
            return rerank(run, self.scorer, self.k, progress=tick)


def digest_of(run: Run) -> str:
    """The digest of a run's content: its queries, passages and scores."""
    found = hashlib.sha256()
    for array in (run.query_rows, run.offsets, run.passage_rows, run.scores):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class RankedState:
    """A state of a ranker in an experiment; its runs are the first runs of dev and test, re-ranked and published.

    It is used like a state of a retriever: a search takes the first run of a split and re-ranks it.

    Parameters
    ----------
    ranker : the model.
    first : (split, depth) -> the run of the split that is re-ranked, at least so deep.
    like : (ranker, name, folder, facts) -> a state of another ranker over the same first runs.
    name, folder, step, weights, kind, episode, pool : as of a
        :class:`~hardneg.experiment.snapshot.Snapshot`.
    """

    def __init__(
        self,
        ranker: CrossEncoder,
        reranker: Reranker,
        first: Callable[[str, int], Run],
        name: str,
        folder: Path,
        *,
        like: Callable[..., RankedState],
        step: int | None = None,
        weights: Path | None = None,
        kind: Kind = "passing",
        episode: int | None = None,
        pool: Path | None = None,
    ) -> None:
        self.ranker, self.reranker, self.first, self.like = ranker, reranker, first, like
        self.name, self.folder, self.step, self.weights = name, folder, step, weights
        self.kind, self.episode, self.pool = kind, episode, pool
        self.asked: Asked = "judged"

    @property
    def digest(self) -> str:
        """The model's identity, as its runs name it."""
        return self.reranker.model

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The first run of the split ``name``, re-ranked and ``k`` deep; it has these queries."""
        run = self.first(name, k)
        assert np.array_equal(run.query_rows, query_rows)
        return self.reranker.run(run, self.folder / name, title=f"re-ranking {name}", depth=k)

    def save_corpus_stats(self) -> None:
        """Do nothing: a ranker has no vectors."""

    def discard(self, *sides: Side) -> None:
        """Do nothing: a ranker has no vectors."""


def kept_ranker(
    chosen: Measured, last: RankedState, layout: Layout, untrained: Callable[[], CrossEncoder]
) -> RankedState:
    """The state of a ranker that is kept, to be measured on dev and test."""
    if chosen.record.name == last.name:
        return last
    came = chosen.record.name == UNTRAINED
    ranker = untrained() if came else load_ranker(str(chosen.place), device=last.ranker.device)
    return last.like(ranker, FINAL, layout.runs_of(FINAL), kind="final")


def save_state(state: RankedState, path: Path, **facts: Any) -> None:
    """Publish the ranker of a state; ``facts`` as :func:`~hardneg.models.rankers.save_ranker` takes them."""
    save_ranker(state.ranker, path, **facts)


# ---------------------------------------------------------------- what it gained


@dataclass(frozen=True)
class Gain:
    """The evaluations of a split's run before and after its first ``k`` hits are re-ranked.

    Attributes
    ----------
    before, after : evaluations with the values of every query; both have the same queries.
    best : the evaluation of the best possible order of the first ``k`` hits, without measures by answers.
    """

    k: int
    before: Evaluation
    after: Evaluation
    best: Evaluation | None = None

    def of(self, measure: str) -> Float64:
        """The gain [Q] of each query that the measure counts; below 0 for a loss."""
        return self.after.of(measure) - self.before.of(measure)

    def moved(self, measure: str) -> tuple[int, int]:
        """The numbers of queries that gained and that lost."""
        gained = self.of(measure)
        return int((gained > 0).sum()), int((gained < 0).sum())

    def tests(self, *, seed: int) -> list[dict[str, Any]]:
        """Paired tests of ``reranked`` against ``as it is`` for every measure, as in ``results.json``."""
        return compare_states({AS_IT_IS: self.before, RERANKED: self.after}, [(RERANKED, AS_IT_IS)], seed=seed)

    def as_json(self) -> dict[str, Any]:
        """The gain as an entry of ``results.json``, without the tests."""
        moved = {name: self.moved(name) for name in self.before.values}
        return {
            "k": self.k,
            AS_IT_IS: self.before.means,
            RERANKED: self.after.means,
            **({} if self.best is None else {"best": self.best.means}),
            "gained": {name: up for name, (up, _) in moved.items()},
            "lost": {name: down for name, (_, down) in moved.items()},
        }


def gains(
    before: Measured, after: Measured, judge: Judge, k: int, *, deep: Mapping[str, Run] | None = None
) -> dict[str, Gain]:
    """What re-ranking gained on every split that both were measured on.

    Parameters
    ----------
    deep : for each split a run with all hits that were re-ranked, in any order among the first ``k``; a split that
        it lacks has them in the run of ``before``, which may be only as deep as it is judged.
    """
    measures = [measure for measure in judge.measures if not measure.by_answers]
    found: dict[str, Gain] = {}
    for split in (split for split in after.evaluations if split in before.evaluations):
        best = None
        if measures:
            run = (deep or {}).get(split, before.runs[split])
            perfect = rerank(run, Grades(judge.data.judged[split]), k)
            judging = Judge(judge.data, measures, judge.cache)
            best = judging.evaluate({split: perfect.cut(judge.depth_of(split))})[split]
        found[split] = Gain(k, before.evaluations[split], after.evaluations[split], best)
    return found


def ranking_gains(seen: Mapping[str, Measured], judge: Judge, k: int, layout: Layout) -> dict[str, Any]:
    """The entry of ``results.json`` for a ranker: the gain of the final ranker over the runs that it re-ranks."""
    first = RETRIEVED if RETRIEVED in seen else BM25
    found = gains(seen[first], seen[FINAL], judge, k, deep=whole_runs(seen[FINAL], layout))
    return {"reranked": {"first": first, **{split: gain.as_json() for split, gain in found.items()}}}


def whole_runs(state: Measured, layout: Layout) -> dict[str, Run]:
    """The published runs of a re-ranked state, with every hit that was re-ranked, even below the judged depth."""
    if state.record.runs is None:
        return {}
    places = {split: run_of(layout / state.record.runs, split) for split in state.evaluations}
    return {split: load_run(place) for split, place in places.items() if is_published(place, KIND)}


class Grades:
    """The judgements as a scorer of pairs, like a perfect model; a pair that nobody judged has the score 0."""

    def __init__(self, qrels: Qrels) -> None:
        keys = pair_keys(qrels.query_rows[owners(qrels.offsets)], qrels.passage_rows)
        order = np.argsort(keys, kind="stable")
        self.keys, self.grades = keys[order], qrels.grades[order]

    def score(self, query_rows: Int32, passage_rows: Int32, *, progress: Tick = silent) -> Float32:
        """See :class:`~hardneg.search.rerank.PairScorer`."""
        wanted = pair_keys(query_rows, passage_rows)
        if not len(self.keys):
            return np.zeros(len(wanted), np.float32)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, np.maximum(self.grades[at], 0), 0).astype(np.float32)

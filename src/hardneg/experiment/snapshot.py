"""A state of the model in an experiment: a retriever whose runs are kept there, or the runs that it left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError
from hardneg.experiment.layout import GEOMETRY, Layout, geometry_of, run_of
from hardneg.experiment.names import Asked, Kind
from hardneg.experiment.states import StateRecord
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.distributed import by_leader
from hardneg.records import Int32, Run, Side, VectorsByRow
from hardneg.search.on_demand import QueriesOnDemand
from hardneg.search.retrieve import Index
from hardneg.search.retriever import CachedRetriever
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_current, is_published, publish, read_manifest
from hardneg.training.stage import steps_made

RESTORE = "restore the folder, or give a new one to the experiment"


class Snapshot(CachedRetriever):
    """One state of the model in an experiment: a retriever whose runs are published there, each of them once.

    Parameters
    ----------
    name : the name of the state, for people.
    folder : where the runs of the state are published.
    step : the number of optimiser steps that made the state, if training is one long run.
    keeps : do not discard the embeddings: other experiments may use them, or the state is the best one on dev.
    pool : the pool that the model was trained on last.
    asked : the queries that the state is searched for when it is measured; for dev, only dev queries are embedded.
    sparing : embed only the queries of a search, unless a search has half of all queries or more.
    mines : whether negatives are mined with the model, so that all passages are embedded in any case.
    weights : the folder of the model's weights; None: they are not kept, or not yet written.
    kind : the kind of the state.
    episode : the episode that made the state; None: it was not trained.
    options : parameters of :class:`~hardneg.search.retriever.Retriever`.
    """

    def __init__(
        self,
        encoder: BiEncoder,
        collection: Collection,
        name: str,
        folder: Path,
        cache: Path,
        *,
        step: int | None = None,
        keeps: bool = False,
        pool: Path | None = None,
        asked: Asked = "all",
        sparing: bool = False,
        mines: bool = True,
        weights: Path | None = None,
        kind: Kind = "passing",
        episode: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, collection, folder, cache, **options)
        self.name, self.step, self.keeps = name, step, keeps
        self.pool, self.asked, self.sparing, self.weights = pool, asked, sparing, weights
        self.kind, self.episode, self.of, self.mines = kind, episode, "", mines

    def with_index(self, index: Index, name: str, folder: Path) -> Snapshot:
        """The state called ``name`` of this model, as ``index`` retrieves it; ``folder`` is for its runs."""
        other = self.through(index)
        other.name, other.folder = name, folder
        other.kind, other.of = "indexed", self.name
        return other

    def _queries(self, *, searching: bool) -> VectorsByRow:
        if self.asked == "dev":
            return QueriesOnDemand(self, searching=searching)
        if self.sparing:
            return QueriesOnDemand(self, searching=searching, whole_from=(self.collection.n_queries + 1) // 2)
        return super()._queries(searching=searching)

    def discard(self, *sides: Side) -> None:
        """Delete this state's embeddings (of ``sides``), unless it ``keeps`` them.

        The runs of the state are kept. The embeddings of a later state take the place of the deleted ones.
        """
        if not self.keeps:
            super().discard(*sides)

    def save_corpus_stats(self) -> None:
        """Publish the corpus mean vector and the passages' mean pairwise cosine.

        They outlive the embeddings.
        """
        inputs, path = {"collection": self.collection.digest, "model": self.digest}, geometry_of(self.folder)
        if not by_leader(is_current, path, GEOMETRY, inputs):
            passages = self.passages

            def keep() -> None:
                with publish(path, GEOMETRY, inputs=inputs, replace=True) as draft:
                    draft.array("mean.npy", passages.mean)
                    draft.facts["mean_pairwise_cosine"] = passages.mean_pairwise_cosine
                    draft.facts["step"] = self.step

            by_leader(keep)


class ArchivedState:
    """A state of the model whose runs still exist, although its weights and embeddings may be gone.

    Parameters
    ----------
    name, folder, step, pool, asked, weights, kind, episode : those of the :class:`Snapshot` that it was.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        step: int | None = None,
        pool: Path | None = None,
        asked: Asked = "all",
        weights: Path | None = None,
        kind: Kind = "passing",
        episode: int | None = None,
    ) -> None:
        self.weights, self.kind, self.episode = weights, kind, episode
        self.name, self.folder, self.step = name, folder, step
        self.pool, self.asked = pool, asked

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run that was published as ``name``; ``as_trained`` is ignored.

        It may be one hit short: before, splits whose queries are passages were searched one less deep.
        """
        if not is_published(self.folder / name):
            what = "this run is gone, and its model cannot make it again"
            raise ArtifactError("NO_MANIFEST", what, RESTORE, path=self.folder / name)
        run, deep = load_run(self.folder / name), read_manifest(self.folder / name).settings["k"]
        if deep + 1 < k or not np.array_equal(run.query_rows, query_rows):
            what = (
                f"this run is of {len(run):,} queries, {deep} deep; {len(query_rows):,}, {k} deep, are asked for"
            )
            fix = "its model is gone: ask for no more, or train in a new folder"
            raise ArtifactError("OTHER_RUN", what, fix, path=self.folder / name)
        return run.cut(k)

    def neighbours(self, name: str, owners: Int32, anchors: Int32, k: int) -> Run:
        """The neighbours of passages that were published as ``name``."""
        return self.search(name, owners, k)

    def save_corpus_stats(self) -> None:
        """Do nothing: the statistics were published while the embeddings were there."""


State = Snapshot | ArchivedState


def record_of(state: State, layout: Layout) -> StateRecord:
    """The record of a state for ``states.jsonl``.

    :func:`settled` adds what only the disk knows.
    """
    index = state.index.describe() if isinstance(state, Snapshot) and state.index is not None else None
    ranker = getattr(state, "ranker_place", None)
    return StateRecord(
        state.name,
        state.kind,
        of=getattr(state, "of", "") or None,
        episode=state.episode,
        step=-1 if state.step is None else state.step,
        model=None if state.weights is None else layout.relative(state.weights),
        pool=None if state.pool is None else layout.relative(state.pool),
        runs=layout.relative(state.folder),
        index=index or None,
        asked=state.asked,
        ranker=None if ranker is None else layout.relative(ranker),
    )


def settled(record: StateRecord, layout: Layout) -> StateRecord:
    """Complete a record from the disk: the digest in its runs, and the step of its weights.

    Weights that do not exist any more are left out.
    """
    model = None if record.model is None or not is_published(layout / record.model) else record.model
    step = record.step
    if step < 0:
        step = 0 if model is None else steps_made(layout / model)
    runs = [] if record.runs is None else [run_of(layout / record.runs, name) for name in ("query", "dev", "test")]
    digest = next((read_manifest(run).inputs["model"] for run in runs if is_published(run)), None)
    return replace(record, model=model, step=step, digest=digest)

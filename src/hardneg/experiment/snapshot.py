"""A state of the model in an experiment: a retriever whose runs are kept there, or the runs that it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process.distributed import by_leader
from hardneg.records import Int32, Run, Side, VectorsByRow
from hardneg.search.retrieve import Index
from hardneg.search.retriever import CachedRetriever, QueriesOnDemand
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_current, publish, read_manifest

GEOMETRY = "geometry"
Asked = Literal["all", "judged", "dev"]  # judged: dev and test, no training queries; dev: that alone


class Snapshot(CachedRetriever):
    """One state of the model in an experiment. Everything is computed on demand and published once.

    Parameters
    ----------
    name : of the state, for people.
    folder : where this state's runs are published.
    step : optimiser steps that made it, where training is one long run.
    keeps : never discard the embeddings, for others may want them.
    trained_on : the pool that the model was trained on last.
    asked : which queries the state is searched for when it is examined. A state asked for dev embeds only those.
    kept_at : where its weights stand; None: nowhere, or not yet.
    options : as of :class:`~hardneg.search.retriever.Retriever`.
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
        trained_on: Path | None = None,
        asked: Asked = "all",
        kept_at: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, collection, folder, cache, **options)
        self.name, self.step, self.keeps = name, step, keeps
        self.trained_on, self.asked, self.kept_at = trained_on, asked, kept_at

    def with_index(self, index: Index, name: str, folder: Path) -> Snapshot:
        """The state called ``name`` of this model, as ``index`` retrieves it; ``folder`` is for its runs."""
        other = self.through(index)
        other.name, other.folder = name, folder
        return other

    def _queries(self, *, searching: bool) -> VectorsByRow:
        if self.asked == "dev":
            return QueriesOnDemand(self, searching=searching)
        return super()._queries(searching=searching)

    def discard(self, *sides: Side) -> None:
        """Delete this state's embeddings (of ``sides``): its runs are kept, and a later state supersedes it."""
        if not self.keeps:
            super().discard(*sides)

    def save_corpus_stats(self) -> None:
        """Publish the corpus mean vector and how alike the passages are, which outlive the embeddings."""
        inputs, path = {"collection": self.collection.digest, "model": self.digest}, self.folder / GEOMETRY
        if not by_leader(is_current, path, GEOMETRY, inputs):
            passages = self.passages

            def keep() -> None:
                with publish(path, GEOMETRY, inputs=inputs, replace=True) as draft:
                    draft.array("mean.npy", passages.mean)
                    draft.facts["mean_pairwise_cosine"] = passages.mean_pairwise_cosine
                    draft.facts["step"] = self.step

            by_leader(keep)


class ArchivedState:
    """A state of the model whose runs are kept, though its weights and embeddings may be gone.

    Parameters
    ----------
    name, folder, step, trained_on, asked, kept_at : as of the :class:`Snapshot` that it was.
    within : (episode, step of it) that made it, where ``step`` is None.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        step: int | None = None,
        trained_on: Path | None = None,
        asked: Asked = "all",
        kept_at: Path | None = None,
        within: tuple[int, int] | None = None,
    ) -> None:
        self.kept_at, self.within = kept_at, within
        self.name, self.folder, self.step = name, folder, step
        self.trained_on, self.asked = trained_on, asked

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run that was published as ``name``, whatever its queries' length was."""
        run, deep = load_run(self.folder / name), read_manifest(self.folder / name).settings["k"]
        if deep < k or not np.array_equal(run.query_rows, query_rows):
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
        """Nothing to do: the statistics were published while the embeddings were there."""


State = Snapshot | ArchivedState

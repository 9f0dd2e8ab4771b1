"""Negatives for training a query side over a fixed index: random, mined once, or mined anew at intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from hardneg.experiment.snapshot import Snapshot
from hardneg.negatives.labels import answers_of
from hardneg.negatives.mining import mine_candidates
from hardneg.negatives.pool import KIND, NegativePool, save_pool
from hardneg.negatives.sources import random_source
from hardneg.process.distributed import by_leader
from hardneg.recipes.adore.fixed_index import with_index
from hardneg.recipes.adore.query_batches import QueryBatch
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Int32
from hardneg.search.retrieve import Index
from hardneg.storage.artifacts import is_current


class FixedNegatives:
    """The negatives of every step, which do not follow the search of the step.

    Parameters
    ----------
    state : the state before training; its encoder is the one that is trained.
    index : the index that retrieves.
    source : ``random``: negatives are drawn from the corpus anew at each visit of a query (Zhan et al., 2021,
        Section 4.1); ``static``: they are the passages that were retrieved when they were mined. Neither has
        passages of D+, or those that people judged relevant.
    refresh_every : steps after which static negatives are mined anew; None: never.
    """

    def __init__(
        self,
        training: TrainingRun,
        state: Snapshot,
        index: Index,
        *,
        source: Literal["static", "random"],
        refresh_every: int | None,
    ) -> None:
        self.training, self.state, self.index = training, state, index
        self.source, self.refresh_every = source, refresh_every
        self.depth = min(training.settings.depth, training.data.collection.n_passages)
        self.contains = answers_of(training.data, training.experiment.cache)
        self.pool: NegativePool | None = None

    def of(self, batch: QueryBatch) -> Sequence[Int32]:
        """The negatives of a batch's queries."""
        if self.source == "random":
            pool = self._draw(batch)
        else:
            assert self.pool is not None
            pool = self.pool.select(batch.positions)
        return [pool.passage_rows[a:b] for a, b in pairwise(pool.offsets)]

    def follow(self, made: int) -> None:
        """Load the negatives in force after so many steps; at a refresh, mine them with the present model."""
        if self.source == "random":
            return
        version, since = self._place(made)
        path = self.training.experiment.layout.episode(1).version(version)
        if since == 0:
            self._mine(version, path)
        if since == 0 or self.pool is None:
            self.pool = self.training.read_pool(path)

    def facts(self, step: int) -> dict[str, int]:
        """The version of static negatives that a step (from 0) used, for the metrics; random ones have none."""
        return {"negative_version": self._place(step)[0]} if self.source == "static" else {}

    def _place(self, made: int) -> tuple[int, int]:
        """The version in force after so many steps, and the steps since it was mined."""
        return divmod(made, self.refresh_every or made + 1)

    def _draw(self, batch: QueryBatch) -> NegativePool:
        """Draw as many passages of the corpus as a search finds."""
        data, collection = self.training.data, self.training.data.collection
        return random_source(
            data.train.select(batch.positions),
            collection.n_passages,
            count=min(self.depth, collection.n_passages // 2),
            seed=self.training.settings.seed,
            episode=1,
            epoch=batch.epoch,
            text_keys=collection.text_keys,
            contains=self.contains,
            copies=collection.copies,
        )

    def _mine(self, version: int, path: Path) -> None:
        """Publish the passages that the training queries retrieve now, without D+, unless they are published."""
        training, encoder, state = self.training, self.state.encoder, self.state
        settings, experiment = training.settings, training.experiment
        inputs = {"collection": training.data.collection.digest, "miner": encoder.digest()}
        if version:
            state = training.state(encoder, f"v{version}", experiment.layout.episode(1).version_runs(version))

        def publish() -> None:
            with experiment.timed("mine", version=version, mined=0) as facts:
                miner, queries = next(with_index(state, self.index), state), training.data.train
                pool = mine_candidates(
                    miner,
                    queries,
                    "query",
                    episode=version,
                    depth=self.depth,
                    seed=settings.seed,
                    contains=self.contains,
                )
                facts["mined"] = pool.mined
            save_pool(pool, path, settings=settings.result_values(), inputs=inputs)

        if not by_leader(is_current, path, KIND, inputs):
            _ = state.passages, state.training_queries  # all processes encode, then one mines
            by_leader(publish)
        if version:  # also if the pool was published before: that run may have been killed before this line
            state.discard("query")

"""The judge of runs: it has judgements of dev and test for measures, and positives for training queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.data.own_passages import without_pairs
from hardneg.data.training_data import TrainingData
from hardneg.evaluation.answers import check_answers, evaluate_with_answers
from hardneg.evaluation.measures import Evaluation, Measure
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import DEPTH, answers_of, no_hits, relevant
from hardneg.records import Int32, Positives, Run, distinct
from hardneg.search.bm25 import bm25_run

MOST = 0.5  # share of the passages: dev is judged among fewer than these, or among all passages


def evaluation_depth(measures: Sequence[Measure]) -> int:
    """How deep dev and test queries are searched for these measures."""
    return max(100, *(measure.searched for measure in measures))


@dataclass(frozen=True)
class Judge:
    """Judges the runs of all states of an experiment in the same way, and writes nothing but caches.

    Parameters
    ----------
    data : judgements and training queries.
    measures : the measures of dev and test; the first one decides which state is kept.
    cache : the folder of the cache of answers, and of BM25's index if ``dev_passages`` needs it.
    dev_passages : dev is judged among so many first hits of BM25 for each dev query, and the positives. If these
        are half of all passages or more, or with None, dev is judged among all passages.

    Raises
    ------
    InputError : a measure looks for answers, and the collection has none.
    """

    data: TrainingData
    measures: Sequence[Measure]
    cache: Path
    dev_passages: int | None = None

    def __post_init__(self) -> None:
        check_answers(self.measures, self.data.collection)

    @cached_property
    def contains(self) -> Contains | None:
        """The function that tells whether a passage is relevant beyond the qrels; None if only the qrels count."""
        return answers_of(self.data, self.cache)

    def depth_of(self, split: str) -> int:
        """How deep the queries of dev or test are searched: one deeper if one of them is a passage itself.

        That passage is no hit, so measures at a cut-off still have all hits that they look at.
        """
        return evaluation_depth(self.measures) + bool(len(no_hits(self.data, split)[0]))

    @cached_property
    def judged_among(self) -> Mapping[str, Int32]:
        """The rows of the passages among which a split is judged, by split; other splits are judged among all.

        Leaving out a small part of the passages would save little, and only figures among all passages are exact.
        """
        if self.dev_passages is None or self.data.dev is None:
            return {}
        run = self._dev_run
        found = self.data.dev.positives().passage_rows
        rows = distinct(np.concatenate([run.passage_rows, found])).astype(np.int32, copy=False)
        return {"dev": rows} if len(rows) < MOST * self.data.collection.n_passages else {}

    @property
    def few_of_dev(self) -> dict[str, Any]:
        """``dev_among``: what ``dev_passages`` asks for, the passages that dev is judged among, and all passages.

        Empty where the setting is not given, or there is no dev.
        """
        if self.dev_passages is None or self.data.dev is None:
            return {}
        whole = self.data.collection.n_passages
        passages = len(self.judged_among["dev"]) if self.judged_among else whole
        return {"dev_among": {"first": self.dev_passages, "passages": passages, "of": whole}}

    @property
    def without_hits(self) -> int:
        """The number of dev queries for which BM25 finds nothing, where dev is judged among its hits."""
        return int((np.diff(self._dev_run.offsets) == 0).sum()) if self.judged_among else 0

    @cached_property
    def _dev_run(self) -> Run:
        assert self.data.dev is not None
        assert self.dev_passages is not None
        return bm25_run(self.data.collection, self.data.dev.query_rows, self.dev_passages, self.cache)

    def evaluate(self, runs: Mapping[str, Run]) -> dict[str, Evaluation]:
        """The evaluation of each split that judges and has a run, in the order of :attr:`TrainingData.judged`."""
        collection = self.data.collection
        id_rank = collection.passage_ids.id_rank
        return {
            split: evaluate_with_answers(
                runs[split], qrels, self.measures, collection=collection, cache=self.cache, id_rank=id_rank
            )
            for split, qrels in self.data.judged.items()
            if split in runs
        }

    def hits(self, run: Run) -> Run:
        """The run of training queries without the hits that are their query itself."""
        return without_pairs(run, *no_hits(self.data, "query"))

    def relevant(self, run: Run, depth: int | None = DEPTH) -> Positives:
        """The passages that count as relevant in the first ``depth`` hits of training queries; None: in all."""
        return relevant(run, self.data, self.contains, depth)

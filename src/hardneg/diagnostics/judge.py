"""What decides how good a run is: judgements of dev and test for measures, positives for training queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hardneg.data.training_data import TrainingData
from hardneg.evaluation.answers import check_answers, evaluate_with_answers
from hardneg.evaluation.measures import Evaluation, Measure
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import answers_of, relevant
from hardneg.records import Int32, Positives, Run
from hardneg.search.bm25 import bm25_run

MOST = 0.5  # of the passages: dev is judged among fewer, or among all


def evaluation_depth(measures: Sequence[Measure]) -> int:
    """How deep dev and test queries are searched for these measures."""
    return max(100, *(measure.cutoff or 1000 for measure in measures))


@dataclass(frozen=True)
class Judge:
    """Scores the runs of all states of an experiment alike. Makes nothing but the cache of answers.

    Parameters
    ----------
    data : judgements and training queries.
    measures : by which dev and test are scored; the first one decides.
    cache : the folder of the cache of answers, and of BM25's index where ``dev_passages`` asks for it.
    dev_passages : judge dev among the first so many passages that BM25 finds for each of its queries, and their
        positives; None, or where these are half of the passages or more: among all.

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
        """What tells whether a passage contains an answer; None where that does not make it a positive."""
        return answers_of(self.data, self.cache)

    @property
    def depth(self) -> int:
        """How deep dev and test queries are searched."""
        return evaluation_depth(self.measures)

    @cached_property
    def judged_among(self) -> Mapping[str, Int32]:
        """The rows of the passages among which a split is judged, by split; a split without them: among all.

        To leave out a small part of the passages saves little, and figures among all of them are true ones.
        """
        if self.dev_passages is None or self.data.dev is None:
            return {}
        run = bm25_run(self.data.collection, self.data.dev.query_rows, self.dev_passages, self.cache)
        found = self.data.dev.positives().passage_rows
        rows = np.union1d(run.passage_rows, found).astype(np.int32)
        return {"dev": rows} if len(rows) < MOST * self.data.collection.n_passages else {}

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

    def relevant(self, run: Run) -> Positives:
        """The passages that count as relevant in a run of all training queries."""
        return relevant(run, self.data, self.contains)

"""Labels by answers: which passages are positives of a training query when a text that answers it is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from hardneg.data.training_data import BY_QRELS, TrainingData
from hardneg.evaluation.answers import AnswerBook
from hardneg.negatives.candidates import Contains
from hardneg.negatives.mining import Corpus, Searcher, training_depth
from hardneg.negatives.pool import NegativePool
from hardneg.records import Int32, Int64, Positives, Run, offsets_of, owners, spans
from hardneg.search.bm25 import bm25_run

DEPTH = 100  # of the reciprocal rank of training queries


def answers_of(data: TrainingData, cache: Path) -> Contains | None:
    """What tells whether a passage contains an answer; None where labels are judgements."""
    if data.labels.labels == "qrels":
        return None
    return AnswerBook(data.collection, cache, data.labels.answer_mode).contains


def current_positives(
    searcher: Searcher | Corpus, data: TrainingData, depth: int, contains: Contains | None
) -> Positives:
    """The positives of all training queries, as this model sees them.

    A query without a judged one has the highest-ranked passage that contains an answer, among the first ``depth``
    hits of its run, or none. Without a model, BM25 ranks (Karpukhin et al., 2020, Section 4.1).
    """
    judged = data.train
    if contains is None or (spans(judged.offsets) > 0).all():
        return judged
    k = training_depth(data.collection, judged, depth)
    if isinstance(searcher, Corpus):
        run = bm25_run(data.collection, judged.query_rows, k, searcher.cache)
    else:
        run = searcher.search("query", judged.query_rows, k, as_trained=True)
    return with_answers(run, judged, contains, depth)


def with_answers(run: Run, judged: Positives, contains: Contains, depth: int) -> Positives:
    """``judged``, and for queries without any the best of the first ``depth`` hits that contains an answer.

    Parameters
    ----------
    run : a list for each query of ``judged``, in its order.
    """
    assert np.array_equal(run.query_rows, judged.query_rows)
    best = run.cut(depth)
    owner = owners(best.offsets)
    found = np.flatnonzero(contains(best.query_rows[owner], best.passage_rows))
    found = found[(spans(judged.offsets) == 0)[owner[found]]]
    query, first = np.unique(owner[found], return_index=True)
    return merged(judged, query, best.passage_rows[found[first]])


def merged(judged: Positives, query: Int64, passage_rows: Int32) -> Positives:
    """``judged`` and, behind them, these passages [n] for the queries at these positions [n]."""
    owner = np.concatenate([owners(judged.offsets), query])
    order = np.argsort(owner, kind="stable")
    rows = np.concatenate([judged.passage_rows, passage_rows])[order]
    return Positives(judged.query_rows, offsets_of(np.bincount(owner, minlength=len(judged))), rows)


def with_pool_positives(data: TrainingData, pool: NegativePool) -> TrainingData:
    """``data`` with a pool's positives in place of its own: by answers, every episode may have others."""
    return replace(data, all_train=pool.positives, labels=BY_QRELS)


def relevant(run: Run, data: TrainingData, contains: Contains | None) -> Positives:
    """What counts as found in a run of all training queries: judged positives, and hits that contain an answer."""
    judged = data.train
    if contains is None:
        return judged
    best = run.cut(DEPTH)
    owner = owners(best.offsets)
    found = np.flatnonzero(contains(best.query_rows[owner], best.passage_rows))
    return merged(judged, owner[found], best.passage_rows[found])

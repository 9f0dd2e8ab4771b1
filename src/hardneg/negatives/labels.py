"""Labels by answers: finds positives of training queries among the passages that contain an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardneg.data.own_passages import NONE, are_own, own_hits
from hardneg.data.training_data import BY_QRELS, TrainingData
from hardneg.evaluation.answers import AnswerCache
from hardneg.negatives.candidates import Contains, is_known, match_answers
from hardneg.negatives.mining import Corpus, Searcher, training_depth
from hardneg.negatives.pool import NegativePool
from hardneg.records import Int32, Int64, Positives, Run, blocks, offsets_of, owners, spans
from hardneg.search.bm25 import bm25_run

DEPTH = 100  # k of the reciprocal rank of training queries


@dataclass(frozen=True)
class Relevance:
    """Tells whether passages are relevant although the collection's qrels do not say so.

    Attributes
    ----------
    by_answers : whether passages contain an answer, where labels are by answers.
    """

    data: TrainingData
    by_answers: Contains | None

    def __call__(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is relevant to its query [n], or is the query itself."""
        return self.taught(query_rows, passage_rows) | self.no_negative(query_rows, passage_rows)

    def no_negative(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether it is the query itself or relevant to an equal query, so that no list needs the passage."""
        return self.data.no_negative(query_rows, passage_rows)

    def relevant(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether each passage [n] is relevant to its query [n]; the query itself is not."""
        return self.taught(query_rows, passage_rows) | self.data.of_equal_query(query_rows, passage_rows)

    def taught(self, query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        """Whether it is so by answers and people alone, and not because an equal query has the passage.

        An answer in the passage that is the query itself, or in a copy of it, says nothing.
        """
        found, text_keys = np.zeros(len(query_rows), bool), self.data.collection.text_keys
        if self.by_answers is not None:
            found |= self.by_answers(query_rows, passage_rows)
            found &= ~are_own(query_rows, passage_rows, self.data.own, text_keys)
        judgements = self.data.judgements
        if judgements is not None:
            found &= ~judgements.are(query_rows, passage_rows, "negative")
            found |= judgements.are_relevant(query_rows, passage_rows, text_keys)
        return found


def answers_of(data: TrainingData, cache: Path) -> Contains | None:
    """The function that tells whether a passage is relevant although the collection's qrels do not say so.

    A passage is relevant if people judged it relevant, or a passage with the same text. It is also relevant,
    unless people judged it negative, if it is a positive of another query with the same text or was judged
    relevant to that, and with labels by answers if it contains an answer. A passage that is its query itself is no
    negative either. The result is None if labels are by qrels, people judged nothing, no two queries have the same
    text, and no query is a passage.
    """
    by_answers = data.by_answers
    book = AnswerCache(data.collection, cache, data.labels.answer_mode).contains if by_answers else None
    if data.judgements is None and data.equal_queries is None and not len(data.own[0]):
        return book
    return Relevance(data, book)


def no_hits(data: TrainingData, name: str) -> tuple[Int32, Int32]:
    """The queries of a run that are passages themselves, and these passages (both [m]): they are no hits.

    Parameters
    ----------
    name : ``query``, the training queries, or a split that is judged; other runs keep all hits.
    """
    if name == "query":
        known = data.train if data.judgements is None else data.judgements.with_relevant(data.train)
        return own_hits(known, data.collection)
    if name in data.judged:
        return own_hits(data.judged[name].positives(), data.collection)
    return NONE


def current_positives(
    searcher: Searcher | Corpus, data: TrainingData, depth: int, contains: Contains | None
) -> Positives:
    """The positives of all training queries, as this model sees them (:func:`positives_by`).

    Without a model, BM25 ranks (Karpukhin et al., 2020, Section 4.1).
    """
    judged = data.train
    if contains is None or (spans(judged.offsets) > 0).all():
        return judged
    k = training_depth(data.collection, judged, depth)
    if isinstance(searcher, Corpus):
        run = bm25_run(data.collection, judged.query_rows, k, searcher.cache)
    else:
        run = searcher.search("query", judged.query_rows, k, as_trained=True)
    return positives_by(run, judged, data, depth, contains)


def positives_by(run: Run, judged: Positives, data: TrainingData, depth: int, contains: Contains) -> Positives:
    """The positives of training queries, as the model or BM25 sees them that made this run of the queries.

    A query without a judged positive gets the highest-ranked passage that contains an answer, among its first
    ``depth`` hits. If there is no such passage, it has no positive. A passage that people labelled ``relevant``
    is not taken, nor a copy of it, as it is no positive to train on.

    Parameters
    ----------
    judged : the queries of ``run``, in the same order, with their judged positives.
    """
    taught = contains.taught if isinstance(contains, Relevance) else contains
    judgements, text_keys = data.judgements, data.collection.text_keys

    def may_teach(query_rows: Int32, passage_rows: Int32) -> NDArray[np.bool_]:
        found = taught(query_rows, passage_rows)
        # What is labelled positive stands in ``train``: its query is not asked for.
        return (
            found if judgements is None else found & ~judgements.are_relevant(query_rows, passage_rows, text_keys)
        )

    return with_answers(run, judged, contains, depth, may_teach)


def with_answers(
    run: Run, judged: Positives, contains: Contains, depth: int, may_teach: Contains | None = None
) -> Positives:
    """Give each query without a positive the highest-ranked of its first ``depth`` hits that contains an answer.

    Parameters
    ----------
    run : one list for each query of ``judged``, in the same order.
    may_teach : whether a passage may become a positive; None: each that contains an answer may.
    """
    assert np.array_equal(run.query_rows, judged.query_rows)
    best = run.cut(depth)
    match_answers(best, contains)
    owner, rows = hits_that(contains if may_teach is None else may_teach, best)
    lacking = (spans(judged.offsets) == 0)[owner]
    query, first = np.unique(owner[lacking], return_index=True)
    return merged(judged, query, rows[lacking][first])


def hits_that(are: Contains, run: Run) -> tuple[Int64, Int32]:
    """The hits of a run that ``are`` what is asked for: the position of each one's query, and its passage row.

    They are asked for in blocks of queries, so memory beyond the result is bounded.
    """
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int32))]
    for start, stop in blocks(run.offsets):
        owner = owners(run.offsets[start : stop + 1]) + start
        rows = run.passage_rows[run.offsets[start] : run.offsets[stop]]
        at = np.flatnonzero(are(run.query_rows[owner], rows))
        found.append((owner[at], rows[at]))
    owner, rows = (np.concatenate(part) for part in zip(*found, strict=True))
    return owner, rows


def merged(judged: Positives, query: Int64, passage_rows: Int32) -> Positives:
    """Append passages [n] to the positives of the queries at the positions ``query`` [n]."""
    owner = np.concatenate([owners(judged.offsets), query])
    order = np.argsort(owner, kind="stable")
    rows = np.concatenate([judged.passage_rows, passage_rows])[order]
    return Positives(judged.query_rows, offsets_of(np.bincount(owner, minlength=len(judged))), rows)


def with_pool_positives(data: TrainingData, pool: NegativePool) -> TrainingData:
    """Replace the positives of ``data`` by a pool's: with labels by answers they differ between episodes."""
    return replace(data, all_train=pool.positives, labels=BY_QRELS, before=data.before or data)


def relevant(run: Run, data: TrainingData, contains: Contains | None, depth: int | None = DEPTH) -> Positives:
    """The passages that count as relevant in a run of all training queries: positives, and hits with an answer.

    Each counts once, also a positive that contains an answer. Answers are looked for in the first ``depth`` hits
    of each query; None: in all of them.
    """
    judged = data.train
    if contains is None:
        return judged
    counts = contains.relevant if isinstance(contains, Relevance) else contains
    best = run if depth is None else run.cut(depth)
    match_answers(best, contains)
    owner, rows = hits_that(counts, best)
    new = ~is_known(judged, owner, rows)
    return merged(judged, owner[new], rows[new])

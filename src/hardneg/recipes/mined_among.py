"""Mining without embedding the whole corpus: only for queries that will be trained on, among BM25's hits for them.

If training is short and the corpus is large, most of the time goes into vectors that no step ever uses. The
passages that a model confuses with the positive are mostly among the hits of BM25 for one of the queries. So the
model ranks only these hits and the positives.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hardneg.data.training_data import TrainingData
from hardneg.experiment.layout import runs_of_part
from hardneg.experiment.snapshot import Snapshot
from hardneg.negatives.groups import epoch_order
from hardneg.negatives.labels import answers_of, current_positives
from hardneg.negatives.mining import Corpus
from hardneg.process.distributed import by_leader
from hardneg.recipes.cost_model import ALL_OF_THEM, Part
from hardneg.recipes.measured_states import judge_of
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Int32, Positives, distinct
from hardneg.search.bm25 import bm25_run

SPARE = 1.25  # queries mined for each query that the schedule needs, because some may get no negative


def embeds_all(training: TrainingRun) -> bool:
    """Whether all passages are embedded anyway with the model that mines, so that it can mine among all of them.

    They are embedded for a test split, for dev among all passages, for diagnostics of the training queries, and if
    the model that training starts from also filters or masks.
    """
    settings, data = training.settings, training.data
    if settings.examine == "all" or data.dev is None or data.test is not None or settings.keeps_start:
        return True
    return by_leader(lambda: not judge_of(settings, data, training.experiment.cache).judged_among)


def visited(positives: Positives, *, needed: int, seed: int) -> Positives:
    """The queries that training visits first, a quarter more than ``needed``; all queries, if there are fewer.

    These are the first queries in the order of the first epoch.
    """
    order = epoch_order(positives.query_rows, seed=seed, episode=0, epoch=0)
    return positives.select(np.sort(order[: math.ceil(SPARE * needed)]))


def positives_by_bm25(training: TrainingRun, queries: Positives, depth: int) -> Positives:
    """The positives of these queries; with labels by answers, BM25 finds them for queries without judged ones."""
    cache = training.experiment.cache
    contains = answers_of(training.data, cache)
    data = replace(training.data, all_train=queries)
    return current_positives(Corpus(data.collection, cache), data, depth, contains)


def passages_for(training: TrainingRun, positives: Positives, hits: int) -> Int32:
    """Rows of the first ``hits`` passages that BM25 finds for each query, and of the positives; ascending."""
    found = bm25_run(training.data.collection, positives.query_rows, hits, training.experiment.cache)
    return distinct(np.concatenate([found.passage_rows, positives.passage_rows])).astype(np.int32, copy=False)


def part_mined(data: TrainingData, hits: int | None, *, needed: int) -> Part:
    """The part of passages and queries that a state mines; the passages may be fewer, if queries share hits."""
    if hits is None:
        return ALL_OF_THEM
    every = len(data.train)
    queries = min(SPARE * needed, every)
    each = hits + len(data.train.passage_rows) / every
    return Part(min(each * queries / max(data.collection.n_passages, 1), 1.0), queries / every)


def limited_miner(state: Snapshot, passages: Int32) -> Snapshot:
    """The state as it mines among these passages: no other passage is embedded."""
    miner = state.limited(passages, alone=True)
    miner.folder = runs_of_part(state.folder)
    miner.keeps = False  # other experiments hardly mine among the same passages
    return miner

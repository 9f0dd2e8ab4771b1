"""Training groups as arrays: which passages a step scores, and which (query, passage) pairs are no negatives."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.data.tokens import TokenStore
from hardneg.data.training_data import NO_ROWS, TrainingData
from hardneg.errors import InputError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.packing import upload
from hardneg.negatives.groups import draw_groups, epoch_order, usable
from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.process.distributed import is_leader
from hardneg.process.hardware import Precision
from hardneg.records import Int32, Int64, Positives, Side, TokenBatch, offsets_of, owners
from hardneg.training.counted_tokens import counted
from hardneg.training.gradient_cache import cached
from hardneg.training.sharing import shared

log = logging.getLogger(__name__)

MANY = 0.25  # share of the training queries; if more are skipped, the warning says what to do
EITHER = "negative or no positive"
FEW_NEGATIVES = (
    "mine deeper, or widen the bounds on scores; train a model that is new to search with in-batch negatives first"
)
PROBE_EVERY = 50  # steps between two measurements of the gradient by source and by layer

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class GroupBatch:
    """Queries with one positive and N hard negatives each; the positive stands in column 0."""

    query_rows: Int32  # [b]
    passage_rows: Int32  # [b, 1 + N], flattened to b * (1 + N) columns of scores
    step_queries: int  # queries of the whole optimiser step; the loss is their mean
    micro_queries: int | None = None  # queries of a micro-batch; None: the step is one micro-batch
    sources: NDArray[np.uint8] | None = None  # [b, N] codes of the negatives; None if the gradient is not measured
    positives: Positives | None = None  # D+ of the training queries in force, if it changes while training goes on

    def micro(self) -> Sequence[GroupBatch]:
        """The micro-batches, in order."""
        alone, queries = self.passage_rows.shape[1] == 1, len(self.query_rows)
        sizes = micro_sizes(queries, self.micro_queries or max(queries, 1), alone=alone)
        return [
            replace(
                self,
                query_rows=self.query_rows[stop - size : stop],
                passage_rows=self.passage_rows[stop - size : stop],
                micro_queries=None,
                sources=self.sources if size == queries else None,
            )
            for size, stop in zip(sizes, accumulate(sizes), strict=True)
        ]

    def distinct(self) -> tuple[Int32, Int64]:
        """The distinct passages [u], and the place of every column [b * (1 + N)] among them."""
        rows, place = np.unique(self.passage_rows, return_inverse=True)
        return rows, place.reshape(-1).astype(np.int64)

    def targets(self) -> Int64:
        """The column of each query's positive [b]."""
        return np.arange(len(self.query_rows), dtype=np.int64) * self.passage_rows.shape[1]


def micro_sizes(queries: int, most: int, *, alone: bool) -> list[int]:
    """The sizes of a step's micro-batches: ``most`` queries in each, and in the last one those that are left.

    Parameters
    ----------
    alone : whether a group is a positive alone. A query left alone would then learn nothing: the parts are nearly
        equal, of at least 2 queries. So with ``most`` = 2, one part of an odd step has 3.
    """
    if not alone:
        return [min(most, queries - start) for start in range(0, queries, most)]
    parts = max(min(math.ceil(queries / most), queries // 2), 1)
    return [len(part) for part in np.array_split(np.arange(queries), parts) if len(part)]


def trainable(pool: NegativePool, negatives: int) -> Int64:
    """Positions of the queries that can train: they have a positive and, if ``negatives`` is not 0, a negative.

    A warning in the log counts the queries that cannot.

    Raises
    ------
    InputError : no query can train, or one alone without negatives of its own.
    """
    positions = usable(pool, negatives)
    if not len(positions):
        what = f"none of {len(pool)} training queries has a {'negative' if negatives else 'positive'}"
        what = what if len(pool) else "the pool holds no query: all were left out"
        raise InputError("NO_NEGATIVES", what, f"{FEW_NEGATIVES}; other settings need a new folder")
    if not negatives and len(positions) == 1:
        what = "a single query is trained on, but its negatives are the passages of other queries"
        raise InputError("NO_NEGATIVES", what, "give more queries, or mine negatives")
    warn_of_skipped(pool, positions, negatives)
    return positions


def warn_of_skipped(pool: NegativePool, positions: Int64, negatives: int) -> None:
    """Count in the log the queries of a pool that are not among ``positions``, because they cannot train."""
    if skipped := len(pool) - len(positions):
        lacks = "positive" if not negatives else "negative" if np.diff(pool.positive_offsets).all() else EITHER
        words = ("has", "is") if skipped == 1 else ("have", "are")
        told = f"{skipped:,} of {len(pool):,} training queries {words[0]} no {lacks}, and {words[1]} skipped"
        log.warning("%s%s", told, f"; {FEW_NEGATIVES}" if skipped > MANY * len(pool) else "")


class VisitBatches:
    """The batch of every step: queries in a shuffled order of each epoch, with negatives from a pool.

    Parameters
    ----------
    queries_per_step : B; the last step of an epoch has the queries that are left. One that is left alone, without
        negatives of its own, would learn nothing: the query before it is there again.
    positives : D+(q) of the training queries. The order of an epoch depends only on their rows, the seed and the
        ``episode``.
    pool_at : step -> the pool of these queries that is in force at this step.
    negatives : N, the negatives of each query; 0 takes none.
    varying : whether the pools in force differ in their positives, as with labels by answers. Each batch then
        carries those of its pool.
    positions : if the pool never changes, the positions of the queries that can train with it; an epoch has these
        queries. None: an epoch has all queries, and a step leaves out queries that have no negative in the pool in
        force. If no query of a step has a negative, the step takes the next queries of the epoch that have one.
    rotate : change a query's positive from epoch to epoch, instead of always taking the first.
    fresh : draw the negatives of a query anew at every visit; otherwise one returns only after all others.

    Raises
    ------
    InputError : no query of the pool in force has a negative.
    """

    def __init__(
        self,
        positives: Positives,
        pool_at: Callable[[int], NegativePool],
        *,
        queries_per_step: int,
        negatives: int,
        seed: int,
        positions: Int64 | None = None,
        episode: int = 0,
        rotate: bool = True,
        fresh: bool = True,
        micro_queries: int | None = None,
        varying: bool = False,
    ) -> None:
        self.fresh, self.varying = fresh, varying
        self.told: set[int] | None = set() if positions is None else None  # else others have counted them
        self.positions = np.arange(len(positives)) if positions is None else positions
        self.rows, self.pool_at, self.episode = positives.query_rows[self.positions], pool_at, episode
        self.queries_per_step, self.negatives, self.micro_queries = queries_per_step, negatives, micro_queries
        self.seed, self.rotate = seed, rotate
        self.order_of_epoch = lru_cache(1)(self._order)
        self.seen: tuple[NegativePool, Bool] | None = None

    def _order(self, epoch: int) -> Int64:
        return self.positions[epoch_order(self.rows, seed=self.seed, episode=self.episode, epoch=epoch)]

    def _usable(self, pool: NegativePool) -> Bool:
        """Whether each query [Q] can train with the pool in force; computed once for each pool."""
        if self.seen is None or self.seen[0] is not pool:
            able, mask = usable(pool, self.negatives), np.zeros(len(pool), bool)
            mask[able] = True
            self.seen = pool, mask
            if self.told is not None and len(able) not in self.told and is_leader():
                self.told.add(len(able))
                warn_of_skipped(pool, able, self.negatives)
        return self.seen[1]

    def _chosen(self, pool: NegativePool, epoch: int, first: int) -> Int64:
        """The queries [b] of the step that begins at the place ``first`` of an epoch."""
        order, size, able = self.order_of_epoch(epoch), self.queries_per_step, self._usable(pool)
        alone = first == len(order) - 1 and not self.negatives
        chosen = order[max(first - alone, 0) : first + size]
        chosen = chosen[able[chosen]]
        if len(chosen):
            return chosen
        if np.count_nonzero(able) < (1 if self.negatives else 2):
            trainable(pool, self.negatives)  # raises
        following = np.roll(order, -first)
        return following[able[following]][:size]

    def __call__(self, step: int) -> GroupBatch:
        """The batch of step ``step`` (from 0)."""
        pool = self.pool_at(step)
        epoch, place = divmod(step, math.ceil(len(self.positions) / self.queries_per_step))
        chosen = self._chosen(pool, epoch, place * self.queries_per_step)
        groups = draw_groups(
            pool, chosen, epoch, size=self.negatives, seed=self.seed, rotate=self.rotate, fresh=self.fresh
        )
        rows = np.column_stack([groups.positive_rows, groups.negative_rows])
        sources = groups.sources if step % PROBE_EVERY == 0 else None
        in_force = pool.positives if self.varying else None
        return GroupBatch(groups.query_rows, rows, len(chosen), self.micro_queries, sources, in_force)


class KnownPositives:
    """Finds the passages that are positives of a query or have the same text as one of its positives.

    Parameters
    ----------
    positives : D+(q) of the training queries, ascending by query row.
    text_keys : uint64 [n_passages], equal for equal texts.
    data : the data, which know of positives of other queries with the same text; None: these are not asked for.
    """

    def __init__(
        self, positives: Positives, text_keys: NDArray[np.uint64], data: TrainingData | None = None
    ) -> None:
        self.positives, self.text_keys, self.data = positives, text_keys, data

    def mask(self, query_rows: Int32, passage_rows: Int32) -> Bool:
        """The mask [b, p] that is true where passage j is a positive of query i or has the text of one."""
        known = self.positives.select(np.searchsorted(self.positives.query_rows, query_rows))
        keys = self.text_keys[known.passage_rows]
        mask = np.zeros((len(query_rows), len(passage_rows)), bool)
        np.logical_or.at(mask, owners(known.offsets), keys[:, None] == self.text_keys[passage_rows][None, :])
        if self.data is not None and self.data.equal_queries is not None:
            having = np.flatnonzero(np.isin(query_rows, self.data.equal_queries.query_rows))
            pairs = np.repeat(query_rows[having], len(passage_rows)), np.tile(passage_rows, len(having))
            mask[having] |= self.data.of_equal_query(*pairs).reshape(len(having), len(passage_rows))
        return mask


def no_negatives(data: TrainingData, *, masked: bool) -> KnownPositives | None:
    """Finds the passages that are no negatives, besides D+: those with its texts, and :meth:`TrainingData.spared`.

    If they are not ``masked``, only the latter are found; None: nothing is.
    """
    if masked:
        return KnownPositives(data.known, data.collection.text_keys, data)
    none = replace(data.train, offsets=np.zeros_like(data.train.offsets), passage_rows=NO_ROWS)
    spared = data.spared(none)
    return KnownPositives(spared, data.collection.text_keys) if len(spared.passage_rows) else None


def masked_columns(batch: GroupBatch, known: KnownPositives | None, *, in_batch: bool) -> Bool:
    """The mask [b, b * (1 + N)] of columns that are no negatives of a query.

    Parameters
    ----------
    known : masks every known positive of a query, and those that the batch carries, also the one in its own group.
        None masks no positive, as in the published code; the targets of a loss say which column is the positive.
    in_batch : whether other queries' passages serve as negatives.
    """
    queries, width = batch.passage_rows.shape
    mask = np.zeros((queries, queries * width), bool)
    if known is not None:
        rows, place = batch.distinct()
        mask |= known.mask(batch.query_rows, rows)[:, place]
        if batch.positives is not None:
            mask |= KnownPositives(batch.positives, known.text_keys).mask(batch.query_rows, rows)[:, place]
    if not in_batch:
        own = owners(offsets_of(np.full(queries, width)))
        mask |= own[None, :] != np.arange(queries)[:, None]
    return mask


def source_columns(batch: GroupBatch) -> dict[str, Bool]:
    """For each source, the mask [b, b * (1 + N)] of each query's own negatives from this source.

    The name ``in_batch`` has the mask of all passages in the groups of other queries.
    """
    assert batch.sources is not None
    queries, width = batch.passage_rows.shape
    own = np.zeros((queries, queries, width), np.uint8)
    own[np.arange(queries), np.arange(queries), 1:] = batch.sources + 1
    own[np.arange(queries), np.arange(queries), 0] = 255  # a positive has no source
    flat = own.reshape(queries, queries * width)
    found = {SOURCES[code]: flat == code + 1 for code in np.unique(batch.sources).tolist()}
    return found | {"in_batch": flat == 0}


def group_scores(
    encoder: BiEncoder,
    batch: GroupBatch,
    queries: TokenStore,
    passages: TokenStore,
    precision: Precision,
    *,
    cache_tokens: int | None = None,
) -> Tensor:
    """Raw float32 scores [b, b * (1 + N)] of every query and every column; each distinct passage is encoded once.

    If passages are documents of several chunks, a document has the score of its best chunk (ANCE, MaxP). If there
    are several processes, each encodes a part, and all get all scores.

    Parameters
    ----------
    cache_tokens : encode in chunks of so many tokens (gradient cache); None: all at once.
    """

    def encode(tokens: TokenBatch, side: Side) -> Tensor:
        with torch.autocast(encoder.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return encoder.encode(tokens, side)

    rows, place = batch.distinct()
    tokens, chunks = passages.read_documents(rows)
    by = counted(shared(cached(encode, cache_tokens) if cache_tokens else encode))
    q, p = encoder.encode_pair(queries.read(batch.query_rows), tokens, by)
    scores = q @ p.T
    if chunks is not None:
        scores = best_chunks(scores, chunks)
    return scores[:, upload(place, encoder.device)]


def best_chunks(scores: Tensor, chunks: Int64) -> Tensor:
    """The highest score of each document's chunks [b, documents]; chunks that tie share the gradient.

    Parameters
    ----------
    scores : [b, C] the scores of all chunks.
    chunks : [documents + 1] offsets of each document's chunks.
    """
    owner = upload(owners(chunks), scores.device).expand(len(scores), -1)
    best = scores.new_full((len(scores), len(chunks) - 1), float("-inf"))
    return best.scatter_reduce(1, owner, scores, "amax")

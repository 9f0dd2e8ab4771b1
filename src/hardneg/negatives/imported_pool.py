"""Negatives that were made elsewhere, as those of an episode: a pool as it is, or the source ``file``."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from hardneg.data.collection import Collection
from hardneg.errors import SettingsError
from hardneg.keyed_random import UInt64
from hardneg.negatives.candidates import Contains, Filters, without_answers, without_known
from hardneg.negatives.groups import usable
from hardneg.negatives.pool import SOURCES, NegativePool
from hardneg.negatives.sources import draw_entries, log_shortfall, sample_source
from hardneg.records import Positives, Run, spans

log = logging.getLogger(__name__)


def drop_untrainable(pool: NegativePool, contains: Contains | None) -> NegativePool:
    """The pool without queries that lack a positive or a negative; as it is without ``contains``."""
    if contains is None:
        return pool
    lacking = int(np.count_nonzero(spans(pool.positive_offsets) == 0))
    kept = usable(pool)
    if len(kept) < len(pool):
        found = f"{lacking} have no positive, {len(pool) - len(kept) - lacking} no negative"
        log.warning("%d of %d queries are skipped: %s", len(pool) - len(kept), len(pool), found)
    return pool.select(kept)


def import_pool(
    given: NegativePool,
    positives: Positives,
    episode: int,
    text_keys: UInt64,
    contains: Contains | None = None,
) -> NegativePool:
    """The pool of ``episode`` made of one from elsewhere: for the queries of ``positives``, without these.

    Entries keep how many episodes older than their pool they are. With ``contains``, as for :func:`mine_pool`.
    """
    ours = without_answers(without_known(given.align(positives), text_keys), contains)
    ours = replace(ours, episode=episode, episodes=ours.episodes + np.int32(episode - given.episode))
    return drop_untrainable(ours, contains)


def from_file(
    given: Run | NegativePool,
    positives: Positives,
    collection: Collection,
    *,
    episode: int,
    depth: int,
    count: int | None,
    seed: int,
    filters: Filters,
    contains: Contains | None,
) -> NegativePool:
    """The source ``file``: hits of a run as of any search, or entries of a pool as they are, without positives."""
    if filters.margin:
        raise SettingsError(
            "NO_MARGIN", "a file does not say the positives' scores", "filter by rank or max_score"
        )
    if isinstance(given, Run):
        return sample_source(
            given,
            positives,
            source="file",
            episode=episode,
            depth=depth,
            count=count,
            seed=seed,
            filters=filters,
            text_keys=collection.text_keys,
            contains=contains,
        )
    ours = without_answers(import_pool(given, positives, episode, collection.text_keys), contains)
    n = len(ours.passage_rows)
    ours = replace(
        ours,
        sources=np.full(n, SOURCES.index("file"), np.uint8),
        episodes=np.full(n, episode, np.int32),
        anchors=np.full(n, -1, np.int32),
    )
    if count is not None:
        ours = draw_entries(ours, count, seed=seed)
        log_shortfall("file", ours, count)
    return ours

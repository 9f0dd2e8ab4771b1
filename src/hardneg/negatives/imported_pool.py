"""Uses negatives from outside an experiment in an episode: a whole pool, or lists as the source ``file``."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

import numpy as np

from hardneg.data.collection import Collection
from hardneg.errors import SettingsError
from hardneg.keyed_random import UInt64
from hardneg.negatives.candidates import ALL, Contains, Filters, check_scores, without_answers, without_known
from hardneg.negatives.groups import usable
from hardneg.negatives.pool import SOURCES, NegativePool, names_of
from hardneg.negatives.sources import Keep, draw_entries, log_shortfall, sample_source
from hardneg.records import Int32, Positives, Run, owners, spans

log = logging.getLogger(__name__)


def drop_untrainable(pool: NegativePool) -> NegativePool:
    """Remove the queries without a positive or a negative from a pool, and warn if there are any.

    This is done with labels by answers, whose queries may lack a positive. Other pools keep all their queries.
    """
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
    *,
    by_answers: bool = False,
) -> NegativePool:
    """Make the pool of ``episode`` from a pool of another experiment, for the queries of ``positives``.

    Positives and copies of them are removed. An entry that was k episodes older than the given pool is k episodes
    older than ``episode``. ``contains`` and ``by_answers`` are used as in :func:`mine_pool`. Entries keep their
    sources, and the pool says that all of these are given.
    """
    ours = without_answers(without_known(given.align(positives), text_keys), contains)
    ours = replace(ours, episode=episode, episodes=ours.episodes + np.int32(episode - given.episode))
    ours = replace(ours, filtered={}, copies={}, given=names_of(ours.sources))
    return drop_untrainable(ours) if by_answers else ours


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
    keep: Keep | None = None,
) -> NegativePool:
    """Draw the negatives of the source ``file`` from a run or a pool that the user gave, without positives.

    A run is treated as the run of a search: ``depth`` and ``filters`` apply. To a pool only
    ``filters`` apply, by the ranks and scores that it stores, after :func:`without_copies`. Then ``keep`` says
    which candidates stay. With ``count``, so many are drawn for each query.

    Raises
    ------
    SettingsError : there is a margin, which files cannot answer.
    """
    check_scores(["file"], filters, by_model=False)
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
            keep=keep,
            copies=collection.copies,
        )
    ours = without_copies(import_pool(given, positives, episode, collection.text_keys), collection.copies)
    ours = file_within(without_answers(ours, contains), filters)
    n = len(ours.passage_rows)
    ours = replace(
        ours,
        sources=np.full(n, SOURCES.index("file"), np.uint8),
        episodes=np.full(n, episode, np.int32),
        anchors=np.full(n, -1, np.int32),
        given=(),
    )
    ours = ours if keep is None else keep(ours)
    if count is not None:
        ours = draw_entries(ours, count, seed=seed)
        log_shortfall("file", ours, count)
    return ours


def without_copies(pool: NegativePool, copies: Int32 | None) -> NegativePool:
    """The entries of a pool from a file without passages whose text an earlier passage of their list has.

    A list has the entries of a query from one of the pool's own sources. A passage that stands in it twice stays
    so, as entries are weighed by their number.

    Parameters
    ----------
    copies : [n_passages] the first passage with the same text, -1 where there is no other; None: all texts differ.
    """
    if copies is None:
        return pool
    text = copies[pool.passage_rows]
    at = np.flatnonzero(text >= 0)
    owner = np.searchsorted(pool.offsets, at, side="right") - 1
    lists = owner * len(SOURCES) + pool.sources[at]
    _, first, which = np.unique(lists << 31 | text[at], return_index=True, return_inverse=True)
    keep = np.ones(len(text), bool)
    keep[at] = pool.passage_rows[at] == pool.passage_rows[at[first]][which]
    again = len(keep) - int(np.count_nonzero(keep))
    if not again:
        return pool
    log.info("file: %d candidates are left out, because a better one of their query has the same text", again)
    return replace(pool.keep(keep), copies={"file": again})


def file_within(pool: NegativePool, filters: Filters) -> NegativePool:
    """The entries of a pool from a file whose ranks and scores are within the bounds.

    An entry without a rank or a score, as of the source ``random``, is not bounded by it. The highest scores are
    those of a query from one of the pool's own sources, whose scores alone are on one scale.
    """
    if filters == ALL:
        return pool
    ranks, scores = pool.ranks, pool.scores
    unscored = np.isnan(scores)
    keep = filters.on_ranks.accept(ranks, scores) | (ranks < 1)
    keep &= filters.on_scores.accept(ranks, scores) | unscored
    at = np.flatnonzero(keep & ~unscored)
    each_source = owners(pool.offsets) * len(SOURCES) + pool.sources.astype(np.int64)
    keep[at] = filters.highest(scores[at], each_source[at])
    return replace(pool.keep(keep), filtered={"file": int(np.count_nonzero(~keep))})


def check_answerable(pool: NegativePool, filters: Filters) -> None:
    """Refuse bounds on ranks or scores that no entry of a pool has, as in lists that have ids alone."""
    of_scores = "leave it out, or give --filter-by, whose scores it then bounds"
    lacking = (
        ("rank", filters.on_ranks, pool.ranks < 1, "leave it out, or give a run"),
        ("score", filters.on_scores, np.isnan(pool.scores), of_scores),
    )
    for what, bounds, without, fix in lacking:
        if bounds != ALL and len(without) and without.all():
            named = ", ".join(name for name, value in asdict(bounds).items() if value != getattr(ALL, name))
            raise SettingsError("BAD_SETTING", f"{named} on negatives of a file, which have no {what}", fix)

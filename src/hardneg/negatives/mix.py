"""Mixing sources into a training pool: teleportation negatives (ANCE-Tele, Eqs. 4-8 and Appendix C.2)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ArtifactError, SettingsError
from hardneg.keyed_random import UInt64
from hardneg.negatives.candidates import ALL, Filters, without_known
from hardneg.negatives.facts import realized
from hardneg.negatives.pool import (
    COUNTS,
    ENTRY_ARRAYS,
    NegativePool,
    all_counts,
    names_of,
    one_ranker,
    repeats,
    scale_of,
    scores_in,
)
from hardneg.negatives.sources import draw_entries, log_shortfall
from hardneg.records import Int64, offsets_of, owners, spans

log = logging.getLogger(__name__)

Mode = Literal["weighted", "accumulate"]


class Quotas(NamedTuple):
    """How many entries each query should get from each part (all [Q])."""

    query: Int64
    lookahead: Int64
    momentum: Int64


def nearest(x: NDArray[np.floating] | float) -> NDArray[np.int64]:
    """Round to the nearest integer, halves up; a value within 1e-9 below a half counts as a half."""
    return np.floor(np.asarray(x) + (0.5 + 1e-9)).astype(np.int64)


def quotas(old: Int64, *, size: int, alpha: float, beta: float, mode: Mode = "weighted") -> Quotas:
    """The number of entries wanted from each part of the mix (ANCE-Tele, Appendix C.2).

    The newly mined part has ``size`` = 2n entries; ``nearest(size * beta)`` of them are lookahead negatives.
    Momentum has ``nearest(size * alpha / (1 - alpha))`` entries. If a query has fewer ``old`` [Q] entries, all of
    them are used, and its new part shrinks to ``nearest(old * (1 - alpha) / alpha)``. A query without old entries
    gets what it gets in episode 1: a whole new part and no momentum. ``accumulate`` takes all old entries and
    never shrinks the new part.
    """
    new = np.full(len(old), size, np.int64)
    if mode == "accumulate":
        momentum = old
    else:
        wanted = nearest(size * alpha / (1 - alpha))
        momentum = np.minimum(old, wanted)
        few = (old < wanted) & (old > 0)
        new[few] = nearest(old[few] * (1 - alpha) / alpha)
    lookahead = nearest(new * beta)
    return Quotas(new - lookahead, lookahead, momentum)


def union(pools: Sequence[NegativePool]) -> NegativePool:
    """The multiset union, query by query, of pools of the same queries in the same order.

    The scores of a ranker are kept if the same ranker scored all pools that have entries.
    """
    lengths = np.stack([spans(pool.offsets) for pool in pools])
    offsets = offsets_of(lengths.sum(axis=0))
    starts = offsets[:-1] + np.cumsum(lengths, axis=0) - lengths  # [pools, Q]
    arrays: dict[str, Any] = {name: np.empty(offsets[-1], getattr(pools[0], name).dtype) for name in ENTRY_ARRAYS}
    ranker = one_ranker(pools)
    arrays |= {"ranker_scores": np.empty(offsets[-1], np.float32)} if ranker else {}
    for pool, start in zip(pools, starts, strict=True):
        assert np.array_equal(pool.query_rows, pools[0].query_rows)
        to = np.arange(len(pool.passage_rows)) + (start - pool.offsets[:-1])[owners(pool.offsets)]
        for name, array in arrays.items():
            array[to] = scores_in(pool, name) if name == "ranker_scores" else getattr(pool, name)
    counts: dict[str, Any] = {name: all_counts(pools, name) for name in COUNTS}
    scored: dict[str, Any] = {"ranker": ranker, "ranker_scale": scale_of(pools, ranker)}
    mixed = replace(pools[0], offsets=offsets, given=given_alone(pools), **arrays, **counts, **scored)
    if not ranker:
        return replace(mixed, ranker_scores=None, positive_scores=None)
    positives = next(pool.positive_scores for pool in pools if pool.ranker == ranker)
    return replace(mixed, positive_scores=positives)


def given_alone(pools: Sequence[NegativePool]) -> tuple[str, ...]:
    """The sources that are given in some of these pools, and mined in none of them."""
    given = dict.fromkeys(name for pool in pools for name in pool.given)
    mined = {name for pool in pools if given for name in names_of(pool.sources[pool.drawn])}
    return tuple(name for name in given if name not in mined)


def balanced(pools: Sequence[NegativePool], seed: int, *, least: int = 0) -> list[NegativePool]:
    """The pools, one of each source, with equally many entries for each query.

    The number is that of the source with the fewest entries of the query, apart from sources without any. If that
    comes to fewer than ``least`` in all, the sources that have more fill up.
    """
    if not pools:
        return []
    lengths = np.stack([spans(pool.offsets) for pool in pools])
    share = np.where(lengths > 0, lengths, np.iinfo(np.int64).max).min(axis=0)
    share = np.minimum(share, lengths.max(axis=0))  # 0 where no source has any
    for _ in range(least):
        short = (np.minimum(lengths, share).sum(axis=0) < least) & (share < lengths.max(axis=0))
        share[short] += 1
    return [draw_entries(pool, share, seed=seed, purpose="balance") for pool in pools]


def teleport(
    query: NegativePool,
    lookahead: NegativePool | None,
    momentum: NegativePool | None,
    *,
    alpha: float,
    beta: float,
    size: int,
    seed: int,
    extra: Sequence[NegativePool] = (),
    mode: Mode = "weighted",
    dedup: bool = False,
    text_keys: UInt64 | None = None,
    filters: Filters = ALL,
) -> NegativePool:
    """Make the training pool of an episode: query + lookahead + momentum + extra sources, keeping repeats.

    Parameters
    ----------
    query, lookahead : all candidates of the newly mined sources. The result has the queries, positives
        and episode of ``query``.
    momentum : the previous episode's training pool (None in episode 1). The positives of ``query`` and passages
        with the same text are removed from it before its entries are counted and drawn; entries keep their
        provenance.
    alpha, beta : in [0, 1); alpha 0 is the ablation without momentum, beta 0 the one without lookahead.
    size : 2n, the number of entries of the newly mined part; see :func:`quotas`.
    extra : pools of further sources, already drawn. All their entries are added; alpha and beta do not count them.
    dedup : keep only the first entry of each passage, in the pool's order.
    text_keys : uint64 [n_passages], equal for equal texts.
    filters : the rank window and the highest score apply to momentum too, except to entries without a rank, which
        come from no ranked list. Margins are not applied here: they need the scores of the model that mined, and
        were applied when the entry was first drawn.

    If a source has too few entries, no other source fills the gap. The log tells the shortfall and the realised
    mix.

    Raises
    ------
    SettingsError : alpha or beta out of range, or beta > 0 without lookahead.
    ArtifactError : pools of different collections or episodes, or momentum no older than the query pool.
    """
    _check_weights(alpha, beta, lookahead)
    _check_pools(query, [pool for pool in (lookahead, *extra) if pool is not None], momentum)
    old = replace(query.keep(np.zeros(len(query.passage_rows), bool)), filtered={}, copies={})
    if momentum is not None:
        older = momentum.align(query.positives)
        carried = replace(older, episode=query.episode, filtered={}, copies={}, given=())
        old = without_known(carried, text_keys)
        unlisted = old.ranks == 0  # drawn at random, or given without ranks
        old = old.keep(unlisted | filters.accept(old.ranks, old.scores))
    want = quotas(spans(old.offsets), size=size, alpha=alpha, beta=beta, mode=mode)
    parts = (
        ("query", query, want.query),
        ("lookahead", lookahead, want.lookahead),
        ("momentum", old, want.momentum),
    )
    drawn = []
    for name, pool, wanted in parts:
        if pool is not None:
            drawn.append(draw_entries(pool.align(query.positives), wanted, seed=seed))
            log_shortfall(name, drawn[-1], wanted)
    mixed = union([*drawn, *(pool.align(query.positives) for pool in extra)])
    if dedup:
        mixed = mixed.keep(~repeats(mixed))
    log.info("realised mix: %s", ", ".join(f"{name} {mean:.1f}" for name, mean in realized(mixed).items()))
    return mixed


def _check_weights(alpha: float, beta: float, lookahead: NegativePool | None) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not 0 <= value < 1:
            raise SettingsError("OUT_OF_RANGE", f"{name} is {value}", f"give 0 <= {name} < 1")
    if lookahead is None and beta > 0:
        raise SettingsError(
            "NO_LOOKAHEAD", f"beta is {beta}, without lookahead negatives", "mine them, or beta = 0"
        )


def _check_pools(query: NegativePool, new: Sequence[NegativePool], momentum: NegativePool | None) -> None:
    for pool in (*new, *([] if momentum is None else [momentum])):
        if pool.collection != query.collection:
            what = f"pools of two collections ({pool.collection[:12]}…, {query.collection[:12]}…)"
            raise ArtifactError("OTHER_COLLECTION", what, "mine both from one collection")
    episodes = sorted({pool.episode for pool in new} - {query.episode})
    if episodes:
        what = f"pools of different episodes: {episodes} and {query.episode}"
        raise ArtifactError("OTHER_EPISODE", what, "mine all sources of one episode")
    if momentum is not None and momentum.episode >= query.episode:
        what = f"momentum of episode {momentum.episode} for a pool of episode {query.episode}"
        raise ArtifactError("NOT_OLDER", what, "give the pool of an earlier episode")

"""Descriptions of a pool for people and logs: counts, shares, and the entries of a query."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from hardneg.negatives.pool import SOURCES, NegativePool, counts_of, repeats
from hardneg.records import spans

log = logging.getLogger(__name__)

EMPTY = "the pool has no negatives: the model was trained on in-batch negatives, or bounds left none"


class Entry(NamedTuple):
    """One negative with its provenance, for display; a field that its source does not know is None."""

    passage_row: int
    source: str
    rank: int | None
    score: float | None
    episode: int
    anchor: int | None
    momentum: bool
    ranker_score: float | None = None


def realized(pool: NegativePool) -> dict[str, float]:
    """The mean number of entries a query has from each new source and from ``momentum``: the realised mix."""
    new = np.bincount(pool.sources[~pool.momentum], minlength=len(SOURCES))
    parts = {name: int(n) for name, n in zip(SOURCES, new, strict=True) if n}
    parts["momentum"] = int(np.count_nonzero(pool.momentum))
    return {name: n / max(len(pool), 1) for name, n in parts.items()}


def stats(pool: NegativePool) -> dict[str, Any]:
    """Counts that describe a pool; ``per_source`` counts momentum entries under the source that drew them.

    ``duplicate_share`` is that of entries whose query has the passage already, from another source or mining.
    ``filtered`` and ``copies``, by source, are hits that bounds kept out, and hits that were left out because a
    better one of the query has their text. They are those of all queries that were mined for, before entries were
    drawn and before labels by answers left queries out of the pool.
    """
    lengths, n = spans(pool.offsets), len(pool.passage_rows)
    counts = np.bincount(pool.sources, minlength=len(SOURCES)).tolist()
    return {
        "queries": len(pool),
        "entries": n,
        "per_source": {name: count for name, count in zip(SOURCES, counts, strict=True) if count},
        "momentum_share": float(np.count_nonzero(pool.momentum) / max(n, 1)),
        "duplicate_share": float(np.count_nonzero(repeats(pool)) / max(n, 1)),
        "min_per_query": int(lengths.min()) if len(pool) else 0,
        "median_per_query": float(np.median(lengths)) if len(pool) else 0.0,
        "max_per_query": int(lengths.max(initial=0)),
        "queries_without_entries": int(np.count_nonzero(lengths == 0)),
        **counts_of(pool),
        **({"ranker": pool.ranker} if pool.ranker else {}),
    }


def warn_if_empty(pool: NegativePool, language: str | None = None) -> None:
    """Warn of a pool without any negative; ``language``: BM25 read the texts in it and found nothing."""
    if len(pool.passage_rows):
        return
    if language is not None:
        what = "NO QUERY HAS A NEGATIVE: BM25 reads the texts as %s and finds no passage for any query; %s"
        fix = "if they are in another language, import the data again with hardneg import --language"
        log.warning(what, language, fix)
    else:
        log.warning("NO QUERY HAS A NEGATIVE: the pool is empty; mine deeper, or widen the bounds on scores")


def entries_of(pool: NegativePool, i: int, most: int | None = None) -> list[Entry]:
    """The entries of the i-th query, in pool order; at most the first ``most``."""
    span = range(int(pool.offsets[i]), int(pool.offsets[i + 1]))[:most]
    return [
        Entry(
            passage_row=int(pool.passage_rows[j]),
            source=SOURCES[pool.sources[j]],
            rank=int(pool.ranks[j]) or None,
            score=None if np.isnan(pool.scores[j]) else float(pool.scores[j]),
            episode=int(pool.episodes[j]),
            anchor=None if pool.anchors[j] < 0 else int(pool.anchors[j]),
            momentum=bool(pool.episodes[j] < pool.episode),
            ranker_score=None if pool.ranker_scores is None else float(pool.ranker_scores[j]),
        )
        for j in span
    ]

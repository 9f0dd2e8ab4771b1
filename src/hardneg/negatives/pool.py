"""Negative pools: for every training query, the sampled negatives with the provenance of each.

A pool holds rows and numbers, never texts or tokens. The entries of a query are a multiset: a passage that two
sources found is there twice and so counts twice in training.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError
from hardneg.records import (
    ArrayRecord,
    Float32,
    Int32,
    Int64,
    Positives,
    blocks,
    distinct,
    offsets_of,
    owners,
    spans,
    take_spans,
)
from hardneg.shown import Shown, counted
from hardneg.storage import artifacts

SOURCES = (
    "random",
    "in_batch",
    "bm25",
    "query",
    "lookahead",
    "file",
    "dynamic",
)  # files store the position in this order, so new sources go to the end
KIND = "negatives"
ENTRY_ARRAYS = ("passage_rows", "sources", "ranks", "scores", "episodes", "anchors")
PARTS = "pair-scores"  # the cache's folder of blocks of scores, kept until the pool that needs them is complete
SCORES = ("ranker_scores", "positive_scores")  # arrays that exist only in a pool that a ranker scored
COUNTS = ("filtered", "copies")  # of hits that did not become entries, by source

DTYPES: Mapping[str, type[np.generic]] = {
    "query_rows": np.int32,
    "positive_offsets": np.int64,
    "positive_rows": np.int32,
    "offsets": np.int64,
    "passage_rows": np.int32,
    "sources": np.uint8,
    "ranks": np.int32,
    "scores": np.float32,
    "episodes": np.int32,
    "anchors": np.int32,
}


@dataclass(frozen=True, repr=False, eq=False)
class NegativePool(ArrayRecord, Shown):
    """The negatives of every query, ragged; the entries of query i are ``offsets[i]:offsets[i + 1]``.

    Order inside a query: a sampled source keeps the order of its lists (ascending rank, list by list when a
    query has several anchors; random draws ascend by passage row). A mixed pool has query, lookahead,
    momentum and the extra sources one after the other, each in its own order.
    """

    query_rows: Int32  # [Q], distinct
    positive_offsets: Int64  # [Q + 1]
    positive_rows: Int32  # the positives D+(q) that training uses
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]
    sources: NDArray[np.uint8]  # [n] index into SOURCES
    ranks: Int32  # [n] from 1, in the list as searched, positives included; 0 if the source has no list
    scores: Float32  # [n] the score in the list; NaN if there is none
    episodes: Int32  # [n] the episode whose mining drew the entry
    anchors: Int32  # [n] the positive whose neighbour a lookahead entry is; -1 otherwise
    episode: int  # the episode that trains on the pool; entries of older episodes are momentum
    collection: str = ""  # digest of the collection the rows belong to
    filtered: Mapping[str, int] = field(
        default_factory=dict
    )  # source -> number of hits that bounds kept out, of all queries mined for; empty if there were no bounds
    copies: Mapping[str, int] = field(
        default_factory=dict
    )  # source -> number of hits left out because a better hit of the query has their text, likewise
    ranker: str = ""  # digest of the model that scored the pool; empty: no model did, the two below are None
    ranker_scores: Float32 | None = None  # [n] the ranker's score of each entry for its query
    positive_scores: Float32 | None = None  # [len(positive_rows)] that of each positive; NaN: not known
    ranker_scale: float | None = None  # factor from the ranker's scores to its logits; None: not known
    given: tuple[str, ...] = ()  # sources whose new entries came with a pool from elsewhere, and none by mining

    def __len__(self) -> int:
        return len(self.query_rows)

    def line(self) -> str:
        """How many queries and negatives there are, and from which sources."""
        counts = np.bincount(self.sources, minlength=len(SOURCES))
        told = ", ".join(
            f"{count:,} {name}" for name, count in zip(SOURCES, counts.tolist(), strict=True) if count
        )
        queries, negatives = counted(len(self), "query"), counted(len(self.passage_rows), "negative")
        return f"NegativePool of {queries}, {negatives} ({told or 'none'})"

    def columns(self, most: int | None = None) -> dict[str, Any]:
        """A row for each negative: the rows of its query and passage, its source, rank, score and episode."""
        kept = owners(self.offsets)[:most]
        return {
            "query_row": self.query_rows[kept],
            "passage_row": self.passage_rows[:most],
            "source": [SOURCES[source] for source in self.sources[:most].tolist()],
            "rank": self.ranks[:most],
            "score": self.scores[:most],
            "episode": self.episodes[:most],
        }

    @property
    def positives(self) -> Positives:
        """The positives of every query, as one record."""
        return Positives(self.query_rows, self.positive_offsets, self.positive_rows)

    @property
    def momentum(self) -> NDArray[np.bool_]:
        """Whether each entry [n] was carried over from an earlier episode."""
        return self.episodes < self.episode

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Whether each entry [n] was drawn by this episode's mining; none of a given pool or list was."""
        given = [SOURCES.index(name) for name in ("file", *self.given)]
        return ~self.momentum & ~np.isin(self.sources, given)

    @property
    def mined(self) -> int:
        """The number of entries that this episode's mining drew; none of a given list's are."""
        return int(np.count_nonzero(self.drawn))

    def take(self, index: NDArray[np.integer], offsets: Int64) -> NegativePool:
        """The pool with the entries at ``index`` [m]; ``offsets`` [Q + 1] say which belong to each query."""
        names = ENTRY_ARRAYS if self.ranker_scores is None else (*ENTRY_ARRAYS, "ranker_scores")
        return replace(self, offsets=offsets, **{name: getattr(self, name)[index] for name in names})

    def keep(self, mask: NDArray[np.bool_]) -> NegativePool:
        """The pool with only the entries where ``mask`` [n] is true."""
        return self.take(np.flatnonzero(mask), kept_offsets(mask, self.offsets))

    def select(self, queries: NDArray[np.integer]) -> NegativePool:
        """The pool of the queries at these positions (not rows); no other query is looked at."""
        entries = self.take(*take_spans(self.offsets, queries))
        index, offsets = take_spans(self.positive_offsets, queries)
        return replace(
            entries,
            query_rows=self.query_rows[queries],
            positive_offsets=offsets,
            positive_rows=self.positive_rows[index],
            positive_scores=None if self.positive_scores is None else self.positive_scores[index],
        )

    def align(self, positives: Positives) -> NegativePool:
        """The pool for the queries of ``positives``, in that order and with those positives.

        A query that this pool lacks has no entries in the result. For a positive that this pool lacks, the
        ranker's score is NaN.
        """
        entries = self
        if not np.array_equal(self.query_rows, positives.query_rows):
            found, by_query = matches(self.query_rows, positives.query_rows)
            index, by_found = take_spans(self.offsets, found)
            entries = self.take(index, by_found[by_query])
        return replace(
            entries,
            query_rows=positives.query_rows,
            positive_offsets=positives.offsets,
            positive_rows=positives.passage_rows,
            positive_scores=self._scores_of(positives),
        )

    def _scores_of(self, positives: Positives) -> Float32 | None:
        """The ranker's score of each of these positives, NaN where it is not known; None if there is no ranker."""
        if self.positive_scores is None:
            return None
        ours, theirs = (owned.query_rows[owners(owned.offsets)] for owned in (self.positives, positives))
        pairs = ours.astype(np.int64) << 31 | self.positive_rows
        wanted = theirs.astype(np.int64) << 31 | positives.passage_rows
        order = np.argsort(pairs, kind="stable")
        place = np.searchsorted(pairs, wanted, sorter=order)
        found = np.full(len(wanted), np.nan, np.float32)
        some = np.flatnonzero(place < len(pairs))
        same = some[pairs[order[place[some]]] == wanted[some]]
        found[same] = self.positive_scores[order[place[same]]]
        return found


def matches(table: Int32, wanted: Int32) -> tuple[Int64, Int64]:
    """The positions in ``table`` [T] of each value of ``wanted`` [Q], ascending, and their offsets [Q + 1]."""
    order = np.argsort(table, kind="stable")
    ordered = table[order]
    first = np.searchsorted(ordered, wanted, "left")
    counts = np.searchsorted(ordered, wanted, "right") - first
    offsets = offsets_of(counts)
    return order[np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)], offsets


def kept_offsets(mask: NDArray[np.bool_], offsets: Int64) -> Int64:
    """The offsets [Q + 1] of the spans after the elements where ``mask`` [n] is false are removed."""
    return offsets_of(mask.view(np.uint8))[offsets]


def concatenate(pools: Sequence[NegativePool]) -> NegativePool:
    """Join pools of different queries into one; there is at least one pool, and no query is in two of them."""
    arrays: dict[str, Any] = {name: np.concatenate([getattr(pool, name) for pool in pools]) for name in DTYPES}
    for name in ("offsets", "positive_offsets"):
        arrays[name] = offsets_of(np.concatenate([spans(getattr(pool, name)) for pool in pools]))
    ranker = one_ranker(pools)
    for name in SCORES:
        arrays[name] = np.concatenate([scores_in(pool, name) for pool in pools]) if ranker else None
    counts: dict[str, Any] = {name: all_counts(pools, name) for name in COUNTS}
    return replace(pools[0], **arrays, **counts, ranker=ranker, ranker_scale=scale_of(pools, ranker))


def one_ranker(pools: Iterable[NegativePool]) -> str:
    """The digest of the one ranker that scored all these pools, not counting pools without entries; else empty."""
    rankers = {pool.ranker for pool in pools if len(pool.passage_rows)}
    return rankers.pop() if len(rankers) == 1 else ""


def scale_of(pools: Iterable[NegativePool], ranker: str) -> float | None:
    """The factor from the scores of these pools' ranker to its logits; None: not known, or there is no ranker."""
    return next((pool.ranker_scale for pool in pools if ranker and pool.ranker == ranker), None)


def scores_in(pool: NegativePool, name: str) -> Float32:
    """One of the arrays ``SCORES`` of a pool; NaN if no ranker scored it."""
    length = len(pool.passage_rows if name == "ranker_scores" else pool.positive_rows)
    scores: Float32 | None = getattr(pool, name)
    return np.full(length, np.nan, np.float32) if scores is None else scores


def names_of(sources: NDArray[np.uint8]) -> tuple[str, ...]:
    """The names of all sources that stand in ``sources`` [n], each once."""
    counts = np.bincount(sources, minlength=len(SOURCES)).tolist()
    return tuple(name for name, count in zip(SOURCES, counts, strict=True) if count)


def all_counts(pools: Iterable[NegativePool], name: str) -> dict[str, int]:
    """One of the ``COUNTS`` of all these pools together, by source."""
    counts: Counter[str] = Counter()
    for pool in pools:
        counts.update(getattr(pool, name))
    return dict(counts)


# ---------------------------------------------------------------- reading


def repeats(pool: NegativePool, copies: Int32 | None = None) -> NDArray[np.bool_]:
    """Whether each entry [n] names a passage that an earlier entry of its query names.

    With ``copies`` ([n_passages] the first passage with the same text, -1 where there is no other), a passage with
    the text of an earlier one counts too.
    """
    repeated = np.zeros(len(pool.passage_rows), bool)
    for start, stop in blocks(pool.offsets):
        low, high = pool.offsets[start], pool.offsets[stop]
        owner = owners(pool.offsets[start : stop + 1])
        rows = pool.passage_rows[low:high]
        pair = owner << 31 | (rows if copies is None else np.where(copies[rows] < 0, rows, copies[rows]))
        order = np.argsort(pair, kind="stable")
        repeated[low + order[1:]] = pair[order[1:]] == pair[order[:-1]]
    return repeated


def shortfall(pool: NegativePool, wanted: int | NDArray[np.integer]) -> dict[str, int]:
    """The number of queries with fewer entries than ``wanted`` (one number, or [Q]), and of missing entries."""
    missing = np.maximum(wanted - spans(pool.offsets), 0)
    return {"queries": int(np.count_nonzero(missing)), "entries": int(missing.sum())}


# ---------------------------------------------------------------- files


def empty_pool(positives: Positives, episode: int, collection: str) -> NegativePool:
    """A pool of the queries of ``positives`` that has no negatives."""
    entries: dict[str, Any] = {name: np.zeros(0, DTYPES[name]) for name in ENTRY_ARRAYS}
    return NegativePool(
        query_rows=positives.query_rows,
        positive_offsets=positives.offsets,
        positive_rows=positives.passage_rows,
        offsets=np.zeros(len(positives) + 1, np.int64),
        episode=episode,
        collection=collection,
        **entries,
    )


def save_pool(pool: NegativePool, path: Path, *, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """Publish a pool as an artefact folder; an existing one is never replaced."""
    with artifacts.publish(path, KIND, settings=settings, inputs=inputs) as draft:
        for name in DTYPES:
            draft.array(f"{name}.npy", getattr(pool, name))
        draft.facts = {"episode": pool.episode, "collection": pool.collection, "sources": list(SOURCES)}
        draft.facts |= counts_of(pool) | ({"given": list(pool.given)} if pool.given else {})
        if pool.ranker:
            draft.facts["ranker"] = pool.ranker
            draft.facts |= {} if pool.ranker_scale is None else {"ranker_scale": pool.ranker_scale}
            for name in SCORES:
                draft.array(f"{name}.npy", scores_in(pool, name))


def counts_of(pool: NegativePool) -> dict[str, dict[str, int]]:
    """The ``COUNTS`` of a pool by name, without those that are empty."""
    return {name: dict(getattr(pool, name)) for name in COUNTS if getattr(pool, name)}


def counted_by(pool: Path) -> str:
    """What the entries of a pool count in their field ``episode``: episodes, or in a version the refreshes."""
    return "refresh" if re.fullmatch(r"v\d{4,}", pool.name) else "episode"


@checked
def load_pool(path: str | Path, *, n_passages: int | None = None, collection: str | None = None) -> NegativePool:
    """Open a published pool, memory-mapped, and check all its invariants.

    Parameters
    ----------
    n_passages : size of the corpus; every row must lie below it.
    collection : digest the pool must have been made for.

    Raises
    ------
    ArtifactError : the artefact is damaged, breaks an invariant, or belongs to another collection.
    """
    path = Path(path)
    if path.is_file():
        fix = "make a pool of it: hardneg mine --sources file"
        raise ArtifactError("NO_MANIFEST", "this is a file, but a pool is a folder", fix, path=path)
    facts = artifacts.open_artifact(path, KIND).facts
    named = facts.get("sources")
    if not isinstance(named, list) or not named or named != list(SOURCES[: len(named)]):
        what = f"its sources are {named}, this hardneg has {list(SOURCES)}"
        raise _bad(path, f"{what}, and sources of old pools must come first, in their order")
    if not isinstance(facts.get("episode"), int):
        raise _bad(path, f"its episode is {facts.get('episode')!r:.60}")
    ranker = str(facts.get("ranker", ""))
    types = {**DTYPES, **(dict.fromkeys(SCORES, np.float32) if ranker else {})}
    arrays: dict[str, Any] = {name: np.asarray(artifacts.load_array(path / f"{name}.npy")) for name in types}
    for name, array in arrays.items():
        if array.dtype != types[name] or array.ndim != 1:
            raise _bad(path / f"{name}.npy", f"{array.ndim}-dimensional {array.dtype}")
    counts: dict[str, Any] = {name: facts.get(name, {}) for name in COUNTS}
    of = str(facts.get("collection", ""))
    scored: dict[str, Any] = {"ranker": ranker, "ranker_scale": _scale_in(facts, path) if ranker else None}
    given = tuple(facts.get("given", ()))
    pool = NegativePool(**arrays, episode=facts["episode"], collection=of, given=given, **scored, **counts)
    if collection is not None and pool.collection != collection:
        what = f"made for collection {pool.collection[:12]}…, this one is {collection[:12]}…"
        raise ArtifactError("OTHER_COLLECTION", what, "give the collection it was mined from", path=path)
    check_pool(pool, path, n_passages)
    return pool


def open_pool(path: str | Path, collection: Collection) -> NegativePool:
    """Open a pool that was mined from this collection; faults as of :func:`load_pool`."""
    return load_pool(path, n_passages=collection.n_passages, collection=collection.digest)


def _scale_in(facts: Mapping[str, Any], path: Path) -> float | None:
    """The ranker's scale in the facts of a scored pool; None: a version made it that kept no scale."""
    scale = facts.get("ranker_scale")
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        raise _bad(path, f"its ranker_scale is {scale!r:.60}")
    return scale


def check_pool(pool: NegativePool, path: Path, n_passages: int | None = None) -> None:
    """Raise an :class:`ArtifactError` naming the first invariant that the arrays break."""
    limit = np.iinfo(np.int32).max if n_passages is None else n_passages
    n = len(pool.passage_rows)
    for name in ENTRY_ARRAYS:
        if len(getattr(pool, name)) != n:
            raise _bad(path / f"{name}.npy", f"{len(getattr(pool, name))} values for {n} entries")
    for name, total in (("offsets", n), ("positive_offsets", len(pool.positive_rows))):
        if not _delimits(getattr(pool, name), len(pool), total):
            raise _bad(path / f"{name}.npy", f"not offsets of {len(pool)} queries over {total} values")
    for name, low, high in (
        ("query_rows", 0, np.iinfo(np.int32).max),
        ("positive_rows", 0, limit),
        ("passage_rows", 0, limit),
        ("anchors", -1, limit),
        ("sources", 0, len(SOURCES)),
        ("ranks", 0, np.iinfo(np.int32).max),
        ("episodes", np.iinfo(np.int32).min, pool.episode + 1),
    ):
        values = getattr(pool, name)
        if len(values) and not (low <= values.min() and values.max() < high):
            raise _bad(path / f"{name}.npy", f"values {values.min()} to {values.max()}, not {low} to {high - 1}")
    if len(distinct(pool.query_rows)) != len(pool):
        raise _bad(path / "query_rows.npy", "a query occurs twice")
    if pool.ranker:
        _check_scores(pool, path)


def _check_scores(pool: NegativePool, path: Path) -> None:
    """Refuse a ranker's scores that are not one for each passage, or infinite; NaN is no score."""
    for name, of in (("ranker_scores", pool.passage_rows), ("positive_scores", pool.positive_rows)):
        if len(scores := scores_in(pool, name)) != len(of):
            raise _bad(path / f"{name}.npy", f"{len(scores)} values for {len(of)} passages")
        if np.isinf(scores).any():
            raise _bad(path / f"{name}.npy", "infinite scores")


def _delimits(offsets: Int64, n_spans: int, total: int) -> bool:
    """Whether ``offsets`` cut ``total`` values into ``n_spans`` spans."""
    if len(offsets) != n_spans + 1:
        return False
    return bool(offsets[0] == 0 and offsets[-1] == total and (spans(offsets) >= 0).all())


def _bad(path: Path, what: str) -> ArtifactError:
    return ArtifactError("BAD_POOL", what, "mine the negatives again", path=path)

"""From what a model retrieves to candidate negatives: one function for every source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hardneg.config import nearest as nearest_name
from hardneg.data.collection import Collection
from hardneg.errors import SettingsError, raise_all
from hardneg.negatives.candidates import (
    ALL,
    Contains,
    Filters,
    check_scores,
    match_answers,
    no_scores,
    search_depth,
    starved,
    without_answers,
)
from hardneg.negatives.imported_pool import drop_untrainable, from_file
from hardneg.negatives.mix import Mode, teleport, union
from hardneg.negatives.pool import NegativePool
from hardneg.negatives.scores import Guide
from hardneg.negatives.sources import Keep, draw_entries, random_source, sample_source
from hardneg.records import Float32, Int32, Int64, Positives, Run, VectorsByRow, owners, spans
from hardneg.search.bm25 import bm25_run

log = logging.getLogger(__name__)

# depth, positions of the lists that are searched (None, as for models always: all) -> the run of these lists
Search = Callable[[int, Int64 | None], Run]

SOURCES = ("random", "bm25", "query", "lookahead", "file")
TELEPORTED = ("query", "lookahead")
PAIRS = 1 << 14  # pairs of a query and a passage that are scored at a time
DIAGNOSTIC_DEPTH = 100  # runs of training queries are kept at least this deep, for diagnostics such as forgetting


@dataclass(frozen=True)
class Corpus:
    """A collection to mine from without a model, and the place of its derived stores."""

    collection: Collection
    cache: Path


class Searcher(Protocol):
    """The part of a state that gives runs: a model over a collection, or the runs that such a model left."""

    def search(self, name: str, query_rows: Int32, k: int, *, as_trained: bool = False) -> Run:
        """The run ``name`` of these queries, ``k`` deep.

        Parameters
        ----------
        as_trained : queries are cut to the length that training steps read, not to that of search.
        """
        ...

    def neighbours(self, name: str, owners: Int32, anchors: Int32, k: int) -> Run:
        """The run ``name``: list i has the neighbours of passage ``anchors[i]``, for query ``owners[i]``."""
        ...


class Miner(Searcher, Protocol):
    """The part of a model over a collection that mining uses: runs, and the scores of positives for margins.

    Attributes
    ----------
    training_queries : the queries, embedded as training steps read them.
    """

    collection: Collection
    cache: Path

    @property
    def training_queries(self) -> VectorsByRow:
        """The queries, embedded as training steps read them."""
        ...

    def passage_vectors(self, passages: Int32) -> NDArray[Any]:
        """[n, dim] the vector that stands for each passage as a query."""
        ...

    def pair_scores(self, vectors: NDArray[Any], passages: Int32) -> Float32:
        """[n] the score of each vector and its passage, as a search gives it."""
        ...


def mine_pool(
    corpus: Miner | Corpus,
    positives: Positives,
    previous: NegativePool | None,
    *,
    sources: Sequence[str],
    episode: int,
    depth: int,
    size: int,
    count: int,
    alpha: float,
    beta: float,
    seed: int,
    mode: Mode = "weighted",
    dedup: bool = False,
    anchors: Literal["first", "all"] = "first",
    filters: Filters = ALL,
    guide: Guide | None = None,
    contains: Contains | None = None,
    given: Run | NegativePool | None = None,
    by_answers: bool = False,
) -> NegativePool:
    """Mine every source and mix them into a training pool (ANCE-Tele, Eqs. 4-8).

    Parameters
    ----------
    given : what the source ``file`` draws from.
    previous : the pool of the episode before, for momentum.
    sources : ``query`` and ``lookahead`` share the ``size`` newly mined entries of a query, as ``beta`` says, and
        momentum is added to them. Every other source adds ``count`` entries of a query. So does ``lookahead`` if
        ``query`` is not among the sources.
    guide : a frozen model whose scores the bounds of ``filters`` compare, for every source and for momentum too;
        None: the model that mines.
    contains : tells which passages contain an answer. Such a passage is no negative, neither from a source nor
        from the previous pool.
    by_answers : whether labels are by answers. Queries that have no positive or no negative are then left out.
    """
    by_model = not isinstance(corpus, Corpus)
    check_sources(sources, by_model=by_model, has_file=given is not None)
    if guide is None:
        check_scores(sources, filters, by_model=by_model)
    mine = partial(
        mine_candidates,
        corpus,
        positives,
        episode=episode,
        depth=depth,
        seed=seed,
        anchors=anchors,
        filters=filters,
        guide=guide,
        contains=contains,
        given=given,
    )
    if "query" not in sources:
        mixed = union([mine(source, count=count) for source in sources])
        return drop_untrainable(mixed) if by_answers else mixed
    mixed = teleport(
        mine("query", ahead=size),
        mine("lookahead", ahead=size) if "lookahead" in sources else None,
        None if previous is None else momentum_of(previous, positives, filters, guide, contains),
        alpha=alpha,
        beta=beta if "lookahead" in sources else 0.0,
        size=size,
        seed=seed,
        extra=[mine(source, count=count) for source in sources if source not in TELEPORTED],
        mode=mode,
        dedup=dedup,
        text_keys=corpus.collection.text_keys,
        filters=filters if guide is None else filters.on_ranks,
    )
    return drop_untrainable(mixed) if by_answers else mixed


def momentum_of(
    previous: NegativePool, positives: Positives, filters: Filters, guide: Guide | None, contains: Contains | None
) -> NegativePool:
    """The entries of the previous pool that may be negatives now: those without an answer.

    With a guide, they must also be within the bounds of ``filters`` on the guide's scores; ``top`` is not applied.
    """
    left = without_answers(previous, contains)
    return left if guide is None else guide.filtered(left.align(positives), replace(filters, top=None))


def check_sources(sources: Sequence[str], *, by_model: bool, has_file: bool) -> None:
    """Refuse unknown and repeated sources, and sources without the model or the file that they need.

    A file without its source is refused, too. All faults are raised together.
    """
    faults = [
        SettingsError("UNKNOWN_SOURCE", f"there is no source {source!r:.60}", nearest_name(source, SOURCES))
        for source in sources
        if source not in SOURCES
    ]
    if not sources:
        faults.append(SettingsError("NO_SOURCES", "no source is given", f"choose from {', '.join(SOURCES)}"))
    if len(set(sources)) < len(sources):
        what = f"a source stands twice in {', '.join(sources)}"
        faults.append(SettingsError("REPEATED_SOURCE", what, "name each once"))
    if not by_model and (mined := [source for source in sources if source in TELEPORTED]):
        faults.append(SettingsError("NO_MODEL", f"{mined[0]} negatives need a model", "give --model"))
    if ("file" in sources) != has_file:
        what = "the source 'file' and a file go together"
        faults.append(SettingsError("NO_FILE", what, "give both, or neither"))
    raise_all(faults)


def mine_candidates(
    corpus: Miner | Corpus,
    positives: Positives,
    source: str,
    *,
    episode: int,
    depth: int = 200,
    count: int | None = None,
    seed: int = 0,
    filters: Filters = ALL,
    guide: Guide | None = None,
    anchors: Literal["first", "all"] = "first",
    contains: Contains | None = None,
    given: Run | NegativePool | None = None,
    ahead: int | None = None,
) -> NegativePool:
    """The candidates of a source for the queries of ``positives``: all within ``depth``, or ``count`` drawn ones.

    Parameters
    ----------
    count : entries to draw for a query; ``random`` needs it.
    guide : the frozen model whose scores the bounds of ``filters`` compare; the pool keeps these scores. None: the
        scores of the model that mines are compared. It then scores random negatives too.
    anchors : which positives lookahead searches around.
    contains : drops candidates that contain an answer.
    given : for the source ``file``: a run, whose hits are mined like those of a search, or a pool, whose entries
        have no ``depth``; bounds apply to the ranks and scores that it stores.
    ahead : the most entries of a query that a later draw with this ``seed`` takes of all candidates. So many
        are drawn now, some queries at a time, since memory could not hold the candidates of many queries.
    """
    collection = corpus.collection
    keep = None if guide is None else partial(guide.filtered, filters=filters)
    bounds = filters if guide is None else filters.on_ranks
    if source == "random":
        assert count is not None, "random negatives are drawn, not listed"
        drawn = drawn_at_random(collection, positives, count=count, seed=seed, episode=episode, contains=contains)
        return drawn_within(corpus, drawn, positives, filters.on_scores) if keep is None else keep(drawn)
    if source == "file":
        assert given is not None, "negatives from a file need one"
        return from_file(
            given,
            positives,
            collection,
            episode=episode,
            depth=depth,
            count=count,
            seed=seed,
            filters=bounds,
            contains=contains,
            keep=keep,
        )
    asked = bounds.margin or (bounds.top is not None and source == "lookahead")
    known = QueryScores.of(corpus, positives, source) if asked else None
    search, list_anchors = searcher(corpus, positives, source, anchors)
    run = deep_enough(search, source, positives, collection, depth, contains)
    match_answers(run, contains)
    return sample_source(
        run,
        positives,
        source=source,
        episode=episode,
        depth=depth,
        count=count,
        seed=seed,
        filters=bounds,
        text_keys=collection.text_keys,
        positive_scores=None if known is None else known.positives_lowest(),
        compared=None if known is None or source == "query" else known,
        anchors=list_anchors,
        contains=contains,
        keep=keep if ahead is None else partial(drawn_ahead, count=ahead, seed=seed, keep=keep),
        copies=collection.copies,
    )


def drawn_ahead(part: NegativePool, *, count: int, seed: int, keep: Keep | None) -> NegativePool:
    """Draw ``count`` entries of every query from those that ``keep`` leaves.

    A later draw of as many or fewer, with this seed, takes the same entries as from all of them: an entry's random
    number stays what it is, and the smallest are drawn.
    """
    return draw_entries(part if keep is None else keep(part), count, seed=seed)


def drawn_at_random(
    collection: Collection,
    positives: Positives,
    *,
    count: int,
    seed: int,
    episode: int,
    contains: Contains | None,
) -> NegativePool:
    """Random passages of the collection for each query, as :func:`random_source` draws them."""
    return random_source(
        positives,
        collection.n_passages,
        count=count,
        seed=seed,
        episode=episode,
        text_keys=collection.text_keys,
        collection=collection.digest,
        contains=contains,
        copies=collection.copies,
    )


def drawn_within(
    corpus: Miner | Corpus, drawn: NegativePool, positives: Positives, filters: Filters
) -> NegativePool:
    """The entries of a random draw whose scores by the model that mines are within the bounds.

    Entries that are dropped are not replaced.

    Raises
    ------
    SettingsError : there are bounds, and no model that mines.
    """
    if filters == ALL:
        return drawn
    known, owner = QueryScores.of(corpus, positives, "random"), owners(drawn.offsets)
    scores = known(owner, drawn.passage_rows)
    keep = filters.accept(np.ones(len(scores), np.int32), scores)
    if filters.margin:
        keep &= filters.below(scores, known.positives_lowest()[owner])
    at = np.flatnonzero(keep)
    keep[at] = filters.highest(scores[at], owner[at])
    return replace(drawn.keep(keep), filtered={"random": int(np.count_nonzero(~keep))})


def deep_enough(
    search: Search,
    source: str,
    positives: Positives,
    collection: Collection,
    depth: int,
    contains: Contains | None = None,
) -> Run:
    """The run of a source, deep enough to leave ``depth`` candidates in every list, if there are so many passages.

    Lists are searched ``max |D+| + 16`` deeper than ``depth``. If a list is still too short without positives,
    those of equal queries and copies of them, all lists are searched again, twice as deep. Hits that are left out
    because a better one has their text, or because they contain an answer, do not count as missing.

    BM25 searches only those lists again that deeper hits can change: lists with fewer than ``depth`` candidates of
    different texts. A model's run is kept, and its readers take it to be equally deep for all queries.
    """
    k = training_depth(collection, positives, depth)
    short = partial(starved, positives=positives, depth=depth, text_keys=collection.text_keys, contains=contains)
    run = search(k, None)
    while k < collection.n_passages and len(short(run, searched=k)):
        lists = short(run, searched=k, copies=collection.copies) if source == "bm25" else None
        k = min(2 * k, collection.n_passages)
        log.info("%s: some lists are short of %d candidates; searching %d deep", source, depth, k)
        run = search(k, None) if lists is None else run.replaced(lists, search(k, lists))
    return run


def training_depth(collection: Collection, positives: Positives, depth: int) -> int:
    """The number of hits of each training query that are searched and kept."""
    return min(max(search_depth(depth, positives), DIAGNOSTIC_DEPTH), collection.n_passages)


def searcher(
    corpus: Miner | Corpus, positives: Positives, source: str, anchors: Literal["first", "all"]
) -> tuple[Search, Int32 | None]:
    """The search of a source, and the anchor of each of its lists (lookahead only)."""
    rows = positives.query_rows

    def by_words(k: int, lists: Int64 | None) -> Run:
        return bm25_run(corpus.collection, rows if lists is None else rows[lists], k, corpus.cache)

    if source == "bm25":
        return by_words, None
    assert not isinstance(corpus, Corpus)
    if source == "query":
        return lambda k, _: corpus.search("query", rows, k, as_trained=True), None
    if anchors == "first":
        some = positives.some()
        name, list_owners, list_anchors = "lookahead", some.query_rows, some.first()
    else:
        name, list_owners, list_anchors = (
            "lookahead-all",
            rows[owners(positives.offsets)],
            positives.passage_rows,
        )
    return lambda k, _: corpus.neighbours(name, list_owners, list_anchors, k), list_anchors


@dataclass(frozen=True)
class QueryScores:
    """The scores that margins compare: those of passages for the training queries, by the model that mines.

    So a neighbour of the positive is compared by its score for the query, not by its score in the list, which says
    how near it is to the positive.

    Attributes
    ----------
    positives : D+(q) of the queries.
    vectors : [Q, dim] the queries, as training steps read them.
    """

    corpus: Miner
    positives: Positives
    vectors: NDArray[Any]

    @classmethod
    def of(cls, corpus: Miner | Corpus, positives: Positives, source: str) -> QueryScores:
        """The scores for these queries; raises :class:`SettingsError` where no model mines the source."""
        if source == "bm25" or isinstance(corpus, Corpus):
            raise no_scores(source)
        return cls(corpus, positives, corpus.training_queries.rows(positives.query_rows))

    def __call__(self, at: Int64, passages: Int32) -> Float32:
        """The score [n] of each passage for the query at the position ``at`` [n]."""
        parts = [slice(start, start + PAIRS) for start in range(0, len(passages), PAIRS)]
        scores = [self.corpus.pair_scores(self.vectors[at[part]], passages[part]) for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *scores])

    def positives_lowest(self) -> Float32:
        """The lowest score [Q] of each query's positives; 0 for a query without positives.

        Training takes a query's positives in turn, so a negative must keep the margin to each of them.
        """
        lowest, some = np.zeros(len(self.positives), np.float32), spans(self.positives.offsets) > 0
        each = self(owners(self.positives.offsets), self.positives.passage_rows)
        if len(each):
            lowest[some] = np.minimum.reduceat(each, self.positives.offsets[:-1][some])
        return lowest

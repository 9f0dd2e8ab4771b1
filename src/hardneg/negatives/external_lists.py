"""Turns lists of negatives that other tools made (passage ids, texts or token ids) into a pool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg.data.collection import Collection, hashes_of_texts
from hardneg.data.formats.negative_lists import IdList, TokenList
from hardneg.data.ids import IdSpace
from hardneg.data.record_source import GivenRecord
from hardneg.data.text import NO_TEXT, hash_strings, hash_texts
from hardneg.errors import InputError
from hardneg.keyed_random import UInt64, hash64, key
from hardneg.negatives.pool import SOURCES, NegativePool, repeats
from hardneg.process.progress import counted
from hardneg.records import Float32, Int32, Int64, Positives, TokenBatch, offsets_of, owners, spans, take_spans

log = logging.getLogger(__name__)

BLOCK = 4096  # records whose ids are looked up together
NAMED = 10  # number of unknown ids that a message lists


Place = tuple[Path | None, int | None]  # the file and the line of a record


class RowLists(NamedTuple):
    """The negatives of some queries as rows; -1 stands for a passage or query that is not in the collection."""

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]
    scores: Float32 | None = None  # [n] the scores of a teacher; None: no teacher scored


class Taught(NamedTuple):
    """A teacher's scores of positives, the name of the teacher, and the collection's keys of equal texts."""

    teacher: str
    query_rows: Int32  # [m]
    passage_rows: Int32  # [m]
    scores: Float32  # [m]
    text_keys: UInt64  # [n_passages], equal for equal texts


def pool_of_lists(
    lists: RowLists, positives: Positives, collection: str, taught: Taught | None = None
) -> NegativePool:
    """The lists as a pool of the queries of ``positives``; entries have source ``file``, no rank and no score.

    Several lists of one query are joined. Lists of other queries are left out; the log says how many. The scores
    of the lists and of the positives (``taught``) become the pool's ranker scores and positive scores.
    """
    position = np.full(int(max(lists.query_rows.max(initial=0), positives.query_rows.max(initial=0))) + 1, -1)
    position[positives.query_rows] = np.arange(len(positives))
    owner = np.where(lists.query_rows < 0, -1, position[lists.query_rows])
    if others := int((owner < 0).sum()):
        log.info("file: %d lists are of queries that are not trained on", others)
    order = np.argsort(owner, kind="stable")[others:]
    index, _ = take_spans(lists.offsets, order)
    lengths = np.bincount(owner[order], weights=spans(lists.offsets)[order], minlength=len(positives))
    n = len(index)
    pool = NegativePool(
        query_rows=positives.query_rows,
        positive_offsets=positives.offsets,
        positive_rows=positives.passage_rows,
        offsets=offsets_of(lengths.astype(np.int64)),
        passage_rows=lists.passage_rows[index],
        sources=np.full(n, SOURCES.index("file"), np.uint8),
        ranks=np.zeros(n, np.int32),
        scores=np.full(n, np.nan, np.float32),
        episodes=np.zeros(n, np.int32),
        anchors=np.full(n, -1, np.int32),
        episode=0,
        collection=collection,
    )
    if lists.scores is None or taught is None:
        return pool
    scores = positive_scores(positives, taught)
    return replace(pool, ranker=taught.teacher, ranker_scores=lists.scores[index], positive_scores=scores)


def positive_scores(positives: Positives, taught: Taught) -> Float32:
    """A teacher's score of each positive; NaN for a positive that the teacher did not score.

    A text names the first of the passages that have it. So a positive that is another one of them has the score
    that was given for the first.
    """
    ours, theirs = positives.query_rows[owners(positives.offsets)], taught.query_rows
    n = len(ours)
    both = np.concatenate([positives.passage_rows, taught.passage_rows])
    copies = np.unique(taught.text_keys[both], return_inverse=True)[1]
    scores = _looked_up(ours, copies[:n], theirs, copies[n:], taught.scores)
    own = _looked_up(ours, positives.passage_rows, theirs, taught.passage_rows, taught.scores)
    return np.where(np.isnan(own), scores, own)


def _looked_up(
    query_rows: Int32,
    passages: NDArray[np.integer],
    table_queries: Int32,
    table_passages: NDArray[np.integer],
    values: Float32,
) -> Float32:
    """The first value [n] that a table [m] has for each pair of a query and a passage; NaN where it has none."""
    wanted = query_rows.astype(np.int64) << 31 | passages
    table = table_queries.astype(np.int64) << 31 | table_passages
    found = np.full(len(wanted), np.nan, np.float32)
    if len(table):
        order = np.argsort(table, kind="stable")
        place = np.minimum(np.searchsorted(table, wanted, sorter=order), len(table) - 1)
        there = table[order[place]] == wanted
        found[there] = values[order[place[there]]]
    return found


# ---------------------------------------------------------------- by passage ids


def rows_of_ids(records: Iterable[IdList], queries: IdSpace, passages: IdSpace) -> RowLists:
    """Look up the ids of lists; raises :class:`InputError` if a passage is unknown."""
    records = iter(records)
    query_rows, lengths, rows = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    while block := list(islice(records, BLOCK)):
        query_rows.append(queries.rows([record.query_id for record in block]))
        lengths.append(np.array([len(record.negatives) for record in block]))
        rows.append(passages.rows([id_ for record in block for id_ in record.negatives]))
        unknown = np.flatnonzero(rows[-1] < 0)
        if len(unknown):
            ids = list(chain.from_iterable(record.negatives for record in block))
            named = ", ".join(repr(ids[i])[:80] for i in unknown[:NAMED].tolist())
            record = block[int(np.searchsorted(np.cumsum(lengths[-1]), unknown[0], side="right"))]
            what = f"negatives are not in the collection: {named}"
            fix = "give the collection they were mined from"
            raise InputError("UNKNOWN_ID", what, fix, path=record.path, line=record.line)
    return RowLists(np.concatenate(query_rows), offsets_of(np.concatenate(lengths)), np.concatenate(rows))


# ---------------------------------------------------------------- by texts


def pool_of_texts(
    records: Iterable[GivenRecord], collection: Collection, positives: Positives, digest: str, teacher: str
) -> NegativePool:
    """The negatives that a source gives as texts, as a pool of the queries of ``positives``.

    A passage that a query has twice counts once: short rows may be filled up with copies. If every record has a
    teacher's scores, they are kept under the name ``teacher``.

    Parameters
    ----------
    digest : the digest of the collection.

    Raises
    ------
    InputError : none of the queries is in the collection, or a negative is not in it.
    """
    finder, scored, parts = TextFinder(collection), True, []
    records = counted(records, "reading negatives", "rows")
    while block := list(islice(records, BLOCK)):
        scored = scored and all(len(one.negative_scores) for one in block)
        parts.append(_as_rows(block, finder, scored=scored))
    _check_found(parts)
    parts = parts or [_as_rows([], finder, scored=False)]
    query_rows, lengths, rows, scores, owner, of_positives, positive_scores = (
        np.concatenate(column) for column in zip(*(part.arrays for part in parts), strict=True)
    )
    lists = RowLists(query_rows, offsets_of(lengths), rows)
    if not scored or not len(query_rows):
        return without_repeats(pool_of_lists(lists, positives, digest))
    found = (of_positives >= 0) & (owner >= 0)
    taught = Taught(teacher, owner[found], of_positives[found], positive_scores[found], collection.text_keys)
    return without_repeats(pool_of_lists(lists._replace(scores=scores), positives, digest, taught))


class _Part(NamedTuple):
    """The negatives of some records as rows, which take far less memory than the texts."""

    arrays: Sequence[NDArray[Any]]  # query rows, lengths, rows, scores; owners, rows and scores of positives
    begin: Place
    missing: int  # negatives that have no passage
    first: Place  # of the first of these


def _as_rows(given: Sequence[GivenRecord], finder: TextFinder, *, scored: bool) -> _Part:
    """The rows of records' texts; positives and scores are left out unless they are ``scored``."""
    query_rows = finder.queries_of(given)
    lengths = np.array([len(one.negatives) for one in given], np.int64)
    rows = finder.passages_of([text for one in given for text in one.negatives])
    missing = np.flatnonzero(rows < 0)
    lacking = int(owners(offsets_of(lengths))[missing[0]]) if len(missing) else 0
    taught = given if scored else ()
    arrays = (
        query_rows,
        lengths,
        rows,
        np.array([score for one in taught for score in one.negative_scores], np.float32),
        np.repeat(query_rows[: len(taught)], np.array([len(one.positives) for one in taught], np.int64)),
        finder.passages_of([text for one in taught for text in one.positives]),
        np.array([score for one in taught for score in one.positive_scores], np.float32),
    )
    places = [(given[i].path, given[i].line) if given else (None, None) for i in (0, lacking)]
    return _Part(arrays, places[0], len(missing), places[1])


def _check_found(parts: Sequence[_Part]) -> None:
    """Refuse records of which no query is in the collection, or some negative is not."""
    if parts and all((part.arrays[0] < 0).all() for part in parts):
        what, fix = "none of the queries is in the collection", "give the collection they belong to"
        path, line = parts[0].begin
        raise InputError("UNKNOWN_ID", what, fix, path=path, line=line)
    if lacking := [part for part in parts if part.missing]:
        missing, asked = sum(part.missing for part in lacking), sum(len(part.arrays[2]) for part in parts)
        what = f"{missing:,} of {asked:,} negatives are texts that the collection does not have"
        fix = "give the collection they belong to, or import them with it"
        path, line = lacking[0].first
        raise InputError("UNKNOWN_ID", what, fix, path=path, line=line)


def without_repeats(pool: NegativePool) -> NegativePool:
    """The pool with the first of a query's entries of each passage."""
    return pool.keep(~repeats(pool))


class KeyTable(NamedTuple):
    """The keys of texts in ascending order, with the row of each; of equal keys, the first row stands first."""

    keys: UInt64  # [T]
    rows: Int32  # [T]

    @classmethod
    def of(cls, keys: UInt64, rows: Int32 | None = None) -> KeyTable:
        """The table of keys [T] and their rows [T]; None: they count from 0."""
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], order.astype(np.int32) if rows is None else rows[order])

    def find(self, wanted: UInt64) -> Int32:
        """The first row that has each of the ``wanted`` keys [n]; -1 if there is none."""
        if not len(self.keys):
            return np.full(len(wanted), -1, np.int32)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.rows[place], np.int32(-1)).astype(np.int32)


class TextFinder:
    """Finds the rows of a collection's queries and passages by their texts; keys are sorted once for all."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection

    @cached_property
    def _queries(self) -> KeyTable:
        return KeyTable.of(hash_texts(list(self.collection.query_texts)))

    @cached_property
    def _passages(self) -> KeyTable:
        return KeyTable.of(self.collection.text_keys)

    @cached_property
    def _blank(self) -> KeyTable:
        return KeyTable.of(hashes_of_texts(self.collection))

    @cached_property
    def _titled(self) -> KeyTable:
        return KeyTable.of(*hashes_with_titles(self.collection))

    def queries_of(self, given: Sequence[GivenRecord]) -> Int32:
        """The row of each record's query, found by its id or else by its text; -1 if it is not found."""
        rows = self.collection.query_ids.rows([one.query_id for one in given])
        if (rows < 0).any():
            by_text = self._queries.find(hash_texts([one.query for one in given]))
            rows = np.where(rows < 0, by_text, rows).astype(np.int32)
        return rows

    def passages_of(self, texts: Sequence[str]) -> Int32:
        """The row of the first passage of each text; -1 for a text without a passage.

        A passage has a text if it is the passage's own text, or its title, a blank and its own text. Among
        passages that count as having one text, the one that is written just so is preferred.
        """
        if not len(texts):
            return np.zeros(0, np.int32)
        wanted = hash_texts(texts)
        rows, blank = np.empty(len(texts), np.int32), wanted == NO_TEXT
        for at, name in ((np.flatnonzero(~blank), "_passages"), (np.flatnonzero(blank), "_blank")):
            if len(at):
                rows[at] = self._in_table(getattr(self, name), [texts[i] for i in at.tolist()], wanted[at])
        if (rows < 0).any() and len(self._titled.keys):
            rows = np.where(rows < 0, self._titled.find(wanted), rows).astype(np.int32)
        return rows

    def _in_table(self, table: KeyTable, texts: Sequence[str], wanted: UInt64) -> Int32:
        """The rows [n] of texts whose keys are ``wanted`` [n], or their hashes; -1 for what is not there."""
        begin, end = (np.searchsorted(table.keys, wanted, side) for side in ("left", "right"))
        rows = table.find(wanted)
        for i in np.flatnonzero(end - begin > 1).tolist():
            same = table.rows[begin[i] : end[i]].tolist()
            rows[i] = next((row for row in same if self.collection.texts[row] == texts[i]), rows[i])
        if (rows < 0).any():  # the keys of a collection of an older version are hashes of the texts as they are
            rows = np.where(rows < 0, table.find(hash_strings(texts)), rows).astype(np.int32)
        return rows


def hashes_with_titles(collection: Collection) -> tuple[UInt64, Int32]:
    """Hashes [n] of the texts "title, blank, text" of all passages that have a title, and their rows [n]."""
    titled = np.flatnonzero(np.diff(collection.titles.offsets) > 0).astype(np.int32)
    parts = [np.zeros(0, np.uint64)]
    for start in range(0, len(titled), BLOCK):
        rows = titled[start : start + BLOCK]
        pairs = zip(collection.titles.take(rows), collection.texts.take(rows), strict=True)
        parts.append(hash_texts([f"{title.replace(chr(10), ' ')} {text}" for title, text in pairs]))
    return np.concatenate(parts), titled


# ---------------------------------------------------------------- by token ids


@dataclass(frozen=True)
class HashedLists:
    """Lists of token ids as 64-bit hashes, which take little memory however long the texts are."""

    query_ids: Sequence[str | None]  # [Q]
    queries: UInt64  # [Q] hash of the query's tokens
    query_length: int  # tokens of the longest query, at least 1
    offsets: Int64  # [Q + 1]
    negatives: UInt64  # [n] hash of each negative's tokens
    length: int  # tokens of the longest negative, at least 1
    places: Sequence[tuple[Path, int]]  # [Q] file and line


def sequence_hashes(ids: Int32, offsets: Int64) -> UInt64:
    """A 64-bit hash of each token sequence [n]: the sum of a random word for each (token, position)."""
    lengths = spans(offsets)
    at = np.arange(offsets[-1] - offsets[0]) - np.repeat(offsets[:-1] - offsets[0], lengths)
    words = hash64(key(0, "sequence"), ids, at)
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=sums[1:])
    starts = offsets - offsets[0]
    return hash64(key(0, "length"), sums[starts[1:]] - sums[starts[:-1]], lengths)


def hash_lists(records: Iterable[TokenList]) -> HashedLists:
    """Read lists of token ids and keep only a hash of each sequence."""
    records = iter(records)
    ids: list[str | None] = []
    places: list[tuple[Path, int]] = []
    queries, negatives = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    lengths = [np.zeros(0, np.int64)]
    longest_query = longest = 1
    while block := list(islice(records, BLOCK // 16)):
        ids += [record.query_id for record in block]
        places += [(record.path, record.line) for record in block]
        asked, given = batch([record.query for record in block]), batch(_flat(block))
        queries.append(sequence_hashes(asked.ids, asked.offsets))
        negatives.append(sequence_hashes(given.ids, given.offsets))
        lengths.append(np.array([len(record.negatives) for record in block]))
        longest_query = max(longest_query, int(asked.lengths.max(initial=0)))
        longest = max(longest, int(given.lengths.max(initial=0)))
    offsets = offsets_of(np.concatenate(lengths))
    return HashedLists(
        ids, np.concatenate(queries), longest_query, offsets, np.concatenate(negatives), longest, places
    )


def _flat(block: Sequence[TokenList]) -> list[list[int]]:
    return [tokens for record in block for tokens in record.negatives]


def batch(lists: Sequence[Sequence[int]]) -> TokenBatch:
    """Join lists of token ids into one batch."""
    lengths = np.array([len(tokens) for tokens in lists], np.int64)
    flat = np.fromiter(chain.from_iterable(lists), np.int32, int(lengths.sum()))
    return TokenBatch(flat, offsets_of(lengths))


def find(table: UInt64, rows: Int32, wanted: UInt64) -> Int32:
    """For each of ``wanted`` [n], the value of ``rows`` [T] where ``table`` [T] first equals it; -1 if nowhere."""
    return KeyTable.of(table, rows).find(wanted)


def rows_of_tokens(hashed: HashedLists, queries: IdSpace, by_tokens: Int32, found: Int32) -> RowLists:
    """Turn hashed lists into rows, given which queries and passages have the same tokens.

    Parameters
    ----------
    by_tokens : [Q] row of the query with the same tokens; -1 if there is none.
    found : [n] row of the passage with the same tokens; -1 if there is none.

    Raises
    ------
    InputError : some token lists match no passage, because another tokenizer or another corpus made them.
    """
    if (missing := np.flatnonzero(found < 0)).size:
        at = int(np.searchsorted(hashed.offsets, missing[0], side="right")) - 1
        path, line = hashed.places[at]
        what = f"{len(missing):,} of {len(found):,} token lists are of no passage of the collection"
        fix = "give the model whose tokenizer made them, and their collection"
        raise InputError("OTHER_TOKENS", what, fix, path=path, line=line)
    named = queries.rows([id_ or "" for id_ in hashed.query_ids])
    query_rows = np.where([id_ is None for id_ in hashed.query_ids], by_tokens, named).astype(np.int32)
    if len(query_rows) and (query_rows < 0).all():
        path, line = hashed.places[0]
        what, fix = "none of the queries is in the collection", "give the collection they were mined from"
        raise InputError("UNKNOWN_ID", what, fix, path=path, line=line)
    return RowLists(query_rows, hashed.offsets, found)


def with_first(batch: TokenBatch, first: int, length: int) -> TokenBatch:
    """Put the token ``first`` before each sequence; cut sequences to ``length`` tokens."""
    lengths = np.minimum(batch.lengths + 1, length)
    offsets = offsets_of(lengths)
    at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    ids = batch.ids[np.maximum(np.repeat(batch.offsets[:-1], lengths) + at - 1, 0)]
    return TokenBatch(np.where(at == 0, np.int32(first), ids), offsets)

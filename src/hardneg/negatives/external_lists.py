"""Turns lists of negatives that other tools made (passage ids, texts or token ids) into a pool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

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
from hardneg.records import Float32, Int32, Int64, Positives, TokenBatch, offsets_of, owners, spans, take_spans

log = logging.getLogger(__name__)

BLOCK = 4096  # records whose ids are looked up together
NAMED = 10  # number of unknown ids that a message lists


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
    given = list(records)
    is_scored = bool(given) and all(len(one.negative_scores) for one in given)
    query_rows = rows_of_queries(given, collection)
    rows = rows_of_passages(given, [one.negatives for one in given], collection, needed=True)
    lengths = offsets_of(np.array([len(one.negatives) for one in given], np.int64))
    if not is_scored:
        return without_repeats(pool_of_lists(RowLists(query_rows, lengths, rows), positives, digest))
    of_positives = rows_of_passages(given, [one.positives for one in given], collection, needed=False)
    owner = np.repeat(query_rows, [len(one.positives) for one in given])
    found = (of_positives >= 0) & (owner >= 0)
    scores = np.array([score for one in given for score in one.positive_scores], np.float32)
    taught = Taught(teacher, owner[found], of_positives[found], scores[found], collection.text_keys)
    flat = np.array([score for one in given for score in one.negative_scores], np.float32)
    return without_repeats(pool_of_lists(RowLists(query_rows, lengths, rows, flat), positives, digest, taught))


def without_repeats(pool: NegativePool) -> NegativePool:
    """The pool with the first of a query's entries of each passage."""
    return pool.keep(~repeats(pool))


def rows_of_queries(given: Sequence[GivenRecord], collection: Collection) -> Int32:
    """The row of each record's query, found by its id or else by its text; -1 for a query that is not found."""
    rows = collection.query_ids.rows([one.query_id for one in given])
    if (rows < 0).any():
        texts = hash_texts(list(collection.query_texts))
        by_text = find(texts, np.arange(len(texts), dtype=np.int32), hash_texts([one.query for one in given]))
        rows = np.where(rows < 0, by_text, rows).astype(np.int32)
    if len(rows) and (rows < 0).all():
        what, fix = "none of the queries is in the collection", "give the collection they belong to"
        raise InputError("UNKNOWN_ID", what, fix, path=given[0].path, line=given[0].line)
    return rows


def rows_of_passages(
    given: Sequence[GivenRecord], texts: Sequence[Sequence[str]], collection: Collection, *, needed: bool
) -> Int32:
    """The row of the first passage of each text; -1 for a text without a passage.

    A passage has a text if it is the passage's own text, or its title, a blank and its own text.

    Raises
    ------
    InputError : the texts are ``needed``, and there is no passage for one of them.
    """
    flat = [text for some in texts for text in some]
    wanted, places = hash_texts(flat), np.arange(len(collection.text_keys), dtype=np.int32)
    keys = hashes_of_texts(collection) if (wanted == NO_TEXT).any() else collection.text_keys
    rows = as_written(flat, find(keys, places, wanted), collection, keys)
    if (rows < 0).any():  # the keys of a collection of an older version are hashes of the texts as they are
        rows = np.where(rows < 0, find(keys, places, hash_strings(flat)), rows).astype(np.int32)
    if (rows < 0).any():
        whole, of = hashes_with_titles(collection)
        if len(whole):
            rows = np.where(rows < 0, find(whole, of, wanted), rows).astype(np.int32)
    missing = np.flatnonzero(rows < 0)
    if needed and len(missing):
        record = given[int(np.searchsorted(np.cumsum([len(some) for some in texts]), missing[0], side="right"))]
        what = f"{len(missing):,} of {len(rows):,} negatives are texts that the collection does not have"
        fix = "give the collection they belong to, or import them with it"
        raise InputError("UNKNOWN_ID", what, fix, path=record.path, line=record.line)
    return rows


def as_written(texts: Sequence[str], rows: Int32, collection: Collection, keys: UInt64) -> Int32:
    """The rows [n] of passages with the texts [n], where several passages count as having a text.

    ``rows`` are those of the first ones, -1 where there is none. A passage with just this text is preferred.
    ``keys`` [passages] are equal for passages that count as having one text.
    """
    order = np.argsort(keys, kind="stable")
    in_order, wanted = keys[order], keys[rows]
    begin, end = (np.searchsorted(in_order, wanted, side) for side in ("left", "right"))
    found = rows.copy()
    for i in np.flatnonzero((rows >= 0) & (end - begin > 1)).tolist():
        exact = [row for row in order[begin[i] : end[i]].tolist() if collection.texts[row] == texts[i]]
        found[i] = exact[0] if exact else rows[i]
    return found


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
    if not len(table):
        return np.full(len(wanted), -1, np.int32)
    order = np.argsort(table, kind="stable")
    place = np.minimum(np.searchsorted(table, wanted, sorter=order), len(table) - 1)
    found = order[place]
    return np.where(table[found] == wanted, rows[found], np.int32(-1)).astype(np.int32)


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

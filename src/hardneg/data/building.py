"""Writes a source into a draft of a canonical collection; checks every record and keeps no text in memory.

``content/`` holds the collection itself, and its digest covers nothing else. ``derived/`` holds what can be
computed from the content.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg.data.checks import (
    ImportPolicy,
    PlainPassages,
    Rules,
    SourceLines,
    Unknown,
    check_room,
    check_split,
    encoded,
    encoded_id,
    encoded_text,
    grades_of,
    no_passage,
    plain_passages,
)
from hardneg.data.helper import ready_parts
from hardneg.data.languages import ENGLISH
from hardneg.data.ready import ReadyBlock, ready_block
from hardneg.data.record_source import (
    JudgementRecord,
    PassageLines,
    PassagePart,
    PassageRecord,
    QueryRecord,
    Source,
)
from hardneg.data.text import (
    IdColumn,
    TextColumn,
    TextColumnWriter,
    as_hashes,
    byte_ranks,
    first_rows,
    hash_bytes,
    rewrite,
    write_id_table,
)
from hardneg.errors import InputError
from hardneg.keyed_random import UInt64
from hardneg.process.progress import counted, track
from hardneg.records import Int32, Int64, Qrels, distinct, offsets_of, take_spans
from hardneg.storage.artifacts import Draft

log = logging.getLogger(__name__)

PASSAGE_IDS, TITLES, TEXTS = "content/passages.ids", "content/passages.titles", "content/passages.texts"
QUERY_IDS, QUERY_TEXTS = "content/queries.ids", "content/queries.texts"
ANSWERS, ANSWER_SPANS = "content/answers.texts", "content/answers.spans.npy"
LANGUAGE = "content/language.json"
QRELS = "content/qrels/{split}.{part}.npy"
QRELS_PARTS = ("query_rows", "offsets", "passage_rows", "grades")
PASSAGE_TABLE, QUERY_TABLE, TEXT_KEYS = "derived/passages", "derived/queries", "derived/text_keys.npy"

BATCH = 1 << 16  # judgements resolved at a time
FEW, MANY = 16, 1024  # passages checked at a time, at first and at most
CHARACTERS = 1 << 18  # about so many characters of texts are checked at a time


def build(source: Source, draft: Draft, rules: Rules) -> None:
    """Stream ``source`` into ``draft``; raises :class:`InputError` at the first record that is wrong."""
    policy = ImportPolicy(rules)
    source.ignored.clear()
    none = no_passage(source.format, source.inputs)
    n_passages = write_passages(source.passage_parts(), draft, policy, none)
    n_queries, members = write_queries(source.queries(), draft, policy, none=source.corpus_alone)
    splits = write_qrels(source.judgements(), members, draft, policy)
    draft.facts |= {"passages": n_passages, "queries": n_queries, "splits": splits}
    if source.language != ENGLISH:  # so that the digest of an English collection is that of its texts alone
        draft.json(LANGUAGE, source.language)
    for name, seen in sorted(policy.counts.items()):
        log.warning("%s: %d", name.replace("_", " "), seen)
    policy.by_bound(source.judged_by)
    draft.facts |= {"counts": dict(policy.counts), "ignored_fields": dict(source.ignored)}


# ---------------------------------------------------------------- passages


def write_passages(parts: Iterator[PassagePart], draft: Draft, policy: ImportPolicy, none: InputError) -> int:
    """Write the passages in source order; returns their number, and raises ``none`` if there are none."""
    hashes, keys, places = stream_passages(parts, draft, policy)
    if not len(hashes):
        raise none
    column = TextColumn.open(draft.path, PASSAGE_IDS)
    first = first_rows(column, hashes)
    again = first != np.arange(len(first))
    if again.any():
        refuse_repeated("passage", column, first, again, places, policy)
        kept = np.flatnonzero(~again)
        hashes, keys = hashes[kept], keys[kept]
        for name in (PASSAGE_IDS, TITLES, TEXTS):
            rewrite(draft, name, kept)
    write_id_table(draft, PASSAGE_IDS, PASSAGE_TABLE, hashes)
    draft.array(TEXT_KEYS, keys)
    return len(hashes)


def stream_passages(
    parts: Iterator[PassagePart], draft: Draft, policy: ImportPolicy
) -> tuple[UInt64, UInt64, SourceLines]:
    """Write passages as they arrive; returns the hashes [n] of their ids and texts, and their places."""
    id_hashes, text_hashes, places = bytearray(), bytearray(), SourceLines()
    with (
        TextColumnWriter(draft, PASSAGE_IDS) as ids,
        TextColumnWriter(draft, TITLES) as titles,
        TextColumnWriter(draft, TEXTS) as texts,
        closing(checked_passages(parts, policy, places)) as checked,
        track("importing", "passages") as tick,
    ):
        for found in checked:
            for column, joined, lengths in zip((ids, titles, texts), found.joined, found.lengths, strict=True):
                column.append(joined, lengths)
            id_hashes += found.id_hashes
            text_hashes += found.text_hashes
            del found, joined
            tick(len(ids), 0)
        check_room(len(ids), "passages")
    return as_hashes(id_hashes), as_hashes(text_hashes), places


def checked_passages(
    parts: Iterator[PassagePart], policy: ImportPolicy, places: SourceLines
) -> Generator[ReadyBlock, None, None]:
    """Yield the passages of all parts, checked, and add their lines in the source to ``places``."""
    with closing(ready_parts(parts)) as ready:
        for part, found in ready:
            if found is not None and isinstance(part, PassageLines):
                places.run(part.path, part.line, found.n)
                part.ignored.update(dict.fromkeys(found.ignored, found.n))
                yield found
                del part, found  # otherwise they would stay in memory while the next ones are read
                continue
            for block in blocks(part.records() if isinstance(part, PassageLines) else part):
                plain = plain_passages(block) or examined_passages(block, policy)
                places.extend([record.path for record in block], [record.line for record in block])
                yield ready_block(plain)


def blocks(records: Iterator[PassageRecord]) -> Iterator[list[PassageRecord]]:
    """Yield the records in blocks; a block has fewer records where texts are long.

    Records that were read before a fault are yielded before it is raised, so the first fault of a source is the
    first that is reported.
    """
    size = FEW
    while True:
        block: list[PassageRecord] = []
        try:
            block.extend(islice(records, size))
        finally:
            if block:
                yield block
        if not block:
            return
        size = max(1, min(MANY, CHARACTERS // (1 + sum(len(record.text) for record in block) // len(block))))


def examined_passages(block: list[PassageRecord], policy: ImportPolicy) -> PlainPassages:
    """The passages of a block, each checked by itself; raises the first fault that the policy does not accept."""
    found = PlainPassages([], [], [])
    for record in block:
        found.ids.append(encoded_id(record, "passage"))
        found.texts.append(encoded_text(record, "passage", policy))
        found.titles.append(encoded(record.title, "title", record))
    return found


def refuse_repeated(
    kind: str, ids: TextColumn, first: Int64, again: NDArray[np.bool_], places: SourceLines, policy: ImportPolicy
) -> None:
    """Report the records where ``again`` [n] is true as duplicates of the records ``first`` [n]."""
    row = int(np.argmax(again))
    fault = places.duplicate(f"{kind} {ids[row]!r:.80}", int(first[row]), row, int(again.sum()))
    policy.duplicates(fault, kind, int(again.sum()))


# ---------------------------------------------------------------- queries


class Arrivals(NamedTuple):
    """Queries in the order they were read; a query has one record for each of its splits."""

    id_hashes: UInt64  # [n]
    content: UInt64  # [n] hash of text and answers
    splits: Int64  # [n] index into names
    names: list[str]
    answer_spans: Int64  # [n + 1]
    places: SourceLines


def write_queries(
    records: Iterator[QueryRecord], draft: Draft, policy: ImportPolicy, *, none: bool = False
) -> tuple[int, dict[str, NDArray[np.integer]]]:
    """Write the queries, ascending by the bytes of their ids; returns their number and the rows of each split.

    ``none`` allows a source without queries.
    """
    new = stream_queries(records, draft, policy, none=none)
    column = TextColumn.open(draft.path, QUERY_IDS)
    first = first_rows(column, new.id_hashes)
    again = repeated_queries(first, new)
    if again.any():
        refuse_repeated("query", column, first, again, new.places, policy)
    kept = np.flatnonzero(first == np.arange(len(first)))
    kept = kept[np.argsort(byte_ranks(column)[kept])]
    elements, spans = take_spans(new.answer_spans, kept)
    rewrite(draft, QUERY_IDS, kept)
    rewrite(draft, QUERY_TEXTS, kept)
    rewrite(draft, ANSWERS, elements)
    draft.array(ANSWER_SPANS, spans)
    write_id_table(draft, QUERY_IDS, QUERY_TABLE, new.id_hashes[kept])
    row_of = np.zeros(len(first), np.int32)
    row_of[kept] = np.arange(len(kept))
    rows = row_of[first]
    return len(kept), {name: rows[new.splits == i] for i, name in enumerate(new.names) if name}


def stream_queries(
    records: Iterator[QueryRecord], draft: Draft, policy: ImportPolicy, *, none: bool = False
) -> Arrivals:
    """Write queries and answers as they arrive; ``none`` allows a source without queries."""
    id_hashes, content, places = bytearray(), bytearray(), SourceLines()
    splits, n_answers = array("q"), array("q")
    names: dict[str, int] = {}
    with (
        TextColumnWriter(draft, QUERY_IDS) as ids,
        TextColumnWriter(draft, QUERY_TEXTS) as texts,
        TextColumnWriter(draft, ANSWERS) as answers,
    ):
        for record in counted(records, "importing", "queries"):
            id_, text = encoded_id(record, "query"), encoded_text(record, "query", policy)
            given = [encoded(answer, "answer", record) for answer in record.answers]
            ids.add(id_)
            texts.add(text)
            for answer in given:
                answers.add(answer)
            id_hashes += hash_bytes(id_)
            content += hash_bytes(b"\0".join([text, *given]))
            splits.append(names.setdefault(record.split, len(names)))
            n_answers.append(len(given))
            places.add(record.path, record.line)
        check_room(len(ids), "queries")
    if not id_hashes and not none:
        raise InputError("NO_QUERIES", "there is no query", "give queries too")
    spans = offsets_of(np.array(n_answers))
    return Arrivals(as_hashes(id_hashes), as_hashes(content), np.array(splits), list(names), spans, places)


def repeated_queries(first: Int64, new: Arrivals) -> NDArray[np.bool_]:
    """Whether each record [n] is a duplicate: its query came before in its split, or with another content."""
    _, originals = np.unique(first * len(new.names) + new.splits, return_index=True)
    again = np.ones(len(first), bool)
    again[originals] = False
    return again | (new.content != new.content[first])


# ---------------------------------------------------------------- judgements


def write_qrels(
    records: Iterator[JudgementRecord], members: dict[str, NDArray[np.integer]], draft: Draft, policy: ImportPolicy
) -> dict[str, Any]:
    """Write each split's judgements; returns the counts of each split.

    ``members`` are the rows of the queries that belong to each split, whether or not they are judged.
    """
    codes = {name: code for code, name in enumerate(members)}
    judged, places = read_judgements(records, codes, draft, policy)
    facts = {}
    for name, code in sorted(codes.items()):
        check_split(name)
        origins = np.flatnonzero(judged[0] == code)
        triples, origins = sorted_known(judged[1:, origins], origins)
        triples = in_source_order(*without_repeated(triples, origins, places, policy))
        asked = judged[1, (judged[0] == code) & (judged[1] >= 0)]
        qrels = qrels_of(triples, distinct(np.concatenate([asked, members.get(name, asked)])))
        for part in QRELS_PARTS:
            draft.array(QRELS.format(split=name, part=part), getattr(qrels, part))
        positives = int((qrels.grades > 0).sum())
        facts[name] = {"queries": len(qrels), "judgements": len(qrels.grades), "positives": positives}
    return facts


def read_judgements(
    records: Iterator[JudgementRecord], codes: dict[str, int], draft: Draft, policy: ImportPolicy
) -> tuple[Int32, SourceLines]:
    """Read judgements as [4, n]: split code, query row, passage row (-1: unknown), grade.

    ``codes`` numbers the splits; a split that it lacks is added.
    """
    query_ids = IdColumn.open(draft.path, QUERY_IDS, QUERY_TABLE)
    passage_ids = IdColumn.open(draft.path, PASSAGE_IDS, PASSAGE_TABLE)
    places, unknown = SourceLines(), Unknown(query_ids.rows, passage_ids.rows)
    parts = [np.zeros((4, 0), np.int32)]
    while batch := list(islice(records, BATCH)):
        splits = np.array([codes.setdefault(record.split, len(codes)) for record in batch], np.int32)
        query_rows = query_ids.rows([record.query_id for record in batch])
        passage_rows = passage_ids.rows([record.passage_id for record in batch])
        unknown.add(batch, query_rows, passage_rows)
        parts.append(np.stack([splits, query_rows, passage_rows, grades_of(batch)]))
        for record in batch:
            places.add(record.path, record.line)
    if unknown.total:
        policy.unknown(unknown.fault(), unknown.total)
    return np.concatenate(parts, axis=1), places


def sorted_known(triples: Int32, origins: Int64) -> tuple[Int32, Int64]:
    """Triples (query row, passage row, grade) [3, n] without unknown rows, sorted by query, passage, origin."""
    known = (triples[:2] >= 0).all(axis=0)
    triples, origins = triples[:, known], origins[known]
    order = np.lexsort((triples[1], triples[0]))
    return triples[:, order], origins[order]


def without_repeated(
    triples: Int32, origins: Int64, places: SourceLines, policy: ImportPolicy
) -> tuple[Int32, Int64]:
    """Keep one judgement of each (query, passage) pair of the sorted triples [3, n], and its origin."""
    again = np.zeros(len(origins), bool)
    again[1:] = (triples[:2, 1:] == triples[:2, :-1]).all(axis=0)
    if again.any():
        at, total = int(np.argmax(again)), int(again.sum())
        what = "this judgement" + ", with another grade," * bool(triples[2, at] != triples[2, at - 1])
        fault = places.duplicate(what, int(origins[at - 1]), int(origins[at]), total)
        policy.duplicates(fault, "judgement", total)
    return triples[:, ~again], origins[~again]


def in_source_order(triples: Int32, origins: Int64) -> Int32:
    """Put the positives of each query first, in the order of their source; ``triples`` [3, n] come sorted.

    The source order of the other judgements has no meaning. They stay sorted by passage, so that the digest does
    not depend on that order.
    """
    queries, passages, grades = triples
    rest = grades < 1
    order = np.lexsort((np.where(rest, passages, origins), rest, queries))
    return triples[:, order]


def qrels_of(triples: Int32, queries: Int32) -> Qrels:
    """The qrels of all the ascending ``queries`` [Q], judged or not, from triples [3, n] sorted by query."""
    lengths = np.bincount(np.searchsorted(queries, triples[0]), minlength=len(queries))
    return Qrels(queries, offsets_of(lengths), triples[1], triples[2])

"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/<split>.tsv``; each may end in ``.gz``.

Layout of Thakur et al., "BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval
Models", 2021. Each file in ``qrels`` is a split. A query that no qrels file names is kept, outside all splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from hardneg.data.formats.folders import find_file, find_splits
from hardneg.data.formats.lines import (
    Fields,
    empty_file,
    grade_of,
    id_of,
    objects_of,
    read_blocks,
    read_columns,
    read_objects,
    text_of,
)
from hardneg.data.record_source import (
    JudgementRecord,
    PassageLines,
    PassagePart,
    PassageRecord,
    QueryRecord,
    Source,
    file_digests,
)
from hardneg.errors import InputError

HEADER = ("query-id", "corpus-id", "score")
FIELDS = {"_id": None, "title": b"", "text": None}
USED = frozenset(FIELDS)
SPLITS = r"(?P<split>[^.].*)\.tsv"


def records(folder: Path) -> Source:
    """The collection in a BEIR folder; raises :class:`InputError` if a file is missing."""
    corpus, queries = find_file(folder, "corpus.jsonl"), find_file(folder, "queries.jsonl")
    splits = find_splits(folder / "qrels", SPLITS)
    if not splits:
        raise InputError("NOT_FOUND", "no qrels/<split>.tsv here", "add the qrels", path=folder)
    ignored: Counter[str] = Counter()
    return Source(
        "beir",
        lambda: _records(read_objects(corpus), corpus, ignored),
        lambda: _queries(queries, ignored),
        lambda: _judgements(splits),
        file_digests(folder, [corpus, queries, *splits.values()]),
        ignored,
        parts=lambda: _parts(corpus, ignored),
    )


def _parts(path: Path, ignored: Counter[str]) -> Iterator[PassagePart]:
    number = 0
    for number, block in read_blocks(path):
        records = partial(_records, objects_of(path, block, number), path, ignored)
        yield PassageLines(path, number, block, FIELDS, records, ignored)
    if number == 0:
        raise empty_file(path)


def _records(objects: Iterable[tuple[int, Fields]], path: Path, ignored: Counter[str]) -> Iterator[PassageRecord]:
    for line, fields in objects:
        id_, title, text = fields.get("_id"), fields.get("title"), fields.get("text")
        if isinstance(title, str) and isinstance(id_, str) and isinstance(text, str):
            yield PassageRecord(id_, title, text, path, line)
            if len(fields) == len(USED):
                continue
        else:
            title = text_of(fields, "title", path, line, "")
            id_, text = id_of(fields, "_id", path, line), text_of(fields, "text", path, line)
            yield PassageRecord(id_, title, text, path, line)
        if not fields.keys() <= USED:
            ignored.update(fields.keys() - USED)


def _queries(path: Path, ignored: Counter[str]) -> Iterator[QueryRecord]:
    for line, fields in read_objects(path):
        text = text_of(fields, "text", path, line)
        yield QueryRecord(id_of(fields, "_id", path, line), text, path=path, line=line)
        if not fields.keys() <= USED:
            ignored.update(fields.keys() - USED)


def _judgements(splits: dict[str, Path]) -> Iterator[JudgementRecord]:
    for split, path in splits.items():
        for line, (query_id, passage_id, score) in read_columns(path, HEADER):
            yield JudgementRecord(split, query_id, passage_id, grade_of(score, path, line), path, line)

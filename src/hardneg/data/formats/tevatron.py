"""Tevatron's JSON Lines of versions 1 and 2; each file may end in ``.gz``.

``<split>.jsonl`` has ``query_id``, ``query`` (version 2: ``query_text``) and optionally ``answers``. Judgements of
grade 1 are ``positive_passages`` with ``docid``, ``title`` and ``text`` (version 2: ``positive_document_ids``).
``corpus.jsonl`` has ``docid``, ``text`` (also ``document_text``) and maybe ``title``. Without that file the corpus
consists of the passages inside the records, negatives included. A query without positives is in its split too.

Gao et al., "Tevatron: An Efficient and Flexible Toolkit for Dense Retrieval", 2022.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hardneg.data.formats.arrays import read_records
from hardneg.data.formats.contexts import (
    IDS,
    Place,
    answers_of,
    inline_passages,
    positives_of,
    query_id_of,
    read_files,
)
from hardneg.data.formats.folders import find_file, find_splits, has_file
from hardneg.data.formats.lines import id_of, text_of
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

CORPUS = "corpus.jsonl"
SPLITS = r"(?!corpus\.)(?P<split>[^.].*?)\.jsonl?"
POSITIVES = ("positive_passages", "positive_document_ids")
NEGATIVES = ("negative_passages", "negative_document_ids")
QUERY_TEXTS, PASSAGE_TEXTS = ("query", "query_text"), ("text", "document_text")
USED = frozenset({"query_id", "qid", "id", *QUERY_TEXTS, "answers", "answer", *POSITIVES})
USED_OF_CORPUS = frozenset({*IDS, "title", *PASSAGE_TEXTS})


def records(folder: Path) -> Source:
    """The collection in a folder of this format; raises :class:`InputError` if a file is missing."""
    splits = find_splits(folder, SPLITS)
    if not splits:
        raise InputError("NOT_FOUND", "no <split>.jsonl here", "add the queries", path=folder)
    corpus = find_file(folder, CORPUS) if has_file(folder, CORPUS) else None
    ignored: Counter[str] = Counter()
    return Source(
        "tevatron",
        lambda: (
            _corpus(corpus, ignored)
            if corpus
            else inline_passages(read_files(splits.values()), POSITIVES + NEGATIVES)
        ),
        lambda: _queries(splits, USED if corpus else USED.union(NEGATIVES), ignored),
        lambda: _judgements(splits),
        file_digests(
            folder if folder.is_dir() else folder.parent, [*([corpus] if corpus else []), *splits.values()]
        ),
        ignored,
    )


def _corpus(path: Path, ignored: Counter[str]) -> Iterator[PassageRecord]:
    for line, fields in read_records(path):
        name = next((name for name in IDS if name in fields), IDS[0])
        passage_id, title = id_of(fields, name, path, line), text_of(fields, "title", path, line, "")
        yield PassageRecord(passage_id, title, _first_text(fields, PASSAGE_TEXTS, Place(path, line)), path, line)
        if not fields.keys() <= USED_OF_CORPUS:
            ignored.update(fields.keys() - USED_OF_CORPUS)


def _queries(splits: Mapping[str, Path], used: frozenset[str], ignored: Counter[str]) -> Iterator[QueryRecord]:
    for split, path in splits.items():
        for line, fields in read_records(path):
            place = Place(path, line)
            text = _first_text(fields, QUERY_TEXTS, place)
            yield QueryRecord(query_id_of(fields, place, None), text, split, answers_of(fields, place), path, line)
            ignored.update(fields.keys() - used)


def _first_text(fields: Mapping[str, object], names: tuple[str, ...], place: Place) -> str:
    """The string in the first of the fields ``names`` that the record has."""
    name = next((name for name in names if name in fields), names[0])
    return text_of(fields, name, *place)


def _judgements(splits: Mapping[str, Path]) -> Iterator[JudgementRecord]:
    for split, path in splits.items():
        for line, fields in read_records(path):
            place = Place(path, line)
            query_id = query_id_of(fields, place, None)
            for passage_id in positives_of(fields, POSITIVES, place):
                yield JudgementRecord(split, query_id, passage_id, 1, path, line)

r"""TREC's files in one folder: topics, qrels and a corpus; each may end in ``.gz``.

Topics: ``topics.<split>.tsv``, ``queries.<split>.tsv`` (or ``.txt``) with ``id\ttext``. Judgements:
``qrels.<split>.txt`` (or ``.tsv``) with ``query 0 passage grade``; lines that begin with # are skipped.
``topics.tsv`` and ``qrels.txt`` belong to the split ``test``. Corpus: ``corpus.tsv`` or ``collection.tsv`` with
``id\ttitle\ttext`` or ``id\ttext`` and no header, or ``corpus.jsonl`` with ``id`` (``_id``, ``docid``), ``text``
(``contents``) and maybe ``title``. A topic is in the splits whose qrels judge it: TREC judges few of its topics,
and only those count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hardneg.data.formats.folders import (
    distinct_queries,
    find_file,
    find_splits,
    has_file,
    tab_rows,
    trec_judgements,
)
from hardneg.data.formats.lines import id_of, read_objects, text_of
from hardneg.data.record_source import PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

TABLES, OBJECTS = ("corpus.tsv", "collection.tsv"), "corpus.jsonl"
TOPICS = r"(?:topics|queries)\.(?P<split>[\w.-]+)\.(?:tsv|txt)"
QRELS = r"qrels\.(?P<split>[\w.-]+)\.(?:tsv|txt)"
ALONE = ("topics.tsv", "topics.txt", "queries.tsv", "queries.txt"), ("qrels.txt", "qrels.tsv", "qrels")
ONLY_SPLIT = "test"
IDS, TEXTS = ("id", "_id", "docid"), ("text", "contents")
USED = frozenset({*IDS, *TEXTS, "title"})


def records(folder: Path) -> Source:
    """The collection in a folder of this format; raises :class:`InputError` if a file is missing."""
    corpus = find_file(folder, *TABLES, OBJECTS)
    topics, qrels = _splits(folder, TOPICS, ALONE[0]), _splits(folder, QRELS, ALONE[1])
    for found, names in ((topics, "topics.<split>.tsv"), (qrels, "qrels.<split>.txt")):
        if not found:
            raise InputError("NOT_FOUND", f"no {names} here", "add the file", path=folder)
    ignored: Counter[str] = Counter()
    return Source(
        "trec",
        lambda: _passages(corpus, ignored),
        lambda: distinct_queries(map(_queries, topics.values())),
        lambda: trec_judgements(qrels),
        file_digests(folder, [corpus, *topics.values(), *qrels.values()]),
        ignored,
    )


def _splits(folder: Path, pattern: str, alone: tuple[str, ...]) -> dict[str, Path]:
    """The files by split; a file whose name has no split belongs to ``test``."""
    found = find_splits(folder, pattern)
    if not found and any(has_file(folder, name) for name in alone):
        return {ONLY_SPLIT: find_file(folder, *alone)}
    return found


def _passages(path: Path, ignored: Counter[str]) -> Iterator[PassageRecord]:
    if not path.name.startswith(OBJECTS):
        for line, row in tab_rows(path, (3, 2)):
            yield PassageRecord(row[0], row[1] if len(row) == 3 else "", row[-1], path, line)
        return
    for line, fields in read_objects(path):
        id_name, text_name = (next((n for n in names if n in fields), names[0]) for names in (IDS, TEXTS))
        title, text = text_of(fields, "title", path, line, ""), text_of(fields, text_name, path, line)
        yield PassageRecord(id_of(fields, id_name, path, line), title, text, path, line)
        if not fields.keys() <= USED:
            ignored.update(fields.keys() - USED)


def _queries(path: Path) -> Iterator[QueryRecord]:
    for line, (query_id, text) in tab_rows(path, (2,)):
        yield QueryRecord(query_id, text, path=path, line=line)

"""Plain question answering: ``corpus.tsv`` with a header and ``<split>.jsonl``; each may end in ``.gz``.

The corpus has the columns ``psg_id``, ``title`` and ``text`` and no quoting; a question has ``qid``,
``question``, and optionally ``answers`` and ``positive_ctxs`` (passage ids: judgements of grade 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hardneg.data.formats.folders import find_file, find_splits
from hardneg.data.formats.lines import id_of, ids_of, read_columns, read_objects, text_of, texts_of
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

COLUMNS = ("psg_id", "title", "text")
USED = frozenset({"qid", "question", "answers", "positive_ctxs"})
SPLITS = r"(?P<split>[^.].*)\.jsonl"


def records(folder: Path) -> Source:
    """The collection in a plain-QA folder; raises :class:`InputError` if a file is missing."""
    corpus, splits = find_file(folder, "corpus.tsv"), find_splits(folder, SPLITS)
    if not splits:
        raise InputError("NOT_FOUND", "no <split>.jsonl here", "add the questions", path=folder)
    ignored: Counter[str] = Counter()
    return Source(
        "qa",
        lambda: _passages(corpus, ignored),
        lambda: _queries(splits, ignored),
        lambda: _judgements(splits),
        file_digests(folder, [corpus, *splits.values()]),
        ignored,
    )


def _passages(path: Path, ignored: Counter[str]) -> Iterator[PassageRecord]:
    for line, (passage_id, title, text) in read_columns(path, COLUMNS, ignored):
        yield PassageRecord(passage_id, title, text, path, line)


def _queries(splits: dict[str, Path], ignored: Counter[str]) -> Iterator[QueryRecord]:
    for split, path in splits.items():
        for line, fields in read_objects(path):
            query_id, question = id_of(fields, "qid", path, line), text_of(fields, "question", path, line)
            yield QueryRecord(query_id, question, split, texts_of(fields, "answers", path, line), path, line)
            ignored.update(fields.keys() - USED)


def _judgements(splits: dict[str, Path]) -> Iterator[JudgementRecord]:
    for split, path in splits.items():
        for line, fields in read_objects(path):
            query_id = id_of(fields, "qid", path, line)
            for passage_id in dict.fromkeys(ids_of(fields, "positive_ctxs", path, line)):
                yield JudgementRecord(split, query_id, passage_id, 1, path, line)

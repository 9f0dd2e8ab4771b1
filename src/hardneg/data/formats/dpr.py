r"""DPR's data for open-domain questions, also in ANCE-Tele's layout; each file may end in ``.gz``.

Passages: ``psgs_w100.tsv`` with CSV quoting. A header names the columns ``id``, ``text`` and ``title`` (also
``psg_id``, ``psg``, ``psg_title``); without a header they stand in this order. The file lies in the folder or, as
ANCE-Tele's folders share it, in ``wikipedia-corpus-index`` beside the folder. Without this file the passages are
those inside the questions' records.

Questions: ``<split>.json`` or ``<split>.jsonl``, an array or one object a line. Each has ``question``, and
optionally ``qid``, ``answers`` and ``positive_ctxs``, the judgements of grade 1 (ids, or passages with texts).
Or ``<split>.qa.csv`` with ``question\tanswers``, where the answers are a Python list. The split of
``biencoder-nq-train.json`` or ``nq-train-qrels.jsonl`` is ``train``. A question without an id is called
``<split>-<number>``, from 0.

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", 2020.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from hardneg.data.formats.arrays import read_records
from hardneg.data.formats.columns import are_glued
from hardneg.data.formats.contexts import Place, answers_of, inline_passages, positives_of, query_id_of, read_files
from hardneg.data.formats.faults import refuse
from hardneg.data.formats.folders import find_file, find_splits, has_file
from hardneg.data.formats.lines import read_columns, read_lines, split_quoted, text_of, wrong_width
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError
from hardneg.storage.safe_read import undisturbed

PASSAGES, CSV = "psgs_w100.tsv", ".qa.csv"
BESIDE = "wikipedia-corpus-index"  # where ANCE-Tele keeps the passages, beside the folder of the questions
COLUMNS, OTHER_COLUMNS = ("id", "title", "text"), ("psg_id", "psg_title", "psg")
POSITIVES, NEGATIVES = "positive_ctxs", ("negative_ctxs", "hard_negative_ctxs")
USED = frozenset({"qid", "query_id", "id", "question", "answers", "answer", POSITIVES})
QUESTIONS = (
    r"(?:.*[-_.])?(?P<split>train|dev|test)(?:[-_.]qrels)?\.(?:jsonl?|qa\.csv)",
    r"(?P<split>[^.].*?)\.(?:jsonl?|qa\.csv)",
)


def records(folder: Path) -> Source:
    """The collection in a folder of this format; raises :class:`InputError` if a file is missing."""
    splits = find_splits(folder, *QUESTIONS)
    if not splits:
        raise InputError("NOT_FOUND", "no <split>.json or .jsonl here", "add the questions", path=folder)
    corpus = find_passages(folder)
    ignored: Counter[str] = Counter()
    return Source(
        "dpr",
        lambda: _passages(corpus, splits, ignored),
        lambda: _queries(splits, USED if corpus else USED.union(NEGATIVES), ignored),
        lambda: _judgements(splits),
        file_digests(
            folder if folder.is_dir() else folder.parent, [*([corpus] if corpus else []), *splits.values()]
        ),
        ignored,
    )


def find_passages(folder: Path) -> Path | None:
    """The file of the passages, in the folder or beside it; None if the passages are inside the records."""
    places = [folder, folder.absolute().parent / BESIDE]
    return next((find_file(place, PASSAGES) for place in places if has_file(place, PASSAGES)), None)


def _rows(corpus: Path, ignored: Counter[str]) -> Iterator[tuple[int, list[str]]]:
    """The line, and (id, title, text), of each passage.

    A first line that begins with a number is a passage, because no column's name is a number; else it is a header.
    """
    _, first = next(read_lines(corpus), (1, ""))
    begin = split_quoted(first, corpus, 1)
    if len(begin) != 3 or not begin[0].isdecimal():
        names = OTHER_COLUMNS if set(OTHER_COLUMNS) <= set(begin) else COLUMNS
        yield from read_columns(corpus, names, ignored, quoted=True)
        return
    for line, text in read_lines(corpus):
        row = split_quoted(text, corpus, line)
        if len(row) != 3:
            refuse(wrong_width(corpus, line, len(row), 3))
            continue
        yield line, [row[0], row[2], row[1]]


def _passages(corpus: Path | None, splits: Mapping[str, Path], ignored: Counter[str]) -> Iterator[PassageRecord]:
    if corpus is None:
        files = [path for path in splits.values() if not is_csv(path)]
        yield from inline_passages(read_files(files), (POSITIVES, *NEGATIVES))
    else:
        for line, (passage_id, title, text) in _rows(corpus, ignored):
            yield PassageRecord(passage_id, title, text, corpus, line)


def _queries(splits: Mapping[str, Path], used: frozenset[str], ignored: Counter[str]) -> Iterator[QueryRecord]:
    for split, path in splits.items():
        if is_csv(path):
            yield from _csv_questions(split, path)
            continue
        for number, (line, fields) in enumerate(read_records(path)):
            place = Place(path, line)
            query_id, question = (
                query_id_of(fields, place, f"{split}-{number}"),
                text_of(fields, "question", *place),
            )
            yield QueryRecord(query_id, question, split, answers_of(fields, place), path, line)
            ignored.update(fields.keys() - used)


def _judgements(splits: Mapping[str, Path]) -> Iterator[JudgementRecord]:
    for split, path in splits.items():
        if is_csv(path):
            continue
        for number, (line, fields) in enumerate(read_records(path)):
            query_id = query_id_of(fields, Place(path, line), f"{split}-{number}")
            for passage_id in positives_of(fields, [POSITIVES], Place(path, line)):
                yield JudgementRecord(split, query_id, passage_id, 1, path, line)


def is_csv(path: Path) -> bool:
    """Whether this file of questions is a table (``.qa.csv``) and not JSON."""
    return path.name.removesuffix(".gz").endswith(CSV)


def _csv_questions(split: str, path: Path) -> Iterator[QueryRecord]:
    for line, text in read_lines(path):
        row = split_quoted(text, path, line)
        if len(row) != 2:
            refuse(wrong_width(path, line, len(row), 2))
            continue
        yield QueryRecord(f"{split}-{line - 1}", row[0], split, _listed(row[1], path, line), path, line)


def _listed(text: str, path: Path, line: int) -> list[str]:
    """Parse a list of strings in Python's notation; nothing is executed."""
    try:
        value = undisturbed(lambda: ast.literal_eval(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    if isinstance(value, list) and all(isinstance(item, str) for item in value) and not are_glued(text, value):
        return value
    what = f"the answers {text[:60]!r} are no list of strings"
    refuse(InputError("WRONG_TYPE", what, "write them as ['one', 'two']", path=path, line=line))
    return []

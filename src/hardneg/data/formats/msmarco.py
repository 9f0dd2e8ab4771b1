r"""MS MARCO folders, of passages as ANCE-Tele lays them out, or of documents; each file may end in ``.gz``.

Passages: ``corpus.tsv`` with ``id\ttitle\ttext`` or ``id\ttext`` and no header. Documents: ``msmarco-docs.tsv``
with ``id\turl\ttitle\tbody``; url and title become the title, a line each, and where the lines meet an encoder
puts its separator (``url [SEP] title [SEP] body``). Queries: ``<split>.query.txt`` or the official
``queries.<split>.tsv`` and ``msmarco-doc<split>-queries.tsv``, with ``id\ttext``. Judgements:
``qrels.<split>.tsv`` or ``msmarco-doc<split>-qrels.tsv``, with ``query 0 id grade``. There is no quoting: a lone
``"`` is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hardneg.data.formats.lines import empty_file, find_file, grade_of, read_lines, wrong_width
from hardneg.data.source import JudgementRecord, PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

PASSAGES, DOCUMENTS = "corpus.tsv", "msmarco-docs.tsv"
QUERIES = (
    r"(?P<split>[\w-]+)\.query\.txt",
    r"queries\.(?P<split>[\w-]+)\.tsv",
    r"msmarco-doc(?P<split>\w+)-queries\.tsv",
)
QRELS = (r"qrels\.(?P<split>[\w-]+)\.tsv", r"msmarco-doc(?P<split>\w+)-qrels\.tsv")


def records(folder: Path) -> Source:
    """The collection in such a folder; raises :class:`InputError` where a file is missing."""
    documents = any((folder / f"{DOCUMENTS}{end}").is_file() for end in ("", ".gz"))
    corpus = find_file(folder, DOCUMENTS if documents else PASSAGES)
    queries, qrels = by_split(folder, QUERIES), by_split(folder, QRELS)
    if not queries:
        raise InputError("NOT_FOUND", "no <split>.query.txt here", "add the queries", path=folder)
    return Source(
        "msmarco",
        lambda: _documents(corpus) if documents else _passages(corpus),
        lambda: _queries(queries),
        lambda: _judgements(qrels),
        file_digests(folder, [corpus, *queries.values(), *qrels.values()]),
    )


def by_split(folder: Path, patterns: Sequence[str]) -> dict[str, Path]:
    """The files of a folder whose names follow one of the patterns, by the split that they name."""
    found: dict[str, Path] = {}
    for name in sorted({path.name.removesuffix(".gz") for path in folder.iterdir() if path.is_file()}):
        for match in (re.fullmatch(pattern, name) for pattern in patterns):
            if (
                match
                and found.setdefault(match["split"], find_file(folder, name)).name.removesuffix(".gz") != name
            ):
                what = f"two files of split '{match['split']}'"
                raise InputError("AMBIGUOUS", what, "keep one of them", path=folder / name)
    return found


def _rows(path: Path, widths: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and columns; every line is as wide as the first."""
    width = None
    for line, text in read_lines(path):
        row = text.split("\t")
        width = width or (len(row) if len(row) in widths else widths[0])
        if len(row) != width:
            raise wrong_width(path, line, len(row), width)
        yield line, row
    if width is None:
        raise empty_file(path)


def _passages(path: Path) -> Iterator[PassageRecord]:
    for line, row in _rows(path, (3, 2)):
        yield PassageRecord(row[0], row[1] if len(row) == 3 else "", row[-1], path, line)


def _documents(path: Path) -> Iterator[PassageRecord]:
    for line, (document, url, title, body) in _rows(path, (4,)):
        yield PassageRecord(document, "\n".join(part for part in (url, title) if part), body, path, line)


def _queries(splits: dict[str, Path]) -> Iterator[QueryRecord]:
    for split, path in splits.items():
        for line, (query, text) in _rows(path, (2,)):
            yield QueryRecord(query, text, split, (), path, line)


def _judgements(splits: dict[str, Path]) -> Iterator[JudgementRecord]:
    for split, path in splits.items():
        line = 0
        for line, text in read_lines(path):
            row = text.split()
            if len(row) != 4:
                what = f"{len(row)} columns where 4 are expected"
                raise InputError("WRONG_COLUMNS", what, "write 'query 0 passage grade'", path=path, line=line)
            yield JudgementRecord(split, row[0], row[2], grade_of(row[3], path, line), path, line)
        if line == 0:
            raise empty_file(path)

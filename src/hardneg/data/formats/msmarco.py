r"""MS MARCO folders of passages (also in ANCE-Tele's layout) or of documents; each file may end in ``.gz``.

Passages: ``corpus.tsv`` or the official ``collection.tsv`` with ``id\ttitle\ttext`` or ``id\ttext`` and no header.
Documents: ``msmarco-docs.tsv`` with ``id\turl\ttitle\tbody``. Url and title become the two lines of the title, and
an encoder puts its separator between the lines (``url [SEP] title [SEP] body``). Queries:
``<split>.query.txt`` or the official ``queries.<split>.tsv`` and ``msmarco-doc<split>-queries.tsv``, with
``id\ttext``. Judgements:
``qrels.<split>.tsv`` or ``msmarco-doc<split>-qrels.tsv``, with ``query 0 id grade``. The file names the split. It
may judge queries of another split's file (``qrels.dev.small.tsv`` judges queries of ``dev.query.txt``).
There is no quoting: a lone ``"`` is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hardneg.data.formats.folders import find_file, find_splits, has_file, tab_rows, trec_judgements
from hardneg.data.record_source import PassageRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

PASSAGES, DOCUMENTS = ("corpus.tsv", "collection.tsv"), "msmarco-docs.tsv"
QUERIES = (
    r"(?P<split>[\w.-]+)\.query\.txt",
    r"queries\.(?P<split>[\w.-]+)\.tsv",
    r"msmarco-doc(?P<split>\w+)-queries\.tsv",
)
QRELS = (r"qrels\.(?P<split>[\w.-]+)\.(?:tsv|txt)", r"msmarco-doc(?P<split>\w+)-qrels\.tsv")


def records(folder: Path, *, documents: bool | None = None) -> Source:
    """The collection in an MS MARCO folder: documents, passages, or (None) whichever the folder has.

    Raises
    ------
    InputError : a file is missing.
    """
    if documents is None:
        documents = has_file(folder, DOCUMENTS)
    corpus = find_file(folder, DOCUMENTS) if documents else find_file(folder, *PASSAGES)
    queries, qrels = find_splits(folder, *QUERIES), find_splits(folder, *QRELS)
    if not queries:
        raise InputError("NOT_FOUND", "no <split>.query.txt here", "add the queries", path=folder)
    return Source(
        "msmarco",
        lambda: _documents(corpus) if documents else _passages(corpus),
        lambda: _queries(queries),
        lambda: trec_judgements(qrels),
        file_digests(folder, [corpus, *queries.values(), *qrels.values()]),
    )


def _passages(path: Path) -> Iterator[PassageRecord]:
    for line, row in tab_rows(path, (3, 2)):
        yield PassageRecord(row[0], row[1] if len(row) == 3 else "", row[-1], path, line)


def _documents(path: Path) -> Iterator[PassageRecord]:
    for line, (document, url, title, body) in tab_rows(path, (4,)):
        yield PassageRecord(document, "\n".join(part for part in (url, title) if part), body, path, line)


def _queries(splits: dict[str, Path]) -> Iterator[QueryRecord]:
    for split, path in splits.items():
        for line, (query, text) in tab_rows(path, (2,)):
            yield QueryRecord(query, text, split, (), path, line)

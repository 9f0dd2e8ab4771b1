"""Pairs and triplets in named columns, as sentence-transformers and FlagEmbedding train on, and corpora alone.

A place is a file or a folder: ``train.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.parquet``, or what
``datasets`` wrote by ``save_to_disk``. A folder is looked through one level deep, without the experiments,
artefacts, models and runs that hardneg may have written there. The split is the word train,
dev, validation, valid, val or test in a file's name, else in the name of its folder; without such a word it is
train. validation, valid and val are called ``dev``. A file of a text column, and maybe id and title, is a
corpus: its passages come first, and a positive or negative with the text of one of them is that passage. Beside
a corpus with ids, a column such as ``document_id`` may name the positives by their ids. A corpus alone has no
queries: it can be encoded and searched.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hardneg.data.formats.column_names import (
    any_pair_columns,
    corpus_columns,
    judged_columns,
    near_texts,
    plain_name,
    unknown_columns,
)
from hardneg.data.formats.columns import (
    Table,
    columns_within,
    corpus_passages,
    corpus_source,
    pair_judgements,
    pair_negatives,
    pair_passages,
    pair_queries,
    pairs_of,
)
from hardneg.data.formats.contexts import text_id
from hardneg.data.formats.folders import tab_rows
from hardneg.data.formats.table_files import CORPORA, split_of, table_files, tell_own, words_of
from hardneg.data.formats.tables import JSON, TSV, check_first_records, columns_of, read_rows, suffix_of
from hardneg.data.record_source import PassageRecord, Source, file_digests
from hardneg.errors import InputError


class Found(NamedTuple):
    """The tables of a place: those of pairs, and those of a corpus."""

    pairs: list[Table]
    corpus: list[Table]

    @property
    def files(self) -> list[Path]:
        """The files of all tables."""
        return [table.path for table in (*self.corpus, *self.pairs)]


def records(place: Path) -> Source:
    """The collection of the pairs in a file or folder, or of its corpus alone.

    Raises
    ------
    InputError : no file holds pairs or a corpus; the line says what was looked for, and where.
    """
    found = find_tables(place)
    if not found.files:
        what = "no file of pairs or passages here (.jsonl, .json, .csv, .tsv, .parquet, .arrow)"
        raise InputError("NOT_FOUND", what, "add one, or give its path", path=place)
    tell_own(place)
    inputs = file_digests(place if place.is_dir() else place.parent, found.files)
    return source_of("pairs", found, inputs) if found.pairs else corpus_source("corpus", found.corpus, inputs)


def corpus_records(place: Path) -> Source:
    """The passages in a file or folder, without queries; raises :class:`InputError` if there are none."""
    found = find_tables(place).corpus
    if not found:
        what = "no file with a column 'text' here, nor corpus.tsv with id and text"
        raise InputError("NOT_FOUND", what, "add the passages", path=place)
    inputs = file_digests(place if place.is_dir() else place.parent, [table.path for table in found])
    return corpus_source("corpus", found, inputs)


def source_of(format: str, found: Found, inputs: Mapping[str, str]) -> Source:
    """The source of tables of pairs, and of a corpus beside them if there is one."""
    ignored, judged_by = Counter[str](), Counter[str]()
    known = functools.cache(lambda: passages_known(found))

    def passages() -> Iterator[PassageRecord]:
        yield from corpus_passages(found.corpus, ignored)
        yield from pair_passages(found.pairs, known(), ignored)

    return Source(
        format,
        passages,
        lambda: pair_queries(found.pairs),
        lambda: pair_judgements(found.pairs, known(), judged_by),
        inputs,
        ignored,
        partial(pair_negatives, found.pairs),
        judged_by=judged_by,
    )


def passages_known(found: Found) -> dict[str, str]:
    """The ids of the corpus's passages by the ids that their texts get in pairs, for passages that occur there.

    A passage with a title may also occur in pairs as one text: title, blank, text.
    """
    if not found.corpus:
        return {}
    wanted = {
        text_id(text)
        for table in found.pairs
        for pair in pairs_of(table)
        for text in (*pair.positives, *pair.negatives)
    }
    known: dict[str, str] = {}
    with_ids = {table.path for table in found.corpus if columns_within(table).id is not None}
    ids: set[str] = set()
    for passage in corpus_passages(found.corpus):
        if passage.path in with_ids and (own := text_id(passage.id)) in wanted:
            ids.add(own)
        texts = [passage.text, *([f"{passage.title} {passage.text}"] if passage.title else [])]
        for named in map(text_id, texts):
            if named in wanted:
                known.setdefault(named, passage.id)
    if len(ids := ids - known.keys()) > len(wanted) // 2:
        name = min(with_ids).name
        what = f"{len(ids):,} of {len(wanted):,} texts of the pairs are ids of the passages in {name}"
        raise InputError("UNKNOWN_COLUMNS", what, "call their column 'document_id'", path=found.pairs[0].path)
    return known


# ---------------------------------------------------------------- files


def find_tables(place: Path) -> Found:
    """The tables of a file or folder, told apart by the names of their columns.

    Raises
    ------
    InputError : a table has columns that no convention knows, or stands there twice.
    """
    found = Found([], [])
    files, by_id = table_files(place), dict[Path, list[str]]()
    for path in files:
        table, columns = Table(split_of(path, place), path, partial(read_rows, path)), columns_of(path)
        if named := any_pair_columns(tuple(columns)):
            found.pairs.append(replace(table, by_id=named.by_id))
            by_id |= {path: columns} if named.by_id else {}
        elif plain := headless(path, columns):
            found.corpus.append(Table("", path, plain))
        elif corpus_columns(tuple(columns)):
            found.corpus.append(table)
        else:
            check_first_records(path)
            if suffix_of(path) != JSON[0] or len(files) == 1:  # other JSON may stand in a folder
                raise unknown_columns(path, columns)
    if by_id:
        judged = [one for names in by_id.values() if (one := judged_columns(tuple(names)))]
        ids = tuple(plain_name(one.positive) for one in judged)
        found.corpus[:] = [replace(table, by_id=True, named=ids) for table in found.corpus]
        check_ids(found, by_id)
    return found


def check_ids(found: Found, by_id: Mapping[Path, Sequence[str]]) -> None:
    """Refuse pairs that name positives by ids if there is no corpus with ids.

    Parameters
    ----------
    by_id : the names of the columns of such pairs, by file.

    Raises
    ------
    InputError : as said; a text under an unknown name is taken for the one that is missing.
    """
    path, names = next(iter(by_id.items()))
    columns = judged_columns(tuple(names))
    assert columns is not None
    if not found.corpus and set(near_texts(names)) - columns.used:
        raise unknown_columns(path, names)
    without = [table.path.name for table in found.corpus if columns_within(table).id is None]
    if without or not found.corpus:
        what = f"the column {columns.positive!r} holds ids of passages, and "
        what += f"{without[0]} has none" if without else "there is no table of the passages"
        fix = "give a folder that also has a table with the columns id and text, such as corpus.csv"
        raise InputError("UNKNOWN_COLUMNS", what, fix, path=path)


def headless(path: Path, columns: Sequence[str]) -> Callable[[], Iterator[tuple[int, dict[str, str]]]] | None:
    """The reader of a corpus's TSV file of id, maybe title, and text, without header; None: it is another file."""
    if suffix_of(path) not in TSV or words_of(path)[0] not in CORPORA or len(columns) not in (2, 3):
        return None
    if corpus_columns(tuple(columns)):
        return None
    names = ("id", "title", "text") if len(columns) == 3 else ("id", "text")
    return lambda: ((line, dict(zip(names, row, strict=True))) for line, row in tab_rows(path, (len(names),)))

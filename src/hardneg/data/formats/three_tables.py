"""A folder of three kinds of tables, told by the words in their names: passages, queries and judgements.

Passages are in ``corpus``, ``collection``, ``passages``, ``documents`` or ``docs``; queries in ``queries``,
``query``, ``questions`` or ``topics``; judgements in ``qrels``, ``qrel``, ``judgements`` or ``judgments``. The
word stands in the name of the file (``dev-qrels.csv``), or in that of its folder (``qrels/dev.tsv``). Each kind
may be any table: JSON, JSON Lines, CSV, TSV, Parquet or Arrow with named columns, or lines with tabs and no
header. The split is the word train, dev, validation, valid, val or test in the name of a file of judgements, else
train.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from hardneg.data.formats.column_names import POSITIVE_IDS, TEXTS, any_pair_columns, corpus_columns, plain_name
from hardneg.data.formats.columns import Table, columns_within, corpus_passages, grade_in, ids_in
from hardneg.data.formats.contexts import IDS, Place
from hardneg.data.formats.faults import Unread
from hardneg.data.formats.folders import (
    distinct_queries,
    find_file,
    is_manifest,
    sidecar_of,
    tab_rows,
    trec_judgements,
)
from hardneg.data.formats.lines import Fields, empty_file, id_of, read_lines, text_of
from hardneg.data.formats.table_files import CORPORA, is_hidden, paths_inside, split_of, table_files, tell_own
from hardneg.data.formats.tables import JSON, TSV, check_first_records, columns_of, read_rows, suffix_of
from hardneg.data.record_source import JudgementRecord, QueryRecord, Source, file_digests
from hardneg.errors import InputError

# The words that tell a kind. A later kind goes before: ``qrels-of-queries.tsv`` holds judgements.
KINDS: Mapping[str, frozenset[str]] = {
    "passages": CORPORA,
    "queries": frozenset({"queries", "query", "questions", "topics"}),
    "judgements": frozenset({"qrels", "qrel", "judgements", "judgments"}),
}
SHOWN = {"passages": "passages.tsv", "queries": "queries.tsv", "judgements": "qrels.tsv"}
PLAIN = ".txt"  # queries or judgements with tabs, or TREC's judgements
# The names of columns, in lower case and with _ in place of - and blanks.
QUERY_IDS = ("query_id", "qid", "question_id", "topic_id", "id", "_id")
QUERY_TEXTS = ("text", "query", "question", "query_text")
JUDGED_QUERIES = (*QUERY_IDS[:4], "query", "topic")
JUDGED_PASSAGES = (*POSITIVE_IDS, "document", "doc", "passage")
GRADES = ("score", "label", "relevance", "grade", "rel")
KNOWN = {*QUERY_IDS, *QUERY_TEXTS, *JUDGED_QUERIES, *JUDGED_PASSAGES, *GRADES, *TEXTS, *IDS, "title"}


class Columns(NamedTuple):
    """The two columns of a table that must be there, and the column of grades, if there is one."""

    first: str
    second: str
    grade: str | None = None


class Plan(NamedTuple):
    """How each file is read; of files without a header there are no columns."""

    files: list[Path]
    passages: list[Table]
    queries: dict[Path, Columns | None]
    judgements: dict[Path, Columns | None]


def records(place: Path) -> Source:
    """The collection in a folder of three kinds of tables.

    Raises
    ------
    InputError : a kind is missing, or a file has columns that are not known.
    """
    plan, ignored = plan_of(place), Counter[str]()
    tell_own(place)
    return Source(
        "tables",
        lambda: corpus_passages(plan.passages, ignored),
        lambda: distinct_queries(_queries(path, columns, ignored) for path, columns in plan.queries.items()),
        lambda: chain.from_iterable(
            _judgements(path, columns, split_of(path, place), ignored) for path, columns in plan.judgements.items()
        ),
        file_digests(place, plan.files),
        ignored,
    )


def plan_of(place: Path) -> Plan:
    """How the files of a folder are read, by their first lines; raises as :func:`records` does."""
    found = tables_by_kind(place)
    for kind, files in found.items():
        if not files:
            what = f"no file of {kind} here"
            raise InputError("NOT_FOUND", what, f"add it, such as {SHOWN[kind]}", path=place)
    named = tuple(sorted({plain_name(name) for path in found["judgements"] for name in _names_of_judged(path)}))
    passages = [_passages(path, named) for path in found["passages"]]
    queries = {path: _query_columns(path) for path in found["queries"]}
    ids = [name for table in passages if (name := columns_within(table).id)]
    judged = {path: _judged_columns(path, ids) for path in found["judgements"]}
    return Plan([path for files in found.values() for path in files], passages, queries, judged)


def has_three_tables(place: Path) -> bool:
    """Whether a folder has files of all three kinds."""
    return all(_files_by_kind(place).values())


def are_read(place: Path) -> bool:
    """Whether a folder has files of all three kinds, whose columns are those of their kinds and not of pairs."""
    found = _files_by_kind(place)
    if not all(found.values()):
        return False
    try:
        asked, judged = (
            [any_pair_columns(tuple(columns_of(path))) for path in found[kind] if suffix_of(path)]
            for kind in ("queries", "judgements")
        )
        if any(asked) and all(judged):  # as pairs, other judgements would be refused
            return False
        plan_of(place)
    except InputError:
        return False
    return True


def tables_by_kind(place: Path) -> dict[str, list[Path]]:
    """The tables of a folder, one level deep, by kind and in order of name.

    Raises
    ------
    InputError : a table is there plain and as ``.gz``, or packed in a way that is not read.
    """
    return {
        kind: [find_file(path.parent, path.name.removesuffix(".gz")) for path in files]
        for kind, files in _files_by_kind(place).items()
    }


def _files_by_kind(place: Path) -> dict[str, list[Path]]:
    lines = {path for path in paths_inside(place) if _is_plain(path) and not is_hidden(path, place)}
    lines = {path for path in lines if path.is_file() and not is_manifest(sidecar_of(path), "run")}
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted({*table_files(place), *lines}):
        if (kind := kind_of(path, place)) and not _is_other_json(path):
            found[kind].append(path)
    return found


def kind_of(path: Path, place: Path) -> str | None:
    """The kind of a table, by the words in its name or else in that of its folder below ``place``; None: none."""
    for name in (path.name, *([] if path.parent == place else [path.parent.name])):
        words = {*re.split(r"[^a-z0-9]+", name.lower())}
        if found := [kind for kind, telling in KINDS.items() if words & telling]:
            return None if _is_plain(path) and found[-1] == "passages" else found[-1]
    return None


def would_read(place: Path, path: Path) -> bool:
    """Whether a new file at ``path`` would be one of the tables of a folder, or let another format be guessed."""
    if is_hidden(path, place):
        return False
    return bool(suffix_of(path)) or (_is_plain(path) and kind_of(path, place) is not None)


def _is_plain(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith(PLAIN)


def _is_other_json(path: Path) -> bool:
    """Whether a file of JSON, such as the facts of a data set, has no column of any kind of table."""
    if suffix_of(path) != JSON[0]:
        return False
    try:
        if {plain_name(name) for name in columns_of(path)} & KNOWN:
            return False
        check_first_records(path)
    except InputError:  # reading it will tell
        return False
    return True


# ---------------------------------------------------------------- the three kinds


def _passages(path: Path, named: tuple[str, ...]) -> Table:
    """The table of passages in a file, which must have ids; ``named`` are the columns of the judgements."""
    columns = columns_of(path)
    if corpus_columns(tuple(columns), by_id=True):
        table = Table("", path, partial(read_rows, path), by_id=True, named=named)
        if columns_within(table).id is not None:
            return table
    elif suffix_of(path) in TSV and len(columns) in (2, 3) and not {plain_name(one) for one in columns} & KNOWN:
        names = ("id", "title", "text") if len(columns) == 3 else ("id", "text")
        return Table("", path, lambda: _with_names(path, names))
    raise _unknown(path, columns, f"an id and a text ({', '.join(TEXTS)}) of passages", "rename them: id, text")


def _with_names(path: Path, names: Sequence[str]) -> Iterator[tuple[int, Fields]]:
    """The rows of a file without a header, as records."""
    for line, row in tab_rows(path, (len(names),)):
        yield line, dict(zip(names, row, strict=True))


def _query_columns(path: Path) -> Columns | None:
    """The columns of a table of queries; None if it has no header."""
    names = _names(path)
    wanted = f"an id ({', '.join(QUERY_IDS)}) and a text ({', '.join(QUERY_TEXTS)}) of queries"
    return _named(path, names, (QUERY_IDS, QUERY_TEXTS), (2,), (wanted, "rename them: id, text"))


def _queries(path: Path, columns: Columns | None, ignored: Counter[str]) -> Iterator[QueryRecord]:
    if columns is None:
        for line, (query_id, text) in tab_rows(path, (2,)):
            yield QueryRecord(query_id, text, path=path, line=line)
        return
    ignored.update({*_names(path)} - {*columns})
    for line, fields in read_rows(path):
        query_id, text = id_of(fields, columns.first, path, line), text_of(fields, columns.second, path, line)
        yield QueryRecord(query_id, text, path=path, line=line)


def _judged_columns(path: Path, ids: Sequence[str]) -> Columns | None:
    """The columns of a table of judgements; None if it has no header.

    Parameters
    ----------
    ids : the names of the passages' columns of ids. Of several columns of ids, that of the same name counts.
    """
    names = _names_of_judged(path)
    if names and names[0].startswith("#"):  # a comment, which only TREC's files have
        return None
    wanted = f"a query's id ({', '.join(JUDGED_QUERIES)}) and a passage's ({', '.join(JUDGED_PASSAGES)})"
    fix = "rename them: query_id, passage_id, and score if there are grades"
    same = [one for name in ids if (one := plain_name(name)) in JUDGED_PASSAGES]
    return _named(path, names, (JUDGED_QUERIES, (*same, *JUDGED_PASSAGES), GRADES), (2, 3, 4), (wanted, fix))


def _names_of_judged(path: Path) -> list[str]:
    """The names of the columns of judgements, or the cells of the first line, which TREC parts by blanks."""
    names = _names(path)
    return names[0].split() if len(names) == 1 and not names[0].startswith("#") else names


def _judgements(
    path: Path, columns: Columns | None, split: str, ignored: Counter[str]
) -> Iterator[JudgementRecord]:
    if columns is not None:
        ignored.update({*_names(path)} - {*columns})
        for line, fields in read_rows(path):
            yield from _judged(fields, columns, split, Place(path, line))
        return
    found = _names(path)
    names = ("query_id", "passage_id", "score")[: len(found)]
    if len(found) not in (2, 3) or found[0].startswith("#"):
        yield from trec_judgements({split: path})
        return
    for line, fields in _with_names(path, names):
        yield from _judged(fields, Columns(*names), split, Place(path, line))


def _judged(fields: Fields, columns: Columns, split: str, place: Place) -> Iterator[JudgementRecord]:
    query_id = id_of(fields, columns.first, *place)
    grade = 1 if columns.grade is None else grade_in(fields, columns.grade, place)
    named = fields.get(columns.second)
    empty = named is None or (isinstance(named, str) and not named.strip())  # refused, as it judges nothing
    passage_ids = [id_of(fields, columns.second, *place)] if empty else ids_in(fields, columns.second, place)
    if not isinstance(query_id, Unread):
        for passage_id in passage_ids:
            yield JudgementRecord(split, query_id, passage_id, grade, *place)


# ---------------------------------------------------------------- columns


def _names(path: Path) -> list[str]:
    """The names of a table's columns; of a file without a header, the cells of its first line."""
    if suffix_of(path):
        return columns_of(path)
    first = next(read_lines(path), None)
    if first is None:
        raise empty_file(path)
    return first[1].split("\t")


def _named(
    path: Path,
    names: Sequence[str],
    wanted: Sequence[Sequence[str]],
    widths: Sequence[int],
    said: tuple[str, str],
) -> Columns | None:
    """The first column of each kind; None for lines with tabs whose first one is no header.

    Parameters
    ----------
    wanted : the names of each kind; a column of the first two kinds must be there.
    widths : the numbers of columns that a file without a header may have.
    said : what a fault says was looked for, and how to mend it.
    """
    by_name = {plain_name(name): name for name in reversed(names)}
    found: list[str | None] = []
    for kind in wanted:
        found.append(next((by_name[one] for one in kind if one in by_name and by_name[one] not in found), None))
    if suffix_of(path) and found[0] is not None and found[1] is not None:
        return Columns(found[0], found[1], *found[2:])
    tabs = suffix_of(path) in TSV or not suffix_of(path)
    if not tabs or len(names) not in widths or any(found):
        looked_for, fix = said
        fix = fix if suffix_of(path) else "give it the ending .tsv if its first line names the columns"
        raise _unknown(path, names, looked_for, fix)
    return None


def _unknown(path: Path, names: Sequence[str], wanted: str, fix: str) -> InputError:
    if not any(names):
        return empty_file(path)
    check_first_records(path)
    what = f"the columns are {', '.join(names):.200}; looked for {wanted}"
    return InputError("UNKNOWN_COLUMNS", what, fix, path=path)

"""Imports a collection of any format into the canonical one, and opens what the user names as ``DATA``."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NoReturn

from hardneg.arguments import checked
from hardneg.data.checks import OnDuplicate, Rules
from hardneg.data.collection import KIND, Collection, cached_place, publish_source
from hardneg.data.formats import (
    beir,
    dpr,
    hub,
    irds,
    msmarco,
    pairs,
    pydocs,
    qa,
    table_files,
    tevatron,
    three_tables,
    trec_folder,
)
from hardneg.data.formats.column_names import any_pair_columns, corpus_columns, unknown_columns
from hardneg.data.formats.folders import has_split, is_model, paths_in
from hardneg.data.formats.lines import PACKED, UNPACK, packed
from hardneg.data.formats.tables import SUFFIXES, check_first_records, columns_of, suffix_of
from hardneg.data.formats.three_tables import KINDS, SHOWN, has_three_tables, kind_of
from hardneg.data.languages import language_named
from hardneg.data.record_source import Source
from hardneg.errors import ArtifactError, HardnegError, InputError, ResourceError, SettingsError
from hardneg.experiment.layout import Layout, is_experiment
from hardneg.process.progress import wait_for_another
from hardneg.storage.artifacts import (
    MANIFEST,
    SettingsClash,
    cache_root,
    check_outside,
    check_writable,
    is_published,
    kind_named,
    read_manifest,
    reading,
)
from hardneg.storage.lease import holding, made_once

FOLDERS: Mapping[str, Callable[[Path], Source]] = {
    "beir": beir.records,
    "qa": qa.records,
    "msmarco": msmarco.records,
    "msmarco-docs": partial(msmarco.records, documents=True),
    "dpr": dpr.records,
    "tevatron": tevatron.records,
    "trec": trec_folder.records,
    "tables": three_tables.records,
    "pairs": pairs.records,
    "sentence-transformers": pairs.records,
    "flagembedding": pairs.records,
    "corpus": pairs.corpus_records,
}
# Formats that may be a single file.
OF_FILES = frozenset({"pairs", "sentence-transformers", "flagembedding", "corpus", "tevatron", "dpr"})
NAMES: Mapping[str, Callable[[str], Source]] = {
    "pydocs": pydocs.records,
    "ir_datasets": irds.records,
    "hf": hub.records,
}
FORMATS = (*FOLDERS, *NAMES)
# How a format is recognised: files that must be there, and a pattern that one file matches. The first hit counts.
SIGNS: Sequence[tuple[str, tuple[set[str], str]]] = (
    ("beir", ({"corpus.jsonl", "queries.jsonl"}, ".*")),
    ("dpr", ({dpr.PASSAGES}, ".*")),
    ("dpr", (set(), r".*[-_.](train|dev|test)[-_.]qrels\.jsonl?")),
    ("msmarco", ({msmarco.DOCUMENTS}, ".*")),
    ("trec", ({"corpus.tsv"}, r"topics\..*")),
    ("trec", ({"collection.tsv"}, r"topics\..*")),
    ("trec", ({"corpus.jsonl"}, r"topics\..*")),
    ("msmarco", ({"corpus.tsv"}, r".*\.query\.txt|queries\..*\.tsv")),
    ("msmarco", ({"collection.tsv"}, r".*\.query\.txt|queries\..*\.tsv")),
    ("qa", ({"corpus.tsv"}, r".*\.jsonl")),
)
# The patterns of files with the queries or judgements of a split. `would_read` asks the modules of the other
# formats themselves.
SPLITS: Mapping[str, Sequence[str]] = {
    "dpr": dpr.QUESTIONS,
    "msmarco": (*msmarco.QUERIES, *msmarco.QRELS),
    "qa": (qa.SPLITS,),
    "tevatron": (tevatron.SPLITS,),
    "trec": (trec_folder.TOPICS, trec_folder.QRELS),
}
# Signs that are tried if the names of the columns do not tell the format either.
LATER_SIGNS: Sequence[tuple[str, tuple[set[str], str]]] = (
    ("tevatron", (set(), r"(?!queries\.|corpus\.).*\.jsonl")),
    ("dpr", (set(), r".*\.json")),
)
# Fields of which a file must have one, if the format of its folder is told by a later sign.
LATER_FIELDS: Mapping[str, Set[str]] = {"tevatron": {*tevatron.QUERY_TEXTS}, "dpr": {"question"}}
# Names of files by which a folder is an incomplete one of some convention.
CONVENTIONAL = re.compile(
    r"(?:queries|corpus|collection|topics|qrels|psgs_w100|msmarco-docs)(?![a-z0-9]).*|.*\.query\.txt"
)


@checked
def import_collection(
    source: str | Path | Source,
    to: str | Path,
    *,
    format: str = "auto",
    allow_empty: bool = False,
    allow_unjudged: bool = False,
    on_duplicate: OnDuplicate = "error",
    language: str | None = None,
    replace: bool = False,
) -> Collection:
    """Read a collection of any format, check every record, and publish it in the canonical form.

    Parameters
    ----------
    source : ``[format:]PLACE``, a path, or a source made by a format's ``records``.
    to : the folder to publish.
    format : the convention of a place that does not name its own; ``auto`` looks at the files.
    allow_empty : keep and count empty texts instead of refusing them.
    allow_unjudged : drop and count judgements that name unknown ids instead of refusing them.
    on_duplicate : ``first`` keeps the first record of an id and counts the others; ``error`` refuses them.
    language : of the passages, by name or ISO code; it decides how BM25 makes terms of them. None: English, or
        what ``ir_datasets`` says.
    replace : replace a collection that stands at ``to``.

    Raises
    ------
    InputError
        A record is wrong; its file and line are named and nothing is published. Or there is nothing at this place,
        or its format is not recognised.
    SettingsError
        There is no such format or language, or the source is a collection already.
    ArtifactError
        Something stands at ``to``, or the source is something else that hardneg wrote, such as an experiment.
    BusyError
        Another process imports to this place.
    """
    to = Path(to)
    if os.path.lexists(to) and not (replace and is_published(to, KIND)):
        raise SettingsClash(to)
    check_writable(to)
    check_outside(to)
    if not isinstance(source, Source):
        source = find_source(str(source), format)
    if language is not None:
        source = dataclasses.replace(source, language=language_named(language))
    with holding(to, cache_root()):
        return publish_source(source, to, Rules(allow_empty, allow_unjudged, on_duplicate), replace=replace)


def open_data(data: str | Path, *, cache: Path | None = None) -> Collection:
    """Open a canonical folder, or import ``[format:]PLACE`` into the cache, unless it was imported before."""
    if str(data).strip() and is_published(Path(data)):
        return Collection.open(data)
    source, rules = find_source(str(data)), Rules()
    place = cached_place(source, rules, cache)
    made_once(
        place.with_suffix(".lock"),
        lambda: is_published(place, KIND),
        lambda: publish_source(source, place, rules),
        wait_for_another,
    )
    return Collection.open(place)


def find_source(data: str, format: str = "auto") -> Source:
    """The source that ``[format:]PLACE`` means; raises :class:`SettingsError` for an unknown format."""
    prefix, colon, rest = data.partition(":")
    if data == "pydocs" or (colon and prefix in FORMATS):
        format, data = prefix, rest
    else:
        check_no_experiment(data)
        format = detect(data) if format == "auto" else format
    if format in NAMES:
        return NAMES[format](data)
    if format in FOLDERS:
        return FOLDERS[format](existing_place(data, file=format in OF_FILES))
    raise unknown_format(format)


def check_no_experiment(data: str | Path) -> None:
    """Refuse an experiment as data: its folder has files that look like tables of texts."""
    layout = Layout(Path(data))
    with reading(layout.path):
        found = is_experiment(layout)
    if found:
        raise no_collection("an experiment", layout.path)


def detect(data: str) -> str:
    """The format of a file or folder, recognised by the names of its files, or of the columns in them."""
    prefix, colon, _ = data.partition(":")
    if colon and not Path(data).exists():
        raise unknown_format(prefix)
    place = existing_place(data, file=True)
    if place.is_file():
        return of_columns([place]) or unknown_file(place)
    names = {path.name.removesuffix(".gz") for path in paths_in(place)}
    if (place / MANIFEST).is_file():
        if (kind := read_manifest(place).kind) != KIND:
            raise no_collection(kind_named(kind), place)
        raise SettingsError("CANONICAL", "this is a collection already", "use it as it is", path=place)
    if is_model(names):
        raise no_collection("a model", place)
    if found := of_folder(place, names):
        return found
    files = table_files.table_files(place)
    here = [path for path in files if path.parent == place]
    strange = {path: columns for path in here if (columns := readable_columns(path))}
    if strange and not any(CONVENTIONAL.fullmatch(name) for name in names):
        check_first_records(next(iter(strange)))
        raise unknown_columns(*next(iter(strange.items())))
    raise unknown_folder(place, names)


def of_folder(place: Path, names: Set[str]) -> str | None:
    """The format of a folder with files of these names; None if no convention fits."""
    found = by_names(names, SIGNS)
    if found not in (None, "qa"):
        return found
    try:
        return of_tables(place, names, found)
    except ResourceError:  # a folder in it is closed, which matters to formats that read such folders
        here = [path for path in paths_in(place) if table_files.is_table(path, place)]
        found = found or of_columns(here) or by_later_signs(names, here)
        if found in (None, "pairs", "corpus") or {*KINDS} <= {kind_of(place / name, place) for name in names}:
            raise
        return found


def of_tables(place: Path, names: Set[str], found: str | None) -> str | None:
    """The format of a folder by the tables in it, one level deep; ``found`` is the one that its names tell."""
    files = table_files.table_files(place)
    if three_tables.are_read(place):  # else a table of questions would be taken for one of passages
        return "tables"
    found = found or of_columns(files)
    if found in (None, "corpus") and has_three_tables(place):
        return "tables"
    return found or by_later_signs(names, files)


def would_read(place: Path, file: Path) -> bool:
    """Whether a file, in a folder of data or one level below it, is or would be read as a part of them."""
    try:
        format = detect(str(place))
    except (HardnegError, OSError):
        return False
    if format in ("pairs", "corpus"):
        return table_files.would_read(place, file)
    if format == "tables":
        return three_tables.would_read(place, file)
    if format == "beir":
        return file.parent == place / "qrels" and has_split(file, beir.SPLITS)
    without = format == "trec" and file.exists() and file.name.removesuffix(".gz") in chain(*trec_folder.ALONE)
    return file.parent == place and (without or has_split(file, *SPLITS[format]))


def by_names(names: Set[str], signs: Sequence[tuple[str, tuple[set[str], str]]]) -> str | None:
    """The first format whose signs fit the names of a folder's files."""
    for format, (needed, pattern) in signs:
        if needed <= names and any(re.fullmatch(pattern, name) for name in names):
            return format
    return None


def by_later_signs(names: Set[str], files: Sequence[Path]) -> str | None:
    """The first format whose later signs fit; a file of it has its fields, or is not readable."""
    for format, sign in LATER_SIGNS:
        if by_names(names, [(format, sign)]):
            own = [path for path in files if re.fullmatch(sign[1], path.name.removesuffix(".gz"))]
            columns = [readable_columns(path) for path in own]
            if not all(columns) or any({*some} & LATER_FIELDS[format] for some in columns):
                return format
    return None


def readable_columns(path: Path) -> tuple[str, ...]:
    """The names of a table's columns; none if they cannot be read, of which a reader of the file will tell."""
    try:
        return tuple(columns_of(path))
    except InputError:
        return ()


def of_columns(files: Sequence[Path]) -> str | None:
    """The format of some files, told by the names of their columns or of the fields of their first records."""
    found = {kind for path in files if (kind := kind_of_file(path))}
    if found == {"corpus"} and any(re.match(r"queries|topics|qrels", path.name) for path in files):
        return None  # an incomplete folder of another convention
    return next((kind for kind in ("pairs", "tevatron", "dpr", "corpus") if kind in found), None)


def kind_of_file(path: Path) -> str | None:
    """What a file holds, by its columns: pairs, a corpus, or records of Tevatron or DPR."""
    if not suffix_of(path):
        return None
    columns = readable_columns(path)
    if not columns:
        return None
    if any_pair_columns(columns):
        return "pairs"
    if {"positive_passages", "positive_document_ids"} & {*columns}:
        return "tevatron"
    if "positive_ctxs" in columns:
        return "dpr"
    return "corpus" if corpus_columns(columns) or pairs.headless(path, columns) else None


def existing_place(data: str, *, file: bool) -> Path:
    """The folder that the user named, or the file if ``file`` allows one; raises if it does not exist."""
    if not data.strip():
        raise SettingsError("BAD_SETTING", "the place of the data is empty", "name a folder or a file")
    place = Path(data)
    if place.is_dir() or (file and place.is_file()):
        return place
    if place.is_file():
        raise InputError(
            "NOT_FOUND", "this is a file, but the format needs a folder", "give its folder", path=place
        )
    if place.exists():  # a pipe, such as the shell's <(...)
        what, fix = "this is a stream and not a file, but data are read several times", "write them to a file"
        raise InputError("NOT_FOUND", what, fix, path=place)
    raise InputError("NOT_FOUND", f"no such folder{' or file' * file}", "check the path", path=place)


def no_collection(found: str, path: Path) -> ArtifactError:
    """The fault of something else that is given as a collection; ``found`` says what it is."""
    fix = "give the folder or file of the texts, or a collection"
    return ArtifactError("WRONG_KIND", f"this is {found}, not a collection", fix, path=path)


def unknown_file(path: Path) -> NoReturn:
    """Raise the fault of a file that fits no convention; it says which columns were looked for."""
    if suffix_of(path):
        check_first_records(path)
        raise unknown_columns(path, columns_of(path))
    if path.name.lower().endswith(PACKED):
        raise packed(path)
    what = "the name of this file does not tell its format"
    raise InputError("UNKNOWN_FORMAT", what, f"give one of {', '.join(SUFFIXES)}, or a folder", path=path)


def unknown_folder(folder: Path, names: Set[str]) -> InputError:
    """The fault of a folder that fits no convention; it says which kinds of tables are missing."""
    there = ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "")
    what = f"the files here fit no known format ({there or 'there are none'})"
    unread = [name for name in sorted(names) if name.lower().endswith(PACKED)]
    if hidden := [name for name in unread if suffix_of(Path(name).with_suffix("")) or unread == [*names]]:
        what = f"{what}; {hidden[0]} is packed in a way that is not read"
        return InputError("UNKNOWN_FORMAT", what, UNPACK, path=folder)
    tables = [folder / name for name in names if name == "qrels" or suffix_of(Path(name)) or ".txt" in name]
    kinds = {kind for path in tables if (kind := kind_of(path, folder))}
    if not kinds:
        fix = f"name one of {', '.join(FORMATS)}, or give a file with the columns query and positive"
        return InputError("UNKNOWN_FORMAT", what, fix, path=folder)
    lacks = " and ".join(f"{kind} ({SHOWN[kind]})" for kind in KINDS if kind not in kinds)
    near = f"; {' and '.join(kind for kind in KINDS if kind in kinds)} need {lacks} beside them"
    fix = f"add what is missing, or name one of {', '.join(FORMATS)}"
    return InputError("UNKNOWN_FORMAT", what + near * bool(lacks), fix, path=folder)


def unknown_format(name: str) -> SettingsError:
    """The fault of an unknown format; it names the nearest known one."""
    near = difflib.get_close_matches(name, FORMATS, 1)
    fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FORMATS)}"
    return SettingsError("UNKNOWN_FORMAT", f"no format is called {name!r:.60}", fix)

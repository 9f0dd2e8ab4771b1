"""Helpers that formats share: which files a folder has, their splits, and tables without a header."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from hardneg.data.formats.faults import refuse
from hardneg.data.formats.lines import PACKED, empty_file, grade_of, packed, read_lines, wrong_width
from hardneg.data.record_source import JudgementRecord, QueryRecord
from hardneg.errors import HardnegError, InputError
from hardneg.storage.artifacts import MANIFEST, reading
from hardneg.storage.lease import LOCK, was_leased
from hardneg.storage.manifest import read_manifest_file

# The endings of files with weights, and a tokenizer's files: beside config.json they tell a model.
WEIGHTS = (".safetensors", ".bin", ".onnx", ".safetensors.index.json")
TOKENIZERS = frozenset({"tokenizer.json", "tokenizer_config.json", "vocab.txt"})
SIDECAR = ".manifest.json"
MOST_LOOKED_AT = 1 << 16  # bytes of a file that may be a damaged manifest


def paths_in(folder: Path) -> list[Path]:
    """The paths in a folder, in order; none where it is missing.

    Raises
    ------
    ResourceError : it is closed to this user. Passed over, its data would be missing.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), reading(folder):
        found = sorted(folder.iterdir())
        os.stat(f"{folder}/.")  # a folder may be open to be listed, but closed to be entered
        return found
    return []


def find_file(folder: Path, *names: str) -> Path:
    """The only file of a folder with one of the ``names``, plain or with ``.gz``; raises :class:`InputError`."""
    found = [path for name in names for path in (folder / name, folder / f"{name}.gz") if is_file(path)]
    if not found:
        raise InputError("NOT_FOUND", "no such file, nor one with .gz", "check the folder", path=folder / names[0])
    if len(found) > 1:
        what = "it is here plain and as .gz" if len(names) == 1 else f"{found[1].name} is here too"
        raise InputError("AMBIGUOUS", what, "remove one of them", path=found[0])
    return found[0]


def has_file(folder: Path, name: str) -> bool:
    """Whether a folder has this file, plain or as ``.gz``."""
    return any(is_file(folder / f"{name}{end}") for end in ("", ".gz"))


def is_model(names: Set[str]) -> bool:
    """Whether a folder with these files holds a model in the form of transformers or sentence-transformers."""
    return "modules.json" in names or (
        "config.json" in names and any(name.endswith(WEIGHTS) or name in TOKENIZERS for name in names)
    )


def is_own(folder: Path) -> bool:
    """Whether a folder holds an artefact, an experiment or a model, whose files are no tables of data."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:  # of another user
        return False
    if is_model(names) or (LOCK in names and was_leased(folder)):
        return True
    return MANIFEST in names and is_manifest(folder / MANIFEST)


def is_manifest(path: Path, kind: str | None = None) -> bool:
    """Whether a file is a manifest that hardneg wrote (of this kind), and not another file of this name."""
    try:
        return read_manifest_file(path).kind == (kind or read_manifest_file(path).kind)
    except (HardnegError, OSError):
        return False


def was_manifest(path: Path, kind: str) -> bool:
    """Whether a file is a manifest of this kind or what is left of a damaged one, so that it may be made again."""
    try:
        data = path.read_bytes()[:MOST_LOOKED_AT]
    except OSError:
        return False
    marks = (
        rb'"kind"\s*:\s*"%s"' % kind.encode(),
        rb'"format_version"[^\0]*"(?:files|inputs)"|"files"[^\0]*"sha256"',
    )
    return not data or any(re.search(mark, data) for mark in marks)


def sidecar_of(path: Path) -> Path:
    """The path of the manifest beside a run's file."""
    return path.with_name(path.name + SIDECAR)


def leads_nowhere(path: Path) -> bool:
    """Whether a path is a link to nothing."""
    return path.is_symlink() and not path.exists()


def is_file(path: Path) -> bool:
    """Whether a path is a file; raises for a link to nothing and for a pipe, as their records would be missing."""
    with reading(path):
        if leads_nowhere(path):
            what, fix = "a link to a file that is not there", "fetch the file again, or remove the link"
            raise InputError("NOT_FOUND", what, fix, path=path)
        if path.is_fifo():
            what = "this is a pipe, but data are read several times"
            raise InputError("NOT_FOUND", what, "write what comes through it to a file", path=path)
        return path.is_file()


def find_splits(folder: Path, *patterns: str) -> dict[str, Path]:
    """The files of a folder by split, in order of name; a file in place of a folder is the only one.

    Parameters
    ----------
    patterns : regular expressions of file names without ``.gz``, each with a group ``split``; the first one that
        matches a name counts.
    """
    there = [folder] if folder.is_file() else paths_in(folder)
    files = [path for path in there if path.is_file() or leads_nowhere(path)]
    folder = folder.parent if folder.is_file() else folder
    names = sorted({path.name.removesuffix(".gz") for path in files})
    found: dict[str, Path] = {}
    for name in names:
        match = next((match for pattern in patterns if (match := re.fullmatch(pattern, name))), None)
        if match is None:
            if name.rpartition(".")[0] not in names:
                refuse_packed(folder / name, patterns)
            continue
        if match["split"] in found:
            what = f"two files of split '{match['split']}'"
            raise InputError("AMBIGUOUS", what, "keep one of them", path=folder / name)
        found[match["split"]] = find_file(folder, name)
    return found


def has_split(path: Path, *patterns: str) -> bool:
    """Whether the name of a file is that of a split, plain or with ``.gz`` (:func:`find_splits`)."""
    return any(re.fullmatch(pattern, path.name.removesuffix(".gz")) for pattern in patterns)


def refuse_packed(path: Path, patterns: Sequence[str]) -> None:
    """Refuse a file that only its packing hides from ``patterns``: its split would be missing."""
    name, end = path.name.rpartition(".")[::2]
    if f".{end.lower()}" in (*PACKED, ".gz") and any(re.fullmatch(pattern, name) for pattern in patterns):
        raise packed(path)


def tab_rows(path: Path, widths: Sequence[int]) -> Iterator[tuple[int, list[str]]]:
    """The line number and columns of each line of a tab-separated file without header or quoting.

    ``widths`` are the numbers of columns that are allowed; all lines must have as many as the first.
    """
    width = None
    for line, text in read_lines(path):
        row = text.split("\t")
        width = width or (len(row) if len(row) in widths else widths[0])
        if len(row) != width:
            refuse(wrong_width(path, line, len(row), width))
            continue
        yield line, row
    if width is None:
        raise empty_file(path)


def trec_judgements(splits: Mapping[str, Path]) -> Iterator[JudgementRecord]:
    """The judgements of qrels files, ``query 0 passage grade`` between blanks of ASCII.

    Lines that begin with # are skipped.
    """
    for split, path in splits.items():
        found = False
        for line, text in read_lines(path):
            if text.startswith("#"):
                continue
            row, found = [part.decode() for part in text.encode().split()], True  # an id may hold other blanks
            if len(row) != 4:
                what = f"{len(row)} columns where 4 are expected"
                refuse(InputError("WRONG_COLUMNS", what, "write 'query 0 passage grade'", path=path, line=line))
                continue
            yield JudgementRecord(split, row[0], row[2], grade_of(row[3], path, line), path, line)
        if not found:
            raise empty_file(path)


def distinct_queries(parts: Iterable[Iterable[QueryRecord]]) -> Iterator[QueryRecord]:
    """The queries of several files; a query with the id and text of one in an earlier file is left out."""
    before: set[tuple[str, str, str]] = set()
    for part in parts:
        here = []
        for record in part:
            if (key := record[:3]) not in before:
                here.append(key)
                yield record
        before.update(here)

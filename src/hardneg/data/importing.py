"""Imports a collection of any format into the canonical one, and opens what the user names as ``DATA``."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hardneg.arguments import checked
from hardneg.data.checks import OnDuplicate, Rules
from hardneg.data.collection import KIND, Collection, cached_place, publish_source
from hardneg.data.formats import beir, dpr, hub, irds, msmarco, pydocs, qa, tevatron, trec_folder
from hardneg.data.record_source import Source
from hardneg.errors import BusyError, InputError, SettingsError
from hardneg.storage.artifacts import MANIFEST, SettingsClash, cache_root, check_writable, is_published, lease
from hardneg.storage.lease import holding

FOLDERS: Mapping[str, Callable[[Path], Source]] = {
    "beir": beir.records,
    "qa": qa.records,
    "msmarco": msmarco.records,
    "msmarco-docs": partial(msmarco.records, documents=True),
    "dpr": dpr.records,
    "tevatron": tevatron.records,
    "trec": trec_folder.records,
}
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
    ("trec", (set(), r"topics\..*")),
    ("msmarco", ({"corpus.tsv"}, r".*\.query\.txt|queries\..*\.tsv")),
    ("msmarco", ({"collection.tsv"}, r".*\.query\.txt|queries\..*\.tsv")),
    ("qa", ({"corpus.tsv"}, r".*\.jsonl")),
    ("tevatron", (set(), r".*\.jsonl")),
    ("dpr", (set(), r".*\.json")),
)
WAIT_SECONDS = 0.2


@checked
def import_collection(
    source: str | Source,
    to: str | Path,
    *,
    format: str = "auto",
    allow_empty: bool = False,
    allow_unjudged: bool = False,
    on_duplicate: OnDuplicate = "error",
    replace: bool = False,
) -> Collection:
    """Read a collection of any format, check every record, and publish it in the canonical form.

    Parameters
    ----------
    source : ``[format:]PLACE``, or a source made by a format's ``records``.
    to : the folder to publish.
    format : the convention of a place that does not name its own; ``auto`` looks at the files.
    allow_empty : keep and count empty texts instead of refusing them.
    allow_unjudged : drop and count judgements that name unknown ids instead of refusing them.
    on_duplicate : ``first`` keeps the first record of an id and counts the others; ``error`` refuses them.
    replace : replace a collection that stands at ``to``.

    Raises
    ------
    InputError
        A record is wrong; its file and line are named and nothing is published.
    BusyError
        Another process imports to this place.
    """
    to = Path(to)
    if to.exists() and not (replace and is_published(to, KIND)):
        raise SettingsClash(to)
    check_writable(to)
    if isinstance(source, str):
        source = find_source(source, format)
    with holding(to, cache_root()):
        return publish_source(source, to, Rules(allow_empty, allow_unjudged, on_duplicate), replace=replace)


def open_data(data: str | Path, *, cache: Path | None = None) -> Collection:
    """Open a canonical folder, or import ``[format:]PLACE`` into the cache, unless it was imported before."""
    if (Path(data) / MANIFEST).is_file():
        return Collection.open(data)
    source, rules = find_source(str(data)), Rules()
    place = cached_place(source, rules, cache)
    while not is_published(place, KIND):
        try:
            with lease(place.with_suffix(".lock")):
                if not is_published(place, KIND):
                    publish_source(source, place, rules)
        except BusyError:  # another process imports the same collection
            time.sleep(WAIT_SECONDS)
    return Collection.open(place)


def find_source(data: str, format: str = "auto") -> Source:
    """The source that ``[format:]PLACE`` means; raises :class:`SettingsError` for an unknown format."""
    prefix, colon, rest = data.partition(":")
    if data == "pydocs" or (colon and prefix in FORMATS):
        format, data = prefix, rest
    elif format == "auto":
        format = detect(data)
    if format in NAMES:
        return NAMES[format](data)
    if format in FOLDERS:
        return FOLDERS[format](existing_folder(data))
    raise unknown_format(format)


def detect(data: str) -> str:
    """The format of a folder, recognised by the names of its files."""
    prefix, colon, _ = data.partition(":")
    if colon and not Path(data).exists():
        raise unknown_format(prefix)
    folder = existing_folder(data)
    if (folder / MANIFEST).is_file():
        raise SettingsError("CANONICAL", "this is a collection already", "use it as it is", path=folder)
    names = {path.name.removesuffix(".gz") for path in folder.iterdir()}
    for format, (needed, pattern) in SIGNS:
        if needed <= names and any(re.fullmatch(pattern, name) for name in names):
            return format
    what = "no convention is recognised by the files here"
    raise InputError("UNKNOWN_FORMAT", what, f"name one of {', '.join(FORMATS)}", path=folder)


def existing_folder(data: str) -> Path:
    """The folder that the user named; raises :class:`InputError` if it does not exist."""
    folder = Path(data)
    if not folder.is_dir():
        raise InputError("NOT_FOUND", "no such folder", "check the path", path=folder)
    return folder


def unknown_format(name: str) -> SettingsError:
    """The fault of an unknown format; it names the nearest known one."""
    near = difflib.get_close_matches(name, FORMATS, 1)
    fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FORMATS)}"
    return SettingsError("UNKNOWN_FORMAT", f"no format is called {name!r:.60}", fix)

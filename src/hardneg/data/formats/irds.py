"""``ir_datasets:<id>``, or several ids that share a corpus. It needs the extra ``ir-datasets``, which downloads.

``ir_datasets:beir/scifact/train,beir/scifact/test`` has the splits ``train`` and ``test``: the part of an id after
the corpus's name is the name of the split, with - for /. If there is no such part, the split is ``test``. A query
is in the splits that judge it.

MacAvaney et al., "Simplified Data Wrangling with ir_datasets", 2021.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hardneg.data.formats.folders import distinct_queries
from hardneg.data.languages import ENGLISH, language_named
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source, not_loaded
from hardneg.errors import InputError, SettingsError

TEXTS = ("text", "body", "abstract", "contents")
ONLY_SPLIT = "test"


def records(ids: str) -> Source:
    """The collection of some ids of the catalogue, separated by commas.

    Raises
    ------
    SettingsError : the package ``ir_datasets`` is missing, or the ids belong to several corpora.
    InputError : an id does not exist, or has no documents.
    """
    catalogue = package()
    names = [name.strip() for name in ids.split(",")]
    parts = {name: _load(catalogue, name) for name in names}
    corpora = {catalogue.docs_parent_id(name) for name in names}
    if len(corpora) > 1:
        what = f"{ids} belong to different corpora: {', '.join(sorted(corpora))}"
        raise SettingsError("TWO_CORPORA", what, "import each of them by itself")
    [corpus] = corpora
    splits = {name.removeprefix(corpus).strip("/").replace("/", "-") or ONLY_SPLIT: parts[name] for name in names}
    ignored: Counter[str] = Counter()
    return Source(
        "ir_datasets",
        lambda: _passages(parts[names[0]], ignored),
        lambda: distinct_queries(_queries(name, part) for name, part in splits.items() if part.has_queries()),
        lambda: _judgements({name: part for name, part in splits.items() if part.has_qrels()}),
        {"ir_datasets": ",".join(names)},
        ignored,
        language=_language(parts[names[0]]),
    )


def _language(part: Any) -> str:
    """The language of a corpus, as the catalogue says; English where it names no language or several."""
    code = part.docs_lang() if hasattr(part, "docs_lang") else None
    try:
        return language_named(str(code or ENGLISH))
    except SettingsError:
        return ENGLISH


def package() -> Any:
    """Import and return the package ``ir_datasets``; raises :class:`SettingsError` if it is missing."""
    try:
        import ir_datasets
    except ImportError as fault:
        what, fix = "ir_datasets: needs the package ir_datasets", "pip install 'hardneg[ir-datasets]'"
        raise SettingsError("PACKAGE_MISSING", what, fix) from fault
    return ir_datasets


def _load(catalogue: Any, name: str) -> Any:
    try:
        part = catalogue.load(name)
    except KeyError as fault:
        what = f"ir_datasets has no {name!r:.80}"
        raise InputError("UNKNOWN_DATASET", what, "see the names on https://ir-datasets.com") from fault
    if not part.has_docs():
        raise InputError("EMPTY_CORPUS", f"{name} has no documents", "name a dataset that has")
    return part


def _rows(name: str, rows: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The rows that ``rows`` fetches; any failure becomes an :class:`InputError` of one line."""
    try:
        yield from rows()
    except Exception as fault:
        raise not_loaded(f"ir_datasets:{name}", fault) from fault


def _passages(part: Any, ignored: Counter[str]) -> Iterator[PassageRecord]:
    fields = part.docs_cls()._fields
    text_name = next((name for name in TEXTS if name in fields), None)
    is_document = "body" in fields and "url" in fields
    used = {"doc_id", "title", text_name, *(["url"] if is_document else [])}
    others = [name for name in fields if name not in used] if text_name else []
    for doc in _rows("docs", part.docs_iter):
        title = getattr(doc, "title", "")
        if is_document:  # as MS MARCO's own files are read
            title = "\n".join(line for line in (doc.url, title) if line)
        yield PassageRecord(doc.doc_id, title, getattr(doc, text_name) if text_name else doc.default_text())
        ignored.update(others)


def _queries(split: str, part: Any) -> Iterator[QueryRecord]:
    name = "" if part.has_qrels() else split
    for query in _rows("queries", part.queries_iter):
        text = query.text if hasattr(query, "text") else query.default_text()
        yield QueryRecord(query.query_id, text, name, tuple(getattr(query, "answers", ())))


def _judgements(splits: Mapping[str, Any]) -> Iterator[JudgementRecord]:
    for split, part in splits.items():
        for qrel in _rows("qrels", part.qrels_iter):
            yield JudgementRecord(split, qrel.query_id, qrel.doc_id, qrel.relevance)

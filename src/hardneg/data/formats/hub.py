"""``hf:<dataset>``: a dataset of the Hugging Face hub, or a folder with one. It needs the extra ``datasets``.

``hf:<dataset>:<configuration>`` names one of several configurations. Four layouts are read. In the layout of
MTEB and BEIR, the configurations ``corpus`` and ``queries`` have ``_id``, ``title`` and ``text``; judgements
with ``query-id``, ``corpus-id`` and ``score`` are in ``default`` or ``qrels``, or in a dataset of their own,
``<dataset>-qrels``. In Tevatron's layout, a query's record holds its passages. Columns such as ``anchor,
positive, negative`` or ``query, pos, neg`` hold pairs (see ``columns``), and a text without a query is a corpus
alone. A split ``validation`` is called ``dev``. If a message names a line, it means the row of the split.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hardneg.data.formats.column_names import corpus_columns, pair_columns, unknown_columns
from hardneg.data.formats.columns import Table as NamedTable
from hardneg.data.formats.columns import (
    corpus_source,
    pair_judgements,
    pair_negatives,
    pair_passages,
    pair_queries,
)
from hardneg.data.formats.contexts import Place, answers_of, inline_passages, positives_of, query_id_of
from hardneg.data.formats.lines import Fields, grade_of, id_of, text_of
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source, not_loaded
from hardneg.errors import InputError, SettingsError
from hardneg.process.progress import is_shown, note

CORPUS, QUERIES, QRELS = "corpus", "queries", ("default", "qrels")
POSITIVES, NEGATIVES = "positive_passages", "negative_passages"
USED = frozenset({"_id", "title", "text"})
USED_INLINE = frozenset({"query_id", "query", "answers", POSITIVES, NEGATIVES})
SPLITS = {"validation": "dev"}

Table = tuple[Path, Iterable[Fields]]


def records(name: str) -> Source:
    """The collection in a dataset of the hub.

    Raises
    ------
    SettingsError : the package ``datasets`` is missing.
    InputError : there is no such dataset, it cannot be fetched, or it has another layout.
    """
    inputs: dict[str, str] = {}
    name, _, config = name.partition(":")
    configs = _configs(name)
    ignored: Counter[str] = Counter()
    if {CORPUS, QUERIES} <= set(configs):
        corpus, queries = (list(_tables(name, config, inputs).values()) for config in (CORPUS, QUERIES))
        judged = next((config for config in QRELS if config in configs), None)
        qrels = _tables(name, judged, inputs) if judged else _tables(f"{name}-qrels", None, inputs)
        return Source(
            "hf",
            lambda: _passages(corpus, ignored),
            lambda: _queries(queries, ignored),
            lambda: _judgements(qrels),
            inputs,
            ignored,
        )
    tables = _tables(name, _chosen(name, config, configs), inputs)
    columns = {next((tuple(row) for row in rows), ()) for _, rows in tables.values()}
    if all(map(pair_columns, columns)):
        return _pairs(tables, inputs)
    if all(map(corpus_columns, columns)):
        return _corpus(tables, inputs)
    for place, rows in tables.values():
        names = list(next(iter(rows), {}))
        if POSITIVES not in names:
            raise unknown_columns(place, names)
    return _tevatron(tables, inputs)


def _chosen(name: str, config: str, configs: list[str]) -> str | None:
    """The configuration to read; None for the only one or the default.

    Raises
    ------
    InputError : there are several and none is named, or there is no such one.
    """
    if config in configs or (not config and (len(configs) < 2 or "default" in configs)):
        return config or None
    what = f"hf:{name} has no configuration {config!r:.60}" if config else f"hf:{name} has several configurations"
    raise InputError("UNKNOWN_DATASET", what, f"name one as hf:{name}:CONFIGURATION: {', '.join(configs):.300}")


def _pairs(tables: Mapping[str, Table], inputs: dict[str, str]) -> Source:
    """The source of pairs in named columns."""
    ignored, judged_by = Counter[str](), Counter[str]()
    pairs = _named_tables(tables)
    return Source(
        "hf",
        lambda: pair_passages(pairs, {}, ignored),
        lambda: pair_queries(pairs),
        lambda: pair_judgements(pairs, {}, judged_by),
        inputs,
        ignored,
        lambda: pair_negatives(pairs),
        judged_by=judged_by,
    )


def _corpus(tables: Mapping[str, Table], inputs: dict[str, str]) -> Source:
    """The source of a corpus without queries."""
    return corpus_source("hf", _named_tables(tables), inputs)


def _named_tables(tables: Mapping[str, Table]) -> list[NamedTable]:
    return [NamedTable(split, place, partial(numbered, rows)) for split, (place, rows) in tables.items()]


def _tevatron(tables: Mapping[str, Table], inputs: dict[str, str]) -> Source:
    """The source of records in Tevatron's layout."""
    ignored: Counter[str] = Counter()
    return Source(
        "hf",
        lambda: inline_passages(
            [(place, numbered(rows)) for place, rows in tables.values()], (POSITIVES, NEGATIVES)
        ),
        lambda: _inline_queries(tables, ignored),
        lambda: _inline_judgements(tables),
        inputs,
        ignored,
    )


def package() -> Any:
    """Import and return the package ``datasets``; raises :class:`SettingsError` if it is missing."""
    try:
        import datasets
    except ImportError as fault:
        what, fix = "hf: needs the package datasets", "pip install 'hardneg[datasets]'"
        raise SettingsError("PACKAGE_MISSING", what, fix) from fault
    return datasets


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """In the block, the packages obey ``--quiet`` and report no failed attempts; a fault does so at the end."""
    datasets = package()  # its import sets the level
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    bars = is_shown() or datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    if not bars:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(before)
        if not bars:
            datasets.enable_progress_bars()


@_calm()
def _configs(name: str) -> list[str]:
    datasets = package()
    here = Path(name).is_dir()
    note(f"reading the data set in the folder {name}" if here else f"asking the Hugging Face hub for {name}")
    try:
        return list(datasets.get_dataset_config_names(name))
    except Exception as fault:  # the package raises many kinds: no such name, no network, no permission
        raise not_loaded(f"hf:{name}", fault) from fault


@_calm()
def _tables(name: str, config: str | None, inputs: dict[str, str]) -> dict[str, Table]:
    """The rows of a configuration by split, with the place that faults name; adds its digest to ``inputs``."""
    datasets = package()
    try:
        builder = datasets.load_dataset_builder(name, config)
        builder.download_and_prepare()
        found: Mapping[str, Any] = builder.as_dataset()
    except Exception as fault:
        raise not_loaded(f"hf:{name}", fault) from fault
    inputs[f"{name}/{config or ''}"] = str(builder.hash)
    return {
        SPLITS.get(split, split): (Path(f"hf:{name}/{config or split}"), rows) for split, rows in found.items()
    }


def numbered(rows: Iterable[Fields]) -> Iterator[tuple[int, Fields]]:
    """Number the rows, from 1."""
    return enumerate(rows, 1)


def _passages(tables: Iterable[Table], ignored: Counter[str]) -> Iterator[PassageRecord]:
    for place, rows in tables:
        for line, row in numbered(rows):
            title, text = text_of(row, "title", place, line, ""), text_of(row, "text", place, line)
            yield PassageRecord(id_of(row, "_id", place, line), title, text, place, line)
            ignored.update(row.keys() - USED)


def _queries(tables: Iterable[Table], ignored: Counter[str]) -> Iterator[QueryRecord]:
    for place, rows in tables:
        for line, row in numbered(rows):
            text = text_of(row, "text", place, line)
            yield QueryRecord(id_of(row, "_id", place, line), text, path=place, line=line)
            ignored.update(row.keys() - USED)


def _judgements(tables: Mapping[str, Table]) -> Iterator[JudgementRecord]:
    for split, (place, rows) in tables.items():
        for line, row in numbered(rows):
            query, passage = id_of(row, "query-id", place, line), id_of(row, "corpus-id", place, line)
            yield JudgementRecord(split, query, passage, grade_of(str(row.get("score")), place, line), place, line)


def _inline_queries(tables: Mapping[str, Table], ignored: Counter[str]) -> Iterator[QueryRecord]:
    for split, (place, rows) in tables.items():
        for line, row in numbered(rows):
            at = Place(place, line)
            text = text_of(row, "query", place, line)
            yield QueryRecord(query_id_of(row, at, None), text, split, answers_of(row, at), place, line)
            ignored.update(row.keys() - USED_INLINE)


def _inline_judgements(tables: Mapping[str, Table]) -> Iterator[JudgementRecord]:
    for split, (place, rows) in tables.items():
        for line, row in numbered(rows):
            at = Place(place, line)
            for passage_id in positives_of(row, [POSITIVES], at):
                yield JudgementRecord(split, query_id_of(row, at, None), passage_id, 1, place, line)

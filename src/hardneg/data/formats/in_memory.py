"""Pairs in memory: lists of mappings, a ``Dataset`` or ``DatasetDict``, tables of pandas or polars.

The columns have the names of pairs in files, such as anchor, positive and negative (see ``columns``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from hardneg.data.formats.column_names import pair_columns, unknown_columns
from hardneg.data.formats.columns import (
    SPLITS,
    Table,
    pair_judgements,
    pair_negatives,
    pair_passages,
    pair_queries,
)
from hardneg.data.formats.lines import Fields
from hardneg.data.record_source import Source, digest_streams
from hardneg.errors import InputError

FORM = "a list of mappings such as {'anchor': ..., 'positive': ...}, a Dataset or a DataFrame"


def source_from_pairs(rows: Any) -> Source:
    """A source over pairs in memory (see :meth:`hardneg.data.collection.Collection.from_pairs`).

    Raises
    ------
    InputError : the rows are of another shape, or have no query or no positive; a split has another name.
    """
    alone = not isinstance(rows, Mapping)
    tables = [table_of(split, given, alone=alone) for split, given in by_split(rows).items()]
    ignored, judged_by = Counter[str](), Counter[str]()
    streams = (
        lambda: pair_passages(tables, {}, ignored),
        lambda: pair_queries(tables),
        lambda: pair_judgements(tables, {}, judged_by),
    )
    inputs = {"pairs": digest_streams(streams)}
    ignored.clear()
    negatives = partial(pair_negatives, tables)
    return Source("pairs in memory", *streams, inputs, ignored, negatives, judged_by=judged_by)


def by_split(rows: Any) -> Mapping[str, Any]:
    """The rows of each split; rows that are not given by split are those of train."""
    if not isinstance(rows, Mapping):
        return {"train": rows}
    if not rows or (strange := [name for name in rows if name not in SPLITS]):
        what = f"pairs are given by {', '.join(map(repr, strange[:3]))}" if rows else "no pairs are given"
        raise InputError("WRONG_TYPE", what, f"give {FORM}, or these by split: {', '.join(SPLITS)}")
    found: dict[str, Any] = {}
    for name, given in rows.items():
        if SPLITS[name] in found:
            raise InputError("WRONG_TYPE", f"pairs are given for two splits '{SPLITS[name]}'", "join them")
        found[SPLITS[name]] = given
    return found


def table_of(split: str, given: Any, *, alone: bool = False) -> Table:
    """The rows of a split as a table; its faults name the row, counted from 1. ``alone``: no split was named."""
    place = Path(f"rows of {split}")
    rows = records_of(given, "pairs" if alone else f"pairs of {split}")
    names = list(next(iter(rows), {}))
    if not names:
        raise no_pairs(split, alone)
    if pair_columns(tuple(names)) is None:
        raise unknown_columns(place, names)
    return Table(split, place, lambda: enumerate(map(plain, rows), 1))


def no_pairs(split: str, alone: bool) -> InputError:
    """The fault of a split without rows, or of all rows if no split was named."""
    if alone:
        return InputError("NO_POSITIVES", "there are no pairs", f"give {FORM}, with a row at least")
    return InputError("NO_POSITIVES", f"there are no pairs of {split}", "leave the split out")


def records_of(given: Any, named: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a table, which can be read several times; a fault calls them ``named``."""
    if isinstance(given, str | PurePath):
        what = f"the {named} are {str(given)!r:.80}, but files are not read here"
        raise InputError("WRONG_TYPE", what, "give the path to train(data=...) or to import_collection")
    wrong = isinstance(given, bytes | Mapping) or not isinstance(given, Iterable)
    if wrong or (hasattr(given, "to_frame") and not hasattr(given, "columns")):  # a single column of pandas
        raise InputError("WRONG_TYPE", f"the {named} are of the type {type(given).__name__}", f"give {FORM}")
    if hasattr(given, "with_format") and not isinstance(next(iter(given), {}), Mapping):
        given = unformatted(given)
    if hasattr(given, "to_dicts"):  # polars
        rows = given.to_dicts()
    elif hasattr(given, "columns") and hasattr(given, "iloc"):  # pandas
        rows = given.to_dict("records")
    else:
        rows = given if isinstance(given, Sized) else list(given)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            what = f"row {number} of the {named} is no mapping of column names to values"
            raise InputError("WRONG_TYPE", what, f"give {FORM}")
    return rows


def unformatted(given: Any) -> Any:
    """A ``Dataset`` of the format pandas, polars or Arrow, whose rows are tables, with mappings as its rows."""
    if not hasattr(given, "format"):  # a stream, whose format chooses no columns
        return given.with_format(None)
    return given.with_format(None, columns=given.format["columns"])


def plain(row: Mapping[str, Any]) -> Fields:
    """A row with values of Python in place of those of numpy, and None in place of NaN, which stands for none."""
    return {name: plain_value(value) for name, value in row.items()}


def plain_value(value: Any) -> Any:
    """A value of a row as JSON has it; a tuple is a list, and items of numpy are those of Python."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, list | tuple):
        return [plain_value(item) if hasattr(item, "tolist") else item for item in value]
    return value

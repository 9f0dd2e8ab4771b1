"""The tables behind the figures of a report: named columns, rows of plain values, CSV and data frames."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hardneg.hidden import visible


class NotRecorded(Exception):
    """Facts that an experiment's folder does not hold; the text is one sentence that says why."""


class NotMeant(NotRecorded):
    """Facts of another kind of experiment: a page does not even say that they are missing."""


@dataclass(frozen=True)
class Table:
    """The numbers of a figure."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]  # of texts, numbers, truth values and None

    def __post_init__(self) -> None:
        plain = tuple(tuple(map(plain_value, row)) for row in self.rows)
        object.__setattr__(self, "rows", plain)

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> Table:
        """The table of records that all have these columns (default: those of the first record)."""
        found = list(records)
        names = tuple(found[0] if found else ()) if columns is None else tuple(columns)
        return cls(names, tuple(tuple(record[name] for name in names) for record in found))

    def __len__(self) -> int:
        return len(self.rows)

    def records(self) -> list[dict[str, Any]]:
        """The rows as mappings from column to value, as charts take them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def column(self, name: str) -> list[Any]:
        """The values of one column, row by row."""
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def where(self, **values: Any) -> Table:
        """The rows that have these values in the columns of these names."""
        at = [(self.columns.index(name), value) for name, value in values.items()]
        return Table(self.columns, tuple(row for row in self.rows if all(row[i] == value for i, value in at)))

    def visible(self) -> Table:
        """The table with the hidden characters of its texts shown by their code, as pictures need it."""
        rows = (tuple(visible(value) if isinstance(value, str) else value for value in row) for row in self.rows)
        return Table(self.columns, tuple(rows))

    def csv(self) -> bytes:
        """The table as CSV (RFC 4180, UTF-8) with a line of column names; None is an empty field.

        What UTF-8 cannot hold, as in some names of files, is escaped.
        """
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue().encode(errors="backslashreplace")

    def frame(self) -> Any:
        """The table as a ``pandas.DataFrame``; raises ImportError without pandas."""
        import pandas

        return pandas.DataFrame(list(self.rows), columns=list(self.columns))


def plain_value(value: Any) -> Any:
    """A number of numpy as one of Python's, and None for a number that is not finite."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value

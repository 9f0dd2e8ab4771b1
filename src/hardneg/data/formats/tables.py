"""Tables with named columns, read as a stream of records: JSON, JSON Lines, CSV, TSV, Parquet and Arrow.

JSON, CSV and TSV may end in ``.gz``. CSV has quoting as RFC 4180 says, also over several lines; its first line
names the columns, which stand between commas, semicolons or tabs. A line such as ``sep=;`` before it, which Excel
knows, names the separator. TSV has no quoting: a lone ``"`` is text.
Parquet and Arrow (also the files of ``datasets``' ``save_to_disk``) need the extra ``parquet``; there a line
means a row.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hardneg.data.formats.arrays import read_records
from hardneg.data.formats.faults import collecting, refuse
from hardneg.data.formats.lines import CR_ALONE, LF_OR_CRLF, Fields, empty_file, read_lines
from hardneg.errors import InputError, SettingsError
from hardneg.shown import counted

JSON, CSV, TSV, PARQUET, ARROW = (
    (".json", ".jsonl", ".ndjson"),
    (".csv",),
    (".tsv", ".tab"),
    (".parquet",),
    (".arrow",),
)
SUFFIXES = (*JSON, *CSV, *TSV, *PARQUET, *ARROW)
DELIMITERS = (",", ";", "\t")  # of CSV; the one that the header has most of, outside of quotes
SEPARATOR = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)  # Excel's line that names the delimiter
QUOTED = re.compile(r'"[^"]*"')
MAX_FIELD = 16 << 20  # characters of a CSV field; a quote that is never closed reaches it
PEEKED = 20  # the fields of so many first records are taken as the columns of a JSON file
ROWS = 1024  # rows of Parquet or Arrow read at a time
# What pyarrow raises for a value that is none in Python: a day after the year 9999, a time in an unknown zone.
UNREADABLE = (ValueError, OverflowError, KeyError, NotImplementedError)


def suffix_of(path: Path) -> str:
    """The suffix of a file's name that tells its kind, without ``.gz``; empty if it is no table's."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    return suffix if suffix in SUFFIXES else ""


def read_rows(path: Path) -> Iterator[tuple[int, Fields]]:
    """The records of a table with the line that each begins on; a missing value is None or empty.

    Raises
    ------
    InputError : the file or a record of it cannot be read.
    SettingsError : the file needs a package that is not installed.
    """
    suffix = suffix_of(path)
    if suffix in (*CSV, *TSV):
        return _named(path, read_cells(path, quoted=suffix in CSV))
    if suffix in (*PARQUET, *ARROW):
        return _arrow_rows(path)
    return read_records(path)


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; of JSON the fields of its first records that can be read.

    Raises
    ------
    InputError : as many of these are damaged as can be read, or more.
    SettingsError : the file needs a package that is not installed.
    """
    suffix = suffix_of(path)
    if suffix in (*CSV, *TSV):
        return next(read_cells(path, quoted=suffix in CSV), (1, []))[1]
    if suffix in (*PARQUET, *ARROW):
        with _opened(path) as table:
            return _names(path, table)
    names, records, faults = _first_records(path)
    if len(faults) >= max(records, 1):  # as where a record takes several lines, and an object in it one alone
        raise faults[0]
    return names


def check_first_records(path: Path) -> None:
    """Raise the first fault among the first records of a JSON file, whose columns are then not to be relied on."""
    if suffix_of(path) in JSON and (faults := _first_records(path)[2]):
        raise faults[0]


def _first_records(path: Path) -> tuple[list[str], int, list[InputError]]:
    """The fields of the first records of a JSON file, how many these are, and the faults between them."""
    names, records, faults = dict[str, None](), 0, list[InputError]()

    def add(fault: InputError) -> None:
        faults.append(fault)
        if len(faults) >= PEEKED:
            raise fault

    try:
        with collecting(add):
            for records, (_, fields) in enumerate(islice(read_records(path), PEEKED), 1):  # noqa: B007
                names |= dict.fromkeys(fields)
    except InputError as fault:
        faults.append(fault)
    return list(names), records, faults


# ---------------------------------------------------------------- CSV and TSV


def read_cells(path: Path, *, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """The line and the cells of each row of a CSV file (``quoted``) or a TSV file, its header included."""
    if quoted:
        return _read_csv(path)
    return ((line, text.split("\t")) for line, text in read_lines(path))


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file; a line that names the separator is skipped, and so are rows of empty cells alone.

    A spreadsheet writes a blank row as ``,,``, which is no more a record than a blank line is.
    """
    named, delimiter = _delimiter_of(path)
    at = named

    def texts() -> Iterator[str]:
        nonlocal at
        for line, text in read_lines(path, keep_cr=True):  # a text in quotes may hold CRLF
            at = line
            if line != named:
                yield text + "\n"

    lines = texts()
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        begin = at + 1
        before = csv.field_size_limit(MAX_FIELD)  # the limit of all readers of the process
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as fault:
            refuse(_bad_quoting(path, begin, fault))
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
            continue
        finally:
            csv.field_size_limit(before)
        if any(row):
            yield begin, row


def _delimiter_of(path: Path) -> tuple[int, str]:
    """The number of the line that names the delimiter of a CSV file (0: there is none), and the delimiter."""
    line, first = next(((line, text) for line, text in read_lines(path) if text), (1, ""))
    if match := SEPARATOR.fullmatch(first):
        return line, match[1]
    return 0, max(DELIMITERS, key=QUOTED.sub("", first).count)


def _bad_quoting(path: Path, line: int, fault: Exception) -> InputError:
    unclosed = "limit" in str(fault) or "end of data" in str(fault)
    what = f"a column of more than {MAX_FIELD:,} characters, or a quote that is never closed"
    what = what if unclosed else f"the quoted columns cannot be read ({fault})"
    fix = "close the quote and double those within, or divide the text"
    if "new-line character" in str(fault):
        what, fix = CR_ALONE, LF_OR_CRLF
        if line > 1:  # the lines before end otherwise
            what, fix = "a text that is not in quotes holds a CR", "quote the text, or remove the CR"
    return InputError("BAD_QUOTING", what, fix, path=path, line=line)


def _named(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, Fields]]:
    """The rows after the header as records by the names of the columns."""
    first, header = next(rows, (1, []))
    check_header(path, header, first)
    line, width = first, len(header)
    for line, row in rows:
        if len(row) != width:
            refuse(_wrong_cells(path, line, len(row), width))
            continue
        yield line, dict(zip(header, row, strict=True))
    if line == first:
        raise empty_file(path)


def check_header(path: Path, header: Sequence[str], line: int | None = 1) -> None:
    """Refuse a header that names a column twice; ``line`` is where it stands."""
    for name in header:
        if name and header.count(name) > 1:
            what, fix = f"two columns are called {name!r:.60}", "rename one of them"
            raise InputError("AMBIGUOUS", what, fix, path=path, line=line)


def _wrong_cells(path: Path, line: int, found: int, expected: int) -> InputError:
    what = f"{counted(found, 'column')} where the header names {expected}"
    fix = "check its separators: quote a text of CSV that holds one; a text of TSV cannot hold a tab"
    return InputError("WRONG_COLUMNS", what, fix, path=path, line=line)


# ---------------------------------------------------------------- Parquet and Arrow


def pyarrow() -> Any:
    """Import and return the package ``pyarrow``; raises :class:`SettingsError` if it is missing."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as fault:
        what, fix = "Parquet and Arrow files need the package pyarrow", "pip install 'hardneg[parquet]'"
        raise SettingsError("PACKAGE_MISSING", what, fix) from fault
    return pyarrow


def _opened(path: Path) -> Any:
    """An open Parquet file, or the reader of an Arrow file's batches."""
    package = pyarrow()
    try:
        if suffix_of(path) in PARQUET:
            return package.parquet.ParquetFile(path)
        try:
            return package.ipc.open_stream(package.memory_map(str(path)))
        except package.ArrowInvalid:
            return package.ipc.open_file(package.memory_map(str(path)))
    except FileNotFoundError as fault:
        raise InputError("NOT_FOUND", "no such file", "check the path", path=path) from fault
    except (package.ArrowException, OSError) as fault:
        raise _bad_table(path, fault) from fault


def _names(path: Path, table: Any) -> list[str]:
    """The names of the columns of an open file."""
    return list(table.schema_arrow.names if suffix_of(path) in PARQUET else table.schema.names)


def _batches(path: Path, table: Any) -> Iterator[Any]:
    if suffix_of(path) in PARQUET:
        return table.iter_batches(batch_size=ROWS)
    if hasattr(table, "num_record_batches"):
        return (table.get_batch(i) for i in range(table.num_record_batches))
    return iter(table)


def _arrow_rows(path: Path) -> Iterator[tuple[int, Fields]]:
    package, line = pyarrow(), 0
    with _opened(path) as table:
        check_header(path, names := _names(path, table), None)
        try:
            for batch in _batches(path, table):
                for start in range(0, batch.num_rows, ROWS):
                    part = batch.slice(start, ROWS)
                    columns = [_values(path, column, line + 1) for column in part.columns]
                    for row in zip(*columns, strict=True):
                        line += 1
                        yield line, dict(zip(names, row, strict=True))
        except (package.ArrowException, OSError) as fault:
            raise _bad_table(path, fault, line + 1) from fault
    if not line:
        raise empty_file(path)


def _values(path: Path, column: Any, first: int) -> list[Any]:
    """The values of a column, whose first row is ``first``; in place of a value that cannot be read, its fault."""
    with contextlib.suppress(*UNREADABLE):
        values: list[Any] = column.to_pylist()
        return values
    return [_value(path, one, line) for line, one in enumerate(column, first)]


def _value(path: Path, scalar: Any, line: int) -> Any:
    """A value, or its fault, which only a format that reads the column raises."""
    try:
        return scalar.as_py()
    except UNREADABLE as fault:
        return _bad_table(path, fault, line)


def _bad_table(path: Path, fault: Exception, line: int | None = None) -> InputError:
    what = " ".join(f"it cannot be read ({fault})".split())
    return InputError("BAD_TABLE", f"{what:.300}", "write the file again", path=path, line=line)

"""Lines of plain or gzipped UTF-8 files, read as a stream with every fault named by file and line.

A byte-order mark, CRLF and a missing last newline change nothing. Nothing here depends on a format.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gc
import gzip
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from hardneg.data.formats.faults import refuse, unread
from hardneg.errors import InputError, ResourceError
from hardneg.shown import counted, json_kind
from hardneg.storage.disk import publish_file
from hardneg.storage.places import check_readable

MAX_LINE = 64 << 20  # bytes
MAX_EXPANSION = 200  # a gzip file may expand to so many times its size: text reaches 20, a bomb 1000
FREE_EXPANSION = 64 << 20  # bytes; a gzip file may always expand to so many
CHUNK = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# What files that are not read as text begin with, by what they are.
MAGIC = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
}
PACKED = (".zst", ".xz", ".bz2", ".lz4", ".zip", ".7z", ".tar", ".tgz")  # ends of names; .gz is read
UNPACK = "unpack it, or pack it with gzip"
PARQUET_MAGIC = b"PAR1"
EXACT = 2**53  # below it, a number of 64 bits for fractions tells every integer apart

CR_ALONE = "its lines end in CR alone"
LF_OR_CRLF = "write it again with lines that end in LF or CRLF"
REFUSED = object()  # stands for a line that cannot be read

Fields = Mapping[str, Any]


# ---------------------------------------------------------------- bytes and lines


def read_chunks(path: Path) -> Generator[bytes, None, None]:
    """Blocks of a file's bytes, unpacked if it is gzip; a read error becomes a fault that names the file."""
    check_readable(path)  # to open a pipe would wait for whoever writes into it, for ever
    try:
        with open(path, "rb") as raw:
            if raw.read(2) == GZIP_MAGIC:
                raw.seek(0)
                yield from _expand(path, raw)
                return
            if path.suffix == ".gz":
                raise InputError("BAD_GZIP", "named .gz, but not gzip", "check the file", path=path)
            raw.seek(0)
            while chunk := raw.read(CHUNK):
                yield chunk
    except FileNotFoundError as fault:
        raise InputError("NOT_FOUND", "no such file", "check the path", path=path) from fault
    except OSError as fault:
        raise ResourceError(
            "UNREADABLE",
            f"cannot read ({fault.strerror or fault})",
            "check the file and its permissions",
            path=path,
        ) from fault


def _expand(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    total = 0
    with gzip.GzipFile(fileobj=raw) as stream:
        while True:
            try:
                chunk = stream.read(CHUNK)
            except EOFError as fault:
                raise InputError(
                    "TRUNCATED_GZIP", "the gzip data ends too early", "fetch the file again", path=path
                ) from fault
            except (gzip.BadGzipFile, zlib.error) as fault:
                raise InputError(
                    "BAD_GZIP", f"broken gzip data ({fault})", "fetch the file again", path=path
                ) from fault
            if not chunk:
                return
            total += len(chunk)
            if total > FREE_EXPANSION and total > MAX_EXPANSION * raw.tell():
                raise InputError(
                    "GZIP_BOMB",
                    f"expands to more than {MAX_EXPANSION} times its size",
                    "unpack it and give the plain file, if it is what you expect",
                    path=path,
                )
            yield chunk


def read_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The bytes of a file in pieces of whole lines, each with the number of its first line (from 1).

    The last line break of a piece and a byte-order mark are left out.
    """
    held: list[bytes] = []
    size, line = 0, 1
    for chunk in read_chunks(path):
        whole, found, rest = chunk.rpartition(b"\n")
        if found:
            block = b"".join([*held, whole])
            yield line, _begun(path, block) if line == 1 else block
            line += block.count(b"\n") + 1
            held, size = [], 0
        if rest:
            held.append(rest)
            size += len(rest)
        if size > MAX_LINE:
            raise InputError(
                "LONG_LINE",
                f"a line of more than {MAX_LINE:,} bytes",
                "check that the file has one record a line",
                path=path,
                line=line,
            )
    if held:
        block = b"".join(held)
        yield line, _begun(path, block) if line == 1 else block


def read_lines(path: Path, *, keep_cr: bool = False) -> Iterator[tuple[int, str]]:
    """Each line of a file with its number (from 1), without the line break.

    Lines are decoded together if nothing is wrong with any of them. Else each is decoded by itself, to name the
    line with the fault.

    Parameters
    ----------
    keep_cr : leave the CR of a CRLF at the end of the line, for it may stand within a text.
    """
    for number, block in read_blocks(path):
        if number == 1 and not keep_cr:
            _refuse_cr(path, block)
        lines = _decoded(block, keep_cr)
        yield from _each_line(path, block, number, keep_cr) if lines is None else enumerate(lines, number)


def _begun(path: Path, block: bytes) -> bytes:
    """The beginning of a file without a byte-order mark; refused if it is no UTF-8 at all."""
    first = block.partition(b"\n")[0]
    packed = next((kind for magic, kind in MAGIC.items() if first.startswith(magic)), None)
    if packed and not _is_text(first):
        raise InputError("BAD_UTF8", f"this is {packed}, and not text", UNPACK, path=path, line=1)
    if first.startswith(PARQUET_MAGIC) and not _is_text(first):
        what, fix = "this is Parquet, and not text", "let its name end in .parquet"
        raise InputError("BAD_UTF8", what, fix, path=path, line=1)
    if first.startswith(UTF16) or first.count(b"\0") > len(first) // 4:
        what = "this is UTF-16, or no text at all"
        raise InputError("BAD_UTF8", what, "convert the file to UTF-8", path=path, line=1)
    return block.removeprefix(BOM)


def packed(path: Path) -> InputError:
    """The fault of a file whose name says that it is packed other than by gzip."""
    return InputError("UNKNOWN_FORMAT", f"files packed as {path.suffix} are not read", UNPACK, path=path)


def _is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8 without control characters, tabs and CR apart."""
    try:
        return not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1f]", data.decode())
    except UnicodeDecodeError:
        return False


def _refuse_cr(path: Path, block: bytes) -> None:
    """Refuse a file that is one line, and whose lines of columns end in CR alone."""
    lines = block.rstrip(b"\r").split(b"\r")
    if len(lines) > 1 and b"\n" not in block and all(b"\t" in line for line in lines):
        raise InputError("BAD_QUOTING", CR_ALONE, LF_OR_CRLF, path=path, line=1)


def _decoded(block: bytes, keep_cr: bool) -> list[str] | None:
    """The lines of a block; None if they must be looked at one by one."""
    if b"\0" in block or (b"\r" in block and not keep_cr):
        return None
    try:
        return block.decode().split("\n")
    except UnicodeDecodeError:
        return None


def _each_line(path: Path, block: bytes, first: int, keep_cr: bool = False) -> Iterator[tuple[int, str]]:
    for number, data in enumerate(block.split(b"\n"), start=first):
        if data.endswith(b"\r") and not keep_cr:
            data = data[:-1]
        if b"\0" in data:
            at = data.index(b"\0") + 1
            refuse(InputError("NUL", f"a NUL at byte {at}", "remove it", path=path, line=number))
            continue
        try:
            yield number, data.decode()
        except UnicodeDecodeError as fault:
            what = f"not UTF-8 at byte {fault.start + 1} (0x{data[fault.start]:02x})"
            refuse(InputError("BAD_UTF8", what, "convert the file to UTF-8", path=path, line=number))


# ---------------------------------------------------------------- columns


def read_columns(
    path: Path,
    names: Sequence[str],
    ignored: Counter[str] | None = None,
    *,
    quoted: bool = False,
    underscores: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a tab-separated file with a header line: line number, and the columns ``names`` in that order.

    Without ``quoted`` there is no quoting: a lone ``"`` is text. Other columns are counted in ``ignored``.
    With ``underscores`` the header may have ``_`` where ``names`` have ``-``.
    """
    lines = read_lines(path)
    _, first = next(lines, (1, ""))
    header = split_quoted(first, path, 1) if quoted else first.split("\t")
    if underscores:
        known = {name.replace("-", "_"): name for name in names}
        header = [known.get(name, name) for name in header]
    fix = f"begin the file with the tab-separated header {' '.join(names)}"
    if missing := [name for name in names if name not in header]:
        what = f"the first line {first[:80]!r} is no header: column {missing[0]!r} is missing"
        raise InputError("NO_HEADER", what if first else "the first line is empty", fix, path=path, line=1)
    if twice := [name for name in names if header.count(name) > 1]:
        raise InputError("NO_HEADER", f"the header has column {twice[0]!r} twice", fix, path=path, line=1)
    width, places = len(header), [header.index(name) for name in names]
    as_is = places == list(range(width))
    others = [name for name in header if name not in names]
    number = 1
    for number, line in lines:
        row = split_quoted(line, path, number) if quoted else line.split("\t")
        if len(row) != width:
            refuse(wrong_width(path, number, len(row), width))
            continue
        yield number, row if as_is else [row[place] for place in places]
        if others and ignored is not None:
            ignored.update(others)
    if number == 1:
        raise empty_file(path)


def split_quoted(line: str, path: Path, number: int) -> list[str]:
    """The tab-separated columns of a line with CSV quoting; a quoted column must end on its line.

    Otherwise a quote that is never closed would swallow the lines after it.
    """
    if '"' not in line:
        return line.split("\t")
    reader = csv.reader((line + "\n", ""), delimiter="\t")
    try:
        row = next(reader)
    except csv.Error as fault:
        what, fix = f"the quoted columns cannot be read ({fault})", "check the line"
        raise InputError("BAD_QUOTING", what, fix, path=path, line=number) from fault
    if reader.line_num > 1:
        what, fix = "a quoted column does not end on its line", "close the quote, and double those within"
        raise InputError("BAD_QUOTING", what, fix, path=path, line=number)
    return row


def empty_file(path: Path) -> InputError:
    """The fault of a file without any record."""
    return InputError("EMPTY_FILE", "the file holds no record", "fill or remove it", path=path)


def wrong_width(path: Path, line: int, found: int, expected: int) -> InputError:
    """The fault of a row with the wrong number of columns."""
    what = f"{counted(found, 'tab-separated column')} where {expected} are expected"
    fix = "check its tabs: no text can hold one"
    if found == 1:
        fix = "remove the line if it is empty; otherwise put tabs between its columns"
    return InputError("WRONG_COLUMNS", what, fix, path=path, line=line)


_INTEGER = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?", re.ASCII)


def grade_of(text: str, path: Path, line: int) -> int:
    """Parse a relevance grade: an integer of 32 bits, which may be written as ``1.0``."""
    match = _INTEGER.fullmatch(text)
    if match and -(2**31) <= (grade := int(match[1])) < 2**31:
        return grade
    what = f"the relevance {text[:40]!r} is no 32-bit integer"
    refuse(InputError("BAD_GRADE", what, "give an integer", path=path, line=line))
    return 0


# ---------------------------------------------------------------- JSON


def read_objects(path: Path) -> Iterator[tuple[int, Fields]]:
    """The object on each line of a JSON Lines file, with its line number."""
    number = 0
    for number, block in read_blocks(path):
        yield from objects_of(path, block, number)
    if number == 0:
        raise empty_file(path)


def objects_of(path: Path, block: bytes, first: int) -> Iterator[tuple[int, Fields]]:
    """The object on each line of a block, with its line number; the block begins at line ``first``.

    A line that pydantic's faster reader refuses is read again by Python's. That reader says what is wrong, or
    accepts the line: it takes half of a surrogate pair, and deep nesting.
    """
    from pydantic_core import from_json

    for number, data in enumerate(block.split(b"\n"), first):
        try:
            value = from_json(data, cache_strings="keys")
        except ValueError:
            value = _decoded_json(path, data, number)
            if value is REFUSED:
                continue
        if not isinstance(value, dict):
            what = f"{json_kind(value)} where an object is expected"
            refuse(InputError("BAD_JSON", what, "write one object a line", path=path, line=number))
            continue
        yield number, value


def _decoded_json(path: Path, data: bytes, number: int) -> Any:
    """The value that Python's JSON reader finds in a line, or ``REFUSED``."""
    for _, line in _each_line(path, data, number):
        try:
            with _without_collection():
                return json.JSONDecoder().decode(line)
        except (ValueError, RecursionError) as fault:
            what = why_not_json(line, fault)
            fix = LF_OR_CRLF if what == CR_ALONE else "write one object a line" if line.strip() else "remove it"
            refuse(InputError("BAD_JSON", what, fix, path=path, line=number))
    return REFUSED


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage in the block: in the depth of nested JSON, what ends other objects would fail."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def why_not_json(line: str, fault: Exception) -> str:
    """The reason why a line is no JSON, in words."""
    if not line.strip():
        return "an empty line"
    if isinstance(fault, RecursionError):
        return "JSON that is nested too deeply"
    if not isinstance(fault, json.JSONDecodeError):  # the only other fault is Python's limit on digits
        return f"not JSON that is read here (an integer of more than {sys.get_int_max_str_digits():,} digits)"
    if fault.msg == "Extra data" and "\r" in line[: fault.pos]:
        return CR_ALONE
    found = repr(line[fault.pos : fault.pos + 20]) if fault.pos < len(line) else "the line's end"
    return f"not valid JSON ({fault.msg}: {found} at column {fault.colno})"


def text_of(fields: Fields, name: str, path: Path, line: int, default: str | None = None) -> str:
    """The string in a field. A missing or null field gives ``default``; if that is None, it is a fault."""
    value = fields.get(name)
    if isinstance(value, str):
        return value
    if value is None and default is not None:
        return default
    return unread(_bad_field(fields, name, "a string", path, line))


def id_of(fields: Fields, name: str, path: Path, line: int) -> str:
    """The id in a field: a string, or an integer, which is read as its decimal digits.

    The integer may be of a type for fractions (12.0), which is what pandas makes of a column that lacks a value.
    """
    value = fields.get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return unread(_bad_field(fields, name, "a string or an integer", path, line))


def texts_of(fields: Fields, name: str, path: Path, line: int) -> list[str]:
    """The list of strings in a field; empty if the field is missing or null."""
    value = fields.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return cast(list[str], value)
    refuse(_bad_field(fields, name, "a list of strings", path, line))
    return []


def ids_of(fields: Fields, name: str, path: Path, line: int) -> list[str]:
    """The list of ids in a field (see :func:`id_of`); empty if the field is missing or null."""
    value = fields.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(i, str | int) and not isinstance(i, bool) for i in value):
        return [str(item) for item in value]
    refuse(_bad_field(fields, name, "a list of ids", path, line))
    return []


def described(value: Any) -> str:
    """A value that is no text, in words; of a list also what it holds beside texts."""
    others = {json_kind(item) for item in value if not isinstance(item, str)} if isinstance(value, list) else ()
    return f"a list that holds {' and '.join(sorted(others))}" if others else json_kind(value)


def _bad_field(fields: Fields, name: str, expected: str, path: Path, line: int) -> InputError:
    if name not in fields:
        what = f"the field {name!r} is missing (found: {', '.join(fields) or 'none':.80})"
        return InputError("MISSING_FIELD", what, f"give it as {expected}", path=path, line=line)
    value = fields[name]
    plain = value is None or isinstance(value, str | int | float)
    found = json.dumps(value)[:60] if plain else described(value)
    what = f"the field {name!r} is {found}, not {expected}"
    return fault_in(value, InputError("WRONG_TYPE", what, "correct it", path=path, line=line))


def fault_in(value: Any, otherwise: InputError) -> InputError:
    """The fault that a table has in place of a value that cannot be read; of another value, ``otherwise``."""
    return value if isinstance(value, InputError) else otherwise


# ---------------------------------------------------------------- writing


@contextlib.contextmanager
def publish_packed(
    path: Path, *, sidecar: Path | None = None, described: Callable[[Path], bytes] | None = None
) -> Iterator[Any]:
    """Give the block a stream whose bytes are published at ``path``, through gzip if its name ends in ``.gz``.

    The gzip data have no time stamp, so equal bytes give equal files.

    Parameters
    ----------
    sidecar, described : see :func:`~hardneg.storage.disk.publish_file`.
    """
    with publish_file(path, sidecar=sidecar, described=described) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as stream:
            yield stream

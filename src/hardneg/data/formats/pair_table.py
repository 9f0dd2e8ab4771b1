"""Tables of (query id, passage id, value), such as runs and qrels, read as columns of numbers."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardneg.data.formats.lines import BOM, CHUNK, read_chunks, read_lines
from hardneg.data.ids import IdSpace, other_forms, written_otherwise
from hardneg.errors import InputError
from hardneg.process.progress import Tick, silent
from hardneg.records import Int32, Int64, Number, offsets_of, take_spans

Float64 = NDArray[np.float64]
Column = list[bytes]
Values = NDArray[np.floating]
Parse = Callable[[Column, Sequence[int], Path], Values]

ENTRIES = 1 << 18  # entries that are looked at together, besides those of one query
_BLOCK = 1 << 16  # lines that are held together when lines are split one by one
_NAMED = 10  # number of unknown ids that a fault lists


@dataclass(frozen=True)
class TableForm:
    """The columns of a pair table; the last one takes the rest of the line."""

    columns: str
    places: tuple[int, int, int]  # the columns of query id, passage id and value, from 0
    separator: bytes | None = None  # None: any blanks
    skip: tuple[str, ...] = ()  # lines that begin with one of these are no records

    @property
    def width(self) -> int:
        """The number of columns of a line."""
        return len(self.columns.split())


class Lines:
    """The line number, from 1, of each entry; blocks of lines that follow each other take no memory for each."""

    def __init__(self, blocks: Sequence[Sequence[int]]) -> None:
        self.blocks = blocks
        self.begins = offsets_of(np.array([len(block) for block in blocks], np.int64)).tolist()

    def __getitem__(self, entry: int) -> int:
        at = bisect_right(self.begins, entry) - 1
        return int(self.blocks[at][entry - self.begins[at]])


@dataclass(frozen=True)
class Table:
    """The entries of a pair table, in the order of the file."""

    path: Path
    query_ids: list[str]  # distinct, in order of appearance
    passage_ids: list[str]
    query: Int32  # [n] index into query_ids
    passage: Int32  # [n] index into passage_ids
    values: Values  # [n]
    lines: Lines

    @cached_property
    def by_query(self) -> tuple[Int64 | None, Int64]:
        """The entries [n] query by query, None if the file has them so, and the offsets [Q + 1] of the queries."""
        codes = np.arange(len(self.query_ids) + 1, dtype=np.int32)
        if np.all(self.query[1:] >= self.query[:-1]):
            return None, np.searchsorted(self.query, codes)
        order = np.argsort(self.query, kind="stable")
        return order, np.searchsorted(self.query, codes, sorter=order)

    def entries(self, queries: NDArray[np.integer]) -> Int64:
        """The entries of these queries, query by query, in file order."""
        order, offsets = self.by_query
        index, _ = take_spans(offsets, queries)
        return index if order is None else order[index]

    def repeats(self) -> tuple[Int64, Int64]:
        """Entries [m] that repeat the query and passage of earlier ones, in file order, and the earlier [m]."""
        found = [np.zeros((2, 0), np.int64)]
        for begin, end in parts(self.by_query[1]):
            entries = self.entries(np.arange(begin, end))
            key = self.query[entries].astype(np.int64) * len(self.passage_ids) + self.passage[entries]
            order = np.argsort(key, kind="stable")
            again = np.flatnonzero(np.diff(key[order]) == 0)
            found.append(entries[np.stack([order[again + 1], order[again]])])
        later, earlier = np.concatenate(found, axis=1)
        by_line = np.argsort(later)
        return later[by_line], earlier[by_line]

    def fault(self, code: str, what: str, entry: int, before: int) -> InputError:
        """The fault of an entry whose (query, passage) pair the earlier entry ``before`` has."""
        pair = f"query {self.query_ids[self.query[entry]]}, passage {self.passage_ids[self.passage[entry]]}"
        what = f"{pair}: {what} on line {self.lines[before]}"
        return InputError(code, what, "keep one of them", path=self.path, line=self.lines[entry])

    def known(self, space: IdSpace, kind: str) -> Int32:
        """The row of each distinct query or passage id; raises :class:`InputError` if one is unknown."""
        ids, column = (self.query_ids, self.query) if kind == "query" else (self.passage_ids, self.passage)
        rows = space.rows(ids)
        unknown = np.flatnonzero(rows < 0)
        if len(unknown):
            named = ", ".join(ids[i] for i in unknown[:_NAMED].tolist())
            what = f"{len(unknown):,} {kind} ids are not in the collection: {named}"
            if other := other_forms(space, [ids[i] for i in unknown.tolist()]):
                what = f"{what} ({written_otherwise(kind, other)})"
            line = self.lines[int(np.argmax(column == unknown[0]))]
            raise InputError("UNKNOWN_ID", what, "give the matching file", path=self.path, line=line)
        return rows


def read_table(path: Path, layout: TableForm, parse: Parse, progress: Tick = silent) -> Table:
    """Read a pair table; ``parse`` turns the texts of values into numbers and names the line of a fault.

    ``progress`` is called with the lines read; how many there are is not known.
    """
    queries, passages = _numbering(), _numbering()
    codes: tuple[list[Int32], list[Int32]] = ([], [])
    values: list[Values] = []
    lines: list[Sequence[int]] = []
    for numbers, columns in _columns(path, layout):
        query, passage, value = (columns[place] for place in layout.places)
        values.append(parse(value, numbers, path))
        codes[0].append(_codes(queries, query))
        codes[1].append(_codes(passages, passage))
        lines.append(_compact(numbers))
        progress(numbers[-1], 0)
    if not lines:
        raise InputError("EMPTY_FILE", "there are no records", "check the file", path=path)
    query_ids, passage_ids = ([id_.decode() for id_ in some] for some in (queries, passages))
    return Table(path, query_ids, passage_ids, _joined(codes[0]), _joined(codes[1]), _joined(values), Lines(lines))


def parts(offsets: Int64) -> Iterator[tuple[int, int]]:
    """Ranges (begin, end) of the spans that ``offsets`` delimit, each of about ``ENTRIES`` entries or one span."""
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], ENTRIES))
    return itertools.pairwise(np.unique(np.append(cuts, len(offsets) - 1)).tolist())


def _joined(blocks: list[NDArray[Number]]) -> NDArray[Number]:
    """One array of blocks, which are let go one by one, because there may be thousands of millions of entries."""
    whole = np.empty(sum(map(len, blocks)), blocks[0].dtype)
    begin = len(whole)
    while blocks:
        block = blocks.pop()
        whole[begin - len(block) : begin] = block
        begin -= len(block)
    return whole


def _compact(numbers: Sequence[int]) -> Sequence[int]:
    """The same ascending numbers, as a range if none is left out."""
    whole = range(numbers[0], numbers[-1] + 1)
    return whole if len(whole) == len(numbers) else array("q", numbers)


def _numbering() -> defaultdict[bytes, int]:
    """A mapping that gives each new key the next number, from 0."""
    return defaultdict(itertools.count().__next__)


def _codes(numbering: defaultdict[bytes, int], ids: Column) -> Int32:
    return np.fromiter(map(numbering.__getitem__, ids), np.int32, len(ids))


# ---------------------------------------------------------------- lines into columns


def _columns(path: Path, layout: TableForm) -> Iterator[tuple[Sequence[int], list[Column]]]:
    """Line numbers and columns of blocks of lines.

    Blocks are split as a whole while all their lines are regular. From the first irregular block on, lines are
    split one by one.
    """
    line = 1
    for block in _blocks(path):
        columns = _split_regular(block, layout)
        if columns is None:
            yield from _split_lines(path, layout, line)
            return
        yield range(line, line + len(columns[0])), columns
        line += len(columns[0])


def _blocks(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines. If a line is too long for a block, the last block breaks off within it."""
    rest, bom = b"", BOM
    for chunk in read_chunks(path):
        cut = chunk.rfind(b"\n") + 1
        block, rest = (rest + chunk[:cut], chunk[cut:]) if cut else (b"", rest + chunk)
        if len(rest) > 2 * CHUNK:
            yield rest
            return
        if block:
            yield block.removeprefix(bom)
            bom = b""
    if rest:
        yield rest.removeprefix(bom) + b"\n"


def _split_regular(block: bytes, layout: TableForm) -> list[Column] | None:
    """The columns of a block; None if a line has another number of words or the text needs a closer look."""
    skipped = any(b"\n" + prefix.encode() in b"\n" + block for prefix in layout.skip)
    if layout.separator is not None or skipped or b"\0" in block or not _is_utf8(block):
        return None
    lines, step = block.count(b"\n"), layout.width + 1
    words = block.replace(b"\n", b" \0 ").split()  # each line's end becomes a word of its own
    if len(words) != lines * step or words[layout.width :: step].count(b"\0") != lines:
        return None
    return [words[place::step] for place in range(layout.width)]


def _is_skipped(line: str, layout: TableForm) -> bool:
    """Whether a line is no record. An id may begin with ``#`` where tabs tell a record from a comment."""
    if not line.startswith(layout.skip):
        return False
    is_comment = layout.separator is None or line.count(layout.separator.decode()) != layout.width - 1
    return is_comment or not line.startswith("#")


def _is_utf8(block: bytes) -> bool:
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _split_lines(path: Path, layout: TableForm, start: int) -> Iterator[tuple[Sequence[int], list[Column]]]:
    """Line numbers and columns of the lines from ``start`` on; a faulty line is named."""
    lines = itertools.islice(read_lines(path), start - 1, None)
    records = ((number, line) for number, line in lines if not _is_skipped(line, layout))
    while block := list(itertools.islice(records, _BLOCK)):
        rows = [line.encode().rstrip().split(layout.separator, layout.width - 1) for _, line in block]
        for (number, line), row in zip(block, rows, strict=True):
            if len(row) != layout.width or b"" in row:
                what, fix = f"{len(row)} columns, or an empty one", f"write lines as '{layout.columns}'"
                if row in ([], [b""]):
                    what, fix = "a blank line", "remove it"
                raise InputError("WRONG_COLUMNS", what, fix, path=path, line=number)
            if b"\t" in row[-1]:
                _refuse_blank_within(path, number, line, layout)
        yield [number for number, _ in block], [list(column) for column in zip(*rows, strict=True)]


def _refuse_blank_within(path: Path, number: int, line: str, layout: TableForm) -> None:
    """Refuse a line that tabs divide into all its columns, if a blank divides one of them once more.

    The columns after it would be read in the places of others. The last column may hold blanks.
    """
    cells = line.encode().rstrip().split(b"\t")
    if layout.separator is not None or len(cells) != layout.width:
        return
    names = layout.columns.split()
    for place, cell in enumerate(cells[:-1]):
        if len(cell.split()) > 1:
            what = (
                f"the column {names[place]} is {cell.decode()!r:.80}, but blanks divide columns here, as tabs do"
            )
            fix = "write it without blanks"
            if place in layout.places[:2]:
                raise InputError("BLANK_IN_ID", what, fix, path=path, line=number)
            raise InputError("WRONG_COLUMNS", what, fix, path=path, line=number)

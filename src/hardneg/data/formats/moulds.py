"""JSON Lines whose objects differ in their strings alone, as programs write them: read by their quotes.

The first line gives a mould of the others: the bytes before, between and after the strings that are values. A
line that has these bytes, and valid JSON strings in the places of the strings, is an object with the same names.
So many lines are read at once, by the positions of their quotes, and nothing but the strings is built of them.

If one line of a block does not fit, the block is left to a reader of single lines (:mod:`.lines`). That reader
says what is wrong, or reads lines that are only written in another way. So no line is accepted here that would be
refused there, and no line is read to another value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.records import Int64

MOST = 1 << 20  # bytes of a block; a longer one, which has a long line, is left to the reader of single lines
RUN = 64  # consecutive backslashes; a line with more does not fit
QUOTE, BACKSLASH, BLANK = 0x22, 0x5C, 0x20

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(?P<name>[ \t\r]*:)?')


class Moulds:
    """Finds the mould of each block of lines; most blocks have the mould of the block before."""

    def __init__(self) -> None:
        self.last: Mould | None = None

    def lines(self, block: bytes) -> AlikeLines | None:
        """The lines of a block; None where they are not alike."""
        if len(block) > MOST:
            return None
        lines = self.last.fit(block) if self.last else None
        if lines is None:
            self.last = Mould.of(block.partition(b"\n")[0])
            lines = self.last.fit(block) if self.last else None
        return lines


@dataclass(frozen=True)
class AlikeLines:
    """The lines of a block that one mould fits.

    Attributes
    ----------
    fields : the object of every line; the number of a string, as digits, stands in its place.
    begins, ends : [n, strings] where each string of a line begins and ends in the block, its quotes left out.
    """

    block: bytes
    fields: Mapping[str, Any]
    begins: Int64
    ends: Int64

    @property
    def n(self) -> int:
        """The number of lines."""
        return len(self.begins)

    def columns(self, defaults: Mapping[str, bytes | None]) -> list[list[bytes]] | None:
        """The strings [n] of some fields, as UTF-8.

        A field that is missing or null has its default; a default of None: it must be there. The result is None if
        a field holds other values than strings, or a string is refused.
        """
        if self._rewritten is None:
            return None
        columns = []
        for name, default in defaults.items():
            value = self.fields.get(name)
            if value is None and default is not None:
                columns.append([default] * self.n)
            elif isinstance(value, str):
                columns.append(self._column(int(value)))
            else:
                return None
        return columns

    def _column(self, which: int) -> list[bytes]:
        block = self.block
        spans = zip(self.begins[:, which].tolist(), self.ends[:, which].tolist(), strict=True)
        found = [block[begin:end] for begin, end in spans]
        for row, text in (self._rewritten or {}).get(which, ()):
            found[row] = text
        return found

    @cached_property
    def _rewritten(self) -> Mapping[int, list[tuple[int, bytes]]] | None:
        """The rows and texts of strings with a backslash, by the string's number; None if one is refused."""
        slashes = np.flatnonzero(np.frombuffer(self.block, np.uint8) == BACKSLASH)
        rows, which = np.nonzero(np.searchsorted(slashes, self.ends) > np.searchsorted(slashes, self.begins))
        spans = zip(self.begins[rows, which].tolist(), self.ends[rows, which].tolist(), strict=True)
        written = [self.block[begin:end] for begin, end in spans]
        try:
            self.block.isascii() or self.block.decode()
            encoded = unescaped(written)
        except ValueError:
            return None
        found: dict[int, list[tuple[int, bytes]]] = {}
        for row, string, text in zip(rows.tolist(), which.tolist(), encoded, strict=True):
            found.setdefault(string, []).append((row, text))
        return found


def unescaped(written: list[bytes]) -> list[bytes]:
    """The texts, as UTF-8, of JSON strings without their quotes.

    Raises
    ------
    ValueError : a string is not valid JSON, or holds half of a surrogate pair or a NUL.
    """
    from pydantic_core import from_json

    if not written:
        return []
    texts = from_json(b'["' + b'","'.join(written) + b'"]', cache_strings="none")
    encoded = [text.encode() for text in texts]
    if b"\0" in b"".join(encoded):
        raise ValueError("a NUL")
    return encoded


@dataclass(frozen=True)
class Mould:
    """The common form of the lines of a file: all but the strings that are values.

    Attributes
    ----------
    fields : see :class:`AlikeLines`.
    pieces : the bytes before, between and after the strings that are values, with their quotes [strings + 1].
    opening : which of the quotes of a line opens each of these strings [strings].
    quotes : the number of all quotes of a line that no backslash escapes.
    """

    fields: Mapping[str, Any]
    pieces: tuple[bytes, ...]
    opening: Int64
    quotes: int

    @classmethod
    def of(cls, line: bytes) -> Mould | None:
        """The mould of a line; None if it is no object with a string."""
        from pydantic_core import from_json

        strings = list(_STRING.finditer(line))
        values = [i for i, string in enumerate(strings) if string["name"] is None]
        pieces, marked, at = [], b"", 0
        for i, string in enumerate(strings[i] for i in values):
            pieces.append(line[at : string.start() + 1])
            marked += b"%s%d" % (pieces[-1], i)
            at = string.end() - 1
        try:
            fields = from_json(marked + line[at:])
        except ValueError:
            return None
        if not values or not isinstance(fields, dict):
            return None
        return cls(fields, (*pieces, line[at:]), np.array(values, np.int64) * 2, 2 * len(strings))

    def fit(self, block: bytes) -> AlikeLines | None:
        """The lines of a block; None if one of them does not fit the mould."""
        first, last = self.pieces[0], self.pieces[-1]
        if not block.startswith(first) or not block.endswith(last):
            return None
        data = np.frombuffer(block, np.uint8)
        quotes = unescaped_quotes(data)
        n, rest = divmod(len(quotes), self.quotes)
        # A string may hold no control character: all of them must be in the pieces or between the lines.
        if rest or not n or np.count_nonzero(data < BLANK) != n * self._controls + n - 1:
            return None
        at = quotes.reshape(n, self.quotes)
        begins, ends = at[:, self.opening] + 1, at[:, self.opening + 1]
        if begins[0, 0] != len(first) or ends[-1, -1] != len(block) - len(last):
            return None
        between = [(ends[:, i], begins[:, i + 1], piece) for i, piece in enumerate(self.pieces[1:-1])]
        between.append((ends[:-1, -1], begins[1:, 0], last + b"\n" + first))
        if not all(is_between(data, *one) for one in between):
            return None
        return AlikeLines(block, self.fields, begins, ends)

    @cached_property
    def _controls(self) -> int:
        """The number of control characters, such as tabs between the fields, of a line."""
        return sum(byte < BLANK for byte in b"".join(self.pieces))


def unescaped_quotes(data: NDArray[np.uint8]) -> Int64:
    """Where quotes stand that no backslash escapes; nowhere if too many backslashes follow one another.

    The first byte must be neither a quote nor a backslash.
    """
    quotes = np.flatnonzero(data == QUOTE)
    escaped = data[quotes - 1] == BACKSLASH
    pending = np.flatnonzero(escaped)
    for depth in range(2, RUN):
        pending = pending[data[quotes[pending] - depth] == BACKSLASH]
        if not len(pending):
            return quotes[~escaped]
        escaped[pending] ^= True
    return quotes[:0]


def is_between(data: NDArray[np.uint8], begins: Int64, ends: Int64, piece: bytes) -> bool:
    """Whether the bytes from each of ``begins`` [n] to each of ``ends`` [n] are those of ``piece``."""
    if not (ends - begins == len(piece)).all():
        return False
    # Every string of so many bytes that is in the data, as an element of its own: so a row is copied at once.
    windows = np.ndarray(len(data) - len(piece) + 1, f"V{len(piece)}", data, strides=(1,))
    return windows[begins].tobytes() == piece * len(begins)

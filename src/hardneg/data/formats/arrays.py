"""JSON files of many objects: an array of any length, or one object a line. Both ways work in pieces."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from hardneg.data.formats.lines import (
    BOM,
    MAX_LINE,
    Fields,
    empty_file,
    publish_packed,
    read_chunks,
    read_objects,
    why_not_json,
)
from hardneg.errors import InputError
from hardneg.shown import json_kind

_DECODE = json.JSONDecoder().raw_decode
_BLANKS = re.compile(r"[ \t\r\n]*")
_TAIL = 16  # a JSON fault within so many characters of the end may come from a value that is cut off


def read_records(path: Path) -> Iterator[tuple[int, Fields]]:
    """The objects of a file (an array of them, or one a line), each with the number of the line it begins on."""
    with closing(read_chunks(path)) as chunks:
        is_array = next(chunks, b"").removeprefix(BOM).lstrip().startswith(b"[")
    return _read_array(path) if is_array else read_objects(path)


BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # lines end there for str.splitlines


def write_records(path: Path, rows: Iterable[Fields], *, array: bool = False) -> int:
    """Publish rows as JSON, one a line or as one ``array`` (gzip at a name in ``.gz``); returns how many."""
    written = 0
    with publish_packed(path) as stream:
        for row in rows:
            before = b"" if not array else b",\n" if written else b"[\n"
            after = b"" if array else b"\n"
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            stream.write(before + (text if text.isascii() else text.translate(BREAKS)).encode() + after)
            written += 1
        stream.write(b"\n]\n" if array else b"")
    return written


class _Window:
    """The text of a file that is read and not yet parsed: ``text`` from ``at`` on, which is on line ``line``."""

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.at, self.line = path, "", 0, 1
        self.chunks = _text_chunks(path)

    def grow(self) -> bool:
        """Read as much again as the window holds, or more; False at the end of the file."""
        parts, wanted = [self.text[self.at :]], len(self.text) - self.at
        while wanted >= 0 and (chunk := next(self.chunks, "")):
            parts.append(chunk)
            wanted -= len(chunk)
        self.text, self.at = "".join(parts), 0
        return len(parts) > 1

    def move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def next_mark(self) -> str:
        """The next character that is not blank, "" at the end of the file."""
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.move(blanks.end() if blanks else self.at)
            if self.at < len(self.text) or not self.grow():
                return self.text[self.at : self.at + 1]

    def value(self) -> Any:
        """Parse and return the next JSON value; raises :class:`InputError` if it is not valid."""
        while True:
            begin = self.at
            try:
                value, end = _DECODE(self.text, self.at)
            except json.JSONDecodeError as fault:
                cut = fault.pos >= len(self.text) - _TAIL or fault.msg.startswith("Unterminated string")
                if not (cut and self._room() and self.grow()):
                    self.move(self.at + fault.pos - begin)  # the window may have moved in the text
                    raise self.fault(f"not valid JSON ({fault.msg})") from fault
            except (ValueError, RecursionError) as fault:
                raise self.fault(why_not_json("[", fault)) from fault
            else:
                self.move(end)
                return value

    def _room(self) -> bool:
        if len(self.text) - self.at <= MAX_LINE:
            return True
        what = f"a record of more than {MAX_LINE:,} characters"
        raise InputError("LONG_LINE", what, "check the record", path=self.path, line=self.line)

    def fault(self, what: str) -> InputError:
        """A fault at the place where the window stands."""
        return InputError("BAD_JSON", what, "write an array of objects", path=self.path, line=self.line)


def _read_array(path: Path) -> Iterator[tuple[int, Fields]]:
    window = _Window(path)
    before, end = "[", "]"
    while window.next_mark() == before:
        window.move(window.at + 1)
        if window.next_mark() == end and before == "[":
            raise empty_file(path)
        line, value = window.line, window.value()
        if not isinstance(value, dict):
            raise window.fault(f"{json_kind(value)} where an object is expected")
        yield line, value
        before = ","
    if window.next_mark() != end:
        raise window.fault(f"{window.next_mark() or 'the end of the file'!r} where ',' or ']' is expected")
    window.move(window.at + 1)
    if window.next_mark():
        raise window.fault("more text after the array's end")


def _text_chunks(path: Path) -> Iterator[str]:
    decoder, line, column = codecs.getincrementaldecoder("utf-8-sig")(), 1, 0
    for chunk in chain(read_chunks(path), [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as fault:
            bytes_ = fault.object  # the chunk, with the incomplete end of the chunk before it in front
            begin = bytes_.rfind(b"\n", 0, fault.start) + 1
            byte = fault.start - begin + 1 + (0 if begin else column - (len(bytes_) - len(chunk)))
            line += bytes_.count(b"\n", 0, fault.start)
            what = f"not UTF-8 at byte {byte} (0x{bytes_[fault.start]:02x})"
            raise InputError("BAD_UTF8", what, "convert the file to UTF-8", path=path, line=line) from fault
        line += chunk.count(b"\n")
        column = len(chunk) - 1 - chunk.rfind(b"\n") + (0 if b"\n" in chunk else column)
        if text:
            yield text

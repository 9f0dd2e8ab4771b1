"""Blocks of passages made ready to be written: read, checked, hashed and joined, in this process or in another."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from hardneg.data.checks import PlainPassages, is_plain
from hardneg.data.formats.moulds import Moulds
from hardneg.data.text import canonical, hash_each


class ReadyBlock(NamedTuple):
    """Passages as they are written, by column: ids, titles, texts."""

    n: int
    joined: tuple[bytes, ...]  # UTF-8, the strings concatenated
    lengths: tuple[bytes, ...]  # int64 [n] each
    id_hashes: bytes  # eight bytes each
    text_hashes: bytes  # of the canonical texts
    ignored: tuple[str, ...]  # other fields, which every record has


def ready_block(found: PlainPassages, ignored: tuple[str, ...] = ()) -> ReadyBlock:
    """The passages of a block, in which nothing is wrong, as they are written."""
    joined = tuple(b"".join(column) for column in found)
    lengths = tuple(array("q", map(len, column)).tobytes() for column in found)
    hashes = hash_each(found.ids), hash_each(canonical(found.texts))
    return ReadyBlock(len(found.ids), joined, lengths, *hashes, ignored)


class BlockReader:
    """Reads blocks of JSON Lines that are alike; it remembers the mould (the common form) of the last block."""

    def __init__(self) -> None:
        self.moulds = Moulds()

    def read(self, data: bytes, fields: Mapping[str, bytes | None]) -> ReadyBlock | None:
        """The passages of some lines (see ``PassageLines``); None where each line must be read by itself."""
        lines = self.moulds.lines(data)
        columns = None if lines is None else lines.columns(fields)
        if lines is None or columns is None:
            return None
        ids, titles, texts = columns
        found = PlainPassages(ids, titles, texts)
        if not is_plain(found):
            return None
        return ready_block(found, tuple(lines.fields.keys() - fields.keys()))

"""Columns of strings on disk, memory-mapped, so that texts and ids cost no Python objects until they are read.

A column is one UTF-8 blob and int64 offsets. An id column also finds the row of an id, by a sorted table of
64-bit hashes that all processes of a machine share, and knows every id's rank in byte order.
"""

from __future__ import annotations

import itertools
import mmap
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardneg.keyed_random import UInt64
from hardneg.records import Int32, Int64, distinct, offsets_of
from hardneg.storage.artifacts import Draft, load_array
from hardneg.storage.disk import create, rename

WORD = 8  # bytes compared at a time when ids are ranked
CHUNK = 1 << 20  # rows gathered at a time
BLANK = re.compile(rb"[\t\n\v\f\r ]")  # at which ``bytes.split`` divides
COPIED = 1 << 12  # strings held at a time when a column is rewritten
# What a byte of UTF-8 may belong to: a blank outside ASCII, or a text that is not in the form NFC.
BLANKS, FORM = 1, 2
# C2, E1, E2, E3 and EF begin all blanks outside ASCII. All characters before U+0300 (CC 80) are NFC.
SUSPECT = bytes(BLANKS * (byte in b"\xc2\xe1\xe2\xe3\xef") | FORM * (byte >= 0xCC) for byte in range(256))
UNSEEN = "\u200b\ufeff"  # a blank without width, a byte-order mark
ONE_BLANK = bytes(0x20 if chr(byte).isspace() and byte < 0x80 else byte for byte in range(256))


def hash_bytes(data: bytes) -> bytes:
    """An eight-byte hash of ``data``."""
    return blake2b(data, digest_size=8).digest()


def hash_each(data: Iterable[bytes]) -> bytes:
    """The concatenated hashes of some byte strings."""
    return b"".join(map(blake2b.digest, map(partial(blake2b, digest_size=8), data)))


def hash_strings(strings: Sequence[str]) -> UInt64:
    """64-bit hash of the UTF-8 bytes of each string [n]."""
    return as_hashes(hash_each([string.encode(errors="surrogatepass") for string in strings]))


def hash_texts(texts: Sequence[str]) -> UInt64:
    """64-bit hash of each text [n]; it is that of :func:`hash_strings` for a text in its canonical form."""
    parts = []
    for start in range(0, len(texts), COPIED):
        block = [text.encode(errors="surrogatepass") for text in texts[start : start + COPIED]]
        parts.append(hash_each(canonical(block)))
    return as_hashes(b"".join(parts))


def canonical(texts: Sequence[bytes]) -> Sequence[bytes]:
    """The canonical form of each text; texts with the same form count as the same text.

    Letters are composed (NFC), each run of white space is one blank, and blanks at the ends are left out, also the
    invisible U+200B and U+FEFF. All texts are looked at together, for most are in this form already.
    """
    if not len(texts):
        return texts
    joined = b" ".join([b"", *texts, b""])
    lines = joined.translate(ONE_BLANK)
    blank = np.frombuffer(lines, np.uint8) == 0x20
    twice = blank[:-1] & blank[1:]  # a blank at an end stands beside one that joins the texts
    if joined.isascii() and lines == joined and not twice.any():
        return texts
    ends = np.cumsum([0, *(len(text) + 1 for text in texts)])
    found = np.bitwise_or.reduceat(np.frombuffer(lines.translate(SUSPECT), np.uint8)[:-1] | twice, ends[:-1])
    forms = [lines[a + 1 : b] for a, b in itertools.pairwise(ends.tolist())]
    for i in np.flatnonzero(found).tolist():
        forms[i] = _canonical(forms[i], bool(found[i] & BLANKS))
    return forms


def _canonical(data: bytes, has_blanks: bool) -> bytes:
    text = data.decode(errors="surrogatepass")
    form = unicodedata.normalize("NFC", text)
    if has_blanks:
        form = " ".join(form.split()).strip(f" {UNSEEN}")
    return data if form == text else form.encode(errors="surrogatepass")


def copies_among(keys: UInt64) -> Int32 | None:
    """The first place [n] of each text that stands twice among ``keys`` [n], -1 for the others; None: none does.

    An empty text is not looked at.
    """
    ordered = np.sort(keys)
    twice = distinct(ordered[1:][ordered[1:] == ordered[:-1]])
    twice = twice[twice != NO_TEXT]
    if not len(twice):
        return None
    label = np.minimum(np.searchsorted(twice, keys), len(twice) - 1)
    at = np.flatnonzero(twice[label] == keys)
    _, first = np.unique(label[at], return_index=True)
    copies = np.full(len(keys), -1, np.int32)
    copies[at] = at[first[label[at]]]
    return copies


def as_hashes(digests: bytes | bytearray) -> UInt64:
    """Concatenated results of :func:`hash_bytes` as numbers [n]."""
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)


NO_TEXT = hash_strings([""])[0]  # of a blank text


def keys_of_passages(of_texts: UInt64, titles: TextColumn) -> UInt64:
    """The keys [n] by which passages count as copies, from the hashes [n] of their texts.

    A passage with a title alone has the hash of its title. One that is blank as a whole has a key of its own,
    made of its row and a NUL, which no text holds.
    """
    blank = np.flatnonzero(of_texts == NO_TEXT)
    keys = of_texts.copy()
    for start in range(0, len(blank), COPIED):
        rows = blank[start : start + COPIED]
        keys[rows] = as_hashes(hash_each(canonical(titles.take_bytes(rows))))
        if len(unnamed := rows[keys[rows] == NO_TEXT]):
            keys[unnamed] = hash_strings([f"\0{row}" for row in unnamed.tolist()])
    return keys


# ---------------------------------------------------------------- texts


class TextColumn:
    """Strings by row, read from a memory-mapped UTF-8 blob; opened by :meth:`open`."""

    def __init__(self, blob: mmap.mmap | bytes, offsets: Int64) -> None:
        self.blob, self.offsets = blob, offsets

    @classmethod
    def open(cls, folder: Path, name: str) -> TextColumn:
        """Map the column ``name`` of ``folder``."""
        return cls(*_map(folder, name))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.blob[self.offsets[row] : self.offsets[row + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), CHUNK):
            yield from self.take(np.arange(start, min(start + CHUNK, len(self))))

    def take(self, rows: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """The strings of these rows, in that order."""
        return [data.decode() for data in self.take_bytes(rows)]

    def take_bytes(self, rows: Sequence[int] | NDArray[np.integer]) -> list[bytes]:
        """The UTF-8 bytes of the strings of these rows, in that order."""
        index = np.asarray(rows, dtype=np.int64)
        blob, starts, ends = self.blob, self.offsets[index], self.offsets[index + 1]
        return [blob[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]

    def first_blank(self) -> int | None:
        """The row of the first string that holds white space (of ASCII); None: there is none."""
        found = BLANK.search(self.blob)
        return None if found is None else int(np.searchsorted(self.offsets, found.start(), "right")) - 1

    def words(self, rows: Int64, depth: int) -> UInt64:
        """Bytes ``depth`` to ``depth + 8`` of each string as one big-endian number, zero past its end."""
        bytes_ = np.frombuffer(self.blob, dtype=np.uint8)
        words = np.zeros(len(rows), np.uint64)
        for i in range(0, len(rows), CHUNK):
            part = slice(i, i + CHUNK)
            at = self.offsets[rows[part]] + depth
            end = self.offsets[rows[part] + 1]
            for _ in range(WORD):
                inside = at < end
                byte = np.zeros(len(at), np.uint64)
                byte[inside] = bytes_[at[inside]]
                words[part] = (words[part] << np.uint64(8)) | byte
                at = at + 1
        return words


def _map(folder: Path, name: str) -> tuple[mmap.mmap | bytes, Int64]:
    offsets = np.asarray(load_array(folder / f"{name}.offsets.npy"))
    with open(folder / f"{name}.utf8", "rb") as stream:
        if offsets[-1] == 0:  # an empty file cannot be mapped
            return b"", offsets
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), offsets


class TextColumnWriter:
    """A context manager that writes a column string by string; the column is complete when the block ends."""

    def __init__(self, draft: Draft, name: str) -> None:
        self.draft, self.name = draft, name
        self.lengths = array("q")
        self.stream = create(draft / f"{name}.utf8")

    def __enter__(self) -> TextColumnWriter:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stream.close()
        self.draft.array(f"{self.name}.offsets.npy", offsets_of(np.frombuffer(self.lengths, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, data: bytes) -> None:
        """Append one string, given as UTF-8."""
        self.stream.write(data)
        self.lengths.append(len(data))

    def append(self, joined: bytes, lengths: bytes) -> None:
        """Append strings, given as concatenated UTF-8, with their lengths as int64."""
        self.stream.write(joined)
        self.lengths.frombytes(lengths)


def rewrite(draft: Draft, name: str, rows: NDArray[np.integer]) -> None:
    """Rewrite a column so that it holds the strings at ``rows``, in that order."""
    column = TextColumn.open(draft.path, name)
    with TextColumnWriter(draft, f"{name}.new") as writer:
        for start in range(0, len(rows), COPIED):
            for data in column.take_bytes(rows[start : start + COPIED]):
                writer.add(data)
    for suffix in ("utf8", "offsets.npy"):
        rename(draft / f"{name}.new.{suffix}", draft / f"{name}.{suffix}")


# ---------------------------------------------------------------- ids


class IdColumn(TextColumn):
    """Ids by row, and rows by id; ``id_rank`` [n] is each id's rank in ascending order of UTF-8 bytes."""

    def __init__(
        self, blob: mmap.mmap | bytes, offsets: Int64, hashes: UInt64, owners: Int32, id_rank: Int32
    ) -> None:
        super().__init__(blob, offsets)
        self.hashes, self.owners, self.id_rank = hashes, owners, id_rank

    @classmethod
    def open(cls, folder: Path, name: str, table: str | None = None) -> IdColumn:
        """Map the id column ``name`` of ``folder`` and its ``table``, if that has another name."""
        parts = (
            np.asarray(load_array(folder / f"{table or name}.{part}.npy")) for part in ("hashes", "rows", "ranks")
        )
        return cls(*_map(folder, name), *parts)

    def rows(self, ids: Sequence[str]) -> Int32:
        """Row of each id [n], -1 where it is unknown."""
        wanted = [id_.encode(errors="surrogatepass") for id_ in ids]
        hashes = as_hashes(hash_each(wanted))
        found = np.full(len(wanted), -1, np.int32)
        place = np.searchsorted(self.hashes, hashes)
        pending = np.arange(len(wanted))
        while len(pending):  # a second round happens only if different ids have equal hashes
            within = pending[place[pending] < len(self.hashes)]
            pending = within[self.hashes[place[within]] == hashes[within]]
            candidates = self.owners[place[pending]]
            held = self.take_bytes(candidates)
            same = np.array(
                [wanted[i] == data for i, data in zip(pending.tolist(), held, strict=True)], dtype=bool
            )
            found[pending[same]] = candidates[same]
            pending = pending[~same]
            place[pending] += 1
        return found


def write_id_table(draft: Draft, name: str, table: str, hashes: UInt64) -> None:
    """Write the table by which the id column ``name`` finds rows, given the hashes [n] of its distinct ids."""
    order = np.argsort(hashes, kind="stable")
    ranks = byte_ranks(TextColumn.open(draft.path, name))
    draft.array(f"{table}.hashes.npy", hashes[order])
    draft.array(f"{table}.rows.npy", order.astype(np.int32))
    draft.array(f"{table}.ranks.npy", ranks)


def first_rows(column: TextColumn, hashes: UInt64) -> Int64:
    """For each row [n], the first row that holds the same string: the row itself if no earlier row does."""
    order = np.argsort(hashes, kind="stable")
    sorted_hashes = hashes[order]
    starts = np.flatnonzero(np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1]]) if len(order) else order
    ends = np.append(starts[1:], len(order))
    first = np.arange(len(order))
    for group in np.flatnonzero(ends - starts > 1):
        rows = order[starts[group] : ends[group]]
        seen: dict[bytes, int] = {}
        for row, data in zip(rows.tolist(), column.take_bytes(rows), strict=True):
            first[row] = seen.setdefault(data, row)
    return first


def byte_ranks(column: TextColumn) -> Int32:
    """Rank [n] of every string in ascending order of its UTF-8 bytes; equal strings share the lowest rank.

    Eight bytes are compared at a time, and only strings that still tie are compared further. Zero stands for
    the end of a string, so strings must not hold NUL.
    """
    ranks = np.zeros(len(column), np.int64)
    pending = np.arange(len(column), dtype=np.int64)
    longest = int(np.diff(column.offsets).max(initial=0))
    for depth in range(0, longest, WORD):
        words = column.words(pending, depth)
        order = np.lexsort((words, ranks[pending]))
        pending, words = pending[order], words[order]
        old = ranks[pending]
        starts = np.flatnonzero(np.r_[True, (old[1:] != old[:-1]) | (words[1:] != words[:-1])])
        sizes = np.diff(np.append(starts, len(pending)))
        ranks[pending] = old + np.repeat(starts, sizes) - np.searchsorted(old, old)
        pending = pending[np.repeat(sizes > 1, sizes)]
        if not len(pending):
            break
    return ranks.astype(np.int32)

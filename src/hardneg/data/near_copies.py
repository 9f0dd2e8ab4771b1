"""Texts that are nearly equal, found by MinHash: at least 80 % of their runs of four characters are shared.

Broder, "On the resemblance and containment of documents", 1997. Cost: about 100 microseconds a text of 500
characters, and 512 bytes. Of a text with more than 2,000 characters, 2,000 different runs are compared, those with
the smallest hashes (about 1.4 milliseconds for 10,000 characters). So a run is chosen for what it is and not for
where it stands: a passage in front moves no other, and a shared heading counts for no more than its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from hardneg.keyed_random import UInt64, hash64, key
from hardneg.records import Int64

WIDTH = 4  # characters of a run
# Hashes of a signature, and those of a band. With 16 bands, texts that are 80 % alike agree in a band in 99.98 %
# of cases, texts that are 50 % alike in 64 %.
HASHES, ROWS = 64, 4
LEAST = 0.8  # share of equal hashes from which on texts count as nearly equal
LONGEST = 2_000  # runs of a text that are compared
PIECE = 1 << 18  # characters of a text that are hashed together; bounds the memory for a very long one
BLOCK = 512  # texts hashed together
TRIED = 8  # texts of one key that each text is compared with
_ASCII = re.compile(r"\w+")
# re's \w lacks marks, such as the vowel signs of Hindi and Tamil and the tones of Thai.
_WORD = regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")


def words_in(text: str) -> list[str]:
    """The words of a text as they are written: runs of letters with their marks, digits and underscores."""
    return _ASCII.findall(text) if text.isascii() else _WORD.findall(text)


def plain(text: str) -> str:
    """A text without case, punctuation and extra blanks; texts that are equal in this form read the same."""
    return " ".join(words_in(unicodedata.normalize("NFKC", text).casefold()))


def signatures(texts: Sequence[str]) -> UInt64:
    """The MinHash signature [n, 64] of each text."""
    parts = [np.zeros((0, HASHES), np.uint64)]
    for start in range(0, len(texts), BLOCK):
        parts.append(_signatures(texts[start : start + BLOCK]))
    return np.concatenate(parts)


def _signatures(texts: Sequence[str]) -> UInt64:
    padded = [(_sample(text) if len(text) > LONGEST else plain(text)).ljust(WIDTH) for text in texts]
    steps = [WIDTH if len(text) > LONGEST else 1 for text in texts]
    characters = _characters("".join(padded))
    runs_at = [
        np.arange(first, first + len(text) - WIDTH + 1, step)
        for text, first, step in zip(padded, _firsts(padded), steps, strict=True)
    ]
    begins, at = np.cumsum([0, *map(len, runs_at)]), np.concatenate(runs_at)
    runs = hash64(key(0, "runs"), *(characters[at + i] for i in range(WIDTH)))
    odd = hash64(key(0, "minhash"), np.arange(HASHES)) | np.uint64(1)
    found = np.empty((len(texts), HASHES), np.uint64)
    with np.errstate(over="ignore"):
        for i in range(HASHES):
            mixed = runs * odd[i]
            found[:, i] = np.minimum.reduceat((mixed >> np.uint64(29)) ^ mixed, begins[:-1])
    return found


def _sample(text: str) -> str:
    """The different runs of a long text with the smallest hashes, one after the other."""
    hashes, runs = np.zeros(0, np.uint64), np.zeros((0, WIDTH), np.uint32)
    for start in range(0, len(text), PIECE):
        characters = _characters(plain(text[start : start + PIECE]).ljust(WIDTH))
        windows = np.lib.stride_tricks.sliding_window_view(characters, WIDTH)
        packed = np.zeros(len(windows), np.uint64)
        for i in range(WIDTH):
            packed ^= windows[:, i].astype(np.uint64) << np.uint64(16 * i)
        smallest, at = np.unique(hash64(key(0, "sample"), packed), return_index=True)
        hashes = np.concatenate([hashes, smallest[:LONGEST]])
        runs = np.concatenate([runs, windows[at[:LONGEST]]])
    order = np.unique(hashes, return_index=True)[1][:LONGEST]
    return runs[order].tobytes().decode("utf-32-le", "surrogatepass")


def _characters(text: str) -> NDArray[np.uint32]:
    """The numbers of a text's characters."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _firsts(texts: list[str]) -> list[int]:
    return np.cumsum([0, *map(len, texts)])[:-1].tolist()


def near(left: UInt64, right: UInt64, *, itself: bool = False) -> Int64:
    """For each signature of ``left`` [n], the index of a nearly equal one of ``right`` [m]; -1: there is none.

    ``itself``: both are the same list, and no text is a copy of itself.
    """
    found = np.full(len(left), -1, np.int64)
    if not len(right):
        return found
    for band in range(0, HASHES, ROWS):
        ours, theirs = (hash64(key(0, "band"), *side[:, band : band + ROWS].T) for side in (left, right))
        order = np.argsort(theirs, kind="stable")
        place = np.searchsorted(theirs, ours, sorter=order)
        for step in range(TRIED):
            open_ = np.flatnonzero((found < 0) & (place + step < len(order)))
            candidates = order[place[open_] + step]
            met = theirs[candidates] == ours[open_]
            if itself:
                met &= candidates != open_
            rows, candidates = open_[met], candidates[met]
            alike = _alike(left[rows], right[candidates])
            found[rows[alike]] = candidates[alike]
    return found


def _alike(left: UInt64, right: UInt64) -> NDArray[np.bool_]:
    return np.asarray((left == right).mean(axis=1) >= LEAST) if len(left) else np.zeros(0, bool)

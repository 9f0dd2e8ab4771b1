"""The runs of three words of texts, by which texts are compared; many texts' are held while there is room."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import regex

from hardneg.evaluation.matching import tokens_of
from hardneg.records import Int64, changes

Texts = Callable[[int], str]  # passage row -> its text

WORDS = 3  # words of a run
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー"  # no blanks between words
PARTS = regex.compile(rf"[{UNSPACED}--\p{{M}}]\p{{M}}*|[^{UNSPACED}]+|\p{{M}}+", regex.V1)
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd, by place
HELD = 1 << 25  # runs that are held, so that no text is read again: 256 MiB
FOR_A_TEXT = 20  # a held text takes as much as so many runs, besides its own
NOTHING = np.zeros(0, np.int64)


def words_of(text: str) -> list[str]:
    """The tokens of a text; in scripts without blanks between words its characters, with their marks."""
    tokens = tokens_of(text)
    return tokens if text.isascii() else [part for token in tokens for part in PARTS.findall(token)]


def runs_of(text: str) -> Int64:
    """The distinct runs of three words of a text, lower-cased, as numbers of 64 bits [n], each once.

    In scripts without blanks between words each character counts as a word. A text of fewer words is one run; an
    empty text has no run. Equal runs have equal numbers only in one process.
    """
    words = np.fromiter(map(hash, words_of(text)), np.int64).view(np.uint64)
    if not len(words):
        return NOTHING
    count = max(len(words) - WORDS + 1, 1)
    found = words[:count] * FACTORS[0]
    for place in range(1, min(len(words), WORDS)):
        found += words[place : place + count] * FACTORS[place]
    found.sort()
    return found[changes(found)].view(np.int64)


class KnownRuns:
    """The runs of the texts that were asked for, held while there is room.

    What is held stays: blocks ask for texts in the same order again and again, so the one that was not asked for
    the longest is the next.
    """

    def __init__(self, text_of: Texts) -> None:
        self.text_of, self.held, self.room = text_of, dict[int, Int64](), HELD

    def runs(self, row: int) -> Int64:
        """The runs [n] of a passage."""
        found = self.held.get(row)
        if found is None:
            found = runs_of(self.text_of(row))
            self.room -= len(found) + FOR_A_TEXT
            if self.room >= 0:
                self.held[row] = found
        return found

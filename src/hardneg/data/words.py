"""Tokenising by words: a piece of text between two blanks is tokenised once, and is looked up from then on.

WordPiece, with BERT's normaliser and a pre-tokenizer that splits words at blanks, looks at one character or one
word in every step. So the ids of a text are those of its pieces, one after the other, and a known piece costs only
a look-up. Other tokenizers are not used in this way. Song et al., "Fast WordPiece Tokenization", 2021.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hardneg.records import Int32, Int64, offsets_of, owners, take_spans

NORMALIZERS = {None, "BertNormalizer"}
PARTING = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}  # pre-tokenizers that part words at blanks
BLANK = " "
KNOWN = 1 << 18  # pieces kept at most, about 60 MiB


class Sequences(NamedTuple):
    """The concatenated token sequences of some texts [n]; a text has one or more of the S sequences."""

    ids: Int32  # [T]
    lengths: Int64  # [S]
    counts: Int64  # [n] sequences of each text
    cut: NDArray[np.bool_]  # [n] whether a text has more tokens than its sequences


def parts_at_blanks(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a text are those of the pieces between its blanks, one after the other."""
    said: dict[str, Any] = json.loads(tokenizer.to_str())
    kinds = {name: (said.get(name) or {}).get("type") for name in ("model", "normalizer", "pre_tokenizer")}
    added = [token["content"] for token in said.get("added_tokens", [])]
    whole = not any(character.isspace() for content in added for character in content)
    known = kinds["normalizer"] in NORMALIZERS and kinds["pre_tokenizer"] in PARTING
    return kinds["model"] == "WordPiece" and known and whole


class _Places(dict[str, int]):
    """Numbers strings in the order in which they are first asked for."""

    def __missing__(self, piece: str) -> int:
        place = self[piece] = len(self)
        return place


class WordTokenizer:
    """Tokenises texts piece by piece, and remembers the ids of every piece.

    Parameters
    ----------
    tokenizer : a tokenizer that :func:`parts_at_blanks` accepts, without truncation and padding.
    around : how many special tokens it puts before and after a text.
    """

    def __init__(self, tokenizer: Tokenizer, around: tuple[int, int]) -> None:
        self.tokenizer = tokenizer
        special = tokenizer.encode("").ids
        self.before = np.array(special[: around[0]], np.int32)
        self.after = np.array(special[around[0] :], np.int32)
        self.forget()

    def forget(self) -> None:
        """Forget all pieces that are known."""
        self.places = _Places()
        self.ids: Int32 = np.zeros(0, np.int32)  # of all known pieces, concatenated
        self.offsets: Int64 = np.zeros(1, np.int64)

    def sequences(self, texts: list[str], max_length: int, chunks: int) -> Sequences:
        """The sequences of texts, of at most ``max_length`` tokens and at most ``chunks`` for each text."""
        ids, lengths = self._whole(texts)
        room = max_length - len(self.before) - len(self.after)
        counts = np.clip(-(-lengths // room), 1, chunks)
        text = owners(offsets_of(counts))
        skipped = (np.arange(len(text)) - offsets_of(counts)[text]) * room  # tokens of the sequences before
        kept = np.minimum(lengths[text] - skipped, room)
        return Sequences(
            self._framed(ids, offsets_of(lengths)[text] + skipped, kept),
            kept + len(self.before) + len(self.after),
            counts,
            lengths > counts * room,
        )

    def _whole(self, texts: list[str]) -> tuple[Int32, Int64]:
        """The concatenated ids of texts without special tokens, and how many ids each text has [n]."""
        pieces = [text.split(BLANK) for text in texts]
        numbers = np.array([len(some) for some in pieces], np.int64)
        found = self._places([*chain.from_iterable(pieces)])
        index, offsets = take_spans(self.offsets, found)
        return self.ids[index], np.diff(offsets[offsets_of(numbers)])

    def _places(self, pieces: list[str]) -> Int64:
        """The place of each piece among the known ones; those that were not known are tokenised now."""
        if len(self.places) > KNOWN:
            self.forget()
        known = len(self.places)
        found = np.fromiter(map(self.places.__getitem__, pieces), np.int64, len(pieces))
        if new := [*islice(self.places, known, None)]:
            made = [one.ids for one in self.tokenizer.encode_batch_fast(new, add_special_tokens=False)]
            lengths = np.array([len(ids) for ids in made], np.int64)
            more = np.fromiter(chain.from_iterable(made), np.int32, lengths.sum())
            self.ids = np.concatenate([self.ids, more])
            self.offsets = np.concatenate([self.offsets, self.offsets[-1] + np.cumsum(lengths)])
        return found

    def _framed(self, ids: Int32, starts: Int64, kept: Int64) -> Int32:
        """The ``kept`` [S] tokens from each of ``starts`` [S], with the special tokens around them."""
        before, after = len(self.before), len(self.after)
        ends = np.cumsum(kept + before + after)
        begins = ends - kept - before - after
        framed = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        inside = offsets_of(kept)
        within = np.arange(inside[-1]) - np.repeat(inside[:-1], kept)
        framed[within + np.repeat(begins + before, kept)] = ids[within + np.repeat(starts, kept)]
        for i, special in enumerate(self.before):
            framed[begins + i] = special
        for i, special in enumerate(self.after):
            framed[ends - after + i] = special
        return framed

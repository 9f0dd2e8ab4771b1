"""Whether a passage contains an answer (Karpukhin et al., "Dense Passage Retrieval", 2020, released code).

A passage contains an answer if the answer's tokens occur one after the other in its text (without the title). Both
texts are NFD-normalised and lower-cased; a token is a run of letters, digits and marks, or any other character.
An answer without tokens is in no passage (the released code finds it in all). If a data set gives patterns as
answers, a pattern is searched in the normalised text instead, ignoring case.

``python -m hardneg.evaluation.matching`` runs one of several processes that share a large job.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal

import numpy as np
import regex
from numpy.typing import NDArray

from hardneg.data.collection import Collection
from hardneg.records import Int32

Mode = Literal["string", "regex"]
Bool = NDArray[np.bool_]

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
PLAIN = re.compile(r"[a-z0-9]+|[^\x00-\x20\x7f]")  # what TOKEN finds in lower-cased ASCII, in a third of the time
PATTERN_FLAGS = regex.IGNORECASE | regex.MULTILINE


def normalized(text: str) -> str:
    """The text in Unicode's decomposed form (NFD)."""
    return unicodedata.normalize("NFD", text)


def tokens_of(text: str) -> list[str]:
    """The tokens of a text, lower-cased."""
    if text.isascii():
        return PLAIN.findall(text.lower())
    return [token.lower() for token in TOKEN.findall(normalized(text))]


def spelled(tokens: Sequence[str]) -> str:
    """Join tokens with blanks, so that consecutive tokens become a substring; no token holds a blank."""
    return f" {' '.join(tokens)} "


def folded(text: str) -> str:
    """Lower-case a normalised text character by character, as sigma's lower case depends on its neighbours."""
    return text.lower().replace("ς", "σ")


class Passage:
    """The text of a passage in the forms that matching needs; a form is made when it is first used."""

    def __init__(self, text: str) -> None:
        self.text = normalized(text)

    @cached_property
    def folded(self) -> str:
        """The text, folded: every token of an answer that the passage contains is a substring of it."""
        return folded(self.text)

    @cached_property
    def spelled(self) -> str:
        """The tokens joined with blanks; making them costs more than a dozen searches in the text."""
        return spelled([token.lower() for token in TOKEN.findall(self.text)])


@dataclass(frozen=True)
class Tokens:
    """An answer given as a string."""

    pieces: tuple[str, ...]  # folded tokens, the longest first
    spelled: str

    def is_in(self, passage: Passage) -> bool:
        """Whether the passage contains the answer."""
        text = passage.folded
        for piece in self.pieces:
            if piece not in text:
                return False
        return self.spelled in passage.spelled


@dataclass(frozen=True)
class Pattern:
    """An answer given as a pattern."""

    pattern: regex.Pattern[str]

    def is_in(self, passage: Passage) -> bool:
        """Whether the passage contains the answer."""
        return self.pattern.search(passage.text) is not None


Answer = Tokens | Pattern


def read_answers(texts: Sequence[str], mode: Mode) -> list[Answer]:
    """Prepare the answers of a query for matching; those that can match no passage are left out.

    An answer without tokens and an invalid pattern match no passage.
    """
    found = [read_answer(text, mode) for text in texts]
    return [answer for answer in found if answer is not None]


def read_answer(text: str, mode: Mode) -> Answer | None:
    """Prepare one answer for matching; None if it can match no passage."""
    tokens = tokens_of(text)
    if not tokens:
        return None
    if mode == "regex":
        try:
            return Pattern(regex.compile(normalized(text), PATTERN_FLAGS))
        except regex.error:
            return None
    pieces = sorted({folded(token) for token in tokens}, key=len, reverse=True)
    return Tokens(tuple(pieces), spelled(tokens))


def contains(text: str, answers: Sequence[str], mode: Mode = "string") -> bool:
    """Whether a text contains one of the answers."""
    return is_any_in(read_answers(answers, mode), Passage(text))


def is_any_in(answers: Sequence[Answer], passage: Passage) -> bool:
    """Whether a passage contains one of the answers."""
    for answer in answers:  # noqa: SIM110 - a generator costs as much as the look itself
        if answer.is_in(passage):
            return True
    return False


def match_pairs(collection: Collection, query_rows: Int32, passage_rows: Int32, mode: Mode) -> Bool:
    """Whether each passage [n] contains an answer of its query [n]; each passage is read and tokenised once."""
    found = np.zeros(len(query_rows), bool)
    known: dict[int, list[Answer]] = {}
    order = np.argsort(passage_rows, kind="stable")
    ordered = passage_rows[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    for query in np.unique(query_rows).tolist():
        known[query] = read_answers(collection.answers(query), mode)
    for places in np.split(order, starts[1:]) if len(order) else []:
        passage = Passage(collection.texts[int(passage_rows[places[0]])])
        found[places] = [is_any_in(known[query], passage) for query in query_rows[places].tolist()]
    return found


# ---------------------------------------------------------------- in a process of its own


def request(path: Path, query_rows: Int32, passage_rows: Int32, mode: Mode) -> bytes:
    """The bytes that a matching process reads: a line that describes the job, then the rows of its pairs."""
    head = json.dumps({"path": str(path), "mode": mode, "pairs": len(query_rows)}).encode()
    return head + b"\n" + query_rows.astype(np.int32).tobytes() + passage_rows.astype(np.int32).tobytes()


def serve(stream: IO[bytes], out: IO[bytes]) -> None:
    """Read one :func:`request` from ``stream`` and write a byte for each of its pairs (1: match) to ``out``."""
    head = json.loads(stream.readline())
    queries, passages = np.frombuffer(stream.read(), np.int32).reshape(2, head["pairs"])
    out.write(match_pairs(Collection.open(head["path"]), queries, passages, head["mode"]).tobytes())


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)

"""The checks that every imported record must pass, in any format, and how a fault names the record's place."""

from __future__ import annotations

import logging
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg.data.formats.contexts import text_id
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord
from hardneg.data.text import UNSEEN
from hardneg.errors import InputError
from hardneg.records import Int32
from hardneg.shown import counted

log = logging.getLogger(__name__)

MAX_ROWS = 2**31 - 1
BY_BOUND = "judgements_by_bound"  # the count of an import
NAMED = 10  # number of unknown ids that a message lists
GRADE_LIMIT = 2**31
SPLIT_NAME = re.compile(r"\w[\w.-]*")

WITHOUT_UNSEEN = dict.fromkeys(map(ord, UNSEEN))
OnDuplicate = Literal["error", "first"]
Rows = Callable[[list[str]], Int32]  # of ids; -1 for an id that is unknown


@dataclass(frozen=True)
class Rules:
    """Which faulty records an import accepts, as the user chose."""

    allow_empty: bool = False
    allow_unjudged: bool = False
    on_duplicate: OnDuplicate = "error"


@dataclass(frozen=True)
class ImportPolicy:
    """Applies the rules of an import: raises a fault, or counts it under a name if the rules allow it."""

    rules: Rules
    counts: Counter[str] = field(default_factory=Counter)

    def empty(self, fault: InputError, kind: str) -> None:
        """Raise the fault of a record without text, or count it."""
        self._let(self.rules.allow_empty, fault, f"empty_{kind}_texts", 1)

    def duplicates(self, fault: InputError, kind: str, total: int) -> None:
        """Raise the fault of records whose id came before, or count all ``total`` of them."""
        self._let(self.rules.on_duplicate == "first", fault, f"{kind}_duplicates", total)

    def unknown(self, fault: InputError, total: int) -> None:
        """Raise the fault of judgements that name unknown ids, or count all ``total`` of them."""
        self._let(self.rules.allow_unjudged, fault, "unknown_judgements", total)

    def by_bound(self, judged_by: Mapping[str, int]) -> None:
        """Warn of judgements that the bound of a score made, and count them; they are read already."""
        if made := judged_by.get("bound", 0):
            self.counts[BY_BOUND] = made
            log.warning(bound_told(made, judged_by["all"]))

    def _let(self, allowed: bool, fault: InputError, name: str, total: int) -> None:
        if not allowed:
            raise fault
        self.counts[name] += total


def bound_told(made: int, judgements: int) -> str:
    """What to know of the judgements that the bound of a score made."""
    return (
        f"the bound 0.5 of a score between 0 and 1 made {made:,} of {counted(judgements, 'judgement')}; if the"
        " scores are a model's similarities, they are no grades: give whole grades, or negatives their own column"
    )


# ---------------------------------------------------------------- places


class SourceLines:
    """The file and line that each record came from, at eight bytes a record."""

    def __init__(self) -> None:
        self.lines = array("q")
        self.files: list[Path | None] = []
        self.starts: list[int] = []

    def add(self, path: Path | None, line: int | None) -> None:
        """Store the file and line of the next record."""
        if not self.files or path is not self.files[-1]:
            self.files.append(path)
            self.starts.append(len(self.lines))
        self.lines.append(-1 if line is None else line)

    def extend(self, paths: Sequence[Path | None], lines: Sequence[int | None]) -> None:
        """Store the files and lines of the next records."""
        if any(path is not paths[0] for path in paths) or None in lines:
            for path, line in zip(paths, lines, strict=True):
                self.add(path, line)
        else:
            self.add(paths[0], lines[0])
            self.lines.extend(lines[1:])  # type: ignore[arg-type]

    def run(self, path: Path, first: int, n: int) -> None:
        """Store the places of the next ``n`` records: consecutive lines of a file, from line ``first`` on."""
        self.add(path, first)
        self.lines.extend(range(first + 1, first + n))

    def of(self, row: int) -> tuple[Path | None, int | None]:
        """The file and line of a record; None where it has none."""
        file = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.files[file], None if self.lines[row] < 0 else self.lines[row]

    def duplicate(self, what: str, first: int, row: int, total: int) -> InputError:
        """The fault of a record whose id came before; the message names both places."""
        before, line = self.of(first)
        place = f"line {line} of {before.name}" if before and line else f"record {first + 1}"
        path, line = self.of(row)
        place += "" if line else f"; this is record {row + 1}"
        what = f"{what} is a duplicate of the one at {place} ({counted(total, 'duplicate')} in all)"
        fix = "remove one, or keep the first by hardneg import --on-duplicate first"
        return InputError("DUPLICATE_ID", what, fix, path=path, line=line)


def fault_of(record: Any, code: str, what: str, fix: str) -> InputError:
    """The fault of one record, at its place."""
    return InputError(code, what, fix, path=record.path, line=record.line)


# ---------------------------------------------------------------- passages and queries


def encoded(value: str, name: str, record: PassageRecord | QueryRecord) -> bytes:
    """Encode a field as UTF-8; raises a fault if it has a NUL or half of a surrogate pair."""
    if record.line is None and not name.endswith("id"):  # no line says which record it is
        name += f" of {record.id!r:.80}"
    try:
        data = value.encode()
    except UnicodeEncodeError as fault:
        what = f"the {name} holds a lone surrogate"
        raise fault_of(record, "BAD_UNICODE", what, "correct the text") from fault
    except AttributeError as fault:
        what = f"the {name} is {value!r:.60}, not a string"
        raise fault_of(record, "WRONG_TYPE", what, "correct it") from fault
    if b"\0" in data:
        raise fault_of(record, "NUL", f"the {name} holds a NUL", "remove it")
    return data


def encoded_id(record: PassageRecord | QueryRecord, kind: str) -> bytes:
    """Encode an id as UTF-8; raises a fault if it is blank."""
    data = encoded(record.id, f"{kind} id", record)
    if not data or record.id.isspace():
        raise fault_of(record, "EMPTY_ID", f"the {kind} id is empty", "give every record an id")
    return data


def is_blank(text: str) -> bool:
    """Whether a text is empty, or holds nothing but white space, U+200B and U+FEFF."""
    return not text.strip() or (text.strip()[0] in UNSEEN and not text.translate(WITHOUT_UNSEEN).strip())


def encoded_text(record: PassageRecord | QueryRecord, kind: str, policy: ImportPolicy) -> bytes:
    """Encode a text as UTF-8; raises a fault if it is blank and the rules do not allow that."""
    data = encoded(record.text, f"{kind} text", record)
    if is_blank(record.text):
        made = record.id == text_id(record.text)  # a hash, as of a pair's text, tells the user nothing
        what = f"the text of {f'a {kind}' if made else f'{kind} {record.id!r:.80}'} is empty"
        remove = "remove its row (hardneg import --check lists all such rows)" if made else "remove it"
        fix = f"{remove}, or keep empty texts by hardneg import --allow-empty"
        policy.empty(fault_of(record, "EMPTY_TEXT", what, fix), kind)
    return data


class PlainPassages(NamedTuple):
    """Passages in which nothing is wrong, as UTF-8."""

    ids: list[bytes]
    titles: list[bytes]
    texts: list[bytes]


def plain_passages(block: Sequence[PassageRecord]) -> PlainPassages | None:
    """The passages of a block; None if one of them must be examined by the functions above."""
    ids, titles, texts, _, _ = zip(*block, strict=True)
    try:
        found = PlainPassages(*([value.encode() for value in column] for column in (ids, titles, texts)))
    except (UnicodeEncodeError, AttributeError):
        return None
    blank = not all(found.ids) or not all(found.texts)
    if blank or any(map(str.isspace, ids)) or any(map(is_blank, texts)):
        return None
    return None if any(b"\0" in b"".join(column) for column in found) else found


def is_plain(block: PlainPassages) -> bool:
    """Whether nothing is wrong in a block of passages: no id and no text is blank."""
    if not all(block.ids) or not all(block.texts):
        return False
    # A blank string begins with a control character, a blank, or a byte beyond ASCII.
    return not any(
        is_blank(text.decode()) for texts in (block.ids, block.texts) for text in texts if not 32 < text[0] < 128
    )


def no_passage(format: str, inputs: Iterable[str]) -> InputError:
    """The fault of a source without passages; it says as what the files were read, for that may be the mistake."""
    files = [name for name in inputs if "." in name]  # lists in memory have no file
    what, fix = "the corpus has no passage", "give a corpus with a passage at least"
    if files:
        shown = ", ".join(files[:4]) + (", …" if len(files) > 4 else "")
        what, fix = f"{what}; {shown:.200} was read as {format}", f"{fix}, or name the format: FORMAT:PLACE"
    return InputError("EMPTY_CORPUS", what, fix)


def check_room(n: int, kind: str) -> None:
    """Refuse more records than 32-bit rows can number."""
    if n > MAX_ROWS:
        raise InputError("TOO_MANY", f"more than {MAX_ROWS:,} {kind}", "import a part of them")


# ---------------------------------------------------------------- judgements


def check_split(name: str) -> None:
    """Refuse the name of a split that cannot be a file's name."""
    if not SPLIT_NAME.fullmatch(name):
        raise InputError("BAD_SPLIT", f"a split is named {name!r:.60}", "use letters, digits, dots, - and _")


def grades_of(batch: list[JudgementRecord]) -> Int32:
    """The grades of a batch [n]; raises a fault if one does not fit 32 bits."""
    try:
        grades: NDArray[np.float64] = np.array([record.grade for record in batch], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        grades = np.array([_number(record.grade) for record in batch])
    good = (np.abs(grades) < GRADE_LIMIT) & (grades == np.floor(grades))
    if not good.all():
        record = batch[int(np.argmin(good))]
        what = f"the relevance {record.grade!r:.40} is no 32-bit integer"
        if record.line is None:
            what += f" (query {record.query_id!r:.80}, passage {record.passage_id!r:.80})"
        raise fault_of(record, "BAD_GRADE", what, "correct it")
    return grades.astype(np.int32)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


class Unknown:
    """Judgements that name unknown ids: the first few of them, and their number.

    Parameters
    ----------
    queries, passages : the rows of ids, -1 for those that are unknown.
    """

    def __init__(self, queries: Rows, passages: Rows) -> None:
        self.queries, self.passages = queries, passages
        self.total = 0
        self.named: list[str] = []
        self.otherwise = ""
        self.first: JudgementRecord | None = None

    def add(self, batch: list[JudgementRecord], query_rows: Int32, passage_rows: Int32) -> None:
        """Count the judgements of a batch whose query or passage row is -1."""
        unknown = np.flatnonzero((query_rows < 0) | (passage_rows < 0))
        self.total += len(unknown)
        for i in unknown[: NAMED - len(self.named)].tolist():
            record = batch[i]
            self.first = self.first or record
            query, passage = f"query {record.query_id!r:.80}", f"passage {record.passage_id!r:.80}"
            line = f", line {record.line}" if record.line else ""
            if not self.otherwise and query_rows[i] < 0:
                self.otherwise = known_otherwise("query", record.query_id, self.queries)
            if not self.otherwise and passage_rows[i] < 0:
                self.otherwise = known_otherwise("passage", record.passage_id, self.passages)
            self.named.append(f"{query if query_rows[i] < 0 else passage} ({record.split}{line})")

    def fault(self) -> InputError:
        """One fault that lists the first unknown ids and says how many judgements name one."""
        names = "name ids that are" if self.total > 1 else "names an id that is"
        what = f"{counted(self.total, 'judgement')} {names} not there: {', '.join(self.named)}"
        what += ", …" if self.total > len(self.named) else ""
        first = "write ids alike" if self.otherwise else "import the missing records too"
        what += f". {self.otherwise}" if self.otherwise else ""
        fix = f"{first}, or drop and count these by hardneg import --allow-unjudged"
        return fault_of(self.first, "UNKNOWN_ID", what, fix)


def known_otherwise(kind: str, unknown: str, rows: Rows) -> str:
    """A sentence if an unknown id is known in another form: of Unicode, with blanks, or as another number."""
    whole = unknown.removesuffix(".0")
    other = [unicodedata.normalize(form, unknown) for form in ("NFC", "NFD")]
    others = dict.fromkeys([*other, unknown.strip(), whole, whole.lstrip("0"), f"{unknown}.0"])
    written = [one for one in others if one not in ("", unknown)]
    found = [one for one, row in zip(written, rows(written).tolist(), strict=True) if row >= 0] if written else []
    if not found:
        return ""
    if found[0] in other:
        return f"The {kind} {unknown!r:.80} is there in another Unicode form (NFC, NFD): {found[0]!a:.80}"
    return f"There is the {kind} {found[0]!r:.80}"

"""Sources: what a format reads from a place, as streams of records that know their file and line."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from hardneg.arguments import described
from hardneg.data.languages import ENGLISH
from hardneg.errors import InputError
from hardneg.shown import counted
from hardneg.storage.artifacts import cached_digest, reading

log = logging.getLogger(__name__)


class PassageRecord(NamedTuple):
    """One passage; ``title`` may be empty."""

    id: str
    title: str
    text: str
    path: Path | None = None
    line: int | None = None


@dataclass(frozen=True)
class PassageLines:
    """Passages on consecutive lines of JSON, not yet read.

    Parameters
    ----------
    line : the number of the first line.
    data : the lines, as UTF-8 if nothing is wrong, without the last line break.
    fields : the names of the fields of id, title and text, each with the string to use where the field is missing;
        None: it must be there.
    records : a function that reads the passages one by one.
    ignored : the counter of the other fields.
    """

    path: Path
    line: int
    data: bytes
    fields: Mapping[str, bytes | None]
    records: Callable[[], Iterator[PassageRecord]]
    ignored: Counter[str]


PassagePart = PassageLines | Iterator[PassageRecord]


class QueryRecord(NamedTuple):
    """One query, with its text and answers.

    ``split`` names a split that the query is in, whether or not it has judgements there; "": the judgements
    decide. A query of several splits is yielded once for each, with the same text and answers.
    """

    id: str
    text: str
    split: str = ""
    answers: Sequence[str] = ()
    path: Path | None = None
    line: int | None = None


class JudgementRecord(NamedTuple):
    """One judgement: the grade of a passage for a query, in a split."""

    split: str
    query_id: str
    passage_id: str
    grade: int
    path: Path | None = None
    line: int | None = None


class GivenRecord(NamedTuple):
    """The negatives that a source gives for a query, as texts, with its positives.

    The lists of a teacher's scores, of the positives and of the negatives, are empty if the source has no scores.
    """

    split: str
    query_id: str
    query: str
    positives: Sequence[str]
    negatives: Sequence[str]
    positive_scores: Sequence[float] = ()
    negative_scores: Sequence[float] = ()
    path: Path | None = None
    line: int | None = None


@dataclass(frozen=True)
class Source:
    """A collection in some format, read as three streams; each call starts a stream from its beginning.

    Parameters
    ----------
    format : name of the format.
    passages, queries, judgements : functions that yield records in source order.
    inputs : digests of what the streams read, by name; equal inputs mean an equal collection.
    ignored : number of times that each unused field was seen, counted while streaming.
    negatives : a function that yields the negatives that the source gives for queries; None: this format has none.
    language : of the passages; it decides how BM25 makes terms of them.
    corpus_alone : whether there may be no queries, so that the collection can be encoded and searched only.
    parts : a function that yields the passages in blocks, for formats where this is faster; None: it is not.
    judged_by : number of judgements (``all``), and of those of them that the bound of a score made (``bound``),
        counted while streaming; empty for formats without such a bound.
    """

    format: str
    passages: Callable[[], Iterator[PassageRecord]]
    queries: Callable[[], Iterator[QueryRecord]]
    judgements: Callable[[], Iterator[JudgementRecord]]
    inputs: Mapping[str, str]
    ignored: Counter[str] = field(default_factory=Counter)
    negatives: Callable[[], Iterator[GivenRecord]] | None = None
    corpus_alone: bool = False
    language: str = ENGLISH
    parts: Callable[[], Iterator[PassagePart]] | None = None
    judged_by: Counter[str] = field(default_factory=Counter)

    def passage_parts(self) -> Iterator[PassagePart]:
        """All passages in source order, in blocks or one by one, whichever is faster."""
        return iter([self.passages()]) if self.parts is None else self.parts()


def file_digests(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file, by its path relative to ``folder``."""
    digests = {}
    for file in files:
        with reading(file):
            digests[Path(os.path.relpath(file, folder)).as_posix()] = cached_digest(file)
    return digests


def not_loaded(name: str, fault: Exception) -> InputError:
    """The fault of a data set that another package failed to load."""
    what = " ".join(f"{type(fault).__name__}: {fault}".split())
    return InputError("NOT_LOADED", f"{name} cannot be loaded ({what:.300})", "check its name and the network")


# Ids may be integers. Type checkers do not take keys of ``str`` for keys of ``str | int``, so both stand here.
PassageLike = Mapping[str, str] | Mapping[str, str | int] | Sequence[str | int]
QueryLike = PassageLike
TextById = Mapping[str, str] | Mapping[int, str]
GradesOfQuery = Mapping[str, int] | Mapping[int, int] | Sequence[str] | Sequence[int]
Judged = Mapping[str, Mapping[str, GradesOfQuery] | Mapping[int, GradesOfQuery]]
AnswersById = Mapping[str, Sequence[str]] | Mapping[int, Sequence[str]]
PASSAGE_FORM = "(id, text), (id, title, text) or a mapping with id, text and maybe title"
QRELS_FORM = "give {split: {query id: [passage ids]}} or {split: {query id: {passage id: grade}}}"


def source_from_lists(
    passages: TextById | Iterable[PassageLike],
    queries: TextById | Iterable[QueryLike],
    qrels: Judged,
    answers: AnswersById,
) -> Source:
    """A source over lists in memory (see :meth:`hardneg.data.collection.Collection.from_lists`).

    Raises
    ------
    InputError : a list has another shape; the message names the first item that is wrong.
    """
    told = [passage_record(passage) for passage in items_of(passages, "passages", PASSAGE_FORM)]
    pairs = [query_pair(query) for query in items_of(queries, "queries", "text by id, or (id, text) pairs")]
    graded, answered = judged_by_texts(qrels), by_texts(answers)
    check_qrels(graded)
    check_given_answers(answered)
    asked = {query_id for query_id, _ in pairs}
    if lost := [query_id for query_id in answered if query_id not in asked]:
        line = "answers are given for %s without a text, such as %r; they are left out"
        log.warning(line, counted(len(lost), "query"), lost[0])

    def query_records() -> Iterator[QueryRecord]:
        for query_id, text in pairs:
            for split in [split for split, judged in graded.items() if query_id in judged] or [""]:
                yield QueryRecord(query_id, text, split, answered.get(query_id, ()))

    streams = (lambda: iter(told), query_records, lambda: judgement_records(graded))
    return Source("lists", *streams, {"lists": digest_streams(streams)})


def id_given(value: Any) -> Any:
    """An id as it is given; an integer, as tables of pandas have them, is read as its digits."""
    return str(int(value)) if isinstance(value, Integral) and not isinstance(value, bool) else value


def by_texts(found: Any) -> Any:
    """A mapping with its keys as texts; what is no mapping, or would lose a key by that, stays as it is."""
    if not isinstance(found, Mapping):
        return found
    renamed = {id_given(key): value for key, value in found.items()}
    return renamed if len(renamed) == len(found) else found


def judged_by_texts(qrels: Any) -> Any:
    """Judgements with all ids as texts, where they are of the right shape."""

    def of_query(graded: Any) -> Any:
        if isinstance(graded, Set) and not isinstance(graded, Mapping):
            return {*map(id_given, graded)}
        listed = isinstance(graded, Sequence) and not isinstance(graded, str | bytes)
        return [*map(id_given, graded)] if listed else by_texts(graded)

    def of_split(judged: Any) -> Any:
        named = by_texts(judged)
        return {one: of_query(graded) for one, graded in named.items()} if isinstance(named, Mapping) else judged

    return {split: of_split(judged) for split, judged in qrels.items()} if isinstance(qrels, Mapping) else qrels


RECORDS = {"to_dicts": "polars' to_dicts()", "to_dict": "pandas' to_dict('records')"}  # of tables


def items_of(given: Any, name: str, form: str) -> list[Any]:
    """The items of a list; a mapping gives its (key, value) pairs."""
    if isinstance(given, Mapping):
        return list(given.items())
    if hasattr(given, "columns") and (change := next((c for c in RECORDS if hasattr(given, c)), None)):
        fix = f"give its records: {RECORDS[change]}"
        raise InputError("WRONG_TYPE", f"{name} are given as a {type(given).__name__}", fix)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError("WRONG_TYPE", f"{name} are given as {described(given)}", f"give a list of {form}")
    return list(given)


def judgement_records(qrels: Any) -> Iterator[JudgementRecord]:
    """Judgements given by split and query id, as {passage id: grade} or a list of passage ids (grade 1)."""
    for split, judged in qrels.items():
        for query_id, graded in judged.items():
            # The order of a set differs from process to process; that of positives counts.
            listed = sorted(graded) if isinstance(graded, Set) else graded
            grades = graded if isinstance(graded, Mapping) else dict.fromkeys(listed, 1)
            for passage_id, grade in grades.items():
                yield JudgementRecord(split, query_id, passage_id, grade)


def check_qrels(qrels: Any) -> None:
    """Refuse judgements that are not given by split, query and passage."""
    if not isinstance(qrels, Mapping):
        raise InputError("WRONG_TYPE", f"qrels are given as {described(qrels)}", QRELS_FORM)
    for split, judged in qrels.items():
        if not isinstance(split, str) or not isinstance(judged, Mapping):
            what = f"the qrels of {split!r:.60} are {described(judged)}, not judgements by query id"
            raise InputError("WRONG_TYPE", what, QRELS_FORM)
        for query_id, graded in judged.items():
            if not isinstance(query_id, str) or not is_graded(graded):
                what = f"the judgements of query {query_id!r:.60} of split '{split:.60}' are {described(graded)}"
                raise InputError("WRONG_TYPE", what, QRELS_FORM)


def is_graded(graded: Any) -> bool:
    """Whether ``graded`` is a list of passage ids, or grades by passage id; ranges of grades are checked later."""
    if isinstance(graded, str | bytes) or not isinstance(graded, Mapping | Sequence | Set):
        return False
    return all(isinstance(passage_id, str) for passage_id in graded)


def check_given_answers(answers: Any) -> None:
    """Refuse answers that are no lists of strings by query id."""
    fix = "give {query id: [answers]}"
    if not isinstance(answers, Mapping):
        raise InputError("WRONG_TYPE", f"answers are given as {described(answers)}", fix)
    for query_id, texts in answers.items():
        listed = isinstance(texts, Sequence) and not isinstance(texts, str | bytes)
        if not listed or not all(isinstance(text, str) for text in texts):
            raise InputError("WRONG_TYPE", f"the answers of {query_id!r:.60} are {described(texts)}", fix)


def passage_record(passage: PassageLike) -> PassageRecord:
    """A passage given as (id, text), (id, title, text) or a mapping with ``id`` (or ``_id``) and ``text``."""
    parts: Sequence[Any] = ()
    if isinstance(passage, Mapping):
        parts = fields_of(passage, "BAD_PASSAGE", "passage")
        parts = (parts[0], untold(passage.get("title")), parts[1])
    elif isinstance(passage, Sequence) and not isinstance(passage, str | bytes) and len(passage) in (2, 3):
        parts = (passage[0], untold(passage[1]) if len(passage) == 3 else "", passage[-1])
    if not parts:
        raise InputError("BAD_PASSAGE", f"a passage is given as {described(passage)}", f"give {PASSAGE_FORM}")
    return PassageRecord(id_given(parts[0]), *parts[1:])


def untold(title: Any) -> Any:
    """A title; "" for None, and for NaN and NA, which stand for none in a table of pandas."""
    absent = title is None or type(title).__name__ == "NAType" or (isinstance(title, float) and math.isnan(title))
    return "" if absent else title


def fields_of(record: Mapping[str, Any], code: str, kind: str) -> tuple[Any, Any]:
    """The id and the text of a mapping; raises :class:`InputError` if it has no such field."""
    for names in (("id", "_id"), ("text",)):
        if not any(name in record for name in names):
            there = ", ".join(map(str, record)) or "none"
            what = f"a {kind} is given without '{names[0]}'; its fields are {there:.80}"
            raise InputError(code, what, "name its fields id and text")
    return record["id"] if "id" in record else record["_id"], record["text"]


def query_pair(query: QueryLike) -> tuple[str, str]:
    """Id and text of a query given as (id, text) or as a mapping with ``id`` (or ``_id``) and ``text``."""
    parts: Sequence[Any] = ()
    if isinstance(query, Mapping):
        parts = fields_of(query, "BAD_QUERY", "query")
    elif isinstance(query, Sequence) and not isinstance(query, str | bytes) and len(query) == 2:
        parts = tuple(query)
    parts = (id_given(parts[0]), *parts[1:]) if parts else ()
    if not parts or not isinstance(parts[0], str):
        what = f"a query is given as {described(query)}"
        raise InputError("BAD_QUERY", what, "give text by id, (id, text), or a mapping with id and text")
    return parts[0], parts[1]


def digest_streams(streams: Iterable[Callable[[], Iterator[Any]]]) -> str:
    """The SHA-256 of all records that these streams yield."""
    digest = hashlib.sha256()
    for stream in streams:
        for record in stream():
            digest.update(repr(record[:-2]).encode(errors="surrogatepass") + b"\n")
        digest.update(b"\n")
    return digest.hexdigest()

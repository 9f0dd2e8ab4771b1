"""What a format yields: streams of records that still know the file and line they came from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hardneg.errors import InputError
from hardneg.storage.artifacts import cached_digest, reading


class PassageRecord(NamedTuple):
    """One passage; ``title`` may be empty."""

    id: str
    title: str
    text: str
    path: Path | None = None
    line: int | None = None


class QueryRecord(NamedTuple):
    """One query.

    ``split`` puts it into a split whether or not it has judgements; "" leaves that to the judgements. A query
    of several splits is yielded once for each, with the same text and answers.
    """

    id: str
    text: str
    split: str = ""
    answers: Sequence[str] = ()
    path: Path | None = None
    line: int | None = None


class JudgementRecord(NamedTuple):
    """One judged pair of a split."""

    split: str
    query_id: str
    passage_id: str
    grade: int
    path: Path | None = None
    line: int | None = None


@dataclass(frozen=True)
class Source:
    """A collection in some convention, read as three streams; each call starts a stream from its beginning.

    Parameters
    ----------
    format : name of the convention.
    passages, queries, judgements : functions that yield records in source order.
    inputs : digests of what the streams read, by name; equal inputs mean an equal collection.
    ignored : fields that were seen and not used, counted while streaming.
    """

    format: str
    passages: Callable[[], Iterator[PassageRecord]]
    queries: Callable[[], Iterator[QueryRecord]]
    judgements: Callable[[], Iterator[JudgementRecord]]
    inputs: Mapping[str, str]
    ignored: Counter[str] = field(default_factory=Counter)


def file_digests(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file by its name within ``folder``."""
    digests = {}
    for file in files:
        with reading(file):
            digests[file.relative_to(folder).as_posix()] = cached_digest(file)
    return digests


def not_loaded(name: str, fault: Exception) -> InputError:
    """The fault of data that another package fetches, and could not."""
    what = " ".join(f"{type(fault).__name__}: {fault}".split())
    return InputError("NOT_LOADED", f"{name} cannot be loaded ({what:.300})", "check its name and the network")


PassageLike = Mapping[str, str] | Sequence[str]
Judged = Mapping[str, Mapping[str, Mapping[str, int] | Sequence[str]]]


def source_from_lists(
    passages: Sequence[PassageLike],
    queries: Mapping[str, str] | Sequence[tuple[str, str]],
    qrels: Judged,
    answers: Mapping[str, Sequence[str]],
) -> Source:
    """A source over lists in memory (see :meth:`hardneg.data.collection.Collection.from_lists`)."""
    pairs = list(queries.items()) if isinstance(queries, Mapping) else list(queries)

    def query_records() -> Iterator[QueryRecord]:
        for query_id, text in pairs:
            for split in [split for split, judged in qrels.items() if query_id in judged] or [""]:
                yield QueryRecord(query_id, text, split, answers.get(query_id, ()))

    streams = (lambda: map(passage_record, passages), query_records, lambda: judgement_records(qrels))
    return Source("lists", *streams, {"lists": _digest_streams(streams)})


def judgement_records(qrels: Judged) -> Iterator[JudgementRecord]:
    """Judgements given by split and query id, as {passage id: grade} or a list of passage ids (grade 1)."""
    for split, judged in qrels.items():
        for query_id, graded in judged.items():
            grades = graded if isinstance(graded, Mapping) else dict.fromkeys(graded, 1)
            for passage_id, grade in grades.items():
                yield JudgementRecord(split, query_id, passage_id, grade)


def passage_record(passage: PassageLike) -> PassageRecord:
    """A passage given as (id, text), (id, title, text) or a mapping with ``id`` (or ``_id``) and ``text``."""
    if isinstance(passage, Mapping):
        passage_id = passage.get("id", passage.get("_id", ""))
        return PassageRecord(passage_id, passage.get("title", ""), passage.get("text", ""))
    if isinstance(passage, str) or len(passage) not in (2, 3):
        raise InputError(
            "BAD_PASSAGE", f"a passage is given as {passage!r:.80}", "give (id, text) or (id, title, text)"
        )
    return PassageRecord(passage[0], passage[1] if len(passage) == 3 else "", passage[-1])


def _digest_streams(streams: Iterable[Callable[[], Iterator[Any]]]) -> str:
    digest = hashlib.sha256()
    for stream in streams:
        for record in stream():
            digest.update(repr(record[:-2]).encode(errors="surrogatepass") + b"\n")
        digest.update(b"\n")
    return digest.hexdigest()

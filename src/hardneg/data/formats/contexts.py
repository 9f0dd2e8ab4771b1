"""Passages inside the records of queries, as DPR and Tevatron write them: with their texts, or by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from hardneg.data.formats.arrays import read_records
from hardneg.data.formats.faults import unread
from hardneg.data.formats.lines import Fields, id_of, ids_of, text_of, texts_of
from hardneg.data.record_source import PassageRecord
from hardneg.errors import InputError

IDS = ("docid", "passage_id", "psg_id", "doc_id", "_id", "id")  # what the id of a passage is called
QUERY_IDS = ("query_id", "qid", "id")
ANSWERS = ("answers", "answer")

Records = tuple[Path, Iterable[tuple[int, Fields]]]  # a file, and (line, fields) of each of its records


class Place(NamedTuple):
    """The file and line of a record."""

    path: Path
    line: int


class Context(NamedTuple):
    """A passage in a record; ``text`` is None where only its id is given."""

    id: str
    title: str = ""
    text: str | None = None


def contexts_of(fields: Fields, name: str, place: Place) -> list[Context]:
    """The passages in the field ``name``; none if it is missing or null.

    A passage without an id gets one from its title and text.
    """
    value = fields.get(name)
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [_context(item, place) for item in value]
    return [Context(id_) for id_ in ids_of(fields, name, *place)]


def positives_of(fields: Fields, names: Sequence[str], place: Place) -> list[str]:
    """The distinct ids of the passages in the fields ``names``, in their order."""
    return list(dict.fromkeys(context.id for name in names for context in contexts_of(fields, name, place)))


def _context(item: Fields, place: Place) -> Context:
    name = next((name for name in IDS if item.get(name) is not None), None)
    title = text_of(item, "title", *place, "")
    text = None if name and "text" not in item else text_of(item, "text", *place)
    return Context(id_of(item, name, *place) if name else text_id(text or "", title), title, text)


def text_id(text: str, title: str = "") -> str:
    """The id of a passage or query that has none: 16 hexadecimal digits, a hash of its title and text as they are.

    Texts that differ in white space or Unicode form have several ids, so that ids stay what they were. They count
    as the same text nevertheless (:func:`~hardneg.data.text.canonical`).
    """
    return _digest(title, text).hex()


def _digest(title: str, text: str) -> bytes:
    return blake2b(f"{title}\0{text}".encode(errors="surrogatepass"), digest_size=8).digest()


def read_files(paths: Iterable[Path]) -> list[Records]:
    """The records of each file; a file is read when its records are iterated over."""
    return [(path, read_records(path)) for path in paths]


def inline_passages(files: Iterable[Records], names: Sequence[str]) -> Iterator[PassageRecord]:
    """Each passage in the fields ``names`` of all records, once, in order of appearance.

    If an id appears with a second text, that one is yielded too, so that the import can refuse it.
    """
    seen: dict[str, bytes] = {}
    for path, records in files:
        for line, fields in records:
            for name in names:
                for context in contexts_of(fields, name, Place(path, line)):
                    text = given_text(context, name, Place(path, line))
                    digest = _digest(context.title, text)
                    if seen.get(context.id) != digest:
                        seen.setdefault(context.id, digest)
                        yield PassageRecord(context.id, context.title, text, path, line)


def given_text(context: Context, name: str, place: Place) -> str:
    """The text of a passage; raises :class:`InputError` if the record gives only its id."""
    if context.text is None:
        what = f"{name!r} names passage {context.id!r:.80} by its id, but no corpus is here"
        return unread(
            InputError("NO_CORPUS", what, "add the corpus to the folder", path=place.path, line=place.line)
        )
    return context.text


def query_id_of(fields: Fields, place: Place, default: str | None) -> str:
    """The id of a record's query, or ``default`` if it has none; with neither, raises :class:`InputError`."""
    for name in QUERY_IDS:
        if fields.get(name) is not None:
            return id_of(fields, name, *place)
    return id_of(fields, QUERY_IDS[0], *place) if default is None else default


def answers_of(fields: Fields, place: Place) -> list[str]:
    """The answers of a record's query, which are written as a list or as one string."""
    name = next((name for name in ANSWERS if name in fields), ANSWERS[0])
    value = fields.get(name)
    return [value] if isinstance(value, str) else texts_of(fields, name, *place)

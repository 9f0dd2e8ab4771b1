"""Lists of negatives that other tools made: a record for each query, with passage ids or token ids.

Files may end in ``.gz``.

By ids: Tevatron's records (``query_id``, and ``negative_passages`` with ``docid``, or ``negative_document_ids``)
and DPR's (``qid``, ``negative_ctxs`` and ``hard_negative_ctxs`` with ``passage_id``). As token ids: ANCE-Tele's
``split*.hn.json`` (``query``, ``positives``, ``negatives``, optionally ``qid``); the lists have no special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hardneg.data.formats.arrays import read_records
from hardneg.data.formats.contexts import Place, contexts_of, query_id_of
from hardneg.data.formats.lines import Fields, id_of
from hardneg.errors import InputError

BY_ID = ("negative_passages", "negative_document_ids", "negative_ctxs", "hard_negative_ctxs")
TOKENS = "negatives"
NAME = "split*.hn.json*"


class IdList(NamedTuple):
    """The negatives of a query as passage ids."""

    query_id: str
    negatives: list[str]
    path: Path
    line: int


class TokenList(NamedTuple):
    """The negatives of a query as token ids; ``query_id`` is None if the record has only the query's tokens."""

    query_id: str | None
    query: list[int]
    negatives: list[list[int]]
    path: Path
    line: int


def list_files(place: Path) -> list[Path]:
    """The files of lists at ``place``: the file itself, or a folder's ``split*.hn.json``."""
    if place.is_file():
        return [place]
    found = sorted(place.glob(NAME))
    if not found:
        raise InputError(
            "NOT_FOUND", f"no {NAME.rstrip('*')} here", "give a run, a pool or such files", path=place
        )
    return found


def holds_tokens(path: Path) -> bool:
    """Whether the records of a file are lists of token ids."""
    _, fields = next(read_records(path), (1, {}))
    lists = fields.get(TOKENS)
    return TOKENS in fields and not (
        isinstance(lists, str) or (isinstance(lists, list) and any(isinstance(item, str) for item in lists))
    )


def asks_in_tokens(path: Path) -> bool:
    """Whether the first query of a file is a list, as of token ids, and no text."""
    _, fields = next(read_records(path), (1, {}))
    return isinstance(fields.get("query"), list)


def read_id_lists(paths: Iterable[Path]) -> Iterator[IdList]:
    """Read lists of negatives that are passage ids."""
    for path in paths:
        for line, fields in read_records(path):
            place = Place(path, line)
            names = [name for name in BY_ID if name in fields]
            if not names:
                what, fix = "the record has no field of negatives", f"give one of {', '.join(BY_ID)}"
                raise InputError("MISSING_FIELD", what, fix, path=path, line=line)
            negatives = [context.id for name in names for context in contexts_of(fields, name, place)]
            yield IdList(query_id_of(fields, place, None), negatives, path, line)


def read_token_lists(paths: Iterable[Path]) -> Iterator[TokenList]:
    """Read lists of negatives that are token ids."""
    for path in paths:
        for line, fields in read_records(path):
            query_id = None if fields.get("qid") is None else id_of(fields, "qid", path, line)
            [query] = _lists(fields, "query", [fields.get("query")], path, line)
            negatives = _lists(fields, TOKENS, fields.get(TOKENS), path, line)
            yield TokenList(query_id, query, negatives, path, line)


def _lists(fields: Fields, name: str, value: object, path: Path, line: int) -> list[list[int]]:
    """Check that a field holds lists of token ids: whole numbers, none below 0."""
    if isinstance(value, list) and all(map(_is_sequence, value)):
        return value
    what = f"the field {name!r} is {json.dumps(fields.get(name))[:60]}, not made of token ids"
    raise InputError("WRONG_TYPE", what, "write lists of whole numbers", path=path, line=line)


def _is_sequence(value: object) -> bool:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        return False
    return min(value, default=0) >= 0 and max(value, default=0) < 1 << 31

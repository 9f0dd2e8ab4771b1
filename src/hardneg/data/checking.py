"""Reads a whole source without writing it, and reports all of its faults, with their counts.

An import stops at the first fault. A check continues after a faulty record. Where a reader cannot continue, as
after a broken gzip file, the check skips the remainder of that stream. Memory: 16 to 48 bytes a record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.arguments import checked
from hardneg.data.building import BATCH
from hardneg.data.checks import (
    ImportPolicy,
    OnDuplicate,
    Rules,
    SourceLines,
    Unknown,
    check_split,
    encoded,
    encoded_id,
    encoded_text,
    grades_of,
    no_passage,
)
from hardneg.data.formats.faults import Unread, collecting
from hardneg.data.importing import find_source
from hardneg.data.languages import language_named
from hardneg.data.record_source import JudgementRecord, PassageRecord, QueryRecord, Source
from hardneg.data.text import BLANK, as_hashes, hash_bytes, hash_strings
from hardneg.errors import InputError
from hardneg.keyed_random import UInt64
from hardneg.process.progress import counted
from hardneg.records import Int64

log = logging.getLogger(__name__)

SHOWN = 5  # line numbers that are named for each kind of fault
REMEMBERED = 1_000_000  # faults that are remembered, so that a line that several streams read counts once


@dataclass
class Kind:
    """Faults of one code in one file: the first of them, their number, and the first few lines."""

    first: InputError
    count: int = 0
    lines: list[int] = field(default_factory=list)
    whole: bool = True  # nothing was added after the first

    def told(self) -> InputError:
        """One fault that stands for all of this kind.

        A fault that was added alone is returned as it is, for its message says how many records it stands for.
        """
        fault = self.first
        if self.whole:
            return fault
        named = ", ".join(map(str, sorted(self.lines)))
        named += ", …" if len(self.lines) == SHOWN and self.count > SHOWN else ""
        word = "line" if named.isdigit() else "lines"
        more = f"{self.count:,} such errors" + (f", {word} {named}" if self.lines else "")
        what = f"{fault.what} ({more})"
        return InputError(fault.code, what, fault.fix, path=fault.path, line=fault.line)


@dataclass
class Findings:
    """All faults found so far, by file, code, and whether a query's text is empty."""

    kinds: dict[tuple[str, str, bool], Kind] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def add(self, fault: InputError, count: int = 1) -> None:
        """Count a fault, unless another stream met it on the same line."""
        told = hash((fault.code, str(fault.path), fault.line, fault.what))
        if told in self.seen:
            return
        if len(self.seen) < REMEMBERED:
            self.seen.add(told)
        of_query = fault.code == "EMPTY_TEXT" and fault.what.startswith(
            ("the text of a query", "the text of query")
        )
        key = (str(fault.path), fault.code, of_query)
        if fault.code == "EMPTY_FILE" and any(known[0] == key[0] for known in self.kinds):
            return  # its records are faulty, so none was left
        kind = self.kinds.setdefault(key, Kind(fault))
        if kind.count:
            kind.whole = False
            if (fault.line or 0) < (kind.first.line or 0):  # several streams read one file
                kind.first = fault
        kind.count += count
        if fault.line is not None and fault.line not in kind.lines and len(kind.lines) < SHOWN:
            kind.lines.append(fault.line)

    def told(self) -> list[InputError]:
        """One fault for each file and code; faults of the same file are in the order of their first lines."""
        files = {path: place for place, path in enumerate(dict.fromkeys(key[0] for key in self.kinds))}
        order = sorted(self.kinds, key=lambda key: (files[key[0]], self.kinds[key].first.line or 0))
        return [self.kinds[key].told() for key in order]


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes
    ----------
    passages, queries : how many were read, faulty ones not counted.
    judgements : how many were read whose query and passage count.
    splits : such judgements, and queries with them, of each split.
    faults : one for each file and code; its message says how many there are.
    counted : how many faults of each kind the rules accept, by name, and ids with a blank.
    whole : whether all streams were read to their end.
    """

    format: str
    passages: int
    queries: int
    judgements: int
    splits: dict[str, dict[str, int]]
    faults: Sequence[InputError]
    total: int
    counted: dict[str, int]
    whole: bool

    def as_json(self) -> dict[str, Any]:
        """The findings as a JSON record, in which each fault is its message of one line."""
        facts = {name: getattr(self, name) for name in ("format", "passages", "queries", "judgements", "splits")}
        counts = {"kinds_of_faults": len(self.faults), "faults": self.total, "read_to_the_end": self.whole}
        return {**facts, **counts, **self.counted, "lines": [str(fault) for fault in self.faults]}


@checked
def check_import(
    source: str | Path | Source,
    *,
    format: str = "auto",
    allow_empty: bool = False,
    allow_unjudged: bool = False,
    on_duplicate: OnDuplicate = "error",
    language: str | None = None,
) -> Checked:
    """Read a collection of any format, write nothing, and report all faults that an import would stop at.

    Parameters
    ----------
    source, format, allow_empty, allow_unjudged, on_duplicate, language : as of :func:`import_collection`.

    Raises
    ------
    InputError : the place does not exist, or its format is not recognised.
    SettingsError : there is no such language or format.
    """
    if language is not None:
        language_named(language)
    if not isinstance(source, Source):
        source = find_source(str(source), format)
    check = _Check(Rules(allow_empty, allow_unjudged, on_duplicate))
    with collecting(check.findings.add):
        passages = check.passages(source.passages, no_passage(source.format, source.inputs))
        queries = check.queries(source.queries, none=source.corpus_alone)
        judgements = check.judgements(source.judgements, passages, queries)
    check.tell_blanks()
    check.policy.by_bound(source.judged_by)
    kinds = check.findings.kinds.values()
    return Checked(
        source.format,
        len(passages),
        len(queries),
        judgements,
        check.counts_of_splits(),
        check.findings.told(),
        sum(kind.count for kind in kinds),
        dict(check.policy.counts),
        check.whole,
    )


class _Check:
    def __init__(self, rules: Rules) -> None:
        self.policy, self.findings, self.whole = ImportPolicy(rules), Findings(), True
        self.refused = {"passage": bytearray(), "query": bytearray()}  # hashes of the ids of refused records
        self.judged: dict[str, bytearray] = {}  # by split: hashes of the query's id of each judgement
        self.blank: dict[str, str] = {}  # by kind: the first id that a TREC run cannot hold

    def known(self, kind: str, hashes: UInt64) -> UInt64:
        """The ``hashes`` of accepted records' ids together with those of refused records, ascending.

        A judgement that names a refused record is no fault itself: the record's own fault is reported already.
        """
        return np.union1d(hashes, as_hashes(self.refused[kind]))

    def stream(self, records: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The records of a stream up to a fault after which it cannot continue."""
        try:
            yield from records()
        except InputError as fault:
            self.findings.add(fault)
            self.whole = False

    def good(self, check: Callable[[], Any], total: int = 1) -> Any:
        """The result of ``check``; None if it raises a fault, which is then counted for ``total`` records."""
        try:
            return check()
        except InputError as fault:
            self.findings.add(fault, total)
            return None

    def passages(self, records: Callable[[], Iterator[PassageRecord]], none: InputError) -> UInt64:
        """Check all passages; returns the hashes of their ids, each once, ascending. ``none``: there are none."""
        ids, places = bytearray(), SourceLines()
        for record in counted(self.stream(records), "checking", "passages"):
            found = self.record(record, "passage")
            if found is None:
                continue
            if self.good(partial(encoded, record.title, "title", record)) is None:
                self.refused["passage"] += hash_bytes(found[0])
                continue
            ids += hash_bytes(found[0])
            places.add(record.path, record.line)
        hashes = as_hashes(ids)
        distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        again = first[inverse] != np.arange(len(hashes))
        self.repeated("passage", again, first[inverse], places)
        if not len(hashes) and not self.findings.kinds:
            self.findings.add(none)
        return distinct

    def queries(self, records: Callable[[], Iterator[QueryRecord]], *, none: bool) -> UInt64:
        """Check all queries; returns the hashes of their ids, each once, ascending."""
        ids, members, contents, places = bytearray(), bytearray(), bytearray(), SourceLines()
        splits: set[str] = set()
        for record in counted(self.stream(records), "checking", "queries"):
            found = self.record(record, "query")
            if found is None:
                continue
            splits.add(record.split)
            answers = [self.good(partial(encoded, answer, "answer", record)) for answer in record.answers]
            if None in answers:
                self.refused["query"] += hash_bytes(found[0])
                continue
            ids += hash_bytes(found[0])
            members += hash_bytes(found[0] + b"\0" + record.split.encode(errors="surrogatepass"))
            contents += hash_bytes(b"\0".join([found[1], *answers]))
            places.add(record.path, record.line)
        self.splits(splits - {""})
        hashes, content = as_hashes(ids), as_hashes(contents)
        distinct, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        _, originals = np.unique(as_hashes(members), return_index=True)
        again = np.ones(len(hashes), bool)
        again[originals] = False
        self.repeated("query", again | (content != content[first[inverse]]), first[inverse], places)
        if not len(hashes) and not none and not self.findings.kinds:
            self.findings.add(InputError("NO_QUERIES", "there is no query", "give queries too"))
        return distinct

    def judgements(
        self, records: Callable[[], Iterator[JudgementRecord]], passages: UInt64, queries: UInt64
    ) -> int:
        """Check all judgements; returns how many name a passage and a query whose hashes are given."""
        known = self.known("query", queries), self.known("passage", passages)
        unknown, places, pairs = Unknown(*(partial(_rows, table=one) for one in known)), SourceLines(), bytearray()
        stream = counted(self.stream(records), "checking", "judgements")
        while batch := list(islice(stream, BATCH)):
            batch = [
                one
                for one in batch
                if not isinstance(one.query_id, Unread) and not isinstance(one.passage_id, Unread)
            ]
            ids = [one.query_id for one in batch], [one.passage_id for one in batch]
            unknown.add(batch, *map(_rows, ids, known))
            accepted = (_rows(ids[0], queries) == 0) & (_rows(ids[1], passages) == 0)
            if self.good(partial(grades_of, batch)) is None:
                for one in batch[1:]:
                    self.good(partial(grades_of, [one]))
            for one, counts in zip(batch, accepted.tolist(), strict=True):
                judged = self.judged.setdefault(one.split, bytearray())
                if counts:
                    judged += hash_bytes(one.query_id.encode(errors="surrogatepass"))
                pairs += hash_bytes("\0".join(one[:3]).encode(errors="surrogatepass"))
                places.add(one.path, one.line)
        self.splits(set(self.judged))
        if unknown.total:
            self.good(lambda: self.policy.unknown(unknown.fault(), unknown.total), unknown.total)
        hashes = as_hashes(pairs)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        self.repeated("judgement", first[inverse] != np.arange(len(hashes)), first[inverse], places)
        return sum(one["judgements"] for one in self.counts_of_splits().values())

    def counts_of_splits(self) -> dict[str, dict[str, int]]:
        """Judgements that count, and queries with these, of each split that was read; names of splits ascend."""
        found = {name: as_hashes(self.judged[name]) for name in sorted(self.judged)}
        return {
            name: {"judgements": len(hashes), "queries": len(np.unique(hashes))} for name, hashes in found.items()
        }

    def record(self, record: Any, kind: str) -> tuple[bytes, bytes] | None:
        """The id and text of a record as bytes; None if a field is wrong."""
        if isinstance(record.id, Unread):
            return None
        found = self.good(lambda: encoded_id(record, kind))
        if found is not None and BLANK.search(found):
            self.blank.setdefault(kind, record.id)
            self.policy.counts[f"{kind}_ids_with_a_blank"] += 1
        unread = isinstance(record.text, Unread)
        text = None if unread else self.good(lambda: encoded_text(record, kind, self.policy))
        if found is not None and text is None:
            self.refused[kind] += hash_bytes(found)
        return None if found is None or text is None else (found, text)

    def tell_blanks(self) -> None:
        """Warn of ids that a TREC run cannot hold, as an import does."""
        for kind, first in self.blank.items():
            log.warning("the %s id %r holds a blank, which a TREC run cannot hold", kind, first)

    def splits(self, names: set[str]) -> None:
        for name in sorted(names):
            self.good(partial(check_split, name))

    def repeated(self, kind: str, again: NDArray[np.bool_], first: Int64, places: SourceLines) -> None:
        """Count the records where ``again`` [n] is true as copies of the records ``first`` [n]."""
        total = int(again.sum())
        if not total:
            return
        row = int(np.argmax(again))
        fault = places.duplicate(
            f"a {kind}" if kind != "judgement" else "this judgement", int(first[row]), row, total
        )
        self.good(lambda: self.policy.duplicates(fault, kind, total), total)


def _rows(ids: list[str], table: UInt64) -> NDArray[np.int32]:
    """0 for each id whose hash is in the ascending ``table``, else -1."""
    hashes = hash_strings(ids)
    place = np.minimum(np.searchsorted(table, hashes), max(len(table) - 1, 0))
    found = table[place] == hashes if len(table) else np.zeros(len(hashes), bool)
    return np.where(found, 0, -1).astype(np.int32)

"""TREC runs and qrels, MS MARCO runs and BEIR qrels; each file may be gzip.

Runs are ``qid Q0 pid rank score tag`` (the tag takes the rest of the line) or MS MARCO's ``qid pid rank``;
qrels are ``qid 0 pid grade`` or BEIR's tab-separated ``query-id corpus-id score``. A run's rank column is
ignored: hits rank by score (float32) descending, ties by passage id descending (bytewise), as in trec_eval.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.data.formats.folders import sidecar_of
from hardneg.data.formats.lines import CR_ALONE, LF_OR_CRLF, grade_of, publish_packed, read_lines
from hardneg.data.formats.pair_table import Column, Float64, Lines, Table, TableForm, parts, read_table
from hardneg.data.ids import IdSpace, Vocabulary, byte_ranks, extend, other_forms, written_otherwise
from hardneg.errors import ArtifactError, InputError, NumericError
from hardneg.process.progress import Tick, track
from hardneg.records import Float32, Int32, Int64, Qrels, Run, changes, offsets_of, owners, spans
from hardneg.storage.artifacts import (
    Manifest,
    cached_digest,
    check_files,
    digest_file,
    json_bytes,
    read_manifest_file,
)
from hardneg.storage.manifest import remedy

log = logging.getLogger(__name__)

_BLOCK = 1 << 16  # hits written together

_TREC_RUN = TableForm("qid Q0 pid rank score tag", (0, 2, 4))
_MARCO_RUN = TableForm("qid pid rank", (0, 1, 2))
_TREC_QRELS = TableForm("qid 0 pid grade", (0, 2, 3), skip=("#",))
_BEIR_HEADER = "query-id\tcorpus-id\tscore"
_BEIR_QRELS = TableForm("query-id corpus-id score", (0, 1, 2), b"\t", skip=("#", _BEIR_HEADER))


# ---------------------------------------------------------------- runs


def read_run(path: Path, queries: IdSpace, passages: IdSpace, *, collection: str = "") -> Run:
    """Read a TREC or MS MARCO run whose ids must all be known.

    A hit of an MS MARCO run has minus its rank as its score. The result has queries ascending by row, and hits in
    trec_eval's order, as ``evaluate(..., id_rank=None)`` expects.

    Parameters
    ----------
    collection : digest of the collection the rows belong to; a sidecar manifest must name the same one.

    Raises
    ------
    InputError : a line is malformed, a score is no number, a query has a passage twice, or an id is unknown.
    ArtifactError : the file is not the one that its sidecar describes.
    """
    of, table = _check_sidecar(path, collection), _read_run_table(path)
    return _run_of(table, table.known(queries, "query"), table.known(passages, "passage"), of)


Scored = Mapping[str, Mapping[str, float]]  # {query id: {passage id: score}}
Judged = Mapping[str, Mapping[str, int]]  # {query id: {passage id: grade}}


def read_runs(
    paths: Sequence[Path | Scored | Run], queries: IdSpace, passages: IdSpace, *, collection: str = ""
) -> tuple[list[Run], IdSpace, IdSpace]:
    """Read runs for evaluation; passages with unknown ids count as not relevant. Runs in memory are taken, too.

    Returns the runs and the id spaces of their rows, which are those given with the unknown ids appended. Raises
    what :func:`read_run` raises, except for unknown ids.
    """
    runs = []
    for path in paths:
        if isinstance(path, Run):
            of = {"unit": path.unit, "collection": path.collection, "limited": path.limited}
            table = table_of_rows(path, queries, passages)
        elif isinstance(path, Mapping):
            of, table = {"collection": collection}, table_of(path)
        else:
            of, table = _check_sidecar(path, collection), _read_run_table(path)
        for kind, space, ids in (("query", queries, table.query_ids), ("passage", passages, table.passage_ids)):
            if other := other_forms(space, ids):
                log.warning("%s: %s", table.path, written_otherwise(kind, other))
        queries, query_rows = extend(queries, table.query_ids)
        passages, passage_rows = extend(passages, table.passage_ids)
        runs.append(_run_of(table, query_rows, passage_rows, of))
    return runs, queries, passages


def table_of_rows(run: Run, queries: IdSpace, passages: IdSpace) -> Table:
    """The table that a file would hold, from a run of rows; raises :class:`InputError` if a score is NaN."""
    rows, passage = np.unique(run.passage_rows, return_inverse=True)
    query, ids = owners(run.offsets), passages.take(rows)
    for entry in np.flatnonzero(np.isnan(run.scores))[:1]:
        pair = f"query {queries.take(run.query_rows[query[[entry]]])[0]}, passage {ids[passage[entry]]}"
        raise InputError("BAD_SCORE", f"{pair}: the score is no number", "correct it")
    return Table(
        Path("rows"),
        queries.take(run.query_rows),
        ids,
        query.astype(np.int32),
        passage.astype(np.int32),
        run.scores,
        _all_lines(len(passage)),
    )


def table_of(given: Scored | Judged) -> Table:
    """The table that a file would hold, from ids in memory; raises :class:`InputError` if a value is NaN."""
    passages = {one: i for i, one in enumerate(dict.fromkeys(p for hits in given.values() for p in hits))}
    counts = [len(hits) for hits in given.values()]
    hits = np.array([passages[p] for hits in given.values() for p in hits], np.int32)
    values = as_floats([value for hits in given.values() for value in hits.values()])
    table = Table(
        Path("dict"),
        [*given],
        [*passages],
        np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        hits,
        values,
        _all_lines(len(values)),
    )
    for entry in np.flatnonzero(np.isnan(values))[:1]:
        pair = f"query {table.query_ids[table.query[entry]]}, passage {table.passage_ids[hits[entry]]}"
        raise InputError("BAD_SCORE", f"{pair}: the score is no number", "correct it")
    return table


def _all_lines(count: int) -> Lines:
    return Lines([range(1, count + 1)])


def as_floats(values: Sequence[float]) -> Float64:
    """Numbers as floats [n]; an integer beyond all floats becomes infinite, as it does in a file."""
    try:
        return np.array(values, np.float64)
    except OverflowError:
        most = sys.float_info.max
        bounded = [v if -most <= v <= most else math.copysign(math.inf, 1 if v > 0 else -1) for v in values]
        return np.array(bounded, np.float64)


def qrels_of(given: Judged) -> tuple[Qrels, Vocabulary, Vocabulary]:
    """Judgements by ids, as :func:`open_qrels` gives those of a file; raises :class:`InputError` as for a file."""
    table = table_of(given)
    for entry in np.flatnonzero(~in_range(table.values))[:1]:
        pair = f"query {table.query_ids[table.query[entry]]}, passage {table.passage_ids[table.passage[entry]]}"
        what = f"{pair}: the relevance {table.values[entry]:.0f} is no 32-bit integer"
        raise InputError("BAD_GRADE", what, "give an integer")
    return _qrels_of(table), Vocabulary(table.query_ids), Vocabulary(table.passage_ids)


def in_range(grades: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Whether each grade [n] fits into 32 bits."""
    return (grades >= -(2.0**31)) & (grades < 2.0**31)


def _read_run_table(path: Path) -> Table:
    _, first = next(read_lines(path), (1, ""))
    _refuse_cr_alone(path, first)
    marco = len(first.encode().split()) == _MARCO_RUN.width
    with track("reading", "lines") as tick:
        table = read_table(path, *((_MARCO_RUN, _minus_ranks) if marco else (_TREC_RUN, _scores32)), tick)
    later, earlier = table.repeats()
    if len(later):
        raise table.fault("DUPLICATE_HIT", "this hit is already", later[0], earlier[0])
    return table


def _scores(texts: Column, numbers: Sequence[int], path: Path) -> Float64:
    try:
        scores = np.fromiter(map(float, texts), np.float64, len(texts))
        bad = np.flatnonzero(np.isnan(scores))
        if b"_" in b"".join(texts):  # Python reads 1_0 as 10
            bad = np.flatnonzero([not _is_number(text) for text in texts])
    except ValueError:
        bad = np.flatnonzero([not _is_number(text) for text in texts])
    if len(bad):
        what = f"the score {texts[bad[0]].decode()!r:.40} is no number"
        header = numbers[bad[0]] == 1 and not _looks_like_number(texts[bad[0]])
        fix = "correct it, or give a run, which has no header" if header else "correct it"
        raise InputError("BAD_SCORE", what, fix, path=path, line=numbers[bad[0]])
    return scores


def _scores32(texts: Column, numbers: Sequence[int], path: Path) -> Float32:
    return _as_scores(_scores(texts, numbers, path))


def _as_scores(values: NDArray[np.floating]) -> Float32:
    """Values as scores [n]; one beyond float32 becomes infinite and ranks as such."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _minus_ranks(texts: Column, numbers: Sequence[int], path: Path) -> Float32:
    ranks = _scores(texts, numbers, path)
    for entry in np.flatnonzero((ranks < 0) | (np.floor(ranks) != ranks) | np.isinf(ranks))[:1]:
        what = f"the rank {texts[entry].decode()!r:.40} is no whole number from 0 up"
        fix = f"write ranks, or lines with scores as '{_TREC_RUN.columns}'"
        raise InputError("BAD_SCORE", what, fix, path=path, line=numbers[entry])
    return _as_scores(-ranks)


def _refuse_cr_alone(path: Path, first: str) -> None:
    """Refuse a file whose lines end in CR alone; else the last column of its first line takes them all."""
    if "\r" in first.rstrip("\r"):
        raise InputError("BAD_QUOTING", CR_ALONE, LF_OR_CRLF, path=path, line=1)


def _is_number(text: bytes) -> bool:
    return _looks_like_number(text) and b"_" not in text and float(text) == float(text)


def _looks_like_number(text: bytes) -> bool:
    """Whether Python reads a number or NaN, which no name of a column is."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _run_of(table: Table, query_rows: Int32, passage_rows: Int32, of: Mapping[str, Any]) -> Run:
    """The run of a table; memory holds the order of some queries' hits at a time."""
    counts = spans(table.by_query[1])
    codes = np.argsort(query_rows, kind="stable")
    codes = codes[counts[codes] > 0]
    first = changes(query_rows[codes])  # a run in memory may have a query twice
    begins = np.append(np.flatnonzero(first), len(codes))
    offsets = offsets_of(counts[codes])[begins]
    scores = _as_scores(table.values)
    ranked, by_rank = np.empty(len(scores), np.int32), np.empty(len(scores), np.float32)
    for begin, end in parts(offsets):
        hits = table.entries(codes[begins[begin] : begins[end]])
        query, found, passage = query_rows[table.query[hits]], scores[hits], table.passage[hits]
        order = _best_first(query, found, passage, table.passage_ids)
        span = slice(offsets[begin], offsets[end])
        ranked[span], by_rank[span] = passage_rows[passage[order]], found[order]
    return Run(query_rows[codes[first]], offsets, ranked, by_rank, **of)


def _best_first(
    query: NDArray[np.integer], scores: Float32, passage: NDArray[np.integer], ids: Sequence[str]
) -> Int64:
    """The order [n] of hits by query, score descending and id descending; only ids of tied hits are compared."""
    step = np.diff(query)
    in_order = np.all((step > 0) | ((step == 0) & (scores[1:] <= scores[:-1])))
    order = np.arange(len(query)) if in_order else np.lexsort((-scores, query))
    tied = np.diff(query[order], append=-1) == 0
    tied[:-1] &= scores[order][1:] == scores[order][:-1]
    places = np.flatnonzero(tied | np.roll(tied, 1))
    hits = order[places]
    involved, index = np.unique(passage[hits], return_inverse=True)
    ranks = byte_ranks([ids[i] for i in involved.tolist()])[index]
    order[places] = hits[np.lexsort((-ranks, -scores[hits], query[hits]))]
    return order


def write_run(path: Path, run: Run, queries: IdSpace, passages: IdSpace, *, tag: str = "hardneg") -> None:
    """Write a TREC run (gzip if its name ends in ``.gz``) and its sidecar manifest; replaces existing files.

    Raises
    ------
    NumericError : a score is NaN. InputError : an id has a blank, which the format cannot hold.
    """
    if np.isnan(run.scores).any():
        query = queries.take(run.query_rows[owners(run.offsets)[np.isnan(run.scores)]][:1])[0]
        raise NumericError("NAN_SCORE", f"query {query} has a NaN score", "check the model", path=path)

    def described(draft: Path) -> bytes:
        facts: dict[str, Any] = {"unit": run.unit, "queries": len(run), "hits": len(run.scores)}
        facts |= {"limited": run.limited} if run.limited else {}
        files = {path.name: (draft.stat().st_size, digest_file(draft))}
        return json_bytes(
            Manifest("run", inputs={"collection": run.collection}, facts=facts, files=files).as_json()
        )

    with (
        publish_packed(path, sidecar=sidecar_of(path), described=described) as stream,
        track("writing", "queries") as tick,
    ):
        stream.writelines(_format(run, queries, passages, tag, tick))


def _format(run: Run, queries: IdSpace, passages: IdSpace, tag: str, tick: Tick) -> Iterator[bytes]:
    """The lines of a run as bytes, a block of queries at a time."""
    cuts = np.flatnonzero(np.diff(run.offsets[1:] // _BLOCK, prepend=0))
    for block in np.split(np.arange(len(run)), cuts):
        if len(block):
            yield "".join(_format_block(run, block, queries, passages, tag)).encode()
            tick(int(block[-1]) + 1, len(run))


def _format_block(run: Run, block: Int64, queries: IdSpace, passages: IdSpace, tag: str) -> list[str]:
    offsets = run.offsets[block[0] : block[-1] + 2]
    span = slice(offsets[0], offsets[-1])
    rows, passage = np.unique(run.passage_rows[span], return_inverse=True)
    query_ids, passage_ids = queries.take(run.query_rows[block]), passages.take(rows)
    check_ids([*query_ids, *passage_ids])
    query = owners(offsets - offsets[0])
    order = _best_first(query, run.scores[span], passage, passage_ids)
    ranks = np.arange(len(query)) - (offsets - offsets[0])[query] + 1
    hits = zip(
        query.tolist(), passage[order].tolist(), ranks.tolist(), run.scores[span][order].tolist(), strict=True
    )
    return [f"{query_ids[q]} Q0 {passage_ids[p]} {rank} {score:.9g} {tag}\n" for q, p, rank, score in hits]


def check_ids(ids: Sequence[str]) -> None:
    """Refuse ids that a TREC run cannot hold; raises :class:`InputError`."""
    for id_ in ids:
        if (data := id_.encode()).split() != [data]:
            raise InputError("BLANK_IN_ID", f"a TREC run cannot hold the id {id_!r:.80}", "use ids without blanks")


def verify_run(path: Path, digest: Callable[[Path], str] = digest_file) -> Manifest:
    """Check a run against its sidecar, which it must have; raises :class:`ArtifactError`."""
    sidecar = sidecar_of(path)
    if path.exists() and not sidecar.exists():
        what = f"{sidecar.name}, which says what this file holds, is not beside it"
        raise ArtifactError("NO_MANIFEST", what, "give a run that hardneg wrote", path=path)
    manifest = read_manifest_file(sidecar, "run")
    if path.name not in manifest.files or "unit" not in manifest.facts:
        what = "this is not the manifest of that run"
        raise ArtifactError("BAD_MANIFEST", what, remedy(sidecar, "run"), path=sidecar)
    check_files(path.parent, manifest, digest)
    return manifest


def _check_sidecar(path: Path, collection: str) -> dict[str, Any]:
    """Check a run against its sidecar, if it has one; returns what a :class:`Run` says of itself, by field."""
    if not sidecar_of(path).is_file():
        return {"collection": collection}
    manifest = verify_run(path, cached_digest)
    made_for = manifest.inputs.get("collection", "")
    if collection and made_for and made_for != collection:
        what = f"made for the collection {made_for[:12]}…, not {collection[:12]}…"
        raise ArtifactError("OTHER_COLLECTION", what, "search this collection, or give the other", path=path)
    facts = {name: manifest.facts[name] for name in ("unit", "limited") if name in manifest.facts}
    return {"collection": made_for or collection, **facts}


# ---------------------------------------------------------------- qrels


def open_qrels(path: Path) -> tuple[Qrels, Vocabulary, Vocabulary]:
    """Read TREC qrels (lines that begin with ``#`` are skipped) or BEIR qrels, without a collection.

    Returns the judgements, and the spaces of query ids and of passage ids that occur in them.

    Raises
    ------
    InputError : a line is malformed, a grade is no 32-bit integer (``1.0`` is one), or a pair is judged twice with
        different grades.
    """
    table = _read_qrels_table(path)
    return _qrels_of(table), Vocabulary(table.query_ids), Vocabulary(table.passage_ids)


def _read_qrels_table(path: Path) -> Table:
    first = next((line for _, line in read_lines(path) if not line.startswith("#")), "")
    _refuse_cr_alone(path, first)
    beir = len(first.split("\t")) == _BEIR_QRELS.width
    return read_table(path, _BEIR_QRELS if beir else _TREC_QRELS, _grades)


def _grades(texts: Column, numbers: Sequence[int], path: Path) -> Float64:
    pairs = zip(texts, numbers, strict=True)
    return np.array([grade_of(text.decode(), path, line) for text, line in pairs], np.float64)


def _qrels_of(table: Table) -> Qrels:
    later, earlier = table.repeats()
    for entry in np.flatnonzero(table.values[later] != table.values[earlier])[:1]:
        raise table.fault("CONFLICTING_GRADES", "judged otherwise", later[entry], earlier[entry])
    if len(later):
        log.warning("%s: %d judgements repeat another, and count once", table.path, len(later))
    keep = np.delete(np.arange(len(table.values)), later)
    query, passage = (codes[keep].astype(np.int32) for codes in (table.query, table.passage))
    order = np.lexsort((passage, query))
    rows, counts = np.unique(query, return_counts=True)
    return Qrels(rows, offsets_of(counts), passage[order], table.values[keep][order].astype(np.int32))

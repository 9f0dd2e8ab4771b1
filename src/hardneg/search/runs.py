"""What answers a search, checks of a search request, and runs as artefacts: arrays that the next stage reads.

TREC files are for people and other tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.process.memory import require, room
from hardneg.records import Float32, Int32, Int64, Run, offsets_of, owners, spans
from hardneg.storage.artifacts import digest_json, is_published, load_array, open_artifact, publish, read_manifest

KIND = "run"
HIT = 8  # bytes of a hit in memory: its row and its score
UNASKED = 1 << 24  # bytes that are taken without a look at the limit, which takes longer than a short search


@runtime_checkable
class OpenRetriever(Protocol):
    """The part of an open :class:`~hardneg.search.retriever.Retriever` that searching uses; BM25 has it too."""

    @property
    def collection(self) -> Collection:
        """The collection that is searched."""
        ...

    def search_queries(self, query_rows: Int32, k: int) -> Run:
        """The run of these queries of the collection, ``k`` deep."""
        ...

    def search_texts(self, texts: Sequence[str], k: int) -> Run:
        """The run of texts; its query rows count from 0."""
        ...


def run_of_lists(
    lists: Iterable[tuple[Int32, Float32]],
    query_rows: Int32,
    k: int,
    passages: Int64,
    offsets: Int64,
    collection: str,
) -> Run:
    """The run of lists of rows and scores, which are taken one by one, so that memory holds each hit once.

    A list has a passage once, however many terms of its query the passage has. So how many hits there will be is
    known within bounds, and as they come, there must be room for the next ones.

    Parameters
    ----------
    k : how many hits a list may have.
    passages, offsets : [T], [Q + 1] how many passages have each term, and where the terms of each query begin.

    Raises
    ------
    ResourceError : the hits are more than there is room for.
    """
    fewest = np.zeros(len(query_rows), np.int64)
    np.maximum.at(fewest, owners(offsets), np.minimum(passages, k))
    bounds = offsets_of(np.minimum(spans(offsets_of(passages)[offsets]), k))
    if (sure := int(fewest.sum())) > UNASKED // HIT:
        require(HIT * sure, "a run")
    room_until = max(sure, UNASKED // HIT)
    rows, scores = np.empty(bounds[-1], np.int32), np.empty(bounds[-1], np.float32)  # no memory yet
    lengths, end = np.zeros(len(query_rows), np.int64), 0
    for i, (hits, values) in enumerate(lists):
        lengths[i] = len(hits)
        begin, end = end, end + len(hits)
        if end > room_until:
            room_until = begin + _more_hits(begin, len(hits), int(bounds[i]), int(bounds[-1]))
        rows[begin:end], scores[begin:end] = hits, values
    return Run(
        np.asarray(query_rows, np.int32), offsets_of(lengths), rows[:end], scores[:end], "passage", collection
    )


def _more_hits(held: int, next_list: int, bound: int, whole: int) -> int:
    """How many hits there is room for besides those that are ``held``, at least those of the next list.

    A refusal names a limit for all hits to come, if these are as far from their bound as those before: ``bound``
    is that of the hits so far, and ``whole`` that of all.
    """
    more, left = min(max(UNASKED // HIT, next_list), whole - bound), room()
    if left is not None and HIT * more > left:
        alike = (whole - bound) * held * 5 // (4 * bound) if bound else whole
        require(HIT * max(more, min(alike, whole - bound)), "a run")
    return more


def check_request(queries: int, passages: int, k: int) -> int:
    """The number of hits that a search for ``k`` gives: ``k``, or all passages where there are fewer.

    Raises
    ------
    SettingsError
        ``k`` is below 1.
    InputError
        There are no queries or no passages.
    """
    if k < 1:
        raise SettingsError("BAD_K", f"k is {k}", "search for at least one hit")
    if queries == 0:
        raise InputError("NO_QUERIES", "there are no queries", "give at least one query")
    if passages == 0:
        raise InputError("NO_PASSAGES", "there are no passages", "give at least one passage")
    return min(k, passages)


def check_rows(query_rows: Int32, queries: int) -> None:
    """Refuse rows of queries that a collection of so many does not have; raises :class:`SettingsError`."""
    rows = np.asarray(query_rows)
    if len(bad := rows[(rows < 0) | (rows >= queries)]):
        what = f"the collection has {queries:,} queries, but none at row {bad[0]}"
        raise SettingsError("BAD_SETTING", what, f"give rows from 0 to {queries - 1}")


def check_texts(texts: Sequence[str]) -> None:
    """Refuse one text in place of several, of which each letter would be a text; raises :class:`SettingsError`."""
    if isinstance(texts, str):
        raise SettingsError("BAD_SETTING", f"texts is {texts!r:.60}, one text", "give a list of texts")


def part_of(among: Int32) -> str:
    """The digest of the rows of passages that alone are ranked, which ascend."""
    return digest_json(among.tolist())


def limited_run(run: Run, among: Int32, part: str) -> Run:
    """A run over the passages at these rows as a run of the whole collection; ``part`` says what it ranks."""
    return replace(run, passage_rows=among[run.passage_rows], limited=part)


def save_run(run: Run, path: Path, *, inputs: Mapping[str, str], settings: Mapping[str, object]) -> None:
    """Publish a run at ``path``."""
    with publish(path, KIND, settings=settings, inputs=inputs, replace=True) as draft:
        draft.array("query_rows.npy", run.query_rows)
        draft.array("offsets.npy", run.offsets)
        draft.array("passage_rows.npy", run.passage_rows)
        draft.array("scores.npy", run.scores)
        draft.facts.update(unit=run.unit, collection=run.collection, queries=len(run), hits=len(run.scores))
        if run.limited:
            draft.facts["limited"] = run.limited


def is_of(path: Path, inputs: Mapping[str, str], k: int) -> bool:
    """Whether the run at ``path`` was made from these inputs, ``k`` deep or deeper; only its manifest is read."""
    if not is_published(path, KIND):
        return False
    made = read_manifest(path)
    return dict(made.inputs) == dict(inputs) and bool(made.settings["k"] >= k)


@checked
def load_run(path: str | Path) -> Run:
    """Open a run that training keeps in a folder, such as ``episodes/2/runs/query``; its arrays are memory-mapped.

    Raises
    ------
    ArtifactError : the folder holds no run, or a damaged one.
    """
    path = Path(path)
    manifest = open_artifact(path, KIND)
    facts, inputs = manifest.facts, manifest.inputs
    names = ("query_rows", "offsets", "passage_rows", "scores")
    arrays = {name: load_array(path / f"{name}.npy") for name in names}
    limited = facts.get("limited") or inputs.get("passages", "")  # older runs name the passages there alone
    run = Run(**arrays, unit=facts["unit"], collection=facts["collection"], limited=limited)
    lengths = np.diff(run.offsets)
    whole = len(run.offsets) == len(run) + 1 and run.offsets[-1] == len(run.scores) == len(run.passage_rows)
    if not whole or (lengths < 0).any():
        raise ArtifactError("BAD_RUN", "the arrays of the run do not fit together", "make it again", path=path)
    return run


def loaded(path: Path) -> Run | Exception:
    """The run at ``path``, or the fault that it has, while another process may be replacing it."""
    try:
        return load_run(path)
    except (ArtifactError, FileNotFoundError) as fault:
        return fault

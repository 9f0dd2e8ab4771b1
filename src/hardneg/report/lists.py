"""The candidates that an experiment mined from, as lists of rows: what mining leaves out is left out here, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardneg.data.training_data import TrainingData
from hardneg.experiment.layout import Layout, run_of, version_in
from hardneg.experiment.names import BM25, FINAL, LAST, shown
from hardneg.experiment.states import StateRecord
from hardneg.negatives.candidates import copies_of_earlier, is_known
from hardneg.negatives.labels import answers_of, positives_by
from hardneg.negatives.pool import NegativePool, kept_offsets, matches
from hardneg.records import Int32, Int64, Positives, Run, offsets_of, owners, spans, take_spans
from hardneg.report.opened import Opened, name_of_pool
from hardneg.report.table import NotMeant, NotRecorded
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published

BLOCK = 1024  # queries looked at together
DEPTH = 200


@dataclass(frozen=True)
class RowLists:
    """Passages of each query without scores, best first unless several lists were joined."""

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]

    def cut(self, depth: int) -> RowLists:
        """The lists with at most ``depth`` passages of each query."""
        lengths = np.minimum(spans(self.offsets), depth)
        place = np.arange(len(self.passage_rows)) - np.repeat(self.offsets[:-1], spans(self.offsets))
        return RowLists(self.query_rows, offsets_of(lengths), self.passage_rows[place < depth])

    def of_queries(self, query_rows: Int32) -> RowLists:
        """The lists of these queries, in their order; queries without a list are left out."""
        if np.array_equal(self.query_rows, query_rows):
            return self
        found, _ = matches(self.query_rows, query_rows)
        index, offsets = take_spans(self.offsets, found)
        return RowLists(self.query_rows[found], offsets, self.passage_rows[index])


def mined(opened: Opened) -> list[tuple[str, StateRecord]]:
    """The states that negatives were mined with, each under the name of the pool that was mined from its lists."""
    last = (LAST, FINAL)
    states = [one for one in opened.trained_states if one.name not in last and one.runs is not None]
    return [(mined_pool(opened, one), one) for one in states]


def mined_pool(opened: Opened, state: StateRecord) -> str:
    """The name of the pool that was mined from a state's lists, even if it is gone; else the state's name."""
    layout, runs = opened.layout, str(state.runs)
    number, version = Layout.episode_within(runs), Layout.version_within(runs)
    if number is None:
        return shown(state.name)
    folder = layout.episode(number)
    place = folder.version(version or 0) if opened.unit == "refresh" else folder.negatives
    if opened.course.mines == "refreshes":
        place = version_in(layout.versions, number)
    return name_of_pool(layout.relative(place))


def mined_lists(opened: Opened, name: str = "query") -> dict[str, RowLists]:
    """The candidates of each episode at mining depth, of its run ``query`` or ``lookahead``."""
    if opened.trains_ranker:
        raise NotMeant("A ranker was trained, which mines nothing.")
    key = f"lists of {name}"
    if key not in opened.kept:
        runs = {episode: (state, mined_run(opened, state, name)) for episode, state in mined(opened)}
        opened.kept[key] = {
            episode: without_positives(
                opened, run, positives=positives_of(opened, opened.whole_run(state, "query"))
            )
            for episode, (state, run) in runs.items()
            if run is not None
        }
    found: dict[str, RowLists] = opened.kept[key]
    if not found:
        what = (
            "States were searched for dev and test alone (examine = judged), so candidates are not known."
            if opened.judged_alone
            else "No run of the training queries is there."
        )
        raise NotRecorded(what)
    return found


def mined_run(opened: Opened, state: StateRecord, name: str) -> Run | None:
    """A run that negatives were drawn from: around all positives if there is such a one, else around the first."""
    of_all = f"{name}-all"
    return opened.whole_run(state, of_all if opened.has_run(state, of_all) else name)


def bm25_lists(opened: Opened) -> RowLists | None:
    """The candidates that BM25 gives training queries, or a sample of these; None if they were not kept."""
    place = run_of(opened.layout.runs_of(BM25), "query")
    if BM25 not in opened.kept and opened.data is not None and is_published(place):
        run = opened.told(lambda: load_run(place), None)
        opened.kept[BM25] = None if run is None else without_positives(opened, run, run.query_rows)
    found: RowLists | None = opened.kept.get(BM25)
    return found


def rows_of_pool(pool: NegativePool) -> RowLists:
    """The negatives of each query of a pool."""
    return RowLists(pool.query_rows, pool.offsets, pool.passage_rows)


def positives_of(opened: Opened, run: Run | None) -> Positives:
    """The positives of the training queries of a run, as mining with it found them; None: the judged ones."""
    data = opened.data_here
    judged, contains = data.train, answers_of(data, opened.cache)
    if run is None or contains is None or not data.by_answers:
        return judged
    judged = judged.select(matches(judged.query_rows, run.query_rows)[0])
    return positives_by(part_of(run, judged.query_rows), judged, data, depth_of(opened), contains)


def depth_of(opened: Opened) -> int:
    """How far down training queries were mined."""
    return int(opened.settings.get("result_settings", {}).get("depth") or DEPTH)


def without_positives(
    opened: Opened, run: Run, query_rows: Int32 | None = None, *, positives: Positives | None = None
) -> RowLists:
    """A run as mining cuts it: without the positives of its queries, and then at mining depth.

    What has the text of a positive counts as one, and so do positives of equal queries. Of hits with one text,
    only the first stays. Of the hits within the depth, those that people judged relevant are left out, and with
    labels by answers also those that contain an answer.

    Parameters
    ----------
    query_rows : the training queries whose lists are kept; None: all.
    positives : those that mining found (:func:`positives_of`); None: found in this run, which is of the queries.
    """
    data, depth = opened.data_here, depth_of(opened)
    positives = positives_of(opened, run) if positives is None else positives
    if query_rows is not None:
        positives = positives.select(matches(positives.query_rows, query_rows)[0])
    if not np.array_equal(run.query_rows, positives.query_rows):
        run = part_of(run, positives.query_rows)
        positives = positives.select(matches(positives.query_rows, run.query_rows)[0])
    passages, lengths = np.empty(len(run.passage_rows), np.int32), np.zeros(len(run), np.int64)
    filled = 0
    for start in range(0, len(run), BLOCK):
        stop = min(start + BLOCK, len(run))
        keep = _kept(run, positives, start, stop, data, depth)
        left = run.passage_rows[run.offsets[start] : run.offsets[stop]][keep]
        passages[filled : filled + len(left)] = left
        filled += len(left)
        lengths[start:stop] = spans(kept_offsets(keep, run.offsets[start : stop + 1] - run.offsets[start]))
    return one_each(without_answers(opened, RowLists(run.query_rows, offsets_of(lengths), passages[:filled])))


def one_each(lists: RowLists) -> RowLists:
    """One list for each query; where a query has several, one for each anchor, it has their distinct passages."""
    queries, which = np.unique(lists.query_rows, return_inverse=True)
    if len(queries) == len(lists.query_rows):
        return lists
    pairs = np.unique(which[owners(lists.offsets)] << 31 | lists.passage_rows)
    lengths = np.bincount(pairs >> 31, minlength=len(queries))
    return RowLists(queries, offsets_of(lengths), (pairs & ((1 << 31) - 1)).astype(np.int32))


def without_answers(opened: Opened, lists: RowLists) -> RowLists:
    """The lists without the passages that are relevant by people, or by answers if the labels are."""
    contains = answers_of(opened.data_here, opened.cache)
    if contains is None:
        return lists
    keep = ~contains(np.repeat(lists.query_rows, spans(lists.offsets)), lists.passage_rows)
    return RowLists(lists.query_rows, kept_offsets(keep, lists.offsets), lists.passage_rows[keep])


def _kept(
    run: Run, positives: Positives, start: int, stop: int, data: TrainingData, depth: int
) -> NDArray[np.bool_]:
    """The mask of the entries of some lists that are candidates: not positives, no copies, and not too deep.

    List i belongs to query i. Queries with one positive, as most have, are compared all at once; others take a
    slower way.
    """
    offsets, keys = run.offsets[start : stop + 1] - run.offsets[start], data.collection.text_keys
    lengths, rows = spans(offsets), run.passage_rows[run.offsets[start] : run.offsets[stop]]
    counts = spans(positives.offsets[start : stop + 1])
    firsts = np.zeros(stop - start, np.uint64)
    firsts[counts > 0] = keys[positives.passage_rows[positives.offsets[start:stop][counts > 0]]]
    known = keys[rows] == np.repeat(firsts, lengths)
    if len(others := np.flatnonzero(counts != 1)):
        index, by_list = take_spans(offsets, others)
        known[index] = is_known(positives.select(start + others), owners(by_list), rows[index], keys)
    keep, owner = ~known, owners(offsets)
    at = np.flatnonzero(keep)
    keep[at] = ~data.no_negative(run.query_rows[start:stop][owner[at]], rows[at])
    keep[copies_of_earlier(rows, owner, keep, data.collection.copies)] = False
    if lengths.max(initial=0) > depth:
        before = offsets_of(keep.view(np.uint8))
        keep &= before[1:] - np.repeat(before[offsets[:-1]], lengths) <= depth
    return keep


def part_of(run: Run, query_rows: Int32) -> Run:
    """The lists of these queries that the run has."""
    found, _ = matches(run.query_rows, query_rows)
    index, offsets = take_spans(run.offsets, found)
    return Run(
        run.query_rows[found], offsets, run.passage_rows[index], run.scores[index], run.unit, run.collection
    )

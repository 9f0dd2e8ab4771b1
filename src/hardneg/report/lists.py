"""The candidates that an experiment mined from, as lists of rows: positives and copies of them left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardneg.experiment.layout import Layout
from hardneg.experiment.names import FINAL, shown
from hardneg.experiment.states import StateRecord
from hardneg.negatives.candidates import candidates
from hardneg.negatives.pool import matches
from hardneg.records import Int32, Int64, Run, offsets_of, spans, take_spans
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded

BLOCK = 4096  # queries looked at together
DEPTH = 200


@dataclass(frozen=True)
class RowLists:
    """Passages of each query, best first, without scores."""

    query_rows: Int32  # [Q]
    offsets: Int64  # [Q + 1]
    passage_rows: Int32  # [n]

    def cut(self, depth: int) -> RowLists:
        """The lists with at most ``depth`` passages of each query."""
        lengths = np.minimum(spans(self.offsets), depth)
        place = np.arange(len(self.passage_rows)) - np.repeat(self.offsets[:-1], spans(self.offsets))
        return RowLists(self.query_rows, offsets_of(lengths), self.passage_rows[place < depth])


def mined(opened: Opened) -> list[tuple[str, StateRecord]]:
    """The states that negatives were mined with; each is named by the episode that its negatives are for."""
    found = []
    for state in opened.trained_states:
        if state.name == FINAL or state.runs is None:
            continue
        episode = Layout.episode_within(state.runs)
        found.append((shown(state.name) if episode is None else f"episode {episode}", state))
    return found


def mined_lists(opened: Opened, name: str = "query") -> dict[str, RowLists]:
    """The candidates of each episode at mining depth, of its run ``query`` or ``lookahead``."""
    key = f"lists of {name}"
    if key not in opened.kept:
        runs = {episode: opened.run(state, name) for episode, state in mined(opened)}
        opened.kept[key] = {
            episode: without_positives(opened, run, name) for episode, run in runs.items() if run is not None
        }
    found: dict[str, RowLists] = opened.kept[key]
    if not found:
        what = (
            "States were searched for dev and test alone (examine = judged), so candidates are not known."
            if opened.results.get("examined") == "judged"
            else "No run of the training queries is there."
        )
        raise NotRecorded(what)
    return found


def without_positives(opened: Opened, run: Run, source: str, depth: int | None = None) -> RowLists:
    """A run at mining depth without the positives of its queries, and without passages of the same texts."""
    data = opened.data_here
    deep = depth or int(opened.settings.get("result_settings", {}).get("depth") or DEPTH)
    positives = data.train
    parts = []
    for start in range(0, len(positives), BLOCK):
        some = positives.select(np.arange(start, min(start + BLOCK, len(positives))))
        found = candidates(
            part_of(run, some.query_rows),
            some,
            source=source,
            episode=0,
            depth=deep,
            text_keys=data.collection.text_keys,
        )
        parts.append((found.query_rows, spans(found.offsets), np.asarray(found.passage_rows, np.int32)))
    rows, lengths, passages = (np.concatenate(values) for values in zip(*parts, strict=True))
    return RowLists(rows, offsets_of(lengths), passages)


def part_of(run: Run, query_rows: Int32) -> Run:
    """The lists of these queries, as far as the run has them."""
    found, _ = matches(run.query_rows, query_rows)
    index, offsets = take_spans(run.offsets, found)
    return Run(
        run.query_rows[found], offsets, run.passage_rows[index], run.scores[index], run.unit, run.collection
    )

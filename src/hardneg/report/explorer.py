"""The query explorer's data: sampled queries with their passages, and how those moved from state to state.

A training query shows its negatives with their provenance; a query of dev or test shows the first irrelevant hits
of the final model. The ranks of all of them are given for each state of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from hardneg import keyed_random
from hardneg.evaluation.measures import first_rank
from hardneg.experiment.names import FINAL, shown
from hardneg.negatives.facts import entries_of
from hardneg.negatives.labels import answers_of
from hardneg.negatives.pool import NegativePool
from hardneg.records import Positives, Run
from hardneg.report.facts_queries import change_of, moved_of
from hardneg.report.measured import training_hits, training_ranks
from hardneg.report.opened import Opened
from hardneg.report.table import NotRecorded

MOST_QUERIES = 2000
BYTES = 4_500_000  # of the explorer's data; the page stays well below 10 MB
SHARES = {"forgotten": 0.3, "suspected": 0.3}  # the most of all queries; random ones fill up the rest
NEGATIVES, HITS = 12, 10  # of a query
SEEN = 100  # hits of a query, among which irrelevant ones are looked for
LONGEST_TEXT = 500  # characters of a passage or query
SEED = 0


@dataclass
class Passages:
    """The passages that any shown query has, each once."""

    opened: Opened
    rows: dict[int, int] = field(default_factory=dict)  # passage row -> place
    found: list[list[str]] = field(default_factory=list)  # id, title, text

    def place(self, row: int) -> int:
        """The place of a passage in the data; its texts are read when it is first asked for."""
        if row not in self.rows:
            collection = self.opened.data_here.collection
            self.rows[row] = len(self.found)
            texts = (collection.passage_ids[row], collection.titles[row], collection.texts[row])
            self.found.append([cut(text) for text in texts])
        return self.rows[row]


@dataclass(frozen=True)
class Chosen:
    """Queries of one split that are shown, and why."""

    split: str
    tags: dict[int, list[str]]  # query row -> why it was chosen


def explorer_data(opened: Opened, suspected: Sequence[int] = ()) -> dict[str, Any]:
    """What the explorer shows.

    Parameters
    ----------
    suspected : rows of training queries with a suspected false negative, the most suspicious first.

    Returns
    -------
    ``states``: names by split; ``counted``: what a negative's ``episode`` counts; ``passages``: id, title and text
    of each; ``queries``: ``id``, ``text``, ``split``, ``tags``, ``moves`` (the rank of the best relevant hit by
    state, 0: not found), ``positives`` and ``negatives``. A positive is a list of its place among ``passages`` and
    its ranks by state; a negative also has its source, episode, rank and score when it was mined.

    Raises
    ------
    NotRecorded : there is no collection, or there are no runs.
    """
    passages, queries, names = Passages(opened), [], {}
    size = 0
    choices = choose(opened, suspected)
    for number, chosen in enumerate(choices, 1):
        room = BYTES if number == len(choices) else BYTES // 4  # judged queries leave room for those of training
        runs = runs_of(opened, chosen.split)
        names[chosen.split] = [shown(name) for name in runs]
        maker = _Maker(opened, chosen, runs, passages)
        for row in chosen.tags:
            known = len(passages.found)
            one = maker.query(row)
            size += sum(size_of(part) for part in (one, passages.found[known:]))
            if size > room:
                break
            queries.append(one)
    if not queries:
        raise NotRecorded("No query has runs to look into.")
    return {"states": names, "counted": opened.unit, "passages": passages.found, "queries": queries}


def size_of(part: Any) -> int:
    """The bytes that a part of the data takes on the page, which writes ``<``, ``>`` and ``&`` as codes."""
    written = json.dumps(part, separators=(",", ":"))
    return len(written) + 5 * sum(written.count(mark) for mark in "<>&")


def cut(text: str) -> str:
    """The beginning of a text, which may be huge."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


# ---------------------------------------------------------------- which queries


def choose(opened: Opened, suspected: Sequence[int]) -> list[Chosen]:
    """The judged queries that moved most, and training queries: forgotten, suspected, and at random."""
    found = []
    judged = opened.told(lambda: _moved(opened), None)
    if judged is not None:
        found.append(judged)
    training = _training(opened, suspected)
    if training.tags:
        found.append(training)
    return found


def _moved(opened: Opened) -> Chosen | None:
    try:
        best, worst = moved_of(opened)
    except NotRecorded:
        return None
    tags: dict[int, list[str]] = {}
    for name, moved in (("worst", worst), ("best", best)):
        for one in moved:
            tags.setdefault(one.query_row, []).append(name)
    rows = change_of(opened).query_rows
    for row in drawn(rows, MOST_QUERIES // 4 - len(tags)):
        tags.setdefault(row, ["random"])
    return Chosen(change_of(opened).split, tags)


def _training(opened: Opened, suspected: Sequence[int]) -> Chosen:
    rows, ranks = training_ranks(opened)
    tags: dict[int, list[str]] = {}
    values = list(ranks.values())
    if len(values) >= 2:
        falls = np.min([after - before for before, after in pairwise(values)], axis=0)
        order = np.argsort(falls, kind="stable")[: int(MOST_QUERIES * SHARES["forgotten"])]
        for i in order[falls[order] < 0]:
            tags.setdefault(int(rows[i]), []).append("forgotten")
    for row in list(suspected)[: int(MOST_QUERIES * SHARES["suspected"])]:
        tags.setdefault(int(row), []).append("suspected")
    for row in drawn(rows, MOST_QUERIES - MOST_QUERIES // 4 - len(tags)):
        tags.setdefault(row, ["random"])
    return Chosen("train", tags)


def drawn(rows: Any, count: int) -> list[int]:
    """At most ``count`` query rows, drawn at random."""
    words = keyed_random.hash64(keyed_random.key(SEED, "report/explorer"), np.asarray(rows))
    return [int(rows[i]) for i in np.argsort(words, kind="stable")[: max(count, 0)]]


# ---------------------------------------------------------------- what is shown of a query


def runs_of(opened: Opened, split: str) -> dict[str, Run]:
    """The runs of a split's queries by state, in the order of training."""
    name = "query" if split == "train" else split
    states = opened.trained_states if split == "train" else [one for one in opened.states if one.kind != "passing"]
    found = {state.name: opened.run(state, name) for state in states}
    return {state: run for state, run in found.items() if run is not None}


class _Maker:
    """Makes what is shown of the queries of a split."""

    def __init__(self, opened: Opened, chosen: Chosen, runs: Mapping[str, Run], passages: Passages) -> None:
        self.opened, self.chosen, self.runs, self.passages = opened, chosen, runs, passages
        data, trains = opened.data_here, chosen.split == "train"
        self.positives: Positives = data.train if trains else data.judged[chosen.split].positives()
        self.of_query = {int(row): i for i, row in enumerate(self.positives.query_rows)}
        hits = training_hits(opened) if trains else {}
        self.best = {name: first_rank(one, int(one.returned.max(initial=0))) for name, one in hits.items()}
        self.places = {name: {int(row): i for i, row in enumerate(run.query_rows)} for name, run in runs.items()}
        pools = list(opened.pools.items()) if trains else []
        wanted = np.array(list(chosen.tags), np.int32)
        self.pools: list[tuple[str, NegativePool, dict[int, int]]] = []
        for name, pool in pools:
            at = np.flatnonzero(np.isin(pool.query_rows, wanted))
            self.pools.append((name, pool, {int(pool.query_rows[i]): int(i) for i in at}))
        self.first = self._first_irrelevant() if not self.pools and runs else {}

    def query(self, row: int) -> dict[str, Any]:
        """What is shown of one query."""
        collection = self.opened.data_here.collection
        ranks = [self._ranks(name, row) for name in self.runs]
        positives = self._positives(row)
        best = [min((one[p] for p in positives if p in one), default=0) for one in ranks]
        if (
            self.best and row in self.of_query
        ):  # the tags go by these: hits with an answer are relevant, and positives of equal queries
            best = [int(self.best[name][self.of_query[row]]) for name in self.runs]
        return {
            "id": cut(collection.query_ids[row]),
            "text": cut(collection.query_texts[row]),
            "split": self.chosen.split,
            "tags": self.chosen.tags[row],
            "moves": best,
            "positives": [
                [self.passages.place(p), [one.get(p, 0) for one in ranks]] for p in positives[:NEGATIVES]
            ],
            "negatives": self._negatives(row, set(positives), ranks),
        }

    def _positives(self, row: int) -> list[int]:
        """The judged positives of a query; without any, those that the last pool with the query was mined for."""
        pools = [(pool.positives, at[row]) for _, pool, at in self.pools if row in at]
        places = [(self.positives, self.of_query[row])] if row in self.of_query else []
        found = (known.of(at) for known, at in (*places, *reversed(pools)))
        return next((rows.tolist() for rows in found if len(rows)), [])

    def _ranks(self, state: str, row: int) -> dict[int, int]:
        """The rank of every passage that a state's run has for a query, ties as in the tables beside them."""
        at = self.places[state].get(row)
        if at is None:
            return {}
        rows, scores = self.runs[state].hits(at)
        if self.chosen.split != "train":  # the measures of a split break ties by id, descending
            id_rank = self.opened.data_here.collection.passage_ids.id_rank
            rows = rows[np.lexsort((-id_rank[rows], -scores))]
        return dict(zip(rows.tolist(), range(1, len(rows) + 1), strict=True))

    def _first_irrelevant(self) -> dict[int, list[int]]:
        """The first hits of each query, in the state that training ended with; positives may be among them.

        With labels by answers, those that contain an answer are left out. All are asked for at once, because each
        question to the cache of answers reads it.
        """
        state = FINAL if FINAL in self.runs else list(self.runs)[-1]
        found = {row: list(self._ranks(state, row))[:SEEN] for row in self.chosen.tags}
        contains = answers_of(self.opened.data_here, self.opened.cache)
        if contains is None:
            return found
        owner = np.repeat(np.array(list(found), np.int32), [len(hits) for hits in found.values()])
        relevant = iter(contains(owner, np.array([hit for hits in found.values() for hit in hits], np.int32)))
        return {row: [hit for hit in hits if not next(relevant)] for row, hits in found.items()}

    def _negatives(self, row: int, positives: set[int], ranks: list[dict[int, int]]) -> list[list[Any]]:
        """Place, source, episode, rank and score when mined, and ranks by state of each negative."""
        found: dict[int, list[Any]] = {}
        most = NEGATIVES + len(positives)
        for _, pool, at in reversed(self.pools):  # the last pool comes first: training ended with it
            left = 2 * (most - len(found))  # a passage may stand twice in a pool
            for entry in entries_of(pool, at[row], left) if row in at and left > 0 else []:
                source = f"momentum, {entry.source}" if entry.momentum else entry.source
                score = None if entry.score is None else round(entry.score, 4)
                moves = [one.get(entry.passage_row, 0) for one in ranks]
                said = [source, entry.episode, entry.rank, score, moves]
                found.setdefault(entry.passage_row, said)
        if not self.pools and ranks:
            for passage in self.first[row][: HITS + len(positives)]:
                found[passage] = ["irrelevant hit", None, None, None, [one.get(passage, 0) for one in ranks]]
        shown_ = [(row, said) for row, said in found.items() if row not in positives][:NEGATIVES]
        return [[self.passages.place(passage), *said] for passage, said in shown_]

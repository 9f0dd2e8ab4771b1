"""Runs against judgements, and runs against runs. Loads no torch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.api.inputs import (
    AnyQrels,
    AnyRun,
    Data,
    Place,
    cache_at,
    check_file,
    collection_of,
    is_experiment,
    model_place,
    opened_run,
)
from hardneg.api.outcomes import Compared, Evaluated
from hardneg.api.reopen import experiment_data
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.formats.arrays import write_records
from hardneg.data.formats.trec import open_qrels, qrels_of, read_runs
from hardneg.data.ids import IdSpace, extend
from hardneg.data.judgements import JudgedIds, read_judgements
from hardneg.data.training_data import ChosenSplits, named_split
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.compare import UNJUDGED, compare_runs, first_disagreement, overlap
from hardneg.evaluation.measures import Evaluation, Measure, parse_measures
from hardneg.experiment.folder import read_settings, splits_of
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import few_of_dev
from hardneg.experiment.provenance import collection_within
from hardneg.experiment.so_far import dev_so_far
from hardneg.records import Qrels, Run, spans
from hardneg.search.fusion import check_alike
from hardneg.storage.safe_read import read_json

log = logging.getLogger(__name__)

SEARCHED = "give the split or the qrels that the run was searched for"
LEAST_CUT = 10  # hits of a query: a run that ends before is not taken for one that was cut


@checked
def evaluate(
    run: AnyRun,
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: AnyQrels | None = None,
    judgements: Place | None = None,
    measures: str | Sequence[str] = "RR@10 nDCG@10 R@100 R@1000",
    per_query: Place | None = None,
    cache: Place | None = None,
) -> Evaluated:
    """Score a run by the judgements of a collection's split, or of a qrels file.

    Parameters
    ----------
    run : a file (TREC or MS MARCO, ``.gz`` or not); an experiment, which means the run of its final model; the
        folder of a run that an experiment keeps, such as ``EXP/episodes/2/runs/query``;
        ``{query id: {passage id: score}}``; or a :class:`~hardneg.records.Run` of the collection's rows.
    split : the split of the collection that judges, and of the run of an experiment.
    qrels : a file (TREC or BEIR), or ``{query id: {passage id: grade}}``.
    data : the collection; without it and ``qrels``, that of the first experiment among the runs.
    judgements : a file of people's further judgements, as the audit's page saves it. They are added to the queries
        that are judged already: a relevant passage gets grade 1 or keeps a higher grade, and a passage labelled
        negative gets 0.
    measures : in ir_measures notation, as a list or as one text separated by blanks. There is also ``Answer@20``
        (or ``Answer(mode=regex)@20``), which needs a collection with answers.
    per_query : the file to write one JSON object to for each query: ``{"query_id": ..., "RR@10": ..., ...}``.

    Returns
    -------
    ``{"measures": {"RR@10": mean, ...}, "queries": n, "missing": n, "unjudged": n}``: the means are over
    ``queries``, of which ``missing`` are not in the run and score 0; ``unjudged`` queries of the run are left out.
    Where measures count different queries (those with a relevant passage, those with an answer), ``counted`` gives
    the number for each measure.

    Raises
    ------
    SettingsError : an unknown measure or split; neither or both of ``data`` and ``qrels``; a split with ``qrels``
        and no experiment.
    InputError : a malformed line of the run or of the qrels; no answers; no judged query is in the run. If fewer
        than half of them are, a warning says so.
    """
    parsed = parse_measures(measures)
    if per_query is not None:
        check_file(Path(per_query), [run, qrels, data, judgements])
    runs, judged, queries, passages, collection = open_runs([run], data, split, qrels, cache)
    if judgements is not None:
        judged = extended(judged, Path(judgements), queries, passages, collection)
    evaluation = evaluate_with_answers(
        runs[0], judged, parsed, collection=collection, cache=cache_at(cache), id_rank=None
    )
    check_overlap(named(run), evaluation, judged_by(split, qrels))
    warn_of_depth(named(run), runs[0], evaluation, parsed, collection)
    warn_of_no_passage(named(run), runs[0], judged, judged_by(split, qrels))
    if per_query is not None:
        write_per_query(Path(per_query), evaluation, queries)
    return Evaluated(evaluation.as_json())


def extended(
    judged: Qrels, place: Path, queries: IdSpace, passages: IdSpace, collection: Collection | None
) -> Qrels:
    """Judgements extended by those of a file; the log says how many, and how many are of other queries.

    Raises
    ------
    InputError : a line is wrong, or names what the collection does not have.
    """
    found = read_judgements(place)
    if collection is not None:  # without one, nobody knows which ids there are
        found.known(collection.query_ids, collection.passage_ids)
    named = [pair for pair in found.pairs if queries.rows([pair[0]])[0] >= 0]
    there = JudgedIds(place, {pair: found.pairs[pair] for pair in named})
    space, _ = extend(passages, list(dict.fromkeys(passage for _, passage in named)))
    more = there.known(queries, space)
    used = int(np.isin(more.query_rows, judged.query_rows).sum())
    log.info("%s: %d judgements of people, %d of other queries", place, used, len(found.pairs) - used)
    if not used:
        what = "%s: none of its judged pairs (%s) is of a query that is measured, so it changes nothing"
        log.warning(what, place, f"{len(found.pairs):,}")
    return more.extend(judged)


def judged_by(split: str, qrels: AnyQrels | None) -> str:
    """The name of the judgements for messages: the split, or the file."""
    if qrels is None:
        return f"split '{split}'"
    return str(qrels) if isinstance(qrels, str | Path) else "the qrels"


def named(given: AnyRun, number: int | None = None) -> str:
    """The name of a run for messages: the file, or for one in memory ``run`` and its number."""
    if isinstance(given, str | Path):
        return str(given)
    return "the run" if number is None else f"run {number}"


def check_overlap(run: str, evaluation: Evaluation, judged: str, *, fix: str = SEARCHED) -> None:
    """Refuse a run that has none of the judged queries; warn if it lacks more than half of them.

    The measures of such a run would be 0, which would say nothing about its quality.

    Raises
    ------
    InputError : no query is in both.
    """
    total, missing = len(evaluation.query_rows), evaluation.missing
    if missing == total:
        what = f"none of the {total:,} judged queries of {judged} is in the run"
        raise InputError("NO_OVERLAP", what, fix, path=run)
    if 2 * missing > total:
        log.warning(
            "%s: only %d of the %d judged queries of %s are in the run; the others score 0",
            run,
            total - missing,
            total,
            judged,
        )


def warn_of_depth(
    name: str, run: Run, found: Evaluation, measures: Sequence[Measure], collection: Collection | None
) -> None:
    """Warn of measures that look deeper than a run goes, such as R@1000 of the 100 hits that training keeps.

    A search was cut at some depth if half of its queries or more have just so many hits; BM25 may find fewer. A
    measure that is 1 cannot be too low.
    """
    counts = spans(run.offsets)
    deepest = int(counts.max(initial=0))
    if deepest < LEAST_CUT or 2 * int((counts == deepest).sum()) < len(counts):
        return
    if collection is not None and deepest >= collection.n_passages:
        return
    deeper = [str(measure) for measure in measures if measure.cutoff is not None and measure.depth > deepest]
    if deeper := [name for name in deeper if found.of(name).mean() < 1]:
        log.warning(
            "%s: its queries have at most %d hits, so %s may be too low; search with a larger k",
            name,
            deepest,
            " and ".join(deeper),
        )


def warn_of_no_passage(name: str, run: Run, judged: Qrels, by: str) -> None:
    """Warn of a run that holds no judged passage, for its ids may be of another collection."""
    if not np.isin(run.passage_rows, judged.passage_rows).any():
        log.warning("%s: it holds no passage that %s names; are the ids the same?", name, by)


def write_per_query(path: Path, evaluation: Evaluation, queries: IdSpace) -> None:
    """Write the values of every query to ``path``, one JSON object a line.

    A value is null where a measure does not count the query.
    """
    columns = columns_of(evaluation)
    rows = zip(queries.take(evaluation.query_rows), *columns.values(), strict=True)
    write_records(
        path, ({"query_id": query, **dict(zip(columns, values, strict=True))} for query, *values in rows)
    )


def columns_of(evaluation: Evaluation) -> dict[str, list[float | None]]:
    """The values of every query, by measure; None where a measure does not count the query."""
    return {
        name: [None if math.isnan(value) else value for value in values.tolist()]
        for name, values in evaluation.values.items()
    }


@checked
def compare(
    runs: Sequence[AnyRun],
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: AnyQrels | None = None,
    measures: str | Sequence[str] = "RR@10 nDCG@10",
    seed: int = 0,
    per_query: Place | None = None,
    cache: Place | None = None,
) -> Compared:
    """Paired tests of every pair of runs, for every measure.

    Parameters
    ----------
    runs, qrels, measures : as for :func:`evaluate`; a run that is not a file is named by its position, such as
        ``run 1``.
    per_query : the file to write one JSON object to for each pair of runs and query: ``{"query_id", "a", "b"}``;
        both values by measure (``"RR@10": [0.5, 1.0]``); ``differ_at``, the first rank among the first 100 at
        which the two runs differ (null if there is none); the passages at that rank (``hits``); and their
        ``grades`` (null if unjudged, or if a run has ended).

    Returns
    -------
    For each measure and pair a row: ``a``, ``b``, ``measure``, ``difference`` (a - b) and its bootstrap
    ``interval`` (95 %), ``p`` of the two-sided randomisation test, ``p_holm`` (corrected over the pairs of a
    measure), ``p_t`` of the paired t-test, ``wins``, ``ties`` and ``losses`` of a, and ``overlap``: the number
    of hits that the first 100 of both runs have in common, divided by the number of hits (at most 100) of the run
    that has more; its mean over queries. A query that one run lacks counts as 0.

    Raises
    ------
    SettingsError, InputError : as for :func:`evaluate`; fewer than two runs.
    """
    if len(runs) < 2:
        raise SettingsError("ONE_RUN", "there is nothing to compare with", "give two runs or more")
    parsed = parse_measures(measures)
    if per_query is not None:
        check_file(Path(per_query), [*runs, qrels, data])
    opened, judged, queries, passages, collection = open_runs(runs, data, split, qrels, cache)
    options: dict[str, Any] = {"collection": collection, "cache": cache_at(cache), "id_rank": None}
    evaluations = [evaluate_with_answers(run, judged, parsed, **options) for run in opened]
    names = [named(run, number) for number, run in enumerate(runs, 1)]
    for name, run, evaluation in zip(names, opened, evaluations, strict=True):
        check_overlap(name, evaluation, judged_by(split, qrels))
        warn_of_depth(name, run, evaluation, parsed, collection)
        warn_of_no_passage(name, run, judged, judged_by(split, qrels))
    pairs = [Pair(*pair) for pair in itertools.combinations(zip(names, opened, evaluations, strict=True), 2)]
    if per_query is not None:
        write_records(Path(per_query), (row for pair in pairs for row in pair.by_query(judged, queries, passages)))
    shared = [overlap(pair.a[1], pair.b[1], queries=pair.a[2].query_rows) for pair in pairs]
    rows = []
    for measure in map(str, parsed):
        tests = compare_runs(names, [e.of(measure) for e in evaluations], measure=measure, seed=seed)
        rows += [dataclasses.asdict(test) | {"overlap": share} for test, share in zip(tests, shared, strict=True)]
    return Compared(rows)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two runs, each with its name, its hits and its values."""

    a: tuple[str, Run, Evaluation]
    b: tuple[str, Run, Evaluation]

    def by_query(self, judged: Qrels, queries: IdSpace, passages: IdSpace) -> Iterator[dict[str, Any]]:
        """Yield both values of every counted query, and the first rank at which the two rankings differ."""
        (a, run_a, of_a), (b, run_b, of_b) = self.a, self.b
        differs = first_disagreement(run_a, run_b, of_a.query_rows, judged)
        hits = np.full(differs.passages.shape, None, object)
        hits[differs.passages >= 0] = passages.take(differs.passages[differs.passages >= 0])
        left, right = columns_of(of_a), columns_of(of_b)
        for i, query in enumerate(queries.take(of_a.query_rows)):
            yield {
                "query_id": query,
                "a": a,
                "b": b,
                **{name: [left[name][i], right[name][i]] for name in left},
                "differ_at": int(differs.rank[i]) or None,
                "hits": hits[i].tolist(),
                "grades": [None if grade == UNJUDGED else grade for grade in differs.grades[i].tolist()],
            }


def experiments_of(paths: Sequence[AnyRun]) -> list[Path]:
    """Choose the places that are experiments."""
    places = [Path(path) for path in paths if isinstance(path, str | Path)]
    return [path for path in places if path.is_dir() and is_experiment(Layout(path))]


def check_split(split: str, paths: Sequence[AnyRun]) -> None:
    """Refuse a split beside a file of judgements, unless it says which run of an experiment is meant."""
    if split != "test" and not experiments_of(paths):
        what = f"split = {split}, and the judgements are those of qrels, whatever split they are of"
        raise SettingsError("BAD_SETTING", what, "leave one of them out")


def collection_of_experiment(paths: Sequence[AnyRun]) -> Collection | None:
    """The collection of the first of these places that is an experiment; None if none is.

    Raises
    ------
    ArtifactError : it has no model yet, or is one of several seeds, whose run could not be opened either.
    """
    found = experiments_of(paths)
    if not found:
        return None
    model_place(found[0])
    return collection_within(found[0])


def judged_split(collection: Collection, split: str, paths: Sequence[AnyRun]) -> Qrels:
    """The judgements of a split; ``dev`` and ``test`` are those that the experiments used, whatever their names.

    The dev may be held out of train, or drawn from a split. If the experiments drew different numbers of queries,
    the smallest dev is used, because it is a part of the others.

    Raises
    ------
    SettingsError : the collection has no such split, and no experiment has a dev.
    InputError : two experiments have devs of which neither is a part of the other, or different tests.
    """
    if split == "test":
        return named_split(collection, tested_on(paths) or split, "split")
    own = devs_of(collection, paths) if split == "dev" else {}
    same_dev(own)
    same_passages(own)
    warn_of_few(own, alone=len(own) < len(paths) or len(own) == 1)
    if any(one.held_out or one.dev_queries is not None or one.dev != split for one in own.values()):
        smallest = min(own, key=lambda place: own[place].held_out or own[place].dev_queries or math.inf)
        dev = experiment_data(smallest, collection).dev
        assert dev is not None
        return dev
    return named_split(collection, split, "split")


def tested_on(paths: Sequence[AnyRun]) -> str | None:
    """The split that the experiments among these places were tested on; None: there is none, or none says so.

    Raises
    ------
    InputError : two were tested on different splits.
    """
    first: tuple[Path, str] | None = None
    for place in experiments_of(paths):
        try:
            test = splits_of(read_settings(place), place).test
        except ArtifactError:  # an experiment of an older format
            continue
        if test is None:
            continue
        first = first or (place, test)
        if test != first[1]:
            what = f"it was tested on the split '{test}', and {first[0]} on '{first[1]}'"
            raise InputError("NO_OVERLAP", what, "search with both of them, and compare these runs", path=place)
    return None if first is None else first[1]


def devs_of(collection: Collection, paths: Sequence[AnyRun]) -> dict[Path, ChosenSplits]:
    """The chosen splits of each place that is an experiment with a dev.

    An experiment of an older format, which does not record them, is left out: its dev is the collection's split
    ``dev``. If there is no such split, that is a fault.
    """
    found = {}
    for place in experiments_of(paths):
        try:
            one = splits_of(read_settings(place), place)
        except ArtifactError:
            if "dev" not in collection.splits:
                raise
            continue
        if one.held_out or one.dev is not None:
            found[place] = one
    return found


def same_dev(experiments: Mapping[Path, ChosenSplits]) -> None:
    """Refuse experiments with unrelated devs: a query that a run has no hits for would count as 0.

    Raises
    ------
    InputError : an experiment was judged on another split than the first one, or held out other training queries.
    """
    first: tuple[Path, tuple[Any, ...]] | None = None
    for place, one in experiments.items():
        held_out = bool(one.held_out)
        drawn = (held_out, one.train, one.seed, one.measurable, one.whole_texts)
        identity = drawn if held_out else (held_out, one.dev)
        first = first or (place, identity)
        if identity != first[1]:
            what = f"its dev has other queries than that of {first[0]}: another split, or others held out of train"
            fix = "compare them by --split test, or train them with one seed"
            raise InputError("NO_OVERLAP", what, fix, path=place)


def same_passages(experiments: Mapping[Path, ChosenSplits]) -> None:
    """Refuse experiments whose devs were judged among different passages.

    Raises
    ------
    InputError : dev was judged among other hits of BM25, or among all passages, than in the first experiment.
    """
    among = {place: dev_among(place, one) for place, one in experiments.items()}
    first = next(iter(among), None)
    for place, one in among.items():
        if first is not None and one != among[first]:
            what = f"its dev was judged among other passages than that of {first}"
            fix = "compare them by --split test, or train them with the same dev queries and dev_passages"
            raise InputError("NO_OVERLAP", what, fix, path=place)


def warn_of_few(experiments: Mapping[Path, ChosenSplits], *, alone: bool) -> None:
    """Warn of experiments whose dev ranks few passages, unless all runs are such (not ``alone``)."""
    told = (
        "%s: its dev ranks the first %d passages of BM25 alone, so its figures are too high, and cannot be"
        " compared with those of a run that ranks all passages; take --split test"
    )
    for place, one in experiments.items() if alone else ():
        if among := dev_among(place, one):
            log.warning(told, place, among[0])


def dev_among(experiment: Path, splits: ChosenSplits) -> tuple[int, int | None] | None:
    """What decides among which passages dev was judged: hits of BM25 for how many queries; None: all passages."""
    layout = Layout(experiment)
    found = read_json(layout.results) if layout.results.is_file() else dev_so_far(layout)
    asked = read_settings(experiment).get("result_settings", {}).get("dev_passages")
    first = few_of_dev(found if isinstance(found, dict) else {}, asked)
    return None if first is None else (first, splits.held_out or splits.dev_queries)


def open_runs(
    paths: Sequence[AnyRun], data: Data | None, split: str, qrels: AnyQrels | None, cache: Place | None
) -> tuple[list[Run], Qrels, IdSpace, IdSpace, Collection | None]:
    """Open runs and their judgements: runs, judgements, ids of queries and of passages, and the collection."""
    if data is None and qrels is None:
        data = collection_of_experiment(paths)
    if (data is None) == (qrels is None):
        raise SettingsError(
            "NO_JUDGEMENTS", "judgements are given twice, or not at all", "give either --data or --qrels"
        )
    if qrels is not None:
        check_split(split, paths)
        judged, *spaces = qrels_of(qrels) if isinstance(qrels, Mapping) else open_qrels(Path(qrels))
        runs, queries, passages = read_runs([opened_run(path, split, None) for path in paths], *spaces)
        check_alike(runs)
        return runs, judged, queries, passages, None
    assert data is not None
    collection = collection_of(data, cache)
    places = [opened_run(path, split, collection) for path in paths]
    judged = judged_split(collection, split, paths)
    runs, queries, passages = read_runs(
        places, collection.query_ids, collection.passage_ids, collection=collection.digest
    )
    return runs, judged, queries, passages, collection

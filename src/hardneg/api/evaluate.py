"""Runs against judgements, and runs against runs. Loads no torch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
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
    check_inputs,
)
from hardneg.api.judged_runs import open_runs, seeds_of_run
from hardneg.api.outcomes import Compared, Evaluated
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.formats.arrays import write_records
from hardneg.data.ids import IdSpace, extend
from hardneg.data.judgements import JudgedIds, read_judgements
from hardneg.data.own_passages import of_same_id, without_own, without_pairs
from hardneg.errors import InputError, SettingsError
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.compare import UNJUDGED, compare_runs, first_disagreement, overlap
from hardneg.evaluation.measures import ENOUGH, Evaluation, Measure, parse_measures, relevant_hits
from hardneg.records import Qrels, Run, spans

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
    leave_out_own: bool = False,
    measures: str | Sequence[Any] = "RR@10 nDCG@10 R@100 R@1000",
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
    leave_out_own : leave out each hit that has the id of its query, as BEIR and mteb do for queries that are
        passages themselves. With a collection, a hit that has the id and the text of its query is always left out,
        unless it is judged relevant.
    measures : in ir_measures notation, as a list or as one text separated by blanks. There is also ``Answer@20``
        (or ``Answer(mode=regex)@20``), which needs a collection with answers.
    per_query : the file to write one JSON object to for each query: ``{"query_id": ..., "RR@10": ..., ...}``.

    Returns
    -------
    ``{"measures": {"RR@10": mean, ...}, "queries": n, "missing": n, "unjudged": n}``: the means are over
    ``queries``, of which ``missing`` are not in the run and score 0; ``unjudged`` queries of the run are left out,
    as no passage is judged relevant (grade 1 or more) for them, or they have no answer. Where measures count
    different queries (those with a relevant passage, those with an answer), ``counted`` gives the number for each
    measure.

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
    check_inputs(run, qrels, judgements)
    runs, judged, queries, passages, collection = open_runs([run], data, split, qrels, cache)
    if leave_out_own:
        runs = without_own_ids(runs, queries, passages)
    if judgements is not None:
        judged = extended(judged, Path(judgements), queries, passages, collection)
    whole, runs = runs, without_own_passages(runs, judged, collection)
    evaluation = evaluate_with_answers(
        runs[0], judged, parsed, collection=collection, cache=cache_at(cache), id_rank=None
    )
    check_overlap(named(run), evaluation, judged_by(split, qrels))
    warn_of_depth(named(run), whole[0], runs[0], judged, evaluation, parsed, collection)
    warn_of_no_passage(named(run), runs[0], judged, judged_by(split, qrels))
    if per_query is not None:
        write_per_query(Path(per_query), evaluation, queries)
    return Evaluated(evaluation.as_json())


def without_own_ids(runs: Sequence[Run], queries: IdSpace, passages: IdSpace) -> list[Run]:
    """The runs without the hits that have the id of their query."""
    return [without_pairs(run, *of_same_id(run.query_rows, queries, passages)) for run in runs]


def without_own_passages(runs: Sequence[Run], judged: Qrels, collection: Collection | None) -> list[Run]:
    """The runs without the hits that are their query itself; without a collection these are not known."""
    if collection is None:
        return list(runs)
    return [without_own(run, judged.positives(), collection) for run in runs]


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
    name: str,
    whole: Run,
    run: Run,
    judged: Qrels,
    found: Evaluation,
    measures: Sequence[Measure],
    collection: Collection | None,
    furthest: int = 0,
) -> None:
    """Warn of measures that look deeper than a run goes, such as R@1000 of the 100 hits that training keeps.

    A search was cut at some depth if half of its queries or more have just so many hits; BM25 may find fewer. Of
    measures that a deeper search cannot raise, such as RR where each query has a relevant hit, nothing is said.

    Parameters
    ----------
    whole, run : the run as it was searched, and without the hits that are their query itself.
    furthest : the hits that a query has at most in the runs that are compared. A measure without a cut-off should
        look at so many in each of them, as it grows with the hits, and at no fewer than a search brings for it.
    """
    counts, deepest, cut = spans(whole.offsets), cut_of(run), cut_of(whole)
    if cut < LEAST_CUT or 2 * int((counts == cut).sum()) < len(counts):
        return
    if collection is not None and cut >= collection.n_passages:
        return
    # Training searches one deeper for queries that are passages, so a difference of one hit says nothing.
    ends_early = cut < max(ENOUGH, furthest - 1)
    deeper = [one for one in measures if (ends_early if one.cutoff is None else one.cutoff > deepest)]
    # A list that lost the query itself before is one hit shorter than the others.
    were_cut = judged.select(np.flatnonzero(np.isin(judged.query_rows, whole.query_rows[counts >= cut - 1])))
    if low := [str(one) for one in deeper if can_rise(one, run, were_cut, found)]:
        log.warning(
            "%s: its queries have at most %d hits, so %s may be too low; search with a larger k",
            name,
            deepest,
            " and ".join(low),
        )


def can_rise(measure: Measure, run: Run, judged: Qrels, found: Evaluation) -> bool:
    """Whether further hits of the queries that ``judged`` has could raise a measure.

    They can if the run lacks a relevant passage of a query, or all of them where the first hit alone counts. Which
    further passages are judged or have an answer is not known here: then a measure that is not 1 may rise.
    """
    if measure.name in ("Judged", "Answer"):
        return bool(found.of(str(measure)).mean() < 1)
    positives = judged.positives(measure.rel).some()
    if not len(positives):
        return False
    hits = relevant_hits(run, positives)
    wanted = 1 if measure.name in ("RR", "Success") else spans(positives.offsets)
    return bool((hits.count(hits.query) < wanted).any())


def cut_of(run: Run) -> int:
    """The hits that a query of the run has at most."""
    return int(spans(run.offsets).max(initial=0))


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
    leave_out_own: bool = False,
    measures: str | Sequence[Any] = "RR@10 nDCG@10",
    seed: int = 0,
    per_query: Place | None = None,
    cache: Place | None = None,
) -> Compared:
    """Paired tests of every pair of runs, for every measure.

    Parameters
    ----------
    runs, qrels, leave_out_own, measures : as for :func:`evaluate`; a run that is not a file is named by its
        position, such as ``run 1``. The folder of an experiment with several seeds stands for all of them: the
        values of each query are averaged over the seeds, and the tests are over these averages. So they speak of
        other queries, and ``by_seed`` tells how far the seeds agree.
    per_query : the file to write one JSON object to for each pair of runs and query: ``{"query_id", "a", "b"}``;
        both values by measure (``"RR@10": [0.5, 1.0]``); ``differ_at``, the first rank among the first 100 at
        which the two runs differ (null if there is none); the passages at that rank (``hits``); and their
        ``grades`` (null if unjudged, or if a run has ended). With several seeds, the hits of the first are told.

    Returns
    -------
    For each measure and pair a row: ``a``, ``b``, ``measure``, ``difference`` (a - b) and its bootstrap
    ``interval`` (95 %), ``p`` of the two-sided randomisation test, ``p_holm`` (corrected over the pairs of a
    measure), ``p_t`` of the paired t-test, ``wins``, ``ties`` and ``losses`` of a, and ``overlap``: the number
    of hits that the first 100 of both runs have in common, divided by the number of hits (at most 100) of the run
    that has more; its mean over queries (and pairs of seeds). A query that one run lacks counts as 0. If a run has
    several seeds, ``by_seed`` tells the difference for each seed that both have: ``{"42": 0.012, ...}``. A run of
    one seed is compared with each seed of the other.

    Raises
    ------
    SettingsError, InputError : as for :func:`evaluate`; fewer than two runs.
    ArtifactError : a seed is not finished.
    """
    if len(runs) < 2:
        raise SettingsError("ONE_RUN", "there is nothing to compare with", "give two runs or more")
    parsed = parse_measures(measures)
    if per_query is not None:
        check_file(Path(per_query), [*runs, qrels, data])
    check_inputs(*runs, qrels)
    seeds = [seeds_of_run(run) or [run] for run in runs]
    each = [run for some in seeds for run in some]
    opened, judged, queries, passages, collection = open_runs(each, data, split, qrels, cache)
    if leave_out_own:
        opened = without_own_ids(opened, queries, passages)
    whole, opened = opened, without_own_passages(opened, judged, collection)
    options: dict[str, Any] = {"collection": collection, "cache": cache_at(cache), "id_rank": None}
    evaluations = [evaluate_with_answers(run, judged, parsed, **options) for run in opened]
    names = [named(run, number) for number, some in enumerate(seeds, 1) for run in some]
    by, furthest = judged_by(split, qrels), max(cut_of(run) for run in whole)
    for name, full, run, evaluation in zip(names, whole, opened, evaluations, strict=True):
        check_overlap(name, evaluation, by)
        warn_of_depth(name, full, run, judged, evaluation, parsed, collection, furthest)
        warn_of_no_passage(name, run, judged, by)
    sides = sides_of(runs, seeds, list(zip(names, opened, evaluations, strict=True)))
    pairs = [Pair(*pair) for pair in itertools.combinations(sides, 2)]
    if per_query is not None:
        write_records(Path(per_query), (row for pair in pairs for row in pair.by_query(judged, queries, passages)))
    return Compared(tested(sides, pairs, parsed, seed=seed))


def sides_of(
    runs: Sequence[AnyRun], seeds: Sequence[Sequence[AnyRun]], found: Sequence[tuple[str, Run, Evaluation]]
) -> list[Side]:
    """The sides of a comparison; ``found`` has the name, hits and values of each seed, run after run."""
    following, rounded = iter(found), any(len(some) > 1 for some in seeds)
    sides = []
    for number, (run, some) in enumerate(zip(runs, seeds, strict=True), 1):
        names, hits, values = zip(*itertools.islice(following, len(some)), strict=True)
        sides.append(Side(named(run, number), names, hits, values, rounded))
    return sides


def tested(
    sides: Sequence[Side], pairs: Sequence[Pair], measures: Sequence[Measure], *, seed: int
) -> list[dict[str, Any]]:
    """The rows of a comparison: for each measure the tests of all pairs, with their overlap and single seeds."""
    shared = [pair.overlap() for pair in pairs]
    several = any(len(side.runs) > 1 for side in sides)
    rows = []
    for measure in map(str, measures):
        values = [side.evaluation.of(measure) for side in sides]
        tests = compare_runs([side.name for side in sides], values, measure=measure, seed=seed)
        for test, pair, share in zip(tests, pairs, shared, strict=True):
            by_seed = {"by_seed": pair.by_seed(measure)} if several else {}
            rows.append(dataclasses.asdict(test) | {"overlap": share} | by_seed)
    return rows


@dataclasses.dataclass(frozen=True)
class Side:
    """A run that is compared, or the runs of several seeds: their hits and their values."""

    name: str
    seeds: Sequence[str]  # the names of the runs
    runs: Sequence[Run]
    evaluations: Sequence[Evaluation]
    rounded: bool = False  # whether one side or more has several seeds

    @cached_property
    def evaluation(self) -> Evaluation:
        """The values of each query, averaged over the seeds."""
        first = self.evaluations[0]
        if not self.rounded:
            return first
        # All sides alike, so that means that differ by an error of rounding alone are ties.
        means = {
            name: np.mean([one.values[name] for one in self.evaluations], axis=0).round(12)
            for name in first.values
        }
        return dataclasses.replace(first, values=means)

    def of_seeds(self, measure: str) -> dict[str, float]:
        """The mean of a measure for each seed; empty if there is one run."""
        several = zip(self.seeds, self.evaluations, strict=True) if len(self.seeds) > 1 else ()
        return {Path(seed).name.removeprefix("seed-"): one.means[measure] for seed, one in several}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two runs that are compared."""

    a: Side
    b: Side

    def overlap(self) -> float:
        """The share of their first 100 hits that the runs have in common, averaged over all pairs of seeds."""
        queries = self.a.evaluation.query_rows
        pairs = itertools.product(self.a.runs, self.b.runs)
        return float(np.mean([overlap(one, other, queries=queries) for one, other in pairs]))

    def by_seed(self, measure: str) -> dict[str, float]:
        """The difference (a - b) for each seed that both have; a run of one seed is compared with each."""
        left, right = self.a.of_seeds(measure), self.b.of_seeds(measure)
        mean_a, mean_b = (side.evaluations[0].means[measure] for side in (self.a, self.b))
        seeds = [seed for seed in left or right if not (left and right) or seed in right]
        return {seed: left.get(seed, mean_a) - right.get(seed, mean_b) for seed in seeds}

    def by_query(self, judged: Qrels, queries: IdSpace, passages: IdSpace) -> Iterator[dict[str, Any]]:
        """Yield both values of every counted query, and the first rank at which the two rankings differ."""
        a, b = self.a, self.b
        rows = a.evaluation.query_rows
        differs = first_disagreement(a.runs[0], b.runs[0], rows, judged)
        hits = np.full(differs.passages.shape, None, object)
        hits[differs.passages >= 0] = passages.take(differs.passages[differs.passages >= 0])
        left, right = columns_of(a.evaluation), columns_of(b.evaluation)
        for i, query in enumerate(queries.take(rows)):
            yield {
                "query_id": query,
                "a": a.name,
                "b": b.name,
                **{name: [left[name][i], right[name][i]] for name in left},
                "differ_at": int(differs.rank[i]) or None,
                "hits": hits[i].tolist(),
                "grades": [None if grade == UNJUDGED else grade for grade in differs.grades[i].tolist()],
            }

"""Several experiments side by side: the settings that differ, their results, paired tests, overlaid curves."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from hardneg.diagnostics.kept import AS_KEPT
from hardneg.evaluation.measures import Evaluation
from hardneg.evaluation.significance import bootstrap_interval, holm_within, randomization_test
from hardneg.experiment.folder import BASE
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import BEFORE, BM25, FINAL, RETRIEVED, STARTED, UNTRAINED, shown
from hardneg.records import Int32, owners
from hardneg.report.drawing import Figure
from hardneg.report.facts_forgetting import forgetting_table as forgotten_and_learned
from hardneg.report.facts_results import cost_summary_table, loss_table, measured_table
from hardneg.report.facts_time import overlap_by_step_table, ranking_by_step_table
from hardneg.report.measured import evaluations, means_of
from hardneg.report.opened import Opened
from hardneg.report.shapes import PERCENT, Chart, lines
from hardneg.report.table import NotMeant, NotRecorded, Table
from hardneg.report.verdict import SURE, Verdict, difference_of, split_of
from hardneg.shown import as_set, counted, listed

SEED, PERMUTATIONS = 0, 100_000


class Several:
    """Experiments that are looked at together, each under the shortest name that tells it from the others."""

    def __init__(self, experiments: Sequence[Opened]) -> None:
        self.experiments = list(experiments)
        self.notes = [note for one in experiments for note in one.notes]

    @property
    def names(self) -> list[str]:
        """The name of each experiment: the end of its path, as far as it differs from the others'."""
        paths = [os.path.abspath(one.path) for one in self.experiments]
        common = os.path.commonpath(paths) if len(set(paths)) > 1 else os.path.dirname(paths[0])
        return [os.path.relpath(path, common) for path in paths]

    def called(self, split: str, one: Opened) -> str:
        """The name of an experiment's split for people; if splits differ, it also says which queries it has."""
        name, own = split_of(split, one.dev_passages), _queries_of(split, one)
        same = all(_queries_of(split, other) == own for other in self.experiments)
        return name if same else f"{name}, {own}"

    def note(self, fault: Exception) -> None:
        """Keep a fault as a note of the first experiment."""
        self.experiments[0].note(fault)


def _queries_of(split: str, one: Opened) -> str:
    """Which queries an experiment's dev or test has."""
    splits = one.settings.get("splits") or {}
    if split == "test":
        return f"all queries of {splits.get('test') or split}"
    if splits.get("held_out"):
        return f"{splits['held_out']:,} queries held out with seed {splits.get('seed')}"
    most = splits.get("dev_queries")
    return f"{'all' if most is None else f'at most {most:,}'} queries of {splits.get('dev')}"


def settings_table(several: Several) -> Table:
    """The settings and inputs that differ, a column for each experiment."""
    found: list[dict[str, Any]] = []
    for one in several.experiments:
        record = one.settings
        named = {"recipe": record.get("recipe"), "model": record.get(BASE, {}).get("model")}
        named |= record.get("settings", {})
        found.append(named | {f"input: {name}": digest[:12] for name, digest in record.get("inputs", {}).items()})
    names = list(dict.fromkeys(name for one in found for name in one))
    rows = [
        {"setting": name} | {column: _said(one, name) for column, one in zip(several.names, found, strict=True)}
        for name in names
        if len({_said(one, name) for one in found}) > 1
    ]
    if not rows:
        raise NotRecorded("All settings and inputs are the same.")
    return Table.of(rows)


def _said(settings: dict[str, Any], name: str) -> str:
    return "(has none)" if name not in settings else as_set(settings[name])


def results_table(several: Several) -> Table:
    """The measures of the final and the untrained model of each experiment, and of BM25, by split.

    If settings changed the model before training, also those of the changed model. Of a ranker, also those of the
    retriever that it re-ranks.
    """
    rows = []
    for name, one in zip(several.names, several.experiments, strict=True):
        for split, states in means_of(one).items():
            for state in dict.fromkeys((BM25, RETRIEVED, *BEFORE, _last_of(one, list(states)))):
                if state in states:
                    rows.append(
                        {"split": several.called(split, one), "experiment": name, "state": shown(state)}
                        | states[state]
                    )
    if not rows:
        raise NotRecorded("No experiment has measured anything.")
    measures = list(dict.fromkeys(column for row in rows for column in row))
    return Table.of([{name: row.get(name) for name in measures} for row in rows])


def tests_table(several: Several) -> Table:
    """Paired tests of the last states of every two experiments on the queries that both judge.

    ``p (Holm)`` is corrected over the pairs of a measure, as ``hardneg compare`` does.
    """
    rows: list[dict[str, Any]] = []
    for (a, one), (b, other) in combinations(zip(several.names, several.experiments, strict=True), 2):
        rows += _tests(a, one, b, other)
    if not rows:
        if len(several.experiments) == 1:
            raise NotRecorded("There is no other one yet to test it against.")
        raise NotRecorded(
            "No two experiments have runs of the same queries with the same judgements, or a collection is not at"
            " hand."
        )
    families = [(row["split"], row["measure"]) for row in rows]
    for row, corrected in zip(rows, holm_within(families, [row["p"] for row in rows]), strict=True):
        row["p (Holm)"] = float(corrected)
    return Table.of(rows)


def _one_has_all(rows: Int32, others: Int32) -> bool:
    """Whether one of two experiments judges all queries of the other, as when one dev was drawn from the other."""
    return min(len(rows), len(others)) == len(np.intersect1d(rows, others))


def _among(found: Evaluation, query_rows: Int32) -> Evaluation:
    """The values of these queries alone."""
    keep = np.isin(found.query_rows, query_rows)
    return replace(found, query_rows=found.query_rows[keep], values={k: v[keep] for k, v in found.values.items()})


def _judged_alike(one: Opened, other: Opened, split: str, query_rows: Int32) -> bool:
    """Whether two experiments have the same judgements of these queries, whatever their splits are called."""
    found = []
    for qrels in (one.data_here.judged[split], other.data_here.judged[split]):
        part = qrels.select(np.flatnonzero(np.isin(qrels.query_rows, query_rows)))
        columns = part.query_rows[owners(part.offsets)], part.passage_rows, part.grades
        found.append(np.stack(columns)[:, np.lexsort(columns)])  # splits may have them in another order
    return bool(np.array_equal(found[0], found[1]))


def _dev_among(one: Opened, dev: Evaluation) -> tuple[int, int] | None:
    """What decides among which passages dev was judged: hits of BM25 for how many queries; None: all passages."""
    return None if one.dev_passages is None else (one.dev_passages, len(dev.query_rows))


def _tests(a: str, one: Opened, b: str, other: Opened) -> list[dict[str, Any]]:
    same = one.data is not None and other.data is not None
    if not same or one.data_here.collection.digest != other.data_here.collection.digest:
        return []
    rows = []
    for split in ("test", "dev"):
        x, y = _last(one, split), _last(other, split)
        if x is None or y is None or not _one_has_all(x.query_rows, y.query_rows):
            continue
        if split == "dev" and _dev_among(one, x) != _dev_among(other, y):
            continue
        x, y = _among(x, y.query_rows), _among(y, x.query_rows)
        if not _judged_alike(one, other, split, x.query_rows):
            continue
        for measure in [name for name in x.values if name in y.values]:
            difference = x.of(measure) - y.of(measure)
            low, high = bootstrap_interval(difference, seed=SEED)
            p = randomization_test(x.of(measure), y.of(measure), permutations=PERMUTATIONS, seed=SEED)
            rows.append(
                {
                    "split": split,
                    "measure": measure,
                    "a": a,
                    "b": b,
                    "a - b": float(difference.mean()),
                    "low": low,
                    "high": high,
                    "p": p,
                }
            )
        return rows  # of test, or without it of dev
    return rows


def _last_of(one: Opened, names: Sequence[str]) -> str:
    """The final one of these states, or the last one; none that a ranker re-ranks or an index searches."""
    through = {state.name for state in one.states if state.of is not None}
    own = [name for name in names if name not in through] or names
    return FINAL if FINAL in own else own[-1]


def _last(one: Opened, split: str) -> Evaluation | None:
    """The evaluation of the final state, or of the last one that there is."""
    found = evaluations(one)
    names = [state.name for state in one.states if split in found.get(state.name, {})]
    return found[_last_of(one, names)][split] if names else None


def curves_table(several: Several) -> Table:
    """The deciding measure of every state by step, of all experiments."""
    return _joined(several, measured_table, ("step", "state", "split", "measure", "value", "episode"))


def losses_table(several: Several) -> Table:
    """The moving mean of the loss by step, of all experiments."""
    return _joined(several, loss_table, ("step", "episode", "mean"))


def overlaps_table(several: Several) -> Table:
    """The share of training negatives that their queries retrieve, of all experiments (STAR, Figure 4a).

    ``negatives`` names the pool, each of which has a line of its own; it is empty where every step retrieved.
    """
    return _joined(several, overlap_by_step_table, ("step", "overlap", "negatives"))


def rankings_table(several: Several) -> Table:
    """How the queries of each step rank their positives, of all experiments (STAR, Figure 4b)."""
    return _joined(several, ranking_by_step_table, ("step", "mean RR@10", "mean errors", "episode"))


def _joined(several: Several, make: Any, columns: tuple[str, ...]) -> Table:
    """The tables of all experiments in one; a column that all of them lack is left out."""
    rows: list[dict[str, Any]] = []
    others: NotMeant | None = None
    missing: NotRecorded | None = None
    for name, one in zip(several.names, several.experiments, strict=True):
        try:
            rows += [
                {"experiment": name} | {column: row.get(column) for column in columns}
                for row in make(one).records()
            ]
        except NotMeant as reason:
            others = reason
        except NotRecorded as reason:
            missing = reason
    if not rows:
        raise others or missing or NotRecorded("No experiment has logged this.")
    return Table.of(rows, [name for name in rows[0] if any(row[name] is not None for row in rows)])


def forgetting_table(several: Several) -> Table:
    """Shares of training queries forgotten and learned from state to state, of all experiments."""
    return _joined(several, forgotten_and_learned, ("from", "to", "forgotten", "learned", "MRR@100 then"))


def costs_table(several: Several) -> Table:
    """What each experiment cost, a row for each."""
    times = ("training s", "refreshing s", "refreshes", "measuring the last s", "found ready", "working s")
    return _joined(several, cost_summary_table, (*times, "steps", "tokens encoded", "tokens trained", "peak MiB"))


def verdict_of(several: Several) -> Verdict:
    """Which experiment does best, and whether that can be told from chance."""
    try:
        tests = tests_table(several)
    except NotRecorded as reason:
        return Verdict("open", _said_of_all(several), (str(reason),), ())
    split, measure = tests.rows[0][0], tests.rows[0][1]
    rows = tests.where(split=split, measure=measure).records()
    tested = {row[side] for row in rows for side in ("a", "b")}
    if len(rows) < math.comb(len(tested), 2):
        said = f"{counted(len(tested), 'experiment')} side by side, which have different queries or judgements:"
        return Verdict("open", f"{said} see the tests.", (), ())
    known = _shared_means(several, tested, split, measure)
    best = max(known, key=lambda name: known[name])
    of_best = [row for row in rows if best in (row["a"], row["b"])]
    told = [_compared(row, best) for row in of_best]
    for name, one in zip(several.names, several.experiments, strict=True):
        if name in known and not one.finished:
            told.append(f"{name} is not finished: the state that it measured last stands for it.")
        if name in known and (state := one.results.get("kept", {}).get("state")) in BEFORE:
            told.append(f"{name} kept {AS_KEPT[state]}, because no state of its training was better on dev.")
    starts = _starts(several, known, split, measure)
    told += [starts] if starts else []
    sure = all(row["p (Holm)"] <= SURE and _signed(row, best) > 0 for row in of_best)
    among = split_of(split, several.experiments[several.names.index(best)].dev_passages)
    others = ", ".join(f"{name} {value:.3f}" for name, value in known.items() if name != best)
    sentence = f"On {among}, {best} does best: {measure} {known[best]:.3f} ({others})."
    if unsure := listed([_other(row, best) for row in of_best if row["p (Holm)"] > SURE]):
        sentence = (
            f"On {among}, {best} has the highest {measure}, {known[best]:.3f} ({others}), but cannot be told apart"
            f" from {unsure}."
        )
    if list(known.values()).count(known[best]) > 1:
        sentence = f"On {among}, none does best: {measure} {best} {known[best]:.3f}, {others}."
    kind = "open" if starts else "better" if sure else "unsure"  # a lead of the start is no merit of training
    return Verdict(kind, sentence, tuple(told), ())


def _said_of_all(several: Several) -> str:
    """What there is, where nothing is compared."""
    if len(several.experiments) > 1:
        return f"{counted(len(several.experiments), 'experiment')} side by side."
    path = several.experiments[0].path
    one = "seed" if path in [layout.path for layout in Layout(path.parent).seeds()] else "experiment"
    return f"There is one {one} so far: {several.names[0]}."


def _starts(several: Several, known: Mapping[str, float], split: str, measure: str) -> str:
    """Where experiments that start from different models began, and what they gained; "" if the model is one."""
    named = [pair for pair in zip(several.names, several.experiments, strict=True) if pair[0] in known]
    if len({one.settings.get("inputs", {}).get("model") for _, one in named}) < 2:
        return ""
    parts = []
    for name, one in named:
        start, last = _start(one, split), _last(one, split)
        if start is not None and last is not None and measure in start.values:
            before, after = (float(found.of(measure).mean()) for found in (start, last))
            parts.append(f"{name} began at {before:.3f} and gained {after - before:+.3f}")
    return f"They start from different models: {'; '.join(parts) or 'what these had is not known'}."


def _start(one: Opened, split: str) -> Evaluation | None:
    """The evaluation of the untrained model that is kept; else that of the one that training started from."""
    kept = one.results.get("kept", {}).get("state")
    names = [name for name in (kept, STARTED, UNTRAINED) if name in BEFORE]
    found = evaluations(one)
    return next((found[name][split] for name in names if split in found.get(name, {})), None)


def _shared_means(several: Several, tested: set[str], split: str, measure: str) -> dict[str, float]:
    """The mean of each tested experiment over the queries that all of them judge.

    Experiments without a test have other queries or judgements, or another collection.
    """
    found = {
        name: last
        for name, one in zip(several.names, several.experiments, strict=True)
        if name in tested and (last := _last(one, split)) is not None and measure in last.values
    }
    shared = reduce(np.intersect1d, [one.query_rows for one in found.values()])
    return {name: float(_among(one, shared).of(measure).mean()) for name, one in found.items()}


def _signed(row: dict[str, Any], best: str) -> float:
    """The difference of a test, seen from ``best``: above 0 where it is ahead."""
    return float(row["a - b"] if row["a"] == best else -row["a - b"])


def _other(row: dict[str, Any], best: str) -> str:
    """The experiment that a test compares with ``best``."""
    return str(row["b"] if row["a"] == best else row["a"])


def _compared(row: dict[str, Any], best: str) -> str:
    sign = 1 if row["a"] == best else -1
    difference = _signed(row, best)
    word = "cannot be told apart from"
    if row["p (Holm)"] <= SURE:
        word = f"is {'better' if difference > 0 else 'worse'} than"
    test = {"difference": difference, "interval": sorted((sign * row["low"], sign * row["high"]))}
    told = difference_of(test | {"p": row["p"], "p_holm": row["p (Holm)"]})
    return f"{best} {word} {_other(row, best)}: {told}."


def curves_chart(table: Table) -> Chart:
    """The deciding measure of every state by step, a line for each experiment."""
    named = dict.fromkeys(f"{row['split']} {row['measure']}" for row in table.records())
    return lines(table, x="step", y="value", by="experiment", apart="episode", zero=False, title=", ".join(named))


def losses_chart(table: Table) -> Chart:
    """The moving mean of the loss by step, a line for each experiment."""
    return lines(table, x="step", y="mean", by="experiment", apart="episode", title="training loss")


def overlaps_chart(table: Table) -> Chart:
    """The overlap of static with dynamic negatives by step, a line for each pool of each experiment."""
    title = "share that is retrieved"
    return lines(table, x="step", y="overlap", by="experiment", apart="negatives", title=title, form=PERCENT)


def ranks_chart(table: Table) -> Chart:
    """The reciprocal rank of the queries of each step, a line for each experiment."""
    return lines(
        table,
        x="step",
        y="mean RR@10",
        by="experiment",
        apart="episode",
        zero=False,
        title="RR@10 of training queries",
    )


def errors_chart(table: Table) -> Chart:
    """The errors of the queries of each step, a line for each experiment."""
    return lines(table, x="step", y="mean errors", by="experiment", apart="episode", title="errors of a query")


FIGURES: tuple[Figure[Several], ...] = (
    Figure("settings", "Settings that differ", "Settings and inputs", "", settings_table),
    Figure("results", "Results", "Measures", "Means over the queries of each split.", results_table),
    Figure(
        "comparisons",
        "Results",
        "Paired tests",
        "Two-sided randomisation tests over the queries that both experiments measure. p is corrected by Holm over"
        " the pairs of a measure, as `hardneg compare` does. The tests are of these trainings: with another seed a"
        " difference may come out otherwise.",
        tests_table,
    ),
    Figure(
        "measured",
        "Learning curve",
        "Measured on the way",
        "The deciding measure of each state by step. If episodes start from scratch, each has its own line, which"
        " begins at the untrained model. Among BM25's first passages dev figures are higher than among all"
        " passages, so the two cannot be compared.",
        curves_table,
        curves_chart,
    ),
    Figure(
        "learning_curve",
        "Learning curve",
        "Loss",
        "The moving mean by step. Different losses cannot be compared.",
        losses_table,
        losses_chart,
    ),
    Figure(
        "static_and_dynamic",
        "Static and dynamic negatives",
        "Overlap",
        "How many of the training negatives their queries retrieve (STAR, Figure 4a). `adore` logs this at every"
        " step. Other recipes have a line for each pool, with the states at which training on it began and ended.",
        overlaps_table,
        overlaps_chart,
    ),
    Figure(
        "ranks_by_step",
        "Static and dynamic negatives",
        "Ranks of training queries",
        "How high training queries rank their positives (STAR, Figure 4b): with `adore` those of each step, as a"
        " moving mean; with other recipes all of them, in each state.",
        rankings_table,
        ranks_chart,
    ),
    Figure(
        "errors_by_step",
        "Static and dynamic negatives",
        "Errors of training queries",
        "Passages above a positive in the list that a query retrieves: of the same queries as the figure before.",
        rankings_table,
        errors_chart,
    ),
    Figure(
        "forgetting",
        "Forgetting",
        "Forgotten and learned",
        "Training queries whose RR@100 fell, or rose, from one state to the next, and from the first state to the"
        " last one. If an earlier trained state was kept, and was searched for the training queries, one more row"
        " goes to it.",
        forgetting_table,
    ),
    Figure(
        "cost_summary",
        "Cost",
        "Cost of the whole",
        "Seconds of training, of refreshing negatives, and of both (STAR, Table 4; ANCE, Table 5). Refreshing has"
        " all encoding and searching before the last step here, also that which measures states: so training on"
        " in-batch negatives, which mines nothing, has some. Vectors that were `found ready` in a cache cost"
        " nothing. Seconds compare only experiments that ran on one machine, beside nothing else. Those of `ar2`"
        " are of both models.",
        costs_table,
    ),
)
SECTIONS: tuple[str, ...] = (
    "Settings that differ",
    "Results",
    "Learning curve",
    "Static and dynamic negatives",
    "Forgetting",
    "Cost",
)

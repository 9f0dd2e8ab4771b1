"""How well an audit finds planted false negatives, and what they do to training.

Known positives lose their judgement and are planted among mined negatives of BM25 and the model
(:mod:`audit_plants`); what is planted is drawn anew for each draw. The page tells precision and recall of each
signal from its threshold on, and of the ranking by its length. With ``--train`` a model is trained with and
without the planted ones (:mod:`audit_training`). The outcomes that ``--kept`` names make the page again; a draw or
an experiment that stands there is not made again.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from audit_plants import DEPTH, Bool, Searched, is_held, search, with_planted
from audit_training import MEASURE, common_of, folder_of, prepare, steps_of, study_of, told
from harness import Study, begin, called, command_line, insert, keep, say, table
from outcomes import Outcome

from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.diagnostics.audit import Audit, Pairs, StateRun, audit_pairs
from hardneg.models.source import ModelSource

LENGTHS = (30, 100, 200, 500, 1000, 2000)
GRID = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.63, 1.0)
TOGETHER, ANY = "all together", "any of them"


# ---------------------------------------------------------------- figures of a draw


def figures(found: Audit, truth: Bool) -> dict[str, Any]:
    """Precision and recall of each signal by its threshold, and of the rankings by their length.

    Parameters
    ----------
    truth : [n] whether each pair was planted.
    """
    orders = {TOGETHER: found.order()}
    orders |= {one.name: np.argsort(-np.nan_to_num(one.strength), kind="stable") for one in found.signals}
    fires = {one.name: one.fires for one in found.signals} | {ANY: found.fired > 0}
    return {
        "queries": len(found.pairs.pool),
        "pairs": len(truth),
        "planted": int(truth.sum()),
        "thresholds": {one.name: one.threshold for one in found.signals},
        "signals": {name: precision_recall(some, truth) for name, some in fires.items()},
        "grid": {
            one.name: {str(value): precision_recall(one.values >= value, truth) for value in GRID}
            for one in found.signals
        },
        "ranking": {name: ranked(truth[order]) for name, order in orders.items()},
    }


def ranked(truth: Bool) -> dict[str, Any]:
    """How many are planted among the first so many, and the average precision."""
    hits = np.cumsum(truth)
    precision = hits[truth] / (np.flatnonzero(truth) + 1)
    at = {str(length): int(hits[length - 1]) for length in LENGTHS if length <= len(hits)}
    return {"hits": at, "average precision": float(precision.mean()) if len(precision) else 0.0}


def precision_recall(fires: Bool, truth: Bool) -> dict[str, float]:
    """The pairs that are named, the share of them that was planted, and the share of the planted."""
    hits = int((fires & truth).sum())
    return {
        "named": int(fires.sum()),
        "precision": hits / max(int(fires.sum()), 1),
        "recall": hits / max(int(truth.sum()), 1),
    }


def lowest(grids: Sequence[Mapping[str, Mapping[str, float]]], share: float) -> float | None:
    """The lowest value of the grid from which on at least ``share`` of what is named is planted, in the mean."""
    for value in GRID:
        found = [grid[str(value)] for grid in grids]
        if all(one["named"] for one in found) and np.mean([one["precision"] for one in found]) >= share:
            return value
    return None


# ---------------------------------------------------------------- a study of one collection


class Work:
    """What is only searched if something is missing."""

    def __init__(self, chosen: Namespace) -> None:
        self.chosen = chosen

    @cached_property
    def collection(self) -> Collection:
        """The collection that is looked at."""
        return collection_of(self.chosen.data, self.chosen.out / "cache")

    @cached_property
    def searched(self) -> Searched:
        """Its queries, and what the model and BM25 find for them."""
        chosen = self.chosen
        lengths = {"passage_length": chosen.passage_length, "query_length": chosen.query_length}
        source = ModelSource.at(chosen.model, device="cpu", **lengths)
        place, splits = chosen.out / f"{chosen.name}-run", chosen.splits.split(",")
        return search(self.collection, splits, source, chosen.questions, place, chosen.out / "cache")

    def audited(self, pairs: Pairs) -> Audit:
        """What the audit says of the pairs, with all signals that are known."""
        searched = self.searched
        return audit_pairs(
            pairs,
            text_of=self.collection.texts.__getitem__,
            answers=None if searched.answers is None else searched.answers.contains,
            states=[StateRun("untrained", searched.model)],
            bm25=searched.bm25,
        )

    def draw(self, number: int) -> dict[str, Any]:
        """The figures of a draw."""
        chosen = self.chosen
        left, held = self.searched.hold(chosen.planted, number)
        mined = self.searched.mined(left, depth=chosen.depth, count=chosen.count, draw=number)
        pairs = Pairs.of(with_planted(mined, held))
        return figures(self.audited(pairs), is_held(held, pairs.query_rows, pairs.passage_rows))

    def suspected(self, pairs: Pairs) -> Pairs:
        """The pairs that any signal fires for."""
        return pairs.keep(self.audited(pairs).fired > 0)


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """All that decides the figures of the draws."""
    names = ("splits", "questions", "planted", "count", "depth", "query_length", "passage_length")
    found = {"data": chosen.name, "model": called(chosen.model), "searched": DEPTH}
    return found | {name: getattr(chosen, name) for name in names}


def examine(study: Study, chosen: Namespace, work: Work) -> list[dict[str, Any]]:
    """The figures of every draw; those that are kept are not made again."""
    found = []
    for number in range(chosen.draws):
        name, settings = f"draw-{number}", settings_of(chosen)
        kept = study.kept.get((chosen.name, name))
        if kept is None or kept.settings != settings:
            if chosen.only_report:
                continue
            kept = Outcome(name, settings, {}, facts=work.draw(number), collection=work.collection.digest)
            say(f"{chosen.name}, {name}: done")
        study.add(kept)
        found.append(kept.facts)
    return found


def train(study: Study, chosen: Namespace, work: Work) -> Study:
    """The study of the experiments, each executed once."""
    trained = Study(
        study_of(chosen),
        str(folder_of(chosen).absolute()),
        chosen.model,
        common_of(chosen),
        chosen.threads,
        (MEASURE,),
        kept=study.kept,
    ).planning(steps_of(chosen))
    missing = [step for step in steps_of(chosen) if not trained.is_done(step.name)][: chosen.cells]
    if missing and not chosen.only_report:
        made = prepare(work.searched, chosen, work.suspected)
        say(f"{chosen.name}: negatives of the pools {made.facts}")
        trained.execute_all(missing, chosen.jobs)
    return trained


# ---------------------------------------------------------------- tables


def told_figures(chosen: Namespace, found: Sequence[Mapping[str, Any]]) -> str:
    """The tables of a collection: means over the draws, with the lowest and the highest."""
    if not found:
        return f"{chosen.name}: not run."
    one = found[0]
    head = (
        f"{chosen.name}: {one['planted']:,} planted among {one['pairs']:,} negatives of {one['queries']:,} queries"
    )
    head += f" ({one['planted'] / one['pairs']:.3f}), {len(found)} draws. Mean [lowest, highest] of the draws:"
    tables = [signals_table(found), ranking_table(found, precision), ranking_table(found, recall)]
    return "\n\n".join([head, *tables, halves(found)])


def signals_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Precision and recall of each signal from its threshold on."""
    rows = []
    for name in found[0]["signals"]:
        figures = {key: [one["signals"][name][key] for one in found] for key in ("named", "precision", "recall")}
        cells = (f"{np.mean(figures['named']):,.0f}", spread(figures["precision"]), spread(figures["recall"]))
        rows.append((name, found[0]["thresholds"].get(name, ""), *cells))
    return table(("signal", "from", "named", "precision", "recall"), rows)


def halves(found: Sequence[Mapping[str, Any]]) -> str:
    """The lowest threshold of each signal from which on half of what it names is planted."""
    limits = {name: lowest([one["grid"][name] for one in found], 0.5) for name in found[0]["grid"]}
    told = ", ".join(f"{name} {'none' if value is None else value}" for name, value in limits.items())
    return f"The lowest threshold from which on half of the named are planted: {told}."


def precision(one: Mapping[str, Any], name: str, length: str) -> float:
    """The share of the first so many that is planted."""
    return one["ranking"][name]["hits"][length] / int(length)


def recall(one: Mapping[str, Any], name: str, length: str) -> float:
    """The share of the planted that is among the first so many."""
    return one["ranking"][name]["hits"][length] / one["planted"]


def ranking_table(found: Sequence[Mapping[str, Any]], of: Callable[[Mapping[str, Any], str, str], float]) -> str:
    """Precision or recall of the first so many of each ranking."""
    lengths = [*found[0]["ranking"][TOGETHER]["hits"]]
    rows = [
        (name, *(spread([of(one, name, length) for one in found]) for length in lengths))
        for name in found[0]["ranking"]
    ]
    return table((f"{of.__name__} of the first", *lengths), rows)


def spread(values: Sequence[float]) -> str:
    """The mean with the lowest and the highest, where they differ."""
    mean = f"{np.mean(values):.2f}"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return mean if low == high else f"{mean} [{low}, {high}]"


# ---------------------------------------------------------------- the command


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--splits", default="train", help="splits whose queries are looked at, by commas")
    parser.add_argument("--planted", type=int, default=1000, help="judgements to hold out, if there are so many")
    parser.add_argument("--questions", type=int, default=1000, help="whose passages are searched, with answers")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--count", type=int, default=30, help="negatives of each query and source")
    parser.add_argument("--depth", type=int, default=200, help="candidates that they are drawn from")
    parser.add_argument("--query-length", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)
    parser.add_argument("--train", action="store_true", help="train with, without, and with the audit's filter")
    parser.add_argument("--cells", type=int, help="train so many of the missing experiments, and no more")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--queries-per-step", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--trained-count", type=int, default=3, help="mined negatives of each query to train on")
    parser.add_argument("--trained-depth", type=int, default=20)
    parser.add_argument("--dev", default="dev", help="split that judges")
    parser.add_argument("--dev-queries", type=int, default=300)
    parser.add_argument(
        "--dev-passages", type=int, default=1, help="of BM25 for each dev query, besides positives"
    )


def execute(chosen: Namespace) -> str:
    """Examine what the command line names, keep the outcomes, and return the tables."""
    chosen.name = called(chosen.data).rpartition(":")[2]
    study, work = begin(chosen, {}), Work(chosen)
    parts = [told_figures(chosen, examine(study, chosen, work))]
    keep(study, chosen)
    if chosen.train:
        trained = train(study, chosen, work)
        parts.append(told(trained, chosen))
        if trained.outcomes():
            keep(trained, chosen)
    return "\n\n".join(parts)


def main() -> None:
    """Examine what the command line names, and write the figures."""
    chosen = command_line(__doc__ or "", options).parse_args()
    text = execute(chosen)
    say(text)
    if chosen.report is not None:
        marks = (f"<!-- {chosen.name}: written by studies/audit.py -->\n", f"<!-- end of {chosen.name} -->\n")
        insert(chosen.report, text, *marks)


if __name__ == "__main__":
    main()

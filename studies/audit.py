"""How well an audit finds planted false negatives, and what they do to training.

Known positives lose their judgement and are planted among mined negatives of BM25 and the model
(:mod:`audit_plants`); each draw plants others. The page shows precision and recall of each signal for each
threshold, and of the ranking for each length. With ``--train`` a model is trained with and without the planted
passages (:mod:`audit_training`); ``--signals`` also measures signals that need a training (:mod:`audit_signals`).
The page can be made again from the outcomes in ``--kept``; draws and experiments kept there are not made again.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import cached_property
from typing import Any

import audit_signals
from audit_figures import figures, told_figures
from audit_plants import DEPTH, Searched, is_held, search, with_planted
from audit_training import MEASURE, common_of, folder_of, prepare, steps_of, study_of, told
from harness import Study, begin, called, command_line, insert, keep, say
from outcomes import Outcome

from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.diagnostics.audit import Audit, Pairs, StateRun, audit_pairs
from hardneg.models.source import ModelSource

# ---------------------------------------------------------------- a study of one collection


class Work:
    """The collection and its searches, which are made only if an outcome is missing."""

    def __init__(self, chosen: Namespace) -> None:
        self.chosen = chosen

    @cached_property
    def collection(self) -> Collection:
        """The collection of the study."""
        return collection_of(self.chosen.data, self.chosen.out / "cache")

    @cached_property
    def searched(self) -> Searched:
        """The queries of the collection, and the runs of the model and of BM25 for them."""
        chosen = self.chosen
        lengths = {"passage_length": chosen.passage_length, "query_length": chosen.query_length}
        source = ModelSource.at(chosen.model, device="cpu", **lengths)
        place, splits = chosen.out / f"{chosen.name}-run", chosen.splits.split(",")
        return search(self.collection, splits, source, chosen.questions, place, chosen.out / "cache")

    def audited(self, pairs: Pairs) -> Audit:
        """The audit of the pairs of a pool, with all signals that are available."""
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
        """The pairs that at least one signal fires for."""
        return pairs.keep(self.audited(pairs).fired > 0)


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """All settings that decide the figures of the draws."""
    names = ("splits", "questions", "planted", "count", "depth", "query_length", "passage_length")
    found = {"data": chosen.name, "model": called(chosen.model), "searched": DEPTH}
    return found | {name: getattr(chosen, name) for name in names}


def examine(study: Study, chosen: Namespace, work: Work) -> list[dict[str, Any]]:
    """The figures of every draw; kept draws are not made again."""
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
    """Execute the missing experiments; returns the study that holds their outcomes."""
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


def listen(study: Study, chosen: Namespace, work: Work) -> list[dict[str, Any]]:
    """The figures of every draw for the signals that need a training; kept draws are not made again."""
    found = []
    for number in range(chosen.signal_draws):
        name, settings = f"signals-{number}", settings_of(chosen) | audit_signals.settings_of(chosen)
        kept = study.kept.get((chosen.name, name))
        if kept is None or kept.settings != settings:
            if chosen.only_report:
                continue
            facts = audit_signals.draw(chosen, number, work.searched)
            kept = Outcome(name, settings, {}, chosen.threads, facts=facts, collection=work.collection.digest)
            say(f"{chosen.name}, {name}: done")
        study.add(kept)
        found.append(kept.facts)
    return found


# ---------------------------------------------------------------- the command


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--splits", default="train", help="splits whose queries are looked at, by commas")
    parser.add_argument("--planted", type=int, default=1000, help="judgements to hold out, if there are so many")
    parser.add_argument(
        "--questions", type=int, default=1000, help="questions that are searched, if plants are by answers"
    )
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--count", type=int, default=30, help="negatives of each query and source")
    parser.add_argument("--depth", type=int, default=200, help="candidates that they are drawn from")
    parser.add_argument("--query-length", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)
    parser.add_argument("--signals", action="store_true", help="train a ranker and states for their signals, too")
    parser.add_argument("--signal-draws", type=int, default=3)
    parser.add_argument(
        "--signal-queries", type=int, default=400, help="of train; half of them with a planted one"
    )
    parser.add_argument("--signal-count", type=int, default=5, help="negatives of each query and source")
    parser.add_argument("--signal-steps", type=int, default=60, help="of each training")
    parser.add_argument("--signal-batch", type=int, default=8, help="queries of a step")
    parser.add_argument("--signal-negatives", type=int, default=2, help="of a query in a step of the retriever")
    parser.add_argument("--signal-dev", type=int, default=100, help="dev queries by which states are measured")
    parser.add_argument("--ranker-rate", type=float, default=5e-5)
    parser.add_argument("--train", action="store_true", help="train on clean, planted and filtered pools")
    parser.add_argument("--cells", type=int, help="train so many of the missing experiments, and no more")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--queries-per-step", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--trained-count", type=int, default=3, help="mined negatives of each query to train on")
    parser.add_argument("--trained-depth", type=int, default=20)
    parser.add_argument("--dev", default="dev", help="split that measures what is trained")
    parser.add_argument("--dev-queries", type=int, default=300)
    parser.add_argument(
        "--dev-passages", type=int, default=1, help="BM25's passages of each dev query, to judge among"
    )


def execute(chosen: Namespace) -> str:
    """Examine what the command line names, keep the outcomes, and return the tables."""
    chosen.name = called(chosen.data).rpartition(":")[2]
    study, work = begin(chosen, {}), Work(chosen)
    parts = [told_figures(chosen.name, examine(study, chosen, work))]
    if chosen.signals:
        parts.append(audit_signals.told(chosen, listen(study, chosen, work)))
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

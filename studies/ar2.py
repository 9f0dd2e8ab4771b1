"""AR2 against static and refreshed negatives at equal steps; its losses, numbers of negatives, pipeline and cost.

For each seed, G⁰ and D⁰ are trained once, and every cell starts from both. Finished experiments are not executed
again, so a study that was stopped goes on where it was. The page is made from the kept outcomes alone.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

from ar2_cells import (
    ANSWERED,
    DEEP,
    JUDGED,
    QUESTIONS,
    known_cells,
    levels,
    rounds,
)
from ar2_cost import Amounts, hours
from ar2_part import Size, is_absent, part_of
from ar2_report import write
from harness import Step, Study, arguments, begin, called, say
from outcomes import Outcome, read

from hardneg.api.inputs import collection_of

DATA = "pydocs"
SPENT = ("*/checkpoint", "episodes/*/checkpoint", "states/*/model")


def study_of(chosen: Namespace, data: str) -> Study:
    """The study of one collection, or of the part of it that was chosen."""
    size = Size(chosen.queries, chosen.dev, chosen.test, chosen.passages)
    place = chosen.out / size.name(data)
    part = part_of(data, size, chosen.out / "collections")
    answers = collection_of(part).has_answers
    study = begin(Namespace(**vars(chosen) | {"out": place, "data": part}), common_of(chosen, answers=answers))
    kept = (DEEP, *ANSWERED) if answers else (DEEP,)
    return replace(study, by_query=kept).planning(step for steps in rounds(chosen) for step in steps)


def common_of(chosen: Namespace, *, answers: bool) -> dict[str, object]:
    """The settings that all experiments of a collection share."""
    shared: dict[str, object] = {"labels": "answers"} if answers else {}
    return shared | {
        "queries_per_step": chosen.queries_per_step,
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "depth": chosen.depth,
        "warmup": 0.1,
        "examine": "judged",
        "precision": chosen.precision,
        "measures": " ".join(("RR@10", DEEP, *(ANSWERED if answers else JUDGED))),
    }


# ---------------------------------------------------------------- execution


def execute(study: Study, chosen: Namespace) -> None:
    """Run the missing experiments, round by round; outcomes are kept after each group of experiments."""
    for steps in rounds(chosen):
        for level in levels(study.lacking(steps)):
            study.execute_all(level, chosen.jobs)
            tell_rankers(study, level)
            tidy(study, chosen)
            if chosen.kept:
                study.save(chosen.kept)
    if chosen.kept:  # keeps also the outcomes of an earlier command
        study.save(chosen.kept)


def tell_rankers(study: Study, steps: Sequence[Step]) -> None:
    """Tell the quality of each D⁰ on dev: a D⁰ behind G⁰ has nothing to teach, and the games take hours."""
    for step in steps:
        found = study.outcome(step.name) if step.recipe == "ranker" else None
        if found is None:
            continue
        before, after = (found.mean("dev", state, "RR@10") for state in ("retriever", "final"))
        if before is not None and after is not None:
            advice = "" if after > before else ": it is not ahead; train it longer (--first-ranker-steps)"
            say(f"{step.name}: dev RR@10 {before:.4f} by G⁰, {after:.4f} by D⁰ on the same hits{advice}")


def tidy(study: Study, chosen: Namespace) -> None:
    """Delete files that a finished experiment no longer needs; unused models are deleted only on request."""
    for results in study.folder.glob("*/results.json"):
        place = results.parent
        spent = [folder for pattern in SPENT for folder in place.glob(pattern)]
        needed = any(place.name in step.needs for step in study.plan.values())
        if chosen.drop_models and not needed:
            spent += [place / "model", place / "ranker"]
        for folder in spent:
            shutil.rmtree(folder, ignore_errors=True)


def listed(study: Study, chosen: Namespace) -> str:
    """A line for each experiment: whether it is done, and otherwise the hours that it may take."""
    amounts = Amounts.of(collection_of(study.data))
    missing = {step.name: step for steps in rounds(chosen) for step in study.lacking(steps)}
    took = {name: hours(step, study.common, amounts) for name, step in missing.items()}
    lines = [
        f"{called(study.data)} {name}: {f'to do, {took[name]:.1f} hours' if name in took else 'done'}"
        for name in study.plan
    ]
    return "\n".join(
        [*lines, f"{called(study.data)}: {len(took)} to do, about {sum(took.values()):.1f} hours of an old core"]
    )


# ---------------------------------------------------------------- the command


def words(text: str) -> list[str]:
    """Names with commas."""
    return text.split(",")


def positive(text: str) -> int:
    """A number of at least one."""
    if (value := int(text)) < 1:
        raise ValueError(text)
    return value


def sizes(text: str) -> list[int]:
    """Numbers with commas, ascending."""
    return sorted(positive(word) for word in text.split(","))


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.set_defaults(data=DATA, threads=1)
    parser.add_argument("--seeds", type=positive, default=3)
    parser.add_argument(
        "--only", type=words, default=list(QUESTIONS), help="questions (1 to 4) or cells, with commas"
    )
    parser.add_argument("--list", action="store_true", help="say what is done and what is not, and stop")
    parser.add_argument(
        "--drop-models", action="store_true", help="delete the models of finished cells that no other starts from"
    )
    for name, most, what in (
        ("queries", None, "training queries, drawn"),
        ("dev", 200, "dev queries, drawn"),
        ("test", 1000, "test queries, drawn"),
        ("passages", None, "the judged ones, and drawn ones up to so many in all"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=most, help=f"{what} (default: {most or 'all'})")
    for name, value, what in (
        ("warm-steps", 120, "of G⁰"),
        ("warm-queries", 32, "of a step of G⁰"),
        ("first-ranker-steps", 400, "of D⁰"),
        ("iterations", 3, "of the game; also the refreshed negatives of ANCE, with the first"),
        ("retriever-steps", 40, "of an iteration; as many in all for every row"),
        ("ranker-steps", 20, "of an iteration"),
        ("queries-per-step", 16, "of the retriever"),
        ("ranker-queries", 16, "of a step of a ranker"),
        ("negatives", 7, "of a query, in all cells but those of --sizes"),
        ("depth", 100, "candidates of a query"),
        ("rerank-depth", 10, "hits that the ranker re-ranks, in the main cell"),
        ("passage-length", 64, "tokens"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=value, help=f"{what} (default: {value})")
    for name, what in (("queries", "of a step"), ("negatives", "of a query"), ("depth", "hits that these are of")):
        parser.add_argument(
            f"--first-ranker-{name}", type=positive, help=f"{what} of D⁰ (default: as in the game)"
        )
    parser.add_argument("--sizes", type=sizes, default=[1, 3, 7, 15], help="numbers of negatives to compare")
    parser.add_argument("--rate", type=float, default=3e-5, help="learning rate of every retriever")
    parser.add_argument("--warm-rate", type=float, help="of G⁰ (default: as every retriever)")
    parser.add_argument("--reinit-layers", type=int, default=0, help="top layers that G⁰ and D⁰ draw anew")
    parser.add_argument("--ranker-rate", type=float, default=1e-5, help="of the ranker in the game")
    parser.add_argument("--first-ranker-rate", type=float, default=1e-4, help="of D⁰")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")


def check(chosen: Namespace) -> None:
    """Refuse names that are no cell and no question; raises :class:`SystemExit`."""
    known = {*QUESTIONS, *known_cells(chosen)}
    if unknown := sorted(set(chosen.only) - known):
        raise SystemExit(f"--only {unknown[0]}: there are {', '.join(sorted(known))}")


def present(chosen: Namespace, tell: Callable[[str], None] = say) -> list[str]:
    """The collections that exist; prints a line for each that does not."""
    found = []
    for data in chosen.data.split(","):
        if is_absent(data):
            tell(f"{data}: not there, skipped")
        else:
            found.append(data)
    return found


def told(chosen: Namespace, studies: list[Study]) -> list[Outcome]:
    """All outcomes that are known: the kept ones of any collection, and those of these studies."""
    known = read(chosen.kept)
    for study in studies:
        known |= {one.key: one for one in study.outcomes().values()}
    return [known[key] for key in sorted(known)]


def begun(chosen: Namespace) -> list[Study]:
    """The studies of the collections that exist; if only the page is made, of those that have a folder."""
    size = Size(chosen.queries, chosen.dev, chosen.test, chosen.passages)
    there = present(chosen)
    if chosen.only_report:
        there = [data for data in there if (chosen.out / size.name(data)).is_dir()]
    return [study_of(chosen, data) for data in there]


def main(chosen: Namespace) -> None:
    """Run the missing experiments of every collection, keep their outcomes, write the page."""
    check(chosen)
    studies = begun(chosen)
    for study in studies:
        if chosen.list:
            say(listed(study, chosen))
        elif not chosen.only_report:
            execute(study, chosen)
    if chosen.list:
        return
    if not (outcomes := told(chosen, studies)):
        raise SystemExit("nothing is finished; leave --only-report out")
    say(write(outcomes, chosen.report))


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

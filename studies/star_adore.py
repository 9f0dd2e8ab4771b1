"""STAR and ADORE against the baselines, ADORE over compressed indexes, and static against dynamic negatives.

Part ``rows``: five models of equal optimiser steps, and ADORE on top of each; ADORE's learning rate is the one of
a small grid that does best on dev. Part ``grid``: ADORE trained over product-quantised indexes, searched over all
of them. Part ``curves``: the query side trained on static, refreshed, random and dynamic negatives of one frozen
index, measured on the way. Finished experiments are not executed again.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import Row, Step, Study, arguments, begin, execute, keep, say
from outcomes import Outcome, packed, read_run
from star_adore_report import report, write
from star_adore_rows import (
    ADORE,
    CURVES_FROM,
    GRID_FROM,
    MEASURES,
    PARTS,
    ROWS,
    SPLITS,
    arms,
    bases,
    compressed,
    first_rows,
    rate_of,
    result_of,
    searches,
    tried,
)

import hardneg as hn

K = 100  # hits of a search of the grid


def search_grid(study: Study, searched: dict[str, Step], only_report: bool) -> None:
    """Search every model over every compressed index that it was not trained over, and keep the outcomes.

    With ``only_report`` nothing is searched; only earlier runs are read.
    """
    for name, step in searched.items():
        if study.is_done(name):
            continue
        runs = {split: study.folder / "grid" / f"{name}.{split}.trec.gz" for split in SPLITS}
        for split, out in runs.items():
            if not out.is_file() and not only_report:
                out.parent.mkdir(exist_ok=True)
                hn.search_split(
                    study.data,
                    out,
                    model=str(study.folder / str(step.model) / "model"),
                    index=study.folder / f"pq-{step.settings['over']}/index",
                    split=split,
                    k=K,
                    cache=study.cache(),
                )
        if all(out.is_file() for out in runs.values()):
            study.add(searched_outcome(study, step, runs))


def searched_outcome(study: Study, step: Step, runs: dict[str, Path]) -> Outcome:
    """The outcome of the runs of a search."""
    values = {split: study.source.by_query(read_run(study.source, run), split) for split, run in runs.items()}
    means = {split: {name: float(found.mean()) for name, found in of.items()} for split, of in values.items()}
    queries = {split: {name: packed(found, name) for name, found in of.items()} for split, of in values.items()}
    return Outcome(
        step.name,
        study.settings_of(step),
        {split: {"final": of} for split, of in means.items()},
        study.threads,
        queries={split: {"final": of} for split, of in queries.items()},
        collection=study.source.collection.digest,
    )


def tidy(study: Study) -> None:
    """Delete files that a finished experiment no longer needs, unless its figures come from them."""
    for results in study.folder.glob("*/results.json"):
        for spent in (*results.parent.glob("episodes/*/checkpoint"), *results.parent.glob("states/*/model")):
            shutil.rmtree(spent)


def execute_all(study: Study, chosen: Namespace) -> None:
    """Run the chosen experiments that are not done, part by part; with ``--only-report`` only plan them."""

    def run(steps: Sequence[Step], title: str) -> None:
        study.planning(steps)
        if not chosen.only_report:
            say(title)
            execute(study, [Row(step.name, (step,)) for step in steps], chosen.jobs)
            tidy(study)

    rows = list(first_rows(chosen).values())
    run([rows[0].steps[0]], "the first experiment fills the shared cache")
    run([step for row in rows for step in row.steps[:1]], "what starts from the encoder")
    run([step for row in rows for step in row.steps[1:]], "what starts from a warm-up")
    run([step for base in bases(chosen) for step in tried(chosen, base)], "ADORE on top")
    rates = {base: rate_of(study, chosen, base) for base in bases(chosen)}
    say(", ".join(f"{base}{ADORE} at {rate}" for base, rate in rates.items()))
    if "grid" in chosen.parts and (rate := rates[GRID_FROM]):
        run(list(compressed(chosen, rate).values()), "over compressed indexes")
        searched = searches(chosen, result_of(study, chosen, GRID_FROM + ADORE) or "")
        study.planning(searched.values())
        search_grid(study, searched, chosen.only_report)
    if "curves" in chosen.parts and (rate := rates[CURVES_FROM]):
        run(list(arms(chosen, rate).values()), "static, random and dynamic negatives")


# ---------------------------------------------------------------- the command


def some(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A reader of names with commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if wrong := set(names) - set(known):
            raise ValueError(wrong)
        return [name for name in known if name in names]

    read.__name__ = f"names out of {','.join(known)}:"
    return read


def numbers(kind: type) -> Callable[[str], list]:
    """A reader of numbers with commas."""
    return lambda text: [kind(word) for word in text.split(",")]


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--parts", type=some(list(PARTS)), default=list(PARTS), help="rows,grid,curves")
    parser.add_argument("--rows", type=some(ROWS), default=list(ROWS), help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=96, help="optimiser steps of a row, without ADORE's")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate of all but ADORE")
    parser.add_argument("--adore-steps", type=int, default=200)
    parser.add_argument(
        "--adore-rates", type=numbers(float), default=[1e-5, 3e-5, 1e-4, 3e-4], help="tried on dev"
    )
    parser.add_argument("--depth", type=int, default=200, help="of ADORE's lists")
    parser.add_argument("--codes", type=numbers(int), default=[12, 24, 48], help="of a passage, with commas")
    parser.add_argument("--bits", type=int, default=8, help="of a code")
    parser.add_argument("--curve-steps", type=int, default=160)
    parser.add_argument("--measure-every", type=int, default=32, help="steps between two points of a curve")
    parser.add_argument("--refresh-every", type=int, default=64, help="steps between two minings of an arm")
    parser.add_argument("--queries-per-step", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "queries_per_step": chosen.queries_per_step,
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "warmup": 0.1,
        "measures": " ".join([*MEASURES, "R@100"]),
    }


def main(chosen: Namespace) -> None:
    """Run the missing experiments, keep their outcomes, write the tables and the figure."""
    study = begin(chosen, common_of(chosen), *MEASURES)
    execute_all(study, chosen)
    keep(study, chosen)
    if chosen.report:
        write(study, chosen)
    say(report(study, chosen))


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

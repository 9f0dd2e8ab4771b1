"""Kinds of negatives at equal steps, and what ADORE adds to as many steps more of the same training.

Five models make equal optimiser steps with negatives of the batch, random ones of the corpus, BM25's, ANCE's and
STAR's. Two of them are trained further: by ADORE, or by the same recipe again, with queries in another order. All
seeds use the settings that the studies of ANCE and of STAR and ADORE chose on dev.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import numpy as np
from harness import (
    Row,
    Step,
    Study,
    arguments,
    baselines,
    begin,
    called,
    difference,
    execute,
    insert,
    keep,
    paired,
    say,
    table,
)
from outcomes import Outcome, Values
from star_adore_report import refreshing

from hardneg.evaluation.significance import holm

MEASURES = ("RR@10", "nDCG@10")
SPLITS = ("dev", "test")
WARM = "warm"
FURTHER = 1000  # is added to the seed of what trains on
PARTS = 6  # the steps are a multiple of it: ANCE makes half of them, with two refreshes
TITLES = {
    "in-batch": "In-Batch",
    "random": "Rand (corpus)",
    "bm25": "BM25",
    "ance": "ANCE",
    "star": "STAR",
    "in-batch-adore": "In-Batch → ADORE",
    "in-batch-more": "In-Batch → In-Batch",
    "star-adore": "STAR → ADORE",
    "star-more": "STAR → STAR",
}
PAIRS = (  # the papers' claims: which row is above which
    ("bm25", "random"),
    ("ance", "bm25"),
    ("ance", "in-batch"),
    ("star", "ance"),
    ("star", "in-batch"),
    ("in-batch-adore", "in-batch"),
    ("in-batch-adore", "in-batch-more"),
    ("star-adore", "star"),
    ("star-adore", "star-more"),
)

Done = dict[str, dict[int, Outcome]]  # row -> seed -> outcome


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=96, help="optimiser steps of a row, and of what trains on")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--adore-rate", type=float, default=1e-4)
    parser.add_argument("--depth", type=int, default=200, help="of the lists of STAR and ADORE")
    parser.add_argument("--queries-per-step", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[42, 43, 44])
    parser.add_argument(
        "--rows", type=lambda text: text.split(","), default=list(TITLES), help="names, separated by commas"
    )


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "queries_per_step": chosen.queries_per_step,
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "precision": "float32",
        "warmup": 0.1,
        "measures": " ".join([*MEASURES, "R@100"]),
    }


def rows(chosen: Namespace, seed: int) -> dict[str, Row]:
    """All rows of a seed, by name. ANCE and STAR share their warm-up, which makes half of the steps."""
    half = chosen.steps // 2

    def step(name: str, recipe: str, model: str | None = None, **settings: object) -> Step:
        # What trains on has another seed: with the same one it would take the queries of the steps before again.
        own = seed + (FURTHER if name.endswith(("-adore", "-more")) else 0)
        words = ("--test", "none") if name == WARM else ()
        began = None if model is None else named(model, seed)
        return Step(
            named(name, seed),
            recipe,
            {"seed": own, "learning_rate": chosen.rate, **settings},
            began,
            words=words,
        )

    def warmup(name: str, mixture: str, steps: int, model: str | None = None) -> Step:
        return step(name, "warmup", model, mixtures=[mixture], steps=[steps], depth=100)

    def star(name: str, model: str, steps: int) -> Step:
        return step(name, "star", model, steps=steps, depth=chosen.depth)

    def adore(name: str, model: str) -> Step:
        shape = {"depth": chosen.depth, "cut": chosen.depth, "steps": chosen.steps}
        return step(name, "adore", model, **shape, learning_rate=chosen.adore_rate)

    warm, batch = warmup(WARM, "bm25", half), warmup("in-batch", "in_batch", chosen.steps)
    ance = step("ance", "ance", WARM, mode="sync", refresh_every=max(half // 3, 1), refreshes=2)
    first = star("star", WARM, half)
    made = {
        "in-batch": (batch,),
        "random": (warmup("random", "random", chosen.steps),),
        "bm25": (warmup("bm25", "bm25", chosen.steps),),
        "ance": (warm, ance),
        "star": (warm, first),
        "in-batch-adore": (batch, adore("in-batch-adore", "in-batch")),
        "in-batch-more": (batch, warmup("in-batch-more", "in_batch", chosen.steps, "in-batch")),
        "star-adore": (warm, first, adore("star-adore", "star")),
        "star-more": (warm, first, star("star-more", "star", chosen.steps)),
    }
    return {name: Row(TITLES[name], made[name]) for name in TITLES if name in chosen.rows}


def named(row: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{row}-seed-{seed}"


def done_of(study: Study, chosen: Namespace) -> Done:
    """The outcomes of the chosen rows that are done."""
    found = study.outcomes()
    return {
        row: {seed: found[name] for seed in chosen.seeds if (name := named(row, seed)) in found}
        for row in TITLES
        if row in chosen.rows
    }


# ---------------------------------------------------------------- the tables


def quality_table(study: Study, chosen: Namespace, done: Done) -> str:
    """Every row's measures, means over seeds, with the standard deviation over seeds, and its seconds."""
    first = next((one.results for of in done.values() for one in of.values()), None)
    lines: list[list[object]] = []
    for state, title in baselines(first).items():
        cells = [(first or {})[split][state][measure] for split in SPLITS for measure in MEASURES]
        lines.append([title, "", *(f"{cell:.4f}" for cell in cells), "", ""])
    for row, of in done.items():
        seeds = [*of.values()]
        cells = [spread([mean(one, split, measure) for one in seeds]) for split in SPLITS for measure in MEASURES]
        lines.append([TITLES[row], len(seeds), *cells, *seconds(study, chosen, row, of)])
    heads = [f"{split} {measure}" for split in SPLITS for measure in MEASURES]
    return table(["", "seeds", *heads, "training, s", "refreshing, s"], lines)


def mean(one: Outcome, split: str, measure: str) -> float:
    """A measure of the final state."""
    return one.mean(split, "final", measure) or 0.0


def spread(values: Sequence[float]) -> str:
    """The mean of values and their standard deviation."""
    if not values:
        return "not run"
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}"


def seconds(study: Study, chosen: Namespace, row: str, of: dict[int, Outcome]) -> list[str]:
    """Seconds of training with all that a row begins with, and of refreshing negatives; means over seeds."""
    if not of:
        return ["", ""]
    training, refreshed = [], []
    for seed in of:
        names = [step.name for step in rows(chosen, seed)[row].steps]
        training.append(sum(study.seconds(name).get("train", 0.0) for name in names))
        refreshed.append(sum(refreshing(study.timing(name)) for name in names))
    return [f"{np.mean(training):.0f}", f"{np.mean(refreshed):.0f}"]


def tests_table(done: Done) -> str:
    """The tests of the papers' claims on test, with p after Holm's correction over the table.

    Both sides of a difference have the same seeds.
    """
    lines: list[list[str]] = []
    found: list[float] = []
    for one, other in PAIRS:
        shared = [seed for seed in done.get(one, {}) if seed in done.get(other, {})]
        if not shared:
            continue
        pairs = [(done[one][seed], done[other][seed]) for seed in shared]
        gains = [mean(a, "test", MEASURES[0]) - mean(b, "test", MEASURES[0]) for a, b in pairs]
        cells = [", ".join(f"{gain:+.4f}" for gain in gains)]
        for measure in MEASURES:
            tested = paired(*(averaged(side, measure) for side in zip(*pairs, strict=True)))
            cells.append(f"{difference(tested)}, p {{{len(found)}:.2g}}")
            found.append(tested["p"])
        lines.append([f"{TITLES[one]} − {TITLES[other]}", str(len(shared)), *cells])
    corrected = holm(found)
    filled = [[title, seeds, *(cell.format(*corrected) for cell in cells)] for title, seeds, *cells in lines]
    names = ["test, values of a query averaged over seeds", "seeds", f"{MEASURES[0]} by seed", *MEASURES]
    return table(names, filled)


def averaged(seeds: Sequence[Outcome], measure: str) -> Values:
    """A measure of every test query, the mean over seeds."""
    values = [one.values("test", "final", measure) for one in seeds]
    return np.mean([one for one in values if one is not None], axis=0)


def errors_table(done: Done) -> str:
    """Pairwise errors of a query, in all and among the first 200, means over queries and seeds."""
    lines = []
    for row, of in done.items():
        cells = []
        for split in SPLITS:
            kept = [one.results.get("pairwise_errors", {}).get(split, {}).get("final") for one in of.values()]
            figures = [[float(one["total"]), float(one["top"])] for one in kept if one is not None]
            cells += [f"{value:.1f}" for value in np.mean(figures, axis=0)] if figures else ["not run"] * 2
        lines.append([TITLES[row], *cells])
    heads = [f"{split}, {which}" for split in SPLITS for which in ("total", "first 200")]
    return table(["pairwise errors of a query", *heads], lines)


def report(study: Study, chosen: Namespace) -> str:
    """The part of the page that this program writes."""
    done = done_of(study, chosen)
    return "\n\n".join([quality_table(study, chosen, done), tests_table(done), errors_table(done)])


def check(chosen: Namespace) -> None:
    """Refuse names of no row, and steps that cannot be equal."""
    if unknown := set(chosen.rows) - set(TITLES):
        raise SystemExit(f"--rows: there is no {', '.join(sorted(unknown))}; known are {', '.join(TITLES)}")
    if chosen.steps % PARTS:
        raise SystemExit(f"--steps {chosen.steps}: give a multiple of {PARTS}")


def main(chosen: Namespace) -> None:
    """Run the missing experiments, seed by seed; keep their outcomes; write the tables of this collection."""
    check(chosen)
    study = begin(chosen, common_of(chosen), *MEASURES)
    for seed in chosen.seeds:
        made = [*rows(chosen, seed).values()]
        study.planning(step for row in made for step in row.steps)
        if not chosen.only_report:
            execute(study, made, chosen.jobs)
    keep(study, chosen)
    name = called(study.data)
    text = f"{called(study.model)} on {name}, float32, {chosen.steps} steps.\n\n{report(study, chosen)}"
    if chosen.report:
        begun, end = (
            f"<!-- tables of {name}: written by studies/negatives.py -->\n",
            f"<!-- end of tables of {name} -->\n",
        )
        insert(chosen.report, text, begun, end)
    say(text)


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

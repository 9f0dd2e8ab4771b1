"""The effect of each part of ANCE-Tele's negatives: Q-Neg, momentum, lookahead, both, and variants of the mix.

All rows make equal steps, from an encoder that is already trained for retrieval and from the same one with its top
layers drawn anew. The tables use the experiments' outcomes alone, so they can be made from a part of the rows.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    Row,
    Step,
    Study,
    arguments,
    begin,
    called,
    difference,
    insert,
    interval,
    keep,
    paired,
    say,
    table,
)
from outcomes import Outcome, Values
from seeds import detectable, over_seeds

from hardneg.evaluation.significance import holm

MEASURE = "RR@10"
STATES = ("untrained", "episode-1", "episode-2", "final")
BASELINE, WHOLE = "q-neg", "tele"  # the rows that parts and variants are compared with
FIRST_SEED = 42
FEW_SEEDS = 5
STARTS = {"reinit": "top layers drawn anew", "as-is": "as it is"}
MAIN: dict[str, tuple[str, dict[str, object]]] = {
    "q-neg": ("Q-Neg", {"alpha": 0.0, "beta": 0.0}),
    "tele": ("ANCE-Tele", {"alpha": 0.5, "beta": 0.5}),
    "momentum": ("Q-Neg + momentum", {"alpha": 0.5, "beta": 0.0}),
    "lookahead": ("Q-Neg + lookahead", {"alpha": 0.0, "beta": 0.5}),
}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "bm25": ("ANCE-Tele, with BM25 negatives", {"extra": ["bm25"]}),
    "dedup": ("ANCE-Tele, without overlaps", {"dedup": True}),
    "continue": ("ANCE-Tele, continued", {"start": "continue"}),
    "alpha-0.3": ("ANCE-Tele, α = 0.3", {"alpha": 0.3}),
    "alpha-0.7": ("ANCE-Tele, α = 0.7", {"alpha": 0.7}),
    "beta-0.3": ("ANCE-Tele, β = 0.3", {"beta": 0.3}),
    "beta-0.7": ("ANCE-Tele, β = 0.7", {"beta": 0.7}),
}
SEEDED = (*MAIN, "continue")  # the rows with several seeds
BEGIN, END = "<!-- tables: written by studies/ablation.py -->\n", "<!-- end of tables -->\n"
HEADING = """# Ablation study: what momentum, lookahead and the mix do

**Question.** From an encoder that knows retrieval, and from the same one with its top layers drawn anew: do
momentum, lookahead and both of them (ANCE-Tele) train a better retriever than the query's own nearest negatives
(Q-Neg) at equal steps, and do they make it forget less? And what do BM25 negatives, no overlaps, continued
training and other shares change?

[ablation.jsonl.gz](ablation.jsonl.gz) has the outcome of every experiment for each test query.
`make study-ablation OPTIONS=--only-report` makes every table, interval and p value below from it in seconds.
Without the option the experiments that are not in it are run first. All of them are run again by
`make study-ablation STUDY=FOLDER OPTIONS=--anew` with a new folder.
"""

NOT_TESTED = (
    "The outcomes of these experiments have no values of single test queries after episodes 1 and 2, and none\n"
    "of training queries. So statements about episode 2 and about forgetting are not tested. New experiments\n"
    "keep both."
)

Known = Mapping[str, Outcome]  # by the experiment's name


def name_of(start: str, row: str, seed: int) -> str:
    """The name of an experiment."""
    return f"{start}-{row}-seed-{seed}"


def row_of(chosen: Namespace, start: str, row: str, seed: int) -> Row:
    """One experiment."""
    title, settings = (MAIN | VARIANTS)[row]
    anew: dict[str, object] = {"reinit_layers": chosen.reinit_layers} if start == "reinit" else {}
    mix = {"alpha": 0.5, "beta": 0.5} | settings
    return Row(title, (Step(name_of(start, row, seed), "ance-tele", mix | anew | {"seed": seed}),))


def order(chosen: Namespace) -> list[Row]:
    """All experiments, the most informative first: one seed of the main rows, the variants, the other seeds."""
    seeds = range(FIRST_SEED, FIRST_SEED + chosen.seeds)
    rounds: list[tuple[Iterable[str], Sequence[int]]]
    rounds = [(MAIN, seeds[:1]), (VARIANTS, seeds[:1]), (SEEDED, seeds[1:])]
    return [
        row_of(chosen, start, row, seed)
        for rows, some in rounds
        for seed in some
        for start in chosen.start
        for row in rows
        if row in chosen.rows
    ]


# ---------------------------------------------------------------- what was measured


def seeds_done(outcomes: Known, start: str, row: str) -> list[int]:
    """The seeds of a row whose experiments are finished."""
    prefix = name_of(start, row, 0)[:-1]
    return sorted(int(name.removeprefix(prefix)) for name in outcomes if name.startswith(prefix))


def of_row(outcomes: Known, start: str, row: str) -> list[Outcome]:
    """The outcomes of a row, seed by seed."""
    return [outcomes[name_of(start, row, seed)] for seed in seeds_done(outcomes, start, row)]


By = Callable[[Outcome], Values | None]  # a value for every query


def final(one: Outcome) -> Values | None:
    """The measure of every test query with the final model."""
    return one.values("test", "final", MEASURE)


def mean_values(outcomes: Known, start: str, row: str, seeds: Sequence[int], of: By = final) -> Values | None:
    """A value for every query, averaged over seeds; None if it is not kept for all of the seeds."""
    values = [of(outcomes[name_of(start, row, seed)]) for seed in seeds]
    known = [one for one in values if one is not None]
    return np.mean(known, axis=0) if known and len(known) == len(values) else None


# ---------------------------------------------------------------- tables


def quality_table(outcomes: Known, start: str, rows: Sequence[str]) -> str:
    """The measure on test after every episode, and the interval of the last figure over queries."""
    lines = [baselines(outcomes, start)]
    for row in rows:
        title, found = called_row(row), of_row(outcomes, start, row)
        if not found:
            lines.append([title, "", *["not run"] * 4])
            continue
        figures = [over_seeds([test(one, state) for one in found]) for state in STATES[1:]]
        means = mean_values(outcomes, start, row, seeds_done(outcomes, start, row))
        lines.append([title, str(len(found)), *figures, "not kept" if means is None else interval(means)])
    heads = ["", "seeds", "episode 1", "episode 2", "final", "final, 95 % interval"]
    return table(heads, lines)


def test(one: Outcome, state: str) -> float:
    """The measure of a state on test."""
    return float(one.results["test"][state][MEASURE])


def baselines(outcomes: Known, start: str) -> list[str]:
    """The line of the table for the states that need no training."""
    for row in MAIN | VARIANTS:
        for one in of_row(outcomes, start, row)[:1]:
            before = "untrained-as-trained" if "untrained-as-trained" in one.results["test"] else "untrained"
            return [f"no training: {test(one, before):.4f}; BM25: {test(one, 'bm25'):.4f}", *[""] * 5]
    return ["no training", "", *["not run"] * 4]


def tests_table(outcomes: Known, start: str, rows: Sequence[str], against: str) -> str:
    """Tests of rows against another row on the seeds that both have, corrected together."""
    lines, absent, found = [], [], []
    for row in rows:
        title = called_row(row)
        if not (seeds := seeds_of_both(outcomes, start, row, against)):
            absent.append([title, "", *["not run"] * 4])
            continue
        a, b = (mean_values(outcomes, start, name, seeds) for name in (row, against))
        if a is None or b is None:
            absent.append([title, "", *["not kept"] * 4])
            continue
        tested = paired(a, b)
        found.append(tested["p"])
        figures = [f"{tested['difference']:+.4f}", "[{:+.4f}, {:+.4f}]".format(*tested["interval"])]
        lines.append([title, ", ".join(map(str, seeds)), *figures, f"{found[-1]:.2g}"])
    lines = [[*line, f"{p:.2g}"] for line, p in zip(lines, holm(found), strict=True)]
    heads = ["", "seeds", f"− {MAIN[against][0]}", "95 % interval", "p", "p, Holm"]
    return table(heads, lines + absent)


def seeds_of_both(outcomes: Known, start: str, a: str, b: str) -> list[int]:
    """The seeds on which two rows are finished."""
    return sorted(set(seeds_done(outcomes, start, a)) & set(seeds_done(outcomes, start, b)))


def by_seed_table(outcomes: Known, start: str, rows: Sequence[str]) -> str:
    """The gain of each part over the baseline, and of both over momentum, by seed: quality and forgetting."""
    lines = []
    pairs = [(row, BASELINE) for row in rows]
    pairs += [("tele", "momentum")] if {"tele", "momentum"} <= set(rows) else []
    pairs += [(row, WHOLE) for row in SEEDED if row not in MAIN]
    for row, other_row in pairs:
        for seed in seeds_of_both(outcomes, start, row, other_row):
            a, b = (outcomes[name_of(start, name, seed)] for name in (row, other_row))
            gains = [f"{test(a, state) - test(b, state):+.4f}" for state in STATES[1:]]
            less = [
                f"{one['forgotten'] - other['forgotten']:+.4f}"
                for one, other in zip(a.results["forgetting"], b.results["forgetting"], strict=True)
            ]
            lines.append([f"{called_row(row)} − {called_row(other_row)}", str(seed), *gains, *less])
    heads = [f"{MEASURE}, episode 1", f"{MEASURE}, episode 2", f"{MEASURE}, final"]
    return table(["", "seed", *heads, *(f"forgotten, {i}" for i in (1, 2, 3))], lines)


def detectable_table(outcomes: Known, start: str, pairs: Sequence[tuple[str, str]]) -> str:
    """How far the final difference of two rows moves with the seed, and what so many seeds can show."""
    lines = []
    for row, other in pairs:
        seeds = seeds_of_both(outcomes, start, row, other)
        a, b = ([test(outcomes[name_of(start, name, seed)], "final") for seed in seeds] for name in (row, other))
        if len(seeds) > 1:
            gains = np.subtract(a, b)
            figures = [f"{gains.mean():+.4f}", f"{np.std(gains, ddof=1):.4f}"]
            figures += [f"{detectable(gains, len(seeds)):.4f}", f"{detectable(gains, FEW_SEEDS):.4f}"]
            lines.append([f"{called_row(row)} − {called_row(other)}", str(len(seeds)), *figures])
    heads = [
        "",
        "seeds",
        f"{MEASURE}, final",
        "sd over seeds",
        "these seeds show",
        f"{FEW_SEEDS} seeds would show",
    ]
    return table(heads, lines)


def called_row(row: str) -> str:
    """The name of a row for people."""
    return (MAIN | VARIANTS)[row][0]


def between(outcomes: Known, start: str, rows: Sequence[str]) -> str:
    """Tests of the measure after episode 2 and of forgetting, if the outcomes have their values by query."""
    what: dict[str, By] = {f"{MEASURE} after episode 2": lambda one: one.values("test", "episode-2", MEASURE)}
    what |= {f"forgotten in episode {i}": partial(Outcome.changed, episode=i, how="-") for i in (1, 2, 3)}
    lines, found = [], []
    for row in rows:
        seeds = seeds_of_both(outcomes, start, row, BASELINE)
        for name, of in what.items():
            a, b = (mean_values(outcomes, start, one, seeds, of) for one in (row, BASELINE))
            if a is not None and b is not None:
                tested = paired(a, b)
                found.append(tested["p"])
                lines.append(
                    [MAIN[row][0], ", ".join(map(str, seeds)), name, difference(tested), f"{found[-1]:.2g}"]
                )
    if not lines:
        return NOT_TESTED
    lines = [[*line, f"{p:.2g}"] for line, p in zip(lines, holm(found), strict=True)]
    return table(["− Q-Neg", "seeds", "", "difference, 95 % interval", "p", "p, Holm"], lines)


def forgetting_table(outcomes: Known, start: str, rows: Sequence[str]) -> str:
    """The table of the shares of training queries that each episode forgot and learned."""
    lines = []
    for row in rows:
        title, found = called_row(row), of_row(outcomes, start, row)
        if not found:
            lines.append([title, *["not run"] * 6])
            continue
        shares = [
            over_seeds([one.results["forgetting"][i][share] for one in found])
            for share in ("forgotten", "learned")
            for i in range(3)
        ]
        lines.append([title, *shares])
    heads = [f"{share} {i}" for share in ("forgotten,", "learned,") for i in (1, 2, 3)]
    return table(["", *heads], lines)


def set_up(study: Study, outcomes: Known, chosen: Namespace) -> str:
    """The experiments and their settings, in words."""
    example = study.command(row_of(chosen, chosen.start[0], "tele", FIRST_SEED).steps[-1])
    command = ["hardneg", *example[: example.index("--cache")]]
    command[command.index("--out") + 1] = "EXPERIMENT"
    command = [called(word) for word in command]
    stops = f"{chosen.stop_step}, {chosen.stop_step} and {chosen.steps}"
    lines = [
        f"{called(study.model)} on {called(study.data)}:",
        f"{chosen.queries_per_step} queries × {chosen.passages} passages of at most",
        f"{chosen.passage_length} tokens a step, learning rate {chosen.learning_rate:g}, three episodes of",
        f"{stops} steps, each from the weights of the start unless it continues. The tables name the seeds.",
        budget(outcomes),
        f"One experiment:\n\n```sh\n{shlex.join(command)}\n```\n",
    ]
    return "\n".join(lines)


def budget(outcomes: Known) -> str:
    """Seconds that an experiment took."""
    if not outcomes:
        return ""
    seconds = [one.seconds for one in outcomes.values()]
    train, encode = (np.mean([one.get(stage, 0.0) for one in seconds]) for stage in ("train", "encode"))
    took = f"{train:.0f} s of training and {encode:.0f} s of encoding each"
    threads = " or ".join(map(str, sorted({one.threads for one in outcomes.values()})))
    return f"{len(outcomes)} experiments took {took}, on {threads} CPU threads."


def report(study: Study, outcomes: Known, chosen: Namespace) -> str:
    """The part of the page that this program writes."""
    parts = [set_up(study, outcomes, chosen)]
    for start in chosen.start:
        parts += [
            f"## {called(study.model)}, {STARTS[start]}\n",
            f"Test {MEASURE} after every episode (mean ± standard deviation over seeds):\n",
            quality_table(outcomes, start, chosen.rows) + "\n",
            f"The first table compares the final {MEASURE} of the parts with that of Q-Neg, the second that\n"
            "of the variants with that of ANCE-Tele (as in Tables 8 and 9 of the paper). Differences are means\n"
            "over the named seeds, with a bootstrap interval over queries and the p value of a two-sided paired\n"
            "randomisation test (100,000 permutations), Holm-corrected in each table:\n",
            tests_table(outcomes, start, parts_of(chosen), BASELINE) + "\n",
            tests_table(outcomes, start, [row for row in chosen.rows if row in VARIANTS], WHOLE) + "\n",
            "Seed by seed:\n",
            by_seed_table(outcomes, start, parts_of(chosen)) + "\n",
            "The smallest true difference in the final figure that a paired t-test over the seeds finds in four\n"
            "of five studies, if the differences spread over seeds as here:\n",
            detectable_table(outcomes, start, pairs_of(chosen)) + "\n",
            between(outcomes, start, parts_of(chosen)) + "\n",
            "Shares of the training queries whose MRR@100 fell or rose in episodes 1, 2 and 3:\n",
            forgetting_table(outcomes, start, chosen.rows) + "\n",
        ]
    return "\n".join(parts)


def parts_of(chosen: Namespace) -> list[str]:
    """The rows that are compared with the baseline."""
    return [row for row in chosen.rows if row in MAIN and row != BASELINE]


def pairs_of(chosen: Namespace) -> list[tuple[str, str]]:
    """The rows with several seeds, each with the row that it is compared with."""
    pairs = [(row, BASELINE) for row in parts_of(chosen)]
    return [*pairs, *((row, WHOLE) for row in chosen.rows if row in SEEDED and row not in MAIN)]


def write(path: Path, text: str) -> None:
    """Put the tables into a page; the text that people wrote around them stays."""
    insert(path, text, BEGIN, END, HEADING)


# ---------------------------------------------------------------- the command


def options(parser: ArgumentParser) -> None:
    """Options of this study."""

    def some(known: dict[str, Any]) -> Callable[[str], list[str]]:
        def read(text: str) -> list[str]:
            names = text.split(",")
            if wrong := set(names) - set(known):
                raise ValueError(wrong)
            return [name for name in known if name in names]

        read.__name__ = f"names out of {','.join(known)}:"
        return read

    parser.add_argument(
        "--rows", type=some(MAIN | VARIANTS), default=list(MAIN | VARIANTS), help="names, separated by commas"
    )
    parser.add_argument("--start", type=some(STARTS), default=list(STARTS), help="as-is, reinit, or both")
    parser.add_argument("--seeds", type=int, default=3, help="of the first four rows and of the continued one")
    parser.add_argument("--reinit-layers", type=int, default=3)
    parser.add_argument("--queries-per-step", type=int, default=8)
    parser.add_argument("--passages", type=int, default=8, help="of a query: one positive, the rest negatives")
    parser.add_argument("--passage-length", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=120, help="of the last episode, and of every schedule")
    parser.add_argument("--stop-step", type=int, default=40, help="steps of the episodes before the last")


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "queries_per_step": chosen.queries_per_step,
        "passages_reference": [chosen.passages],
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "learning_rate": chosen.learning_rate,
        "steps": chosen.steps,
        "stop_step": chosen.stop_step,
        "measures": f"{MEASURE} nDCG@10 R@100",
    }


def main(chosen: Namespace) -> None:
    """Run the missing experiments, keep their outcomes, write the tables."""
    study = begin(chosen, common_of(chosen), MEASURE)
    study.planning(row.steps[-1] for row in order(chosen))
    if not chosen.only_report:
        study.execute_all(list(study.plan.values()), chosen.jobs)
    keep(study, chosen)
    text = report(study, study.outcomes(), chosen)
    if chosen.report:
        write(chosen.report, text)
    say(text)


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

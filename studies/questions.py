"""Code that the two studies of open-domain questions share: states, tests of differences, forgetting."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from harness import Step, Study, begin, called, difference, insert, keep, paired, say, table
from outcomes import Outcome

from hardneg.evaluation.significance import holm

Pair = tuple[str, tuple[Outcome, str], tuple[Outcome, str]]  # a title, and two states of experiments: a - b


def states_table(states: Sequence[tuple[str, Outcome, str]], measures: Sequence[str]) -> str:
    """The table of every measure on test, with a line for each title, experiment and state."""
    lines = []
    for title, one, state in states:
        means = [one.mean("test", state, measure) for measure in measures]
        lines.append([title, *("not run" if mean is None else f"{mean:.4f}" for mean in means)])
    return table(["", *measures], lines)


def tests_table(pairs: Sequence[Pair], measures: Sequence[str]) -> str:
    """Differences of states on test, with intervals and p of the paired test, Holm-corrected over the table."""
    lines: list[list[str]] = []
    found: list[float] = []
    for title, (a, of_a), (b, of_b) in pairs:
        cells = []
        for measure in measures:
            x, y = a.values("test", of_a, measure), b.values("test", of_b, measure)
            if x is None or y is None:
                cells.append("not kept")
                continue
            counted = ~np.isnan(x) & ~np.isnan(y)
            tested = paired(x[counted], y[counted])
            cells.append(f"{difference(tested)}, p {{{len(found)}:.2g}}")
            found.append(tested["p"])
        lines.append([title, *cells])
    corrected = holm(found)
    return table(
        ["", *measures], [[title, *(cell.format(*corrected) for cell in cells)] for title, *cells in lines]
    )


def forgetting_table(arms: dict[str, Outcome]) -> str:
    """The shares of training questions that each episode forgot and learned; with two arms also a test."""
    lines = []
    for i in range(max(len(one.results["forgetting"]) for one in arms.values())):
        told = [one.results["forgetting"][i] for one in arms.values()]
        shares = [f"{row[share]:.3f}" for share in ("forgotten", "learned") for row in told]
        lines.append([str(i + 1), *shares, *tested_forgetting(list(arms.values()), i + 1)])
    heads = [f"{share}, {name}" for share in ("forgotten", "learned") for name in arms]
    return table(["episode", *heads, *(["forgotten, difference", "p"] if len(arms) == 2 else [])], lines)


def tested_forgetting(arms: Sequence[Outcome], episode: int) -> list[str]:
    """The test of what an episode forgot, second arm against first; p is not corrected."""
    if len(arms) != 2:
        return []
    y, x = (one.changed(episode, "-") for one in arms)
    if x is None or y is None:
        return ["not kept"] * 2
    tested = paired(x, y)
    return [difference(tested), f"{tested['p']:.2g}"]


def tell(
    chosen: Namespace,
    common: dict[str, object],
    steps: Sequence[Step],
    measures: Sequence[str],
    report: Callable[[Study], str],
    script: str,
) -> None:
    """Run the missing experiments, keep their outcomes, write the tables."""
    study = begin(chosen, common, *measures).planning(steps)
    if not chosen.only_report:
        study.execute_all(steps, chosen.jobs)
    keep(study, chosen)
    text = f"{called(study.model)} on {called(study.data)}, {study.threads} CPU threads.\n\n{report(study)}"
    if chosen.report:
        write(chosen.report, text, script)
    say(text)


def write(path: Path, text: str, script: str) -> None:
    """Put the tables into a page; the text that people wrote around them stays."""
    insert(path, text, f"<!-- tables: written by studies/{script}.py -->\n", "<!-- end of tables -->\n")

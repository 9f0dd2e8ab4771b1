"""The page of the study: every figure, interval and p value comes from kept outcomes alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import difference, insert, table

from quality.cells import BM25, DEPTH, MEASURES, UNTRAINED, Outcome
from quality.comparisons import Tested, corrected, tests_of, told_fact
from quality.fused import fused_of, tests_of_fusion
from quality.groups import PLAINEST, Group, Known, contenders_of, groups_of, of_contender, reference
from quality.rule import GRID, LEAST, LOOKING, LOOKS, PACE_STEPS

BEGIN, END = "<!-- tables: written by benchmarks/quality -->\n", "<!-- end of tables -->\n"

RATES = " and ".join(f"{rate:g}" for rate in sorted({point.rate for point in GRID}))
SCALES = " and ".join(f"{scale:g}" for scale in sorted({point.scale for point in GRID}))
HEADING = f"""# Quality in equal time: who trains the better retriever in the same minutes

**Question.** On the same processors, from the same model and the same pairs of texts: does hardneg give a better
retriever in 10, 30 and 60 minutes than sentence-transformers does?

The command below the tables runs the cells that are not kept and makes every figure from what is kept (test query
by test query, without texts) in seconds. In its `OPTIONS`, `--only-report` runs nothing, `--estimate` says how
many hours the missing cells take, `--list` which they are, and `--only PATTERN` chooses. Outcomes of the groups
that a command asks for are refused if they were made with another length, model, precision, device, clock, number
of threads, `dev` or `dev passages`, or with another grid or batch. Where an outcome does not tell its grid, all of
its runs must be at points of the asked grid, and its first run at the first one. Where it does not tell its batch,
the batch is not compared, as nothing that is kept shows it.

## Rules

A *contender* is a tool with a way to train; a *cell* is one training by a contender: a collection, a time, a seed.

- **Clock.** It runs from the start of a contender's process to its model: imports, tokens, mining, and every
  measurement on dev count. `clock` of the last table says what is counted: seconds (`wall`), or the time that one
  processor worked for the contender (`processor`, one thread), which other programs change less. Searching the
  test queries is not counted: all models are searched once, afterwards. A cell that took over 5 % more than its
  time is marked *over*.
- **Equal for all.** Base model, training pairs, dev queries (at most `dev` of the last table), corpus, the length
  at which texts are cut, precision, threads. sentence-transformers gets titles and texts joined as hardneg joins
  them, its batch sampler without duplicates, weight decay, warm-up and clipping as hardneg's presets have them,
  and the best state on dev (nDCG@10). Dev is judged among the first `dev passages` that BM25 finds for each dev
  query and all positives, or the whole corpus; sentence-transformers gets these passages, made beforehand.
  Contenders take turns and do not share processors.
- **Grid.** Each contender may try the rates {RATES} with the scales (1 / temperature) {SCALES}; the time of that
  counts. First it makes {PACE_STEPS} steps, the *pace run*, to learn how long a step takes. Half of the time that
  is left is divided equally among the points of the grid, and each gets a whole schedule. The best point on dev
  gets the other half, from the start. (With equal shares for all, the model that counts would have a quarter of
  the time.) If a share is less than {LEAST} steps, the first point gets all of the time.
  Where a command on this page names one point (`--grid`), that point gets all of the time.
- **Dev.** A run measures dev at most {LOOKS} times, in at most {LOOKING:.0%} of its planned time. The model before
  training can be the result.
- **Done once.** sentence-transformers' contenders mine the negatives of the starting model once for all points;
  hardneg's commands share a cache, as any user can let them do.
- **No tuning of ours.** hardneg's contenders are `--preset finetune` of each recipe, with steps, rate, scale,
  dev and the number of measurements set by these rules. Queries for which `mine_hard_negatives` finds too few
  negatives are left out.
- **Tests.** Values of a query are averaged over seeds. The best peer is the one with the highest mean on test,
  to our disadvantage. Interval: bootstrap over queries, 95 %; p: two-sided paired randomisation test; Holm over
  all tests of this page. An interval is of these trained models, not of the way of training.

Mining looks at the whole corpus, passages of test queries included, as all these tools do; no test query is seen.
"""
EMPTY = "Nothing is measured yet."
FUSION = f"""## Fused with BM25

A model's run and BM25's, {DEPTH} hits of each query, as
`hardneg fuse --method linear --tune dev --measure {MEASURES[0]}` fuses them: the weights, multiples of 0.1 that
add up to 1, are the best on dev. Cells that were made before this was asked are missing."""


def write(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write the page of these outcomes; the text that people wrote around the tables stays."""
    put(path, tables({one.cell: one for one in outcomes}))


def put(path: Path, text: str) -> None:
    """Write the page with the text of :func:`tables`."""
    insert(path, text, BEGIN, END, HEADING)


def tables(known: Known) -> str:
    """All tables."""
    groups = groups_of(known)
    if not groups:
        return EMPTY
    tests, of_fused = all_tests(known, groups)
    parts = ["## Result\n\n" + summary(tests)]
    for group in groups:
        told = [row for row in tests if row.group == group]
        parts.append(f"## {group.title}\n\n{figures(known, group)}")
        parts += [tests_table(told)] if told else []
    parts += fusion(known, groups, of_fused)
    parts += ["## Where the time goes\n\n" + times(known), "## Machine\n\n" + machines(known)]
    return "\n\n".join(parts)


# ---------------------------------------------------------------- figures


def figures(known: Known, group: Group) -> str:
    """The table of means over seeds, with steps and seconds."""
    lines = []
    for contender in (BM25, UNTRAINED, *contenders_of(known, group)):
        trained = contender not in (BM25, UNTRAINED)
        found = (of_contender if trained else reference)(known, group, contender)
        if found:
            lines.append([contender, *row_of(found, trained)])
    return table(["", "seeds", *MEASURES, "dev nDCG@10", "steps", "seconds", "kept"], lines)


def row_of(found: Sequence[Outcome], trained: bool) -> list[str]:
    """The figures of a contender."""
    means = [spread([float(one.values(measure).mean()) for one in found]) for measure in MEASURES]
    if not trained:
        return ["", *means, "", "", "", ""]
    late = " (over)" if any(one.over for one in found) else ""
    steps = [max((run["steps"] for run in one.runs), default=0) for one in found]
    return [
        ", ".join(str(one.cell.seed) for one in found),
        *means,
        f"{np.mean([one.chosen['dev'] for one in found]):.4f}",
        f"{np.mean(steps):.0f}",
        f"{np.mean([one.seconds for one in found]):.0f}{late}",
        "; ".join(sorted({kept(one.chosen) for one in found})),
    ]


def kept(chosen: Mapping[str, Any]) -> str:
    """The point of the grid that was chosen."""
    return f"{chosen['rate']:g}, {chosen['scale']:g}" if chosen["trained"] else "untrained"


def spread(values: Sequence[float]) -> str:
    """A mean, with the standard deviation if there are several values."""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


# ---------------------------------------------------------------- tests


def all_tests(known: Known, groups: Sequence[Group]) -> tuple[list[Tested], list[Tested]]:
    """The tests of models alone and those of fused runs, corrected for all tests of the page."""
    alone, fused = tests_of(known, groups), tests_of_fusion(known, groups)
    every = corrected([*alone, *fused])
    return every[: len(alone)], every[len(alone) :]


def tests_table(tests: Sequence[Tested]) -> str:
    """The tests of a group."""
    lines = [
        [
            one.contender,
            f"{one.against}{' (best peer)' if one.peer else ''}",
            ", ".join(map(str, one.seeds)),
            difference(one.test),
            f"{one.test['p']:.2g}",
            f"{one.holm:.2g}",
        ]
        for one in tests
    ]
    return table(["", "against", "seeds", f"{MEASURES[0]}, 95 % interval", "p", "p, Holm"], lines)


def summary(tests: Sequence[Tested]) -> str:
    """For each of our contenders, the number of comparisons in which it is significantly better or worse."""
    lines = []
    for contender in sorted({one.contender for one in tests}):
        mine = [one for one in tests if one.contender == contender]
        kinds = {
            "best peer": [one for one in mine if one.peer],
            PLAINEST: [one for one in mine if one.against == PLAINEST],
            UNTRAINED: [one for one in mine if one.against == UNTRAINED],
        }
        lines.append([contender, *(verdict(found) for found in kinds.values())])
    return table(["", "against the best peer", f"against {PLAINEST}", f"against {UNTRAINED}"], lines)


def verdict(tests: Sequence[Tested]) -> str:
    """Counts at 0.05 after Holm's correction."""
    better = sum(one.holm < 0.05 and one.test["difference"] > 0 for one in tests)
    worse = sum(one.holm < 0.05 and one.test["difference"] < 0 for one in tests)
    return f"better {better}, worse {worse}, open {len(tests) - better - worse}" if tests else "not run"


# ---------------------------------------------------------------- with BM25


def fusion(known: Known, groups: Sequence[Group], tests: Sequence[Tested]) -> list[str]:
    """The table of models whose runs were fused with BM25's; empty if there is none."""
    parts = [FUSION] if tests else []
    for group in groups:
        lines = []
        for contender in (UNTRAINED, *contenders_of(known, group)):
            if found := fused_of(known, group, contender):
                seeds = "" if contender == UNTRAINED else ", ".join(str(one.cell.seed) for one in found)
                means = [
                    spread([float(one.as_fused.values(measure).mean()) for one in found]) for measure in MEASURES
                ]
                weights = spread([one.fused["weight"] for one in found])
                lines.append([contender, seeds, *means, weights])
        if lines:
            told = tests_table([one for one in tests if one.group == group])
            figures = table(["fused with BM25", "seeds", *MEASURES, "BM25's weight"], lines)
            parts += [f"### {group.title}", figures, told]
    return parts


# ---------------------------------------------------------------- time and machine


def times(known: Known) -> str:
    """The mean share of each stage in a contender's time; all other work is counted as the rest."""
    lines = []
    for contender in sorted({cell.contender for cell in known if not cell.reference}):
        found = [one for cell, one in known.items() if cell.contender == contender]
        total = sum(one.seconds for one in found)
        stages: dict[str, float] = {}
        for stage, seconds in itertools.chain.from_iterable(one.stages.items() for one in found):
            stages[stage] = stages.get(stage, 0.0) + seconds
        shares = sorted(stages.items(), key=lambda item: -item[1])
        text = ", ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in shares if seconds > 0.005 * total)
        lines.append([contender, len(found), text])
    return table(["", "cells", "of its time"], lines)


def machines(known: Known) -> str:
    """The machines that the cells ran on."""
    names = ("threads", "at_a_time", "clock", "device", "precision", "length", "model", "dev", "dev_passages")
    lines: dict[tuple[Any, ...], list[Any]] = {}
    for one in known.values():
        machine = one.facts["machine"]
        libraries = ("hardneg", "sentence-transformers", "torch", "transformers")
        versions = ", ".join(f"{name} {machine['versions'].get(name, '?')}" for name in libraries)
        features = " ".join(machine["features"])
        row = [machine["cpu"], features, *(told_fact(one.facts, name) for name in names), versions]
        lines[tuple(row)] = [*row, lines.get(tuple(row), [0])[-1] + 1]
    heads = ["processor", "instructions", *(name.replace("_", " ") for name in names), "versions", "cells"]
    return table(heads, list(lines.values()))

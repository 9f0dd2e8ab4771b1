"""The baselines, X -> Y warm-ups, ANCE and ANCE-Tele at an equal budget of optimiser steps.

Every recipe's learning rate is chosen on dev from one grid, by trials of a quarter of the steps.
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace

from harness import Row, Step, Study, arguments, compare, number, say, table

GRID = (1e-4, 3e-4, 3e-5)
MEASURE = "RR@10"
TRIAL = "trial"


def rows(steps: int) -> list[Row]:
    """All rows at a budget of so many steps."""
    half, third = steps // 2, steps // 3

    def warm(title: str, *mixtures: str, name: str) -> Row:
        share = [steps // len(mixtures)] * len(mixtures)
        return Row(title, (Step(name, "warmup", {"mixtures": list(mixtures), "steps": share, "depth": 100}),))

    def ance(title: str, mode: str, name: str) -> Row:
        first = Step(f"{name}-warm", "warmup", {"mixtures": ["bm25"], "steps": [half], "depth": 100})
        settings = {"mode": mode, "refresh_every": max(half // 3, 1), "refreshes": 2}
        return Row(title, (first, Step(name, "ance", settings, model=first.name)))

    tele = {
        "steps": third * 2,
        "stop_step": max(steps // 6, 1),
        "passages_reference": [2],
        "passages_paper": [2],
        "count": 30,
    }
    return [
        warm("In-Batch", "in_batch", name="in-batch"),
        warm("Rand", "random", name="random"),
        warm("NCE", "nce", name="nce"),
        warm("BM25", "bm25", name="bm25"),
        warm("DPR (BM25 + In-Batch)", "bm25+in_batch", name="dpr"),
        warm("BM25+Rand", "bm25+random", name="bm25-random"),
        warm("BM25 → Rand", "bm25", "random", name="bm25-to-random"),
        warm("BM25 → NCE", "bm25", "nce", name="bm25-to-nce"),
        warm("BM25 → BM25+Rand", "bm25", "bm25+random", name="bm25-to-bm25-random"),
        ance("ANCE (sync)", "sync", "ance-sync"),
        ance("ANCE (async-fixed)", "async-fixed", "ance-async"),
        Row("ANCE-Tele", (Step("tele", "ance-tele", tele),)),
    ]


def with_rate(row: Row, rate: float, suffix: str = "") -> Row:
    """The row at a learning rate, under names of its own."""
    steps = tuple(
        replace(
            step,
            name=f"{step.name}{suffix}",
            model=None if step.model is None else f"{step.model}{suffix}",
            settings=step.settings | {"learning_rate": rate},
        )
        for step in row.steps
    )
    return replace(row, steps=steps)


def execute(study: Study, chosen: list[Row], jobs: int) -> None:
    """Execute rows, the first steps of all before the second ones."""
    for depth in range(max(len(row.steps) for row in chosen)):
        study.execute_all([row.steps[depth] for row in chosen if len(row.steps) > depth], jobs)


def trials(steps: int, names: set[str] | None) -> dict[str, list[Row]]:
    """By row, its trials: one a rate."""
    short = [row for row in rows(max(steps // 4, 6)) if names is None or row.result in names]
    return {row.result: [with_rate(row, rate, f"-{TRIAL}-{rate:g}") for rate in GRID] for row in short}


def best_rate(study: Study, tried: list[Row]) -> float | None:
    """The rate whose trial does best on dev; None while one is missing."""
    found = [study.results(row.result) for row in tried]
    if any(one is None for one in found):
        return None
    scores = [one["dev"]["final"][MEASURE] for one in found if one]
    return GRID[scores.index(max(scores))]


def report(study: Study, steps: int, names: set[str] | None) -> str:
    """The tables, from results alone."""
    tried, lines = trials(steps, names), []
    first = next((found for row in rows(steps) if (found := study.results(row.result))), None)
    if first:
        for state in ("bm25", "untrained"):
            title = {"bm25": "BM25, no training", "untrained": "the encoder as it is"}[state]
            figures = [number(first, split, state, MEASURE) for split in ("dev", "test")]
            lines.append([title, "", *figures, "", "", ""])
    for row in rows(steps):
        if names is not None and row.result not in names:
            continue
        rate, results = best_rate(study, tried[row.result]), study.results(row.result)
        against = None if row.result == "bm25" else compare(study, row.result, "bm25", MEASURE)
        train = sum(study.seconds(step.name).get("train", 0.0) for step in row.steps)
        lines.append(
            [
                row.title,
                "" if rate is None else f"{rate:g}",
                number(results, "dev", "final", MEASURE),
                number(results, "test", "final", MEASURE),
                "" if against is None else f"{against['difference']:+.4f}",
                "" if against is None else f"{against['p']:.4f}",
                f"{train:.0f}" if results else "",
            ]
        )
    heads = ["row", "learning rate", f"dev {MEASURE}", f"test {MEASURE}", "− BM25 row", "p", "training, s"]
    return table(heads, lines)


def main() -> None:
    """Choose rates, execute the rows, write the table."""

    def options(parser: ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=96, help="optimiser steps of a row")
        parser.add_argument("--queries-per-step", type=int, default=32)
        parser.add_argument("--passage-length", type=int, default=64)
        parser.add_argument("--rows", help="only these, by name, with commas")
        parser.add_argument("--rate", type=float, help="learning rate of every row, instead of trials")

    chosen = arguments(__doc__ or "", options)
    common = {
        "queries_per_step": chosen.queries_per_step,
        "query_length": 32,
        "passage_length": chosen.passage_length,
        "warmup": 0.1,
        "measures": f"{MEASURE} nDCG@10 R@100",
    }
    study = Study(chosen.out, chosen.data, chosen.model, common, chosen.threads)
    names = set(chosen.rows.split(",")) if chosen.rows else None
    if not chosen.only_report:
        tried = trials(chosen.steps, names)
        every = [row for group in tried.values() for row in group]
        execute(study, every[:1], 1)  # fills the shared cache
        execute(study, every, chosen.jobs)
        final = []
        for row in rows(chosen.steps):
            if row.result in tried:
                rate = best_rate(study, tried[row.result])
                say(f"{row.result}: learning rate {rate}")
                final.append(with_rate(row, rate or GRID[0]))
        execute(study, final, chosen.jobs)
    text = report(study, chosen.steps, names)
    if chosen.report:
        chosen.report.write_text(text + "\n")
    say(text)


if __name__ == "__main__":
    main()

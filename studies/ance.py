"""The baselines, X -> Y warm-ups, ANCE and ANCE-Tele at an equal budget of optimiser steps.

Learning rates are chosen on dev from one grid, by trials of a quarter of the steps. Each kind of negatives has its
own rate (mixtures and chains with BM25 take the rate of BM25), and so have ANCE and ANCE-Tele.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from harness import (
    Row,
    Step,
    Study,
    arguments,
    baselines,
    begin,
    best_rate,
    called,
    compare,
    difference,
    execute,
    insert,
    keep,
    number,
    say,
    table,
    trials,
    with_rate,
)

GRID = (1e-4, 3e-4, 3e-5)
MEASURE = "RR@10"
TRIAL = "trial"
TRIED_AS = {  # rows without trials, and the rows whose rate they take
    "dpr": "bm25",
    "bm25-to-in-batch": "bm25",
    "bm25-to-nce": "bm25",
    "bm25-to-bm25-in-batch": "bm25",
    "bm25-corpus-random": "bm25",
    "bm25-to-corpus-random": "bm25",
    "bm25-to-bm25-corpus-random": "bm25",
    "ance-async": "ance-sync",
}


def rows(steps: int) -> list[Row]:
    """All rows at a given budget of steps.

    The paper's Rand is random in the batch; its rows are named In-Batch here. Random rows of the corpus are ours.
    """
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
        warm("Rand (corpus)", "random", name="random"),
        warm("NCE", "nce", name="nce"),
        warm("BM25", "bm25", name="bm25"),
        warm("DPR (BM25 + In-Batch)", "bm25+in_batch", name="dpr"),
        warm("BM25 → In-Batch", "bm25", "in_batch", name="bm25-to-in-batch"),
        warm("BM25 → NCE", "bm25", "nce", name="bm25-to-nce"),
        warm("BM25 → BM25 + In-Batch", "bm25", "bm25+in_batch", name="bm25-to-bm25-in-batch"),
        warm("BM25 + Rand (corpus)", "bm25+random", name="bm25-corpus-random"),
        warm("BM25 → Rand (corpus)", "bm25", "random", name="bm25-to-corpus-random"),
        warm("BM25 → BM25 + Rand (corpus)", "bm25", "bm25+random", name="bm25-to-bm25-corpus-random"),
        ance("ANCE (sync)", "sync", "ance-sync"),
        ance("ANCE (async-fixed)", "async-fixed", "ance-async"),
        Row("ANCE-Tele", (Step("tele", "ance-tele", tele),)),
    ]


def trials_of(steps: int, wanted: set[str]) -> dict[str, list[Row]]:
    """The trials of each row, at a quarter of the steps: one for each rate."""
    tried = {TRIED_AS.get(name, name) for name in wanted}
    return trials([row for row in rows(max(steps // 4, 6)) if row.result in tried], GRID, TRIAL)


def report(study: Study, chosen: list[Row], rates: dict[str, float | None]) -> str:
    """The table, made from results alone."""
    lines: list[list[object]] = []
    first = next((found for row in chosen if (found := study.results(row.result))), None)
    for state, title in baselines(first).items():
        lines.append(
            [title, "", *(number(first, split, state, MEASURE) for split in ("dev", "test")), "", "", "", ""]
        )
    for row in chosen:
        results, rate = study.results(row.result), rates[row.result]
        against = None if row.result == "bm25" else compare(study, row.result, "bm25", MEASURE)
        train = sum(study.seconds(step.name).get("train", 0.0) for step in row.steps)
        lines.append(
            [
                row.title,
                "" if rate is None else f"{rate:g}",
                number(results, "dev", "final", MEASURE),
                number(results, "test", "final", MEASURE),
                "" if against is None else difference(against),
                "" if against is None else f"{against['p']:.2g}",
                f"{results['forgetting'][-1]['forgotten']:.3f}" if results else "",
                f"{train:.0f}" if results else "",
            ]
        )
    heads = [
        "row",
        "learning rate",
        f"dev {MEASURE}",
        f"test {MEASURE}",
        "− BM25 row",
        "p",
        "forgotten",
        "training, s",
    ]
    return table(heads, lines)


def options(parser: ArgumentParser) -> None:
    """Options of this study."""
    parser.add_argument("--steps", type=int, default=96, help="optimiser steps of a row")
    parser.add_argument("--queries-per-step", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=64)
    parser.add_argument("--rows", help="only these, by name, with commas")
    parser.add_argument("--rate", type=float, help="learning rate of every row, instead of trials")


def common_of(given: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "queries_per_step": given.queries_per_step,
        "query_length": 32,
        "passage_length": given.passage_length,
        "warmup": 0.1,
        "measures": f"{MEASURE} nDCG@10 R@100",
    }


def main(given: Namespace) -> None:
    """Choose learning rates, run the experiments, keep their outcomes, write the table."""
    study = begin(given, common_of(given), MEASURE)
    chosen = [row for row in rows(given.steps) if not given.rows or row.result in given.rows.split(",")]
    tried = {} if given.rate else trials_of(given.steps, {row.result for row in chosen})
    every = [row for group in tried.values() for row in group]
    study.planning(step for row in every for step in row.steps)
    if not given.only_report:
        execute(study, every[:1], 1)  # fills the shared cache
        execute(study, every, given.jobs)
    best = {name: best_rate(study, [row.result for row in group], GRID, MEASURE) for name, group in tried.items()}
    rates = {row.result: given.rate or best[TRIED_AS.get(row.result, row.result)] for row in chosen}
    rated = [with_rate(row, rate) for row in chosen if (rate := rates[row.result])]
    study.planning(step for row in rated for step in row.steps)
    if not given.only_report:
        for name, rate in rates.items():
            say(f"{name}: learning rate {rate:g}")
        execute(study, rated, given.jobs)
    keep(study, given)
    text = report(study, chosen, rates)
    if given.report:
        name = called(study.data)
        begun, end = f"<!-- {name}: written by studies/ance.py -->\n", f"<!-- end of {name} -->\n"
        insert(given.report, text, begun, end)
    say(text)


if __name__ == "__main__":
    main(arguments(__doc__ or "", options))

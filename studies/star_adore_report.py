"""The tables and the figure of the study of STAR and ADORE, made from the outcomes of its experiments alone."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from harness import Study, called, insert, interval, number, paired, table
from harness import baselines as no_training
from outcomes import Values
from star_adore_curves import NOT_RUN, curves_table, draw
from star_adore_rows import (
    ADORE,
    FIRST,
    GRID_FROM,
    MEASURE,
    MEASURES,
    ROWS,
    SPLITS,
    first_rows,
    result_of,
    searched_name,
    tried,
)

from hardneg.evaluation.significance import holm

NOT_KEPT = "not kept"
MANY = 1000  # the table shows the share of errors from queries with at least this many


def title_of(row: str) -> str:
    """What a row is called."""
    base = FIRST[row.removesuffix(ADORE)]
    return f"{base} → ADORE" if row.endswith(ADORE) else base


def final_values(study: Study, experiment: str | None, split: str, measure: str) -> Values | None:
    """The measure of every query with the final model; None if it is not kept."""
    return None if experiment is None else study.values(experiment, split, "final", measure)


# ---------------------------------------------------------------- the rows


def quality_table(study: Study, chosen: Namespace) -> str:
    """Every row's measures on dev and test, with intervals over queries."""
    lines = baselines(study, chosen)
    for row in chosen.rows:
        name = result_of(study, chosen, row)
        results = None if name is None else study.results(name)
        cells = [cell(study, name, results, split, measure) for split in SPLITS for measure in MEASURES]
        rate = settings_of(study, name).get("learning_rate", "") if results else ""
        lines.append([title_of(row), rate, *cells, *(seconds(study, chosen, row) if results else ["", ""])])
    heads = [f"{split} {measure}" for split in SPLITS for measure in MEASURES]
    return table(["", "learning rate", *heads, "training, s", "refreshing, s"], lines)


def baselines(study: Study, chosen: Namespace) -> list[list[object]]:
    """The lines of the states that need no training."""
    names = [row.steps[0].name for row in first_rows(chosen).values()]  # these start from the encoder
    results = next((found for name in names if (found := study.results(name))), None)
    return [
        [title, "", *(number(results, split, state, measure) for split in SPLITS for measure in MEASURES), "", ""]
        for state, title in (no_training(results) or {"": "no training"}).items()
    ]


def cell(study: Study, name: str | None, results: dict | None, split: str, measure: str) -> str:
    """A mean and its interval over queries."""
    if name is None or results is None or split not in results:
        return NOT_RUN
    values = final_values(study, name, split, measure)
    return f"{results[split]['final'][measure]:.4f} {NOT_KEPT if values is None else interval(values)}"


def settings_of(study: Study, name: str | None) -> dict[str, Any]:
    """The settings of an experiment."""
    found = None if name is None else study.outcome(name)
    return {} if found is None else found.settings


def seconds(study: Study, chosen: Namespace, row: str) -> list[str]:
    """Seconds of training with its warm-up, and of refreshes meanwhile; for ADORE, only its own training."""
    if row.endswith(ADORE):
        steps = [result_of(study, chosen, row) or ""]
    else:
        steps = [step.name for step in first_rows(chosen)[row].steps]
    training = sum(study.seconds(step).get("train", 0.0) for step in steps)
    return [f"{training:.0f}", f"{sum(refreshing(study.timing(step)) for step in steps):.0f}"]


def refreshing(timing: Sequence[dict[str, Any]]) -> float:
    """Seconds of encoding, searching and mining for every version of the negatives after the first."""
    total = since = 0.0
    for stage in timing:
        if stage["stage"] == "encode" or stage.get("run") == "query":
            since += stage["seconds"]
        elif stage["stage"] == "mine":
            total += since + stage["seconds"] if stage.get("version") else 0.0
            since = 0.0
    return total


def tests_table(study: Study, chosen: Namespace) -> str:
    """ADORE on top of each model against that model, and STAR against ANCE, on test."""
    pairs = [(name + ADORE, name) for name in FIRST if name + ADORE in chosen.rows and name in chosen.rows]
    pairs += [("star", "ance")] if {"star", "ance"} <= set(chosen.rows) else []
    lines, absent, found = [], [], []
    for a, b in pairs:
        names = [result_of(study, chosen, row) for row in (a, b)]
        asked = [(measure, [final_values(study, name, "test", measure) for name in names]) for measure in MEASURES]
        values = [(measure, x, y) for measure, (x, y) in asked if x is not None and y is not None]
        if len(values) < len(asked):
            absent.append([f"{title_of(a)} − {title_of(b)}", *[NOT_RUN] * 3 * len(MEASURES), ""])
            continue
        figures: list[str] = []
        for measure, x, y in values:
            tested = paired(x, y)
            low, high = tested["interval"]
            figures += [f"{tested['difference']:+.4f}", f"[{low:+.4f}, {high:+.4f}]", f"{tested['p']:.2g}"]
            if measure == MEASURE:
                found.append(tested["p"])
        lines.append([f"{title_of(a)} − {title_of(b)}", *figures])
    lines = [[*line, f"{p:.2g}"] for line, p in zip(lines, holm(found), strict=True)]
    heads = [head for measure in MEASURES for head in (f"test {measure}", "95 % interval", "p")]
    return table(["", *heads, f"p of {MEASURE}, Holm"], lines + absent)


def errors_table(study: Study, chosen: Namespace) -> str:
    """Pairwise errors of every row, in all and among the first K, and the share of them that few queries have."""
    lines = []
    for row in chosen.rows:
        name = result_of(study, chosen, row)
        kept = ((study.results(name) or {}) if name else {}).get("pairwise_errors", {})
        cells = [error_cells(kept.get(split, {}).get("final")) for split in SPLITS]
        lines.append([title_of(row), *cells[0][:2], *cells[1]])
    heads = ["dev, total", "dev, top 200", "test, total", "test, top 200"]
    return table(["", *heads, f"test queries with ≥ {MANY:,}", "their share of the errors"], lines)


def error_cells(found: dict[str, Any] | None) -> list[str]:
    """The mean errors, the share of queries with many errors, and the share of all errors that these have."""
    if found is None:
        return [NOT_RUN] * 4
    many = [row for row in found["distribution"] if row["least"] >= MANY]
    shares = [f"{sum(row[of] for row in many):.1%}" for of in ("queries", "errors")]
    return [f"{found['total']:.1f}", f"{found['top']:.2f}", *shares]


def rates_table(study: Study, chosen: Namespace) -> str:
    """The dev figures by which ADORE's learning rate was chosen."""
    lines = [
        [title_of(row), *(number(study.results(step.name), "dev", "final", MEASURE) for step in steps)]
        for row in chosen.rows
        if row.endswith(ADORE)
        for steps in [tried(chosen, row.removesuffix(ADORE))]
    ]
    return table([f"dev {MEASURE} at a rate of", *(f"{rate:g}" for rate in chosen.adore_rates)], lines)


# ---------------------------------------------------------------- the grid


def grid_table(study: Study, chosen: Namespace, split: str) -> str:
    """The table of models trained over one index (down) and searched over another (across)."""
    columns = [*chosen.codes, "exact"]
    names = {"not trained": GRID_FROM, **{str(codes): f"pq-{codes}" for codes in chosen.codes}}
    names["exact"] = result_of(study, chosen, GRID_FROM + ADORE) or ""
    lines = [
        [title, *(grid_cell(study, title, name, str(column), split) for column in columns)]
        for title, name in names.items()
    ]
    return table([f"trained over ↓, searched over → ({split} {MEASURE})", *columns], lines)


def grid_cell(study: Study, trained: str, name: str, over: str, split: str) -> str:
    """One figure of the grid."""
    if over == "exact":
        return number(study.results(name), split, "final", MEASURE)
    if trained in (over, "not trained"):
        state = "final/pq" if trained == over else "untrained/pq"
        return number(study.results(f"pq-{over}"), split, state, MEASURE)
    return number(study.results(searched_name(trained, over)), split, "final", MEASURE)


def sizes_table(study: Study, chosen: Namespace) -> str:
    """The bytes of the indexes, and their recall of the hits of exact search."""
    heads = ["codes", "bytes", "of them codes", "smaller than float16", "R@10", "R@100", "ADORE's training, s"]
    lines: list[Sequence[object]] = []
    for codes in chosen.codes:
        outcome = study.outcome(f"pq-{codes}")
        facts = {} if outcome is None else outcome.facts.get("index", {})
        if not facts:
            lines.append([codes, *[NOT_RUN] * (len(heads) - 1)])
            continue
        exact = facts["rows"] * facts["dim"] * 2
        took = study.seconds(f"pq-{codes}")
        size = [
            f"{facts['bytes']:,}",
            f"{facts['rows'] * codes * settings_of(study, f'pq-{codes}')['bits'] // 8:,}",
        ]
        found = [f"{facts['recall'][k]:.3f}" for k in ("R@10", "R@100")]
        lines.append([codes, *size, f"{exact / facts['bytes']:.1f}×", *found, f"{took.get('train', 0.0):.0f}"])
    return table(heads, lines)


# ---------------------------------------------------------------- all of it


def report(study: Study, chosen: Namespace, figure: str | None = None) -> str:
    """The part of the page that this program writes."""
    parts = [set_up(study, chosen)]
    if "rows" in chosen.parts:
        parts += ["### Rows\n", quality_table(study, chosen)]
        parts += ["### Paired tests on test\n", tests_table(study, chosen)]
        parts += ["### Pairwise errors, mean of a query\n", errors_table(study, chosen)]
        parts += ["### ADORE's learning rate\n", rates_table(study, chosen)]
    if "grid" in chosen.parts:
        parts += [f"### ADORE over compressed indexes, from {FIRST[GRID_FROM]}\n"]
        parts += ["\n\n".join(grid_table(study, chosen, split) for split in SPLITS), sizes_table(study, chosen)]
    if "curves" in chosen.parts:
        parts += ["### Static, random and dynamic negatives of one frozen index\n"]
        parts += [f"![Overlap, dev {MEASURE} and dev errors against steps]({figure})"] if figure else []
        parts += [curves_table(study, chosen)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def set_up(study: Study, chosen: Namespace) -> str:
    """A description of the experiments that were run."""
    step = first_rows(Namespace(**{**vars(chosen), "rows": ROWS, "parts": ["rows"]}))["star"].steps[-1]
    words = study.command(step)
    words = ["hardneg", *words[: words.index("--cache")]]
    words[words.index("--out") + 1], words[words.index("--model") + 1] = "STAR", "WARM-UP/model"
    return "\n".join(
        [
            f"{called(study.model)} on {called(study.data)}: {chosen.steps} steps of {chosen.queries_per_step}",
            f"queries a row (ANCE and STAR: half of them the BM25 warm-up), then {chosen.adore_steps} of ADORE;",
            f"{study.threads} CPU threads. One experiment:\n\n```sh",
            f"{shlex.join(called(word) for word in words)}\n```",
        ]
    )


def write(study: Study, chosen: Namespace) -> None:
    """Put tables and figure into the page, between the marks of this collection."""
    name = called(study.data)
    figure = chosen.report.with_name(f"{chosen.report.stem}-{name.rpartition(':')[2]}.png")
    drawn = "curves" in chosen.parts and draw(study, chosen, figure)
    begin, end = f"<!-- {name}: written by studies/star_adore.py -->\n", f"<!-- end of {name} -->\n"
    insert(chosen.report, report(study, chosen, figure.name if drawn else None), begin, end)

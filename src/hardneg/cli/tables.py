"""Results as plain tables for a terminal; nothing is computed here.

Without rich: its tables take 50 times as long (1,000 rows of 3 columns: 0.76 s, not 0.014), for the same lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardneg.experiment.layout import Layout
from hardneg.experiment.names import shown
from hardneg.process.progress import size_text
from hardneg.shown import counted, decimals


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of aligned columns: the first, and a last one without heading, to the left; others to the right."""
    cells = [[str(header) for header in headers], *[[cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    last = len(headers) - 1
    left = {0} | ({last} if headers[last] == "" else set())  # a column without a heading has sentences
    lines = [
        "  ".join(text.ljust(width) if i in left else text.rjust(width) for i, (text, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    ]
    return "\n".join([lines[0].rstrip(), "-" * len(lines[0]), *(line.rstrip() for line in lines[1:])])


def cell(value: Any) -> str:
    """One value as a person reads it."""
    if isinstance(value, float):
        return decimals(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "none"
    return str(value)


def p_value(p: float) -> str:
    """A p-value, never rounded to nought."""
    return f"{p:.4f}" if p >= 1e-3 else f"{p:.0e}"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Names and values, a line each; the values of an inner table are named ``table.name``."""
    flat: dict[str, str] = {}
    for name, value in facts.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        flat |= {f"{name}.{key}".rstrip("."): one_line(found) for key, found in inner}
    width = max(map(len, flat))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in flat.items())


def one_line(value: Any) -> str:
    """The value of a fact on one line, also if it is a table."""
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(inner)} {name}" for name, inner in value.items())
    return cell(value)


def evaluation_table(result: Mapping[str, Any]) -> str:
    """Measures, and the numbers of queries behind them."""
    rows = [(name, value) for name, value in result["measures"].items()]
    counts = counted(result["queries"], "query")
    if result["missing"]:
        absent = "of them is not in the run and scores 0", "of them are not in the run and score 0"
        counts += f"; {counted(result['missing'], *absent)}"
    if result["unjudged"]:
        why = "no passage is judged relevant, or there is no answer"
        one, several = f"query of the run is left out: {why}", f"queries of the run are left out: {why}"
        counts += f"; {counted(result['unjudged'], one, several)}"
    if "counted" in result:
        counts += "; by measure: " + ", ".join(f"{name} {n:,}" for name, n in result["counted"].items())
    return table(["measure", "mean"], rows) + "\n" + counts


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Paired tests, a row for each pair and measure; runs are named as far as their paths differ."""
    columns = [
        "measure",
        "a",
        "b",
        "difference",
        "interval",
        "p",
        "p_t",
        "p_holm",
        "wins",
        "ties",
        "losses",
        "overlap",
        *(["by_seed"] if any("by_seed" in row for row in rows) else []),
    ]
    titles = {
        "by_seed": "difference by seed",
        "interval": "95 % interval",
        "p_t": "p (t-test)",
        "p_holm": "p (Holm)",
        "overlap": "overlap@100",
    }
    names = {row[side] for row in rows for side in "ab"}
    common = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])

    def cell(name: str, value: Any) -> Any:
        if name in ("a", "b"):
            return os.path.relpath(value, common)
        if name == "interval":
            return bounds(value)
        if name == "by_seed":
            return ", ".join(f"{seed}: {difference:+.4f}" for seed, difference in value.items())
        return p_value(value) if name.startswith("p") else value

    return table(
        [titles.get(name, name) for name in columns], [[cell(name, row[name]) for name in columns] for row in rows]
    )


def bounds(interval: Sequence[float]) -> str:
    """The interval of a difference."""
    return f"[{interval[0]:+.4f}, {interval[1]:+.4f}]"


def states_table(states: Mapping[str, Mapping[str, Any]]) -> str:
    """Measures by state of the model."""
    measures = list(next(iter(states.values())))
    return table(["", *measures], [[shown(name), *values.values()] for name, values in states.items()])


LONGEST_CELL, MOST_ROWS = 48, 30  # of a report's tables in a terminal
LAST_ROWS = 10  # of these: a table in the order of training ends with the final model
TOLD = (
    "settings",
    "results",
    "comparisons",
    "forgetting",
    "composition_of_pools",
    "swing",
    "informative",
    "pairwise_errors",
    "geometry",
    "breakdown",
    "cost",
)


def report_text(report: Any, name: str) -> str:
    """The verdict and the tables of a report: of one experiment, or of several side by side."""
    verdict = report.verdict
    lines = [name, verdict.sentence, *verdict.details, *(f"next: {line}" for line in verdict.advice)]
    lines += [f"note: {line}" for line in report.notes]
    several = not hasattr(report, "opened")
    if not several and (begun := report.opened.begun_by):
        lines.append(f"begun by: {begun}")
    wanted = [one for one in TOLD if several or one != "settings"]
    tables = {one.figure.name: one for one in report.drawn if one.table is not None}
    parts = [f"{tables[one].figure.title}\n{short_table(tables[one].table)}" for one in wanted if one in tables]
    return "\n\n".join(["\n".join(map(plain, lines)), *parts])


def report_facts(report: Any, name: str) -> dict[str, Any]:
    """What :func:`report_text` says, for machines: the tables are whole, each a list of rows by column."""
    several = not hasattr(report, "opened")
    wanted = [one for one in TOLD if several or one != "settings"]
    tables = {one.figure.name: one.table for one in report.drawn if one.table is not None}
    return {
        "experiment": name,
        "verdict": asdict(report.verdict),
        "notes": list(report.notes),
        **({} if several else {"begun_by": report.opened.begun_by}),
        "tables": {one: tables[one].records() for one in wanted if one in tables},
    }


def short_table(found: Any) -> str:
    """The first and the last rows of a report's table, with long texts cut."""

    def short(value: Any) -> Any:
        text = plain(value) if isinstance(value, str) else "" if value is None else value
        return text if not isinstance(text, str) or len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"

    rows = [[short(value) for value in row] for row in found.rows]
    lines = table(list(found.columns), rows).split("\n")
    if (left := len(found) - MOST_ROWS) > 0:
        lines[-LAST_ROWS - left : -LAST_ROWS] = [f"... {left} more ..."]
    return "\n".join(lines)


def forgetting_table(steps: Sequence[Mapping[str, Any]]) -> str:
    """Training queries forgotten and learned between states of the model."""
    names = ("before", "after", "forgotten", "learned", "train_mrr_100")
    rows = [[shown(step[name]) if name in ("before", "after") else step[name] for name in names] for step in steps]
    headers = ["from", "to", "forgotten", "learned", "MRR@100 then"]
    return "training queries, from one state of the model to the next\n" + table(headers, rows)


def pooled_table(results: Mapping[str, Any], out: Path) -> str:
    """Mean and deviation over seeds, of the states alone and fused with BM25."""
    parts = []
    for split in ("dev", "test"):
        if results.get(split):
            measured_all = results[split] | results.get("fused", {}).get(split, {})
            means = {state: pooled_values(measured) for state, measured in measured_all.items()}
            parts.append(f"{split}, mean ± deviation over seeds {results['seeds']}\n{states_table(means)}")
    if results.get("forgetting"):
        parts.append(forgetting_table([pooled_values(step) for step in results["forgetting"]]))
    return "\n\n".join([*parts, f"experiments: {Layout(out).all_seeds}"])


def pooled_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Means and deviations as text; values that are texts stay."""
    return {
        name: value if isinstance(value, str) else f"{value['mean']:.4f} ±{value['std']:.4f}"
        for name, value in values.items()
    }


# ---------------------------------------------------------------- plans


def settings_text(plan: Mapping[str, Any]) -> str:
    """Settings as TOML, ready for ``--config``; origins, episodes and facts are comments."""
    settings, comments = plan["settings"], {name: f"  # {told}" for name, told in plan["origins"].items()}
    lines = [
        f"{name} = {toml(value)}{comments.get(name, '')}" for name, value in settings.items() if value is not None
    ]
    if left := [name for name, value in settings.items() if value is None]:
        lines.append(f"# not set: {', '.join(left)}")
    return "\n".join([*lines, "", *(f"# {line}" for line in plan_lines(plan))])


def toml(value: Any) -> str:
    """One value in TOML."""
    return json.dumps(value, ensure_ascii=False)


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """A line for each episode, and the facts."""
    episodes = [
        f"episode {row['episode']}{of_model(row)}: {counted(row['queries'], 'query')}, "
        f"{counted(row['steps'], 'step')} of "
        f"{counted(row['queries_per_step'], 'query')}, {counted(row['passages_per_query'], 'passage')} a query"
        for row in plan["episodes"]
    ]
    return [*episodes, *facts_table(plan["facts"]).splitlines()]


def of_model(row: Mapping[str, Any]) -> str:
    """Which model an episode trains, where several are trained."""
    return f" of {row['model']}" if "model" in row else ""


def estimate_text(plan: Mapping[str, Any]) -> str:
    """What an experiment would take."""
    return "\n".join(plan_lines(plan))


# ---------------------------------------------------------------- texts


def hits_text(query: str, hits: Sequence[Mapping[str, Any]], why: str = "") -> str:
    """The hits of one query, to read; ``why`` says why there is none."""
    nothing = [f"  nothing found{why and f': {why}'}"]
    lines = [passage_line(hit["rank"], hit) for hit in hits] or nothing
    return "\n".join([f"query: {plain(query)}", *lines])


def inspection_text(found: Mapping[str, Any], most: int, unit: str = "episode") -> str:
    """A query's positives and negatives, to read; ``unit`` says what a negative's ``episode`` counts."""
    lines = [f"query {plain(found['query_id'])}: {plain(found['text'])}"]
    lines += [passage_line("+", positive) for positive in found["positives"]]
    for negative in found["negatives"][:most]:
        source = "momentum/" * negative["momentum"] + negative["source"]
        rank = f" rank {negative['rank']}" if negative["rank"] else ""
        lines.append(passage_line(f"- {source}{rank}, {unit} {negative['episode']},", negative))
    if (left := len(found["negatives"]) - most) > 0:
        lines.append(f"  ... and {left} more")
    if not found["negatives"]:
        lines.append("  no negative: the pool has none for this query (training on in-batch negatives mines none)")
    return "\n".join(lines)


def passage_line(mark: Any, passage: Mapping[str, Any], width: int = 110) -> str:
    """One passage: a line about it, and one with the beginning of its text."""
    score = "" if passage.get("score") is None else f" score {passage['score']:.4f}"
    score += "" if passage.get("ranker_score") is None else f" ranker {passage['ranker_score']:.4f}"
    named = passage.get("title") not in ("", None, passage["passage_id"])
    title = f" {plain(passage['title'])}" if named else ""
    text = plain(passage["text"])
    shown = text if len(text) <= width else text[: width - 1] + "…"
    return f"  {mark}{score} [{plain(passage['passage_id'])}]{title}\n      {shown}"


def plain(text: str) -> str:
    """A foreign text on one line, without characters that control a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def verification_text(report: Mapping[str, Any]) -> str:
    """What was checked, and what is not whole."""
    rows = [
        (one["kind"], one["files"], one["bytes"], "whole" if one["whole"] else "DAMAGED", one["path"])
        for one in report["checked"]
    ]
    lines = [table(["kind", "files", "bytes", "", "place"], rows)]
    lines += [f"left over: {place}" for place in report["leftovers"]]
    broken = sum(not one["whole"] for one in report["checked"])
    absent = len(report["faults"]) - broken
    more = f"; {absent} not there, or nothing to verify" if absent else ""
    return "\n".join([*lines, f"{len(rows)} checked, {f'{broken} damaged' if broken else 'all whole'}{more}"])


def cleaning_text(report: Mapping[str, Any]) -> str:
    """What can be deleted or was, with sizes and reasons."""
    if not report["items"]:
        return "nothing to delete" + ("" if report.get("finished", True) else ": the experiment is not finished")
    rows = [(one["kind"], one["bytes"], one["path"], one["why"]) for one in report["items"]]
    lines = [table(["kind", "bytes", "place", ""], rows)]
    done = "deleted" if report["deleted"] else "can be deleted with --yes"
    return "\n".join([*lines, f"{report['bytes']:,} bytes ({size_text(report['bytes'])}) {done}"])


def examination_text(found: Mapping[str, Any]) -> str:
    """What was found in a collection, and what to do, in sentences."""
    said = "\n".join(found["said"])
    return f"{said}\n\nAdvice\n" + "\n".join(f"- {line}" for line in found["advice"])


def doctor_text(found: Mapping[str, Any]) -> str:
    """The chapters of a diagnosis, and the lines that install what is missing."""
    chapters = [f"{name}\n{facts_table(facts)}" for name, facts in found.items() if name != "missing" and facts]
    missing = [f"{extra}: {line}" for extra, line in found["missing"].items()]
    return "\n\n".join([*chapters, "\n".join(["missing extras", *missing])] if missing else chapters)

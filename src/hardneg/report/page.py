"""The page of a report: one HTML file that opens without a network, with escaped texts and inlined scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hardneg.hidden import visible
from hardneg.report.drawing import Drawn
from hardneg.report.figures import SECTIONS
from hardneg.report.scripts import asset, libraries
from hardneg.report.table import Table
from hardneg.report.verdict import Verdict

MOST_BYTES = 10_000_000  # of the page, however large the experiment is
MOST_OF_CHARTS = 2_500_000  # bytes of all charts
LONGEST_TABLES = (400, 100, 20)  # rows on the page, fewer where that is too large; the CSV has all
LONGEST_TEXT = 1500  # characters of a text on the page
LONGEST_CELL = 280  # characters of a text in a table; the CSV has all
UNBROKEN = 16  # characters of a cell that stay in one line: an id or a name
# Nothing may be loaded from anywhere. Vega compiles its expressions, so evaluation of own scripts is allowed.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'"
)
# The verdict in few words, by its kind.
MARKS = {
    "better": "▲ Better",
    "worse": "▼ Worse",
    "unsure": "≈ No clear difference",
    "same": "= The model that it started from",
    "open": "● Open",
}


@dataclass(frozen=True)
class Page:
    """What stands on the page of a report.

    Attributes
    ----------
    title : of the page: the experiment's name.
    subtitle : what kind of experiment it is.
    notes : a line for each part that is missing or damaged.
    drawn : all figures, in order.
    command : what makes the page again.
    sections : names of the sections, in their order.
    blocks : more HTML by section, which stands after the section's figures.
    leads : by section, what stands before the section's figures.
    scripts : more scripts, which run after the charts are drawn; their data are in ``data``.
    data : by id, JSON for scripts.
    """

    title: str
    subtitle: str
    verdict: Verdict
    notes: Sequence[str]
    drawn: Sequence[Drawn]
    command: str
    blocks: dict[str, str]
    sections: Sequence[str] = SECTIONS
    scripts: Sequence[str] = ()
    data: tuple[tuple[str, Any], ...] = ()
    leads: Mapping[str, str] = field(default_factory=dict)


def html_of(page: Page) -> bytes:
    """The page as UTF-8 HTML, with fewer rows of its tables where it would be too large."""
    charts = charts_of(page.drawn)
    found = b""
    for most in LONGEST_TABLES:
        found = _html(page, charts, most)
        if len(found) <= MOST_BYTES:
            break
    return found


def charts_of(drawn: Sequence[Drawn]) -> dict[str, dict[str, Any]]:
    """The charts of the page by the names of their figures; the largest are left out where all are too large."""
    found = {one.figure.name: spec_of(one) for one in drawn if one.spec}
    sizes = {name: len(json.dumps(spec)) for name, spec in found.items()}
    size, fit = 0, set()
    for name in sorted(sizes, key=lambda name: sizes[name]):
        size += sizes[name]
        if size > MOST_OF_CHARTS:
            break
        fit.add(name)
    return {name: spec for name, spec in found.items() if name in fit}


def _html(page: Page, specs: Mapping[str, Any], most: int) -> bytes:
    """The page with these charts and at most so many rows of each table."""
    names = [name for name in page.sections if _has(name, page)]
    sections = [_section(name, page, set(specs), most) for name in names]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text(page.title)} · hardneg</title>",
        f"<style>{asset('report.css')}</style></head><body>",
        '<a class="skip" href="#main">Skip to the report</a>',
        f"<header><h1>{text(page.title)}</h1><p>{text(page.subtitle)}</p></header>",
        _navigation(names),
        '<main id="main">',
        _verdict(page.verdict),
        _notes(page.notes),
        *sections,
        "</main>",
        _footer(page.command),
        *[json_script(name, value) for name, value in (("charts", specs), *page.data)],
        f"<script>{libraries()}</script>",
        *[f"<script>{script}</script>" for script in (asset("charts.js"), *page.scripts)],
        "</body></html>",
    ]
    return "\n".join(parts).encode("utf-8", "replace")


# ---------------------------------------------------------------- texts


def text(value: Any, longest: int = LONGEST_TEXT) -> str:
    """A foreign text as HTML: cut, without marks that turn its direction, and escaped."""
    cut = str(value) if len(str(value)) <= longest else f"{str(value)[: longest - 1]}…"
    return escape(visible(cut))


NOISE = 1e-12  # what is left of a difference of equal figures


def cell(value: Any) -> str:
    """A value of a table as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        plain = f"{value:,.4f}".rstrip("0").rstrip(".")
        return f"{value:.0e}" if NOISE < abs(value) < 1e-4 else "0" if plain == "-0" else plain
    return str(value)


def json_script(name: str, value: Any) -> str:
    """Data as JSON in a script element that no text in it can end."""
    content = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        content = content.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json" id="{escape(name)}">{content}</script>'


# ---------------------------------------------------------------- parts


def table_html(table: Table, caption: str, *, most: int, texts: Iterable[str] = ()) -> str:
    """A table with caption and headings, in a box that the keyboard scrolls."""
    long = set(texts)
    numbers = {name for name in table.columns if all(is_number(value) for value in table.column(name))}
    heads = "".join(
        f'<th scope="col" class="{"number" if name in numbers else ""}">{text(name)}</th>'
        for name in table.columns
    )
    rows = "".join(_row(table, row, long) for row in table.rows[:most])
    left = len(table) - most
    more = f"<p>{left:,} more rows are in the CSV.</p>" if left > 0 else ""
    label = escape(caption)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _row(table: Table, row: tuple[Any, ...], long: set[str]) -> str:
    cells = []
    for name, value in zip(table.columns, row, strict=True):
        said = cell(value)
        short = ' class="short"' if len(said) <= UNBROKEN else ""
        kind = ' class="number"' if is_number(value) else ' class="text"' if name in long else short
        cells.append(f"<td{kind}><bdi>{text(said, LONGEST_CELL)}</bdi></td>")
    return f"<tr>{''.join(cells)}</tr>"


def is_number(value: Any) -> bool:
    """Whether a value stands at the right edge of its column: a number or None."""
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def spec_of(drawn: Drawn) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, as wide as its place on the page."""
    spec = dict(drawn.spec)
    if isinstance(spec.get("facet"), dict) and "spec" in spec:  # each part as wide as a narrow page allows
        spec["spec"] = {**spec["spec"], "width": 270, "height": 270}
    elif "hconcat" not in spec and "vconcat" not in spec:
        spec["width"] = "container"
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
        spec["padding"] = {"left": 5, "top": 5, "right": 28, "bottom": 5}  # the number of the longest bar fits
    return spec


def missing_html(drawn: Iterable[Drawn]) -> str:
    """The figures that are missing, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in drawn:
        if one.table is None:
            title = f'<b id="{one.figure.name}">{text(one.figure.title)}</b>'
            reasons.setdefault(one.missing, []).append(title)
    lines = "".join(f"<li>{', '.join(titles)}: {text(why)}</li>" for why, titles in reasons.items())
    return f'<div class="missing"><p>Not here:</p><ul>{lines}</ul></div>' if lines else ""


def figure_html(drawn: Drawn, *, fits: bool, most: int) -> str:
    """A figure: its title, its chart, how it is read, and its table; nothing if it is missing.

    Parameters
    ----------
    fits : whether the page has room for its chart; most : rows of its table.
    """
    figure, table = drawn.figure, drawn.table
    head = f"<h3>{text(figure.title)}</h3>"
    if table is None:
        return ""
    says = f"<p>{marked(figure.says)}</p>"
    shown = table_html(table, figure.title, most=most, texts=figure.texts)
    if not drawn.spec or not fits:
        failed = "<p>No chart can be drawn of these numbers.</p>" if figure.chart is not None else ""
        if drawn.spec:
            failed = "<p>The chart is too large for the page; its numbers are in the table.</p>"
        return f'<section class="figure" id="{figure.name}">{head}{says}{failed}{shown}</section>'
    return (
        f'<section class="figure" id="{figure.name}">{head}{says}'
        "<noscript><p>The chart needs JavaScript; the table does not.</p></noscript>"
        f'<div class="chart" data-chart="{figure.name}" role="img" aria-label="{escape(figure.title)}: chart; the'
        f' table below has its numbers"></div><details><summary>Table: {text(figure.title)}</summary>{shown}'
        "</details></section>"
    )


def explorer_html(queries: int) -> str:
    """The place of the query explorer, which its script fills; it is used by mouse, keyboard or screen reader."""
    return (
        '<section class="figure" id="explorer"><h3>Query explorer</h3><p>'
        f"{queries:,} sampled queries with their passages, and the ranks of these in each state. Arrow keys go"
        ' through the list.</p><div class="explorer"><div class="ask"><label>Words or id<br>'
        '<input id="explorer-find" type="search" autocomplete="off" spellcheck="false"></label><label>Which<br>'
        '<select id="explorer-kind"><option value="">all</option></select></label>'
        '<p id="explorer-count" role="status"></p></div><ul id="explorer-list" role="listbox" tabindex="0"'
        ' aria-label="Queries"></ul><div id="explorer-shown" class="shown" aria-live="polite"></div></div>'
        "<noscript><p>The explorer needs JavaScript; the tables do not.</p></noscript></section>"
    )


def marked(value: str) -> str:
    """A text of the package as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def anchor(section: str) -> str:
    """The id of a section on the page."""
    return "section-" + re.sub(r"[^a-z]+", "-", section.lower()).strip("-")


def _has(section: str, page: Page) -> bool:
    return section in page.blocks or any(one.figure.section == section for one in page.drawn if one.meant)


def _section(name: str, page: Page, charts: set[str], most: int) -> str:
    figures = [one for one in page.drawn if one.figure.section == name and one.meant]
    lead = f"<p>{marked(page.leads[name])}</p>" if page.leads.get(name) else ""
    parts = [figure_html(one, fits=one.figure.name in charts, most=most) for one in figures]
    inner = lead + "".join(parts) + page.blocks.get(name, "") + missing_html(figures)
    place = anchor(name)
    head = f'<h2 id="{place}-title">{text(name)}</h2>'
    return f'<section id="{place}" aria-labelledby="{place}-title">{head}{inner}</section>'


def _navigation(names: Sequence[str]) -> str:
    links = "".join(f'<li><a href="#{anchor(name)}">{text(name)}</a></li>' for name in names)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _verdict(verdict: Verdict) -> str:
    details = "".join(f"<li>{text(line)}</li>" for line in verdict.details)
    advice = "".join(f"<li>{text(line)}</li>" for line in verdict.advice)
    mark = MARKS[verdict.kind]
    return (
        f'<section class="verdict {verdict.kind}" aria-label="Verdict"><p class="mark">{mark}</p>'
        f'<p class="sentence">{text(verdict.sentence)}</p>'
        + (f"<ul>{details}</ul>" if details else "")
        + (f"<h2>What to do next</h2><ul>{advice}</ul>" if advice else "")
        + "</section>"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    lines = "".join(f"<li>{text(line)}</li>" for line in notes)
    return f'<section class="notes" aria-label="Notes"><h2>What could not be read</h2><ul>{lines}</ul></section>'


def _footer(command: str) -> str:
    return f"<footer><p>Made by hardneg. This command makes it again:</p><pre>{text(command)}</pre></footer>"

"""Shapes of charts that figures share: bars, dots, lines and shares, in the look that all have (Vega-Lite).

A chart can be read without colour: lines differ in dash, points in shape and bars in how full they are, and values
have tooltips. Colours lie in the middle between black and white, so they show on light and on dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

from hardneg.errors import SettingsError
from hardneg.report.table import Table
from hardneg.shown import percent

COLOURS = (
    "#3d85c6",
    "#d9792b",
    "#2f9e6e",
    "#a86bd0",
    "#c9a227",
    "#d0587e",
    "#6b7d8c",
    "#4fb0b5",
    "#96703c",
    "#8fae3f",
)
TINTS = {
    "query": ("#3d85c6", "#c9e0f5"),
    "lookahead": ("#d9792b", "#fae0c8"),
    "": ("#2f9e6e", "#c8ecdc"),
}  # mid, light
FIRST_TINT, OTHER_TINT = "#9aa5af", "#d5dade"  # for BM25, and for passages that no list explains
WIDTH, HEIGHT = 640, 280  # of pictures; on the page a chart is as wide as its place
FAINT = "#8a8a8a"
FEW_TICKS = 4  # steps of an axis, each of which has a tick
DENSE = 150  # from so many points on, a line has no marks for them
ROOM = 0.055  # the least share whose part of a bar has room for its name
PERCENT = ".0%"
DASHES = (
    (1, 0),
    (8, 3),
    (2, 2),
    (8, 3, 2, 3),
    (14, 4),
    (1, 4),
    (5, 2, 1, 2, 1, 2),
    (3, 6),
    (14, 3, 2, 3, 2, 3),
    (4, 1),
)
POINTS = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
FILLS = (1.0, 0.45, 0.1)  # of bars that stand together: full, pale, hollow
PARTED = "split(datum.label, ': ')"  # a label of two parts in two lines, so that a narrow page cuts neither away
PARTED_STEP = 34  # pixels of such a label
LETTER, MARGIN = 7.5, 6  # pixels of a letter in a label of 11 pixels (BM25 has wide ones), and beside the label
FITS = f"(datum.end - datum.begin) * width > {LETTER} * length(datum.label) + {MARGIN}"  # a page may be narrow
VIEW = {"continuousWidth": 300, "continuousHeight": 300}  # of Altair's own theme
LEGEND = {"labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 2}
# Breaks the name of a state into lines, so that it stands upright.
BROKEN = r"split(replace(replace(datum.label, ', ', ',\n'), '/', '/\n'), '\n')"

Chart = Any  # of Altair, which is loaded when a chart is made
_UNCHECKED = RLock()  # two threads that turn Altair's check off at once would leave it off


def altair() -> Any:
    """The package Altair; raises :class:`SettingsError` with the line that installs it if it is missing."""
    try:
        import altair
        import vl_convert  # noqa: F401
    except ImportError as missing:
        what = f"charts need the package {missing.name}, which is not installed"
        raise SettingsError("PACKAGE_MISSING", what, "pip install 'hardneg[report]'") from missing
    return altair


def styled(chart: Chart) -> Chart:
    """The chart with the look and the size that all have."""
    return configured(chart.properties(width=WIDTH, height=HEIGHT))


def configured(chart: Chart) -> Chart:
    """The chart with the look that all have."""
    return chart.configure(  # all at once: each call copies the chart
        background="transparent",
        font="system-ui, 'DejaVu Sans', sans-serif",
        view={"stroke": None},
        axis={
            "grid": True,
            "gridOpacity": 0.25,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 300,
        },
        axisQuantitative={"tickCount": 8},
        axisX={"grid": False},
        legend={"orient": "top", **LEGEND, "labelLimit": 240},
        range={"category": list(COLOURS)},
    )


def tall(chart: Chart, values: Sequence[Any], step: int = 22) -> Chart:
    """The chart with ``step`` pixels for each distinct value of its y axis."""
    return chart.properties(height=step * max(len(set(values)), 1))


def data_of(table: Table) -> Any:
    """The rows of a table as the data of a chart."""
    return of_rows(table.records())


def of_rows(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as the data of a chart, in a tuple, because Altair copies lists at every step of making a chart."""
    return altair().Data(values=tuple(rows))


def specification(draw: Callable[[], Chart]) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, as a report has it whatever the caller has set in Altair.

    A theme of the caller's would change each chart, and a transformer of data may refuse to write it. Both belong
    to the whole process, and its other threads may draw by them: so they are not set, but passed by. The check
    against Vega-Lite's schema takes most of the time, so it is off meanwhile.
    """
    alt = altair()
    from altair.utils.schemapi import debug_mode

    with _UNCHECKED, debug_mode(False):
        spec = draw().to_dict(validate=False, context={"top_level": False, "pre_transform": False})
    return dict(alt.utils.update_nested({"config": {"view": dict(VIEW)}}, {**spec, "$schema": alt.SCHEMA_URL}))


def tips(table: Table, names: Sequence[str] | None = None) -> list[Any]:
    """The tooltips of all columns of a table, or of those named, in a format that fits their values."""
    alt = altair()
    found = []
    for name in names or table.columns:
        numbers = [value for value in table.column(name) if value is not None]
        kind = "quantitative" if all(isinstance(value, (int, float)) for value in numbers) else "nominal"
        whole = all(isinstance(value, int) for value in numbers)
        form = {"format": "," if whole else ".4~f"} if kind == "quantitative" else {}
        found.append(alt.Tooltip(field=escaped(name), type=kind, title=name, **form))
    return found


def escaped(name: str) -> str:
    """A column's name for Vega-Lite, with dots, brackets and quotes escaped: it would read them as paths."""
    for mark in ("\\", ".", "[", "]", "'", '"'):
        name = name.replace(mark, f"\\{mark}")
    return name


# ---------------------------------------------------------------- bars, dots and lines


def bars(table: Table, *, x: str, y: str, title: str, form: str = PERCENT, parted: bool = False) -> Chart:
    """One bar for each row, in the order of the table, with its value in this format.

    The names of ``parted`` bars stand in two lines, broken at a colon.
    """
    alt = altair()
    names = {"axis": alt.Axis(labelExpr=PARTED)} if parted else {}
    axis = {"axis": alt.Axis(format=form)} if form == PERCENT else {}
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(field=escaped(x), type="quantitative", title=title, **axis),
        y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None, **names),
        tooltip=tips(table),
    )
    labels = chart.mark_text(align="left", dx=4, fontSize=11).encode(
        text=alt.Text(field=escaped(x), type="quantitative", format=form)
    )
    chart = styled(alt.layer(chart.mark_bar(color=COLOURS[0]), labels))
    return tall(chart, table.column(y), PARTED_STEP if parted else 22)


def dots(table: Table, *, x: str, y: str, by: str, title: str, form: str | None = None) -> Chart:
    """A dot for each row at its value; dots of one ``y`` differ in shape by ``by``."""
    alt = altair()
    axis = {} if form is None else {"axis": alt.Axis(format=form)}
    field = {"field": escaped(by), "type": "nominal", "title": None, "sort": None}
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(field=escaped(x), type="quantitative", title=title, scale=alt.Scale(zero=form == PERCENT), **axis),
        y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None),
        color=alt.Color(**field),
        shape=alt.Shape(**field),
        tooltip=tips(table),
    )
    return tall(styled(chart.mark_point(filled=True, size=80, opacity=1)), table.column(y))


def lines(
    table: Table,
    *,
    x: str,
    y: str,
    by: str | None = None,
    apart: str | None = None,
    order: str | None = None,
    log: bool = False,
    zero: bool = True,
    title: str | None = None,
    form: str | None = None,
) -> Chart:
    """A line with points for each value of ``by``; lines differ in dash, and points in shape.

    A line is broken where ``apart`` changes, if that is a column of the table. ``title`` stands at the y axis,
    whose numbers have the format ``form``.
    """
    alt = altair()
    numbers = all(isinstance(value, (int, float)) for value in table.column(x))
    kind = "quantitative" if numbers else "nominal"
    sort = None if order is None else alt.EncodingSortField(field=escaped(order), op="min")
    upright = {"axis": alt.Axis(labelAngle=0, labelExpr=BROKEN, labelOverlap="greedy")}
    whole = {"axis": whole_ticks(table.column(x))} if all(isinstance(v, int) for v in table.column(x)) else {}
    across = alt.X(
        field=escaped(x), type=kind, title=x if numbers else None, sort=sort, **(whole if numbers else upright)
    )
    known = [value for value in table.column(y) if value is not None]
    scale = alt.Scale(zero=zero)
    if log:
        scale = alt.Scale(type="log" if min(known, default=1) > 0 else "symlog", nice=False)
    axis = {} if form is None else {"axis": alt.Axis(format=form)}
    up = alt.Y(field=escaped(y), type="quantitative", title=title or y, scale=scale, **axis)
    base = alt.Chart(data_of(table)).encode(x=across, y=up, tooltip=tips(table), **broken_at(table, apart))
    line = base.mark_line(strokeWidth=2, color=COLOURS[0])
    points = base.mark_point(filled=True, size=50, opacity=1, fill=COLOURS[0])
    if by is not None:
        names = list(dict.fromkeys(table.column(by)))
        field = {"field": escaped(by), "type": "nominal", "title": None, "sort": None}
        dashes = alt.Scale(domain=names, range=[list(dash) for dash in repeated(DASHES, len(names))])
        looks = told_apart(by, names)
        line = line.encode(looks["color"], strokeDash=alt.StrokeDash(**field, scale=dashes))
        points = base.mark_point(filled=True, size=50, opacity=1).encode(**looks)
    return styled(line if len(table) > DENSE else alt.layer(line, points))


def broken_at(table: Table, column: str | None) -> dict[str, Any]:
    """What breaks lines where a column changes; nothing if the table lacks it."""
    if column is None or column not in table.columns:
        return {}
    return {"detail": altair().Detail(field=escaped(column), type="nominal")}


def whole_ticks(values: Sequence[int]) -> Any:
    """An axis with ticks at whole numbers alone; of a short one Vega halves the steps, whatever their minimum."""
    alt = altair()
    least, most = min(values, default=0), max(values, default=0)
    if most - least > FEW_TICKS:
        return alt.Axis(tickMinStep=1)
    return alt.Axis(values=tuple(range(least, most + 1)), format="d")


def told_apart(by: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and shape of points by ``by``, whose values are ``names``: one legend has both."""
    alt = altair()
    field = {"field": escaped(by), "type": "nominal", "title": None, "sort": None}
    shapes = alt.Scale(domain=list(names), range=repeated(POINTS, len(names)))
    hues = alt.Scale(domain=list(names), range=repeated(COLOURS, len(names)))
    return {"color": alt.Color(**field, scale=hues), "shape": alt.Shape(**field, scale=shapes)}


def repeated(values: Sequence[Any], count: int) -> list[Any]:
    """The first ``count`` of some values, which are repeated if they are fewer."""
    return [values[i % len(values)] for i in range(count)]


def grouped(
    table: Table, *, y: str, x: Sequence[str], title: str, form: str = PERCENT, parted: bool = False
) -> Chart:
    """A group of bars for each value of ``y``, with a bar for each column of ``x``; each bar bears its value.

    The names of ``parted`` bars stand in two lines, broken at a colon.
    """
    alt = altair()
    rows = [
        {"y": row[y], "what": name, "value": row[name]}
        for row in table.records()
        for name in x
        if row[name] is not None
    ]
    axis = {"axis": alt.Axis(format=form)} if form == PERCENT else {}
    chart = alt.Chart(of_rows(rows)).encode(
        y=alt.Y("y:N", title=None, sort=None, **({"axis": alt.Axis(labelExpr=PARTED)} if parted else {})),
        yOffset=alt.YOffset("what:N", sort=None),
        x=alt.X("value:Q", title=title, **axis),
        tooltip=[
            alt.Tooltip("y:N", title=y),
            alt.Tooltip("what:N", title="of"),
            alt.Tooltip("value:Q", title=title, format=".4~f"),
        ],
    )
    field = {"shorthand": "what:O", "title": None, "sort": list(x)}  # ordinal: fills are in order
    hues = alt.Scale(domain=list(x), range=repeated(COLOURS, len(x)))
    fills = alt.Scale(domain=list(x), range=repeated(FILLS, len(x)))
    filled = chart.mark_bar(strokeWidth=1.5).encode(
        fill=alt.Fill(**field, scale=hues),
        stroke=alt.Stroke(**field, scale=hues),
        fillOpacity=alt.FillOpacity(**field, scale=fills),
    )
    labels = chart.mark_text(align="left", dx=4, fontSize=11).encode(text=alt.Text("value:Q", format=form))
    return tall(styled(alt.layer(filled, labels)), [row["y"] for row in rows], 14 * len(x) + 12)


def stacked(table: Table, *, y: str, x: str, by: str) -> Chart:
    """Shares that make a whole: a bar for each value of ``y``, cut by ``by``; large parts bear their names."""
    alt = altair()
    names = in_time(table.column(by))
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys(table.column(y)):
        end = 0.0
        for row in sorted(table.where(**{y: place}).records(), key=lambda row: names.index(row[by])):
            begin, end = end, end + row[x]
            label = f"{short(row[by])} {percent(row[x])}" if row[x] >= ROOM else ""
            rows.append({**row, "begin": begin, "end": end, "middle": (begin + end) / 2, "label": label})
    base = alt.Chart(of_rows(rows)).encode(y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None))
    scale = alt.Scale(domain=names, range=[tint(name, names) for name in names])
    parts = base.mark_bar(stroke="#ffffff", strokeWidth=1).encode(
        x=alt.X("begin:Q", title=x, axis=alt.Axis(format=PERCENT), scale=alt.Scale(domain=[0, 1])),
        x2="end:Q",
        color=alt.Color(field=escaped(by), type="nominal", title="first met as", scale=scale),
        tooltip=tips(table),
    )
    fits = alt.condition(FITS, alt.value(1), alt.value(0))
    labels = base.mark_text(fontSize=11, color="#10151a").encode(x="middle:Q", text="label:N", opacity=fits)
    chart = styled(alt.layer(parts, labels.properties(name="inside")))
    return tall(legend_below(chart), table.column(y), 26)


def in_time(names: Sequence[str]) -> list[str]:
    """The names of first encounters in the order in which training meets them; those of no list are last."""
    found = list(dict.fromkeys(names))

    def place(name: str) -> tuple[float, bool, bool]:
        number, source = kind_of(name)
        return number, name.startswith("step-"), source == "lookahead"  # step 1 comes after episode 1 began

    return sorted(found, key=place)


def kind_of(name: str) -> tuple[float, str]:
    """The number of a first encounter and its source: (2, "query") of ``"episode 2 query"``.

    If negatives are mined again within an episode, the number is that of the refresh: ``"refresh 2 query"``. Of a
    state on the way, as ``adore`` has them, it is the step: ``"step-4 query"``.
    """
    found = re.fullmatch(r"(?:(?:episode|refresh) |step-)(\d+) ?(.*)", name)
    if found:
        return int(found[1]), found[2]
    return (float("inf") if name == "other" else -1.0), name


def short(name: str) -> str:
    """The name of a first encounter in few letters: Q2 for the query candidates of episode 2, L2 for lookahead."""
    episode, source = kind_of(name)
    if not 0 <= episode < float("inf"):
        return source
    return f"{source[:1].upper()}{' step ' if name.startswith('step-') else ''}{episode:.0f}"


def tint(name: str, names: Sequence[str]) -> str:
    """The colour of a first encounter: a hue for each source, the lighter the later."""
    episode, source = kind_of(name)
    if not 0 <= episode < float("inf"):
        return OTHER_TINT if name == "other" else FIRST_TINT
    same = [one for one in names if kind_of(one)[1] == source]
    mid, light = TINTS.get(source, TINTS[""])
    return mixed(mid, light, same.index(name) / max(len(same) - 1, 1))


def mixed(a: str, b: str, share: float) -> str:
    """The colour between ``a`` (share 0) and ``b`` (share 1), all as ``#rrggbb``."""
    pairs = [(int(a[i : i + 2], 16), int(b[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (other - one) * share):02x}" for one, other in pairs)


def legend_below(chart: Chart, columns: int = 3, limit: int = 210) -> Chart:
    """The chart with its legend in columns below it, where long names have room."""
    return chart.configure_legend(orient="bottom", columns=columns, labelLimit=limit, **LEGEND)

"""Charts of a report: one function from a table to a chart of Altair (Vega-Lite).

A chart can be read without colour: lines differ in dash and points in shape, and values have tooltips. Colours lie
in the middle between black and white, so they show on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hardneg.errors import SettingsError
from hardneg.report.table import Table

COLOURS = ("#3d85c6", "#d9792b", "#2f9e6e", "#a86bd0", "#c9a227", "#d0587e", "#6b7d8c", "#4fb0b5", "#96703c")
WIDTH, HEIGHT = 640, 280  # of pictures; on the page a chart is as wide as its place
FAINT = "#8a8a8a"

Chart = Any  # of Altair, which is loaded when a chart is made


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
    return (
        chart.properties(width=WIDTH, height=HEIGHT)
        .configure(background="transparent", font="system-ui, 'DejaVu Sans', sans-serif")
        .configure_view(stroke=None)
        .configure_axis(grid=True, gridOpacity=0.25, labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_axisX(grid=False)
        .configure_legend(orient="top", labelFontSize=12, titleFontSize=12, labelLimit=240, symbolStrokeWidth=2)
        .configure_range(category=list(COLOURS))
    )


def data_of(table: Table) -> Any:
    """The rows of a table as the data of a chart."""
    return altair().Data(values=table.records())


def tips(table: Table, names: Sequence[str] | None = None) -> list[Any]:
    """The tooltips of all columns of a table, or of those named, as its values are."""
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
    """A column's name as Vega-Lite reads it: dots and brackets would be paths."""
    for mark in ("\\", ".", "[", "]"):
        name = name.replace(mark, f"\\{mark}")
    return name


# ---------------------------------------------------------------- curves


def loss_chart(table: Table) -> Chart:
    """The loss of every step, faint, and its moving mean; episodes differ in dash."""
    alt = altair()
    base = alt.Chart(data_of(table)).encode(x=alt.X("step:Q", title="step"))
    faint = base.mark_line(opacity=0.35, strokeWidth=1).encode(y=alt.Y("loss:Q", title="training loss"))
    mean = base.mark_line(strokeWidth=2.5).encode(
        y="mean:Q",
        color=alt.Color("episode:N", title="episode"),
        strokeDash=alt.StrokeDash("episode:N", title="episode"),
        tooltip=tips(table),
    )
    faint = faint.encode(color=alt.Color("episode:N", title="episode"))
    return styled(alt.layer(faint, mean))


def measured_chart(table: Table) -> Chart:
    """The deciding measure of every state by step, with BM25 as a dashed line."""
    alt = altair()
    first = table.records()[0]
    label = f"{first['split']} {first['measure']}"
    base = alt.Chart(data_of(table)).encode(x=alt.X("step:Q", title="step"))
    value = alt.Y("value:Q", title=label, scale=alt.Scale(zero=False))
    line = base.mark_line(color=COLOURS[1]).encode(y=value)
    points = base.mark_point(filled=True, size=70, color=COLOURS[1], opacity=1).encode(
        y=value,
        shape=alt.Shape("kind:N", title=None, scale=alt.Scale(range=["circle", "diamond"])),
        tooltip=tips(table, ("state", "step", "value")),
    )
    layers = [line, points]
    if first["bm25"] is not None:
        rule = alt.Chart(alt.Data(values=[{"y": first["bm25"], "text": f"BM25 {first['bm25']:.3f}"}]))
        layers += [
            rule.mark_rule(strokeDash=[6, 4], color=FAINT).encode(y="y:Q"),
            rule.mark_text(align="left", dx=4, dy=-6, color=FAINT, x=0).encode(y="y:Q", text="text:N"),
        ]
    return styled(alt.layer(*layers))


# ---------------------------------------------------------------- bars


def cost_chart(table: Table) -> Chart:
    """The seconds of every stage."""
    return bars(table, x="seconds", y="stage", title="seconds")


def bars(table: Table, *, x: str, y: str, title: str) -> Chart:
    """One bar for each row, in the order of the table."""
    alt = altair()
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(field=escaped(x), type="quantitative", title=title),
        y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None),
        tooltip=tips(table),
    )
    return styled(chart.mark_bar(color=COLOURS[0])).properties(height={"step": 22})


def results_chart(table: Table) -> Chart:
    """The deciding measure of every state, a dot for each split."""
    alt = altair()
    measure = table.columns[2]
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(field=escaped(measure), type="quantitative", title=measure, scale=alt.Scale(zero=False)),
        y=alt.Y("state:N", title=None, sort=None),
        color=alt.Color("split:N", title=None),
        shape=alt.Shape("split:N", title=None),
        tooltip=tips(table),
    )
    return styled(chart.mark_point(filled=True, size=80, opacity=1)).properties(height={"step": 22})

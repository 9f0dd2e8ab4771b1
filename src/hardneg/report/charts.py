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
MAP_WIDTH = 290
MOST_LABELS = 12  # bars that bear their value; more would overlap
DENSE = 150  # from so many points on, a line has no marks for them

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
    return configured(chart.properties(width=WIDTH, height=HEIGHT))


def configured(chart: Chart) -> Chart:
    """The chart with the look that all have."""
    return (
        chart.configure(background="transparent", font="system-ui, 'DejaVu Sans', sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            grid=True,
            gridOpacity=0.25,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=300,
        )
        .configure_axisQuantitative(tickCount=8)
        .configure_axisX(grid=False)
        .configure_legend(orient="top", labelFontSize=12, titleFontSize=12, labelLimit=240, symbolStrokeWidth=2)
        .configure_range(category=list(COLOURS))
    )


def tall(chart: Chart, values: Sequence[Any], step: int = 22) -> Chart:
    """The chart with ``step`` pixels for each distinct value of its y axis."""
    return chart.properties(height=step * max(len(set(values)), 1))


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
    for mark in ("\\", ".", "[", "]", "'", '"'):
        name = name.replace(mark, f"\\{mark}")
    return name


# ---------------------------------------------------------------- curves


def loss_chart(table: Table) -> Chart:
    """The loss of every step, faint, and its moving mean; episodes differ in dash."""
    alt = altair()
    base = alt.Chart(data_of(table)).encode(x=alt.X("step:Q", title="step"), detail=alt.Detail("episode:N"))
    faint = base.mark_line(strokeWidth=1, color=FAINT, opacity=0.45).encode(
        y=alt.Y("loss:Q", title="training loss")
    )
    mean = base.mark_line(strokeWidth=2.5).encode(
        y="mean:Q",
        color=alt.Color("episode:N", title="episode"),
        strokeDash=alt.StrokeDash("episode:N", title="episode"),
        tooltip=tips(table),
    )
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
    return tall(styled(chart.mark_bar(color=COLOURS[0])), table.column(y))


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
    return tall(styled(chart.mark_point(filled=True, size=80, opacity=1)), table.column("state"))


# ---------------------------------------------------------------- shapes that several figures share


def lines(
    table: Table,
    *,
    x: str,
    y: str,
    by: str | None = None,
    order: str | None = None,
    log: bool = False,
    zero: bool = True,
) -> Chart:
    """A line with points for each value of ``by``; lines differ in dash, and points in shape."""
    alt = altair()
    numbers = all(isinstance(value, (int, float)) for value in table.column(x))
    kind = "quantitative" if numbers else "nominal"
    sort = None if order is None else alt.EncodingSortField(field=escaped(order), op="min")
    across = alt.X(
        field=escaped(x), type=kind, title=x, sort=sort, **({} if numbers else {"axis": alt.Axis(labelAngle=-25)})
    )
    scale = alt.Scale(type="symlog") if log else alt.Scale(zero=zero)
    up = alt.Y(field=escaped(y), type="quantitative", title=y, scale=scale)
    base = alt.Chart(data_of(table)).encode(x=across, y=up, tooltip=tips(table))
    line = base.mark_line(strokeWidth=2, color=COLOURS[0])
    points = base.mark_point(filled=True, size=40, opacity=1, fill=COLOURS[0])
    if by is not None:
        field = {"field": escaped(by), "type": "nominal", "title": by, "sort": None}
        line = line.encode(color=alt.Color(**field), strokeDash=alt.StrokeDash(**field))
        points = base.mark_point(filled=True, size=40, opacity=1).encode(fill=alt.Fill(**field, legend=None))
    return styled(line if len(table) > DENSE else alt.layer(line, points))


def grouped(table: Table, *, x: str, y: Sequence[str], title: str, order: bool = False) -> Chart:
    """Bars side by side at each value of ``x``, one for each of the columns ``y``."""
    alt = altair()
    rows = [
        {"x": row[x], "what": name, "value": row[name]}
        for row in table.records()
        for name in y
        if row[name] is not None
    ]
    chart = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:N", title=None, sort=None, axis=alt.Axis(labelAngle=-25)),
        xOffset=alt.XOffset("what:N", sort=None),
        y=alt.Y("value:Q", title=title),
        color=alt.Color("what:N", title=None, sort=None),
        tooltip=[
            alt.Tooltip("x:N", title=x),
            alt.Tooltip("what:N", title="of"),
            alt.Tooltip("value:Q", title=title, format=".4~f"),
        ],
    )
    if len(rows) > MOST_LABELS:
        return styled(chart.mark_bar())
    labels = chart.mark_text(dy=-6, fontSize=10).encode(text=alt.Text("value:Q", format=".2~f"))
    return styled(alt.layer(chart.mark_bar(), labels.encode(color=alt.value(FAINT))))


def stacked(table: Table, *, y: str, x: str, by: str) -> Chart:
    """Shares that make a whole: a bar for each value of ``y``, cut by ``by``; large parts bear their share."""
    alt = altair()
    names = list(dict.fromkeys(table.column(by)))
    rows = [{**row, "order": names.index(row[by])} for row in table.records()]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None),
        x=alt.X(
            field=escaped(x), type="quantitative", stack="normalize", title="share", axis=alt.Axis(format="%")
        ),
        order=alt.Order("order:Q"),
        detail=alt.Detail(field=escaped(by), type="nominal"),
    )
    bars_ = base.mark_bar(stroke="#ffffff", strokeWidth=1.5).encode(
        color=alt.Color(field=escaped(by), type="nominal", title="first met as", sort=names), tooltip=tips(table)
    )
    chart = styled(alt.layer(bars_)).configure_legend(orient="bottom", columns=3, labelLimit=240)
    return tall(chart, table.column(y), 26)


# ---------------------------------------------------------------- one figure each


def forgetting_chart(table: Table) -> Chart:
    """Training queries forgotten and learned from state to state."""
    rows = [{**row, "to": f"{row['from']} → {row['to']}"} for row in table.records()]
    return grouped(Table.of(rows), x="to", y=("forgotten", "learned"), title="share of training queries")


def trajectories_chart(table: Table) -> Chart:
    """The reciprocal rank of each sampled query by state."""
    return lines(table, x="state", y="RR@100", by="query", order="order")


def composition_chart(table: Table) -> Chart:
    """The shares of each list by first encounter."""
    return stacked(table, y="list", x="share", by="met")


def new_chart(table: Table) -> Chart:
    """The share of new candidates near d+ in each episode."""
    known = Table(table.columns, tuple(row for row in table.rows if row[-1] is not None))
    return bars(known, x="share", y="episode", title="share of new candidates near d+ in the episode before")


def swing_chart(table: Table) -> Chart:
    """The share of leaving candidates that return."""
    rows = [{**row, "episodes": f"{row['in']} → {row['again']} ({row['of']})"} for row in table.records()]
    return bars(Table.of(rows), x="share", y="episodes", title="share of those that left that return")


def informative_chart(table: Table) -> Chart:
    """The share of informative negatives by state."""
    rows = [{**row, "what": f"{row['state']}: {row['negatives']}"} for row in table.records()]
    return bars(Table.of(rows), x="share", y="what", title="share among the first 100").configure_axisY(
        labelLimit=320
    )


def norms_chart(table: Table) -> Chart:
    """Gradient norms by step, on a scale that shows small ones too."""
    return lines(table, x="step", y="norm", by="of", log=True)


def profile_chart(table: Table) -> Chart:
    """The median of the scores above the hundredth hit, by rank."""
    rows = [{**row, "score above the 100th": row["median"]} for row in table.records()]
    return lines(Table.of(rows), x="rank", y="score above the 100th", by="state")


def overlap_chart(table: Table) -> Chart:
    """The overlap of the first irrelevant hits with the training negatives."""
    rows = [{**row, "what": f"{row['split']}, {row['state']}"} for row in table.records()]
    return bars(Table.of(rows), x="share", y="what", title="share that were training negatives")


def errors_chart(table: Table) -> Chart:
    """Pairwise errors by state, all of them and the first ones."""
    rows = [{**row, "what": f"{row['split']}, {row['state']}"} for row in table.records()]
    return grouped(Table.of(rows), x="what", y=("all", table.columns[3]), title="errors of a query")


def distribution_chart(table: Table) -> Chart:
    """The share of queries by their number of errors, before and after."""
    alt = altair()
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(
            field="errors of a query",
            type="nominal",
            sort=alt.EncodingSortField(field="order", op="min"),
            axis=alt.Axis(labelAngle=-25),
        ),
        xOffset=alt.XOffset("state:N", sort=None),
        y=alt.Y("queries:Q", title="share of queries"),
        color=alt.Color("state:N", title=None, sort=None),
        tooltip=tips(table),
    )
    return styled(chart.mark_bar())


def breakdown_chart(table: Table) -> Chart:
    """The mean change of each group, with two standard errors to either side."""
    alt = altair()
    rows = [
        {
            **row,
            "what": f"{row['by']}: {row['group']}",
            "low": row["difference"] - 2 * (row["standard error"] or 0),
            "high": row["difference"] + 2 * (row["standard error"] or 0),
        }
        for row in table.records()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=320))
    )
    bars_ = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=alt.X("low:Q", title="change"), x2="high:Q")
    points = base.mark_point(filled=True, size=60, color=COLOURS[0], opacity=1).encode(
        x="difference:Q", tooltip=tips(table)
    )
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[4, 4], color=FAINT).encode(x="x:Q")
    return tall(styled(alt.layer(zero, bars_, points)), [row["what"] for row in rows])


def geometry_chart(table: Table) -> Chart:
    """The mean cosine of passages by state."""
    return lines(table, x="state", y="mean cosine", zero=False)


def map_chart(table: Table) -> Chart:
    """A map of queries and passages, one for each state; classes differ in shape."""
    alt = altair()
    states = list(dict.fromkeys(table.column("state")))
    field = {"field": "class", "type": "nominal", "title": None, "sort": None}
    chart = (
        alt.Chart(data_of(table))
        .mark_point(size=36, strokeWidth=1.6)
        .encode(
            x=alt.X("x:Q", axis=None),
            y=alt.Y("y:Q", axis=None),
            color=alt.Color(**field),
            shape=alt.Shape(**field),
            tooltip=tips(table, ("class", "query")),
        )
        .properties(width=MAP_WIDTH, height=MAP_WIDTH)
        .facet(facet=alt.Facet("state:N", title=None, sort=states), columns=2)
        .resolve_scale(x="independent", y="independent")
    )
    return configured(chart)


def space_chart(table: Table) -> Chart:
    """Alignment against uniformity, a step for each state: both are best when small."""
    alt = altair()
    base = alt.Chart(data_of(table)).encode(
        x=alt.X("uniformity:Q", scale=alt.Scale(zero=False)), y=alt.Y("alignment:Q", scale=alt.Scale(zero=False))
    )
    rows = [{**row, "order": i} for i, row in enumerate(table.records())]
    line = (
        base.mark_line(color=FAINT, strokeWidth=1).encode(order="order:Q").properties(data=alt.Data(values=rows))
    )
    points = base.mark_point(filled=True, size=70, opacity=1, color=COLOURS[0]).encode(tooltip=tips(table))
    labels = base.mark_text(align="left", dx=8, fontSize=11).encode(text="state:N")
    return styled(alt.layer(line, points, labels))


def mean_profile_chart(table: Table) -> Chart:
    """The median of the scores above the corpus mean, by rank."""
    rows = [{**row, "score above the corpus": row["median"]} for row in table.records()]
    return lines(Table.of(rows), x="rank", y="score above the corpus", by="state")


def timeline_chart(table: Table) -> Chart:
    """When trainer and inferencer worked."""
    alt = altair()
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X("from:Q", title="seconds"),
        x2="to:Q",
        y=alt.Y("lane:N", title=None),
        color=alt.Color("stage:N", title=None),
        tooltip=tips(table),
    )
    return tall(styled(chart.mark_bar(stroke="#ffffff", strokeWidth=0.3)), table.column("lane"), 50)


def gap_chart(table: Table) -> Chart:
    """Steps between the model that mined and the step that uses."""
    return lines(table, x="step", y="gap")


def overlap_by_step_chart(table: Table) -> Chart:
    """The overlap of static with dynamic negatives by step."""
    return lines(table, x="step", y="overlap")

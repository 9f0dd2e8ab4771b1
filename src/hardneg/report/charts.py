"""Charts of a report: one function from a table to a chart of Altair (Vega-Lite).

A chart can be read without colour: lines differ in dash and points in shape, and values have tooltips. Colours lie
in the middle between black and white, so they show on light and on dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hardneg.errors import SettingsError
from hardneg.report.table import Table

COLOURS = ("#3d85c6", "#d9792b", "#2f9e6e", "#a86bd0", "#c9a227", "#d0587e", "#6b7d8c", "#4fb0b5", "#96703c")
TINTS = {
    "query": ("#3d85c6", "#c9e0f5"),
    "lookahead": ("#d9792b", "#fae0c8"),
    "": ("#2f9e6e", "#c8ecdc"),
}  # mid, light
FIRST_TINT, OTHER_TINT = "#9aa5af", "#d5dade"  # of BM25, and of what no list explains
WIDTH, HEIGHT = 640, 280  # of pictures; on the page a chart is as wide as its place
FAINT = "#8a8a8a"
MAP_WIDTH = 290
MOST_LABELS = 12  # bars that bear their value; more would overlap
DENSE = 150  # from so many points on, a line has no marks for them
ROOM = 0.055  # the least share whose part of a bar has room for its name
PERCENT = ".0%"
LEGEND = {"labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 2}
# Breaks the name of a state into lines, so that it stands upright.
BROKEN = r"split(replace(replace(datum.label, ', ', ',\n'), '/', '/\n'), '\n')"

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
    """Rows as the data of a chart; a tuple, for Altair copies lists with every step in which a chart is made."""
    return altair().Data(values=tuple(rows))


@contextmanager
def trusted() -> Iterator[None]:
    """Charts that are made within are not checked against Vega-Lite's schema, which takes most of the time."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


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


def borders(table: Table) -> list[dict[str, Any]]:
    """Where each episode after the first begins, in the steps of a table; with its name."""
    first: dict[Any, Any] = {}
    for row in table.records():
        first.setdefault(row["episode"], row["step"])
    return [{"at": step - 0.5, "name": f"episode {episode}"} for episode, step in [*first.items()][1:]]


def border_layers(rows: Sequence[Any]) -> list[Chart]:
    """Dotted lines where episodes begin, with their names."""
    if not rows:
        return []
    alt = altair()
    base = alt.Chart(of_rows(rows)).encode(x=alt.X("at:Q", title="step"))
    rule = base.mark_rule(strokeDash=[2, 3], color=FAINT)
    return [rule, base.mark_text(align="left", baseline="top", dx=4, fontSize=10, y=0).encode(text="name:N")]


def loss_chart(table: Table) -> Chart:
    """The loss of every step, faint, and its moving mean; dotted lines part the episodes."""
    alt = altair()
    base = alt.Chart(data_of(table)).encode(x=alt.X("step:Q", title="step"), detail=alt.Detail("episode:N"))
    faint = base.mark_line(strokeWidth=1, color=FAINT, opacity=0.45).encode(
        y=alt.Y("loss:Q", title="training loss")
    )
    mean = base.mark_line(strokeWidth=2.5, color=COLOURS[0]).encode(y="mean:Q", tooltip=tips(table))
    return styled(alt.layer(faint, mean, *border_layers(borders(table))))


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
        rule = alt.Chart(of_rows([{"y": first["bm25"], "text": f"BM25 {first['bm25']:.3f}"}]))
        layers += [
            rule.mark_rule(strokeDash=[6, 4], color=FAINT).encode(y="y:Q"),
            rule.mark_text(align="left", dx=4, dy=-6, color=FAINT, x=0).encode(y="y:Q", text="text:N"),
        ]
    return styled(alt.layer(*layers))


# ---------------------------------------------------------------- bars and dots


def cost_chart(table: Table) -> Chart:
    """The seconds of every stage."""
    return bars(table, x="seconds", y="stage", title="seconds", form=",.0f")


def bars(table: Table, *, x: str, y: str, title: str, form: str = PERCENT) -> Chart:
    """One bar for each row, in the order of the table, with its value in this format."""
    alt = altair()
    axis = {"axis": alt.Axis(format=form)} if form == PERCENT else {}
    chart = alt.Chart(data_of(table)).encode(
        x=alt.X(field=escaped(x), type="quantitative", title=title, **axis),
        y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None),
        tooltip=tips(table),
    )
    labels = chart.mark_text(align="left", dx=4, fontSize=11).encode(
        text=alt.Text(field=escaped(x), type="quantitative", format=form)
    )
    return tall(styled(alt.layer(chart.mark_bar(color=COLOURS[0]), labels)), table.column(y))


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


def results_chart(table: Table) -> Chart:
    """The deciding measure of every state, a dot for each split."""
    measure = table.columns[2]
    return dots(table, x=measure, y="state", by="split", title=measure)


def reranking_chart(table: Table) -> Chart:
    """The deciding measure before and after re-ranking, and at best, by split."""
    first = table.where(measure=table.column("measure")[0])
    given = [name for name in ("as it is given", "re-ranked", "best possible") if None not in first.column(name)]
    return grouped(first, y="split", x=given, title=table.column("measure")[0], form=".3f")


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
    title: str | None = None,
    form: str | None = None,
) -> Chart:
    """A line with points for each value of ``by``; lines differ in dash, and points in shape.

    ``title`` stands at the y axis, whose numbers have the format ``form``.
    """
    alt = altair()
    numbers = all(isinstance(value, (int, float)) for value in table.column(x))
    kind = "quantitative" if numbers else "nominal"
    sort = None if order is None else alt.EncodingSortField(field=escaped(order), op="min")
    upright = {"axis": alt.Axis(labelAngle=0, labelExpr=BROKEN, labelOverlap="greedy")}
    whole = {"axis": alt.Axis(tickMinStep=1)} if all(isinstance(value, int) for value in table.column(x)) else {}
    across = alt.X(
        field=escaped(x), type=kind, title=x if numbers else None, sort=sort, **(whole if numbers else upright)
    )
    known = [value for value in table.column(y) if value is not None]
    scale = alt.Scale(zero=zero)
    if log:
        scale = alt.Scale(type="log" if min(known, default=1) > 0 else "symlog", nice=False)
    axis = {} if form is None else {"axis": alt.Axis(format=form)}
    up = alt.Y(field=escaped(y), type="quantitative", title=title or y, scale=scale, **axis)
    base = alt.Chart(data_of(table)).encode(x=across, y=up, tooltip=tips(table))
    line = base.mark_line(strokeWidth=2, color=COLOURS[0])
    points = base.mark_point(filled=True, size=40, opacity=1, fill=COLOURS[0])
    if by is not None:
        field = {"field": escaped(by), "type": "nominal", "title": None, "sort": None}
        line = line.encode(color=alt.Color(**field), strokeDash=alt.StrokeDash(**field))
        points = base.mark_point(filled=True, size=40, opacity=1).encode(fill=alt.Fill(**field, legend=None))
    return styled(line if len(table) > DENSE else alt.layer(line, points))


def grouped(table: Table, *, y: str, x: Sequence[str], title: str, form: str = PERCENT) -> Chart:
    """Bars of each value of ``y``, one below the other, for each of the columns ``x``; each bears its value."""
    alt = altair()
    rows = [
        {"y": row[y], "what": name, "value": row[name]}
        for row in table.records()
        for name in x
        if row[name] is not None
    ]
    axis = {"axis": alt.Axis(format=form)} if form == PERCENT else {}
    chart = alt.Chart(of_rows(rows)).encode(
        y=alt.Y("y:N", title=None, sort=None),
        yOffset=alt.YOffset("what:N", sort=None),
        x=alt.X("value:Q", title=title, **axis),
        tooltip=[
            alt.Tooltip("y:N", title=y),
            alt.Tooltip("what:N", title="of"),
            alt.Tooltip("value:Q", title=title, format=".4~f"),
        ],
    )
    filled = chart.mark_bar().encode(color=alt.Color("what:N", title=None, sort=None))
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
            label = f"{short(row[by])} {row[x]:.0%}" if row[x] >= ROOM else ""
            rows.append({**row, "begin": begin, "end": end, "middle": (begin + end) / 2, "label": label})
    base = alt.Chart(of_rows(rows)).encode(y=alt.Y(field=escaped(y), type="nominal", title=None, sort=None))
    scale = alt.Scale(domain=names, range=[tint(name, names) for name in names])
    parts = base.mark_bar(stroke="#ffffff", strokeWidth=1).encode(
        x=alt.X("begin:Q", title=x, axis=alt.Axis(format=PERCENT), scale=alt.Scale(domain=[0, 1])),
        x2="end:Q",
        color=alt.Color(field=escaped(by), type="nominal", title="first met as", scale=scale),
        tooltip=tips(table),
    )
    labels = base.mark_text(fontSize=11, color="#10151a").encode(x="middle:Q", text="label:N")
    chart = styled(alt.layer(parts, labels.properties(name="inside")))
    return tall(legend_below(chart), table.column(y), 26)


def in_time(names: Sequence[str]) -> list[str]:
    """The names of first encounters in the order in which training meets them; what is of no list is last."""
    found = list(dict.fromkeys(names))
    return sorted(found, key=lambda name: (kind_of(name)[0], kind_of(name)[1] == "lookahead"))


def kind_of(name: str) -> tuple[float, str]:
    """The episode of a first encounter, such as ``"episode 2 query"``, and its source."""
    word, _, rest = name.partition(" ")
    number, _, source = rest.partition(" ")
    if word == "episode" and number.isdigit():
        return int(number), source
    return (float("inf") if name == "other" else -1.0), name


def short(name: str) -> str:
    """The name of a first encounter in few letters: Q2 for the query candidates of episode 2, L2 for lookahead."""
    episode, source = kind_of(name)
    return f"{source[:1].upper()}{episode:.0f}" if 0 <= episode < float("inf") else source


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


def legend_below(chart: Chart, columns: int = 4, limit: int = 150) -> Chart:
    """The chart with its legend in columns below it, where long names have room."""
    return chart.configure_legend(orient="bottom", columns=columns, labelLimit=limit, **LEGEND)


# ---------------------------------------------------------------- one figure each


def forgetting_chart(table: Table) -> Chart:
    """Training queries forgotten and learned from state to state."""
    rows = [{**row, "to": f"{row['from']} → {row['to']}"} for row in table.records()]
    return grouped(Table.of(rows), y="to", x=("forgotten", "learned"), title="share of training queries")


def trajectories_chart(table: Table) -> Chart:
    """The reciprocal rank of each sampled query by state."""
    chart = lines(table, x="state", y="RR@100", by="query", order="order", title="reciprocal rank")
    return legend_below(chart, 2, 280)


def composition_chart(table: Table) -> Chart:
    """The shares of each list by first encounter."""
    return stacked(table, y="list", x="share", by="met")


def new_chart(table: Table) -> Chart:
    """The share of new candidates near d+ in each episode."""
    known = Table(table.columns, tuple(row for row in table.rows if row[-1] is not None))
    return bars(known, x="share", y="episode", title="share of new candidates near d+ in the episode before")


def swing_chart(table: Table) -> Chart:
    """The share of leaving candidates that return."""
    rows = [{**row, "episodes": f"{row['of']}: {row['in']} → {row['again']}"} for row in table.records()]
    return bars(Table.of(rows), x="share", y="episodes", title="share of those that left that return")


def informative_chart(table: Table) -> Chart:
    """The share of informative negatives by state."""
    rows = [{**row, "what": f"{row['state']}: {row['negatives']}"} for row in table.records()]
    chart = bars(Table.of(rows), x="share", y="what", title="share among the first 100")
    return chart.configure_axisY(labelLimit=320)


def norms_chart(table: Table) -> Chart:
    """Gradient norms by step, on a scale of powers."""
    return lines(table, x="step", y="norm", by="of", log=True, title="norm of the gradient")


def profile_chart(table: Table) -> Chart:
    """The median of the scores above the hundredth hit, by rank."""
    rows = [{**row, "score above the 100th": row["median"]} for row in table.records()]
    return lines(Table.of(rows), x="rank", y="score above the 100th", by="state")


def overlap_chart(table: Table) -> Chart:
    """The overlap of the first irrelevant hits with the training negatives."""
    title = "share that were training negatives"
    return dots(table, x="share", y="state", by="split", title=title, form=PERCENT)


def errors_chart(table: Table) -> Chart:
    """Pairwise errors by state of the first split, all of them and the first ones."""
    first = table.where(split=table.column("split")[0])
    split = first.column("split")[0]
    return grouped(
        first, y="state", x=("all", table.columns[3]), title=f"errors of a {split} query, mean", form=",.1f"
    )


def distribution_chart(table: Table) -> Chart:
    """The share of queries by their number of errors, before and after."""
    rows = table.records()
    states = list(dict.fromkeys(table.column("state")))
    by_errors: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["order"]):
        found = by_errors.setdefault(row["errors of a query"], dict.fromkeys(states, 0.0))
        found[row["state"]] = row["queries"]
    wide = [{"errors": f"{name} errors" if name != "none" else "no error", **of} for name, of in by_errors.items()]
    return grouped(Table.of(wide), y="errors", x=states, title="share of queries")


def errors_tests_chart(table: Table) -> Chart:
    """The mean difference in errors of each pair of states, with its interval; below 0, the later has fewer."""
    alt = altair()
    rows = [{**row, "what": f"{row['state']} − {row['against']}: {row['errors']}"} for row in table.records()]
    base = alt.Chart(of_rows(rows)).encode(y=alt.Y("what:N", title=None, sort=None))
    title = "difference in errors of a query"
    spread = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(filled=True, size=60, color=COLOURS[0], opacity=1).encode(
        x="difference:Q", tooltip=tips(table)
    )
    zero = alt.Chart(of_rows([{"x": 0}])).mark_rule(strokeDash=[4, 4], color=FAINT).encode(x="x:Q")
    chart = tall(styled(alt.layer(zero, spread, points)), [row["what"] for row in rows])
    return chart.configure_axisY(labelLimit=340)


# ---------------------------------------------------------------- two models that train each other


def iterations_chart(table: Table) -> Chart:
    """The deciding measure of retriever and ranker by iteration, on the first split."""
    first = table.records()[0]
    title = f"{first['split']} {first['measure']}"
    chart = lines(table.where(split=first["split"]), x="iteration", y="value", by="of", zero=False, title=title)
    return legend_below(chart, 1, 320)


def pipeline_chart(table: Table) -> Chart:
    """The deciding measure of retrievers alone and behind rankers, on the first split."""
    first = table.records()[0]
    title = f"{first['split']} {first['measure']}"
    columns = [name for name in table.columns[3:] if any(value is not None for value in table.column(name))]
    rows = [row | {"retriever": f"retriever {row['retriever']}"} for row in table.records()]
    return grouped(Table.of(rows).where(split=first["split"]), y="retriever", x=columns, title=title, form=".3f")


def entropy_chart(table: Table) -> Chart:
    """The entropy of the retriever by state."""
    return lines(table, x="state", y="entropy", by="split", zero=False, title="entropy (nats)")


def parts_chart(table: Table) -> Chart:
    """The parts of the retriever's loss, and the entropy of its lists, by step."""
    return lines(table, x="step", y="value", by="part")


def ranker_loss_chart(table: Table) -> Chart:
    """The moving mean of the ranker's loss by step."""
    return lines(table, x="step", y="mean", by="of", title="loss of the ranker")


def disagreement_chart(table: Table) -> Chart:
    """How often a ranker's first hit and pairs differ from the retriever's, on the first split."""
    first = table.where(split=table.column("split")[0])
    return grouped(first, y="ranked", x=("another first hit", "pairs turned round"), title="share")


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
    base = alt.Chart(of_rows(rows)).encode(y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=320)))
    bars_ = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=alt.X("low:Q", title="change"), x2="high:Q")
    points = base.mark_point(filled=True, size=60, color=COLOURS[0], opacity=1).encode(
        x="difference:Q", tooltip=tips(table)
    )
    zero = alt.Chart(of_rows([{"x": 0}])).mark_rule(strokeDash=[4, 4], color=FAINT).encode(x="x:Q")
    return tall(styled(alt.layer(zero, bars_, points)), [row["what"] for row in rows])


def geometry_chart(table: Table) -> Chart:
    """The mean cosine of passages by state."""
    return lines(table, x="state", y="mean cosine", zero=False, title="mean cosine of two passages")


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
    line = base.mark_line(color=FAINT, strokeWidth=1).encode(order="order:Q").properties(data=of_rows(rows))
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
    return lines(table, x="step", y="gap", title="steps since the model that mined")


def overlap_by_step_chart(table: Table) -> Chart:
    """The overlap of static with dynamic negatives by step."""
    return lines(table, x="step", y="overlap", title="share of the first hits", form=PERCENT)

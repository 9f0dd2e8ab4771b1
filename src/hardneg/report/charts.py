"""Charts of a report: for each figure a function from its table to its chart, made of shared shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hardneg.report.shapes import (
    COLOURS,
    FAINT,
    PARTED,
    PARTED_STEP,
    PERCENT,
    Chart,
    altair,
    bars,
    broken_at,
    configured,
    data_of,
    dots,
    grouped,
    legend_below,
    lines,
    of_rows,
    stacked,
    styled,
    tall,
    tips,
    told_apart,
)
from hardneg.report.table import Table

ROOM = 0.012  # share of a picture's width that a letter of an episode's name takes
MAP_WIDTH = 290  # of one state's map

# ---------------------------------------------------------------- curves


def borders(table: Table) -> list[dict[str, Any]]:
    """Where each episode but the first begins, in the steps of a table; names that would overlap are left out."""
    first: dict[Any, Any] = {}
    for row in table.records():
        first.setdefault(row["episode"], row["step"])
    span = max((row["step"] for row in table.records()), default=0)
    found: list[dict[str, Any]] = []
    free = 0.0  # from here on there is room for a name
    for episode, step in [*first.items()][1:]:
        name = str(episode) if found else f"episode {episode}"
        found.append({"at": step - 0.5, "name": name if step >= free else ""})
        if step >= free:
            free = step + span * ROOM * len(name)
    return found


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
    """The deciding measure of every state by step, with that of BM25 or the retriever as a dashed line.

    If every episode starts from scratch, each has its own line.
    """
    alt = altair()
    first = table.records()[0]
    label = f"{first['split']} {first['measure']}"
    base = alt.Chart(data_of(table)).encode(x=alt.X("step:Q", title="step"), **broken_at(table, "episode"))
    value = alt.Y("value:Q", title=label, scale=alt.Scale(zero=False))
    line = base.mark_line(color=COLOURS[1]).encode(y=value)
    points = base.mark_point(filled=True, size=70, color=COLOURS[1], opacity=1).encode(
        y=value,
        shape=alt.Shape("kind:N", title=None, scale=alt.Scale(range=["circle", "diamond"])),
        tooltip=tips(table, ("state", "step", "value")),
    )
    layers = [line, points]
    if (height := first["baseline value"]) is not None:
        rule = alt.Chart(of_rows([{"y": height, "text": f"{first['baseline']} {height:.3f}"}]))
        layers += [
            rule.mark_rule(strokeDash=[6, 4], color=FAINT).encode(y="y:Q"),
            rule.mark_text(align="left", dx=4, dy=-6, color=FAINT, x=0).encode(y="y:Q", text="text:N"),
        ]
    return styled(alt.layer(*layers))


# ---------------------------------------------------------------- bars and dots


def cost_chart(table: Table) -> Chart:
    """The seconds of every stage."""
    longest = max((value for value in table.column("seconds") if value is not None), default=0)
    return bars(table, x="seconds", y="stage", title="seconds", form=",.0f" if longest >= 100 else ",.1f")


def results_chart(table: Table) -> Chart:
    """The deciding measure of every state, a dot for each split."""
    measure = table.columns[2]
    return dots(table, x=measure, y="state", by="split", title=measure)


def reranking_chart(table: Table) -> Chart:
    """The deciding measure before re-ranking, after it, and in the best possible order, by split."""
    first = table.where(measure=table.column("measure")[0])
    given = [name for name in ("as it is given", "re-ranked", "best possible") if None not in first.column(name)]
    return grouped(first, y="split", x=given, title=table.column("measure")[0], form=".3f")


# ---------------------------------------------------------------- one figure each


def forgetting_chart(table: Table) -> Chart:
    """Training queries forgotten and learned from state to state."""
    rows = [{**row, "to": f"{row['from']}: → {row['to']}"} for row in table.records()]
    title = "share of training queries"
    return grouped(Table.of(rows), y="to", x=("forgotten", "learned"), title=title, parted=True)


def trajectories_chart(table: Table) -> Chart:
    """The reciprocal rank of each sampled query by state; the legend says which lines are equal."""
    values: dict[str, list[Any]] = {}
    for row in table.records():
        values.setdefault(row["query"], []).append(row["RR@100"])
    first: dict[tuple[Any, ...], str] = {}
    names = {}
    for query, line in values.items():
        same = first.setdefault(tuple(line), query)
        names[query] = query if same == query else f"{query} (same as {same})"
    rows = [{**row, "query": names[row["query"]]} for row in table.records()]
    chart = lines(Table.of(rows), x="state", y="RR@100", by="query", order="order", title="reciprocal rank")
    return legend_below(chart, 2, 280)


def composition_chart(table: Table) -> Chart:
    """The shares of each list by first encounter."""
    return stacked(table, y="list", x="share", by="first in")


def new_chart(table: Table) -> Chart:
    """The share of new candidates near d+ in each episode or refresh."""
    known = Table(table.columns, tuple(row for row in table.rows if row[-1] is not None))
    unit = table.columns[0]
    return bars(
        known,
        x="share",
        y=unit,
        title=f"share of new candidates that were neighbours of the positive one {unit} earlier",
    )


def swing_chart(table: Table) -> Chart:
    """The share of leaving candidates that return; rows of which none left have none."""
    rows = [
        {**row, "episodes": f"{row['of']}: {row['class'] or '–'} · {row['in']} → {row['again']}"}
        for row in table.records()
        if row["share"] is not None
    ]
    known = Table.of(rows, (*table.columns, "episodes"))
    return bars(known, x="share", y="episodes", title="share of dropped candidates that return", parted=True)


def informative_chart(table: Table) -> Chart:
    """The share of informative negatives by state."""
    rows = [{**row, "what": f"{row['state']}: {row['negatives']}"} for row in table.records()]
    chart = bars(Table.of(rows), x="share", y="what", title="share among the first 100", parted=True)
    return chart.configure_axisY(labelLimit=320)


def norms_chart(table: Table) -> Chart:
    """Gradient norms by step, on a scale of powers."""
    return lines(table, x="step", y="norm", by="of", log=True, title="norm of the gradient")


def profile_chart(table: Table) -> Chart:
    """The median of the scores above the hundredth hit, by rank."""
    return medians(table, "score above the 100th")


def medians(table: Table, name: str) -> Chart:
    """The medians of a table by rank; ``name`` says of what."""
    rows = [{**row, name: row["median"]} for row in table.records()]
    return lines(Table.of(rows), x="rank", y=name, by="state")


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
    rows = [{**row, "what": f"{row['state']} − {row['against']}: {row['errors']}"} for row in table.records()]
    return differences(table, rows, "difference in errors of a query").configure_axisY(labelLimit=340)


def differences(table: Table, rows: Sequence[Mapping[str, Any]], title: str) -> Chart:
    """The ``difference`` of each row, with a rule from ``low`` to ``high``, and a dashed line at 0.

    Parameters
    ----------
    rows : those of the table; ``what`` is the name of each, in two lines that are broken at a colon.
    """
    alt = altair()
    axis = alt.Axis(labelExpr=PARTED)
    base = alt.Chart(of_rows(rows)).encode(y=alt.Y("what:N", title=None, sort=None, axis=axis))
    spread = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(filled=True, size=60, color=COLOURS[0], opacity=1).encode(
        x="difference:Q", tooltip=tips(table)
    )
    zero = alt.Chart(of_rows([{"x": 0}])).mark_rule(strokeDash=[4, 4], color=FAINT).encode(x="x:Q")
    return tall(styled(alt.layer(zero, spread, points)), [row["what"] for row in rows], PARTED_STEP)


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
    rows = [
        {
            **row,
            "what": f"{row['by']}: {row['group']}",
            "low": row["difference"] - 2 * (row["standard error"] or 0),
            "high": row["difference"] + 2 * (row["standard error"] or 0),
        }
        for row in table.records()
    ]
    return differences(table, rows, "change")


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
            x=alt.X("x:Q", axis=None, scale=alt.Scale(zero=False, nice=False, padding=8)),
            y=alt.Y("y:Q", axis=None, scale=alt.Scale(zero=False, nice=False, padding=8)),
            color=alt.Color(**field),
            shape=alt.Shape(**field),
            tooltip=tips(table, ("class", "query")),
        )
        .properties(width=MAP_WIDTH, height=MAP_WIDTH)
        .facet(facet=alt.Facet("state:N", title=None, sort=states), columns=2, bounds="flush", spacing=32)
        .resolve_scale(x="independent", y="independent")
    )
    return configured(chart)


def space_chart(table: Table) -> Chart:
    """Alignment against uniformity, a point for each state; both are better when smaller."""
    alt = altair()
    base = alt.Chart(data_of(table)).encode(
        x=alt.X("uniformity:Q", scale=alt.Scale(zero=False)), y=alt.Y("alignment:Q", scale=alt.Scale(zero=False))
    )
    rows = [{**row, "order": i} for i, row in enumerate(table.records())]
    line = base.mark_line(color=FAINT, strokeWidth=1).encode(order="order:Q").properties(data=of_rows(rows))
    states = list(dict.fromkeys(table.column("state")))
    points = base.mark_point(filled=True, size=80, opacity=1)
    points = points.encode(**told_apart("state", states), tooltip=tips(table))  # names would cover one another
    return styled(alt.layer(line, points))


def mean_profile_chart(table: Table) -> Chart:
    """The median of the scores above the corpus mean, by rank."""
    return medians(table, "score above the corpus")


def timeline_chart(table: Table) -> Chart:
    """When trainer and inferencer worked, a row for each stage."""
    alt = altair()
    rows = sorted(
        ({**row, "row": f"{row['lane']}: {row['stage']}"} for row in table.records()), key=lambda row: row["row"]
    )
    chart = alt.Chart(of_rows(rows)).encode(
        x=alt.X("from:Q", title="seconds"),
        x2="to:Q",
        y=alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelExpr=PARTED)),
        color=alt.Color("lane:N", title=None, legend=None),
        tooltip=tips(table),
    )
    return tall(styled(chart.mark_bar(height=16)), [row["row"] for row in rows], PARTED_STEP)


def gap_chart(table: Table) -> Chart:
    """Steps between the model that mined the negatives and the step that uses them."""
    return lines(table, x="step", y="gap", title="steps since the model that mined")


def overlap_by_step_chart(table: Table) -> Chart:
    """The overlap of static with dynamic negatives by step; a line for each pool, where there are pools."""
    by = "negatives" if "negatives" in table.columns else None
    return lines(table, x="step", y="overlap", by=by, title="share that is retrieved", form=PERCENT)


def ranks_by_step_chart(table: Table) -> Chart:
    """The moving mean of the reciprocal rank of the training queries of each step."""
    return lines(table, x="step", y="mean RR@10", apart="episode", zero=False, title="RR@10 of training queries")


def errors_by_step_chart(table: Table) -> Chart:
    """The moving mean of the errors of the training queries of each step."""
    return lines(table, x="step", y="mean errors", apart="episode", title="errors of a query")


def training_errors_chart(table: Table) -> Chart:
    """The errors of training queries by state."""
    return bars(table, x=table.columns[2], y="state", title="errors of a training query, mean", form=",.1f")

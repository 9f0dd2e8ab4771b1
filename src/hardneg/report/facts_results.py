"""Tables of results, the learning curve, cost and settings, from an experiment's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hardneg.diagnostics.cost import costs
from hardneg.diagnostics.cost import summary as cost_summary
from hardneg.diagnostics.curves import LearningCurve, learning_curve, smooth
from hardneg.experiment.names import (
    BM25,
    FINAL,
    LAST,
    RETRIEVED,
    STARTED,
    UNTRAINED,
    baseline_of,
    shown,
    with_bm25,
)
from hardneg.experiment.states import StateRecord, ends_of
from hardneg.report.measured import evaluations, means_of
from hardneg.report.opened import Opened
from hardneg.report.table import NotMeant, NotRecorded, Table
from hardneg.report.verdict import is_same, split_of
from hardneg.shown import as_set

POINTS = 1500  # of a curve: more are thinned out
LEAST_WIDTH = 5  # steps of the moving mean of the loss


def results_table(opened: Opened) -> Table:
    """Every measure of every state by split, in the order of training: ``split``, ``state``, and the measures."""
    means = means_of(opened)
    measures = list(dict.fromkeys(name for split in means.values() for found in split.values() for name in found))
    order = {state.name: at for at, state in enumerate(opened.states)}
    names = dict.fromkeys(state for states in means.values() for state in states)
    rows = [
        {
            "split": split_of(split, opened.dev_passages),
            "state": shown(state),
            **{name: states[state].get(name) for name in measures},
        }
        for state in sorted(names, key=lambda name: order.get(name, -1))
        for split, states in means.items()
        if state in states
    ]
    if not rows:
        raise NotRecorded("No state was measured yet.")
    return Table.of(rows)


def tests_table(opened: Opened) -> Table:
    """Paired tests of the final model against the untrained one, also at the settings of training, and BM25.

    If the untrained model was kept, it is not tested against itself.
    """
    rows, kept = opened.results.get("comparisons"), opened.results.get("kept", {})
    if not rows:
        raise NotRecorded("States are compared when the experiment is finished.")
    rows = [row for row in rows if not is_same(row, kept)]
    if not rows:
        raise NotMeant("The final model is the untrained one, and nothing else was measured.")
    return Table.of(
        {
            "final against": shown(row["b"]),
            "measure": row["measure"],
            **of_test(row),
        }
        for row in rows
    )


def fused_table(opened: Opened) -> Table:
    """The measures of BM25, and of the untrained and the final model alone and fused with BM25, by split."""
    fused = fused_of(opened)
    rows = []
    for split in (split for split in ("test", "dev") if split in fused):
        found = {**opened.results[split], **fused[split]}
        states = [BM25, *(name for state in (UNTRAINED, FINAL) for name in (state, with_bm25(state)))]
        rows += [{"split": split, "state": shown(name), **found[name]} for name in states if name in found]
    return Table.of(rows)


def fused_tests_table(opened: Opened) -> Table:
    """Paired tests of the final model fused with BM25, by the deciding measure."""
    return Table.of(
        {
            "final + BM25 against": shown(row["b"]),
            "measure": row["measure"],
            **of_test(row),
        }
        for row in fused_of(opened)["comparisons"]
    )


def fused_of(opened: Opened) -> Mapping[str, Any]:
    """What the results say of fusing with BM25; raises if they say nothing."""
    if opened.trains_ranker:
        raise NotMeant("A ranker was trained; runs of retrievers are what is fused.")
    found: Mapping[str, Any] | None = opened.results.get("fused")
    if found is None:
        raise NotRecorded(
            "States are fused when the experiment is finished, on splits that are evaluated on all passages."
        )
    return found


def of_test(row: Mapping[str, Any], between: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The columns of a paired test: the difference with its interval, what stands ``between``, and p."""
    low, high = row["interval"]
    found = {"difference": row["difference"], "low": low, "high": high, **between}
    return found | {"p": row["p"], "p (Holm)": row["p_holm"]}


def reranking_table(opened: Opened) -> Table:
    """What a ranker gains over the order that it is given, by split and measure."""
    if not opened.trains_ranker:
        raise NotMeant("A retriever was trained, which re-ranks nothing.")
    told = opened.results.get("reranked", {})
    rows = [
        {
            "split": split,
            "measure": measure,
            "as it is given": found["as it is"][measure],
            "re-ranked": found["reranked"][measure],
            "best possible": found.get("best", {}).get(measure),
            "queries gained": found["gained"].get(measure),
            "queries lost": found["lost"].get(measure),
            "hits re-ranked": found["k"],
        }
        for split, found in told.items()
        if isinstance(found, dict)
        for measure in found["reranked"]
    ]
    if not rows:
        raise NotRecorded("What re-ranking gains is measured when the experiment is finished.")
    return Table.of(rows)


# ---------------------------------------------------------------- learning curve


def curve_of(opened: Opened) -> LearningCurve:
    """The loss of every step; steps of an episode after the one that gave its model are left out."""
    if not opened.metrics:
        raise NotRecorded("No step was logged yet.")
    return learning_curve(opened.metrics, ends_of(opened.states))


def loss_table(opened: Opened) -> Table:
    """The loss by step: ``step`` (counted over all episodes), ``episode``, ``loss`` and its moving mean."""
    curve = curve_of(opened)
    rows: list[tuple[Any, ...]] = []
    width = max(curve.borders[-1] // 40, LEAST_WIDTH)
    for episode, start, stop in zip(curve.episodes, curve.borders, curve.borders[1:], strict=False):
        inside = (curve.steps > start) & (curve.steps <= stop)
        steps, losses = curve.steps[inside], curve.losses[inside]
        means = smooth(losses, width)
        rows += [
            (int(step), episode, float(loss), float(mean))
            for step, loss, mean in zip(steps, losses, means, strict=True)
        ]
    return Table(("step", "episode", "loss", "mean"), tuple(rows[:: max(-(-len(rows) // POINTS), 1)]))


def measured_table(opened: Opened) -> Table:
    """The deciding measure of every state by step, on dev (test without dev).

    Each row also has the value of the ranking that training is compared with, which is BM25's, or that of the
    retriever which a ranker re-ranks. If every episode starts from scratch, ``episode`` says whose line a row is
    in.
    """
    means = means_of(opened)
    split = "dev" if "dev" in means else "test"
    states = means.get(split, {})
    if not states:
        raise NotRecorded("No state was measured on dev or test.")
    measure = next(iter(next(iter(states.values()))))
    baseline, height = baseline_of({name: found[measure] for name, found in states.items()}) or (None, None)
    rows = [
        {
            **place,
            "state": shown(record.name),
            "kind": "within an episode" if record.kind == "passing" else "of an episode",
            "split": split_of(split, opened.dev_passages),
            "measure": measure,
            "value": states[record.name][measure],
            "baseline": baseline,
            "baseline value": height,
        }
        for record, place in placed(opened, _on_the_way(opened))
        if record.name in states
    ]
    if not rows:
        raise NotRecorded("No state on the way of training was measured.")
    return Table.of(rows)


def begins_of(opened: Opened) -> dict[int, int]:
    """Steps made before each episode."""
    try:
        curve = curve_of(opened)
    except NotRecorded:
        return {}
    return dict(zip(curve.episodes, curve.borders, strict=False))


def step_of(state: StateRecord, begins: Mapping[int, int]) -> int:
    """The steps made before a state, counted on over the episodes."""
    return begins.get(state.episode or 0, 0) + max(state.step, 0)


def placed(opened: Opened, records: Sequence[StateRecord]) -> list[tuple[StateRecord, dict[str, Any]]]:
    """Each state with its columns in a curve: its ``step``, counted on over the episodes.

    If every episode starts from scratch, the starting model stands at the beginning of each episode, and a second
    column, ``episode``, says whose line a state is in: no training led from the end of an episode to the next.
    """
    begins = begins_of(opened)
    if not opened.restarts:
        return [(one, {"step": step_of(one, begins)}) for one in records]
    start, found = starting_state(opened), []
    for episode in dict.fromkeys([*begins, *(one.episode for one in records if one.episode)]) or [1]:
        inside = [one for one in records if one.episode == episode or (not one.episode and one.name == start)]
        found += [(one, {"step": begins.get(episode, 0) + max(one.step, 0), "episode": episode}) for one in inside]
    return found


def starting_state(opened: Opened) -> str:
    """The name of the state that training starts from: the untrained model, as the settings change it."""
    return STARTED if opened.state(STARTED) is not None else UNTRAINED


def _on_the_way(opened: Opened) -> list[StateRecord]:
    """The states of a learning curve, each once; those searched over an index or re-ranked are left out."""
    names = {one.name for one in opened.states}
    hidden = (
        {BM25, RETRIEVED} | ({UNTRAINED} if STARTED in names else set()) | ({FINAL} if LAST in names else set())
    )
    return [one for one in opened.states if one.name not in hidden and one.of is None]


# ---------------------------------------------------------------- cost


def cost_table(opened: Opened) -> Table:
    """Seconds, tokens, steps and memory of every stage; where two models are trained, of the training of each."""
    two = len({row.get("model") for row in opened.timing if row["stage"] == "train"}) > 1
    found = costs(opened.timing, by=("stage", "model") if two else ("stage",))
    if not found:
        raise NotRecorded("No stage was timed yet.")
    return Table.of(
        {
            "stage": " ".join(name for name in cost.of if name),
            "times": cost.times,
            "found ready": cost.cached,
            "seconds": round(cost.seconds, 2),
            "tokens": cost.tokens or None,
            "tokens/s": None if cost.tokens_per_second is None else round(cost.tokens_per_second),
            "steps": cost.steps or None,
            "s/step": cost.seconds_per_step,
            "peak MiB": cost.own_peak_mib,
            "peak MiB of the process so far": cost.peak_mib,
        }
        for cost in sorted(found, key=lambda cost: -cost.seconds)
    )


def cost_summary_table(opened: Opened) -> Table:
    """The cost of the whole experiment in the terms of the papers' tables: one row."""
    if not opened.timing:
        raise NotRecorded("No stage was timed yet.")
    found = cost_summary(opened.timing)
    return Table.of(
        [
            {
                "training s": round(found.training, 1),
                "refreshing s": round(found.refreshing, 1),
                "refreshes": found.refreshes,
                "measuring the last s": round(found.measuring, 1),
                "found ready": found.found,
                "waiting s": round(found.waiting, 1),
                "working s": round(found.working, 1),
                "steps": found.steps,
                "tokens encoded": found.tokens,
                "tokens trained": found.trained_tokens,
                "peak MiB": found.peak_mib,
            }
        ]
    )


# ---------------------------------------------------------------- settings


def settings_table(opened: Opened) -> Table:
    """All settings of the experiment; ``decides`` says whether the results depend on them."""
    if not opened.settings:
        raise NotRecorded("The settings cannot be read.")
    decides = opened.settings.get("result_settings", {})
    named = opened.settings.get("settings", decides)
    given = sorted(named.items(), key=lambda pair: pair[1] is None)  # what is not set stands last
    return Table.of(
        {"setting": name, "value": None if value is None else as_set(value), "decides": name in decides}
        for name, value in [*given, *((name, decides[name]) for name in decides if name not in named)]
    )


def judged_queries(opened: Opened) -> int | None:
    """The number of queries that judge by the first measure; None if it is not known."""
    split, rows = opened.results.get("compared_on"), opened.results.get("comparisons")
    if not rows or opened.data is None or split not in opened.data.judged:
        return None
    final = evaluations(opened).get(FINAL, {}).get(split)
    return None if final is None else len(final.of(rows[0]["measure"]))

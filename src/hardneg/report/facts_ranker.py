"""Tables of a retriever and a ranker that train each other (AR2): their measures, entropy, losses, disagreement.

For experiments that train one model, these functions raise :class:`NotMeant`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hardneg.diagnostics.curves import smooth
from hardneg.diagnostics.disagreement import DEPTH, disagreement
from hardneg.experiment.layout import sharpness_of
from hardneg.experiment.names import BY_FIRST, FINAL, LAST, RANKER, STARTED, UNTRAINED, shown
from hardneg.report.facts_results import POINTS
from hardneg.report.measured import evaluations, means_of
from hardneg.report.opened import Opened
from hardneg.report.table import NotMeant, NotRecorded, Table
from hardneg.storage.artifacts import is_published, read_manifest

SERIES = (
    "the retriever",
    "the ranker on the retriever's hits then",
    "the ranker on the first retriever's hits",
)
SPLITS = ("test", "dev")
PARTS = ("adversarial", "distillation", "entropy")


def states_of(opened: Opened) -> dict[str, dict[str, Any]]:
    """The measures of all states by split and name; raises for an experiment that trains one model."""
    if opened.course.mines != "iterations":
        raise NotMeant("One model was trained, so there are no two to compare.")
    return means_of(opened)


def _begun(states: dict[str, Any]) -> str:
    """The name of the state that the retriever began in."""
    return STARTED if STARTED in states else UNTRAINED


def _ended(states: dict[str, Any]) -> str:
    """The name of the state after the last step."""
    return LAST if LAST in states else FINAL


# ---------------------------------------------------------------- by iteration


def iterations_table(opened: Opened) -> Table:
    """The deciding measure by iteration: of the retriever, and of the ranker on two kinds of hits."""
    rows: list[dict[str, Any]] = []
    for split, states in states_of(opened).items():
        begun, ended = _begun(states), _ended(states)
        numbers = [int(found[1]) for name in states if (found := re.fullmatch(r"iteration-(\d+)", name))]
        last = max(numbers, default=0) + 1
        for number in range(last + 1):
            state = begun if number == 0 else ended if number == last else f"iteration-{number}"
            rank = BY_FIRST if number == 0 else RANKER
            fixed = {0: BY_FIRST, last: RANKER}.get(number, f"{RANKER}-{number}")
            for series, name in zip(SERIES, (state, f"{state}/{rank}", f"{begun}/{fixed}"), strict=True):
                if name in states:
                    measure = next(iter(states[name]))
                    rows.append(
                        {
                            "split": split,
                            "iteration": number,
                            "of": series,
                            "state": shown(name),
                            "measure": measure,
                            "value": states[name][measure],
                        }
                    )
    if not rows:
        raise NotRecorded("No iteration was measured yet.")
    return Table.of(rows)


def pipeline_table(opened: Opened) -> Table:
    """Retrievers before and after training, each alone and behind the first and the last ranker (AR2, Table 3)."""
    rows: list[dict[str, Any]] = []
    for split, states in states_of(opened).items():
        for said, name in (("before training", _begun(states)), ("after training", _ended(states))):
            found = {
                "alone": states.get(name),
                "then the first ranker": states.get(f"{name}/{BY_FIRST}"),
                "then the last ranker": states.get(f"{name}/{RANKER}"),
            }
            if found["alone"] is not None:
                measure = next(iter(found["alone"]))
                values = {column: None if one is None else one[measure] for column, one in found.items()}
                rows.append({"split": split, "retriever": said, "measure": measure} | values)
    if not rows:
        raise NotRecorded("No state was measured yet.")
    return Table.of(rows)


# ---------------------------------------------------------------- entropy


def entropy_table(opened: Opened) -> Table:
    """The entropy of the retriever by state, on dev and test, in nats (AR2, Table 6)."""
    states_of(opened)
    told = opened.results.get("entropy", {})
    found = {split: dict(values) for split, values in told.items()} or _kept_entropies(opened)
    order = {state.name: at for at, state in enumerate(opened.states)}
    rows = [
        {"split": split, "state": shown(name), "entropy": value}
        for split in SPLITS  # in this order, so that a split has the same colour in all charts
        for name, value in sorted(found.get(split, {}).items(), key=lambda pair: order.get(pair[0], len(order)))
    ]
    if not rows:
        raise NotRecorded("The entropy of the retriever was not kept.")
    return Table.of(rows)


def _kept_entropies(opened: Opened) -> dict[str, dict[str, float]]:
    """The entropies that are stored with the runs of the states, by split and state."""
    found: dict[str, dict[str, float]] = {}
    for state in opened.states:
        place = None if state.runs is None or state.of is not None else sharpness_of(opened.layout / state.runs)
        if place is not None and is_published(place):
            for split, value in read_manifest(place).facts.items():
                found.setdefault(split, {})[state.name] = value
    return found


# ---------------------------------------------------------------- steps


def parts_table(opened: Opened) -> Table:
    """The parts of the retriever's loss before they are weighted, and the entropy of a step's lists, by step."""
    states_of(opened)
    rows = [
        (row["step"], part, row[part]) for row in opened.metrics for part in PARTS if row.get(part) is not None
    ]
    if not rows:
        raise NotRecorded("No step of the retriever was logged yet.")
    every = -(-len(rows) // POINTS)
    return Table(("step", "part", "value"), tuple(row for row in rows if row[0] % every == 0 or every == 1))


def ranker_loss_table(opened: Opened) -> Table:
    """The ranker's loss by step, in its warm-up and in its turns with the retriever."""
    states_of(opened)
    rows: list[tuple[Any, ...]] = []
    for episode, said in ((0, "warm-up"), (1, "turns with the retriever")):
        found = [row for row in opened.rows_of(RANKER) if row["episode"] == episode]
        losses = np.array([row["loss"] for row in found], np.float64)
        means = smooth(losses, max(len(losses) // 40, 1)) if len(losses) else losses
        rows += [(row["step"], said, row["loss"], float(mean)) for row, mean in zip(found, means, strict=True)]
    if not rows:
        raise NotRecorded("No step of the ranker was logged yet.")
    return Table(("step", "of", "loss", "mean"), tuple(rows[:: max(-(-len(rows) // POINTS), 1)]))


# ---------------------------------------------------------------- disagreement


def disagreement_table(opened: Opened) -> Table:
    """How much each ranker changes the order of a retriever's hits, and for how many queries that helps."""
    states_of(opened)
    given = opened.settings.get("result_settings", {}).get("rerank_depth")
    depth = min(given, DEPTH) if isinstance(given, int) else DEPTH  # what lies deeper keeps its order
    rows: list[dict[str, Any]] = []
    for record in opened.states:
        base = opened.state(record.of) if record.kind == "reranked" and record.of else None
        for split in ("test", "dev") if base is not None else ():
            one, other = opened.run(base, split), opened.run(record, split)  # type: ignore[arg-type]
            if one is None or other is None or not np.array_equal(one.query_rows, other.query_rows):
                continue
            found = disagreement(one, other, depth=depth)
            rows.append(
                {
                    "split": split,
                    "ranked": shown(record.name),
                    "another first hit": found.first,
                    "pairs turned round": found.swapped,
                    **_who_is_right(opened, split, record.of or "", record.name),
                }
            )
    if not rows:
        raise NotRecorded("No runs of a ranker are here.")
    return Table.of(rows)


def _who_is_right(opened: Opened, split: str, retriever: str, ranker: str) -> dict[str, Any]:
    """The shares of queries for which the ranker, or the retriever, is better; None without the collection."""
    found = evaluations(opened)
    one, other = (found.get(name, {}).get(split) for name in (retriever, ranker))
    if one is None or other is None or not np.array_equal(one.query_rows, other.query_rows):
        return {"the ranker is better": None, "the retriever is better": None}
    measure = next(iter(one.values))
    change = other.of(measure) - one.of(measure)
    return {
        "the ranker is better": float(np.mean(change > 0)),
        "the retriever is better": float(np.mean(change < 0)),
    }

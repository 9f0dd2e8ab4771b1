"""The effect of each kind of negatives on the query side, step by step: a table and a figure."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from harness import Study, table
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from star_adore_rows import ARMS, MEASURE, arms

from hardneg.storage.artifacts import publish_file

NOT_RUN = "not run"
INCHES, DOTS = (12.0, 3.8), 130
COLOURS = {"dynamic": "#4878a8", "refreshed": "#e0a030", "static": "#c44e34", "random": "#606060"}


def curve_of(study: Study, name: str) -> dict[str, tuple[list[int], list[float]]]:
    """Dev measure and first-K errors by steps, and overlap by step, of one arm; {} if it has not run."""
    outcome = study.outcome(name)
    if outcome is None:
        return {}
    overlap = outcome.facts.get("overlap", {"step": [], "value": []})
    last = max(overlap["step"], default=0)
    dev, errors = outcome.results["dev"], outcome.results["pairwise_errors"]["dev"]
    steps = {state: step for state in dev if (step := place(state, last)) is not None}
    if "untrained-as-trained" in steps:  # the state that the first step began with, not the encoder as it came
        steps.pop("untrained")
    return {
        "overlap": (overlap["step"], overlap["value"]),
        "measure": (list(steps.values()), [dev[state][MEASURE] for state in steps]),
        "errors": (list(steps.values()), [errors[state]["top"] for state in steps]),
    }


def place(state: str, last: int) -> int | None:
    """The steps that made a state; None for a state that is no point of a curve."""
    known = {"untrained": 0, "untrained-as-trained": 0, "final": last}
    word, _, number = state.partition("-")
    return int(number) if word == "step" and number.isdigit() else known.get(state)


def curves_table(study: Study, chosen: Namespace) -> str:
    """Dev measure of every arm at every point."""
    curves = {arm: curve_of(study, step.name) for arm, step in arms(chosen, 0.0).items()}
    points: list[Any] = next((curve["measure"][0] for curve in curves.values() if curve), [])
    lines = []
    for arm, curve in curves.items():
        for what, form in (("measure", ".4f"), ("errors", ".2f")):
            name = f"{ARMS[arm]}: {'dev ' + MEASURE if what == 'measure' else 'dev top-200 errors'}"
            figures = [format(value, form) for value in curve[what][1]] if curve else [NOT_RUN] * len(points)
            lines.append([name, *(figures or [NOT_RUN])])
    return table(["after so many steps", *(points or [""])], lines)


def draw(study: Study, chosen: Namespace, path: Path) -> bool:
    """Draw overlap, measure and errors of the arms against steps; returns whether anything was drawn."""
    curves = {arm: curve_of(study, step.name) for arm, step in arms(chosen, 0.0).items()}
    if not any(curves.values()):
        return False
    figure = Figure(figsize=INCHES, dpi=DOTS, layout="constrained")
    names = {
        "overlap": "overlap with the real top 200",
        "measure": f"dev {MEASURE}",
        "errors": "dev top-200 errors",
    }
    for axes, (what, label) in zip(figure.subplots(1, len(names)), names.items(), strict=True):
        for arm, curve in curves.items():
            if curve:
                mark = None if what == "overlap" else "o"
                axes.plot(
                    *curve[what], color=COLOURS[arm], label=ARMS[arm], marker=mark, markersize=4, linewidth=1.4
                )
        axes.set_xlabel("step")
        axes.set_title(label, fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    with publish_file(path) as stream:
        FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})
    return True

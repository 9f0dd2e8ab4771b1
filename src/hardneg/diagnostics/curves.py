"""The learning curve of an experiment: the loss of every step, and a measure of each state of the model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg.storage.artifacts import publish_file

Float64 = NDArray[np.float64]
Line = Sequence[tuple[int, float]]

INCHES, DOTS = (9.0, 4.5), 150
LOSS, MEASURE, FAINT = "#4878a8", "#c44e34", "#808080"
HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}  # the box behind a label


@dataclass(frozen=True)
class LearningCurve:
    """The data of a learning curve; steps are counted on from episode to episode."""

    steps: NDArray[np.int64]  # [n] from 1
    losses: Float64  # [n]
    episodes: tuple[int, ...]  # the numbers of the episodes
    borders: tuple[int, ...]  # steps made before the first episode (0), after it, after the second, ...


def learning_curve(rows: Sequence[Mapping[str, Any]], ends: Mapping[int, int]) -> LearningCurve:
    """Make the learning curve of the logged steps.

    Parameters
    ----------
    rows : lines of ``metrics.jsonl``: ``episode``, ``step`` (from 1) and ``loss``, ascending.
    ends : episode -> the step whose model the next episode starts from; later steps of the episode are left out.
        An episode that is not named here is used whole.
    """
    kept = [row for row in rows if row["step"] <= ends.get(row["episode"], row["step"])]
    made = {row["episode"]: row["step"] for row in kept}  # the last row of an episode decides
    borders = tuple(itertools.accumulate(made.values(), initial=0))
    before = dict(zip(made, borders[:-1], strict=True))
    steps = np.array([before[row["episode"]] + row["step"] for row in kept], np.int64)
    return LearningCurve(steps, np.array([row["loss"] for row in kept], np.float64), tuple(made), borders)


def smooth(values: Float64, width: int) -> Float64:
    """The mean [n] of ``values`` [n] in a window of ``width`` around each; the window is cut at both ends."""
    totals = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - width // 2, 0), np.minimum(at + (width + 1) // 2, len(values))
    return np.asarray((totals[high] - totals[low]) / (high - low))


def draw_learning_curve(
    path: Path,
    curve: LearningCurve,
    lines: Sequence[Line],
    *,
    label: str,
    baseline: tuple[str, float] | None = None,
) -> None:
    """Draw a learning curve as a PNG image.

    Parameters
    ----------
    lines : states of the model, each as the number of steps made before it and its measure. A line joins those
        that training led through.
    label : the measure's name, such as "dev RR@10".
    baseline : name and value of a ranking that training is compared with, such as BM25; drawn as a line.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS, layout="constrained")
    axes = figure.add_subplot()
    _draw_losses(axes, curve)
    if any(lines):
        _draw_states(axes.twinx(), lines, label, baseline)
    with publish_file(path) as stream:
        FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})


def _draw_losses(axes: Any, curve: LearningCurve) -> None:
    """Draw the loss of every step (faint) and its moving mean within each episode."""
    width = max(curve.borders[-1] // 40, 1)
    for start, stop in itertools.pairwise(curve.borders):
        inside = (curve.steps > start) & (curve.steps <= stop)
        steps, losses = curve.steps[inside], curve.losses[inside]
        axes.plot(steps, losses, color=LOSS, alpha=0.3, linewidth=0.8)
        axes.plot(steps, smooth(losses, width), color=LOSS, linewidth=1.8)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(curve.borders[-1], 1) * 1.02)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss", color=LOSS)
    axes.tick_params(axis="y", colors=LOSS)
    axes.spines["top"].set_visible(False)
    for episode, (start, stop) in zip(curve.episodes, itertools.pairwise(curve.borders), strict=True):
        axes.axvline(stop, color=FAINT, linewidth=0.8, linestyle=":")
        axes.annotate(
            f"episode {episode}",
            ((start + stop) / 2, 1.01),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            color=FAINT,
            fontsize="small",
        )


def _draw_states(axes: Any, lines: Sequence[Line], label: str, baseline: tuple[str, float] | None) -> None:
    """Draw the measure of every state with its value, and that of the baseline as a line."""
    if baseline is not None:
        name, height = baseline
        axes.axhline(height, color=MEASURE, linewidth=1, linestyle="--", alpha=0.6)
        axes.annotate(
            f"{name} {height:.3f}",
            (0.995, height),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=MEASURE,
            fontsize="small",
            bbox=HALO,
        )
    states = [state for line in lines for state in line]
    for line in lines:
        axes.plot(*zip(*line, strict=True), color=MEASURE, marker="o", linewidth=1.4, clip_on=False)
    for i, (step, value) in enumerate(states):
        axes.annotate(
            f"{value:.3f}",
            (step, value),
            xytext=(0, 8),
            textcoords="offset points",
            ha="left" if i == 0 else "center",
            color=MEASURE,
            fontsize="small",
            bbox=HALO,
        )
    values = [*(value for _, value in states), *([] if baseline is None else [baseline[1]])]
    room = max(0.25 * (max(values) - min(values)), 0.01)
    axes.set_ylim(max(min(values) - room, 0), min(max(values) + room, 1.02))
    axes.set_ylabel(label, color=MEASURE)
    axes.tick_params(axis="y", colors=MEASURE)
    axes.spines["top"].set_visible(False)

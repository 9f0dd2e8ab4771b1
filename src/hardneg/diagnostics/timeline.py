"""The timeline of an experiment: when the trainer and the inferencer worked, and whether at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardneg.storage.artifacts import publish_file

INCHES, DOTS = (10.0, 2.8), 150
COLOURS = {
    "train": "#4878a8",
    "wait": "#d8d8d8",
    "encode": "#c44e34",
    "search": "#e0a030",
    "mine": "#5a9a50",
    "rerank": "#8a6aa8",
}
TRAINER = ("train", "wait")
LANES = ("inferencer", "trainer")


def draw_timeline(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the stages of an experiment as bars over time, with one lane for training and one for mining.

    Parameters
    ----------
    rows : lines of ``timing.jsonl`` with ``stage``, ``begun`` (seconds) and ``seconds``; other lines are ignored.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    known = [row for row in rows if row["stage"] in COLOURS and "begun" in row]
    zero = min((row["begun"] for row in known), default=0.0)
    figure = Figure(figsize=INCHES, dpi=DOTS, layout="constrained")
    axes = figure.add_subplot()
    for row in sorted(known, key=lambda row: list(COLOURS).index(row["stage"])):
        lane = LANES.index("trainer" if row["stage"] in TRAINER else "inferencer")
        place = [(row["begun"] - zero, row["seconds"])]
        axes.broken_barh(place, (lane - 0.35, 0.7), facecolors=COLOURS[row["stage"]])
        if row["stage"] == "mine" and "version" in row:
            axes.annotate(
                f"version {row['version']}",
                (sum(place[0]), lane + 0.37),
                ha="center",
                va="bottom",
                fontsize="x-small",
            )
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(-0.5, len(LANES) - 0.4)
    axes.set_xlabel("seconds")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    present = [stage for stage in COLOURS if any(row["stage"] == stage for row in known)]
    handles = [Patch(color=COLOURS[stage], label=stage) for stage in present]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize="small")
    with publish_file(path) as stream:
        FigureCanvasAgg(figure).print_png(stream, metadata={"Software": None})

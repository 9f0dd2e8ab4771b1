"""The metrics of an experiment in TensorBoard, in ``tensorboard/``: one run for each episode and model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardneg.experiment.folder import Experiment
from hardneg.training.stage import RETRIEVER

PLACES = ("step", "episode")  # keys that say where a row belongs; they are no metrics


@contextlib.contextmanager
def tensorboard_writer(experiment: Experiment, wanted: bool) -> Iterator[None]:
    """While the block runs, write every row of the metrics to TensorBoard too, if that is ``wanted``."""
    if not wanted:
        yield
        return
    board = Board(experiment.layout.tensorboard)
    experiment.metrics.mirrors.append(board)
    try:
        yield
    finally:
        experiment.metrics.mirrors.remove(board)
        board.close()


class Board:
    """Writes rows of metrics as scalars.

    An earlier process may have written rows of steps that are now made again. Those rows are hidden from the step
    of this process's first row of the episode on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writers: dict[tuple[int, str], Any] = {}

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write these rows; those of a model ascend by (episode, step)."""
        for row in rows:
            writer = self._writer(row["episode"], row["model"], row["step"])
            for name, value in row.items():
                if name not in PLACES and isinstance(value, (int, float)):
                    writer.add_scalar(name, value, row["step"])
        for writer in self.writers.values():
            writer.flush()

    def _writer(self, episode: int, model: str, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if (episode, model) not in self.writers:
            if any(number != episode for number, _ in self.writers):
                self.close()  # the episode before is over
            place = self.folder / (f"episode-{episode}" + ("" if model == RETRIEVER else f"-{model}"))
            self.writers[episode, model] = SummaryWriter(str(place), purge_step=step)
        return self.writers[episode, model]

    def close(self) -> None:
        """Close the files of events; rows that come later begin new files."""
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()

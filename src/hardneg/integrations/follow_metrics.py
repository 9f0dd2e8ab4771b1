"""Follows the metrics of an experiment while they are written, for any tracker. Training needs no callback."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from hardneg.arguments import checked
from hardneg.errors import InputError
from hardneg.experiment.layout import Layout


@checked
def follow(experiment: str | Path, *, wait: bool = True, poll: float = 1.0) -> Iterator[dict[str, Any]]:
    """Tail the metrics: yield the rows of ``metrics.jsonl`` as they are written, one for each step of a model.

    Call it in another process or thread than training. A resumed experiment makes some steps again, with the same
    figures; each step is yielded once.

    Parameters
    ----------
    experiment : the experiment's folder; with several seeds, the folder of one of them.
    wait : True waits for the experiment to begin and yields until it is finished; False yields the rows that are
        there now.
    poll : seconds between two reads of the file.

    Raises
    ------
    InputError : ``wait`` is False and there are no metrics.
    """
    folder = Path(experiment)
    layout = Layout(folder)
    if not wait and not layout.metrics.is_file():
        raise InputError("NOT_FOUND", "no metrics are here", "give an experiment's folder", path=folder)
    last: dict[str, tuple[int, int]] = {}  # model -> (episode, step) of its last row
    with closing(Tail(layout.metrics)) as tail:
        while True:
            finished = layout.results.is_file()  # looked at before the rows are read, so that no row is missed
            for line in tail.read():
                row = json.loads(line)
                model, now = row["model"], (row["episode"], row["step"])
                if now > last.get(model, (-1, -1)):
                    last[model] = now
                    yield row
            if finished or not wait:
                return
            time.sleep(poll)


class Tail:
    """Reads the complete lines that were added to a file; reads it from its beginning if it was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream: BinaryIO | None = None  # stays open, so that no other file gets this one's inode number

    def read(self) -> list[bytes]:
        """The complete lines that were added since the last call."""
        if self.stream is None or self._is_replaced():
            self.close()
            if not self.path.is_file():
                return []
            self.stream = open(self.path, "rb")  # noqa: SIM115
        begin = self.stream.tell()
        whole, end, _ = self.stream.read().rpartition(b"\n")
        self.stream.seek(begin + len(whole) + len(end))
        return whole.split(b"\n") if end else []

    def _is_replaced(self) -> bool:
        assert self.stream is not None
        return not self.path.is_file() or not os.path.samestat(self.path.stat(), os.fstat(self.stream.fileno()))

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

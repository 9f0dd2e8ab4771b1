"""The metrics of an experiment as they are written, for whatever tracks them; training calls nothing back."""

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
    """Tail the metrics: yield the rows of ``metrics.jsonl``, one a step of a model, as they are written.

    The reader is another process, or a thread. A resumed experiment makes some steps again, to the same figures;
    each is yielded once.

    Parameters
    ----------
    experiment : its folder; with several seeds, that of one of them.
    wait : until the experiment is finished, also for it to begin; else only for what is there now.
    poll : seconds between two looks.

    Raises
    ------
    InputError : without ``wait``, there are no metrics.
    """
    folder = Path(experiment)
    layout = Layout(folder)
    if not wait and not layout.metrics.is_file():
        raise InputError("NOT_FOUND", "no metrics are here", "give an experiment's folder", path=folder)
    last: dict[str, tuple[int, int]] = {}  # by model
    with closing(Tail(layout.metrics)) as tail:
        while True:
            finished = layout.results.is_file()  # before the rows: none comes after
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
    """Whole lines that a file has gained; all of them again where it was replaced by another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream: BinaryIO | None = None  # stays open, so that no other file gets the number of this one

    def read(self) -> list[bytes]:
        """The lines since the last look."""
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
        """Let go of the file."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

"""The metrics of an experiment: the measurements of every logged step, without any times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardneg.errors import ArtifactError
from hardneg.process.distributed import is_leader
from hardneg.storage.artifacts import digest_file, publish_file
from hardneg.storage.disk import append_lines

Mirror = Callable[[Sequence[Mapping[str, Any]]], None]
KEYS = {"episode": int, "step": int, "model": str}  # what every row has
RESTORE = "restore the file, or give a new folder"


class Metrics:
    """The file ``metrics.jsonl``: one object for each logged step, in order of (episode, step)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirrors: list[Mirror] = []  # called with all rows that are added

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows and flush them to the disk, so that no later checkpoint exists without them."""
        if not rows or not is_leader():
            return
        append_lines(self.path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
        for mirror in self.mirrors:
            mirror(rows)

    def read(self) -> list[dict[str, Any]]:
        """All rows; an incomplete last line, which a crash may leave, is left out."""
        rows = rows_of(self.path)
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict) or any(not isinstance(row.get(key), kind) for key, kind in KEYS.items()):
                what = f"not the metrics of a step, which have {', '.join(KEYS)}"
                raise ArtifactError("CORRUPT", what, RESTORE, path=self.path, line=number)
        return rows

    @property
    def steps(self) -> int:
        """The step of the last row that was written, which is of the last episode; 0 if there is no row."""
        rows = self.read()
        return int(rows[-1]["step"]) if rows else 0

    def digest(self) -> str:
        """SHA-256 of all rows."""
        return digest_file(self.path)

    def truncate(self, episode: int, made: Mapping[str, int], *, sha256: str | None = None) -> None:
        """Drop the rows after these steps of ``episode``, because the steps will be made again.

        Parameters
        ----------
        made : the number of steps made, by model; a model that is not named has made none.
        sha256 : the digest that the remaining rows must have; None: it is not known.

        Raises
        ------
        ArtifactError : the digest differs; nothing is changed.
        """
        if not is_leader():
            return
        data = self._checked(episode, made, sha256)
        with publish_file(self.path) as stream:
            stream.write(data)

    def check(self, episode: int, made: Mapping[str, int], sha256: str | None) -> None:
        """Refuse rows that are not those of this digest, up to these steps of ``episode``; as :meth:`truncate`."""
        if is_leader():
            self._checked(episode, made, sha256)

    def _checked(self, episode: int, made: Mapping[str, int], sha256: str | None) -> bytes:
        def is_kept(row: Mapping[str, Any]) -> bool:
            now = row["episode"] == episode and row["step"] <= made.get(row["model"], 0)
            return bool(now or row["episode"] < episode)

        data = "".join(json.dumps(row) + "\n" for row in self.read() if is_kept(row)).encode()
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            steps = " and ".join(f"{count} of the {name}" for name, count in made.items())
            what = f"not what was written up to step {steps} in episode {episode}"
            raise ArtifactError("CORRUPT", what, RESTORE, path=self.path)
        return data


def rows_of(path: Path) -> list[Any]:
    """The values in a file of JSON lines; an incomplete last line is left out. No file has no rows.

    Raises
    ------
    ArtifactError : a line is not JSON.
    """
    *lines, _ = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    return [_row(path, number, line) for number, line in enumerate(lines, 1)]


def _row(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as fault:
        what = f"not valid JSON ({fault})"
        raise ArtifactError("BAD_JSON", what, RESTORE, path=path, line=number) from fault

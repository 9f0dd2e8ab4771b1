"""The margins of training: by how much each step scored a positive above the negatives that it was trained with.

``margins.tsv`` has a line for every negative of a step's groups: episode, step, query row, passage row and the
margin in logits. The mean margin of a pair over the steps that drew it says how well training could separate the
negative from the positive. It stays low if the negative in fact answers the query (the area under the margin of
Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin Ranking", NeurIPS 2020, with the
positive as the assigned label).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.errors import ArtifactError
from hardneg.experiment.metrics import RESTORE
from hardneg.process.distributed import is_leader
from hardneg.records import Float32, Int32, Int64
from hardneg.storage.artifacts import digest_file, publish_file
from hardneg.storage.disk import append_lines

COLUMNS = 5
EMPTY = hashlib.sha256().hexdigest()


class Margins(NamedTuple):
    """Margins [n] in the order of training."""

    query_rows: Int32
    passage_rows: Int32
    margins: Float32


NONE = Margins(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))


def report_queries(query_rows: Int32, count: int) -> Int32:
    """At most ``count`` queries, drawn at random by their rows, of which the report knows more; ascending."""
    words = keyed_random.hash64(keyed_random.key(0, "composition/bm25"), query_rows)
    return np.sort(query_rows[np.argsort(words, kind="stable")[:count]])


class MarginLog:
    """The file ``margins.tsv`` while an experiment is trained.

    Parameters
    ----------
    query_rows : the rows of the queries whose margins are kept.
    """

    def __init__(self, path: Path, query_rows: Int32) -> None:
        self.path, self.query_rows = path, query_rows
        self.at = (0, 0)  # episode and step (from 1) of the margins that come next
        self.waiting: list[tuple[int, int, Int32, Int32, Any]] = []

    @contextlib.contextmanager
    def elsewhere(self, path: Path) -> Iterator[None]:
        """Keep the margins that are seen in the block in another file."""
        self.path, own = path, self.path
        try:
            yield
        finally:
            self.waiting.clear()  # of steps that were not finished
            self.path = own

    def see(self, query_rows: Int32, negative_rows: Int32, margins: Any) -> None:
        """Remember the margins of a micro-batch, a tensor [b, N]; NaN where a passage was masked as a negative."""
        if len(self.query_rows) and negative_rows.shape[1]:
            self.waiting.append((*self.at, query_rows, negative_rows, margins))

    def flush(self) -> None:
        """Write the margins that were seen since the last flush to the disk."""
        text = "".join(self._lines(*entry) for entry in self.waiting) if is_leader() else ""
        self.waiting.clear()
        if text:
            append_lines(self.path, text.encode())

    def _lines(self, episode: int, step: int, query_rows: Int32, negative_rows: Int32, margins: Any) -> str:
        kept = np.isin(query_rows, self.query_rows)
        values = margins.cpu().numpy()
        return "".join(
            f"{episode}\t{step}\t{query}\t{passage}\t{margin:.4f}\n"
            for query, passages, row in zip(
                query_rows[kept].tolist(), negative_rows[kept].tolist(), values[kept].tolist(), strict=True
            )
            for passage, margin in zip(passages, row, strict=True)
            if margin == margin
        )

    def digest(self) -> str:
        """SHA-256 of all lines."""
        return digest_file(self.path) if self.path.is_file() else EMPTY

    def truncate(self, episode: int, step: int, *, sha256: str | None = None) -> None:
        """Drop the lines after this step of ``episode``, because the steps will be made again.

        Parameters
        ----------
        sha256 : the digest that the remaining lines must have; None: it is not known.

        Raises
        ------
        ArtifactError : the digest differs; nothing is changed.
        """
        self.waiting.clear()
        if is_leader():
            kept = self._checked(episode, step, sha256)
            if self.path.is_file():
                with publish_file(self.path) as stream:
                    stream.write(kept)

    def check(self, episode: int, step: int, sha256: str | None) -> None:
        """Refuse lines that are not those of this digest, up to this step of ``episode``; as :meth:`truncate`."""
        if is_leader():
            self._checked(episode, step, sha256)

    def _checked(self, episode: int, step: int, sha256: str | None) -> bytes:
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.is_file() else []
        kept = b"".join(line for line in lines if line.endswith(b"\n") and _place(line) <= (episode, step))
        if sha256 is not None and hashlib.sha256(kept).hexdigest() != sha256:
            what = f"not what was written up to step {step} in episode {episode}"
            raise ArtifactError("CORRUPT", what, RESTORE, path=self.path)
        return kept


def _place(line: bytes) -> tuple[int, int]:
    """Episode and step of a line; a line that cannot be read counts as later than all others."""
    try:
        episode, step, _ = line.split(b"\t", 2)
        return int(episode), int(step)
    except ValueError:
        return 1 << 62, 0


def read_margins(path: Path, ends: Mapping[int, int] | None = None) -> Margins:
    """The margins of an experiment as far as they were written; empty if there is no file.

    Parameters
    ----------
    ends : episode -> the step whose model the next episode starts from; later steps of the episode are left out.
        An episode that is not named here is used whole.

    Raises
    ------
    ArtifactError : a line is not one of five numbers.
    """
    if not path.is_file():
        return NONE
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    found: NDArray[np.float64] = np.zeros((0, COLUMNS))
    try:
        if whole:
            found = np.loadtxt(whole.decode("ascii").split("\n"), delimiter="\t", ndmin=2, comments=None)
        if found.shape[1] != COLUMNS:
            raise ValueError(f"{found.shape[1]} columns")
    except ValueError as fault:
        fix = "restore the file, or remove it"
        raise ArtifactError("CORRUPT", f"not the margins of training ({fault})", fix, path=path) from fault
    for episode, step in (ends or {}).items():
        found = found[(found[:, 0] != episode) | (found[:, 1] <= step)]
    return Margins(found[:, 2].astype(np.int32), found[:, 3].astype(np.int32), found[:, 4].astype(np.float32))


def mean_margins(found: Margins, query_rows: Int32, passage_rows: Int32) -> Float32:
    """The mean margin [n] of each pair over all steps that drew it; NaN for a pair that no step drew."""
    drawn: Int64 = found.query_rows.astype(np.int64) << 31 | found.passage_rows
    pairs, which = np.unique(drawn, return_inverse=True)
    means = np.bincount(which, found.margins, len(pairs)) / np.maximum(np.bincount(which, minlength=len(pairs)), 1)
    asked: Int64 = query_rows.astype(np.int64) << 31 | passage_rows
    place = np.minimum(np.searchsorted(pairs, asked), max(len(pairs) - 1, 0))
    known = pairs[place] == asked if len(pairs) else np.zeros(len(asked), bool)
    values = np.full(len(asked), np.nan, np.float32)
    values[known] = means[place[known]]
    return values

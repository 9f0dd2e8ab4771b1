"""``states.jsonl``: what every state of the model was, and where its runs, weights and negatives stand.

A reader needs no model and does not need to know the recipe that wrote the file. The module loads no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardneg.errors import ArtifactError
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import FINAL, LAST, Asked, Kind


@dataclass(frozen=True)
class StateRecord:
    """One state of the model; paths are relative to the experiment's folder.

    Attributes
    ----------
    name : the name of the state in ``results.json``.
    kind : the kind of the state; see :data:`~hardneg.experiment.names.Kind`.
    of : the state whose model is searched over an index here, or whose runs are re-ranked here; else None.
    episode, step : the episode that made the state, and the step of this episode; None and 0 before any training.
    model : the folder of its weights; None: they are not kept.
    digest : identity of the model that made the runs, of a ranker together with its precision; None: unknown.
    pool : the negatives that it was trained on last; they may be deleted.
    runs : the folder of its runs; None for BM25, which is no state of the model.
    index : kind, options and digest of the index.
    asked : the queries that the state was searched for.
    ranker : the folder of the model that re-ranked its runs; None: no model did, or it is not kept.
    """

    name: str
    kind: Kind
    of: str | None = None
    episode: int | None = None
    step: int = 0
    model: str | None = None
    digest: str | None = None
    pool: str | None = None
    runs: str | None = None
    index: Mapping[str, Any] | None = None
    asked: Asked = "all"
    ranker: str | None = None


FIELDS = {field.name for field in dataclasses.fields(StateRecord)}
ADDED = {"ranker"}  # records of older experiments lack these


def states_text(records: Iterable[StateRecord]) -> bytes:
    """The content of ``states.jsonl``: a line for each state, in the order of training."""
    return "".join(json.dumps(dataclasses.asdict(record)) + "\n" for record in records).encode()


def read_states(folder: str | Path) -> list[StateRecord]:
    """The states of a finished experiment, in the order of training; BM25 first, the result last.

    Raises
    ------
    ArtifactError : the file is missing, because the experiment is not finished, or a line is damaged.
    """
    path = Layout(Path(folder)).states
    if not path.is_file():
        what = "no states are here"
        raise ArtifactError("MISSING_FILE", what, "give the folder of a finished experiment", path=path)
    return [_record(path, number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1)]


def without_copy(records: Iterable[StateRecord]) -> list[StateRecord]:
    """The states without the final one, where it is a copy of a kept state and the last state stands beside it."""
    found = list(records)
    copied = any(one.name == LAST for one in found)
    return [one for one in found if not (copied and one.name == FINAL)]


def ends_of(records: Iterable[StateRecord]) -> dict[int, int]:
    """The step of each episode whose model the next episode starts from.

    The episode may have later steps: an episode that was the last one runs on, and is left at this step when more
    episodes follow.
    """
    return {one.episode: one.step for one in records if one.kind == "episode" and one.episode and one.step}


def _record(path: Path, number: int, line: bytes) -> StateRecord:
    try:
        row = json.loads(line)
        if not FIELDS - ADDED <= set(row) <= FIELDS:
            raise ValueError("not a state")
        return StateRecord(**row)
    except (ValueError, TypeError) as fault:
        what = f"not the record of a state ({fault})"
        raise ArtifactError("BAD_JSON", what, "run the experiment again", path=path, line=number) from fault

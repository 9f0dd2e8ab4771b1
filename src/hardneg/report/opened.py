"""An experiment's folder as a report reads it: everything that is there, and a line for each part that is not.

An experiment that still runs, was cut short, or has an older format gives what its folder holds. Nothing here asks
for the model, and no file is changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardneg.data.own_passages import without_pairs
from hardneg.data.training_data import TrainingData
from hardneg.errors import ArtifactError, HardnegError
from hardneg.experiment.course import Course, course_of
from hardneg.experiment.folder import ENDED_BY, FORMAT, executed_by, read_settings
from hardneg.experiment.layout import Layout, run_of
from hardneg.experiment.metrics import rows_of
from hardneg.experiment.names import BEFORE, BEGIN, FINAL, LAST, RANKER, few_of_dev
from hardneg.experiment.provenance import begun_by
from hardneg.experiment.results_manifest import check_seal
from hardneg.experiment.so_far import dev_so_far, states_so_far
from hardneg.experiment.states import StateRecord, read_states, without_copy
from hardneg.negatives.labels import no_hits
from hardneg.negatives.pool import KIND as POOL
from hardneg.negatives.pool import NegativePool, counted_by, load_pool
from hardneg.records import Int32, Run
from hardneg.report.table import NotRecorded
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published, read_json

Found = TypeVar("Found")

Rows = list[dict[str, Any]]
Float64 = NDArray[np.float64]

FAULTS = (
    HardnegError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)  # raised by files that are not as training wrote them

RETRIEVER = "retriever"  # the name of its rows in the metrics, as training writes them


@dataclass
class Opened:
    """What an experiment's folder holds; every part is read when it is first asked for.

    Parameters
    ----------
    layout : the layout of the folder.
    data : the collection with its splits; None: it cannot be opened, and ``notes`` say why.
    notes : a line for each part that is missing or damaged.
    stores : the cache of what was matched for the experiment; None: the one in its folder.
    """

    layout: Layout
    data: TrainingData | None = None
    notes: list[str] = field(default_factory=list)
    stores: Path | None = None
    kept: dict[str, Any] = field(default_factory=dict)  # what several figures need, made once

    @property
    def path(self) -> Path:
        """The experiment's folder itself."""
        return self.layout.path

    @property
    def begun_by(self) -> str | None:
        """The command, or the function in Python, that began the experiment; None if it is not known."""
        return begun_by(self.path)

    @property
    def cache(self) -> Path:
        """The cache of answers that were matched, and of BM25's lists."""
        return self.stores or self.layout.cache

    def told(self, read: Callable[[], Found], otherwise: Found) -> Found:
        """The result of ``read``; if it raises a fault, this becomes a note, and ``otherwise`` is returned."""
        try:
            return read()
        except FAULTS as fault:
            self.note(fault)
            return otherwise

    def note(self, fault: Exception) -> None:
        """Keep a fault as one line, once."""
        if (line := line_of(fault)) not in self.notes:
            self.notes.append(line)

    # ------------------------------------------------------------ files of the whole

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of ``settings.json``; empty if that is damaged or missing."""
        found: dict[str, Any] = self.told(lambda: read_settings(self.path), {})
        said = any("format version" in note for note in self.notes)
        if found and not said and (form := found.get("format", 1)) != FORMAT:
            self.notes.append(
                f"{self.path}: this experiment has format version {form}, this hardneg writes {FORMAT}; parts that"
                " it does not know are left out"
            )
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of ``results.json``; empty while there is none."""
        if not self.layout.results.is_file():
            return {}
        self.told(lambda: check_seal(self.path), None)
        found: Any = self.told(lambda: read_json(self.layout.results), None)
        return found if isinstance(found, dict) else {}

    @property
    def dev_passages(self) -> int | None:
        """How many BM25 passages of each query dev was judged among, with the positives; None: all passages."""
        given = self.settings.get("result_settings", {}).get("dev_passages")
        known = self.results or self.told(lambda: dev_so_far(self.layout), {})
        return few_of_dev(known, given if isinstance(given, int) else None)

    @cached_property
    def executed_by(self) -> list[str]:
        """The processes that execute the experiment now; empty if there are none."""
        return executed_by(self.path)

    @property
    def finished(self) -> bool:
        """Whether the experiment has results."""
        return bool(self.results)

    def ended(self, names: Sequence[str]) -> str:
        """The one of these states that is compared with the untrained model: the final one, or the last of them.

        Where the untrained model was kept, the final one is a copy of it, and the state after the last step stands
        for training.
        """
        if self.results.get("kept", {}).get("state") in BEFORE and LAST in names:
            return LAST
        return FINAL if FINAL in names else names[-1]

    @cached_property
    def all_metrics(self) -> Rows:
        """The rows of all models in ``metrics.jsonl``; those before the first damaged line."""
        rows: Rows = self.told(lambda: rows_of(self.layout.metrics), [])
        known = [row for row in rows if is_step(row)]
        if len(known) < len(rows):
            what = f"{len(rows) - len(known):,} lines are not steps of a training"
            self.note(ArtifactError("BAD_JSON", what, "they are left out", path=self.layout.metrics))
        return known

    def rows_of(self, model: str) -> Rows:
        """The rows of one model in ``metrics.jsonl``."""
        return [row for row in self.all_metrics if row.get("model", RETRIEVER) == model]

    @cached_property
    def course(self) -> Course:
        """How the experiment is trained, which decides what its states are and which figures it has."""
        return self.told(lambda: course_of(self.settings), Course())

    @cached_property
    def unit(self) -> str:
        """What pools are counted by: ``episode``, or ``refresh`` where they are mined within one."""
        mined_within = self.course.mines != "episodes" or "refresh" in map(counted_by, self.layout.pools())
        return "refresh" if mined_within else "episode"

    @property
    def trains_ranker(self) -> bool:
        """Whether the model that is trained is a ranker, and no retriever."""
        return self.course.trains == "ranker"

    @property
    def restarts(self) -> bool:
        """Whether every episode trains the starting model anew, as ``ance-tele`` does with ``start = scratch``."""
        return self.course.restarts

    @cached_property
    def metrics(self) -> Rows:
        """The rows of the model that the experiment is about: the retriever, or a ranker that is trained alone."""
        return self.rows_of(RANKER if self.trains_ranker else RETRIEVER)

    @cached_property
    def timing(self) -> Rows:
        """The stages in ``timing.jsonl``; damaged lines are left out."""
        return [row for row in self._timing if "stage" in row]

    @cached_property
    def _timing(self) -> Rows:
        return self.told(lambda: lines_of(self.layout.timing), [])

    @property
    def ended_by(self) -> str | None:
        """The fault of the input that ended the last command that trained here; None: no such fault did."""
        found = None
        for row in self._timing:
            found = None if row.get("stage") == BEGIN else row.get(ENDED_BY, found)
        return found

    @cached_property
    def states(self) -> list[StateRecord]:
        """The states of the model in the order of training; of a running experiment those with runs so far."""
        if self.layout.states.is_file():
            return self.told(lambda: read_states(self.path), []) or self._states_so_far()
        return self._states_so_far()

    def _states_so_far(self) -> list[StateRecord]:
        return self.told(lambda: states_so_far(self.layout, self.settings, self.metrics), [])

    def state(self, name: str) -> StateRecord | None:
        """The state called ``name``; None if there is none."""
        return next((one for one in self.states if one.name == name), None)

    @property
    def trained_states(self) -> list[StateRecord]:
        """The states of training that were searched for training queries, without an index or re-ranking."""
        found = [one for one in self.states if one.of is None and one.asked == "all" and one.kind != "bm25"]
        return without_copy(found)

    @property
    def judged_alone(self) -> bool:
        """Whether states were searched for dev and test alone (``examine = judged``)."""
        asked = self.settings.get("settings", {}).get("examine") == "judged"
        return asked or self.results.get("examined") == "judged"

    # ------------------------------------------------------------ runs and pools

    def whole_run(self, state: StateRecord, name: str) -> Run | None:
        """The published run ``name`` of a state with all hits; None if there is none, or it is damaged."""
        if state.runs is None or not is_published(place := run_of(self.layout / state.runs, name)):
            return None
        found: Run | None = self.told(lambda: load_run(place), None)
        return found

    def run(self, state: StateRecord, name: str) -> Run | None:
        """The run that :meth:`whole_run` gives without hits that are their query itself, as for the measures."""
        run = self.whole_run(state, name)
        return run if run is None or self.data is None else without_pairs(run, *self._no_hits(self.data, name))

    def _no_hits(self, data: TrainingData, name: str) -> tuple[Int32, Int32]:
        if (key := f"no hits of {name}") not in self.kept:
            self.kept[key] = no_hits(data, name)
        found: tuple[Int32, Int32] = self.kept[key]
        return found

    def has_run(self, state: StateRecord, name: str) -> bool:
        """Whether a state has a published run ``name``; the run may still be damaged."""
        return state.runs is not None and is_published(run_of(self.layout / state.runs, name))

    @cached_property
    def pools(self) -> dict[str, NegativePool]:
        """The negatives of every episode or version, by name, in the order of training."""
        found: dict[str, NegativePool] = {}
        for place in sorted(self.layout.pools(), key=numbers_of):
            pool = self.told(lambda place=place: self._pool(place), None)  # type: ignore[misc]
            if pool is not None:
                found[name_of_pool(self.layout.relative(place))] = pool
        return found

    def pool_at(self, relative: str | None) -> NegativePool | None:
        """The pool at a path of the experiment, as states name it; None if it is gone."""
        return None if relative is None else self.pools.get(name_of_pool(relative))

    def _pool(self, place: Path) -> NegativePool | None:
        if not is_published(place, POOL):
            return None
        pool = load_pool(place, n_passages=None if self.data is None else self.data.collection.n_passages)
        if self.data is not None and pool.collection != self.data.collection.digest:
            what = "these negatives were mined from another collection"
            raise ArtifactError("OTHER_COLLECTION", what, "they are left out", path=place)
        return pool

    @property
    def data_here(self) -> TrainingData:
        """The collection with its splits; raises :class:`NotRecorded` without one."""
        if self.data is None:
            raise NotRecorded("The collection is not at hand, so this part is left out; give it with --data.")
        return self.data


def line_of(fault: Exception) -> str:
    """A fault as one line; an unexpected kind of fault says that a file is not as training writes it."""
    told = isinstance(fault, (HardnegError, OSError))
    text = str(fault) if told else f"a file is not as training writes it ({type(fault).__name__}: {fault})"
    return " ".join(text.split())


def is_step(row: Any) -> bool:
    """Whether a row of the metrics is an object with the numbers of a step and of its episode."""
    return isinstance(row, dict) and all(isinstance(row.get(name), int) for name in ("step", "episode"))


def lines_of(path: Path) -> Rows:
    """The objects of a file of JSON lines; other lines are left out. A missing file has none."""
    rows: Rows = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def numbers_of(place: Path) -> list[int]:
    """The numbers in the last three parts of a path, to sort by."""
    return [int(number) for part in place.parts[-3:] for number in re.findall(r"\d+", part)]


def name_of_pool(relative: str) -> str:
    """The name of a pool for people, from its path in the experiment: ``episode 2``, or ``refresh 2``."""
    version = re.search(r"v(\d+)$", relative)
    number = Layout.episode_within(relative) if version is None else int(version[1])
    return relative if number is None else f"{counted_by(Path(relative))} {number}"

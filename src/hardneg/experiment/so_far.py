"""The states of an experiment that is not finished, as its folders tell them.

A finished experiment names its states in ``states.jsonl``. Until then they are found in the places where recipes
put the runs of each state: a state with a published run was measured. The module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hardneg.experiment.course import Course, course_of
from hardneg.experiment.layout import Layout, geometry_of, run_of, runs_beside, version_in
from hardneg.experiment.names import BM25, FINAL, LAST, RETRIEVED, STARTED, UNTRAINED, Asked, Kind, name_of_step
from hardneg.experiment.states import StateRecord
from hardneg.storage.artifacts import is_published, read_manifest

NEVER = float("inf")
EPISODE = 1  # the episode of recipes that have only one

Order = tuple[float, float]  # episode, step


def states_so_far(
    layout: Layout, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()
) -> list[StateRecord]:
    """The states that have runs, in the order of training; each is followed by its indexed or re-ranked forms.

    Parameters
    ----------
    settings : content of ``settings.json``; where states lie and how they are named depends on the course.
    rows : of ``metrics.jsonl``, which say with which version of the negatives each step was made.
    """
    reader = _Reader(layout, course_of(settings), settings.get("settings", {}), rows)
    found = sorted(reader.found(), key=lambda pair: pair[0])
    named: dict[str, StateRecord] = {}
    for _, record in found:
        named.setdefault(record.name, record)
    return list(named.values())


def dev_so_far(layout: Layout) -> dict[str, Any]:
    """``dev_among`` as ``results.json`` will have it; empty before BM25 is measured, and in older experiments."""
    run = run_of(layout.runs_of(BM25), "dev")
    told = read_manifest(run).settings if is_published(run) else {}
    return {"dev_among": told["dev_among"]} if "dev_among" in told else {}


def has_runs(runs: Path) -> bool:
    """Whether any run stands in the folder of the runs of a state."""
    return any(runs.glob("*/manifest.json"))


def steps_or_0(model: Path) -> int:
    """The optimiser steps that made a published model; 0 if it is not there."""
    return int(read_manifest(model).inputs.get("step", 0)) if is_published(model) else 0


@dataclass(frozen=True)
class _Reader:
    """Reads the states of a folder from the places where its recipe keeps them."""

    layout: Layout
    course: Course
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] = field(repr=False)

    def found(self) -> Iterator[tuple[Order, StateRecord]]:
        """Every state with a run, and its place in the order of training."""
        for place, record in self._all():
            runs = self.layout / str(record.runs)
            if has_runs(runs):
                asked = "all" if is_published(run_of(runs, "query")) else record.asked
                record = replace(record, asked=asked)
                yield place, record
                yield from ((place, one) for one in self._through_others(record, runs))

    def _all(self) -> Iterator[tuple[Order, StateRecord]]:
        yield (-NEVER, -NEVER), self._record(RETRIEVED, "retriever", self.layout.runs_of(RETRIEVED))
        yield (-NEVER, 0), self._record(UNTRAINED, "untrained", self.layout.runs_of(UNTRAINED))
        yield from self._refreshed() if self.course.mines == "refreshes" else self._of_episodes()
        if self.course.mines == "iterations":
            yield from self._iterations()
        yield from self._measured()
        for name in (LAST, FINAL):
            yield (NEVER, NEVER), self._ended(name)

    # ------------------------------------------------------------ where recipes keep them

    def _of_episodes(self) -> Iterator[tuple[Order, StateRecord]]:
        """The state that each episode begins with."""
        first = int(self.settings.get("start_episode", EPISODE))
        for number in (int(folder.path.name) for folder in self.layout.episodes()):
            runs, before = self.layout.episode(number).runs, self.layout.episode(number - 1)
            if number <= first:
                yield (-NEVER, 1), self._begun(runs)
                continue
            facts: dict[str, Any] = {"episode": number - 1, "pool": before.negatives, "model": before.model}
            name = f"episode-{number - 1}"
            yield (number - 1, NEVER), self._record(name, "episode", runs, step=steps_or_0(before.model), **facts)

    def _refreshed(self) -> Iterator[tuple[Order, StateRecord]]:
        """The state that mined each version of the negatives (ANCE)."""
        for folder in self.layout.episodes():
            number = int(folder.path.name)
            if number == 0:
                yield (-NEVER, 1), self._begun(folder.runs)
                continue
            step = self._step_of_refresh(number)
            facts: dict[str, Any] = {"episode": EPISODE, "step": step, "pool": self._version_at(step)}
            yield (EPISODE, step), self._record(f"refresh-{number}", "version", folder.runs, **facts)

    def _step_of_refresh(self, number: int) -> int:
        geometry = geometry_of(self.layout.episode(number).runs)  # it has the step of the refresh
        if is_published(geometry) and (step := read_manifest(geometry).facts.get("step")) is not None:
            return int(step)
        version = version_in(self.layout.versions, number)
        return int(read_manifest(version).inputs["step"]) if is_published(version) else 0

    def _version_at(self, step: int) -> Path | None:
        """The version of the negatives that a step was made with, as its row of the metrics says."""
        used = next((row.get("negative_version") for row in self.rows if row.get("step") == step), None)
        return None if used is None else version_in(self.layout.versions, int(used))

    def _iterations(self) -> Iterator[tuple[Order, StateRecord]]:
        """The retriever that mined each refresh of the candidates (AR2)."""
        episode, turn = self.layout.episode(EPISODE), int(self.settings.get("retriever_steps", 0))
        for number, runs in episode.mined_runs():
            facts: dict[str, Any] = {"episode": EPISODE, "step": number * turn}
            facts["pool"] = episode.version(self._candidates_of(number))
            yield (EPISODE, number * turn), self._record(f"iteration-{number}", "version", runs, **facts)

    def _candidates_of(self, iteration: int) -> int:
        """The version of the candidates that the retriever of an iteration (from 1) trained on (AR2)."""
        lag = self.settings.get("mode") == "async-fixed"  # a refresh takes effect an iteration later
        return max(iteration - 1 - lag, 0)

    def _measured(self) -> Iterator[tuple[Order, StateRecord]]:
        """The states that were measured between two steps; ADORE names their folders by the step alone."""
        for episode, step in self.layout.measured_states():
            state = self.layout.state(step, episode)
            facts: dict[str, Any] = {"episode": episode, "step": step, "model": state.model, "asked": "dev"}
            name = self._name_of_step(episode, step)
            yield (episode, step), self._record(name, "passing", state.runs, **facts)
        for step in self.layout.steps_of_states():
            state = self.layout.state(step)
            facts = {"episode": EPISODE, "step": step, "model": state.model}
            name = self._name_of_step(EPISODE, step)
            yield (EPISODE, step), self._record(name, "passing", state.runs, **facts)

    def _name_of_step(self, episode: int, step: int) -> str:
        return name_of_step(episode, step, several=self.course.several_episodes)

    def _begun(self, runs: Path) -> StateRecord:
        """The state that training begins with; it has another name if the model as given was measured too."""
        came = has_runs(self.layout.runs_of(UNTRAINED))
        if came:
            return self._record(STARTED, "untrained-as-trained", runs)
        return self._record(UNTRAINED, "untrained", runs)

    def _ended(self, name: Kind) -> StateRecord:
        """The record of the state after the last step (``last``) or of the state that is kept (``final``)."""
        model = self.layout.last_model if name == LAST else self.layout.model
        episode = max((int(folder.path.name) for folder in self.layout.episodes()), default=EPISODE)
        pool: Path | None = self.layout.episode(episode).negatives
        if self.course.mines == "refreshes":
            episode, pool = EPISODE, self._version_at(max((int(row["step"]) for row in self.rows), default=0))
        elif self.course.mines == "iterations":
            pool = self.layout.episode(EPISODE).version(
                self._candidates_of(int(self.settings.get("iterations", 1)))
            )
        facts: dict[str, Any] = {"episode": episode, "step": steps_or_0(model), "model": model, "pool": pool}
        return self._record(name, name, self.layout.runs_of(name), **facts)

    def _through_others(self, base: StateRecord, runs: Path) -> Iterator[StateRecord]:
        """The states whose runs an index or a ranker made of this state, found beside its own runs."""
        kind: Kind = "reranked" if self.course.mines == "iterations" else "indexed"
        for by, path in runs_beside(runs):
            if has_runs(path):
                record = self._record(f"{base.name}/{by}", kind, path, episode=base.episode, step=base.step)
                asked: Asked = "all" if is_published(run_of(path, "query")) else "judged"
                yield replace(record, of=base.name, asked=asked)

    # ------------------------------------------------------------ records

    def _record(
        self,
        name: str,
        kind: Kind,
        runs: Path,
        *,
        model: Path | None = None,
        pool: Path | None = None,
        **facts: Any,
    ) -> StateRecord:
        layout = self.layout
        facts = {"asked": "judged"} | facts
        if model is not None and is_published(model):
            facts["model"] = layout.relative(model)
        if pool is not None and is_published(pool):
            facts["pool"] = layout.relative(pool)
        return StateRecord(name, kind, runs=layout.relative(runs), **facts)

"""One stage of training: named models that are trained in turn, and one checkpoint for all of them.

A recipe asks for the steps of one model after the other (:meth:`Stage.advance`), and between two turns it does
what it likes: measure, search, mine. Killed at any moment and run again, the stage goes on from its newest
checkpoint and ends in the same bytes. A step that was made before the checkpoint is not made again, so a recipe
can ask for all turns from the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import nn

from hardneg import keyed_random
from hardneg.errors import Interrupted, NumericError
from hardneg.process.distributed import by_consensus, by_leader
from hardneg.process.progress import track
from hardneg.storage.artifacts import is_current, read_manifest
from hardneg.training.batches import PROBE_EVERY
from hardneg.training.checkpoint import latest_checkpoint, restore, save_checkpoint
from hardneg.training.gradient_norms import layer_norms, layers_of
from hardneg.training.loop import Batch, NotFinite, Objective, Step, train_steps
from hardneg.training.optim import Optimizers, Schedule, adamw

READ_EVERY = 10  # steps between two looks at the device
RETRIEVER = "retriever"  # the model of a recipe that trains only one

Timed = Callable[..., contextlib.AbstractContextManager[Any]]
Save = Callable[..., None]  # (model, path, inputs=, replace=): publishes a model


class Rows(Protocol):
    """Where a stage writes what its steps measured; ``Metrics`` of an experiment."""

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, and flush them."""
        ...

    def truncate(self, episode: int, made: Mapping[str, int], *, sha256: str | None = None) -> None:
        """Drop the rows of steps that are not made, by the model that made them."""
        ...

    def digest(self) -> str:
        """SHA-256 of all rows."""
        ...


@dataclass(frozen=True)
class Trainee:
    """A model of a stage, and how it is trained.

    Attributes
    ----------
    name : of the model in metrics and checkpoints.
    model : has a ``digest()``, as a :class:`~hardneg.models.bi_encoder.BiEncoder` has.
    schedule : its step, from 0, to its learning rate.
    batches : its step, from 0, to the batch; a pure function.
    save : publishes the model in a folder.
    models : where the model is kept, and after how many of its steps; at the end, where training ends before.
    passing : the same of models on the way; none where training ends before.
    facts : what else the metrics say of a step.
    """

    name: str
    model: nn.Module
    objective: Objective
    batches: Callable[[int], Batch]
    schedule: Schedule
    save: Save
    models: Mapping[Path, int] = field(default_factory=dict)
    passing: Mapping[Path, int] = field(default_factory=dict)
    optimizer: Optimizers = adamw
    clip: float = 1.0
    facts: Callable[[int], Mapping[str, Any]] = lambda step: {}

    @property
    def kept(self) -> dict[Path, int]:
        """Where the model is kept in all, and after how many steps."""
        return {**self.passing, **self.models}

    def until(self, end: int | None) -> Trainee:
        """The same, known to end after ``end`` steps; None: nothing is known."""
        if end is None:
            return self
        passing = {path: step for path, step in self.passing.items() if step < end}
        return replace(self, models={path: min(step, end) for path, step in self.models.items()}, passing=passing)


class Watch(Protocol):
    """An observer of all stages, for tests: told of a batch just before a model is trained on it."""

    def __call__(self, name: str, step: int, batch: Batch) -> None:
        """Be told the trainee's name, its step (from 0) and the batch."""
        ...


def steps_made(model: Path) -> int:
    """After how many steps of its stage a published model was made."""
    return int(read_manifest(model).inputs["step"])


def start_of(name: str) -> str:
    """What the inputs of a checkpoint call the model that a trainee began as."""
    return "start" if name == RETRIEVER else f"start-{name}"


def inputs_of(trainees: Sequence[Trainee], inputs: Mapping[str, str]) -> dict[str, str]:
    """What a stage is made from: ``inputs``, and the models that the trainees begin as, by their digests."""
    models: dict[str, Any] = {trainee.name: trainee.model for trainee in trainees}
    return dict(inputs) | {start_of(name): str(model.digest()) for name, model in models.items()}


class Stage:
    """The training of one episode, from wherever it stands.

    Parameters
    ----------
    trainees : the models; each has its own optimiser, schedule and count of steps.
    folder : where checkpoints are published.
    rows : where the metrics go.
    episode, seed : dropout is keyed by both, by the model's name, and by its step.
    inputs : digests of what is trained on.
    before : positions (steps made, by model) at which a recipe has something to make that is not there yet. A
        checkpoint behind any of them is of no use.
    timed : measures a block, as ``Experiment.timed`` does.
    query_id : a query's row to its id, for messages.
    checkpoint_every : steps of a model between two checkpoints.

    Attributes
    ----------
    made : steps that are made, by model.
    finished : every model that is to be kept is there; no step is made, and the weights are those of the start.
    """

    watch: ClassVar[Watch | None] = None

    def __init__(
        self,
        trainees: Sequence[Trainee],
        folder: Path,
        rows: Rows,
        *,
        episode: int,
        seed: int,
        inputs: Mapping[str, str],
        timed: Timed,
        query_id: Callable[[int], str] = str,
        before: Sequence[Mapping[str, int]] = (),
        checkpoint_every: int = 500,
    ) -> None:
        self.trainees = {trainee.name: trainee for trainee in trainees}
        self.folder, self.rows, self.episode, self.seed = folder, rows, episode, seed
        self.timed, self.query_id, self.checkpoint_every = timed, query_id, checkpoint_every
        self.inputs = inputs_of(trainees, inputs)
        self.made = dict.fromkeys(self.trainees, 0)
        self.log: list[tuple[Trainee, Step]] = []
        self.saved: dict[str, int] | None = None  # the position of the newest checkpoint
        self.missing = by_leader(self._missing)
        self.finished = not self.missing and not before
        if not self.finished:
            self.optimizers = {name: trainee.optimizer(trainee.model) for name, trainee in self.trainees.items()}
            self._resume([*before, *({name: step} for name, _, step in self.missing)])

    def at(self, **made: int) -> bool:
        """Whether exactly these steps of these models are made: the weights are those of this position."""
        return not self.finished and all(self.made[name] == steps for name, steps in made.items())

    def advance(self, name: str, until: int, *, checkpoint: bool = True) -> None:
        """Make the steps of a model, until so many are made in all.

        Parameters
        ----------
        checkpoint : whether the end of this turn is one to resume from, besides those that are due.

        Raises
        ------
        NumericError : a loss or gradient was not finite; names the model, the step and the queries.
        Interrupted : asked to stop; a checkpoint was published first.
        """
        if self.finished or self.made[name] >= until:
            return
        trainee, first = self.trainees[name], self.made[name]
        total = max([until, *trainee.kept.values()])
        with (
            self.timed("train", episode=self.episode, model=name, first_step=first) as facts,
            track(f"training{self._called(name)}, episode {self.episode}", "steps") as tick,
            self._naming_queries(name),
        ):
            try:
                for step in self._steps(trainee, until):
                    self._add(trainee, step)
                    if self.made[name] % self.checkpoint_every == 0 or (checkpoint and self.made[name] == until):
                        self.save()
                    self._keep(trainee)
                    facts["steps"] = self.made[name] - first
                    with by_consensus():
                        tick(self.made[name], total)
                self._settle()
            except Interrupted:
                self.save()
                raise

    def end(self, name: str) -> None:
        """End the training of a model here: what was to be kept of a later step is kept now."""
        trainee, made = self.trainees[name], self.made[name]
        later = [path for path, step in trainee.models.items() if step > made]
        if self.finished or not later:
            return
        self.save()
        for path in later:
            self._publish(trainee, path, made)

    # ------------------------------------------------------------ where it stands

    def _made_by(self, step: int) -> dict[str, str]:
        """What makes the model after so many steps, for its manifest."""
        return {**self.inputs, "step": str(step)}

    def _missing(self) -> list[tuple[str, Path, int]]:
        """(name, path, step) of every model that is to be kept and is not there."""
        return [
            (trainee.name, path, step)
            for trainee in self.trainees.values()
            for path, step in trainee.kept.items()
            if not is_current(path, "model", self._made_by(step))
        ]

    def _resume(self, limits: Sequence[Mapping[str, int]]) -> None:
        """Put the newest checkpoint back that is not behind any of these positions, and drop later metrics."""
        found = by_leader(latest_checkpoint, self.folder, self.inputs, limits)
        if found:
            self.made = restore(found, self._models, self.optimizers)
            self.saved = dict(self.made)
        known = read_manifest(found).facts["metrics"] if found else None
        self.rows.truncate(self.episode, self.made, sha256=known)
        for trainee in self.trainees.values():  # killed between the checkpoint and the model of the same step
            self._keep(trainee)

    @property
    def _models(self) -> dict[str, nn.Module]:
        return {name: trainee.model for name, trainee in self.trainees.items()}

    # ------------------------------------------------------------ what a step does

    def _steps(self, trainee: Trainee, until: int) -> Iterator[Step]:
        layers = layers_of(trainee.model)
        purpose = "train" if trainee.name == RETRIEVER else f"train {trainee.name}"
        return train_steps(
            trainee.model,
            trainee.objective,
            partial(self._batch, trainee),
            self.optimizers[trainee.name],
            trainee.schedule,
            start=self.made[trainee.name],
            stop=until,
            seed=keyed_random.key(self.seed, purpose, self.episode),
            clip=trainee.clip,
            check_every=READ_EVERY,
            probe=lambda index: layer_norms(layers) if index % PROBE_EVERY == 0 else {},
        )

    def _batch(self, trainee: Trainee, step: int) -> Batch:
        batch = trainee.batches(step)
        if Stage.watch is not None:
            Stage.watch(trainee.name, step, batch)
        return batch

    def _add(self, trainee: Trainee, step: Step) -> None:
        """Take a step in; it is written with others, so that no step waits for the device."""
        self.made[trainee.name] = step.index + 1
        self.log.append((trainee, step))
        if len(self.log) >= READ_EVERY:
            self._settle()

    def _settle(self) -> None:
        """Write the steps that are not written, if they are finite: nothing is published without its metrics."""
        for _, step in self.log[-1:]:
            step.confirm()
        self.rows.append([self._row(*entry) for entry in self.log])
        self.log.clear()

    def _row(self, trainee: Trainee, step: Step) -> dict[str, Any]:
        return {
            "step": step.index + 1,
            "episode": self.episode,
            "model": trainee.name,
            "loss": float(step.loss),
            "lr": step.learning_rate,
            "grad_norm": float(step.grad_norm),
            "negative_version": self.episode,
            "queries": step.queries,
            **{name: float(value) for name, value in step.facts.items()},
            **trainee.facts(step.index),
        }

    def save(self) -> None:
        """Publish a checkpoint of this position, unless it is there."""
        self._settle()
        if self.finished or self.saved == self.made:
            return
        by_leader(
            lambda: save_checkpoint(
                self.folder,
                self.made,
                self._models,
                self.optimizers,
                inputs=self.inputs,
                facts={"metrics": self.rows.digest()},
            )
        )
        self.saved = dict(self.made)

    def _keep(self, trainee: Trainee) -> None:
        """Publish the model where it is to be kept after as many steps as are made."""
        made = self.made[trainee.name]
        for name, path, step in self.missing:
            if (name, step) == (trainee.name, made):
                self._settle()
                self._publish(trainee, path, step)

    def _publish(self, trainee: Trainee, path: Path, step: int) -> None:
        by_leader(trainee.save, trainee.model, path, inputs=self._made_by(step), replace=True)

    def _called(self, name: str) -> str:
        """A model's name in a title; the only one has none."""
        return f" the {name}" if len(self.trainees) > 1 else ""

    @contextlib.contextmanager
    def _naming_queries(self, model: str) -> Iterator[None]:
        """Put ids in place of rows of queries in the fault of a step that is not finite, and name the model."""
        try:
            yield
        except NotFinite as fault:
            names = ", ".join(self.query_id(row) for row in fault.query_rows[:8])
            raise NumericError(
                "NOT_FINITE",
                f"loss or gradient of step {fault.step + 1} of the {model} is not finite (queries {names})",
                "lower the learning rate or look at these queries' texts; the last checkpoint is sound",
            ) from fault

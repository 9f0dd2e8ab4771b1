"""One stage of training: named models that are trained in turn, and one checkpoint for all of them.

A recipe asks for steps of one model or another (:meth:`Stage.advance`). Between two turns it may measure, search
or mine. A stage that was killed at any moment continues from its newest checkpoint when it is run again, and ends
in the same bytes. It does not repeat the steps before the checkpoint. So a recipe always asks for all turns,
beginning with the first.
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
from hardneg.errors import ArtifactError, Interrupted, NumericError
from hardneg.process.distributed import agreed, by_leader
from hardneg.process.progress import track
from hardneg.storage.artifacts import is_current, read_manifest
from hardneg.training.batches import PROBE_EVERY
from hardneg.training.checkpoint import checkpoints, keep_newest, latest_checkpoint, restore, save_checkpoint
from hardneg.training.counted_tokens import tokens_trained
from hardneg.training.gradient_norms import layer_norms, layers_of
from hardneg.training.loop import Batch, NotFinite, Objective, Step, train_steps
from hardneg.training.optim import Optimizers, Schedule, adamw

READ_EVERY = 10  # losses are read from the device once in so many steps
RETRIEVER = "retriever"  # the model of a recipe that trains only one

Timed = Callable[..., contextlib.AbstractContextManager[Any]]
Save = Callable[..., None]  # (model, path, inputs=, replace=): publishes a model


class Rows(Protocol):
    """Where a stage writes the metrics of its steps; an experiment's ``Metrics`` has this form."""

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to the metrics and flush them."""
        ...

    def truncate(self, episode: int, made: Mapping[str, int], *, sha256: str | None = None) -> None:
        """Drop the rows of an episode's steps beyond ``made``, the number of steps of each model."""
        ...

    def check(self, episode: int, made: Mapping[str, int], sha256: str | None) -> None:
        """Refuse rows, up to these steps of an episode, that do not have this digest."""
        ...

    def digest(self) -> str:
        """SHA-256 of all rows."""
        ...


class Margins(Protocol):
    """Where a stage keeps the margins of its groups; an experiment's ``MarginLog`` has this form."""

    at: tuple[int, int]  # episode and step (from 1) of the margins that come next

    def flush(self) -> None:
        """Write what was seen to the disk."""
        ...

    def check(self, episode: int, step: int, sha256: str | None) -> None:
        """Refuse lines, up to this step of an episode, that do not have this digest."""
        ...

    def truncate(self, episode: int, step: int, *, sha256: str | None = None) -> None:
        """Drop the margins of an episode's later steps."""
        ...

    def digest(self) -> str:
        """SHA-256 of all margins."""
        ...


@dataclass(frozen=True)
class Trainee:
    """A model of a stage, and how it is trained.

    Attributes
    ----------
    name : the model's name in metrics and checkpoints.
    model : the model; it has a ``digest()``, as a :class:`~hardneg.models.bi_encoder.BiEncoder` has.
    schedule : step of this model (from 0) -> learning rate.
    batches : step of this model (from 0) -> batch; a pure function.
    save : publishes the model in a folder.
    models : folder -> number of steps: the model is saved there after so many steps, or at the end of training if
        it ends earlier.
    intermediate : folder -> number of steps, for states on the way; they are not saved if training ends earlier.
    facts : step of this model (from 0) -> further facts for the metrics.
    kind : the kind of artefact that ``save`` publishes.
    title : what titles of progress call the model; empty: its name, if the stage has several models.
    margins : the log in which its objective records the margins of its groups; None: they are not recorded.
    """

    name: str
    model: nn.Module
    objective: Objective
    batches: Callable[[int], Batch]
    schedule: Schedule
    save: Save
    models: Mapping[Path, int] = field(default_factory=dict)
    intermediate: Mapping[Path, int] = field(default_factory=dict)
    optimizer: Optimizers = adamw
    clip: float = 1.0
    facts: Callable[[int], Mapping[str, Any]] = lambda step: {}
    kind: str = "model"
    title: str = ""
    margins: Margins | None = None

    @property
    def kept(self) -> dict[Path, int]:
        """All folders in which the model is saved, and after how many steps."""
        return {**self.intermediate, **self.models}

    def until(self, end: int | None) -> Trainee:
        """A copy of the trainee for training that ends after ``end`` steps; None: the end is not known."""
        if end is None:
            return self
        models = {path: min(step, end) for path, step in self.models.items()}
        return replace(self, models=models, intermediate={p: n for p, n in self.intermediate.items() if n < end})


class StageObserver(Protocol):
    """An observer of all stages, for tests; it is called just before a model is trained on a batch."""

    def __call__(self, name: str, step: int, batch: Batch) -> None:
        """Receive the trainee's name, its step (from 0) and the batch."""
        ...


def steps_made(model: Path) -> int:
    """The number of steps that its stage had made when a model was published."""
    return int(read_manifest(model).inputs["step"])


def kind_of(name: str) -> str:
    """The kind of the stage that trains the model of this name, which is also the kind of its work in a plan."""
    return "train" if name == RETRIEVER else f"train {name}"


def start_of(name: str) -> str:
    """The name, among the inputs of a checkpoint, of the model that a trainee starts from."""
    return "start" if name == RETRIEVER else f"start-{name}"


def inputs_of(trainees: Sequence[Trainee], inputs: Mapping[str, str]) -> dict[str, str]:
    """All inputs of a stage by digest: ``inputs``, and the models that the trainees start from."""
    models: dict[str, Any] = {trainee.name: trainee.model for trainee in trainees}
    return dict(inputs) | {start_of(name): str(model.digest()) for name, model in models.items()}


class Stage:
    """The training of one episode; it resumes from the newest checkpoint.

    Parameters
    ----------
    trainees : the models; each has its own optimiser, schedule and count of steps.
    folder : the folder in which checkpoints are published.
    rows : the metrics.
    episode, seed : the dropout of a step is keyed by both, by the model's name, and by the step.
    inputs : digests of the data that is trained on.
    before : positions (steps made, by model) at which the recipe still has to make something. The stage does not
        resume from a checkpoint that has gone beyond one of them.
    timed : measures the time of a block, as ``Experiment.timed`` does.
    query_id : row of a query -> its id, for messages.
    checkpoint_every : number of steps of a model between two checkpoints.

    Attributes
    ----------
    made : the number of steps made, by model.
    finished : whether every model to be saved is there already; then no step is made, and the weights are those of
        the start.
    """

    watch: ClassVar[StageObserver | None] = None

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
        if self.finished:
            by_leader(self._check_rows, self.episode)
        else:
            self.optimizers = {name: trainee.optimizer(trainee.model) for name, trainee in self.trainees.items()}
            self._resume([*before, *({name: step} for name, _, step in self.missing)])

    def at(self, **made: int) -> bool:
        """Whether exactly these numbers of steps are made, so that the weights are those of this position."""
        return not self.finished and all(self.made[name] == steps for name, steps in made.items())

    def advance(self, name: str, until: int, *, checkpoint: bool = True) -> None:
        """Make steps of a model until ``until`` steps are made in all.

        Parameters
        ----------
        checkpoint : whether to publish a checkpoint at the end of this turn, besides the regular ones.

        Raises
        ------
        NumericError : a loss or gradient was not finite; names the model, the step and the queries.
        Interrupted : the process was asked to stop; a checkpoint was published first.
        """
        if self.finished or self.made[name] >= until:
            return
        trainee, first = self.trainees[name], self.made[name]
        total, tokens = max([until, *trainee.kept.values()]), tokens_trained()
        with (
            self.timed("train", episode=self.episode, model=name, first_step=first) as facts,
            track(f"training{self._called(name)}, episode {self.episode}", "steps", kind=kind_of(name)) as tick,
            self._naming_queries(name),
        ):
            try:
                for step in self._steps(trainee, until):
                    self._add(trainee, step)
                    if self.made[name] % self.checkpoint_every == 0 or (checkpoint and self.made[name] == until):
                        self.save()
                    self._keep(trainee)
                    facts |= {"steps": self.made[name] - first, "tokens": tokens_trained() - tokens}
                    with agreed(step.stop):
                        tick(self.made[name], total)
                self._settle()
            except Interrupted:
                self.save()
                raise

    def end(self, name: str) -> None:
        """End the training of a model at this step; a model that was to be saved at a later step is saved now."""
        trainee, made = self.trainees[name], self.made[name]
        later = [path for path, step in trainee.models.items() if step > made]
        if self.finished or not later:
            return
        self.save()
        for path in later:
            self._publish(trainee, path, made)

    # ------------------------------------------------------------ where it stands

    def _made_by(self, step: int) -> dict[str, str]:
        """The inputs that the manifest of the model after ``step`` steps names."""
        return {**self.inputs, "step": str(step)}

    def _missing(self) -> list[tuple[str, Path, int]]:
        """The (name, path, step) of every model that is to be saved and is not there."""
        return [
            (trainee.name, path, step)
            for trainee in self.trainees.values()
            for path, step in trainee.kept.items()
            if not is_current(path, trainee.kind, self._made_by(step))
        ]

    def _resume(self, limits: Sequence[Mapping[str, int]]) -> None:
        """Load the newest checkpoint that has gone beyond none of these positions, and drop later metrics.

        Without a checkpoint, the rows of the episode before are checked by its newest one. If a later episode has
        begun, this one is not trained again, because the rows of the later one would be dropped.
        """
        if by_leader(lambda: self._checkpoints_of(self.episode + 1)):
            what = f"episode {self.episode} lacks something that it made, and episode {self.episode + 1} has begun"
            place = self.missing[0][1] if self.missing else self.folder
            raise ArtifactError("CORRUPT", what, "restore it, or give a new folder", path=place)
        found = by_leader(latest_checkpoint, self.folder, self.inputs, limits)
        if not found:
            by_leader(self._check_rows, self.episode - 1)
        else:
            self.made = restore(found, self._models, self.optimizers)
            self.saved = dict(self.made)
        facts = read_manifest(found).facts if found else {}
        self.rows.truncate(self.episode, self.made, sha256=facts.get("metrics"))
        for name, margins in self._margins.items():
            margins.truncate(self.episode, self.made[name], sha256=facts.get("margins", {}).get(name))
        for trainee in self.trainees.values():  # a kill may have come after a checkpoint, before the step's model
            self._keep(trainee)

    def _checkpoints_of(self, episode: int) -> list[Path]:
        """The checkpoints of another episode's stage, oldest first."""
        return checkpoints(self.folder.parent.with_name(str(episode)) / self.folder.name)

    def _check_rows(self, episode: int) -> None:
        """Refuse metrics and margins of an episode that are not those of its newest checkpoint."""
        for path in reversed(self._checkpoints_of(episode)):
            try:
                facts = read_manifest(path).facts
            except ArtifactError:  # the one before it knows less, but is not damaged
                continue
            made, margins = facts["made"], facts.get("margins", {})
            self.rows.check(episode, made, facts.get("metrics"))
            for name, log in self._margins.items():
                log.check(episode, made.get(name, 0), margins.get(name))
            return

    @property
    def _models(self) -> dict[str, nn.Module]:
        return {name: trainee.model for name, trainee in self.trainees.items()}

    @property
    def _margins(self) -> dict[str, Margins]:
        return {name: one.margins for name, one in self.trainees.items() if one.margins is not None}

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
        if trainee.margins is not None:
            trainee.margins.at = (self.episode, step + 1)
        return batch

    def _add(self, trainee: Trainee, step: Step) -> None:
        """Remember a step; rows are written several at a time, so that not every step waits for the device."""
        self.made[trainee.name] = step.index + 1
        self.log.append((trainee, step))
        if len(self.log) >= READ_EVERY:
            self._settle()

    def _settle(self) -> None:
        """Write the metrics of the remembered steps, if these are finite.

        This happens before each checkpoint or model is published, so that its metrics are on the disk.
        """
        for _, step in self.log[-1:]:
            step.confirm()
        self.rows.append([self._row(*entry) for entry in self.log])
        for margins in self._margins.values():
            margins.flush()
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
        """Publish a checkpoint of this position, unless there is one."""
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
                facts={
                    "metrics": self.rows.digest(),
                    "margins": {name: margins.digest() for name, margins in self._margins.items()},
                },
            )
        )
        self.saved = dict(self.made)

    def _keep(self, trainee: Trainee) -> None:
        """Publish the model in the folders where it is to be saved after this number of steps."""
        made = self.made[trainee.name]
        for name, path, step in self.missing:
            if (name, step) == (trainee.name, made):
                self._settle()
                self._publish(trainee, path, step)

    def _publish(self, trainee: Trainee, path: Path, step: int) -> None:
        by_leader(self._publish_here, trainee, path, step)

    def _publish_here(self, trainee: Trainee, path: Path, step: int) -> None:
        """Publish a model; when all models are published, delete the checkpoints that are no longer needed."""
        trainee.save(trainee.model, path, inputs=self._made_by(step), replace=True)
        if not self._missing():
            keep_newest(self.folder, 1)

    def _called(self, name: str) -> str:
        """What titles of progress call a model; empty if the stage has only one, and that has no title."""
        title = self.trainees[name].title or (name if len(self.trainees) > 1 else "")
        return f" the {title}" if title else ""

    @contextlib.contextmanager
    def _naming_queries(self, model: str) -> Iterator[None]:
        """Turn the fault of a step that is not finite into one that names the model and the queries by id."""
        try:
            yield
        except NotFinite as fault:
            names = ", ".join(self.query_id(row) for row in fault.query_rows[:8])
            raise NumericError(
                "NOT_FINITE",
                f"loss or gradient of step {fault.step + 1} of the {model} is not finite (queries {names})",
                "lower the learning rate or look at these queries' texts; the last checkpoint is sound",
            ) from fault

"""One stage of training inside an experiment: resumable steps, metrics, checkpoints, models at given steps."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hardneg import keyed_random
from hardneg.data.collection import Collection
from hardneg.errors import Interrupted, NumericError
from hardneg.experiment.folder import Experiment
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.saving import save_encoder
from hardneg.process.distributed import by_consensus, by_leader
from hardneg.process.progress import track
from hardneg.storage.artifacts import is_current, read_manifest
from hardneg.training.batches import PROBE_EVERY
from hardneg.training.checkpoint import latest_checkpoint, restore, save_checkpoint
from hardneg.training.gradient_norms import layer_norms, layers_of
from hardneg.training.loop import Batch, NotFinite, Objective, Step, train_steps
from hardneg.training.optim import Optimizers, Schedule, adamw

READ_EVERY = 10  # steps between two looks at the device


class Watch(Protocol):
    """What looks at the model between two steps, and may end the stage before its last step."""

    @property
    def end(self) -> int | None:
        """The step after which the stage ends early; None while nothing says so."""
        ...

    def begin(self, encoder: BiEncoder, inputs: Mapping[str, str]) -> int | None:
        """Be told what the stage is made from; the first step that has to be looked at yet, if there is one."""
        ...

    def is_due(self, made: int) -> bool:
        """Whether to look after so many steps."""
        ...

    def look(self, encoder: BiEncoder, made: int) -> None:
        """Look at the model as it is after so many steps."""
        ...


@dataclass(frozen=True)
class Stage:
    """What one stage of training is, apart from where it runs."""

    episode: int
    seed: int
    models: Mapping[str, int]  # where the model is kept, and after how many steps
    schedule: Schedule
    objective: Objective
    batches: Callable[[int], Batch]
    inputs: Mapping[str, str]  # digests of what it trains on
    clip: float = 1.0
    optimizer: Optimizers = adamw
    is_border: Callable[[int], bool] = lambda made: False  # whether a checkpoint is due besides
    facts: Callable[[int], Mapping[str, Any]] = lambda step: {}  # what else the metrics say of a step (from 0)
    checkpoint_every: int = 500
    passing: Mapping[str, int] = dataclasses.field(
        default_factory=dict
    )  # models on the way; none past an early end
    watch: Watch | None = None

    def models_until(self, end: int | None) -> dict[str, int]:
        """What models are kept, and after how many steps, where the stage ends after ``end`` at the latest."""
        ends = {name: step if end is None else min(step, end) for name, step in self.models.items()}
        return {name: step for name, step in self.passing.items() if end is None or step < end} | ends


def train_stage(stage: Stage, encoder: BiEncoder, collection: Collection, experiment: Experiment) -> None:
    """Make all steps of a stage; see :func:`stage_steps`."""
    for _ in stage_steps(stage, encoder, collection, experiment):
        pass


def stage_steps(stage: Stage, encoder: BiEncoder, collection: Collection, experiment: Experiment) -> Iterator[int]:
    """Make the steps of a stage, if one of its models is missing, from its newest checkpoint if there is one.

    Yields how many steps are made: first those of the checkpoint, then after each step. Between two of them a
    recipe does what it likes with the encoder's weights as they are, but must leave them so. After the step at
    which its watch ends the stage early it yields no more.

    Raises
    ------
    NumericError : a loss or gradient was not finite; names the step and the queries.
    Interrupted : asked to stop; a checkpoint was published first.
    """
    making = Making(stage, encoder, experiment)
    if not making.is_needed:
        return
    done = making.resume()
    layers = layers_of(encoder)
    steps = train_steps(
        encoder,
        stage.objective,
        stage.batches,
        making.optimizer,
        stage.schedule,
        start=done,
        stop=making.stop,
        seed=keyed_random.key(stage.seed, "train", stage.episode),
        clip=stage.clip,
        check_every=READ_EVERY,
        probe=lambda index: layer_norms(layers) if index % PROBE_EVERY == 0 else {},
    )
    with (
        experiment.timed("train", episode=stage.episode, first_step=done) as facts,
        track(f"training, episode {stage.episode}", "steps") as tick,
        naming_queries(collection),
    ):
        making.keep(done)
        made, facts["elsewhere"] = done, 0.0
        try:
            while True:
                left = time.perf_counter()
                if not (over := making.ends(made)):
                    yield made
                facts["elsewhere"] += time.perf_counter() - left
                if over or (step := next(steps, None)) is None:
                    break
                made += 1
                making.take(step, made)
                facts["steps"] = made - done
                with by_consensus():
                    tick(made, making.stop)
        except Interrupted:
            making.checkpoint(made)
            raise


class Making:
    """A stage that is being made: what of it is missing, and what is kept of its steps.

    Attributes
    ----------
    stop : the last step to make, as far as is known.
    """

    def __init__(self, stage: Stage, encoder: BiEncoder, experiment: Experiment) -> None:
        self.stage, self.encoder, self.experiment = stage, encoder, experiment
        self.folder = experiment / f"episodes/{stage.episode}/checkpoint"
        self.inputs = {**stage.inputs, "start": encoder.digest()}
        self.unseen = None if stage.watch is None else stage.watch.begin(encoder, self.inputs)
        self.made_by = self.models_until(None if stage.watch is None else stage.watch.end)
        self.stop = max(int(inputs["step"]) for inputs in self.made_by.values())
        self.missing = by_leader(lambda: [name for name in self.made_by if not self.is_made(name)])
        self.log = StepLog(experiment, stage)

    def models_until(self, end: int | None) -> dict[str, dict[str, str]]:
        """What models are kept where the stage ends after ``end``, each with what it is made from."""
        models = self.stage.models_until(end)
        return {name: {**self.inputs, "step": str(step)} for name, step in models.items()}

    def is_made(self, name: str) -> bool:
        """Whether a model stands there, whole."""
        return is_current(self.experiment / name, "model", self.made_by[name])

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to make or to look at."""
        return bool(self.missing) or self.unseen is not None

    def resume(self) -> int:
        """Put back the newest checkpoint that serves; how many steps were made by then."""
        self.optimizer = self.stage.optimizer(self.encoder)
        # A later checkpoint is of no use: it would miss the first model, or the first state to look at.
        first = [int(self.made_by[name]["step"]) for name in self.missing]
        first += [] if self.unseen is None else [self.unseen]
        found = by_leader(latest_checkpoint, self.folder, self.inputs, at_most=min(first))
        done = restore(found, self.encoder, self.optimizer) if found else 0
        known = read_manifest(found).facts.get("metrics") if found else None
        self.experiment.metrics.truncate(self.stage.episode, done, sha256=known)
        return done

    def take(self, step: Step, made: int) -> None:
        """Note a step that was made, and keep what is due after it."""
        self.log.add(step)
        if made % self.stage.checkpoint_every == 0 or made == self.stop or self.stage.is_border(made):
            self.checkpoint(made)
        self.keep(made)

    def keep(self, made: int) -> None:
        """Publish the models that are due after so many steps."""
        for name in (name for name in self.missing if self.made_by[name]["step"] == str(made)):
            self.log.settle()
            by_leader(save_encoder, self.encoder, self.experiment / name, inputs=self.made_by[name], replace=True)

    def checkpoint(self, made: int) -> None:
        """Publish the state of training."""
        self.log.settle()
        by_leader(self._publish, made)

    def _publish(self, made: int) -> None:
        facts = {"metrics": self.experiment.metrics.digest()}
        save_checkpoint(
            self.folder, made, self.encoder, self.optimizer, settings={}, inputs=self.inputs, facts=facts
        )

    def ends(self, made: int) -> bool:
        """Let the watch look, if that is due; whether it ends the stage before the last step of its schedule."""
        watch = self.stage.watch
        if watch is None or not watch.is_due(made):
            return False
        self.log.settle()
        watch.look(self.encoder, made)
        if watch.end != made:
            return False
        if made != self.stop:  # nobody knew before
            self.made_by = self.models_until(made)
            self.missing = list(self.made_by)
            self.checkpoint(made)
            self.keep(made)
        return True


def steps_made(model: Path) -> int:
    """After how many steps of its stage a model was made."""
    return int(read_manifest(model).inputs["step"])


class StepLog:
    """Collects steps and writes them to ``metrics.jsonl`` a few at a time, so that no step waits."""

    def __init__(self, experiment: Experiment, stage: Stage) -> None:
        self.experiment, self.stage = experiment, stage
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Take one step in."""
        self.steps.append(step)
        if len(self.steps) >= READ_EVERY:
            self.settle()

    def settle(self) -> None:
        """Write what is there, if it is finite: a model or checkpoint never stands without its metrics."""
        if self.steps:
            self.steps[-1].confirm()
        self.experiment.metrics.append([self.row(step) for step in self.steps])
        self.steps.clear()

    def row(self, step: Step) -> dict[str, Any]:
        """One line of the metrics."""
        return {
            "step": step.index + 1,
            "episode": self.stage.episode,
            "loss": float(step.loss),
            "lr": step.learning_rate,
            "grad_norm": float(step.grad_norm),
            "negative_version": self.stage.episode,
            "queries": step.queries,
            **{name: float(value) for name, value in step.facts.items()},
            **self.stage.facts(step.index),
        }


@contextlib.contextmanager
def naming_queries(collection: Collection) -> Iterator[None]:
    """Put the queries' ids in place of their rows in the fault of a step that is not finite."""
    try:
        yield
    except NotFinite as fault:
        names = ", ".join(collection.query_ids[row] for row in fault.query_rows[:8])
        raise NumericError(
            "NOT_FINITE",
            f"loss or gradient of step {fault.step + 1} is not finite (queries {names})",
            "lower the learning rate or look at these queries' texts; the last checkpoint is sound",
        ) from fault


def per_episode(values: Sequence[int], episode: int) -> int:
    """The value of an episode (from 1) in a list whose last value repeats."""
    return values[min(episode, len(values)) - 1]

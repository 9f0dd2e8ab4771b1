"""One stage of training inside an experiment: resumable steps, metrics, checkpoints, models at given steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardneg import draws
from hardneg.data.collection import Collection
from hardneg.diagnostics.gradients import layer_norms, layers_of
from hardneg.errors import Interrupted, NumericError
from hardneg.experiment.folder import Experiment
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.saving import save_encoder
from hardneg.process.distributed import by_consensus, by_leader
from hardneg.process.progress import track
from hardneg.storage.artifacts import is_current, read_manifest
from hardneg.training.batches import PROBE_EVERY
from hardneg.training.checkpoint import latest_checkpoint, restore, save_checkpoint
from hardneg.training.loop import Batch, NotFinite, Objective, Step, train_steps
from hardneg.training.optim import Optimizers, Schedule, adamw

READ_EVERY = 10  # steps between two looks at the device


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


def train_stage(stage: Stage, encoder: BiEncoder, collection: Collection, experiment: Experiment) -> None:
    """Make all steps of a stage; see :func:`stage_steps`."""
    for _ in stage_steps(stage, encoder, collection, experiment):
        pass


def stage_steps(stage: Stage, encoder: BiEncoder, collection: Collection, experiment: Experiment) -> Iterator[int]:
    """Make the steps of a stage, if one of its models is missing, from its newest checkpoint if there is one.

    Yields how many steps are made: first those of the checkpoint, then after each step. Between two of them a
    recipe does what it likes with the encoder's weights as they are, but must leave them so.

    Raises
    ------
    NumericError : a loss or gradient was not finite; names the step and the queries.
    Interrupted : asked to stop; a checkpoint was published first.
    """
    inputs = {**stage.inputs, "start": encoder.digest()}
    made_by = {name: {**inputs, "step": str(step)} for name, step in stage.models.items()}
    missing = by_leader(
        lambda: {n: s for n, s in stage.models.items() if not is_current(experiment / n, "model", made_by[n])}
    )
    if not missing:
        return
    folder, stop = experiment / f"episodes/{stage.episode}/checkpoint", max(stage.models.values())
    optimizer = stage.optimizer(encoder)
    # A later checkpoint is of no use: it would miss the first model.
    found = by_leader(latest_checkpoint, folder, inputs, at_most=min(missing.values()))
    done = restore(found, encoder, optimizer) if found else 0
    known = read_manifest(found).facts.get("metrics") if found else None
    experiment.metrics.truncate(stage.episode, done, sha256=known)
    log = StepLog(experiment, stage)

    def keep(made: int) -> None:
        for name in (name for name, step in missing.items() if step == made):
            log.settle()
            by_leader(save_encoder, encoder, experiment / name, inputs=made_by[name], replace=True)

    def publish(made: int) -> None:
        facts = {"metrics": experiment.metrics.digest()}
        save_checkpoint(folder, made, encoder, optimizer, settings={}, inputs=inputs, facts=facts)

    def checkpoint(made: int) -> None:
        log.settle()
        by_leader(publish, made)

    layers = layers_of(encoder)
    steps = train_steps(
        encoder,
        stage.objective,
        stage.batches,
        optimizer,
        stage.schedule,
        start=done,
        stop=stop,
        seed=draws.key(stage.seed, "train", stage.episode),
        clip=stage.clip,
        check_every=READ_EVERY,
        probe=lambda index: layer_norms(layers) if index % PROBE_EVERY == 0 else {},
    )
    with (
        experiment.timed("train", episode=stage.episode, first_step=done) as facts,
        track(f"training, episode {stage.episode}", "steps") as tick,
        naming_queries(collection),
    ):
        keep(done)
        made, left = done, time.perf_counter()
        try:
            yield done
            facts["elsewhere"] = time.perf_counter() - left
            for made, step in enumerate(steps, done + 1):
                log.add(step)
                if made % stage.checkpoint_every == 0 or made == stop or stage.is_border(made):
                    checkpoint(made)
                keep(made)
                facts["steps"] = made - done
                with by_consensus():
                    tick(made, stop)
                left = time.perf_counter()
                yield made
                facts["elsewhere"] += time.perf_counter() - left
        except Interrupted:
            checkpoint(made)
            raise


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

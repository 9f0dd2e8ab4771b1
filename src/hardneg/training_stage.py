"""One stage of training inside an experiment: resumable steps, metrics, checkpoints, models at given steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardneg.data.collection import Collection
from hardneg.distributed import stop_flag
from hardneg.errors import NumericError
from hardneg.experiment import Experiment
from hardneg.models.bi_encoder import BiEncoder
from hardneg.progress import track
from hardneg.training.checkpoint import latest_checkpoint, restore, save_checkpoint
from hardneg.training.loop import Batch, NotFinite, Objective, Step, train_steps
from hardneg.training.optim import Schedule, adamw

READ_EVERY = 10  # steps between two looks at the device


@dataclass(frozen=True)
class Stage:
    """What one stage of training is, apart from where it runs."""

    episode: int
    seed: int
    stop: int  # steps made in this stage
    schedule: Schedule
    objective: Objective
    batches: Callable[[int], Batch]
    inputs: Mapping[str, str]  # digests: of the pool and of the model it starts from
    clip: float = 1.0
    weight_decay: float = 0.0
    checkpoint_every: int = 500
    save_at: int | None = None  # also keep the model as it is after this many steps


def train_stage(
    stage: Stage,
    encoder: BiEncoder,
    collection: Collection,
    experiment: Experiment,
    *,
    save: Callable[[int], None],
) -> None:
    """Make the steps of a stage, from its newest checkpoint if there is one; ``save(step)`` keeps the model.

    Raises
    ------
    NumericError : a loss or gradient was not finite; names the step and the queries.
    Interrupted : asked to stop; a checkpoint was published first.
    """
    folder = experiment / f"episodes/{stage.episode}/checkpoint"
    optimizer = adamw(encoder, weight_decay=stage.weight_decay)
    found = latest_checkpoint(folder, stage.inputs)
    done = restore(found[0], encoder, optimizer) if found else 0
    experiment.metrics.truncate(stage.episode, done)
    log = StepLog(experiment, stage.episode)

    def checkpoint(step: Step) -> None:
        step.confirm()
        log.flush()
        save_checkpoint(folder, step.index + 1, encoder, optimizer, settings={}, inputs=stage.inputs)

    steps = train_steps(
        encoder,
        stage.objective,
        stage.batches,
        optimizer,
        stage.schedule,
        start=done,
        stop=stage.stop,
        seed=stage.seed,
        clip=stage.clip,
        check_every=READ_EVERY,
    )
    with (
        experiment.timed("train", episode=stage.episode, first_step=done) as facts,
        track(f"training, episode {stage.episode}", "steps") as tick,
    ):
        try:
            for step in steps:
                log.add(step)
                made = step.index + 1
                if made in (stage.save_at, stage.stop):
                    step.confirm()
                    save(made)
                if made % stage.checkpoint_every == 0 or made == stage.stop or stop_flag:
                    checkpoint(step)
                facts["steps"] = made - done
                tick(made, stage.stop)
        except NotFinite as fault:
            raise name_queries(fault, collection) from fault


class StepLog:
    """Collects steps and writes them to ``metrics.jsonl`` a few at a time, so that no step waits."""

    def __init__(self, experiment: Experiment, episode: int) -> None:
        self.experiment, self.episode = experiment, episode
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Take one step in."""
        self.steps.append(step)
        if len(self.steps) >= READ_EVERY:
            step.confirm()
            self.flush()

    def flush(self) -> None:
        """Write what is there."""
        self.experiment.metrics.append([self.row(step) for step in self.steps])
        self.steps.clear()

    def row(self, step: Step) -> dict[str, Any]:
        """One line of the metrics."""
        return {
            "step": step.index + 1,
            "episode": self.episode,
            "loss": float(step.loss),
            "lr": step.learning_rate,
            "grad_norm": float(step.grad_norm),
            "negative_version": self.episode,
            "queries": step.queries,
            **step.facts,
        }


def name_queries(fault: NotFinite, collection: Collection) -> NumericError:
    """The same fault with the queries' ids in place of their rows."""
    names = ", ".join(collection.query_ids[row] for row in fault.query_rows[:8])
    return NumericError(
        "NOT_FINITE",
        f"loss or gradient of step {fault.step + 1} is not finite (queries {names})",
        "lower the learning rate or look at these queries' texts; the last checkpoint is sound",
    )


def steps_per_epoch(queries: int, per_step: int) -> int:
    """Steps in which every query is seen once; the last may be smaller."""
    return math.ceil(queries / per_step)


def per_episode(values: Sequence[int], episode: int) -> int:
    """The value of an episode (from 1) in a list whose last value repeats."""
    return values[min(episode, len(values)) - 1]

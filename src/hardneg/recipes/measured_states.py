"""States that training passes: measured on dev between two steps, which tells when to stop and what to keep.

Of every measured state ``states/<episode>-<step>`` keeps the run of the dev queries and a record, which is
published last: only what has one was measured. Where the best state is to be kept, the weights of the best one so
far stand there too, before its record does; those of all others are deleted. All of it is a function of the
weights alone: a resumed run finds it, decides the same, and ends in the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.judge import evaluation_depth
from hardneg.diagnostics.search_state import search_judged
from hardneg.errors import Interrupted
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.measures import Measure, parse_measures
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import run_of
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process.distributed import by_leader
from hardneg.recipes.settings import Episode, TrainingSettings
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Run
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published, publish, read_manifest, remove
from hardneg.training.loop import Batch, Objective
from hardneg.training.stage import Save, Trainee, inputs_of

log = logging.getLogger(__name__)

KIND = "measured"
Place = tuple[int, int]  # (episode, step of it)


def runs_path(experiment: Experiment, episode: int, step: int) -> Path:
    """Where its runs are kept."""
    return experiment.layout.state(step, episode).runs


def weights_path(experiment: Experiment, episode: int, step: int) -> Path:
    """Where its weights stand, if it may be the best."""
    return experiment.layout.state(step, episode).model


def dev_value(run: Run, data: TrainingData, measure: Measure, cache: Path) -> float:
    """How a run of the dev queries does."""
    assert data.dev is not None
    collection = data.collection
    options = {"collection": collection, "cache": cache, "id_rank": collection.passage_ids.id_rank}
    return evaluate_with_answers(run, data.dev, [measure], **options).means[str(measure)]  # type: ignore[arg-type]


class DevEvaluator:
    """Looks at the states that a stage of training passes; :class:`MeasuredStage` asks it to.

    Parameters
    ----------
    episode : what the stage makes.
    start : folder of the runs of the state that the stage begins with: what patience compares with at first.
        None: those of the episode.
    besides : steps that are looked at for their weights alone; patience does not count them.
    runs : (experiment, episode, step) -> where the runs of a state are kept.
    weights : whether weights are kept here; if not, the recipe does so.
    through : a state -> the same as an index retrieves it, where that is what counts.
    lasting : step -> whether the embeddings of its state serve further.
    made : (model, name, folder of its runs, step=) -> a state of the model; None: of a retriever.
    save : publishes the weights of a state.
    """

    def __init__(
        self,
        training: TrainingRun,
        episode: Episode,
        *,
        start: Path | None = None,
        besides: Iterable[int] = (),
        runs: Callable[[Experiment, int, int], Path] = runs_path,
        weights: bool = True,
        with_index: Callable[[Snapshot], Snapshot] = lambda state: state,
        lasting: Callable[[int], bool] = lambda step: False,
        made: Callable[..., Any] | None = None,
        save: Save = save_encoder,
    ) -> None:
        self.made, self.save = made or training.state, save
        settings, experiment = training.settings, training.experiment
        self.training, self.data, self.episode = training, training.data, episode.episode
        self.settings: TrainingSettings = settings
        self.experiment: Experiment = experiment
        self.measured = settings.measured_steps(episode)
        self.steps = sorted({*self.measured, *(step for step in besides if 0 < step < episode.steps)})
        self.start = start or experiment.layout.episode(self.episode).runs
        self.runs, self.with_index, self.lasting = runs, with_index, lasting
        self.keeps_weights = weights and settings.keep == "best"
        self.values: dict[Place, float] = {}
        self.origin = 0.0  # what the state that the stage begins with measures
        self.inputs: Mapping[str, str] = {}

    def begin(self, encoder: BiEncoder, inputs: Mapping[str, str]) -> int | None:
        """Find what was measured before; the first step that was not, before an early end."""
        self.inputs = inputs
        self.values = by_leader(self._found)
        if self.settings.patience:
            self.origin = self._value(self._state(encoder, 0, self.start))
        known = [step for step in self.steps if self.stop_step is None or step <= self.stop_step]
        return next((step for step in known if (self.episode, step) not in self.values), None)

    @property
    def stop_step(self) -> int | None:
        """The step at which ``patience`` measurements in a row were no better than the best before them."""
        best, since = self.origin, 0
        for step in self.measured:
            if self.settings.patience is None or (self.episode, step) not in self.values:
                return None
            value = self.values[self.episode, step]
            best, since = max(best, value), 0 if value > best else since + 1
            if since == self.settings.patience:
                return step
        return None

    def is_due(self, made: int) -> bool:
        """Whether the state after so many steps is to be measured."""
        return made in self.steps

    def evaluate(self, encoder: BiEncoder, made: int) -> None:
        """Measure the state after so many steps, unless that was done; keep its weights while it is the best."""
        place = self.episode, made
        if place in self.values:
            return
        state = self._state(encoder, made, self.runs(self.experiment, *place))
        value = self._value(state)
        if self.keeps_weights and value > max(self.values.values(), default=float("-inf")):
            inputs = self._inputs_of(made)
            by_leader(self.save, encoder, weights_path(self.experiment, *place), inputs=inputs, replace=True)
        by_leader(self._record, state, made)
        self.values[place] = value
        if not self.lasting(made) and self.stop_step != made:  # after an early end the same state is searched
            state.discard("passage")
        if self.keeps_weights:
            by_leader(self._forget_weights)
        log.info("%s: dev %s %.4f", state.name, self.settings.steering, value)

    def _state(self, encoder: BiEncoder, step: int, runs: Path) -> Snapshot:
        name = self.settings.name_of_step(self.episode, step)
        state: Snapshot = self.made(encoder, name, runs, step=step)
        state.asked = "dev"
        return self.with_index(state)

    def _value(self, state: Snapshot) -> float:
        depth = evaluation_depth(parse_measures(self.settings.measures))
        assert self.data.dev is not None
        found = search_judged(state, {"dev": self.data.dev}, depth)
        return by_leader(dev_value, found["dev"], self.data, self.settings.steering, self.experiment.cache)

    def _inputs_of(self, step: int) -> dict[str, str]:
        return {**self.inputs, "step": str(step)}

    def _record(self, state: Snapshot, step: int) -> None:
        layout = self.experiment.layout
        with publish(
            layout.state(step, self.episode).record, KIND, inputs=self._inputs_of(step), replace=True
        ) as draft:
            runs = layout.relative(state.folder)
            draft.facts |= {"model": state.digest, "name": state.name, "runs": runs}

    def _found(self) -> dict[Place, float]:
        """What was measured in all stages; of this one, what came from something else or is not due is deleted."""
        found = {}
        for place in self.experiment.layout.measured_states():
            state = self.experiment.layout.state(place[1], place[0])
            ours = place[0] == self.episode
            if ours and (place[1] not in self.steps or not self._is_current(place[1])):
                remove(state.path)
                continue
            if is_published(state.record):
                run = load_run(run_of(self.experiment / read_manifest(state.record).facts["runs"], "dev"))
                found[place] = dev_value(run, self.data, self.settings.steering, self.experiment.cache)
        return found

    def _is_current(self, step: int) -> bool:
        path = self.experiment.layout.state(step, self.episode).record
        return not is_published(path) or dict(read_manifest(path).inputs) == self._inputs_of(step)

    def _forget_weights(self) -> None:
        """Delete the weights of all states but the best one of all stages; of equals the earlier is the best."""
        best = max(sorted(self.values), key=lambda place: self.values[place], default=None)
        for place in self.experiment.layout.measured_states():
            if place != best and place in self.values:
                remove(weights_path(self.experiment, *place))


class MeasuredStage:
    """A stage that trains the retriever alone, measured on the way, and ended early where patience ends.

    Parameters
    ----------
    dev : what measures; None: nothing is measured.
    episode, inputs : see :class:`~hardneg.training.stage.Stage`.

    Attributes
    ----------
    model : where the model stands that training makes: the last one of the trainee's.
    over : there is nothing to train any more: all was made before, or patience has ended.
    """

    def __init__(
        self,
        training: TrainingRun,
        trainee: Trainee,
        dev: DevEvaluator | None,
        *,
        episode: int,
        inputs: Mapping[str, str],
    ) -> None:
        self.name, self.dev, before = trainee.name, dev, []
        self.encoder: BiEncoder = trainee.model  # type: ignore[assignment]  # it is a retriever
        if dev is not None:
            unseen = dev.begin(self.encoder, inputs_of([trainee], inputs))
            before = [] if unseen is None else [{trainee.name: unseen}]
            trainee = trainee.until(dev.stop_step)
        self.stage = training.stage([trainee], episode=episode, inputs=inputs, before=before)
        self.last = max(trainee.kept.values())
        self.model = [*trainee.models][-1]
        self.finished = self.stage.finished

    @property
    def made(self) -> int:
        """Steps that are made; those that nothing asks for any more are not counted."""
        return self.stage.made[self.name]

    def advance(self, until: int | None = None) -> None:
        """Make the steps until so many are made, at most all, and measure the states that are due among them."""
        until = self.last if until is None else min(until, self.last)
        while not self.finished:
            self._look()
            if self.finished or self.made >= until:
                return
            due = [] if self.dev is None else [s for s in self.dev.steps if self.made < s < until]
            turn = min([*due, until])
            self.stage.advance(self.name, turn, checkpoint=turn == until)

    def train(self) -> BiEncoder:
        """Make all steps that are left; the model that training makes, read from where it stands."""
        self.advance()
        return load_encoder(str(self.model), device=self.encoder.device)

    def _look(self) -> None:
        """Measure the state as it is, if that is due, and end training if it says so."""
        if self.dev is None or not self.dev.is_due(self.made):
            return
        try:
            self.dev.evaluate(self.encoder, self.made)
        except Interrupted:
            self.stage.save()
            raise
        if self.dev.stop_step == self.made:
            self.stage.end(self.name)
            self.finished = True


def stage_on_pool(
    training: TrainingRun,
    episode: Episode,
    encoder: BiEncoder,
    *,
    objective: Objective,
    batches: Callable[[int], Batch],
    models: Mapping[Path, int],
    began: Path | None = None,
) -> MeasuredStage:
    """The stage that trains a model on the negatives of an episode, measured on the way.

    Parameters
    ----------
    models : where the model is kept, and after how many steps.
    began : folder of the runs of ``encoder``, if they are not those of the episode.
    """
    schedule, number = training.settings.schedule_over(episode.scheduled), episode.episode
    retriever = training.trainee(encoder, objective, batches, schedule, models)
    inputs = {"pool": read_manifest(training.experiment.layout.episode(number).negatives).digest}
    dev = DevEvaluator(training, episode, start=began)
    return MeasuredStage(training, retriever, dev, episode=number, inputs=inputs)

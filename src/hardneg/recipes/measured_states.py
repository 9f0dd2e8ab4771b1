"""States that are measured on dev between two training steps, to stop training early and to keep the best state.

The folder ``states/<episode>-<step>`` of a measured state has the run of the dev queries, and a record. The record
is published last: a state without a record was not measured. If the best state is to be kept, its folder also has
its weights, which are published before the record; the weights of all other states are deleted. The measurements
depend on the weights alone. So a resumed run finds them, takes the same decisions, and ends in the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hardneg.data.training_data import TrainingData
from hardneg.diagnostics.judge import Judge
from hardneg.diagnostics.search_state import search_judged
from hardneg.errors import Interrupted
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment.folder import Experiment
from hardneg.experiment.layout import run_of
from hardneg.experiment.snapshot import Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.saving import save_encoder
from hardneg.process import stages
from hardneg.process.distributed import by_leader, member
from hardneg.process.progress import say
from hardneg.recipes.settings import Episode, TrainingSettings
from hardneg.recipes.training_run import TrainingRun
from hardneg.records import Run
from hardneg.search.runs import load_run
from hardneg.storage.artifacts import is_published, publish, read_manifest, remove
from hardneg.training.stage import Save, Trainee, inputs_of, kind_of

KIND = "measured"
Place = tuple[int, int]  # (episode, step of it)


def runs_path(experiment: Experiment, episode: int, step: int) -> Path:
    """The folder of the runs of the state after a step."""
    return experiment.layout.state(step, episode).runs


def weights_path(experiment: Experiment, episode: int, step: int) -> Path:
    """The folder of the weights of the state after a step; it exists while the state may be the best."""
    return experiment.layout.state(step, episode).model


def judge_of(settings: TrainingSettings, data: TrainingData, cache: Path) -> Judge:
    """The judge that measures the states of an experiment as its settings say."""
    return Judge(data, parse_measures(settings.measures), cache, settings.dev_passages)


def measure_on_dev(state: Snapshot, judge: Judge) -> dict[str, float]:
    """Search a state for the dev queries; returns each measure on dev. All processes call it together."""
    assert judge.data.dev is not None
    found = search_judged(state, {"dev": judge.data.dev}, judge)
    return by_leader(means_of, judge, found["dev"])


def means_of(judge: Judge, run: Run) -> dict[str, float]:
    """Each measure on dev of a run of the dev queries."""
    return dict(judge.evaluate({"dev": run})["dev"].means)


class DevEvaluator:
    """Measures states on dev between two steps, and says when training stops; :class:`MeasuredStage` uses it.

    Parameters
    ----------
    episode : the training that the stage does.
    start : folder of the runs of the state that the stage begins with, which is the first value that patience
        compares with. None: the runs in the folder of the episode.
    besides : further steps to measure, only to find the best weights; patience does not count them.
    runs : (experiment, episode, step) -> where the runs of a state are kept.
    weights : whether the evaluator keeps the weights of the best state; if not, the recipe does.
    with_index : state -> the state to measure: the same state, or as an index retrieves it.
    lasting : step -> whether the embeddings of all passages are needed after the state is measured.
    made : (model, name, folder of its runs, step=) -> a state of the model; None: makes a state of a retriever.
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
        save: Save | None = None,
    ) -> None:
        self.made, self.save = made or training.state, save or save_encoder
        settings, experiment = training.settings, training.experiment
        self.training, self.data, self.episode = training, training.data, episode.episode
        self.training_steps = episode.steps
        self.settings: TrainingSettings = settings
        self.experiment: Experiment = experiment
        self.judge = judge_of(settings, training.data, experiment.cache)
        self.measured = settings.measured_steps(episode)
        self.steps = sorted({*self.measured, *(step for step in besides if 0 < step < episode.steps)})
        self.start = start or experiment.layout.episode(self.episode).runs
        self.runs, self.with_index, self.lasting = runs, with_index, lasting
        self.keeps_weights = weights and settings.keep == "best"
        self.values: dict[Place, float] = {}
        self.origin = 0.0  # the value of the state that the stage begins with
        self.inputs: Mapping[str, str] = {}

    def begin(self, encoder: BiEncoder, inputs: Mapping[str, str]) -> int | None:
        """Find the states that were measured before; returns the first due step that was not measured, or None."""
        self.inputs = inputs
        self._tell_what_has_no_effect()
        self.values = by_leader(self._found)
        if self.settings.patience:
            self.origin = self._means(self._state(encoder, 0, self.start))[str(self.settings.steering)]
        for place in sorted(place for place in self.values if place[0] == self.episode):
            self._tell_again(place)
        known = [step for step in self.steps if self.stop_step is None or step <= self.stop_step]
        return next((step for step in known if (self.episode, step) not in self.values), None)

    def _tell_what_has_no_effect(self) -> None:
        """Say if training is too short for the interval or the patience that somebody gave."""
        settings, steps = self.settings, self.training_steps
        count = len(self.measured)
        if settings.is_given("measure_every") and not count:
            say(f"measure_every = {settings.measure_every}: dev is not measured during these {steps} steps")
        elif settings.is_given("patience") and settings.patience is not None and settings.patience > count:
            told = f"dev is measured {'once' if count == 1 else f'{count} times'} during these {steps} steps"
            say(f"patience = {settings.patience}: {told}, so all are made")

    @property
    def stop_step(self) -> int | None:
        """The step at which patience ended, or None: ``patience`` values in a row did not beat the best before."""
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

    def is_known(self, made: int) -> bool:
        """Whether the state after so many steps was measured before."""
        return (self.episode, made) in self.values

    def evaluate(self, encoder: BiEncoder, made: int) -> None:
        """Measure the state after ``made`` steps, unless it was measured; keep the weights of the best so far."""
        place = self.episode, made
        if self.is_known(made):
            return
        state = self._state(encoder, made, self.runs(self.experiment, *place))
        means = self._means(state)
        value = means[str(self.settings.steering)]
        if self.keeps_weights and best_of({**self.values, place: value}) == place:
            inputs = self._inputs_of(made)
            by_leader(self.save, encoder, weights_path(self.experiment, *place), inputs=inputs, replace=True)
        by_leader(self._record, state, made)
        self.values[place] = value
        if not self.lasting(made) and self.stop_step != made:  # after an early end this is the final state
            state.discard("passage")
        if self.keeps_weights:
            by_leader(self._forget_weights)
        say(f"{state.name}: dev {self.settings.steering} {value:.4f}")
        self.experiment.noted.add(state.name)
        self.experiment.observers.tell_state(state.name, lambda: self._told(made, means))

    def _state(self, encoder: BiEncoder, step: int, runs: Path) -> Snapshot:
        name = self.settings.name_of_step(self.episode, step)
        state: Snapshot = self.made(encoder, name, runs, step=step)
        state.asked, state.mines = "dev", self.lasting(step)
        return self.with_index(state)

    def _means(self, state: Snapshot) -> dict[str, float]:
        return measure_on_dev(state, self.judge)

    def _means_of(self, run: Run) -> dict[str, float]:
        return means_of(self.judge, run)

    def _tell_again(self, place: Place) -> None:
        """Tell the functions of the user of a state that was measured before training was resumed."""

        def told() -> dict[str, Any]:
            record = self.experiment.layout.state(place[1], place[0]).record
            run = load_run(run_of(self.experiment / read_manifest(record).facts["runs"], "dev"))
            return self._told(place[1], self._means_of(run))

        name = self.settings.name_of_step(self.episode, place[1])
        self.experiment.observers.tell_state(name, told)

    def _told(self, step: int, means: Mapping[str, float]) -> dict[str, Any]:
        """The facts of a state that the functions of the user get."""
        weights = weights_path(self.experiment, self.episode, step)
        place = weights if is_published(weights) else None
        where = {"kind": "passing", "episode": self.episode, "step": step, "path": place}
        return {**where, "measures": {"dev": dict(means)}}

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
        """The values of measured states of all stages.

        States of this stage that are not due, or were measured with other inputs, are deleted. So is the best one
        if its weights are gone, so that it is measured again and its weights are kept; but not where a later
        episode has begun, because then this one is not trained again.
        """
        found = {}
        for place in self.experiment.layout.measured_states():
            state = self.experiment.layout.state(place[1], place[0])
            ours = place[0] == self.episode
            if ours and (place[1] not in self.steps or not self._is_current(place[1])):
                remove(state.path)
                continue
            if is_published(state.record):
                run = load_run(run_of(self.experiment / read_manifest(state.record).facts["runs"], "dev"))
                found[place] = self._means_of(run)[str(self.settings.steering)]
        best, later = best_of(found), self.experiment.layout.episode(self.episode + 1).checkpoints.is_dir()
        if self.keeps_weights and best and best[0] == self.episode and not later:
            state = self.experiment.layout.state(best[1], best[0])
            if not is_published(state.model):
                remove(state.path)
                del found[best]
        if self.keeps_weights:
            forget_weights(self.experiment, found)  # a killed process may have left those of a former best state
        return found

    def _is_current(self, step: int) -> bool:
        path = self.experiment.layout.state(step, self.episode).record
        return not is_published(path) or dict(read_manifest(path).inputs) == self._inputs_of(step)

    def _forget_weights(self) -> None:
        """Delete the weights of all states but the best one of all stages."""
        forget_weights(self.experiment, self.values)


def forget_weights(experiment: Experiment, values: Mapping[Place, float]) -> None:
    """Delete the weights of all states but the best one; of equal ones the earliest is best."""
    best = best_of(values)
    for place in experiment.layout.measured_states():
        if place != best and place in values:
            remove(weights_path(experiment, *place))


def best_of(values: Mapping[Place, float]) -> Place | None:
    """The state of the highest value, of equal ones the earliest; None if there is no state."""
    return max(sorted(values), key=lambda place: values[place], default=None)


class MeasuredStage:
    """A stage that trains one model, measures states between its steps, and ends early when patience ends.

    Parameters
    ----------
    dev : measures states between steps; None: no state is measured.
    episode, inputs : see :class:`~hardneg.training.stage.Stage`.

    Attributes
    ----------
    model : folder of the trained model, which is the last one of the trainee.
    finished : whether training is over, because all steps are made or patience has ended.
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
        self.encoder: BiEncoder = trainee.model  # type: ignore[assignment]  # a bi-encoder, or a ranker
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
        """The number of steps that are made; steps after the end of patience are not counted."""
        return self.stage.made[self.name]

    def advance(self, until: int | None = None) -> None:
        """Train until ``until`` steps are made (None: all), and measure the states that are due up to then."""
        stages.begin(kind_of(self.name))
        until = self.last if until is None else min(until, self.last)
        while not self.finished:
            self._evaluate()
            if self.finished or self.made >= until:
                return
            due = [] if self.dev is None else [s for s in self.dev.steps if self.made < s < until]
            turn = min([*due, until])
            self.stage.advance(self.name, turn, checkpoint=turn == until)

    def train(self) -> BiEncoder:
        """Make all steps that are left; returns the trained model, read from its folder."""
        self.advance()
        return load_encoder(str(self.model), device=self.encoder.device)

    def _evaluate(self) -> None:
        """Measure the present state, if that is due, and end training if patience has ended."""
        if self.dev is None or not self.dev.is_due(self.made):
            return
        alone = member()[1] == 1
        if not alone and not self.dev.is_known(self.made):
            self.stage.save()  # a process that is stopped while it measures cannot wait for the others
        try:
            self.dev.evaluate(self.encoder, self.made)
        except Interrupted:
            if alone:
                self.stage.save()
            raise
        if self.dev.stop_step == self.made:
            self.stage.end(self.name)
            self.finished = True

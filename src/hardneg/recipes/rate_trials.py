"""Trials of learning rates: each makes the first steps of training, and the best one on dev goes on.

A trial makes these steps as training with its rate alone would make them: the same batches, the same dropout, the
same schedule. Training goes on from the last checkpoint of the best trial. So the model after the last step is the
same, to the bit, as if this rate had been the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hardneg.errors import ArtifactError, NumericError
from hardneg.experiment.layout import TrialFolder
from hardneg.experiment.metrics import Metrics
from hardneg.experiment.trials import KIND, Trial, best_of, read_trial, read_trials
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process import stages
from hardneg.process.distributed import by_leader
from hardneg.process.progress import say
from hardneg.recipes.measured_states import judge_of, measure_on_dev
from hardneg.recipes.settings import Episode
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_current, move, publish, publish_file, remove
from hardneg.training.checkpoint import checkpoints, latest_checkpoint, weights
from hardneg.training.optim import Schedule
from hardneg.training.stage import Trainee, inputs_of, kind_of

RESTORE = "restore it, or give a new folder"


def chosen_rate(
    training: TrainingRun,
    episode: Episode,
    trainee: Trainee,
    schedule_of: Callable[[float], Schedule],
    inputs: Mapping[str, str],
) -> float:
    """The learning rate of an episode: the only one, or the best of the trials, which are made if need be.

    Parameters
    ----------
    trainee : the model at its start, with a schedule of any rate.
    schedule_of : learning rate -> the schedule of the episode.
    inputs : the inputs of the episode's stage.
    """
    rates = training.settings.rates
    if len(rates) == 1:
        return rates[0]
    if training.settings.trial_steps(episode):
        RateTrials(training, episode, trainee, schedule_of, inputs).make()
    best = by_leader(lambda: best_of(read_trials(training.experiment.layout)))
    if best is None:
        what = "the trials of its learning rates are gone"
        raise ArtifactError("MISSING_FILE", what, RESTORE, path=training.experiment.path)
    return best.rate


class RateTrials:
    """The trials of an episode's learning rates; see :func:`chosen_rate`."""

    def __init__(
        self,
        training: TrainingRun,
        episode: Episode,
        trainee: Trainee,
        schedule_of: Callable[[float], Schedule],
        inputs: Mapping[str, str],
    ) -> None:
        self.training, self.episode, self.trainee = training, episode, trainee
        self.schedule_of, self.inputs = schedule_of, inputs
        self.layout = training.experiment.layout
        self.steps = training.settings.trial_steps(episode)
        self.made = inputs_of([trainee], inputs) | {"step": str(self.steps)}  # the inputs of each record

    def make(self) -> None:
        """Make the trials that are not made, and let training go on from the best one's last checkpoint.

        Raises
        ------
        NumericError : a loss or gradient of every trial was not finite.
        """
        stages.begin(kind_of(self.trainee.name))
        start = {name: tensor.clone() for name, tensor in weights(self.trainee.model).items()}
        trials, fault = [], None
        for place, rate in enumerate(self.training.settings.rates):
            if by_leader(is_current, self.layout.trial(rate).record, KIND, self.made):
                trials.append(by_leader(read_trial, self.layout.trial(rate)))
                continue
            trial, fault = self._made(place, rate, fault)
            trials.append(trial)
            self.trainee.model.load_state_dict(start)
        best = best_of(trials)
        if best is None:
            raise fault or NumericError("NOT_FINITE", "no trial of a learning rate ended", "give lower ones")
        by_leader(self._go_on_from, best)

    def _made(self, place: int, rate: float, fault: NumericError | None) -> tuple[Trial, NumericError | None]:
        """The trial of a rate, and the last fault of a trial so far."""
        folder, settings = self.layout.trial(rate), self.training.settings
        value: float | None = None
        try:
            self._train(folder, rate)
            value = self._value(folder, rate)
        except NumericError as one:
            fault = one
        trial = Trial(rate, place, self.steps, str(settings.steering), value)
        by_leader(self._record, folder, trial)
        told = "not finite" if value is None else f"dev {settings.steering} {value:.4f}"
        say(f"learning rate {rate:g}, after {self.steps:,} steps: {told}")
        return trial, fault

    def _train(self, folder: TrialFolder, rate: float) -> None:
        """Make the steps of a trial, from its newest checkpoint on."""
        title = f"model at {rate:g}"
        trainee = replace(self.trainee, schedule=self.schedule_of(rate), models={}, intermediate={}, title=title)
        with self.training.margins.elsewhere(folder.margins):
            stage = self.training.stage(
                [trainee],
                episode=self.episode.episode,
                inputs=self.inputs,
                before=[{trainee.name: self.steps}],
                folder=folder.checkpoints,
                rows=Metrics(folder.metrics),
            )
            stage.advance(trainee.name, self.steps)

    def _value(self, folder: TrialFolder, rate: float) -> float:
        """What the measure that decides is on dev after these steps."""
        training, settings = self.training, self.training.settings
        name = f"step-{self.steps} at {rate:g}"
        encoder: BiEncoder = self.trainee.model  # type: ignore[assignment]  # a recipe tries rates of a retriever
        state = training.state(encoder, name, folder.runs, step=self.steps)
        state.asked = "dev"
        judge = judge_of(settings, training.data, training.experiment.cache)
        value = measure_on_dev(state, judge)[str(settings.steering)]
        state.discard("passage")
        return value

    def _record(self, folder: TrialFolder, trial: Trial) -> None:
        with publish(folder.record, KIND, inputs=self.made, replace=True) as draft:
            draft.facts |= trial.as_json()

    def _go_on_from(self, best: Trial) -> None:
        """Give the episode the checkpoint of the best trial, with its metrics, unless the episode has begun.

        If the process dies here, or the checkpoint is gone, the episode makes these steps again.
        """
        number, experiment = self.episode.episode, self.training.experiment
        place, folder = self.layout.episode(number).checkpoints, self.layout.trial(best.rate)
        found = latest_checkpoint(folder.checkpoints, inputs_of([self.trainee], self.inputs))
        if found is not None and not checkpoints(place):
            experiment.metrics.truncate(number, {})
            experiment.metrics.append(Metrics(folder.metrics).read())
            if folder.margins.is_file():
                with publish_file(self.layout.margins) as stream:
                    stream.write(folder.margins.read_bytes())
            move(found, place / found.name)
        for one in self.layout.trials():
            for passing in (one.checkpoints, one.metrics, one.margins):
                remove(passing)

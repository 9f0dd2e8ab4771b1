"""Trials of learning rates: each makes the first steps of training, and the best one on dev goes on.

A trial makes these steps as training with its rate alone would make them: the same batches, the same dropout, the
same schedule. Training goes on from the last checkpoint of the best trial. So the model after the last step is the
same, to the bit, as if this rate had been the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hardneg.diagnostics.kept import rate_sentence
from hardneg.errors import ArtifactError, NumericError
from hardneg.experiment.layout import TrialFolder
from hardneg.experiment.metrics import Metrics
from hardneg.experiment.trials import KIND, Trial, best_of, rates_told, read_trial, read_trials
from hardneg.models.bi_encoder import BiEncoder
from hardneg.process import stages
from hardneg.process.distributed import by_leader, is_leader, world_size
from hardneg.process.progress import say
from hardneg.recipes.measured_states import judge_of, measure_on_dev
from hardneg.recipes.settings import Episode
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_current, move, publish, publish_file, remove
from hardneg.training.checkpoint import checkpoints, latest_checkpoint, load_weights, weights
from hardneg.training.optim import Schedule
from hardneg.training.stage import Trainee, inputs_of, kind_of

LOST = {"NOT_FINITE"}  # faults of a rate
LOST_ALONE = LOST | {"BAD_VECTOR", "SCORE_OVERFLOW"}  # where one process trains
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
        if by_leader(self._is_trained):
            return  # with further episodes the first one may be shorter, and so would be its trials
        start = {name: tensor.clone() for name, tensor in weights(self.trainee.model).items()}
        trials: list[Trial] = []
        fault: NumericError | None = None
        for place, rate in enumerate(self.training.settings.rates):
            stages.begin(kind_of(self.trainee.name))
            if by_leader(is_current, self.layout.trial(rate).record, KIND, self.made):
                trials.append(by_leader(read_trial, self.layout.trial(rate)))
                continue
            trial, fault = self._made(place, rate, fault)
            trials.append(trial)
            by_leader(self._drop_losers, trials)
            load_weights(self.trainee.model, start)
        if (best := best_of(trials)) is None:
            by_leader(self._drop_all)  # so that the next run says what was wrong, too
            raise fault or NumericError("NOT_FINITE", "no learning rate led to finite weights", "give lower ones")
        if is_leader() and (told := rate_sentence(rates_told(self.layout))):
            say(told)
        self._go_on_from(best)

    def _is_trained(self) -> bool:
        """Whether the models of the episode are there, from whichever trial they came."""
        trainee, inputs = self.trainee, inputs_of([self.trainee], self.inputs)
        made = (
            is_current(path, trainee.kind, {**inputs, "step": str(step)}) for path, step in trainee.kept.items()
        )
        return bool(read_trials(self.layout)) and all(made)

    def _made(self, place: int, rate: float, fault: NumericError | None) -> tuple[Trial, NumericError | None]:
        """The trial of a rate, and the last fault of a trial so far.

        That a loss, a gradient or the weights are not finite, all processes find out together: they share them.
        A vector or a score that is out of range is found by one process alone. So with several processes it ends
        training, as does any fault that is not the rate's.
        """
        folder, settings = self.layout.trial(rate), self.training.settings
        value, told = None, ""
        try:
            self._train(folder, rate)
            self._check_weights()
            value = self._value(folder, rate)
            told = f"dev {settings.steering} {value:.4f}"
        except NumericError as one:
            if one.code not in (LOST if world_size() > 1 else LOST_ALONE):
                raise
            fault = NumericError(
                "NOT_FINITE", one.what, one.fix
            )  # without the traceback, which holds the optimiser
            told = one.what
        trial = Trial(rate, place, self.steps, str(settings.steering), value)
        by_leader(self._record, folder, trial)
        say(f"learning rate {rate:g}, after {self.steps:,} steps: {told}")
        return trial, fault

    def _check_weights(self) -> None:
        if not all(tensor.isfinite().all() for tensor in self.trainee.model.parameters()):
            what = f"the weights after step {self.steps} of the {self.trainee.name} are not finite"
            raise NumericError("NOT_FINITE", what, "lower the learning rate")

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
        state = training.state(encoder, name, folder.runs, step=self.steps, mines=False)
        state.asked = "dev"
        judge = judge_of(settings, training.data, training.experiment.cache)
        value = measure_on_dev(state, judge)[str(settings.steering)]
        state.discard("passage")
        return value

    def _record(self, folder: TrialFolder, trial: Trial) -> None:
        with publish(folder.record, KIND, inputs=self.made, replace=True) as draft:
            draft.facts |= trial.as_json()

    def _drop_all(self) -> None:
        for folder in self.layout.trials():
            remove(folder.path)

    def _drop_losers(self, trials: Sequence[Trial]) -> None:
        """Keep of all trials but the best of these no more than the records."""
        best = best_of(trials)
        for folder in self.layout.trials():
            if best is None or folder.path != self.layout.trial(best.rate).path:
                for passing in (folder.checkpoints, folder.metrics, folder.margins):
                    remove(passing)

    def _go_on_from(self, best: Trial) -> None:
        """Give the episode the checkpoint of the best trial, with its metrics, unless the episode has begun.

        If the process dies here, or the checkpoint is gone, the episode makes these steps again.
        """
        number, experiment = self.episode.episode, self.training.experiment
        place, folder = self.layout.episode(number).checkpoints, self.layout.trial(best.rate)
        found = by_leader(latest_checkpoint, folder.checkpoints, inputs_of([self.trainee], self.inputs))
        if found is not None and not by_leader(checkpoints, place):
            # The functions of the user get the rows, and one may stop training: rank 0 is not alone here.
            experiment.metrics.truncate(number, {})
            experiment.metrics.append(Metrics(folder.metrics).read() if is_leader() else [])
            by_leader(self._move, found, place, folder)
        by_leader(self._drop_losers, [])

    def _move(self, found: Path, place: Path, folder: TrialFolder) -> None:
        if folder.margins.is_file():
            with publish_file(self.layout.margins) as stream:
                stream.write(folder.margins.read_bytes())
        move(found, place / found.name)

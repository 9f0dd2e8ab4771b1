"""Negatives that are refreshed while training goes on: the pool in force at a step."""

from __future__ import annotations

from hardneg.experiment.folder import Experiment
from hardneg.negatives.pool import NegativePool
from hardneg.process.distributed import by_leader
from hardneg.recipes.ance.refreshing import versions_of
from hardneg.recipes.ance.versions import Mode, VersionLog, VersionSelector
from hardneg.recipes.roles.peers import Wait, timed_wait
from hardneg.recipes.training_run import TrainingRun


class RefreshedPool:
    """The pool in force at each step; it remembers the version of a step until the metrics are written.

    Parameters
    ----------
    mode, every, max_staleness, stop_when_stale : see :class:`~hardneg.recipes.ance.versions.VersionSelector`.
    wait : waits for a version.
    """

    def __init__(
        self,
        training: TrainingRun,
        mode: Mode,
        *,
        every: int,
        wait: Wait,
        max_staleness: int | None,
        stop_when_stale: bool,
    ) -> None:
        self.training, experiment = training, training.experiment
        log = VersionLog(experiment.layout.version_log, made=by_leader(lambda: experiment.metrics.steps) - 1)
        by_leader(lambda: log.check(used_by(experiment)))
        self.select = VersionSelector(
            versions_of(experiment),
            log,
            mode,
            every=every,
            wait=timed_wait(experiment, wait),
            max_staleness=max_staleness,
            stop_when_stale=stop_when_stale,
        )
        self.used: dict[int, tuple[int, int]] = {}  # the version of a step, and the step whose model mined it
        self.loaded: tuple[int, int, NegativePool] | None = None

    def __call__(self, step: int) -> NegativePool:
        """The pool in force at ``step``."""
        version, versions = self.select(step), self.select.versions
        if self.loaded is None or self.loaded[0] != version:  # its manifest is read once, too
            self.loaded = version, versions.step(version), self.training.read_pool(versions.path(version))
        self.used[step] = self.loaded[:2]
        return self.loaded[2]

    def first_step(self, step: int) -> int:
        """The step at which the version that ``step`` uses took effect."""
        return self.select.first_step(step)

    def facts(self, step: int) -> dict[str, int]:
        """The version that a step used, and the age in steps of the model that mined it (ANCE, Fig. 5)."""
        version, mined = self.used.pop(step)
        return {"negative_version": version, "async_gap": step - mined}


def used_by(experiment: Experiment) -> list[tuple[int, int]]:
    """The steps (from 0) in the metrics of an experiment, each with the version that it used."""
    rows = experiment.metrics.read()
    return [(row["step"] - 1, row["negative_version"]) for row in rows if "negative_version" in row]

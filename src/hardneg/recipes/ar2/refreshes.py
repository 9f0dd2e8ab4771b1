"""Refreshes of the candidates: where they and their runs stand, the states behind them, and mining them (AR2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hardneg.experiment.names import UNTRAINED
from hardneg.experiment.snapshot import ArchivedState, Snapshot
from hardneg.models.bi_encoder import BiEncoder
from hardneg.negatives.candidates import Contains
from hardneg.negatives.labels import current_positives
from hardneg.negatives.pool import NegativePool
from hardneg.process.distributed import by_leader
from hardneg.recipes.ar2.settings import EPISODE, Ar2
from hardneg.recipes.training_run import TrainingRun
from hardneg.storage.artifacts import is_published
from hardneg.training.stage import RETRIEVER


def runs_of(training: TrainingRun[Ar2], version: int) -> Path:
    """The folder of the runs of the state that mines a refresh."""
    episode = training.experiment.layout.episode(EPISODE)
    return episode.version_runs(version) if version else episode.runs


def candidates_at(training: TrainingRun[Ar2], version: int) -> Path:
    """The folder of the candidates of a refresh."""
    return training.experiment.layout.episode(EPISODE).version(version)


def refresh(training: TrainingRun[Ar2], state: Snapshot, version: int) -> None:
    """Publish the top ``depth`` of a state without D+ as the candidates of a refresh, unless that is done."""
    settings, data = training.settings, training.data

    def mine(contains: Contains | None) -> NegativePool:
        positives = current_positives(state, data, settings.depth, contains)
        return training.mined(state, positives, contains, episode=version)

    path = candidates_at(training, version)
    if by_leader(is_published, path):
        return
    _ = state.passages, state.training_queries  # all processes encode, then one mines
    training.pool(EPISODE, training.inputs | {"miner": state.digest}, mine, path=path, version=version)


# ---------------------------------------------------------------- the states behind them


def state_behind(training: TrainingRun[Ar2], encoder: BiEncoder, version: int) -> Snapshot:
    """The state after an iteration, whose retriever is ``encoder``; 0: G⁰."""
    return training.state(encoder, state_name(version), runs_of(training, version), **facts_of(training, version))


def archived_state(training: TrainingRun[Ar2], version: int) -> ArchivedState:
    """The archived state after an iteration: its runs, and its weights if they are kept."""
    asked, facts = training.settings.examine, facts_of(training, version)
    return ArchivedState(state_name(version), runs_of(training, version), asked=asked, **facts)


def state_name(version: int) -> str:
    """The name of the state after an iteration."""
    return f"iteration-{version}" if version else UNTRAINED


def facts_of(training: TrainingRun[Ar2], version: int) -> dict[str, Any]:
    """The facts of the state after an iteration: its step, its last candidates, and the folder of its weights."""
    settings, step = training.settings, version * training.settings.retriever_steps
    if not version:
        return {"step": step, "kind": "untrained"}
    pool = candidates_at(training, settings.version_of(RETRIEVER, step - 1))
    weights = training.experiment.layout.state(step).model if step in settings.kept_steps else None
    return {"step": step, "kind": "version", "episode": EPISODE, "pool": pool, "weights": weights}

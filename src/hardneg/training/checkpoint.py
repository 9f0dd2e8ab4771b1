"""Checkpoints: the exact training state (weights, optimisers, position) as one published folder.

Dropout and the order of the data are keyed by step, so no state of a random generator is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hardneg.errors import ArtifactError
from hardneg.storage.artifacts import open_artifact, publish, remove
from hardneg.storage.disk import foreign

log = logging.getLogger(__name__)

KIND = "checkpoint"


def save_checkpoint(
    folder: Path,
    made: Mapping[str, int],
    models: Mapping[str, nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    *,
    inputs: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Publish a checkpoint in ``folder``; ``made`` is the number of steps of each model. Returns its path.

    The newest ``keep`` stay, counted from this checkpoint backwards. Checkpoints of later steps are deleted:
    training did not resume from them, but from an earlier step, and has now reached this one. The name of a
    checkpoint's folder has the sum of the steps of all models, which differs between any two checkpoints of a
    stage.
    """
    path = folder / f"step-{sum(made.values()):07d}"
    with publish(path, KIND, settings={}, inputs=inputs, replace=True) as draft:
        for name, model in models.items():
            for part, tensors in (("weights", weights(model)), ("optimizer", optimizer_tensors(optimizers[name]))):
                with foreign(draft / file_of(name, part)) as file:
                    save_file(tensors, file)
        draft.facts |= {**(facts or {}), "made": dict(made)}
    ours = [one for one in checkpoints(folder) if one <= path][-keep:]
    for old in set(checkpoints(folder)) - set(ours):
        remove(old)
    return path


def keep_newest(folder: Path, count: int) -> None:
    """Delete all checkpoints but the newest ``count``."""
    for old in checkpoints(folder)[:-count]:
        remove(old)


def file_of(name: str, part: str) -> str:
    """The name of the file that holds one part of a model's state: ``weights`` or ``optimizer``."""
    return f"{name}.{part}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first."""
    return sorted(folder.glob("step-*"))


def latest_checkpoint(
    folder: Path, inputs: Mapping[str, str], limits: Sequence[Mapping[str, int]] = ()
) -> Path | None:
    """The newest undamaged checkpoint made from these ``inputs``; damaged ones are skipped with a warning.

    Parameters
    ----------
    limits : positions, each a number of steps by model. A checkpoint is not taken if any model has made more steps
        than a position says; models that a position does not name are not compared.
    """
    for path in reversed(checkpoints(folder)):
        try:
            manifest = open_artifact(path, KIND)
        except ArtifactError as fault:
            log.warning("a damaged checkpoint is passed over: %s", fault)
            continue
        made = manifest.facts.get("made", {})
        within = all(made.get(name, 0) <= most for limit in limits for name, most in limit.items())
        if dict(manifest.inputs) == dict(inputs) and made and within:
            return path
    return None


def restore(
    path: Path, models: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]
) -> dict[str, int]:
    """Load a checkpoint into models and optimisers; returns the number of steps made of each model."""
    manifest = open_artifact(path, KIND)
    for name, model in models.items():
        load_weights(model, load_file(path / file_of(name, "weights")))
        load_optimizer(optimizers[name], load_file(path / file_of(name, "optimizer")))
    return {name: int(manifest.facts["made"][name]) for name in models}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model on the CPU; no two of the tensors share memory.

    A tensor that has two names, as the embeddings of T5 have, is there under the first one.
    """
    state, other = model.state_dict(), _other_names(model)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items() if name not in other}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors that :func:`weights` returned into a model."""
    other = {name: tensors[first] for name, first in _other_names(model).items()}
    model.load_state_dict({**tensors, **other}, strict=True)


def _other_names(model: nn.Module) -> dict[str, str]:
    """The further names of tensors that have several, each with the first name of its tensor."""
    first: dict[int, str] = {}
    named = {name: first.setdefault(id(held), name) for name, held in model.state_dict(keep_vars=True).items()}
    return {name: known for name, known in named.items() if name != known}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: ``<parameter number>.<name>``."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, entries in state.items()
        for name, value in entries.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors that :func:`optimizer_tensors` returned into an optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})

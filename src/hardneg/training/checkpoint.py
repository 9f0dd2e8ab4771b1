"""Exact training state, published whole: weights, optimiser, position.

Dropout and data order are keyed by step, so no generator state is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Publish the state after ``step`` steps in ``folder``; of those up to it, only the newest ``keep`` stay.

    Later ones were passed over when this state was reached again, so they go.
    """
    path = folder / f"step-{step:07d}"
    with publish(path, KIND, settings=settings, inputs=inputs, replace=True) as draft:
        for name, tensors in (("weights", weights(model)), ("optimizer", optimizer_tensors(optimizer))):
            with foreign(draft / f"{name}.safetensors") as file:
                save_file(tensors, file)
        draft.facts |= {**(facts or {}), "step": step}
    ours = [one for one in checkpoints(folder) if one <= path][-keep:]
    for old in set(checkpoints(folder)) - set(ours):
        remove(old)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first."""
    return sorted(folder.glob("step-*"))


def latest_checkpoint(folder: Path, inputs: Mapping[str, str], *, at_most: int) -> Path | None:
    """The newest whole checkpoint of ``at_most`` steps from these ``inputs``; damaged ones are skipped, loudly."""
    for path in reversed(checkpoints(folder)):
        try:
            manifest = open_artifact(path, KIND)
        except ArtifactError as fault:
            log.warning("a damaged checkpoint is passed over: %s", fault)
            continue
        if dict(manifest.inputs) == dict(inputs) and manifest.facts["step"] <= at_most:
            return path
    return None


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put a checkpoint's state back; the number of steps that were made."""
    manifest = open_artifact(path, KIND)
    model.load_state_dict(load_file(path / "weights.safetensors"), strict=True)
    load_optimizer(optimizer, load_file(path / "optimizer.safetensors"))
    return int(manifest.facts["step"])


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers on the CPU, each of its own memory."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: ``<parameter number>.<name>``."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, entries in state.items()
        for name, value in entries.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what :func:`optimizer_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})

"""Less memory for a longer step: the states inside a layer are dropped, and computed again in the backward pass.

Only the input of each layer is kept. The last layer keeps everything. The backward pass begins with it, so its
states must be there when memory is at its peak, and computing them twice would save nothing.
Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from hardneg.errors import SettingsError


def recompute_layers(model: nn.Module) -> None:
    """Let the transformers in ``model`` compute their layers again in the backward pass of training.

    Losses and gradients are the same: each layer's dropout is drawn again from the same state of the generator.

    Raises
    ------
    SettingsError : a transformer cannot compute its layers again.
    """
    for layers in map(_layers, transformers_of(model)):
        for layer in layers[:-1]:
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
            layer.gradient_checkpointing = True


def check_recomputing(model: nn.Module) -> None:
    """Refuse a model before training as :func:`recompute_layers` does; nothing is changed in it."""
    for transformer in transformers_of(model):
        _layers(transformer)


def _layers(transformer: Any) -> list[Any]:
    """The layers that can be computed again; raises :class:`SettingsError` where there are none."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [one for one in transformer.modules() if isinstance(one, GradientCheckpointingLayer)]
    if not layers:
        what = f"recompute_layers = true: a model of type {transformer.config.model_type} cannot recompute them"
        raise SettingsError("BAD_SETTING", what, "leave it out; gradient_cache saves memory with every model")
    return layers


def transformers_of(model: nn.Module) -> list[Any]:
    """The transformers of a model's towers, each once."""
    return list({id(tower.transformer): tower.transformer for tower in model.each_tower()}.values())  # type: ignore[operator]

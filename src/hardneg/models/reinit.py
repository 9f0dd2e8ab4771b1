"""New weights for the top layers: the model then starts with its knowledge of language, and less of retrieval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from hardneg import keyed_random
from hardneg.errors import SettingsError

if TYPE_CHECKING:  # importing it takes seconds, and a plan does not need it
    from transformers import PreTrainedModel

ADD_ONE = ("gemma", "gemma2", "gemma3_text")  # types whose norms scale by 1 + weight


def reinitialize(transformer: PreTrainedModel, layers: int, *, seed: int) -> None:
    """Draw the weights of the top ``layers`` layers anew, in place (Zhang et al., "Revisiting Few-sample BERT
    Fine-tuning", ICLR 2021).

    Matrices are normal with the model's own ``initializer_range``, biases 0, and norms scale by 1. A draw depends
    on (seed, layer) alone, so two towers, and two processes, agree.

    Raises
    ------
    SettingsError : the model has fewer layers, or uses one layer again and again.
    """
    stack = layers_of(transformer)
    if layers > len(stack):
        what = f"reinit_layers = {layers}, the model has {len(stack)} layers with weights of their own"
        raise SettingsError("BAD_SETTING", what, "lower it")
    spread = float(getattr(transformer.config, "initializer_range", 0.02))
    scale = 0.0 if transformer.config.model_type in ADD_ONE else 1.0
    for number in range(len(stack) - layers, len(stack)):
        generator = torch.Generator().manual_seed(keyed_random.key(seed, "reinit", number) >> 1)
        for name, weight in stack[number].named_parameters():
            _draw(name, weight, spread, scale, generator)


def layers_of(transformer: PreTrainedModel) -> nn.ModuleList:
    """The layers of a transformer from the bottom up; an empty list where one layer is used again and again."""
    depth = transformer.config.num_hidden_layers
    found = (m for m in transformer.modules() if isinstance(m, nn.ModuleList) and len(m) == depth)
    return next(found, nn.ModuleList())


@torch.no_grad()
def _draw(name: str, weight: nn.Parameter, spread: float, scale: float, generator: torch.Generator) -> None:
    if weight.ndim > 1:  # drawn on the CPU, so that every device has the same
        weight.copy_(torch.empty(weight.shape).normal_(0.0, spread, generator=generator))
    else:
        weight.fill_(0.0 if name.endswith("bias") else scale)

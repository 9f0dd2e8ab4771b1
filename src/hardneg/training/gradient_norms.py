"""Norms of a step's gradient: by thirds of the layers, and by the source of the negatives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hardneg.training.gradient_sums import GradientSums, add_gradients

LAYER = re.compile(r"\.(?:layers?|block|h)\.(\d+)\.")  # "block" in T5, "h" in GPT-like models
THIRDS = ("bottom", "middle", "top")


def layers_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters of every transformer layer, from the bottom; layer i of two towers is one item."""
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if match := LAYER.search(name):
            found[int(match[1])].append(parameter)
    return [found[number] for number in sorted(found)]


def layer_norms(layers: Sequence[Sequence[nn.Parameter]]) -> dict[str, Tensor]:
    """The mean gradient norm of the layers in each third, and the norm of the last layer (ANCE, Fig. 4).

    The result is empty if there are fewer than three layers or there is no gradient.
    """
    norms = [norm([p.grad for p in layer if p.grad is not None]) for layer in layers]
    if len(norms) < len(THIRDS) or any(one is None for one in norms):
        return {}
    values = torch.stack([one for one in norms if one is not None])
    groups = zip(THIRDS, torch.tensor_split(values, len(THIRDS)), strict=True)
    return {f"grad_norm_{name}": group.mean() for name, group in groups} | {"grad_norm_last": values[-1]}


def norm(gradients: Sequence[Tensor]) -> Tensor | None:
    """The norm of several tensors taken as one vector; None if there are no tensors."""
    if not gradients:
        return None
    return torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(list(gradients)))))


def source_norms(
    loss: Tensor, scores: Tensor, parameters: Iterable[nn.Parameter], columns: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The norm, over all parameters, of the gradient that the negatives of each source cause.

    There is one backward pass for each source. It starts from the derivative of the loss with respect to the
    scores, in which all pairs of other sources are set to 0. The gradients that the parameters hold are restored
    afterwards.

    Parameters
    ----------
    loss : the loss of the whole micro-batch.
    scores : [b, p] the scores that ``loss`` was computed from.
    columns : by source, [b, p] bool: the pairs whose passage is a negative from this source.
    """
    (by_score,) = torch.autograd.grad(loss, scores, retain_graph=True)
    trained = [p for p in parameters if p.requires_grad]
    before = [p.grad for p in trained]
    found = {}
    for source, pairs in columns.items():
        for p in trained:
            p.grad = None
        scores.backward(by_score * pairs, retain_graph=True)
        add_gradients(GradientSums(trained))
        if (value := norm([p.grad for p in trained if p.grad is not None])) is not None:
            found[f"grad_norm_{source}"] = value
    for p, gradient in zip(trained, before, strict=True):
        p.grad = gradient
    return found

"""What ``cls`` pooling throws away is not computed: the last layer finishes the first tokens only.

Behind the last layer nothing but the first token of each sequence is read, so its attention asks for these tokens
alone. In float32 the other tokens need no keys and values either: a product with a key is a product of the token's
state with the query times the key's matrix, and a weighted sum of values is the value's matrix times the weighted
sum of states. Both matrices meet one token a sequence instead of all. This is exact, but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hardneg.models.dropout import drop

FAMILIES = ("bert", "electra", "roberta", "xlm-roberta", "camembert")  # whose layers are built like BERT's


class Groups(Protocol):
    """What attention needs to know of a flat batch."""

    @property
    def groups(self) -> Sequence[tuple[int, int]]:
        """(sequences, their length), consecutive."""
        ...


class FirstTokens:
    """The last layer of a transformer, as it is but inside :meth:`at`.

    Parameters
    ----------
    transformer : of one of ``FAMILIES``, running on a flat batch [1, T].
    """

    def __init__(self, transformer: nn.Module) -> None:
        self.places: Tensor | None = None
        attention: Any = transformer.encoder.layer[-1].attention  # type: ignore[union-attr, index]
        self.attention, self.whole = attention.self, attention.self.forward
        attention.self.forward = self._attend
        attention.output.register_forward_pre_hook(self._narrow_residual)

    @contextmanager
    def at(self, places: Tensor) -> Iterator[None]:
        """Let the transformer's last hidden states be those of the tokens at ``places`` [n]: [1, n, h].

        These are the first tokens of all sequences, in order.
        """
        self.places = places
        try:
            yield
        finally:
            self.places = None

    def _attend(self, hidden_states: Tensor, *others: Any, **told: Any) -> tuple[Tensor, Any]:
        if self.places is None:
            result: tuple[Tensor, Any] = self.whole(hidden_states, *others, **told)
            return result
        if hidden_states.dtype == torch.float32 and not torch.is_autocast_enabled(hidden_states.device.type):
            states = hidden_states[0]
            first = states.index_select(0, self.places)
            return first_contexts(self.attention, states, first, told["layout"])[None], None
        context, weights = self.whole(hidden_states, *others, **told)
        return context.index_select(1, self.places), weights

    def _narrow_residual(self, _: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        if self.places is None:
            return None
        context, residual = inputs
        return context, residual.index_select(1, self.places)


def first_contexts(attention: Any, states: Tensor, first: Tensor, layout: Groups) -> Tensor:
    """What the first tokens attend to [n, heads * d], without keys and values of the others.

    Parameters
    ----------
    attention : with ``query``, ``key`` and ``value``, as BERT's.
    states : [T, h] of all tokens.
    first : [n, h] of the first token of each sequence.
    """
    size = attention.attention_head_size
    queries = attention.query(first).unflatten(-1, (-1, size)) * size**-0.5  # [n, heads, d]
    by_state = torch.einsum("nad,adh->nah", queries, _by_head(attention.key.weight, size))
    constant = torch.einsum("nad,ad->na", queries, _by_head(attention.key.bias, size))
    dropout = attention.dropout.p if attention.training else 0.0
    sums, masses, done = [], [], 0
    parts = states.split([count * length for count, length in layout.groups])
    for part, (count, length) in zip(parts, layout.groups, strict=True):
        own, here = part.unflatten(0, (count, length)), slice(done, done + count)
        done += count
        weights = torch.softmax(by_state[here] @ own.transpose(1, 2) + constant[here, :, None], -1)
        if dropout:
            weights = drop(weights, dropout)
            masses.append(weights.sum(-1))
        sums.append(weights @ own)  # [count, heads, h]
    contexts = torch.einsum("nah,adh->nad", torch.cat(sums), _by_head(attention.value.weight, size))
    bias = _by_head(attention.value.bias, size)
    # Dropped weights do not sum to 1, and the values' bias counts as often as they do.
    return (contexts + (torch.cat(masses)[..., None] * bias if masses else bias)).flatten(1)


def _by_head(weight: Tensor, size: int) -> Tensor:
    """A weight or bias [heads * d, ...] as [heads, d, ...]."""
    return weight.unflatten(0, (-1, size))

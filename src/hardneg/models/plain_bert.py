"""A BERT for inference alone, without transformers, whose import takes longer than the answer to a query.

Its parameters have the names that transformers gives them, and its operations are the same in the same order, so
vectors and identities have the same bits. It has no dropout, no pooler, and cannot be trained.
Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardneg.models.first_token import FirstTokens
from hardneg.models.flat_attention import ATTENTION, flat_attention
from hardneg.models.linear import FastLinear
from hardneg.models.packing import FlatLayout

KIND = "bert"  # the type of model, as transformers calls it
NEEDED = (
    "hidden_size",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


class PlainConfig(SimpleNamespace):
    """The settings of a transformer by transformers' names, and those of them that a model's identity covers."""

    def __init__(self, values: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        super().__init__(**values)
        self._identity = dict(identity)
        self._attn_implementation = ATTENTION

    def __reduce__(self) -> tuple[Any, ...]:
        own = ("_identity", "_attn_implementation")
        return type(self), ({name: value for name, value in vars(self).items() if name not in own}, self._identity)

    def to_diff_dict(self) -> dict[str, Any]:
        """The settings in which transformers' configuration differs from a default one."""
        return self._identity


class PlainBert(nn.Module):
    """The transformer of a BERT on flat batches; see the module.

    Parameters
    ----------
    config : has the fields of ``NEEDED``.
    """

    def __init__(self, config: PlainConfig) -> None:
        super().__init__()
        self.config: Any = config
        self.embeddings = _Embeddings(self.config)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(_Layer(self.config) for _ in range(self.config.num_hidden_layers))
        self.first_tokens = FirstTokens(self)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embeddings.LayerNorm.weight.device

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        layout: FlatLayout,
        token_type_ids: Tensor | None = None,
    ) -> SimpleNamespace:
        """Compute ``last_hidden_state`` [1, T, h] of the flat ids [1, T], in evaluation mode only."""
        assert not self.training, "there is no dropout here"
        states = self.embeddings(input_ids, position_ids, token_type_ids)
        for layer in self.encoder.layer:  # type: ignore[union-attr]
            states = layer(states, layout)
        return SimpleNamespace(last_hidden_state=states)


class _Linear(FastLinear):
    """A linear layer whose weights are not drawn, since they are loaded."""

    def reset_parameters(self) -> None:
        pass


class _Embedding(nn.Embedding):
    """An embedding whose weights are not drawn, since they are loaded."""

    def reset_parameters(self) -> None:
        pass


class _Embeddings(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = _Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        types = torch.zeros_like(ids) if types is None else types
        states = self.word_embeddings(ids) + self.token_type_embeddings(types)
        normed: Tensor = self.LayerNorm(states + self.position_embeddings(positions))
        return normed


class _SelfAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = (_Linear(config.hidden_size, config.hidden_size) for _ in range(3))

    def forward(self, states: Tensor, layout: FlatLayout) -> tuple[Tensor, None]:
        width = states.shape[-1] // self.heads
        q, k, v = (
            part(states).unflatten(-1, (-1, width)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        context, _ = flat_attention(self, q, k, v, None, layout=layout, scaling=width**-0.5)
        return context.reshape(*states.shape[:-1], -1).contiguous(), None


class _Output(nn.Module):
    """A linear layer, the residual and a layer norm."""

    def __init__(self, width_in: int, config: Any) -> None:
        super().__init__()
        self.dense = _Linear(width_in, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(states) + residual)
        return normed


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Output(config.hidden_size, config)

    def forward(self, states: Tensor, layout: FlatLayout) -> Tensor:
        context, _ = self.self(states, layout)
        attended: Tensor = self.output(context, states)
        return attended


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = nn.Module()
        self.intermediate.dense = _Linear(config.hidden_size, config.intermediate_size)
        self.output = _Output(config.intermediate_size, config)

    def forward(self, states: Tensor, layout: FlatLayout) -> Tensor:
        attended = self.attention(states, layout)
        inner = F.gelu(self.intermediate.dense(attended))  # type: ignore[operator]
        output: Tensor = self.output(inner, attended)
        return output


def plain_bert(config: PlainConfig, weights: Mapping[str, Tensor]) -> PlainBert | None:
    """The model with these weights, float32, in evaluation mode; None where some are missing or do not fit.

    Parameters
    ----------
    weights : by their names in a file, with or without ``bert.`` before them; others than the model's are ignored.
    """
    model = PlainBert(config)
    ours = model.state_dict()
    found = {name: [weights[key] for key in (name, f"{KIND}.{name}") if key in weights] for name in ours}
    if any(len(same) != 1 or same[0].shape != ours[name].shape for name, same in found.items()):
        return None
    model.load_state_dict({name: same[0].float() for name, same in found.items()}, assign=True)
    return model.requires_grad_(False).eval()

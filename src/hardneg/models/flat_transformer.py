"""Transformers that run on flat batches, and how the others are padded.

Everything but attention works on single tokens, so a transformer whose attention is :func:`flat_attention` gives
each sequence the states that it has alone.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardneg.models.dropout import use_fast_dropout
from hardneg.models.first_token import FAMILIES as NARROWED
from hardneg.models.first_token import FirstTokens
from hardneg.models.flat_attention import ATTENTION, flat_attention
from hardneg.models.linear import use_fast_linear
from hardneg.models.packing import FlatLayout, lay_out, padded_together

FREE = {"cpu": 128, "cuda": 4096}  # a further call of a padded model costs as much as so many tokens

# The model types tested to run flat, and whether their positions start after the padding id.
FAMILIES = {
    "bert": False,
    "distilbert": False,
    "electra": False,
    "roberta": True,
    "xlm-roberta": True,
    "camembert": True,
    "modernbert": False,
    "nomic_bert": False,
    "eurobert": False,
    "gemma3_text": False,
    "llama": False,
    "mistral": False,
    "qwen2": False,
    "qwen3": False,
}
RELATIVE = ("relative_key", "relative_key_query")  # BERT's other kinds of positions; rotary types ignore the field
# Types that mix padding into the states of tokens, whatever the mask says.
READS_PADDING = ("convbert", "fnet", "mobilebert", "nystromformer")
BY_LENGTH = ("dynamic", "longrope")  # rotary positions whose frequencies depend on the longest text beside a text


def can_pack(model: nn.Module) -> bool:
    """Whether ``model`` runs on flat tokens: it is of a tested type, and its attention needs nothing unusual."""
    config: Any = model.config
    tested = config.model_type in FAMILIES and type(model).__module__.startswith("transformers.")
    settable = getattr(model, "_supports_attention_backend", False)  # not ModernBERT's in transformers 5.0
    relative = getattr(config, "position_embedding_type", None) in RELATIVE
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    decodes = getattr(config, "is_decoder", False)
    plain = not (relative or capped or decodes)
    return tested and settable and plain and _has_fixed_angles(config) and _layers_agree(model)


def is_causal(model: nn.Module) -> bool:
    """Whether a token of ``model`` attends to itself and those before it only.

    Some types, as BLOOM and Mamba, do not say it. Then two texts that differ after their first token tell.
    """
    config: Any = model.config
    said = getattr(config, "is_causal", None)
    if said is not None:
        return bool(said)
    if any(getattr(one, "is_causal", False) for one in model.modules()):
        return True
    return config._attn_implementation != ATTENTION and _first_sees_no_other(model)


def _first_sees_no_other(model: Any) -> bool:
    """Whether the state of a text's first token is the same whatever follows it.

    A copy is asked, because some types change in use: RWKV divides weights, and BigBird takes another attention.
    Experts are not exact to the bit.
    """
    model = copy.deepcopy(model).eval()
    one, other = [n for n in range(3) if n != getattr(model.config, "pad_token_id", None)][:2]
    layout = lay_out(np.array([3]), model.device)
    texts = [torch.tensor([one, then, then], device=model.device) for then in (one, other)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        alike, unlike = (first_states(model, text, layout) for text in texts)
    return torch.allclose(alike, unlike, rtol=1e-4, atol=1e-5)


def _layers_agree(model: nn.Module) -> bool:
    """Whether each layer says of itself what the configuration says of all, if it says something.

    Where they differ, transformers follows the configuration, with windows of another width.
    """
    said = getattr(model.config, "is_causal", None)
    return said is None or all(one.is_causal == said for one in model.modules() if hasattr(one, "is_causal"))


def _has_fixed_angles(config: Any) -> bool:
    """Whether a token's rotary angle, if there is one, depends on nothing but its place."""
    said = getattr(config, "rope_parameters", None) or {}
    kinds = [part.get("rope_type") for part in (said, *said.values()) if isinstance(part, Mapping)]
    return not set(kinds) & set(BY_LENGTH)


def first_position(model: nn.Module) -> int:
    """The number of the first position: 0; in RoBERTa and its kin the number after the padding id."""
    config: Any = model.config
    return config.pad_token_id + 1 if FAMILIES.get(config.model_type) else 0


def use_flat_attention(model: nn.Module) -> None:
    """Make a transformers model of a packable type attend inside the sequences of a flat batch."""
    from transformers import AttentionInterface

    # It has no mask function of this name, so transformers makes no mask. With one, it would read positions first.
    AttentionInterface.register(ATTENTION, flat_attention)
    model.set_attn_implementation(ATTENTION)  # type: ignore[operator]
    use_fast_dropout(model)
    use_fast_linear(model)
    config: Any = model.config
    if config.model_type in NARROWED and not hasattr(model, "first_tokens"):
        model.first_tokens = FirstTokens(model)  # type: ignore[assignment]


def hidden_states(model: nn.Module, ids: Tensor, layout: FlatLayout, types: Tensor | None = None) -> Tensor:
    """Last hidden states [T, h] of the flat ``ids`` [T], exactly as if each sequence had been alone.

    Parameters
    ----------
    types : [T] int, the token types of a model that has them; None: the model's own default, which is 0.
    """
    config: Any = model.config
    if config._attn_implementation != ATTENTION:
        return _padded_hidden_states(model, ids, layout, types)
    positions = _positions(model, ids, layout)
    told = _without_cache(model) | ({} if types is None else {"token_type_ids": types[None]})
    output = model(input_ids=ids[None], position_ids=positions[None], layout=layout, **told)
    states: Tensor = output.last_hidden_state[0]
    return states


def _positions(model: nn.Module, ids: Tensor, layout: FlatLayout) -> Tensor:
    """The number [T] of each token's position in its sequence.

    RoBERTa and its kin count only tokens that are not the padding token. A text may hold that token, read from a
    literal ``<pad>``: its position is its own number.
    """
    config: Any = model.config
    if not FAMILIES[config.model_type]:
        return layout.positions
    real = (ids != config.pad_token_id).long()
    counts = real.cumsum(0)
    starts = torch.arange(len(ids), device=ids.device) - layout.positions
    return (counts - (counts - real)[starts]) * real + config.pad_token_id


def _without_cache(model: nn.Module) -> dict[str, Any]:
    """The argument that keeps a model from storing keys and values, as those that generate text do."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def first_states(model: nn.Module, ids: Tensor, layout: FlatLayout, types: Tensor | None = None) -> Tensor:
    """Last hidden states [n, h] of every sequence's first token; equal to those of all tokens, and cheaper."""
    places = layout.bounds[:-1]
    narrow: FirstTokens | None = getattr(model, "first_tokens", None)
    if narrow is None:
        return hidden_states(model, ids, layout, types)[places]
    with narrow.at(places):
        return hidden_states(model, ids, layout, types)


def _padded_hidden_states(model: nn.Module, ids: Tensor, layout: FlatLayout, types: Tensor | None) -> Tensor:
    """The hidden states that :func:`hidden_states` gives, by padded batches, for models that cannot run flat.

    Queries stand in one batch with passages of ten times their length. So sequences of about the same length are
    padded together, and each of these parts is a call of the model.
    """
    lengths = layout.bounds.diff().long()
    config: Any = model.config
    free = FREE["cuda" if ids.device.type == "cuda" else "cpu"]
    if config.model_type in READS_PADDING:
        free = 0  # the cheapest calls have no padding then: their sequences are of one length
    parts = [
        _padded(
            model,
            ids[call.tokens],
            None if types is None else types[call.tokens],
            lengths[call.sequences],
            layout.positions[call.tokens],
            call.longest,
        )
        for call in padded_together(layout.groups, free)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _padded(
    model: nn.Module, ids: Tensor, types: Tensor | None, lengths: Tensor, positions: Tensor, longest: int
) -> Tensor:
    real = torch.arange(longest, device=ids.device) < lengths[:, None]
    # A mask would do as an index, but its size would have to be waited for.
    rows = torch.arange(len(lengths), device=ids.device).repeat_interleave(lengths, output_size=len(ids))
    places = rows * longest + positions

    def spread(values: Tensor, padding: int) -> Tensor:
        table = torch.full_like(real, padding, dtype=torch.long)
        table.view(-1)[places] = values.long()
        return table

    padded = spread(ids, getattr(model.config, "pad_token_id", None) or 0)
    told = _without_cache(model) | ({} if types is None else {"token_type_ids": spread(types, 0)})
    states: Tensor = model(input_ids=padded, attention_mask=real.long(), **told).last_hidden_state
    return states.flatten(0, 1)[places]

"""Batches without padding: which sequences go together, and encoders that run on flat tokens.

A flat batch holds the tokens of all sequences, one sequence after another. Everything but attention works on
single tokens; attention stays inside each sequence. On CUDA in half precision attention is torch's
``varlen_attn``, which has no attention dropout. Elsewhere, and for heads of a size that it does not take,
sequences of equal length are attended together, so that nothing is ever padded or masked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from hardneg.models.dropout import drop, use_fast_dropout
from hardneg.models.first_token import FAMILIES as NARROWED
from hardneg.models.first_token import FirstTokens
from hardneg.models.linear import use_fast_linear
from hardneg.process.hardware import fuses_half_attention, has_half_kernels
from hardneg.records import Int64, offsets_of

ATTENTION = "hardneg_packed"
WINDOW = 1 << 16  # sequences sorted together
GROUP = 1 << 17  # attention weights of one head computed at once: they stay in the processor's cache
LONG = 1 << 18  # attention weights of one head of a sequence; torch computes more of them in parts
ALIGNED, WIDEST = 8, 256  # the sizes of a head that ``varlen_attn`` takes: multiples, and the largest
FREE = {"cpu": 128, "cuda": 4096}  # a further call of a padded model costs as much as so many tokens
SEQUENCES = (1 << 16) - 1  # attended together at most: CUDA's grids take no more in that direction

# The model types tested to run flat, and whether their positions start after the padding id.
FAMILIES = {
    "bert": False,
    "distilbert": False,
    "electra": False,
    "roberta": True,
    "xlm-roberta": True,
    "camembert": True,
}


def plan_batches(lengths: NDArray[np.integer], budget: int, *, window: int = WINDOW) -> list[Int64]:
    """Group sequences of these ``lengths`` [n] into batches of at most ``budget`` tokens.

    Windows of ``window`` consecutive sequences are sorted, longest first, and cut. A sequence longer than the
    budget is alone. A pure function of its arguments.

    Returns
    -------
    The positions of each batch; every position is in exactly one.
    """
    batches = []
    for start in range(0, len(lengths), window):
        part = np.asarray(lengths[start : start + window], np.int64)
        order = np.argsort(-part, kind="stable")
        ends = np.cumsum(part[order])
        first, done = 0, 0
        while first < len(order):
            last = max(int(np.searchsorted(ends, done + budget, side="right")), first + 1)
            batches.append(start + order[first:last])
            first, done = last, int(ends[last - 1])
    return batches


@dataclass(frozen=True)
class Call:
    """Consecutive sequences of a flat batch that one call of an attention kernel takes."""

    sequences: slice
    tokens: slice
    longest: int


@dataclass(frozen=True, eq=False)
class FlatLayout:
    """The places of sequences in a flat batch, longest first, so that equal lengths are neighbours."""

    groups: tuple[tuple[int, int], ...]  # (sequences, their length), consecutive
    calls: tuple[Call, ...]  # what is attended together where lengths may differ, consecutive
    positions: Tensor  # [T] int64, the place of each token in its sequence
    bounds: Tensor  # [n + 1] int32, where sequences begin and end


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy ``array`` to ``device``.

    The copy to CUDA goes through pinned memory, since for any other memory the driver waits.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def lay_out(lengths: Int64, device: torch.device) -> FlatLayout:
    """The layout of a flat batch of sequences with these ``lengths`` [n], which must be descending."""
    offsets = offsets_of(lengths)
    positions = np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    return FlatLayout(
        groups=_groups(lengths, GROUP if device.type == "cpu" else 32 * GROUP),  # on CUDA launches cost more
        calls=_calls(offsets),
        positions=upload(positions, device),
        bounds=upload(offsets.astype(np.int32), device),
    )


def _groups(lengths: Int64, size: int) -> tuple[tuple[int, int], ...]:
    values, counts = np.unique(-lengths, return_counts=True)
    groups = []
    for length, count in zip((-values).tolist(), counts.tolist(), strict=True):
        most = min(max(size // (length * length), 1), SEQUENCES)
        groups += [(min(most, count - done), length) for done in range(0, count, most)]
    return tuple(groups)


def _calls(offsets: Int64) -> tuple[Call, ...]:
    """The calls of at most ``SEQUENCES`` sequences each; the first sequence of a call is its longest."""
    found = []
    for first in range(0, len(offsets) - 1, SEQUENCES):
        last = min(first + SEQUENCES, len(offsets) - 1)
        start, end = int(offsets[first]), int(offsets[last])
        found.append(Call(slice(first, last), slice(start, end), int(offsets[first + 1]) - start))
    return tuple(found)


# ---------------------------------------------------------------- encoders on flat tokens


def can_pack(model: nn.Module) -> bool:
    """Whether ``model`` runs on flat tokens: a tested type, bidirectional, with absolute positions."""
    config: Any = model.config
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    tested = config.model_type in FAMILIES and type(model).__module__.startswith("transformers.")
    return tested and absolute and not getattr(config, "is_decoder", False)


def first_position(model: nn.Module) -> int:
    """The number of the first position: 0; in RoBERTa and its kin the number after the padding id."""
    config: Any = model.config
    return config.pad_token_id + 1 if FAMILIES.get(config.model_type) else 0


def use_flat_attention(model: nn.Module) -> None:
    """Make a transformers model of a packable type attend inside the sequences of a flat batch."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, flat_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
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
    positions = layout.positions + first_position(model)
    told = {} if types is None else {"token_type_ids": types[None]}
    output = model(input_ids=ids[None], position_ids=positions[None], layout=layout, **told)
    states: Tensor = output.last_hidden_state[0]
    return states


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
    free = FREE["cuda" if ids.device.type == "cuda" else "cpu"]
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


def padded_together(groups: Sequence[tuple[int, int]], free: int) -> list[Call]:
    """Cut a batch into the calls that cost least, if a call costs as much as ``free`` tokens more than it has.

    Parameters
    ----------
    groups : (sequences, their length), longest first.

    Returns
    -------
    Calls of at most ``SEQUENCES`` sequences each, in order. No other cut has a lower sum, over its calls, of
    sequences times longest length plus ``free``.
    """
    counts, lengths = np.array(groups, np.int64).reshape(-1, 2).T
    before = offsets_of(counts)  # sequences before each group
    cost, begin = np.zeros(len(counts) + 1), np.zeros(len(counts) + 1, np.int64)
    for end in range(1, len(counts) + 1):  # the cheapest way to the end of each group: its last call's begin
        first = int(np.searchsorted(before, before[end] - SEQUENCES))
        ways = cost[first:end] + (before[end] - before[first:end]) * lengths[first:end] + free
        begin[end] = first + int(np.argmin(ways))
        cost[end] = ways[begin[end] - first]
    cuts = [len(counts)]
    while cuts[-1]:
        cuts.append(int(begin[cuts[-1]]))
    tokens = offsets_of(counts * lengths)
    return [
        Call(slice(int(before[a]), int(before[b])), slice(int(tokens[a]), int(tokens[b])), int(lengths[a]))
        for b, a in reversed([*itertools.pairwise(cuts)])
    ]


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
    told = {} if types is None else {"token_type_ids": spread(types, 0)}
    states: Tensor = model(input_ids=padded, attention_mask=real.long(), **told).last_hidden_state
    return states.flatten(0, 1)[places]


# ---------------------------------------------------------------- attention


def flat_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: FlatLayout,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention inside each sequence of a flat batch, in the form that transformers calls.

    ``query``, ``key`` and ``value`` are [1, heads, T, d]; the result is [1, T, heads, d].
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, d]
    half = query.dtype in (torch.bfloat16, torch.float16)
    fits = query.shape[-1] % ALIGNED == 0 and query.shape[-1] <= WIDEST
    if half and fits and has_half_kernels(query.device):
        return _varlen(q, k, v, layout, scaling)[None], None
    return _by_length(q, k, v, layout, scaling, dropout)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """Give transformers no mask: the layout keeps sequences apart."""


def _varlen(query: Tensor, key: Tensor, value: Tensor, layout: FlatLayout, scaling: float) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Its keyword arguments changed between versions of torch; the positional ones, and its scale, did not.
    factor = scaling * math.sqrt(query.shape[-1])
    if not math.isclose(factor, 1.0):
        query = query * factor
    outputs = []
    for call in layout.calls:
        bounds = layout.bounds[call.sequences.start : call.sequences.stop + 1]
        if call.tokens.start:
            bounds = bounds - call.tokens.start
        q, k, v = (x[call.tokens] for x in (query, key, value))
        output = varlen_attn(q, k, v, bounds, bounds, call.longest, call.longest)
        assert isinstance(output, Tensor)  # a pair only where the normaliser is asked for
        if output.grad_fn is not None:
            _make_repeatable(output.grad_fn)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _make_repeatable(node: Any) -> None:
    """Let the backward pass of ``varlen_attn`` give the same bits each time.

    For sequences of more keys than one block has, its kernel adds parts of a gradient in the order in which they
    are ready, unless torch is told otherwise. Torch is told so while this kernel runs, and not longer: other
    operations would refuse to run.

    Parameters
    ----------
    node : the node of the operation in the graph of autograd.
    """
    before: list[tuple[bool, bool]] = []

    def begin(_: Any) -> None:
        enabled = torch.are_deterministic_algorithms_enabled()
        before.append((enabled, torch.is_deterministic_algorithms_warn_only_enabled()))
        torch.use_deterministic_algorithms(True)

    def end(*_: Any) -> None:
        enabled, only_warns = before.pop()
        torch.use_deterministic_algorithms(enabled, warn_only=only_warns)

    node.register_prehook(begin)
    node.register_hook(end)


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, layout: FlatLayout, scaling: float, dropout: float
) -> Tensor:
    sizes = [count * length for count, length in layout.groups]
    outputs = []
    for group, *parts in zip(layout.groups, *(x.split(sizes) for x in (query, key, value)), strict=True):
        q, k, v = (part.unflatten(0, group).transpose(1, 2) for part in parts)  # [count, heads, length, d]
        outputs.append(_attend(q, k, v, scaling, dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float) -> Tensor:
    """Attention by plain products of matrices, or by torch's fused kernel where that is faster.

    On the CPU the fused kernel is as fast only without gradients, and in half precision only with AMX. It needs
    less memory, so it also computes sequences that are too long for plain products.
    """
    if not dropout and not (torch.is_grad_enabled() and query.requires_grad):
        half = query.dtype in (torch.bfloat16, torch.float16)
        if not half or query.shape[-2] ** 2 > LONG or fuses_half_attention(query.device):
            return F.scaled_dot_product_attention(query, key, value, scale=scaling)
    weights = torch.softmax((query * scaling) @ key.transpose(-2, -1), -1)  # which adds up in float32 always
    if dropout:
        weights = drop(weights, dropout)
    return weights @ value

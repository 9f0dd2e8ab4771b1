"""Attention inside each sequence of a flat batch.

On CUDA in half precision it is torch's ``varlen_attn``, which has no attention dropout. Elsewhere, and for heads
of a size that it does not take, sequences of equal length are attended together, so that nothing is padded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardneg.models.dropout import drop
from hardneg.models.packing import FlatLayout
from hardneg.process.hardware import fuses_half_attention, has_half_kernels

ATTENTION = "hardneg_packed"  # its name in transformers
LONG = 1 << 18  # attention weights of one head of a sequence; torch computes more of them in parts
BLOCK = 64  # the fewest queries that attend together to the keys near them
ALIGNED, WIDEST = 8, 256  # the sizes of a head that ``varlen_attn`` takes: multiples, and the largest


@dataclass(frozen=True)
class Reach:
    """Which tokens of its own sequence a token attends to.

    Attributes
    ----------
    causal : only itself and those before it.
    window : only those less than so many places away; None: however far.
    """

    causal: bool = False
    window: int | None = None

    @property
    def sides(self) -> tuple[int, int]:
        """How many tokens before and after it a token reaches, as ``varlen_attn`` takes it; -1: all."""
        side = -1 if self.window is None else self.window - 1
        return side, 0 if self.causal else side

    def is_cut(self, length: int) -> bool:
        """Whether the window is too short for a sequence of this length."""
        return self.window is not None and self.window < length

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """Which tokens of a sequence [L, L] bool, the second index, each token attends to; None: all to all."""
        before, after = self.sides if self.is_cut(length) else Reach(self.causal).sides
        if before == after == -1:
            return None
        near = torch.ones(length, length, dtype=torch.bool, device=device)
        near = near.tril_(after) if after >= 0 else near
        return near.triu_(-before) if before >= 0 else near

    def block(self, length: int) -> int | None:
        """How many neighbouring queries attend together to the keys near them; None: all to all keys.

        Blocks pay where a block has at most two fifths of the keys of the sequence.
        """
        if not self.is_cut(length) or -1 in self.sides:  # as of a window of 0, which some configurations have
            return None
        before, after = self.sides
        step = max(before, BLOCK)
        return step if 5 * (step + before + after) <= 2 * length else None


def flat_attention(
    module: nn.Module | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: FlatLayout,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention inside each sequence of a flat batch, in the form that transformers calls.

    ``query`` is [1, heads, T, d]. ``key`` and ``value`` are the same, or have fewer heads, of which each serves
    some neighbouring heads of the query. The result is [1, T, heads, d].
    """
    # Where torch chooses the precision of each operation, turning queries and keys leaves them in float32.
    q, k, v = (x[0].to(value.dtype).transpose(0, 1) for x in (query, key, value))  # [T, heads, d]
    if (shared := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    reach = Reach(bool(getattr(module, "is_causal", False)), sliding_window)
    half = value.dtype in (torch.bfloat16, torch.float16)
    fits = query.shape[-1] % ALIGNED == 0 and query.shape[-1] <= WIDEST
    if half and fits and has_half_kernels(query.device):
        return _varlen(q, k, v, layout, scaling, reach)[None], None
    return _by_length(q, k, v, layout, scaling, dropout, reach)[None], None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, layout: FlatLayout, scaling: float, reach: Reach = Reach()
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Its keyword arguments changed between versions of torch; the positional ones, and its scale, did not.
    factor = scaling * math.sqrt(query.shape[-1])
    if not math.isclose(factor, 1.0):
        query = query * factor
    reached: dict[str, Any] = {} if reach.sides == (-1, -1) else {"window_size": reach.sides}
    outputs = []
    for call in layout.calls:
        bounds = layout.bounds[call.sequences.start : call.sequences.stop + 1]
        if call.tokens.start:
            bounds = bounds - call.tokens.start
        q, k, v = (x[call.tokens] for x in (query, key, value))
        output = varlen_attn(q, k, v, bounds, bounds, call.longest, call.longest, **reached)
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
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: FlatLayout,
    scaling: float,
    dropout: float,
    reach: Reach = Reach(),
) -> Tensor:
    sizes = [count * length for count, length in layout.groups]
    outputs = []
    for group, *parts in zip(layout.groups, *(x.split(sizes) for x in (query, key, value)), strict=True):
        q, k, v = (part.unflatten(0, group).transpose(1, 2) for part in parts)  # [count, heads, length, d]
        outputs.append(_attend(q, k, v, scaling, dropout, reach).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float, reach: Reach = Reach()
) -> Tensor:
    """Attention [count, heads, L, d] inside sequences of equal length."""
    length = query.shape[-2]
    if (step := reach.block(length)) is not None:
        return _attend_in_blocks(query, key, value, scaling, dropout, reach, step)
    if not _is_fused(query, length**2, dropout):
        return _weighted(query, key, value, scaling, dropout, reach.mask(length, query.device))
    if reach.causal and not reach.is_cut(length):  # faster than a mask, which may say the same
        return F.scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=True)
    mask = reach.mask(length, query.device)
    return F.scaled_dot_product_attention(query, key, value, scale=scaling, attn_mask=mask)


def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float, reach: Reach, step: int
) -> Tensor:
    """Attention within a window: blocks of ``step`` queries attend to the keys that any of them reaches.

    Its time and memory grow with length times window, not with the square of the length.
    """
    count, heads, length, _ = query.shape
    before, after = reach.sides
    size, filler = step + before + after, -length % step

    def stacked(blocks: Tensor) -> Tensor:
        """[blocks, count · heads, n, d] of [count, heads, blocks, n, d], so that one mask serves all heads."""
        return blocks.permute(2, 0, 1, 3, 4).flatten(1, 2)

    q = stacked(F.pad(query, (0, 0, 0, filler)).unflatten(-2, (-1, step)))
    padded = (F.pad(x, (0, 0, before, filler + after)) for x in (key, value))
    k, v = (stacked(x.unfold(-2, size, step).transpose(-1, -2)) for x in padded)
    mask = _block_mask(reach, length, step, query.device)[:, None]
    if _is_fused(query, length * size, dropout, in_blocks=True):
        states = F.scaled_dot_product_attention(q, k, v, scale=scaling, attn_mask=mask)
    else:
        states = _weighted(q, k, v, scaling, dropout, mask)
    states = states.unflatten(1, (count, heads)).permute(1, 2, 0, 3, 4).flatten(2, 3)
    return states[..., :length, :]


def _block_mask(reach: Reach, length: int, step: int, device: torch.device) -> Tensor:
    """Which keys of its block [blocks, step, keys] bool each query attends to.

    The last block is filled with queries that nobody reads. They attend to what fills its keys, too: a query
    that attends to nothing would have no finite state.
    """
    before, after = reach.sides
    starts = torch.arange(0, length, step, device=device)[:, None]
    places, others = torch.arange(step, device=device), torch.arange(step + before + after, device=device) - before
    apart = others - places[:, None]
    near = (apart >= -before) & (apart <= after)
    is_key = (starts + others >= 0) & (starts + others < length)
    is_filler = starts + places >= length
    return near & (is_key[:, None, :] | is_filler[:, :, None])


def _is_fused(query: Tensor, weights: int, dropout: float, *, in_blocks: bool = False) -> bool:
    """Whether torch's fused kernel computes attention of so many weights of one head, or plain products do.

    On the CPU the fused kernel is as fast only without gradients, and in half precision only with AMX; but in
    blocks it is faster in float32 with gradients, too. It needs less memory, so it also computes sequences
    that are too long for plain products, if there is no dropout.
    """
    half = query.dtype in (torch.bfloat16, torch.float16)
    fast = not (torch.is_grad_enabled() and query.requires_grad) and (
        not half or fuses_half_attention(query.device)
    )
    fast |= in_blocks and query.dtype == torch.float32 and query.device.type == "cpu"
    return not dropout and (fast or weights > LONG)


def _weighted(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float, mask: Tensor | None
) -> Tensor:
    """Attention by plain products of matrices, where ``mask`` lets a query attend to a key."""
    weights = (query * scaling) @ key.transpose(-2, -1)
    if mask is not None:
        weights += torch.zeros_like(mask, dtype=weights.dtype).masked_fill_(~mask, -math.inf)
    weights = torch.softmax(weights, -1)  # which adds up in float32 always
    if dropout:
        weights = drop(weights, dropout)
    return weights @ value

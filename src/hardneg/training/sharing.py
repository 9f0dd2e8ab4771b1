"""One batch over several processes: each encodes its share, and all score the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardneg.models.bi_encoder import Encode
from hardneg.models.packing import upload
from hardneg.process.distributed import exchange, member
from hardneg.records import Int64, Side, TokenBatch


def shared(encode: Encode) -> Encode:
    """``encode`` with the sequences dealt out over the processes of the group; ``encode`` itself without one.

    Every process gets all vectors, in order, and makes the same loss of them. Its gradient is complete for its own
    share, so the backward pass needs no exchange; :func:`hardneg.process.distributed.add_gradients` sums over
    the shares.
    """
    own, size = member()
    if size == 1:
        return encode

    def encode_shared(tokens: TokenBatch, side: Side) -> Tensor:
        shares = deal(tokens.lengths, size)
        vectors = encode(tokens.take(shares[own]), side)
        everything = gather(vectors, [len(share) for share in shares])
        return everything[upload(np.argsort(np.concatenate(shares)), vectors.device)]

    return encode_shared


def deal(lengths: Int64, size: int) -> list[Int64]:
    """The positions of each process's share: about as many tokens each, some of them perhaps none."""
    order = np.argsort(-lengths, kind="stable")
    return [order[first::size] for first in range(size)]


def gather(own: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rows of all processes [sum(sizes), dim], with gradient to ``own``.

    What is computed from them must be the same in every process: the gradient of the own rows is taken as it is
    found here, and not added up with what the others find for them.
    """
    if not own.requires_grad:  # an empty share; its loss is differentiated all the same
        own.requires_grad_()
    rows: Tensor = _Gather.apply(own, sizes)
    return rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: Sequence[int]) -> Tensor:
        first = sum(sizes[: member()[0]])
        ctx.own = slice(first, first + len(own))
        return torch.cat(exchange(own, sizes))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.own], None

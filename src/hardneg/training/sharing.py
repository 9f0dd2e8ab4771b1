"""Shares a batch between processes: each encodes a part of the sequences, and all compute all scores."""

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
    """Make ``encode`` split the sequences between the processes of the group; without a group, return ``encode``.

    Every process gets all vectors, in order, and computes the same loss. Its gradient is complete for the
    sequences that it encoded, so the backward pass needs no exchange. At the end
    :mod:`hardneg.training.gradient_sums` adds up the gradients of all processes.
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
    """Split sequences of ``lengths`` [n] into ``size`` lists of positions with about equally many tokens.

    Lists are empty if there are fewer sequences than lists.
    """
    order = np.argsort(-lengths, kind="stable")
    return [order[first::size] for first in range(size)]


def gather(own: Tensor, sizes: Sequence[int]) -> Tensor:
    """Collect the rows of all processes [sum(sizes), dim]; gradients flow back to the rows ``own`` only.

    Every process must compute the same loss from the result: ``own`` gets the gradient that this process finds, to
    which the gradients that other processes find for these rows are not added.
    """
    if not own.requires_grad:  # a share without sequences; the loss needs a gradient all the same
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

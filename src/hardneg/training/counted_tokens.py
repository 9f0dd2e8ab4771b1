"""Counts the tokens that training steps encode with gradient, for the cost of training."""

from __future__ import annotations

from torch import Tensor

from hardneg.models.bi_encoder import Encode
from hardneg.records import Side, TokenBatch

_total = 0


def tokens_trained() -> int:
    """The tokens that steps of this process have encoded so far, special ones included; there is no padding.

    If several processes share a step, each of them counts all tokens of the step. A chunk that the gradient cache
    encodes twice counts once.
    """
    return _total


def counted(encode: Encode) -> Encode:
    """Make ``encode`` count the tokens that it is given."""

    def encode_counted(tokens: TokenBatch, side: Side) -> Tensor:
        global _total
        _total += len(tokens.ids)
        return encode(tokens, side)

    return encode_counted

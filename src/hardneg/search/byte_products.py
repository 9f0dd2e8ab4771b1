"""Products of bytes, whose sums are exact: by torch, or for very few queries by a compiled loop.

torch's product arranges the passages anew at each call, which takes longer than multiplying them with one query.
The loop just reads them. It needs numba, but no instructions for bytes. On processors without such instructions,
torch's product is slower than float32, and the loop is faster for up to four queries.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from hardneg.process.cpu import multiplies_bytes

FEW = 64  # up to so many queries, reading the passages takes the time, not multiplying them
LOOPED = 4  # the same for the loop, on processors without instructions for bytes
LOOPED_ROWS = 4  # up to so many rows of codes, the loop is faster than torch's product


def most_queries(*devices: torch.device) -> int:
    """The number of queries up to which passages on these devices are searched faster as bytes; 0: never."""
    if any(one.type != "cpu" for one in devices):
        return 0
    if multiplies_bytes():
        return FEW
    return LOOPED if find_spec("numba") else 0  # to load it takes half a second: see can_multiply


def can_multiply() -> bool:
    """Whether there is a product of bytes without an error."""
    return multiplies_bytes() or loop() is not None


def multiply(queries: Tensor, passages: Tensor, out: Tensor) -> None:
    """Write the products of ``queries`` [Q, dim] and ``passages`` [n, dim], both int8, to ``out`` [Q, n] int32."""
    way = loop() if len(queries) <= LOOPED_ROWS or not multiplies_bytes() else None
    if way:
        way.multiply_in_loop(queries.numpy(), passages.numpy(), out.numpy(), threads=torch.get_num_threads())
    else:
        torch._int_mm(queries, passages.T, out=out)


@cache
def loop() -> ModuleType | None:
    """The module of the compiled loop; None if numba is not installed or does not work with this numpy."""
    try:
        from hardneg.search import byte_loop
    except ImportError:
        return None
    return byte_loop

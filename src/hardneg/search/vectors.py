"""What stored vectors must be: float16 or float32, finite, and not zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardneg.errors import ArtifactError, NumericError

Vectors = Tensor | NDArray[Any]

BLOCK = 8192  # vectors converted at a time


def as_tensor(vectors: Vectors) -> Tensor:
    """The vectors as a tensor over the same memory; float16 and float32 only."""
    tensor = torch.as_tensor(_seen_as_writable(vectors) if isinstance(vectors, np.ndarray) else vectors)
    if tensor.dtype not in (torch.float16, torch.float32):
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ArtifactError("BAD_DTYPE", f"the vectors are {dtype}", "store them as float16 or float32")
    return tensor


def _seen_as_writable(vectors: NDArray[Any]) -> NDArray[Any]:
    """The array over the same memory, of which torch does not warn that it is read-only: nothing here writes.

    To silence the warning would change the filters of all threads. Two threads that do so at once may leave all
    warnings of the program silent for ever.
    """
    return vectors if vectors.flags.writeable else np.asarray(_Memory(vectors))


class _Memory:
    """The memory of an array, which stays as long as this is used."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def vector_norms(vectors: Tensor) -> Tensor:
    """Euclidean norms [n] float64 of float16 or float32 vectors [n, dim], to float32's precision."""
    return torch.cat([_norms(block.float()) for block in vectors.split(BLOCK)])


def _norms(vectors: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(vectors, dim=1).double()
    extreme = ~((norms > 1e-15) & (norms < 1e15))  # squares may have under- or overflowed
    if extreme.any():
        norms[extreme] = torch.linalg.vector_norm(vectors[extreme].double(), dim=1)
    return norms


def check_norms(norms: Tensor, name: Callable[[int], str]) -> None:
    """Raise :class:`NumericError` with the name of the first vector that is not finite or is zero."""
    bad = torch.nonzero(~(torch.isfinite(norms) & (norms > 0))).flatten()
    if len(bad):
        row, norm = int(bad[0]), float(norms[bad[0]])
        what = "is zero" if norm == 0 else "holds NaN or Inf (float16 ends at 65504)"
        raise NumericError(
            "BAD_VECTOR", f"the vector of {name(row)} {what} ({len(bad)} such)", "check the model and its input"
        )

"""Products of bytes by a loop that numba compiles: exact sums on any processor, on all threads.

Importing this module loads numba.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hardneg.process.compiled import compiled
from hardneg.records import Int32

LEAST = 1 << 20  # bytes of passages that are worth a thread of their own


def multiply_in_loop(queries: NDArray[np.int8], passages: NDArray[np.int8], out: Int32, *, threads: int) -> None:
    """Write the products of ``queries`` [Q, dim] and ``passages`` [n, dim] to ``out`` [Q, n]."""
    wide = queries.astype(np.int16)  # processors multiply 16 bits and add pairs of products in one instruction
    parts = max(1, min(threads, passages.size // LEAST))
    bounds = [len(passages) * part // parts for part in range(parts + 1)]
    pieces = [(wide, passages[a:b], out[:, a:b]) for a, b in pairwise(bounds)]
    if parts == 1:
        _multiply(*pieces[0])
        return
    with ThreadPoolExecutor(parts) as pool:
        for done in [pool.submit(_multiply, *piece) for piece in pieces]:
            done.result()


@compiled
def _multiply(queries: NDArray[np.int16], passages: NDArray[np.int8], out: Int32) -> None:
    for row in range(len(passages)):
        for query in range(len(queries)):
            total = np.int32(0)
            for i in range(passages.shape[1]):
                total += np.int32(queries[query, i]) * np.int32(passages[row, i])
            out[query, row] = total

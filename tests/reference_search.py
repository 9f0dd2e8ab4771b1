"""A slow reference for exact search (a full sort of float64 scores), and layouts that must not change a bit."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from hardneg.process import cpu
from hardneg.process.hardware import byte_products_are_exact, has_byte_kernels
from hardneg.search import byte_products, proposals
from hardneg.search.exact import ExactIndex

# The number of shards, the queries (tile) and passages (chunk) of a product, and the precision of the product.
LAYOUTS = [
    (1, {}),
    (1, {"precision": "float64"}),
    (1, {"tile": 3, "chunk": 250, "precision": "float64"}),
    (3, {"tile": 4, "chunk": 37, "precision": "float32"}),
    (7, {"chunk": 101}),
    (1, {"precision": "bfloat16"}),
    (3, {"tile": 4, "chunk": 83, "precision": "bfloat16"}),
    (1, {"precision": "int8"}),
    (3, {"tile": 4, "chunk": 83, "precision": "int8"}),
]
MULTIPLIES_BYTES = has_byte_kernels() and byte_products_are_exact()


@contextmanager
def bytes_multiply(by="torch"):
    """Use exact products of bytes within the block: by ``torch``, or by numba's ``loop`` as on older processors.

    A slow product stands in if this processor has none.
    """

    def product(left, right, *, out):
        return out.copy_(left.double() @ right.double())  # whole numbers below 2^53

    with pytest.MonkeyPatch.context() as patch:
        if by == "loop":
            patch.setattr(cpu, "has_byte_kernels", lambda: False)
            yield
            return
        patch.setattr(byte_products, "loop", lambda: None)
        if not MULTIPLIES_BYTES:
            patch.setattr(cpu, "has_byte_kernels", lambda: True)
            patch.setattr(cpu, "byte_products_are_exact", lambda: True)
            patch.setattr(torch, "_int_mm", product, raising=False)
        yield


@contextmanager
def bfloat16_of(operands):
    """In the block, products in bfloat16 multiply ``"bfloat16"`` operands, or ``"float32"`` ones as with AMX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposals, "needs_bfloat16_operands", lambda: operands == "bfloat16")
        yield


def slow_scores(queries, passages):
    """The score of every pair: float64 products, padded to a power of two, added in halves; then float32."""
    dim = queries.shape[1]
    terms = np.zeros((len(queries), len(passages), 1 << (dim - 1).bit_length()))
    terms[:, :, :dim] = queries.astype(np.float64)[:, None] * passages.astype(np.float64)
    while terms.shape[2] > 1:
        terms = terms[:, :, : terms.shape[2] // 2] + terms[:, :, terms.shape[2] // 2 :]
    return terms[:, :, 0].astype(np.float32) + np.float32(0)


def slow_search(queries, passages, k):
    scores = slow_scores(queries, passages)
    rows = np.broadcast_to(np.arange(len(passages)), scores.shape)
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1), order


def search(queries, passages, k):
    """What :class:`ExactIndex` finds for arrays or tensors of queries."""
    return ExactIndex(passages).search(torch.as_tensor(queries), k)


def check(queries, passages, *ks):
    all_scores, all_rows = slow_search(queries, passages, len(passages))
    for shards, layout in LAYOUTS:
        index = ExactIndex(np.array_split(passages, shards) if shards > 1 else passages, **layout)
        for k in ks:
            with bytes_multiply(), bfloat16_of("bfloat16" if shards == 1 else "float32"):
                scores, rows = index.search(torch.from_numpy(queries), k)
            assert (scores.dtype, rows.dtype) == (torch.float32, torch.int32)
            np.testing.assert_array_equal(rows.numpy(), all_rows[:, :k], err_msg=str((shards, layout, k)))
            np.testing.assert_array_equal(scores.numpy().view(np.int32), all_scores[:, :k].view(np.int32))


def random(shape, dtype="float16", seed=0, unit=True):
    values = np.random.default_rng(seed).normal(size=shape)
    if unit:
        values /= np.linalg.norm(values, axis=1, keepdims=True)
    return values.astype(dtype)

"""Products of bytes: the loop's sums are exact, and each number of queries gets the faster product."""

import sys

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from calls import spied
from hardneg.search import byte_loop, byte_products
from hardneg.search.byte_products import FEW, LOOPED, LOOPED_ROWS, can_multiply, most_queries, multiply

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def of_bytes(*shape):
    return np.random.default_rng(sum(shape)).integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(1, 1, 4), (3, 7, 36), (4, 1000, 768), (2, 5, 1 << 16)])
def test_the_loop_adds_up_exactly(shape, threads, monkeypatch):
    monkeypatch.setattr(byte_loop, "LEAST", 1)
    rows, n, dim = shape
    largest = np.full((rows, dim), 127, np.int8), np.full((n, dim), -127, np.int8)
    for queries, passages in ((of_bytes(rows, dim), of_bytes(n, dim)), largest):
        out = np.zeros((rows, n + 5), np.int32)
        byte_loop.multiply_in_loop(queries, passages, out[:, :n], threads=threads)
        np.testing.assert_array_equal(out[:, :n], queries.astype(np.int64) @ passages.astype(np.int64).T)
        assert not out[:, n:].any()


def test_the_loop_has_the_threads_that_torch_was_given(monkeypatch):
    told, before = [], torch.get_num_threads()
    monkeypatch.setattr(byte_loop, "multiply_in_loop", lambda *asked, threads: told.append(threads))
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            multiply(torch.zeros(1, 4, dtype=torch.int8), torch.zeros(9, 4, dtype=torch.int8), torch.zeros(1, 9))
    finally:
        torch.set_num_threads(before)
    assert told == [1, 3]


def test_an_error_of_a_thread_is_raised(monkeypatch):
    monkeypatch.setattr(byte_loop, "LEAST", 1)
    monkeypatch.setattr(byte_loop, "_multiply", lambda *piece: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        byte_loop.multiply_in_loop(of_bytes(1, 4), of_bytes(9, 4), np.zeros((1, 9), np.int32), threads=2)


@pytest.mark.parametrize(("instructions", "last"), [(True, LOOPED_ROWS), (False, 40)])
def test_the_loop_takes_few_rows_or_all(instructions, last, monkeypatch):
    monkeypatch.setattr(byte_products, "multiplies_bytes", lambda: instructions)
    monkeypatch.setattr(torch, "_int_mm", lambda a, b, *, out: out.copy_(a.long() @ b.long()), raising=False)
    with spied(byte_loop, "multiply_in_loop") as looped:
        for rows in (1, LOOPED_ROWS, LOOPED_ROWS + 1, 40):
            queries, passages = of_bytes(rows, 8), of_bytes(9, 8)
            out = torch.zeros(rows, 9, dtype=torch.int32)
            multiply(torch.from_numpy(queries), torch.from_numpy(passages), out)
            np.testing.assert_array_equal(out, queries.astype(int) @ passages.astype(int).T)
    assert max(len(asked[0]) for asked in looped) == last


@pytest.mark.parametrize(
    ("instructions", "numba", "most"),
    [(True, True, FEW), (True, False, FEW), (False, True, LOOPED), (False, False, 0)],
)
def test_the_number_of_queries_that_pay(instructions, numba, most, monkeypatch):
    monkeypatch.setattr(byte_products, "multiplies_bytes", lambda: instructions)
    monkeypatch.setattr(byte_products, "loop", lambda: byte_loop if numba else None)
    monkeypatch.setattr(byte_products, "find_spec", lambda name: name if numba else None)
    assert most_queries(CPU, CPU) == most
    assert most_queries(CPU, CUDA) == 0
    assert can_multiply() == (most > 0)


def test_where_nothing_is_compiled_there_is_no_loop(monkeypatch):
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    for name in ("hardneg.process.compiled", "hardneg.search.byte_loop"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("hardneg.search.byte_loop")
    byte_products.loop.cache_clear()
    try:
        assert byte_products.loop() is None
    finally:
        byte_products.loop.cache_clear()


def test_a_numba_that_does_not_work_is_like_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "hardneg.search.byte_loop", None)
    monkeypatch.delattr("hardneg.search.byte_loop")
    monkeypatch.setattr(byte_products, "multiplies_bytes", lambda: False)
    byte_products.loop.cache_clear()
    try:
        assert byte_products.loop() is None
        assert not can_multiply()
    finally:
        byte_products.loop.cache_clear()

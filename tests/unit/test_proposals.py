"""Products in half precision propose hits for a search: their bounds hold, and no choice changes a bit."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Timer

import numpy as np
import pytest
import torch

from hardneg.errors import SettingsError
from hardneg.search import exact, proposals
from hardneg.search.exact import ExactIndex
from hardneg.search.proposals import (
    ALLOWED,
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    choose,
    error_bound,
    fastest,
    loss,
    most_lost,
    products_of,
)
from hardneg.search.vectors import vector_norms
from reference_search import bfloat16_of, check, random, slow_search

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OPERANDS = pytest.mark.parametrize("operands", ["bfloat16", "float32"])
HALF = pytest.mark.parametrize("half", [ALLOWED, BFLOAT16], ids=["float32", "bfloat16"])


def bound_and_error(product, queries, passages):
    """Half the margin [Q], which bounds an error, and the errors [Q, n] against float64."""
    queries, passages = torch.from_numpy(queries), torch.from_numpy(passages)
    norms, max_norm = vector_norms(queries) * proposals.SLACK, float(vector_norms(passages).max())
    max_loss = float(loss(passages, torch.bfloat16).max()) if product.is_rounding else 0.0
    margin = product.margin(queries, norms, max_norm, max_loss)
    scores = torch.empty(len(queries), len(passages), dtype=product.scores)
    with product.leave():
        product.multiply(product.operand(queries), product.operand(passages), scores)
    return margin / 2, (scores.double() - queries.double() @ passages.double().T).abs()


def against_the_query(dim, seed):
    """A query and passages whose rounding errors all add up: each number lies next to the middle of two."""
    rng = np.random.default_rng(seed)
    middle = 1 + 2.0**-8 - 2.0**-12  # rounded down to 1 in bfloat16, by nearly half a unit
    signs = rng.choice([-1.0, 1.0], (1, dim))
    passages = signs * middle * 2.0 ** rng.integers(-3, 1, (50, 1))
    return (signs * middle).astype(np.float16), passages.astype(np.float16)


# ---------------------------------------------------------------- bounds


def test_error_bound_holds_for_float32_products():
    queries, passages = random((50, 384), seed=30), random((2000, 384), seed=31)
    bound, error = bound_and_error(FLOAT32, queries, passages)
    assert (error <= bound[:, None]).all()
    assert 384 * 2.0**-24 < float(bound.max()) < 2.5e-5  # gamma_384, and little more


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [1, 3, 64, 769])
@pytest.mark.parametrize("scale", [2.0**-14, 1, 2.0**12])
@HALF
def test_the_bound_of_bfloat16_holds(half, dim, dtype, scale):
    for seed in range(10):
        queries, passages = (
            (random((n, dim), "float64", 2 * seed + n, unit=False) * scale).astype(dtype) for n in (7, 200)
        )
        bound, error = bound_and_error(half, queries, passages)
        assert (error <= bound[:, None]).all()
        most = 2**-7 * 1.02 + 2**-8 * 1.02 * half.rounds_scores + dim * 2.0**-22
        size = np.linalg.norm(queries.astype(float), axis=1) * np.linalg.norm(passages.astype(float), axis=1).max()
        assert (bound.numpy() <= size * most + 1e-30).all()  # it says something


@pytest.mark.parametrize("dim", [1, 10, 384])
def test_the_bound_of_bfloat16_is_met(dim):
    """Where all errors add up nothing is left of it but the room for sums."""
    bound, error = bound_and_error(ALLOWED, *against_the_query(dim, dim))
    assert (error <= bound[:, None]).all()
    assert float(error.max()) > 0.85 * float(bound[0])


def test_a_score_may_be_rounded_by_half_a_unit():
    """2 + 2^-7 lies in the middle of two numbers of bfloat16, and all numbers of the vectors are of bfloat16."""
    queries, passages = np.ones((1, 2), np.float32), np.array([[2, 2.0**-7]], np.float32)
    bound, error = bound_and_error(BFLOAT16, queries, passages)
    assert float(error) == 2.0**-7
    assert float(bound) >= 2.0**-7
    unrounded, exact_error = bound_and_error(ALLOWED, queries, passages)
    assert (float(exact_error), float(unrounded) < 2.0**-7) == (0, True)


@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-130, 2.0**-126, 1e-30, 1e18])
@HALF
def test_the_bound_holds_far_from_one(half, scale):
    passages = (random((300, 40), "float64", 1, unit=False) * scale).astype(np.float32)
    for other in (1e-30, 1.0, 1e15):
        queries = (random((5, 40), "float64", 2) * other).astype(np.float32)
        bound, error = bound_and_error(half, queries, passages[np.abs(passages).max(1) > 0])
        assert (error <= bound[:, None]).all()


def test_what_rounding_takes_by_hand():
    taken = loss(torch.tensor([[1.0, 1 + 2.0**-8, 3 + 2.0**-7], [2.0, 4, 0]]), torch.bfloat16)
    assert taken.tolist() == pytest.approx([2.0**-8 * 5**0.5, 0], rel=2**-7)
    assert taken[0] >= 2.0**-8 * 5**0.5


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_passage_loses_more_than_the_most(dtype):
    _, worst = against_the_query(30, 1)
    for passages in (random((500, 30), dtype, 1), worst.astype(dtype)):
        passages = torch.from_numpy(passages)
        taken = loss(passages, torch.bfloat16)
        most = np.array([most_lost(norm, 30) for norm in vector_norms(passages).tolist()])
        assert (taken.numpy() <= most).all()
    assert (taken.numpy() > 0.9 * most).all()


def test_few_queries_do_not_look_what_rounding_takes(monkeypatch):
    """Both bounds give the same hits; the looser one costs no pass over the passages."""
    index = ExactIndex(random((3000, 16), seed=9), precision="bfloat16")
    queries = torch.from_numpy(random((60, 16), seed=10))
    few = index.search(queries[:14], 5)
    assert "max_loss" not in vars(index)
    many = index.search(queries, 5)
    assert 0 < index.max_loss < most_lost(index.max_norm, 16)
    assert all(torch.equal(a, b[:14]) for a, b in zip(few, many, strict=True))


def cut(values, largest):
    """Truncated to 24 bits of the largest."""
    unit = 2.0 ** (np.floor(np.log2(largest)) - 23)
    return np.trunc(values / unit) * unit


@pytest.mark.parametrize("b", [8, 16])
@pytest.mark.parametrize("sign", ["alike", "mixed"])
def test_the_unit_of_tensor_cores_is_safe(b, sign):
    """Blocks of ``b`` products and the sum so far: aligned to the largest and cut off, their sum cut off again."""
    dim, product = 768, products_of(CUDA)["float16"]
    for seed in range(20):
        q, d = (random((dim,), "float16", s, unit=False) for s in (seed, seed + 100))
        terms = q.astype(np.float64) * d
        terms = np.abs(terms) if sign == "alike" else terms
        total = 0.0
        for block in terms.reshape(-1, b):
            largest = max(abs(total), np.abs(block).max())
            total = cut(total, largest) + cut(block, largest).sum()
            total = float(cut(np.array(total), abs(total)))
        norms = torch.tensor([np.abs(terms).sum()])  # at most |query| |passage|
        bound = error_bound(dim, product.unit, norms) / 2
        assert abs(total - terms.sum()) < float(bound)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_passages_whose_rounding_reverses_their_order(dtype):
    """The better a passage, the more of it rounding takes: the k best proposals are the wrong ones."""
    dim, n = 96, 800
    rng = np.random.default_rng(3)
    steps = 2.0**-10 * np.arange(n)[:, None] / n * 8  # up to the middle between 1 and 1 + 2^-7, and beyond
    passages = (1 + steps + 2.0**-11 * rng.random((n, dim))).astype(dtype)
    queries = np.concatenate([np.ones((1, dim)), rng.random((3, dim))]).astype(dtype)
    proposed = torch.from_numpy(passages).bfloat16().double().sum(1)
    best = slow_search(queries[:1], passages, 10)[1][0]
    assert set(proposed.topk(10).indices.tolist()) != set(best.tolist())  # or the test could not fail
    check(queries, passages, 1, 10, 150)


@OPERANDS
def test_without_a_margin_results_are_wrong(monkeypatch, operands):
    """The mutant that trusts its proposals is found by what the other tests compare."""
    passages, queries = random((3000, 64), seed=4), random((20, 64), seed=5)
    search = partial(ExactIndex(passages, precision="bfloat16").search, torch.from_numpy(queries), 50)
    wanted = slow_search(queries, passages, 50)[1]
    with bfloat16_of(operands):
        np.testing.assert_array_equal(search()[1].numpy(), wanted)
        tiny = 1e-6  # not zero: what is exactly at the margin is dropped
        monkeypatch.setattr(proposals, "error_bound", lambda dim, unit, norms, moved: torch.full_like(norms, tiny))
        assert (search()[1].numpy() != wanted).any()


def test_without_the_part_of_the_inputs_results_are_wrong(monkeypatch):
    passages, queries = random((3000, 64), seed=4), random((20, 64), seed=5)
    monkeypatch.setattr(proposals, "loss", lambda vectors, rounded: torch.zeros(len(vectors), dtype=torch.float64))
    monkeypatch.setattr(exact, "loss", proposals.loss)
    with bfloat16_of("float32"):  # scores that are rounded have a margin that covers this
        found = ExactIndex(passages, precision="bfloat16").search(torch.from_numpy(queries), 50)[1]
    assert (found.numpy() != slow_search(queries, passages, 50)[1]).any()


def test_components_that_bfloat16_cannot_hold():
    """The largest float32 numbers round to infinity: such vectors are proposed in float32."""
    largest = np.finfo(np.float32).max
    queries = (random((4, 8), "float32", 6) * 1e-6).astype(np.float32)
    passages = np.vstack([np.eye(8, dtype=np.float32) * largest, random((40, 8), "float32", 7)])
    assert torch.tensor(largest).bfloat16().isinf()
    check(queries, passages, 3, 48)
    check(passages[:8] / 1, queries, 3)


@pytest.mark.parametrize("k", [1, 200])
def test_many_shapes(k):
    rng = np.random.default_rng(8)
    for dim in (2, 31, 128):
        n, q = rng.integers(200, 1500), rng.integers(1, 12)
        passages = random((n, dim), rng.choice(["float16", "float32"]), dim) + np.float16(0.3)
        passages[rng.integers(0, n, n // 3)] = passages[0]
        check(random((q, dim), passages.dtype, dim + 1), passages, k)


# ---------------------------------------------------------------- the choice


def chosen(monkeypatch, best, device, stored, queries, passages=200_000, k=200):
    monkeypatch.setattr(proposals, "best_precision", lambda device: best)
    monkeypatch.setattr(torch.version, "cuda", "13")
    return fastest(stored, device, queries, passages, k)


@pytest.mark.parametrize(
    ("device", "stored", "queries", "wanted"),
    [
        (CPU, torch.float16, 1024, "bfloat16"),
        (CPU, torch.float32, 256, "bfloat16"),
        (CPU, torch.float16, 32, "float32"),  # bound by reading and rounding the passages
        (CUDA, torch.float16, 1, "float16"),  # as they lie
        (CUDA, torch.float16, 1024, "float16"),
        (CUDA, torch.float32, 1024, "bfloat16"),
        (CUDA, torch.float32, 32, "float32"),
    ],
)
def test_half_precision_only_where_hardware_has_it(monkeypatch, device, stored, queries, wanted):
    assert chosen(monkeypatch, "bfloat16", device, stored, queries) == wanted
    assert chosen(monkeypatch, "float32", device, stored, queries) == "float32"


def test_small_sets_are_multiplied_in_float64(monkeypatch):
    assert chosen(monkeypatch, "bfloat16", CPU, torch.float16, 1024, passages=31_999) == "float64"
    assert chosen(monkeypatch, "bfloat16", CPU, torch.float16, 63, passages=31_999) == "float32"


def test_nothing_is_assumed_of_another_makers_device(monkeypatch):
    monkeypatch.setattr(proposals, "best_precision", lambda device: "bfloat16")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert fastest(torch.float16, CUDA, 1024, 200_000, 200) == "float32"


@pytest.mark.parametrize(("operands", "leave"), [("float32", "bf16"), ("bfloat16", "ieee")])
def test_a_search_takes_what_is_chosen(monkeypatch, operands, leave):
    """With instructions for bfloat16, a search of many queries multiplies that; its results are those without."""
    passages, queries = random((2000, 16), seed=9), torch.from_numpy(random((300, 16), seed=10))
    wanted = ExactIndex(passages).search(queries, 5)
    monkeypatch.setattr(proposals, "best_precision", lambda device: "bfloat16")
    seen, multiplied, given, mm = [], set(), proposals.full_precision, torch.mm
    monkeypatch.setattr(proposals, "full_precision", lambda cpu: seen.append(cpu) or given(cpu))
    monkeypatch.setattr(torch, "mm", lambda a, b, **named: multiplied.add(a.dtype) or mm(a, b, **named))
    with bfloat16_of(operands):
        found = ExactIndex(passages).search(queries, 5)
        assert multiplied == {getattr(torch, operands)}
        ExactIndex(passages).search(queries[:20], 5)
    assert seen == [leave, "ieee"]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("capacity", [None, 40])
def test_an_index_gives_up_products_that_do_not_tell_passages_apart(monkeypatch, capacity):
    """Scores lie close together: the margin lets hundreds through, of which room may not be enough for all."""
    rng = np.random.default_rng(6)
    passages, queries = (
        (1 + 0.05 * rng.standard_normal((n, 64))).astype(np.float32) / np.float32(8) for n in (2000, 260)
    )
    wanted = slow_search(queries, passages, 10)[1]
    monkeypatch.setattr(proposals, "best_precision", lambda device: "bfloat16")
    multiplied, mm = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **named: multiplied.append(a.dtype) or mm(a, b, **named))
    if capacity:
        monkeypatch.setattr(proposals.Product, "capacity", lambda self, k, n: capacity)
    with bfloat16_of("bfloat16"):
        index = ExactIndex(passages)
        for _ in range(2):
            np.testing.assert_array_equal(index.search(torch.from_numpy(queries), 10)[1].numpy(), wanted)
        assert index.coarse
        assert multiplied[0] == torch.bfloat16
        assert multiplied[-1] == torch.float32
        multiplied.clear()
        index.search(torch.from_numpy(queries), 10)
        assert set(multiplied) == {torch.float32}


def test_a_large_index_holds_no_more_candidates_than_twice_the_usual(monkeypatch):
    """However many a product would repay: they take memory for each query."""
    held, init = [], exact.Candidates.__init__
    monkeypatch.setattr(exact, "CANDIDATE", 1)
    monkeypatch.setattr(proposals, "best_precision", lambda device: "bfloat16")
    monkeypatch.setattr(
        exact.Candidates, "__init__", lambda self, *a, **named: held.append(a[3]) or init(self, *a, **named)
    )
    with bfloat16_of("bfloat16"):
        ExactIndex(random((2000, 16), seed=9)).search(torch.from_numpy(random((300, 16), seed=10)), 5)
    assert held == [2 * BFLOAT16.capacity(5, 2000)]


def test_float16_products_are_refused_where_there_are_none():
    for dtype in ("float16", "float32"):
        with pytest.raises(SettingsError, match=f"'float16' with torch.{dtype} vectors on cpu"):
            ExactIndex(random((9, 4), dtype), precision="float16").search(torch.ones(1, 4), 1)


def test_the_plain_products_are_themselves():
    choice = partial(choose, queries=torch.ones(2, 3), together=2, passages=9, k=1, largest=1.0)
    assert (choice("float32"), choice("float64")) == (FLOAT32, FLOAT64)
    for operands, product in (("float32", ALLOWED), ("bfloat16", BFLOAT16)):
        with bfloat16_of(operands):
            assert choice("bfloat16") == product
            assert choice("bfloat16", largest=2.0**127) == FLOAT32


def settings():
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    names = (
        *proposals.REDUCTIONS,
        *(f"{name}_split_k" for name in proposals.REDUCTIONS),
        "allow_fp16_accumulation",
    )
    return [getattr(cuda, name) for name in names] + [cuda.fp32_precision, mkldnn.fp32_precision]


def test_settings_of_the_process_are_kept():
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = settings()
    for product, inside in ((FLOAT32, "ieee"), (BFLOAT16, "ieee"), (ALLOWED, "bf16")):
        with contextlib.suppress(KeyError), product.leave():  # also when something fails
            assert (cuda.fp32_precision, mkldnn.fp32_precision) == ("ieee", inside)
            assert not any(getattr(cuda, name) for name in (*proposals.REDUCTIONS, "allow_fp16_accumulation"))
            raise KeyError
        assert settings() == before


@pytest.fixture
def elsewhere():
    """The settings of the process, while another thread is in a block that allows bfloat16."""
    before, inside, done = settings(), Event(), Event()

    def stay():
        with ALLOWED.leave():
            inside.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(stay)
        inside.wait()
        assert settings() != before
        yield before, done
        done.set()
        work.result()
    assert settings() == before


def test_threads_take_turns_with_the_settings_of_the_process(elsewhere):
    before, done = elsewhere
    Timer(0.05, done.set).start()
    with FLOAT32.leave():
        assert done.is_set()  # the other thread is out of its block
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        with ALLOWED.leave():
            assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
    assert settings() == before


def test_a_forked_process_has_the_settings_from_before_a_block_of_another_thread(elsewhere):
    before, _ = elsewhere
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a child that waits
        try:
            kept = settings() == before
            with FLOAT32.leave():
                pass
            os._exit(0 if kept and settings() == before else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_fork_in_a_block_stays_in_it():
    before = settings()
    with ALLOWED.leave():
        within = settings()
        if (child := os.fork()) == 0:
            os._exit(0 if settings() == within != before else 1)
    assert os.waitpid(child, 0)[1] == 0

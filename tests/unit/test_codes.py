"""Integer products propose hits for a search: the bound holds, they are used when they pay, and no bit changes."""

import numpy as np
import pytest
import torch

from calls import uncalled
from hardneg.errors import SettingsError
from hardneg.process import cpu
from hardneg.process.hardware import byte_products_are_exact
from hardneg.process.memory import limit_memory, spare
from hardneg.search import byte_products
from hardneg.search import codes as module
from hardneg.search.byte_products import loop, most_queries
from hardneg.search.codes import PATIENCE, REPAID, TOP, Codes
from hardneg.search.exact import ExactIndex
from hardneg.search.proposals import SLACK
from hardneg.search.vectors import vector_norms
from reference_search import MULTIPLIES_BYTES, bytes_multiply, random, slow_search


@pytest.fixture(autouse=True, params=["torch", "loop"])
def way(request):
    if request.param == "loop" and not loop():
        pytest.skip("numba is not installed")
    with bytes_multiply(request.param):
        yield request.param


def most():
    """The number of queries up to which bytes are used here."""
    return most_queries(torch.device("cpu"))


def bound_and_error(queries, passages):
    """Half the margin [Q], which bounds an error, and the errors [Q, n] against float64, in units of the query."""
    queries, passages = torch.from_numpy(queries), torch.from_numpy(passages)
    norms = vector_norms(queries) * SLACK
    codes = Codes(list(passages.tensor_split(3)), float(vector_norms(passages).max()))
    coded = codes.of(queries, norms)
    found = torch.cat([scores.double().clone() for _, scores in codes.products(coded, 37)], dim=1)
    unit = (queries.double() / codes.scale.double()).abs().amax(1, keepdim=True) / TOP
    wanted = queries.double() @ (passages.double() - codes.center.double()).T / unit
    return coded.margin.double() / 2, (found - wanted).abs()


# ---------------------------------------------------------------- the bound


def test_codes_by_hand():
    passages = torch.tensor([[-1.0, 10.0], [1.0, 10.0], [0.25, 12.0]])
    codes = Codes([passages], 13.0)
    assert codes.center.tolist() == [0, 11]
    assert codes.scale.tolist() == [127, 127]
    assert codes.codes.tolist() == [[-127, -127, 0, 0], [127, -127, 0, 0], [32, 127, 0, 0]]  # 31.75 is rounded
    coded = codes.of(torch.tensor([[2.0, 0.75], [0.0, 3.0]]), torch.tensor([2.2, 3.1]).double())
    # 47.625 = 48 - 95.25 / 254
    assert coded.codes[:, :2].tolist() == [[127, 48], [0, 127], [0, -95], [0, 0]]
    products = next(codes.products(coded))[1]
    assert products[1].tolist() == [-127 * 127, -127 * 127, 127 * 127]
    second = 48 - 95 / 254
    wanted = [-127 * 127 - 127 * second, 127 * 127 - 127 * second, 127 * 32 + 127 * second]
    np.testing.assert_allclose(products[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [1, 3, 64, 769])
@pytest.mark.parametrize("scale", [2.0**-14, 1, 2.0**10])
@pytest.mark.parametrize("queries", [1, 7])
def test_the_bound_holds(dim, dtype, scale, queries):
    for seed in range(5):
        q, p = (
            (random((n, dim), "float64", 2 * seed + n, unit=False) * scale).astype(dtype) for n in (queries, 200)
        )
        p[:, dim // 2] *= np.asarray(8, dtype)  # one dimension reaches further than others
        bound, error = bound_and_error(q, p)
        assert (error <= bound[:, None]).all()
        assert (bound <= 127 * dim**0.5 * 127 * (1 + dim**0.5)).all()  # it says something


@pytest.mark.parametrize("dim", [4, 96, 384])
def test_the_bound_is_met(dim):
    """Where the errors of all numbers are as large as can be, and add up, little of it is left."""
    signs = np.random.default_rng(dim).choice([-1.0, 1.0], dim)
    steps = np.arange(-126, 126)[:, None] + 0.499 * signs  # rounded to the whole number, against the query
    ends = np.array([[-127.0], [127.0]]) * np.ones(dim)
    passages, queries = (
        np.concatenate([steps, ends]).astype(np.float32),
        np.stack([signs, signs]).astype(np.float32),
    )
    bound, error = bound_and_error(queries, passages)
    assert (error <= bound[:, None]).all()
    assert float(error.max()) > 0.95 * float(bound[0])


@pytest.mark.skipif(not MULTIPLIES_BYTES, reason="this processor does not multiply bytes")
def test_products_are_exact_here():
    assert byte_products_are_exact()


def search_with(index, queries, **flaw):
    """Rows [Q, 50] of an index whose codes have ``flaw``."""
    for name, value in flaw.items():
        setattr(index.coding.codes(), name, value)
    return index.search(torch.from_numpy(queries), 50)[1].numpy()


def test_without_the_part_of_the_passages_results_are_wrong():
    passages, queries = random((3000, 64), seed=4), random((20, 64), seed=5)
    index = ExactIndex(passages, precision="int8")
    wanted = slow_search(queries, passages, 50)[1]
    np.testing.assert_array_equal(search_with(index, queries), wanted)
    assert (search_with(index, queries, loss=1e-9) != wanted).any()


def test_without_the_part_of_the_query_results_are_wrong():
    """Passages that codes hold as they are, and queries that they do not."""
    passages = np.random.default_rng(4).integers(-127, 128, (3000, 64)).astype(np.float32)
    passages[:2] = [[-127], [127]]
    queries = random((20, 64), "float32", seed=5)
    index = ExactIndex(passages, precision="int8")
    flawed = []
    for i in range(20):  # one by one: several have a second code each
        wanted = slow_search(queries[i : i + 1], passages, 50)[1]
        index.coding.made = None
        np.testing.assert_array_equal(search_with(index, queries[i : i + 1]), wanted)
        flawed.append((search_with(index, queries[i : i + 1], largest=1e-9) != wanted).any())
    assert any(flawed)


def check(queries, passages, *ks, **layout):
    index = ExactIndex(passages, precision="int8", **layout)
    whole = np.concatenate(passages) if isinstance(passages, list) else passages
    for k in ks:
        scores, rows = index.search(torch.from_numpy(queries), k)
        wanted = slow_search(queries, whole, k)
        np.testing.assert_array_equal(rows.numpy(), wanted[1])
        np.testing.assert_array_equal(scores.numpy(), wanted[0])
    return index


def test_ranges_of_a_few_units_in_the_last_place():
    """The middle of such a range is no float32: one end would get a code beyond 127."""
    wrapped = 0
    for reach in (1, 3, 7, 25, 51, 127, 253, 254):
        passages = np.array([[1], [1 + reach // 2 * 2.0**-23], [1 + reach * 2.0**-23]], np.float32)
        codes = Codes([torch.from_numpy(passages)], 2.0)
        assert codes.codes[0, 0] <= 0 <= codes.codes[2, 0] > codes.codes[0, 0]
        wrapped += float((codes.center - 1) * 2**23 * 2) != reach
        for sign in (1, -1):
            check(np.full((1, 1), sign, np.float32), passages, 1, 2)
    assert wrapped  # the middle was rounded


def test_numbers_too_far_apart_for_codes():
    """A large constant beside tiny numbers: the margin says nothing, and float32 proposes."""
    passages = np.zeros((400, 2), np.float32)
    passages[:, 0], passages[:, 1] = 1.3 * 2.0**60, 1e-30 * np.random.default_rng(0).normal(size=400)
    for value in (1.7, 1.9):
        check(np.full((1, 2), value, np.float32), passages, 1, 3)


def test_an_empty_shard():
    passages = random((60, 16), seed=8)
    check(random((3, 16), seed=9), [passages[:40], passages[:0], passages[40:]], 5)


def test_one_passage_far_from_all_others():
    """All others share a few codes: more may be among the best than are held, and float32 proposes."""
    passages = random((5000, 48), "float32", seed=6)
    passages[7] *= 1e4
    index = check(random((6, 48), "float32", seed=7), passages, 1, 10, chunk=700)
    assert index.coding.crowded == 2


# ---------------------------------------------------------------- when they are made


@pytest.fixture
def index(monkeypatch):
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "spare", lambda: 1 << 30)
    return ExactIndex(random((2000, 32), seed=1))


def ask(index, queries, times):
    for i in range(times):
        found = index.search(torch.from_numpy(random((queries, 32), seed=i)), 5)[1].numpy()
        np.testing.assert_array_equal(
            found, slow_search(random((queries, 32), seed=i), random((2000, 32), seed=1), 5)[1]
        )


def test_small_searches_make_codes_once_they_repay(index):
    ask(index, 3, REPAID - 1)
    assert index.coding.made is None
    ask(index, 3, 1)
    made = index.coding.made
    assert made is not None

    def another():
        ask(ExactIndex(random((2000, 32), seed=1)), 3, REPAID)

    with uncalled(module, "Codes", "spare", "can_multiply", control=another):  # nor is what allowed them
        ask(index, 1, 3)
    with uncalled(Codes, "of", control=lambda: ask(index, most(), 1)):
        ask(index, most() + 1, 1)


def test_codes_that_tell_nothing_apart_are_given_up(monkeypatch):
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "spare", lambda: 1 << 30)
    passages = random((5000, 32), "float32", seed=1)
    passages[0] *= 1e4
    index = ExactIndex(passages)
    for i in range(REPAID + PATIENCE + 2):
        query = random((1, 32), "float32", seed=i)
        found = index.search(torch.from_numpy(query), 5)[1].numpy()
        np.testing.assert_array_equal(found, slow_search(query, passages, 5)[1])
        assert (index.coding.made is not None) == (REPAID - 1 <= i < REPAID + PATIENCE - 2)
    assert index.coding.crowded == PATIENCE


def test_a_few_odd_queries_are_no_reason_to_give_codes_up(index, monkeypatch):
    monkeypatch.setattr(module, "RARE", 10)
    ask(index, 1, REPAID)
    for _ in range(PATIENCE + 3):
        index.coding.crowd()  # as an odd query does
        ask(index, 1, 10)
        assert index.coding.made is not None
    for _ in range(2 * PATIENCE):
        index.coding.crowd()
    ask(index, 1, 1)
    assert index.coding.made is None
    assert index.coding.given_up


def test_large_searches_make_none(index):
    ask(index, most() + 1, REPAID + 1)
    assert index.coding.made is None


def test_without_memory_to_spare_none_are_made(index, monkeypatch):
    monkeypatch.setattr(module, "spare", lambda: 0)
    ask(index, 1, REPAID + 3)
    assert index.coding.made is None


def test_where_products_are_wrong_none_are_made(index):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "byte_products_are_exact", lambda: False)
        patch.setattr(byte_products, "loop", lambda: None)
        ask(index, 1, REPAID + 3)
        assert index.coding.made is None
        with pytest.raises(SettingsError, match="precision = 'int8'"):
            ExactIndex(random((20, 32)), precision="int8").search(torch.ones(1, 32), 5)


def test_few_passages_need_none():
    index = ExactIndex(random((2000, 32), seed=1))
    ask(index, 1, REPAID + 3)
    assert index.coding.made is None


def test_a_limit_leaves_half_of_its_room_to_spare():
    without = spare()
    assert without > 0
    limit_memory("64G")
    try:
        assert 16 << 30 < spare() < 32 << 30
    finally:
        limit_memory()

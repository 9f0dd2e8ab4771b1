"""Exact search against a full sort of float64 scores, bit for bit, whatever the tiles, chunks and shards."""

import numpy as np
import pytest
import torch

from hardneg.errors import ArtifactError, InputError, NumericError, SettingsError
from hardneg.search.exact import ExactIndex
from hardneg.search.pairs import tree_sum
from hardneg.search.topk_selection import Candidates
from reference_search import check, random, search, slow_scores, slow_search


def test_by_hand():
    passages = np.array([[1, 0], [0, 2], [1, 1], [0, 2]], np.float16)
    scores, rows = search(np.array([[1, 1], [-1, 0.5]], np.float16), passages, 3)
    assert rows.tolist() == [[1, 2, 3], [1, 3, 2]]
    assert scores.tolist() == [[2, 2, 2], [1, 1, -0.5]]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [1, 3, 24, 64, 100])
def test_equals_a_full_sort(dim, dtype):
    unit = dim > 1
    passages, queries = random((600, dim), dtype, 1, unit), random((11, dim), dtype, 2, unit)
    check(queries, passages, 1, 7, 100, 600, 900)


def test_queries_are_rounded_to_the_stored_type():
    passages, queries = random((300, 32)), random((9, 32), "float32", 3)
    scores, rows = search(torch.from_numpy(queries), passages, 20)
    expected = slow_search(queries.astype(np.float16), passages, 20)
    np.testing.assert_array_equal(rows.numpy(), expected[1])
    np.testing.assert_array_equal(scores.numpy(), expected[0])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_products_of_many_queries_are_of_fewer_passages(dtype, monkeypatch):
    """On the CPU, so that the scores stay in its cache; the hits are the same."""
    passages, queries = random((9000, 16), dtype, 21), random((1500, 16), dtype, 22)
    shapes, real = set(), torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **named: shapes.add((len(a), b.shape[1])) or real(a, b, **named))
    found = ExactIndex(passages, precision="float32").search(torch.from_numpy(queries), 5)
    widest = max(columns for rows, columns in shapes if rows == 1024)
    assert widest == (4096 if dtype == "float32" else 2048)
    assert max(columns for rows, columns in shapes if rows == 476) == (8192 if dtype == "float32" else 2048)
    given = ExactIndex(passages, precision="float32", chunk=16384).search(torch.from_numpy(queries), 5)
    for one, other in zip(found, given, strict=True):
        assert torch.equal(one, other)


def test_ties_are_cut_by_row():
    """Most passages are copies of a few, so ties run through every cut and overflow every buffer."""
    rng = np.random.default_rng(4)
    passages = random((12, 48), seed=5)[rng.integers(0, 12, 3000)]
    queries = random((6, 48), seed=6)
    check(queries, passages, 1, 10, 250)


def test_all_passages_alike():
    passages = np.repeat(random((1, 33), seed=7), 2500, 0)
    check(random((3, 33), seed=8), passages, 20)


def test_scores_that_rise_with_the_row():
    """Every passage beats all before it: nothing a running threshold could have ruled out."""
    direction = random((1, 16), "float32", 9)
    passages = (direction * np.linspace(0.5, 1, 3000)[:, None]).astype(np.float32)
    queries = np.concatenate([direction, -direction, random((2, 16), "float32", 10)])
    check(queries, passages, 15)


@pytest.mark.parametrize("dim", [130, 384])
def test_scores_closer_than_a_float32_product_can_tell(dim):
    """Passages that differ in the last bits: proposals of float32 tiles are in the wrong order."""
    rng = np.random.default_rng(11)
    base = random((1, dim), "float32", 12)
    passages = (base + 1e-7 * rng.normal(size=(1500, dim))).astype(np.float32)
    queries = np.concatenate([base, random((3, dim), "float32", 13)])
    proposed = torch.from_numpy(queries[:1]) @ torch.from_numpy(passages).T
    best = slow_search(queries[:1], passages, 10)[1][0]
    assert set(proposed[0].topk(10).indices.tolist()) != set(best.tolist())  # or the test could not fail
    check(queries, passages, 1, 10, 100)


def test_float16_scores_closer_than_a_float32_product_can_tell():
    """One large product and hundreds of tiny ones: what tells passages apart is a float32 rounding error."""
    passages, queries = (random((n, 769), seed=seed) * np.float16(0.01) for n, seed in ((1500, 14), (3, 15)))
    passages[:, 0] = queries[:, 0] = 1
    proposed = torch.from_numpy(queries).float() @ torch.from_numpy(passages).float().T
    best = slow_search(queries, passages, 10)[1]
    assert (np.sort(proposed.topk(10).indices.numpy()) != np.sort(best)).any()  # or the test could not fail
    check(queries, passages, 10)


def test_sums_that_round_differently_in_another_order():
    """Scores next to the middle of two float32 numbers, where only the fixed tree decides."""
    rng = np.random.default_rng(17)
    terms = np.zeros(61)
    terms[:4] = 1, 2.0**-24, 2.0**-53, 2.0**-53
    passages = np.stack([rng.permutation(terms) for _ in range(400)]).astype(np.float32)
    queries = np.ones((2, 61), np.float32)
    assert len(np.unique(slow_scores(queries, passages))) == 2
    check(queries, passages, 50)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e10, 1e18])
def test_norms_far_from_one(scale):
    passages = random((500, 20), "float32", 18) * np.float32(scale)
    passages[::3] *= np.float32(1e-3)
    check(random((4, 20), "float32", 19) * np.float32(scale), passages, 30)


def test_float16_numbers_below_the_normal_range():
    passages = random((500, 20), seed=20, unit=False) * np.float16(2.0**-22)
    passages[(passages == 0).all(1)] = np.float16(2.0**-24)
    assert (np.abs(passages) < 2.0**-14).all()
    check(random((4, 20), seed=21), passages, 30)


def test_large_float16_norms():
    passages = random((500, 40), seed=22, unit=False) * np.float16(10000)
    check(random((4, 40), seed=23, unit=False) * np.float16(10000), passages, 30)


def test_memory_mapped(tmp_path):
    passages, queries = random((300, 16), seed=24), random((4, 16), seed=25)
    np.save(tmp_path / "p.npy", passages)
    mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
    scores, rows = search(queries, mapped, 5)
    np.testing.assert_array_equal(rows.numpy(), slow_search(queries, passages, 5)[1])
    assert len(scores) == 4


def test_a_lowered_precision_of_the_process_changes_nothing():
    """Products of a process that allows TF32 or bfloat16 stay full float32, and its choice is kept."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        check(random((4, 64), seed=26), random((500, 64), seed=27), 20)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_tree_sum_by_hand():
    terms = torch.tensor([[1.0, 2.0**-53, 2.0**-53, 0.0, 0.0], [1, 2, 3, 4, 5]], dtype=torch.float64)
    # ((1 + 2^-53) + 2^-53) would be 1; padded to eight and halved, the two small terms meet the 1 one by one too,
    # unless they stand two apart: then they meet each other first.
    apart = torch.tensor([[1.0, 2.0**-53, 0.0, 2.0**-53]], dtype=torch.float64)
    assert tree_sum(terms).tolist() == [1.0, 15.0]
    assert tree_sum(apart).tolist() == [1 + 2.0**-52]


def test_candidates_survive_the_worst_proposals():
    """Proposals as wrong as the margin allows: the best too low, all others too high."""
    rng = np.random.default_rng(32)
    exact = torch.from_numpy(rng.permutation(np.arange(1000)) / 1024).repeat(3, 1)
    error = 5 / 1024
    k = 10
    proposals = exact + torch.where(exact >= exact.topk(k).values.amin(1, True), -error, error)

    class Scorer:
        def scores(self, ids, sums, rows):
            return torch.where(sums == -torch.inf, -torch.inf, exact[ids[:, None], rows.long()]).float()

    candidates = Candidates(Scorer(), torch.full((3,), 2 * error + 1e-9, dtype=torch.float64), k, 4 * k + 64)
    for start in range(0, 1000, 170):
        candidates.absorb(torch.arange(3), proposals[:, start : start + 170], start)
    scores, rows = candidates.best()
    expected = exact.topk(k)
    assert torch.equal(rows.long(), expected.indices)
    assert torch.equal(scores.double(), expected.values)
    assert not torch.equal(proposals.topk(k).indices.sort().values, expected.indices.sort().values)


def test_requests_that_make_no_sense():
    passages, query = random((10, 4)), torch.ones(1, 4)
    with pytest.raises(SettingsError, match="BAD_K"):
        search(query, passages, 0)
    with pytest.raises(InputError, match="NO_QUERIES"):
        search(query[:0], passages, 3)
    with pytest.raises(InputError, match="NO_PASSAGES"):
        search(query, passages[:0], 3)
    with pytest.raises(ArtifactError, match="dimension 5, passages 4"):
        search(torch.ones(1, 5), passages, 3)
    with pytest.raises(ArtifactError, match="float64"):
        search(query, passages.astype(np.float64), 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_vectors_that_are_not_vectors(value):
    bad = random((10, 4), "float32")
    bad[6] = value
    with pytest.raises(NumericError, match="passage row 6"):
        ExactIndex(bad)
    with pytest.raises(NumericError, match="query 6"):
        search(torch.from_numpy(bad), random((10, 4), "float32"), 3)


def test_queries_that_overflow_the_stored_type():
    with pytest.raises(NumericError, match="query 0"):
        search(torch.full((1, 4), 1e6), random((10, 4)), 3)


def test_scores_that_would_overflow():
    huge = np.full((3, 4), 1e30, np.float32)
    with pytest.raises(NumericError, match="SCORE_OVERFLOW"):
        search(torch.from_numpy(huge), huge, 1)

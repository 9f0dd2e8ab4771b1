"""Paired tests: closed forms, exact against sampled, and against scipy."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from hardneg.evaluation import significance
from hardneg.evaluation.significance import (
    EXACT,
    bootstrap_interval,
    holm,
    holm_within,
    paired_t_test,
    randomization_test,
)


def loop_exact(differences):
    observed = abs(sum(differences))
    patterns = itertools.product([1, -1], repeat=len(differences))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in patterns]
    return sum(total >= observed - 1e-12 for total in sums) / len(sums)


def test_closed_form_of_equal_differences():
    # n equal differences: only all-plus and all-minus reach the observed sum
    for n in (1, 3, 10, EXACT):
        assert randomization_test(np.full(n, 0.7), np.full(n, 0.4), seed=0) == 2 * 0.5**n


def test_binomial_closed_form():
    # 9 gains and 1 loss of one size: |sum| >= 8 means at most one sign against the rest
    a = np.array([1.0] * 9 + [0.0])
    assert randomization_test(a, 1 - a, seed=0) == 2 * (1 + 10) / 2**10


def test_exact_equals_enumeration_and_ignores_equal_queries():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 4, (2, 9)) / 3
    expected = loop_exact(list(a - b))
    assert randomization_test(a, b, seed=0) == expected
    same = np.linspace(0, 1, 500)
    assert randomization_test(np.append(a, same), np.append(b, same), seed=0) == expected


def test_no_difference():
    a = np.linspace(0, 1, 50)
    assert randomization_test(a, a, seed=0) == 1.0
    assert paired_t_test(a, a) == 1.0


@pytest.mark.parametrize("shift", [0.0, 0.12, 0.3])
def test_sampled_agrees_with_exact(monkeypatch, shift):
    generator = np.random.default_rng(3)
    a = generator.random(14)
    b = a + generator.normal(shift, 0.3, 14)
    exact = randomization_test(a, b, seed=0)
    monkeypatch.setattr(significance, "EXACT", 0)
    sampled = [randomization_test(a, b, permutations=100_000, seed=seed) for seed in range(3)]
    error = 4 * math.sqrt(exact * (1 - exact) / 100_000) + 2e-5
    assert all(abs(p - exact) < error for p in sampled)
    assert len(set(sampled)) > 1
    assert sampled[0] == randomization_test(a, b, permutations=100_000, seed=0)


def test_sampled_agrees_with_scipy_over_many_queries():
    generator = np.random.default_rng(4)
    a, b = generator.random((2, 300))
    b += 0.04
    ours = randomization_test(a, b, permutations=20_000, seed=1)
    theirs = scipy.stats.permutation_test(
        (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples", vectorized=True,
        n_resamples=20_000, rng=np.random.default_rng(0),
    ).pvalue  # fmt: skip
    assert 0.001 < ours < 0.9
    assert abs(ours - theirs) < 5 * math.sqrt(2 * ours * (1 - ours) / 20_000)


def test_smallest_p_is_one_in_permutations_plus_one():
    assert randomization_test(np.ones(100), np.zeros(100), permutations=999, seed=0) == 1 / 1000


def test_p_is_uniform_without_an_effect():
    generator = np.random.default_rng(5)
    ps = [randomization_test(*generator.random((2, 40)), permutations=199, seed=seed) for seed in range(400)]
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_t_test_equals_scipy():
    generator = np.random.default_rng(6)
    a, b = generator.random((2, 37))
    assert paired_t_test(a, b) == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-10)
    # differences 1, 2, 3: t = 2 / (1 / sqrt 3), and with 2 degrees of freedom p = 1 - t / sqrt(2 + t²)
    t = 2 * math.sqrt(3)
    assert paired_t_test(np.array([1.0, 2, 3]), np.zeros(3)) == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert paired_t_test(np.array([1.0]), np.zeros(1)) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]).tolist() == [1.0, 1.0]
    assert holm([0.2]).tolist() == [0.2]
    assert len(holm([])) == 0
    assert holm_within(["a", "b", "a", "b"], [0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.03, 0.01])
    assert len(holm_within([], [])) == 0


def test_bootstrap_interval():
    values = np.random.default_rng(7).normal(0.3, 1.0, 400)
    low, high = bootstrap_interval(values, samples=4000, seed=2)
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.01)
    assert high == pytest.approx(values.mean() + half, abs=0.01)
    assert (low, high) == bootstrap_interval(values, samples=4000, seed=2)
    wide = bootstrap_interval(values, level=0.99, samples=4000, seed=2)
    assert wide[0] < low < high < wide[1]
    assert bootstrap_interval(np.full(5, 0.25), samples=10, seed=0) == (0.25, 0.25)


def test_blocks_of_the_bootstrap_change_nothing(monkeypatch):
    values = np.random.default_rng(8).random(50)
    whole = bootstrap_interval(values, samples=300, seed=3)
    monkeypatch.setattr(significance, "_BLOCK", 170)
    significance._kept_draws.cache_clear()
    assert bootstrap_interval(values, samples=300, seed=3) == whole


def test_draws_that_are_kept_are_those_that_are_made_anew(monkeypatch):
    """What is kept belongs to a seed, a number of queries and a number of samples."""
    drawn = np.random.default_rng(9)
    cases = [(drawn.random(n), samples, seed) for n in (50, 50, 51) for samples in (300, 200) for seed in (3, 4)]
    kept = [bootstrap_interval(values, samples=samples, seed=seed) for values, samples, seed in cases * 2]
    monkeypatch.setattr(significance, "_KEPT", 0)
    anew = [bootstrap_interval(values, samples=samples, seed=seed) for values, samples, seed in cases]
    assert kept == anew * 2
    assert len(set(anew)) == len(cases)

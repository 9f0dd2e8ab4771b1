"""Score profile and informative negatives: by hand, and against loops."""

import numpy as np
import pytest

from hardneg.diagnostics.score_profile import corpus_means, in_batch_share, score_profile, training_overlap
from worlds.tiny_records import pool_of, positives_of, run_of


def test_profile_by_hand():
    run = run_of([[(1, 5.0), (2, 3.0), (3, 1.0)], [(1, 4.0)]])
    passages = np.array([[1, 0], [3, 2]], np.float32)
    means = corpus_means(np.array([[1, 0], [0, 2]], np.float32), passages.mean(axis=0))
    assert means.tolist() == [2, 2]
    found = score_profile(run, means, depth=3)
    np.testing.assert_array_equal(found.scores, np.array([[3, 1, -1], [2, np.nan, np.nan]], np.float32))
    np.testing.assert_allclose(found.quantiles((0.5,)), [[2.5, 1, -1]])
    np.testing.assert_allclose(score_profile(run, means, depth=4).quantiles((0.5,)), [[2.5, 1, -1, np.nan]])


def test_the_mean_of_a_corpus_is_that_of_all_scores():
    rng = np.random.default_rng(1)
    queries, passages = rng.normal(size=(5, 8)).astype(np.float32), rng.normal(size=(40, 8)).astype(np.float32)
    means = corpus_means(queries, passages.mean(axis=0))
    np.testing.assert_allclose(means, (queries @ passages.T).mean(axis=1), atol=1e-5)


def test_overlap_by_hand():
    run = run_of([[9, 1, 2, 3], [4, 5], [6]])
    negatives = pool_of([[1, 1], [3, 5]])
    assert training_overlap(run, negatives, depth=2).tolist() == [0.5, 0.5, 0]
    found = training_overlap(run, negatives, positives=positives_of([[9], [8], [6]]), depth=3)
    np.testing.assert_array_equal(found, [2 / 3, 0.5, np.nan])


def test_overlap_equals_a_loop():
    rng = np.random.default_rng(2)
    run = run_of([rng.choice(50, 20, replace=False).tolist() for _ in range(30)])
    positives = positives_of([rng.choice(50, 3, replace=False).tolist() for _ in range(30)])
    negatives = pool_of([rng.choice(70, 4).tolist() for _ in range(9)])
    trained = set(negatives.passage_rows.tolist())
    for i, share in enumerate(training_overlap(run, negatives, positives=positives, depth=8)):
        first = [row for row in run.hits(i)[0].tolist() if row not in positives.of(i)][:8]
        assert share == pytest.approx(np.mean([row in trained for row in first]))


def test_in_batch_by_hand():
    positives = positives_of([[1], [2, 3], [4], []])
    near = run_of([[2, 9], [1, 4], [7], [1]])
    # query 0 meets 2 in half of the cases with query 1, so a quarter; query 1 always something near; query 2 never
    assert in_batch_share(near, positives) == pytest.approx((1 / 4 + 1 + 0) / 3)
    assert np.isnan(in_batch_share(near, positives_of([[1]])))
    assert in_batch_share(run_of([[2]], query_rows=[50]), positives) == 0


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_in_batch_equals_a_loop(block, monkeypatch):
    monkeypatch.setattr("hardneg.diagnostics.score_profile._BLOCK", block)
    rng = np.random.default_rng(3)
    positives = positives_of([rng.choice(25, rng.integers(1, 4), replace=False).tolist() for _ in range(20)])
    lists = [[p for p in rng.permutation(25)[:10].tolist() if p not in positives.of(i)] for i in range(20)]
    shares = []
    for i in range(20):
        near = others = 0.0
        for j in range(20):
            for passage in positives.of(j).tolist():
                if j != i and passage not in positives.of(i):
                    others += 1 / len(positives.of(j))
                    near += (passage in lists[i]) / len(positives.of(j))
        shares.append(near / others)
    order = rng.permutation(20).tolist()
    found = in_batch_share(run_of({i: lists[i] for i in order}), positives)
    assert found == pytest.approx(np.mean(shares))

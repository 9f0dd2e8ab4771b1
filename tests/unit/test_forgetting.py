"""Forgetting: by hand, and against a slow loop."""

import numpy as np

from hardneg.diagnostics.forgetting import (
    forgetting_rate,
    learned_share,
    reciprocal_ranks,
    sample_queries,
    trajectories,
)
from worlds.tiny_records import positives_of, run_of


def test_by_hand():
    positives = positives_of([[7], [1, 2], [3], [4]])
    before = run_of([[(7, 2.0), (0, 1.0)], [(0, 3.0), (2, 2.0)], [(0, 1.0)], [(5, 2.0), (4, 1.0)]])
    after = run_of([[(0, 2.0), (7, 1.0)], [(1, 3.0), (2, 2.0)], [(0, 1.0)], [(5, 2.0), (4, 1.0)]])
    first, second = reciprocal_ranks(before, positives), reciprocal_ranks(after, positives)
    assert first.tolist() == [1.0, 0.5, 0.0, 0.5]
    assert second.tolist() == [0.5, 1.0, 0.0, 0.5]
    assert forgetting_rate(first, second) == 1 / 4
    assert learned_share(first, second) == 1 / 4


def test_below_the_depth_counts_nothing():
    hits = [(row, -float(row)) for row in range(150)]
    positives = positives_of([[99], [100], [149]])
    assert reciprocal_ranks(run_of([hits] * 3), positives).tolist() == [1 / 100, 0.0, 0.0]
    assert reciprocal_ranks(run_of([hits] * 3), positives, depth=101).tolist() == [1 / 100, 1 / 101, 0.0]


def test_rank_by_score_then_row_whatever_the_order_of_the_hits():
    generator = np.random.default_rng(0)
    lists, relevant, expected = [], [], []
    for _ in range(80):
        rows = generator.choice(60, int(generator.integers(0, 40)), replace=False)
        lists.append([(int(row), float(generator.integers(5))) for row in rows])
        relevant.append(generator.choice(60, int(generator.integers(0, 4)), replace=False).tolist())
        ranking = sorted(lists[-1], key=lambda hit: (-hit[1], hit[0]))[:10]
        ranks = [rank for rank, (row, _) in enumerate(ranking, 1) if row in relevant[-1]]
        expected.append(1 / min(ranks) if ranks else 0.0)
    assert reciprocal_ranks(run_of(lists), positives_of(relevant), depth=10).tolist() == expected
    assert 0.0 in expected
    assert len(set(expected)) > 3


def test_queries_absent_from_the_run_count_zero():
    run, positives = run_of([[(0, 1.0)]]), positives_of([[0], [0]])
    assert reciprocal_ranks(run, positives).tolist() == [1.0, 0.0]


def test_sampled_queries_are_keyed():
    rows = np.arange(1000, dtype=np.int32)
    drawn = sample_queries(rows, seed=1)
    assert len(set(drawn.tolist())) == 10
    assert drawn.tolist() == sample_queries(rows, seed=1).tolist()
    assert drawn.tolist() != sample_queries(rows, seed=2).tolist()
    assert rows[::-1][sample_queries(rows[::-1], seed=1)].tolist() == drawn.tolist()[::-1]
    assert sample_queries(rows[:3], seed=1).tolist() == [0, 1, 2]


def test_trajectories():
    episodes = [np.array([0.0, 0.5, 1.0]), np.array([0.25, 0.5, 0.0])]
    assert trajectories(episodes, np.array([0, 2])).tolist() == [[0.0, 0.25], [1.0, 0.0]]

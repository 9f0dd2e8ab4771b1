"""Training groups: windows over a shuffled pool, rotating positives, and purity."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hardneg.keyed_random import hash64, key
from hardneg.negatives.groups import draw_groups, epoch_order, usable
from worlds.tiny_records import pool_of


def numbered(lengths, n_positives, *, query_rows=None):
    """Query i has entries 100 i, 100 i + 1, … and positives 9000 + 10 i, …; every third entry is momentum."""
    lists = [100 * i + np.arange(n) for i, n in enumerate(lengths)]
    positives = [9000 + 10 * i + np.arange(n) for i, n in enumerate(n_positives)]
    rows = np.concatenate(lists)
    sources, episodes = 3 + rows % 2, np.where(rows % 3 == 0, 1, 2)
    return pool_of(lists, positives, query_rows=query_rows, source=sources, episode=2, episodes=episodes)


POOL = numbered([12, 3, 7, 120, 5], [1, 2, 3, 1, 4], query_rows=[50, 40, 30, 20, 10])
EVERY = np.arange(5)


def slow_group(pool, i, epoch, size, seed, rotate, fresh=False):
    """The positive and negatives of one query, by the definition."""
    query = pool.query_rows[i : i + 1]
    entries = pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]].tolist()
    parts = ("group/fresh", pool.episode, epoch) if fresh else ("group", pool.episode)
    base = key(seed, *parts)
    words = [int(hash64(base, query, np.array([j]))[0]) for j in range(len(entries))]
    shuffled = [entries[j] for j in sorted(range(len(entries)), key=words.__getitem__)]
    if len(entries) < size:
        base = key(seed, "group/small", pool.episode, epoch)
        draws = [int(hash64(base, query, np.array([j]))[0]) for j in range(size)]
        negatives = [shuffled[math.floor((word >> 11) * 2.0**-53 * len(entries))] for word in draws]
    else:
        first = 0 if fresh else epoch * size
        negatives = [shuffled[(first + j) % len(entries)] for j in range(size)]
    known = pool.positives.of(i).tolist()
    word = int(hash64(key(seed, "group/positive", 0 if fresh else pool.episode), query)[0])
    start = math.floor((word >> 11) * 2.0**-53 * len(known))
    return known[(start + epoch) % len(known) if rotate else 0], negatives


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("size", [1, 4, 7, 31])
def test_groups_equal_a_slow_loop(rotate, fresh, size):
    for epoch in range(5):
        groups = draw_groups(POOL, EVERY, epoch, size=size, seed=9, rotate=rotate, fresh=fresh)
        for i in EVERY:
            positive, negatives = slow_group(POOL, i, epoch, size, 9, rotate, fresh)
            assert groups.positive_rows[i] == positive
            assert groups.negative_rows[i].tolist() == negatives
        assert groups.query_rows.tolist() == POOL.query_rows.tolist()
        np.testing.assert_array_equal(groups.sources, 3 + groups.negative_rows % 2)
        np.testing.assert_array_equal(groups.momentum, groups.negative_rows % 3 == 0)


@pytest.mark.parametrize("size", [3, 7, 8, 31])
def test_an_entry_returns_only_after_all_others(size):
    seen = []
    for epoch in range(60):
        seen += draw_groups(POOL, np.array([3]), epoch, size=size, seed=1).negative_rows[0].tolist()
    entries = set(POOL.passage_rows[POOL.offsets[3] : POOL.offsets[4]].tolist())
    for start in range(0, len(seen) - 120, 120):
        assert set(seen[start : start + 120]) == entries


def test_a_small_pool_is_drawn_with_replacement_anew_in_every_epoch():
    draws = [draw_groups(POOL, np.array([1]), epoch, size=11, seed=1).negative_rows[0] for epoch in range(99)]
    shares = np.bincount(np.concatenate(draws) - 100) / (99 * 11)
    np.testing.assert_allclose(shares, 1 / 3, atol=0.06)
    assert len({tuple(drawn) for drawn in draws}) > 90


def test_fresh_draws_are_uniform_and_without_replacement_inside_a_group():
    found = Counter()
    for epoch in range(2000):
        drawn = draw_groups(POOL, np.array([2]), epoch, size=3, seed=1, fresh=True).negative_rows[0].tolist()
        assert len(set(drawn)) == 3
        found.update(drawn)
    np.testing.assert_allclose([found[200 + j] / 2000 for j in range(7)], 3 / 7, atol=0.05)


def test_positives_rotate_through_all():
    for i, expected in ((1, {9010, 9011}), (4, {9040, 9041, 9042, 9043})):
        rows = [int(draw_groups(POOL, np.array([i]), t, size=2, seed=1).positive_rows[0]) for t in range(8)]
        assert set(rows[: len(expected)]) == expected
        assert rows[len(expected) :] == rows[: 8 - len(expected)]
    starts = numbered([1] * 300, [2] * 300)
    first = draw_groups(starts, np.arange(300), 0, size=1, seed=1).positive_rows % 10
    assert 100 < first.sum() < 200  # an episode that stops in its first epoch does not see first positives only


def test_copies_of_a_passage_are_separate_columns():
    twice = replace(POOL, passage_rows=np.full_like(POOL.passage_rows, 5))
    groups = draw_groups(twice, EVERY, 0, size=4, seed=1)
    assert groups.negative_rows.shape == (5, 4)
    assert (groups.negative_rows == 5).all()


def test_batches_workers_and_order_change_nothing():
    whole = draw_groups(POOL, EVERY, 3, size=6, seed=4)
    order = np.array([4, 0, 2, 4])
    part = draw_groups(POOL, order, 3, size=6, seed=4)
    np.testing.assert_array_equal(part.negative_rows, whole.negative_rows[order])
    np.testing.assert_array_equal(part.positive_rows, whole.positive_rows[order])
    sub = draw_groups(POOL.select(order[:3]), np.arange(3), 3, size=6, seed=4)
    np.testing.assert_array_equal(sub.negative_rows, whole.negative_rows[order[:3]])


def test_shuffles_depend_on_seed_and_episode():
    plain = draw_groups(POOL, np.array([3]), 0, size=31, seed=4).negative_rows.tolist()
    assert draw_groups(POOL, np.array([3]), 0, size=31, seed=5).negative_rows.tolist() != plain
    later = replace(POOL, episode=3)
    assert draw_groups(later, np.array([3]), 0, size=31, seed=4).negative_rows.tolist() != plain


def test_usable_queries_have_both():
    pool = numbered([2, 0, 4, 0], [1, 1, 0, 0])
    assert usable(pool).tolist() == usable(pool, 3).tolist() == [0]
    assert usable(pool, 0).tolist() == [0, 1]
    groups = draw_groups(pool, usable(pool, 0), 0, size=0, seed=1)
    assert groups.negative_rows.shape == (2, 0)
    assert groups.positive_rows.tolist() == [9000, 9010]


def test_epoch_order_is_a_keyed_permutation():
    rows = np.random.default_rng(0).permutation(500).astype(np.int32)
    order = epoch_order(rows, seed=1, episode=1, epoch=0)
    assert sorted(order.tolist()) == list(range(500))
    visits = rows[order].tolist()
    assert rows[epoch_order(rows, seed=1, episode=1, epoch=0)].tolist() == visits
    for other in ({"seed": 2}, {"episode": 2}, {"epoch": 1}):
        assert rows[epoch_order(rows, **{"seed": 1, "episode": 1, "epoch": 0} | other)].tolist() != visits
    half = rows[::2]  # a subset is visited in the same order
    kept = set(half.tolist())
    expected = [row for row in visits if row in kept]
    assert half[epoch_order(half, seed=1, episode=1, epoch=0)].tolist() == expected

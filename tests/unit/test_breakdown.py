"""Where retrieval got better or worse: by hand, and against loops."""

import numpy as np
import pytest

from hardneg.diagnostics.breakdown import (
    by_label,
    by_value,
    lexical_overlap,
    most_moved,
    positive_counts,
    quarters,
    query_lengths,
)
from worlds.tiny_records import positives_of


def test_properties_by_hand():
    assert query_lengths(["What's a Rabbit?", "", "one"]).tolist() == [4, 0, 1]
    found = lexical_overlap(["a Rabbit a", "dog", "?", "cat"], [["rabbit", "A RABBIT!"], ["cat"], ["x"], []])
    np.testing.assert_array_equal(found, [1, 0, np.nan, np.nan])
    assert positive_counts(positives_of([[1], [2, 3], []])).tolist() == [1, 2, 0]


def test_groups_by_hand():
    before, after = np.array([0.5, 0.0, 1.0, 0.2]), np.array([1.0, 0.5, 0.5, 0.2])
    found = by_value(before, after, np.array([1, 2, 5, np.nan]), np.array([2, 4, 5]))
    assert [(group.name, group.queries, group.better, group.worse) for group in found] == [
        ("below 2", 1, 1, 0),
        ("2 to below 4", 1, 1, 0),
        ("5 or more", 1, 0, 1),
        ("unknown", 1, 0, 0),
    ]
    assert found[0].as_json()["difference"] == 0.5
    assert found[0].error is None
    both = by_label(before, after, ["web", "book", "web", "book"])
    assert [(group.name, group.difference) for group in both] == [("web", 0.0), ("book", 0.25)]
    assert both[0].error == pytest.approx(0.5)  # of 0.5 and -0.5


def test_quarters():
    assert quarters(np.arange(8)).tolist() == [2, 4, 6]
    assert quarters(np.array([1, 1, 1, 1, 2])).tolist() == []
    assert quarters(np.array([1, 1, 1, 2, 3])).tolist() == [2]
    assert quarters(np.array([np.nan])).tolist() == []
    assert [group.name for group in by_value(np.zeros(2), np.ones(2), np.ones(2))] == ["all"]


def test_groups_equal_a_loop():
    rng = np.random.default_rng(7)
    before, after, values = rng.random(90), rng.random(90), rng.integers(0, 12, 90).astype(float)
    values[:5] = np.nan
    edges = quarters(values)
    found = by_value(before, after, values)
    assert len(found) == len(edges) + 2
    assert sum(group.queries for group in found) == 90
    bounds = [-np.inf, *edges, np.inf]
    for group, low, high in zip(found, bounds, bounds[1:], strict=False):
        members = [i for i in range(90) if low <= values[i] < high]
        change = [after[i] - before[i] for i in members]
        assert group.queries == len(members)
        assert group.difference == pytest.approx(np.mean(change))
        assert group.error == pytest.approx(np.std(change, ddof=1) / np.sqrt(len(members)))
        assert group.better == sum(one > 0 for one in change)


def test_most_moved_by_hand():
    rows = np.array([7, 3, 5, 9, 1], np.int32)
    before, after = np.array([0.1, 0.5, 0.5, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    best, worst = most_moved(rows, before, after, np.array([10, 2, 2, 1, 0]), np.array([1, 1, 1, 0, 0]), count=2)
    assert [(one.query_row, one.rank_before, one.rank_after) for one in best] == [(7, 10, 1), (3, 2, 1)]
    assert [(one.query_row, one.before, one.after, one.rank_after) for one in worst] == [(9, 1.0, 0.0, 0)]

"""Negative swing: by hand, and against a loop over sets."""

import numpy as np
import pytest

from hardneg.diagnostics.swing import swing, swing_cases
from hardneg.report.charts import swing_chart
from hardneg.report.table import Table
from worlds.tiny_records import pool_of, run_of

BY_HAND = {
    "1": run_of([[1, 2, 3], [8]]),
    "2": run_of([[3, 4], [8, 9]]),
    "3": run_of([[2, 1, 4], [9]]),
    "4": run_of([[3, 1], [8, 9]]),
}


def test_classes_by_hand():
    found = swing(BY_HAND)
    assert found.of_class("A").tolist() == [2, 0]  # 1 and 2
    assert found.of_class("B").tolist() == [1, 1]  # 3, and 8 of the other query
    assert found.rows() == [
        {"in": "1", "out": "2", "again": "3", "entered": 4, "left": 2, "returned": 2, "share": 1.0, "queries": 1},
        {"in": "2", "out": "3", "again": "4", "entered": 4, "left": 2, "returned": 2, "share": 1.0, "queries": 2},
    ]
    assert found.clearest(5).tolist() == [0, 1]


def test_where_none_left_there_is_no_share_of_those_that_return():
    """0 of 0 was drawn as 0 %."""
    [row] = swing({"1": run_of([[1, 2]]), "2": run_of([[1, 2]]), "3": run_of([[1, 2]])}).rows()
    assert (row["entered"], row["left"], row["returned"], row["share"]) == (2, 0, 0, None)


def test_rows_without_a_share_are_not_drawn():
    pytest.importorskip("altair")
    row = {"of": "candidates", "class": "A", "in": "1", "again": "3", "share": None}
    drawn = swing_chart(Table.of([row, row | {"in": "2", "again": "4", "share": 0.0}])).to_dict()
    assert [one["episodes"] for one in drawn["data"]["values"]] == ["candidates: A · 2 → 4"]
    assert swing_chart(Table.of([row])).to_dict()["data"]["values"] == []


def test_cases_by_hand():
    cases = swing_cases(BY_HAND, 0)
    assert [(case.letter, case.passage_row, case.places) for case in cases] == [
        ("A", 1, (1, 0, 2, 2)),
        ("A", 2, (2, 0, 1, 0)),
        ("B", 3, (3, 1, 0, 1)),
    ]
    assert swing_cases(BY_HAND, 77) == []


def test_few_episodes_have_no_swing():
    two = dict(list(BY_HAND.items())[:2])
    assert swing(two).rows() == []
    assert swing(two).of_class("A").tolist() == [0, 0]
    assert swing_cases(two, 0) == []


@pytest.mark.parametrize("block", [1, 100, 1 << 19])
def test_equals_a_loop(block):
    rng = np.random.default_rng(8)
    lists = [[rng.choice(40, rng.integers(0, 25)).tolist() for _ in range(30)] for _ in range(6)]
    pools = {str(i): pool_of(one) for i, one in enumerate(lists)}  # a pool names passages twice
    found = swing(pools, block=block)
    for q in range(30):
        sets = [set(one[q]) for one in lists]
        for i in range(4):
            left = sets[i] - sets[i + 1]
            assert found.entered[q, i] == len(sets[i])
            assert found.left[q, i] == len(left)
            assert found.returned[q, i] == len(left & sets[i + 2])
        cases = swing_cases(pools, q)
        for letter in "AB":
            assert sum(case.letter == letter for case in cases) == found.of_class(letter)[q]


def test_large_corpora_need_longer_numbers_and_count_alike():
    rng = np.random.default_rng(5)
    lists = [[rng.choice(50, 20, replace=False) for _ in range(25)] for _ in range(5)]
    near, far = (
        {str(i): run_of([(one + add).tolist() for one in of]) for i, of in enumerate(lists)}
        for add in (0, 2**31 - 60)
    )
    some, same = swing(near), swing(far)
    assert some.returned.sum() > 0
    for name in ("entered", "left", "returned"):
        np.testing.assert_array_equal(getattr(some, name), getattr(same, name))

"""How much a ranker changes a retriever's order, by hand and against a loop."""

import numpy as np
import pytest

from hardneg.diagnostics.disagreement import disagreement
from worlds.tiny_records import run_of


def test_by_hand():
    retriever = run_of([[1, 2, 3], [4, 5], [6]])
    ranker = run_of([[3, 1, 2], [4, 5], [6]])
    found = disagreement(retriever, ranker)
    # the first query: 3 is before 1 and before 2, so 2 of 3 pairs; the third has no pair, and is left out
    assert found == (2, 0.5, pytest.approx((2 / 3 + 0) / 2))


def test_only_the_first_hits_are_compared():
    retriever, ranker = run_of([[1, 2, 3, 4]]), run_of([[1, 2, 4, 3]])
    assert disagreement(retriever, ranker, depth=2).swapped == 0
    assert disagreement(retriever, ranker, depth=4).swapped == pytest.approx(1 / 6)
    assert disagreement(retriever, run_of([[4, 3, 2, 1]])).swapped == 1


def test_what_the_ranker_has_not_is_left_out():
    assert disagreement(run_of([[1, 9, 2]]), run_of([[2, 1]])) == (1, 1.0, 1.0)
    assert np.isnan(disagreement(run_of([[1]]), run_of([[1]])).first)


def test_other_queries_are_refused():
    with pytest.raises(ValueError, match="different queries"):
        disagreement(run_of([[1]]), run_of([[1], [2]]))

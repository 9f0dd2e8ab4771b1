"""Pairwise errors against a loop over all passages, whatever the tiles and shards."""

import numpy as np
import pytest
import torch

from hardneg.data.own_passages import NONE
from hardneg.diagnostics.counted_errors import PairwiseErrors, compare_errors, errors_in_lists, most_errors
from hardneg.diagnostics.pairwise_errors import pairwise_errors
from hardneg.errors import InputError
from hardneg.evaluation.measures import relevant_hits
from hardneg.records import Run, offsets_of
from hardneg.search.exact import ExactIndex
from reference_ranking import slow_score
from worlds.tiny_records import positives_of

LAYOUTS = [(1, {}), (1, {"tile": 3, "chunk": 50}), (4, {"tile": 5, "chunk": 33}), (3, {"chunk": 1000})]


def slow_errors(queries, passages, positives):
    errors = []
    for i, query in enumerate(queries):
        scores = [slow_score(query, passage) for passage in passages]
        known = set(positives.of(i).tolist())
        errors += [
            sum(score > scores[row] for other, score in enumerate(scores) if other not in known)
            for row in positives.of(i).tolist()
        ]
    return errors


def drawn_positives(queries, passages, most, seed=0):
    draw = np.random.default_rng(seed)
    return positives_of(
        [np.sort(draw.choice(passages, draw.integers(0, most + 1), replace=False)) for _ in range(queries)]
    )


def check(queries, passages, positives):
    expected = slow_errors(queries, passages, positives)
    for shards, layout in LAYOUTS:
        index = ExactIndex(np.array_split(passages, shards) if shards > 1 else passages, **layout)
        found = pairwise_errors(index, queries, positives)
        assert found.errors.tolist() == expected, (shards, layout)
    return found


def unit(shape, seed, dtype=np.float16):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(dtype)


def test_by_hand():
    passages = np.array([[4, 0], [3, 0], [2, 0], [2, 1], [1, 0], [0, 1]], np.float32)
    # scores of the first query 4 3 2 2 1 0, of the second 0 0 0 1 0 1
    positives = positives_of([[2, 4], [4]])
    found = pairwise_errors(ExactIndex(passages), np.array([[1, 0], [0, 1]], np.float32), positives)
    # row 2: rows 0 and 1 are above, row 3 ties; row 4: rows 0, 1 and 3, as row 2 is relevant; then rows 3 and 5
    assert found.errors.tolist() == [2, 3, 2]
    assert found.scores.tolist() == [2, 1, 0]
    assert found.of_queries().tolist() == [5, 2]
    assert found.of_queries(top=2).tolist() == [4, 2]
    assert (found.mean(), found.mean(top=2)) == (3.5, 3.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_equals_a_loop_over_all_pairs(dtype):
    queries, passages = unit((13, 24), 1, dtype), unit((210, 24), 2, dtype)
    check(queries, passages, drawn_positives(13, 210, 5))


def test_queries_without_positives_count_nowhere():
    queries, passages = unit((4, 8), 3), unit((60, 8), 4)
    found = check(queries, passages, positives_of([[], [5, 7], [], [59]]))
    assert found.as_json()["queries"] == 2
    assert found.mean() == found.errors.sum() / 2
    with pytest.raises(InputError, match="NO_POSITIVES"):
        pairwise_errors(ExactIndex(passages), queries, positives_of([[], [], [], []]))


def test_a_passage_that_is_the_query_itself_is_no_error():
    queries, passages = unit((3, 8), 21), unit((40, 8), 22)
    passages[[4, 9]] = queries[[0, 2]]  # no score is higher
    positives = positives_of([[5, 6], [7], [8]])
    own = np.array([0, 2], np.int32), np.array([4, 9], np.int32)
    index = ExactIndex(passages)
    found, counted = (pairwise_errors(index, queries, positives, own=one) for one in (own, NONE))
    assert (counted.errors - found.errors).tolist() == [1, 1, 0, 1]
    assert found.scores.tolist() == counted.scores.tolist()
    assert found.offsets.tolist() == [0, 2, 3, 4]


def test_equal_scores_are_no_errors():
    passages = unit((8, 16), 5)[np.random.default_rng(6).integers(0, 8, 300)]
    check(unit((6, 16), 7), passages, drawn_positives(6, 300, 6, seed=8))
    alike = np.repeat(unit((1, 33), 9), 500, 0)
    assert pairwise_errors(ExactIndex(alike), unit((2, 33), 10), positives_of([[3], [400]])).errors.tolist() == [
        0,
        0,
    ]


def test_scores_closer_than_a_float32_product_can_tell():
    draw = np.random.default_rng(11)
    base = unit((1, 130), 12, np.float32)
    passages = (base + 1e-7 * draw.standard_normal((400, 130))).astype(np.float32)
    queries = np.concatenate([base, unit((2, 130), 13, np.float32)])
    positives = positives_of([[7], [0, 100], [399]])
    found = check(queries, passages, positives)
    products = torch.from_numpy(queries) @ torch.from_numpy(passages).T
    rough = [int((products[q] > products[q, p]).sum()) for q, p in [(0, 7), (2, 399)]]
    assert [found.errors[0], found.errors[3]] != rough  # or this test could not fail


def test_the_first_rank_agrees_with_search():
    queries, passages = unit((40, 32), 14), unit((3000, 32), 15)
    index = ExactIndex(passages)
    _, rows = index.search(torch.from_numpy(queries), 50)
    found = pairwise_errors(index, queries, positives_of(rows[:, 17:18].numpy()))
    assert (found.errors == 17).all()


def test_the_distribution_is_by_decades():
    errors = np.array([0, 0, 1, 9, 10, 99, 100, 1000])
    one = PairwiseErrors(np.arange(8, dtype=np.int32), np.arange(9), np.zeros(8, np.float32), errors)
    rows = one.distribution()
    assert [(row["least"], row["below"]) for row in rows] == [
        (0, 1),
        (1, 10),
        (10, 100),
        (100, 1000),
        (1000, 10000),
    ]
    assert [row["queries"] for row in rows] == [0.25, 0.25, 0.25, 0.125, 0.125]
    assert [row["errors"] for row in rows] == [count / 1219 for count in (0, 10, 109, 100, 1000)]
    none = PairwiseErrors(one.query_rows, one.offsets, one.scores, errors * 0)
    assert none.distribution() == [{"least": 0, "below": 1, "queries": 1.0, "errors": 0.0}]


def counted(errors, *, query_rows=None):
    """Errors of queries with one positive each."""
    n = len(errors)
    rows = np.arange(n, dtype=np.int32) if query_rows is None else np.array(query_rows, np.int32)
    return PairwiseErrors(rows, np.arange(n + 1), np.zeros(n, np.float32), np.array(errors, np.int64))


def test_states_are_compared_by_hand():
    states = {"a": counted([0, 1, 4, 500]), "b": counted([0, 3, 2, 700])}
    rows = compare_errors(states, [("a", "b")], seed=0)
    assert [row["errors"] for row in rows] == ["all", "first 200"]
    assert [row["difference"] for row in rows] == [-50.0, 0.0]  # (0 - 2 + 2 - 200) / 4; beyond 200 both count 200
    assert [(row["fewer"], row["more"]) for row in rows] == [(0.5, 0.25), (0.25, 0.25)]
    assert rows[0]["p"] == 0.75  # of the 8 patterns of signs of -2, 2, -200, two have a sum of +-196
    assert [row["p_holm"] for row in rows] == [row["p"] for row in rows], "one pair by each count"
    low, high = rows[0]["interval"]
    assert low <= -50 <= high
    with pytest.raises(ValueError, match="different queries"):
        compare_errors(states | {"b": counted([1, 2, 3, 4], query_rows=[0, 1, 2, 9])}, [("a", "b")], seed=0)


def test_a_difference_that_is_no_chance_is_found():
    worse = np.random.default_rng(0).integers(5, 50, 60)
    states = {"first": counted(worse), "then": counted(worse - 4), "same": counted(worse - 4)}
    rows = compare_errors(states, [("then", "first"), ("same", "then")], seed=0)
    assert rows[0]["p_holm"] < 0.001
    assert rows[2]["p"] == 1.0


def test_errors_in_lists_equal_a_loop():
    draw = np.random.default_rng(3)
    lists = [draw.permutation(60)[:12] for _ in range(40)]
    positives = drawn_positives(40, 60, 4)
    hits = relevant_hits(run_of(lists), positives)
    k = most_errors(hits)
    expected = []
    for i, one in enumerate(lists):
        known = set(positives.of(i).tolist())
        wrong = [at for at, row in enumerate(one) if row not in known]
        place = {row: at for at, row in enumerate(one.tolist())}
        expected.append([sum(at < place.get(row, 12) for at in wrong) for row in known])
    assert k == 12
    for most in (k, 5):
        assert errors_in_lists(hits, most).tolist() == [sum(min(n, most) for n in one) for one in expected]
    assert most_errors(hits, top=2) == 2


def test_errors_in_lists_by_hand():
    lists = run_of([np.array([5, 2, 6, 4, 7]), np.array([1, 2, 3, 4, 5])])
    # 2 has 5 above it and 4 has 5 and 6; 9 is not in the list, which has 5, 6 and 7 besides
    hits = relevant_hits(lists, positives_of([[2, 4, 9], [6]]))
    assert most_errors(hits) == 5
    assert errors_in_lists(hits, 5).tolist() == [1 + 2 + 3, 5]
    assert errors_in_lists(hits, 2).tolist() == [1 + 2 + 2, 2]
    # the second query has no list
    hits = relevant_hits(run_of([np.array([5, 2])]), positives_of([[2], [1]]))
    assert most_errors(hits) == 2
    assert errors_in_lists(hits, 2).tolist() == [1, 0]
    # all hits of the first query are relevant, as those with an answer are: it bounds no other query's errors
    hits = relevant_hits(run_of([np.array([1, 2]), np.array([3, 4])]), positives_of([[1, 2, 5], [4]]))
    assert errors_in_lists(hits, most_errors(hits)).tolist() == [0, 1]


def run_of(lists):
    rows = np.concatenate(lists).astype(np.int32)
    offsets = offsets_of(np.array([len(one) for one in lists]))
    return Run(np.arange(len(lists), dtype=np.int32), offsets, rows, -np.arange(len(rows), dtype=np.float32))

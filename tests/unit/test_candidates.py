"""Candidates of ranked lists: dropping, cutting and filtering hits, by hand and against a slow loop."""

import numpy as np
import pytest

from hardneg.data.text import copies_among, hash_texts
from hardneg.errors import InputError, NumericError, SettingsError
from hardneg.negatives.candidates import (
    Filters,
    candidates,
    is_known,
    search_depth,
    starved,
    without_known,
)
from hardneg.records import Run, blocks
from worlds.tiny_records import as_lists, positives_of, run_of

N_PASSAGES = 60


def mined(run, positives, *, source="query", episode=1, depth=None, **options):
    return candidates(run, positives, source=source, episode=episode, depth=depth, **options)


def random_case(seed, n_queries=120, lists_per_query=1):
    """A run, positives, text keys and scores with every complication: missing queries, copies, empty lists."""
    rng = np.random.default_rng(seed)
    query_rows = rng.permutation(200)[:n_queries]
    in_run = np.repeat(rng.permutation(query_rows)[: n_queries - 3], lists_per_query)
    hits = [rng.permutation(N_PASSAGES)[: rng.integers(0, 30)].tolist() for _ in in_run]
    known = [rng.permutation(N_PASSAGES)[: rng.integers(0, 5)].tolist() for _ in query_rows]
    keys = rng.integers(0, 40, N_PASSAGES).astype(np.uint64)
    anchors = rng.integers(0, N_PASSAGES, len(in_run)).astype(np.int32)
    scores = rng.normal(size=n_queries).astype(np.float32) * 9
    return (
        run_of(hits, query_rows=in_run, collection="c0ffee"),
        positives_of(known, query_rows),
        keys,
        anchors,
        scores,
    )


def slow_candidates(run, positives, depth, filters, keys, positive_scores, *, once=False):
    """(passage, rank, score, list) of every candidate of every query; ``once``: one of each text of a list."""
    result = []
    for i, query in enumerate(positives.query_rows):
        dropped = set(positives.of(i).tolist())
        texts = {int(keys[row]) for row in dropped}
        found = []
        for n in (n for n, owner in enumerate(run.query_rows) if owner == query):
            remaining = [
                (int(row), rank, float(score), n)
                for rank, (row, score) in enumerate(zip(*run.hits(n), strict=True), 1)
                if row not in dropped and int(keys[row]) not in texts
            ]
            if once:
                of = [int(keys[hit[0]]) for hit in remaining]
                remaining = [hit for j, hit in enumerate(remaining) if of[j] not in of[:j]]
            found += remaining[:depth]
        p = float(positive_scores[i])
        result.append(
            [
                hit
                for hit in found
                if filters.rank_from <= hit[1] <= (filters.rank_to or 1000)
                and hit[2] <= (1000 if filters.max_score is None else filters.max_score)
                and (filters.absolute_margin is None or hit[2] <= p - filters.absolute_margin)
                and (filters.relative_margin is None or hit[2] <= p - filters.relative_margin * abs(p))
            ]
        )
    return result


FILTERS = [
    Filters(),
    Filters(rank_from=3, rank_to=9),
    Filters(max_score=4.0),
    Filters(absolute_margin=1.5),
    Filters(relative_margin=0.25),
    Filters(rank_from=2, rank_to=20, max_score=7.0, absolute_margin=-1.0, relative_margin=0.05),
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("lists_per_query", [1, 3])
@pytest.mark.parametrize("once", [False, True])
def test_candidates_equal_a_slow_loop(filters, lists_per_query, once):
    run, positives, keys, anchors, scores = random_case(3, lists_per_query=lists_per_query)
    options = {"filters": filters, "text_keys": keys, "positive_scores": scores, "anchors": anchors}
    options |= {"copies": copies_among(keys) if once else None}
    pool = mined(run, positives, source="lookahead", episode=4, depth=7, **options)
    slow = slow_candidates(run, positives, 7, filters, keys, scores, once=once)
    assert bool(pool.copies) == once
    assert sum(map(len, slow)) > 50
    assert as_lists(pool) == [[hit[0] for hit in hits] for hits in slow]
    assert as_lists(pool, "ranks") == [[hit[1] for hit in hits] for hits in slow]
    assert as_lists(pool, "scores") == [[hit[2] for hit in hits] for hits in slow]
    assert as_lists(pool, "anchors") == [[anchors[hit[3]] for hit in hits] for hits in slow]
    assert set(pool.sources.tolist()) == {4}
    assert set(pool.episodes.tolist()) == {4} == {pool.episode}
    assert pool.collection == "c0ffee"
    assert pool.query_rows.tolist() == positives.query_rows.tolist()


def test_the_order_of_steps_by_hand():
    # Row 1 is the positive, 7 has its text; the cut at 3 comes after dropping, the window after the cut.
    keys = np.arange(10, dtype=np.uint64)
    keys[7] = keys[1]
    run, positives = run_of([[5, 1, 7, 4, 3, 2]]), positives_of([[1]])
    pool = mined(run, positives, depth=3, text_keys=keys)
    assert (as_lists(pool), as_lists(pool, "ranks")) == ([[5, 4, 3]], [[1, 4, 5]])
    assert as_lists(mined(run, positives, depth=3, text_keys=keys, filters=Filters(rank_from=4))) == [[4, 3]]
    assert as_lists(mined(run, positives, depth=3)) == [[5, 7, 4]]  # by identity only
    assert as_lists(mined(run, positives)) == [[5, 7, 4, 3, 2]]


def test_of_hits_with_one_text_only_the_best_stays():
    # Rows 4, 5, 6 have one text, 7 and 8 another, which a positive of the second query has.
    keys = np.array([0, 1, 2, 3, 4, 4, 4, 7, 7], np.uint64)
    run, positives = run_of([[5, 4, 7, 6, 8, 2, 3], [8, 6, 7, 4, 1]]), positives_of([[1], [7]])
    options = {"text_keys": keys, "copies": copies_among(keys)}
    pool = mined(run, positives, depth=2, **options)
    assert (as_lists(pool), as_lists(pool, "ranks")) == ([[5, 7], [6, 1]], [[1, 3], [2, 5]])
    assert pool.copies == {"query": 2}  # 4 of both queries; 6 and 8 of the first query lie beyond the depth
    pool = mined(run, positives, filters=Filters(top=3), **options)
    assert as_lists(pool) == [[5, 7, 2], [6, 1]]
    assert (pool.copies, pool.filtered) == ({"query": 4}, {"query": 1})
    # The best one stands for its text even if a window of ranks leaves it out.
    assert as_lists(mined(run, positives, filters=Filters(rank_from=2), **options)) == [[7, 2, 3], [6, 1]]
    # A list of another anchor is a list of its own.
    both = run_of([[5, 4], [4, 6]], query_rows=[0, 0])
    pool = mined(both, positives_of([[1]]), source="lookahead", anchors=np.array([1, 2], np.int32), **options)
    assert as_lists(pool) == [[5, 4]]


def test_copies_equal_a_loop():
    rng = np.random.default_rng(2)
    keys = np.concatenate([hash_texts(["", " ", "a"]), rng.integers(0, 50, 60).astype(np.uint64)])
    values = keys.tolist()
    expected = [values.index(key) if values.count(key) > 1 else -1 for key in values]
    expected[:2] = [-1, -1]  # passages without a text are no copies
    assert max(expected) > 2
    assert copies_among(keys).tolist() == expected
    assert copies_among(np.arange(5, dtype=np.uint64)) is None
    assert copies_among(keys[:3]) is None
    assert copies_among(keys[:0]) is None


def test_all_positives_are_dropped_not_only_the_first():
    assert as_lists(mined(run_of([[1, 2, 3, 4]]), positives_of([[4, 2]]))) == [[1, 3]]


def test_another_querys_positive_stays():
    assert as_lists(mined(run_of([[1, 2], [1, 2]]), positives_of([[1], [2]]))) == [[2], [1]]


@pytest.mark.parametrize(("positive", "expected"), [(8.0, [6, 7]), (-8.0, [7])])
def test_a_relative_margin_leaves_room_below_the_positive_whatever_its_sign(positive, expected):
    # 10 % of |8|: 7.2 below +8, -8.8 below -8.
    run = Run(
        np.zeros(1, np.int32),
        np.array([0, 3]),
        np.array([5, 6, 7], np.int32),
        np.array([7.5, 7.0, -9.0] if positive > 0 else [-7.5, -8.5, -9.0], np.float32),
    )
    options = {
        "filters": Filters(relative_margin=0.1),
        "positive_scores": np.array([positive], np.float32),
    }
    assert as_lists(mined(run, positives_of([[1]]), **options)) == [expected]


def test_bounds_are_inclusive():
    run, positives = run_of([[1, 2, 3, 4]]), positives_of([[0]])  # scores 9, 8, 7, 6
    for filters in (
        Filters(max_score=7.0),
        Filters(absolute_margin=3.0),
        Filters(relative_margin=0.3),
        Filters(rank_from=3),
    ):
        pool = mined(run, positives, filters=filters, positive_scores=np.array([10.0], np.float32))
        assert as_lists(pool) == [[3, 4]], filters


def test_queries_follow_the_positives_and_may_be_missing_from_the_run():
    run = run_of([[1, 2], [3]], query_rows=[20, 10])
    pool = mined(run, positives_of([[9], [9], []], query_rows=[10, 30, 20]))
    assert (pool.query_rows.tolist(), as_lists(pool)) == ([10, 30, 20], [[3], [], [1, 2]])


def test_lookahead_entries_name_their_anchor():
    positives = positives_of([[8, 9], [7]])
    run = run_of([[8, 1, 9], [7, 8]])
    assert as_lists(mined(run, positives, source="lookahead"), "anchors") == [[8], [7]]
    assert as_lists(mined(run, positives), "anchors") == [[-1], [-1]]
    # One list for each positive: a passage near both is a candidate of both.
    both = run_of([[8, 1, 9], [7, 8], [9, 1, 2]], query_rows=[0, 1, 0])
    pool = mined(both, positives, source="lookahead", anchors=np.array([8, 7, 9], np.int32))
    assert as_lists(pool) == [[1, 1, 2], [8]]
    assert as_lists(pool, "anchors") == [[8, 9, 9], [7]]
    assert as_lists(pool, "ranks") == [[2, 2, 3], [2]]


def test_faults_say_what_is_missing():
    with pytest.raises(InputError, match="REPEATED_QUERY"):
        mined(run_of([[1], [2]], query_rows=[0, 0]), positives_of([[3]]))
    margin = Filters(absolute_margin=1.0)
    with pytest.raises(InputError, match="NO_POSITIVE_SCORES"):
        mined(run_of([[1]]), positives_of([[3]]), filters=margin)
    with pytest.raises(NumericError, match="BAD_SCORE"):
        mined(
            run_of([[1]]),
            positives_of([[3]]),
            filters=margin,
            positive_scores=np.array([np.nan], np.float32),
        )
    for window in ({"rank_from": 0}, {"rank_from": 5, "rank_to": 4}):
        with pytest.raises(SettingsError, match="RANK_WINDOW"):
            Filters(**window)


@pytest.mark.parametrize("with_keys", [True, False])
def test_known_passages_equal_a_loop(with_keys):
    _, positives, keys, _, _ = random_case(5)
    rng = np.random.default_rng(0)
    owner, rows = rng.integers(0, len(positives), 900), rng.integers(0, N_PASSAGES, 900)
    table = keys if with_keys else np.arange(N_PASSAGES)
    slow = [table[row] in table[positives.of(i)] for i, row in zip(owner, rows, strict=True)]
    assert 30 < sum(slow) < 1900
    assert is_known(positives, owner, rows, keys if with_keys else None).tolist() == slow
    nobody = positives_of([[]])
    assert not is_known(nobody, np.zeros(3, np.int64), np.arange(3)).any()


def test_without_known_filters_a_pool_again(monkeypatch):
    run, positives, keys, _, _ = random_case(6)
    raw = mined(run, positives_of([[] for _ in positives.query_rows], positives.query_rows))
    again = without_known(raw.align(positives), keys)
    assert as_lists(again) == as_lists(mined(run, positives, text_keys=keys)) != as_lists(raw)
    monkeypatch.setattr(blocks, "__defaults__", (10,))
    assert as_lists(without_known(raw.align(positives), keys)) == as_lists(again)


def test_depth_to_search():
    assert search_depth(200, positives_of([[1], [1, 2, 3], []])) == 219
    assert search_depth(200, positives_of([[], []])) == 217  # one may be found


def test_starved_lists_lost_too_much_and_had_more_to_give():
    keys = np.array([0, 0, 0, 3, 4, 5, 6], np.uint64)  # rows 0, 1, 2 share a text
    positives = positives_of([[0], [5], [0], [0]])
    run = run_of([[0, 1, 2, 3], [0, 1, 2, 3], [1, 3], [3, 4, 6, 1]])
    # List 0 keeps one of 4; list 1 all four; list 2 keeps one, but the search had only two; list 3 keeps three.
    assert starved(run, positives, depth=3, searched=4, text_keys=keys).tolist() == [0]
    assert starved(run, positives, depth=2, searched=2, text_keys=keys).tolist() == [0, 2]
    copies = np.array([-1, -1, -1, 3, 3, -1, 3], np.int32)  # rows 3, 4, 6 share one: list 3 keeps one of them
    assert starved(run, positives, depth=3, searched=4, text_keys=keys, copies=copies).tolist() == [0, 3]
    assert starved(run, positives, depth=3, searched=4).tolist() == []
    assert starved(run, positives_of([[0]], [77]), depth=3, searched=1, text_keys=keys).tolist() == []

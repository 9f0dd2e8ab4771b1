"""Composition by first encounter and new negatives near a positive: by hand, and against loops."""

from itertools import chain

import numpy as np
import pytest

from hardneg.diagnostics.composition import composition, composition_of_pools, new_negatives
from hardneg.diagnostics.encounters import sorted_keys
from hardneg.negatives.pool import SOURCES
from hardneg.records import Positives
from worlds.tiny_records import pool_of, positives_of, run_of

EMPTY = Positives(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))


def random_lists(rng, queries=30, passages=60, longest=20, *, repeats=False):
    """For most queries, a list of passages."""
    rows = rng.choice(queries + 5, queries, replace=False).tolist()
    return {row: rng.choice(passages, rng.integers(0, longest), replace=repeats).tolist() for row in rows}


def test_composition_by_hand():
    lists = {
        "bm25": run_of([[1, 2, 9], [5]]),
        "1 query": run_of([[2, 3], [6, 5]]),
        "1 lookahead": run_of([[3, 4], [7]]),
        "1 pool": pool_of([[2, 4, 4, 8], []]),
        "2 query": run_of([[9, 4, 10, 8], [6]]),
    }
    found = composition(lists, pools={"1 pool"}, positives=positives_of([[9], [5]]))
    assert found.met == ("bm25", "1 query", "1 lookahead", "2 query", "other")
    assert found.entries.tolist() == [
        [2, 0, 0, 0, 0],  # 9 and 5 are positives
        [1, 2, 0, 0, 0],
        [0, 1, 2, 0, 0],
        [1, 0, 2, 0, 1],  # 4 stands twice; nothing before the pool has 8
        [0, 1, 1, 1, 1],
    ]
    assert found.shares()[2].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0, 0])
    assert found.rows()[-1] == {"list": "2 query", "first in": "other", "entries": 1, "share": 0.25}


@pytest.mark.parametrize("block", [1, 40, 1 << 19])
def test_composition_equals_a_loop(block):
    rng = np.random.default_rng(4)
    asked = {f"{i}": random_lists(rng, repeats=i == 2) for i in range(6)}
    known = {row: rng.choice(60, 2).tolist() for row in range(35)}
    first, counts = {}, np.zeros((6, 6), int)
    for i, lists in enumerate(asked.values()):
        for row, passages in lists.items():
            for passage in passages:
                if passage not in known[row]:
                    counts[i, first.setdefault((row, passage), i)] += 1
    runs = {name: run_of(lists) for name, lists in asked.items()}
    found = composition(runs, positives=positives_of(known.values()), block=block)
    np.testing.assert_array_equal(found.entries, counts)
    assert found.carried.tolist() == [0] * 6


def test_several_lists_of_a_query_count_as_one():
    several = run_of([[1, 2], [2, 3]], query_rows=[7, 7])
    found = composition({"bm25": run_of([[2]], query_rows=[7]), "lookahead": several})
    assert found.entries.tolist() == [[1, 0], [2, 2]]


def test_parts_add_up():
    rng = np.random.default_rng(5)
    lists = [random_lists(rng) for _ in range(3)]

    def of(rows):
        return {str(i): run_of({row: one[row] for row in rows if row in one}) for i, one in enumerate(lists)}

    whole = composition(of(range(35)))
    parts = composition(of(range(20))) + composition(of(range(20, 35)))
    np.testing.assert_array_equal(whole.entries, parts.entries)


def test_empty_lists():
    assert composition({"a": EMPTY, "b": EMPTY}).shares().tolist() == [[0, 0], [0, 0]]
    assert composition({"a": EMPTY}).rows() == []


def test_pools_by_provenance():
    number = SOURCES.index
    first = pool_of([[1, 2, 3]], source=[number("query"), number("lookahead"), number("bm25")], episode=1)
    second = pool_of(
        [[1, 1, 4, 2, 3]],
        source=[number("query"), number("query"), number("query"), number("lookahead"), number("bm25")],
        episodes=[1, 2, 2, 1, 2],
        episode=2,
    )
    found = composition_of_pools({"one": first, "two": second})
    assert found.met == ("bm25", "episode 1 query", "episode 1 lookahead", "episode 2 query")
    assert found.entries.tolist() == [[1, 1, 1, 0], [1, 2, 1, 1]]
    assert found.carried.tolist() == [0, 2]
    again = composition_of_pools({"one": first, "two": second}, unit="refresh")
    assert again.met == ("bm25", "refresh 1 query", "refresh 1 lookahead", "refresh 2 query")


@pytest.mark.parametrize("block", [1, 1 << 19])
def test_pools_equal_a_loop(block):
    rng = np.random.default_rng(6)
    order = ["random", "in_batch", "bm25", "file", "query", "lookahead", "dynamic"]
    pools, moments = [], {}
    for episode in range(4):
        lists = [rng.choice(30, rng.integers(0, 20)) for _ in range(25)]
        n = sum(map(len, lists))
        episodes = rng.integers(0, episode + 1, n)
        sources = rng.choice([0, 2, 3, 4, 5], n)
        pools.append(pool_of(lists, source=sources, episodes=episodes, episode=episode))
        owner = np.repeat(np.arange(25), [*map(len, lists)])
        for entry in zip(owner, pools[-1].passage_rows, episodes, sources, strict=True):
            q, p, e, s = map(int, entry)
            moments[q, p] = min(moments.get((q, p), (9, 9)), (e, order.index(SOURCES[s])))
    found = composition_of_pools({str(i): pool for i, pool in enumerate(pools)}, block=block)
    counts = np.zeros((4, len(found.met)), int)
    for i, pool in enumerate(pools):
        owner = np.repeat(np.arange(25), np.diff(pool.offsets))
        for q, p in zip(owner.tolist(), pool.passage_rows.tolist(), strict=True):
            e, s = moments[q, p]
            name = order[s] if s < 4 else f"episode {e} {order[s]}"
            counts[i, found.met.index(name)] += 1
    np.testing.assert_array_equal(found.entries, counts)


def test_new_negatives_by_hand():
    candidates = {"1": run_of([[1, 2]]), "2": run_of([[2, 3, 4, 9]]), "3": run_of([[1, 3, 5, 6, 7]])}
    near = {"1": run_of([[3, 5, 2]]), "2": run_of([[5, 9]]), "3": run_of([[6]])}
    found = new_negatives(candidates, near, before=[run_of([[7]])], positives=positives_of([[9]]))
    numbers = [(one.candidates, one.new, one.near, one.share) for one in found]
    assert numbers == [(2, 2, None, None), (3, 2, 1, 0.5), (5, 2, 1, 0.5)]  # new: 3, 4; then 5, 6


@pytest.mark.parametrize("block", [1, 1 << 19])
@pytest.mark.parametrize("many", [5, 14, 15, 31])
@pytest.mark.parametrize("repeats", [False, True])
def test_new_negatives_equal_a_loop(block, many, repeats):
    rng = np.random.default_rng(7)
    longest = 20 if many == 5 else 4  # so that the later episodes have new ones, too
    candidates, near = (
        [random_lists(rng, longest=longest, repeats=repeats) for _ in range(many)] for _ in range(2)
    )
    bm25, known = random_lists(rng), {row: rng.choice(60, 2).tolist() for row in range(35)}
    seen = {(row, p) for row, passages in bm25.items() for p in passages}
    wanted = []
    for i, lists in enumerate(candidates):
        pairs = {(row, p) for row, passages in lists.items() for p in passages if p not in known[row]}
        new = pairs - seen
        close = sum(p in near[i - 1].get(row, []) for row, p in new) if i and i != 3 else None
        wanted.append((str(i), len(pairs), len(new), close))
        seen |= pairs
    found = new_negatives(
        {str(i): run_of(lists) for i, lists in enumerate(candidates)},
        {str(i): run_of(lists) for i, lists in enumerate(near) if i != 2},
        before=[run_of(bm25)],
        positives=positives_of(known.values()),
        block=block,
    )
    assert [(one.episode, one.candidates, one.new, one.near) for one in found] == wanted
    assert all(one.new for one in found)


def test_large_corpora_need_longer_numbers_and_compose_alike():
    rng = np.random.default_rng(6)
    asked = [random_lists(rng) for _ in range(4)]
    near, far = (
        {
            str(i): run_of({row: [one + add for one in of] for row, of in lists.items()})
            for i, lists in enumerate(asked)
        }
        for add in (0, 2**31 - 100)
    )
    np.testing.assert_array_equal(composition(near).entries, composition(far).entries)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("many", [3, 16, 17, 20])
def test_sets_of_lists_and_single_entries_count_alike(monkeypatch, many, repeats):
    rng = np.random.default_rng(many)
    lists = {
        f"{i}": run_of([*(one := random_lists(rng, repeats=repeats)).values()], query_rows=[*one])
        for i in range(many)
    }
    found = composition(lists, pools={"1"}, block=200).entries
    monkeypatch.setattr("hardneg.diagnostics.composition.MASKED", 0)
    np.testing.assert_array_equal(found, composition(lists, pools={"1"}, block=200).entries)
    assert found.sum() == sum(len(one.passage_rows) for one in lists.values())


@pytest.mark.parametrize("loose", [0.0, 1.5, 1e9])
@pytest.mark.parametrize("corpus", [60, 2**30, 2**31 - 1])
def test_rows_and_one_sort_give_the_same_numbers(monkeypatch, loose, corpus):
    monkeypatch.setattr("hardneg.diagnostics.encounters.LOOSE", loose)
    rng = np.random.default_rng(8)
    lists = [
        run_of({row: [corpus - 1 - p for p in of] for row, of in random_lists(rng, repeats=True).items()})
        for _ in range(5)
    ]
    rows = np.arange(40, dtype=np.int32)
    wanted = sorted(
        (int(row), int(p), time)
        for time, one in enumerate(lists)
        for row, start, stop in zip(one.query_rows, one.offsets, one.offsets[1:], strict=False)
        for p in one.passage_rows[start:stop]
    )
    entries = [
        (part.start, key >> part.time_bits & (1 << part.passage_bits) - 1, key % (1 << part.time_bits))
        for part in sorted_keys(lists, rows, block=1, numbered=False)
        for key in part.keys.tolist()
    ]
    assert entries == wanted
    sets = [part.distinct().lists().tolist() for part in sorted_keys(lists, rows, block=200, numbered=False)]
    pairs = dict.fromkeys((row, p) for row, p, _ in wanted)
    assert [*chain(*sets)] == [sum({1 << t for row, p, t in wanted if (row, p) == pair}) for pair in pairs]
    found = []
    for part in sorted_keys(lists, rows, block=200):
        assert np.all(part.keys[1:] >= part.keys[:-1])
        for key in part.keys.tolist():
            query, passage = divmod(key >> part.time_bits, 1 << part.passage_bits)
            found.append((part.start + query, passage, key % (1 << part.time_bits)))
    assert found == wanted

"""Teleportation negatives: the arithmetic of alpha and beta, the multiset union, and the ablations."""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from hardneg.errors import ArtifactError, SettingsError
from hardneg.negatives.candidates import Filters
from hardneg.negatives.facts import entries_of, realized
from hardneg.negatives.mix import balanced, quotas, teleport, union
from hardneg.negatives.pool import concatenate
from hardneg.negatives.sources import draw_entries, random_source
from hardneg.records import Positives, blocks, spans
from worlds.tiny_records import assert_same, pool_of

HALF = {"alpha": 0.5, "beta": 0.5, "size": 60, "seed": 42}


def mined(episode, n_queries=5, depth=200, shift=37):
    """Candidates of the query and of lookahead; they overlap, and drift from episode to episode."""
    start = [i * 7 + episode * shift for i in range(n_queries)]
    query = pool_of([list(range(s, s + depth)) for s in start], source="query", episode=episode)
    near = [list(range(s + 100, s + 100 + depth)) for s in start]
    return query, pool_of(near, source="lookahead", episode=episode, anchor=1000)


def parts(pool, i=0):
    """Entries of a query by part: new ones by source, older ones as momentum."""
    return Counter("momentum" if e.momentum else e.source for e in entries_of(pool, i))


# ---------------------------------------------------------------- arithmetic


@pytest.mark.parametrize(
    ("old", "alpha", "beta", "expected"),
    [
        (0, 0.5, 0.5, (30, 30, 0)),
        (60, 0.5, 0.5, (30, 30, 60)),
        (120, 0.5, 0.5, (30, 30, 60)),
        (60, 0.3, 0.5, (30, 30, 26)),  # 60 * 0.3 / 0.7 = 25.7
        (60, 0.7, 0.5, (13, 13, 60)),  # wants 140; 60 * 0.3 / 0.7 = 25.7
        (86, 0.7, 0.5, (18, 19, 86)),  # 36.86 -> 37; 18.5 -> 19
        (140, 0.7, 0.5, (30, 30, 140)),
        (60, 0.5, 0.3, (42, 18, 60)),
        (60, 0.5, 0.7, (18, 42, 60)),
        (60, 0.7, 0.3, (18, 8, 60)),  # 26 * 0.3 = 7.8
        (60, 0.7, 0.7, (8, 18, 60)),  # 26 * 0.7 = 18.2
        (60, 0.3, 0.3, (42, 18, 26)),
        (60, 0.3, 0.7, (18, 42, 26)),
        (60, 0.0, 0.5, (30, 30, 0)),
        (60, 0.5, 0.0, (60, 0, 60)),
        (0, 0.0, 0.0, (60, 0, 0)),
        (45, 0.5, 0.5, (22, 23, 45)),  # shrinks to 45; 22.5 -> 23
        (1, 0.7, 0.5, (0, 0, 1)),  # 0.43 -> 0
    ],
)
def test_quotas_by_hand(old, alpha, beta, expected):
    want = quotas(np.array([old]), size=60, alpha=alpha, beta=beta)
    assert tuple(int(part[0]) for part in want) == expected


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.35, 0.5, 0.7])
@pytest.mark.parametrize("size", [1, 60, 86, 90, 160, 162])
def test_quotas_equal_a_loop(alpha, beta, size):
    old = np.arange(0, 500)
    want = quotas(old, size=size, alpha=alpha, beta=beta)
    a, b, half = Fraction(str(alpha)), Fraction(str(beta)), Fraction(1, 2)
    for i, available in enumerate(old.tolist()):
        wanted, new = math.floor(size * a / (1 - a) + half), size
        if 0 < available < wanted:
            new = math.floor(available * (1 - a) / a + half)
        lookahead = math.floor(new * b + half)
        expected = (new - lookahead, lookahead, min(wanted, available))
        assert tuple(int(part[i]) for part in want) == expected


def test_accumulate_never_shrinks():
    want = quotas(np.array([0, 10, 120]), size=60, alpha=0.7, beta=0.5, mode="accumulate")
    assert [part.tolist() for part in want] == [[30, 30, 30], [30, 30, 30], [0, 10, 120]]


# ---------------------------------------------------------------- episodes


def episodes(n=3, **options):
    pool = None
    for episode in range(1, n + 1):
        pool = teleport(*mined(episode), pool, **HALF | options)
    return pool


def test_three_episodes_of_the_paper():
    assert parts(episodes(1)) == {"query": 30, "lookahead": 30}
    assert parts(episodes(2)) == {"query": 30, "lookahead": 30, "momentum": 60}
    assert parts(episodes(3)) == {"query": 30, "lookahead": 30, "momentum": 60}
    assert realized(episodes(3)) == {"query": 30.0, "lookahead": 30.0, "momentum": 60.0}


def test_other_weights():
    assert parts(episodes(2, alpha=0.3))["momentum"] == 26
    assert parts(episodes(2, alpha=0.7)) == {"query": 13, "lookahead": 13, "momentum": 60}
    # 86 old entries in episode 3: all of them, and 37 new ones.
    assert parts(episodes(3, alpha=0.7)) == {"query": 18, "lookahead": 19, "momentum": 86}
    assert parts(episodes(2, size=160)) == {"query": 80, "lookahead": 80, "momentum": 160}


def test_accumulate_grows_as_the_reference_does():
    assert parts(episodes(2, mode="accumulate")) == {"query": 30, "lookahead": 30, "momentum": 60}
    assert parts(episodes(3, mode="accumulate")) == {"query": 30, "lookahead": 30, "momentum": 120}


def test_ablations_are_the_same_rule():
    query, near = mined(2)
    old = episodes(1)
    q_neg = HALF | {"alpha": 0.0, "beta": 0.0}
    assert parts(teleport(query, None, None, **q_neg)) == {"query": 60}
    assert parts(teleport(query, near, old, **q_neg)) == {"query": 60}
    assert parts(teleport(query, None, old, **HALF | {"beta": 0.0})) == {"query": 60, "momentum": 60}
    assert parts(teleport(query, near, old, **HALF | {"alpha": 0.0})) == {"query": 30, "lookahead": 30}


def test_extra_pools_join_whole_outside_alpha_and_beta():
    query, near = mined(1)
    bm25 = draw_entries(pool_of([list(range(500, 600))] * 5, source="bm25", episode=1), 30, seed=42)
    noise = random_source(query.positives, 900, count=30, seed=42, episode=1)
    pool = teleport(query, near, None, **HALF, extra=[bm25, noise])
    assert parts(pool) == {"query": 30, "lookahead": 30, "bm25": 30, "random": 30}
    later = teleport(*mined(2), pool, **HALF)
    assert parts(later) == {"query": 30, "lookahead": 30, "momentum": 60}


@pytest.mark.parametrize("bounds", [{}, {"rank_from": 5}, {"max_score": -1e9}])
def test_momentum_keeps_entries_that_no_list_ranked(bounds):
    query, near = mined(2)
    noise = random_source(query.positives, 9000, count=60, seed=42, episode=1)  # rank 0 and no score
    pool = teleport(query, near, noise, **HALF, filters=Filters(**bounds))
    assert parts(pool) == {"query": 30, "lookahead": 30, "momentum": 60}


def test_momentum_is_drawn_from_the_old_pool_and_keeps_its_provenance():
    old, new = episodes(1), episodes(2)
    third = episodes(3)
    for i in range(len(old)):
        before = Counter(e._replace(momentum=True) for e in entries_of(old, i))
        carried = Counter(e for e in entries_of(new, i) if e.momentum)
        assert carried == before  # M = |D_1|: every entry, with its copies
        before = Counter(e._replace(momentum=True) for e in entries_of(new, i))
        carried = Counter(e for e in entries_of(third, i) if e.momentum)
        assert carried <= before
        assert {e.episode for e in carried} == {1, 2}
        assert {e.source for e in carried} == {"query", "lookahead"}
        assert all(e.anchor == 1000 for e in carried if e.source == "lookahead")


def test_momentum_is_drawn_evenly_from_all_earlier_episodes():
    pool = None
    for episode in (1, 2, 3):
        pool = teleport(*mined(episode, n_queries=300, depth=90), pool, **HALF)
    carried = pool.episodes[pool.momentum]
    assert np.count_nonzero(pool.episodes == 3) == len(carried) == 300 * 60
    # D_2 holds as many entries of episode 1 as of episode 2.
    np.testing.assert_allclose(np.mean(carried == 1), 0.5, atol=0.02)


def test_a_source_that_falls_short_is_not_filled_from_another(caplog):
    query = pool_of([[1, 2, 3], list(range(100))], source="query", episode=1)
    near = pool_of([list(range(200, 300)), [7]], source="lookahead", episode=1)
    with caplog.at_level("INFO"):
        pool = teleport(query, near, None, **HALF)
    assert [parts(pool, i) for i in (0, 1)] == [{"query": 3, "lookahead": 30}, {"query": 30, "lookahead": 1}]
    assert "query: 1 queries got too few negatives; 27 are missing" in caplog.messages
    assert "lookahead: 1 queries got too few negatives; 29 are missing" in caplog.messages
    assert "realised mix: query 16.5, lookahead 15.5, momentum 0.0" in caplog.messages


def test_old_entries_are_counted_after_filtering():
    # Of 10 old entries one has become a positive and two share its text: 7 remain, so 7 new ones.
    old = pool_of([list(range(10))], source="query", episode=1)
    keys = np.arange(2000, dtype=np.uint64)
    keys[[4, 5]] = keys[3]
    query = pool_of([list(range(100, 300))], source="query", episode=2, positives=[[3]])
    near = pool_of([list(range(300, 500))], source="lookahead", episode=2, positives=[[3]])
    pool = teleport(query, near, old, **HALF, text_keys=keys)
    assert parts(pool) == {"query": 3, "lookahead": 4, "momentum": 7}
    carried = [e.passage_row for e in entries_of(pool, 0) if e.momentum]
    assert carried == [0, 1, 2, 6, 7, 8, 9]
    assert pool.positives.of(0).tolist() == [3]
    by_row = teleport(query, near, old, **HALF)
    assert parts(by_row) == {"query": 4, "lookahead": 5, "momentum": 9}


def test_queries_follow_the_query_pool():
    query = pool_of([[1, 2], [3, 4], [5]], source="query", episode=2, query_rows=[7, 3, 5])
    near = pool_of([[30], [70]], source="lookahead", episode=2, query_rows=[3, 7])
    old = pool_of([[500], [300]], source="query", episode=1, query_rows=[5, 3])
    pool = teleport(query, near, old, alpha=0.5, beta=0.5, size=2, seed=1)
    assert pool.query_rows.tolist() == [7, 3, 5]
    # Query 7 has no old entries: as in episode 1. The others give their one, and the new part shrinks to one,
    # which lookahead gets (0.5 -> 1); query 5 has no lookahead.
    assert parts(pool, 0) == {"query": 1, "lookahead": 1}
    assert parts(pool, 1) == {"lookahead": 1, "momentum": 1}
    assert parts(pool, 2) == {"momentum": 1}


def test_workers_and_order_change_nothing(monkeypatch):
    whole = episodes(3)
    shuffled = np.array([3, 0, 4, 1, 2])
    shards = []
    for part in (shuffled[:2], shuffled[2:]):
        query, near = (pool.select(part) for pool in mined(3))
        shards.append(teleport(query, near, episodes(2), **HALF))
    assert_same(concatenate(shards), whole.select(shuffled))
    monkeypatch.setattr(blocks, "__defaults__", (100,))
    assert_same(episodes(3), whole)


# ---------------------------------------------------------------- the multiset


def test_overlaps_are_kept_unless_dedup():
    lists = [list(range(60))]
    query, near = (pool_of(lists, source=name, episode=1) for name in ("query", "lookahead"))
    pool = teleport(query, near, None, alpha=0.5, beta=0.5, size=120, seed=1)
    assert Counter(pool.passage_rows.tolist()) == dict.fromkeys(range(60), 2)
    once = teleport(query, near, None, alpha=0.5, beta=0.5, size=120, seed=1, dedup=True)
    assert sorted(once.passage_rows.tolist()) == list(range(60))
    assert parts(once) == {"query": 60}
    again = teleport(*(replace(p, episode=2, episodes=p.episodes + 1) for p in (query, near)), pool, **HALF)
    drawn = Counter(again.passage_rows.tolist())
    assert sum(drawn.values()) == 120
    assert max(drawn.values()) > 2


def test_union_equals_a_loop():
    rng = np.random.default_rng(0)
    pools = [
        pool_of([rng.integers(0, 9, rng.integers(0, 5)).tolist() for _ in range(30)], source=name, episode=1)
        for name in ("query", "lookahead", "bm25")
    ]
    mixed = union(pools)
    for i in range(30):
        assert entries_of(mixed, i) == [entry for pool in pools for entry in entries_of(pool, i)]


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "bad", [{"alpha": 1.0}, {"alpha": -0.1}, {"beta": 1.0}, {"beta": float("nan")}, {"alpha": 2}]
)
def test_weights_out_of_range(bad):
    with pytest.raises(SettingsError, match="OUT_OF_RANGE"):
        teleport(*mined(1), None, **HALF | bad)


def test_pools_that_do_not_belong_together():
    query, near = mined(2)
    with pytest.raises(SettingsError, match="NO_LOOKAHEAD"):
        teleport(query, None, None, **HALF)
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        teleport(query, replace(near, collection="beef"), None, **HALF)
    with pytest.raises(ArtifactError, match="OTHER_EPISODE"):
        teleport(query, mined(1)[1], None, **HALF)
    with pytest.raises(ArtifactError, match="NOT_OLDER"):
        teleport(query, near, episodes(2), **HALF)


def test_no_queries():
    nothing = np.zeros(0, np.int64)
    query, near = (pool.select(nothing) for pool in mined(2))
    assert len(teleport(query, near, episodes(1), **HALF)) == 0
    assert isinstance(query.positives, Positives)


def test_sources_have_equally_many_entries_by_hand():
    one, two = pool_of([[1, 2, 3], [4], [], []]), pool_of([[10, 11], [12, 13, 14, 15], [16, 17], []])

    def lengths(**options):
        return [spans(pool.offsets).tolist() for pool in balanced([one, two], 1, **options)]

    assert lengths() == [[2, 1, 0, 0], [2, 1, 2, 0]]  # a source without entries does not count
    assert lengths(least=4) == [[2, 1, 0, 0], [2, 3, 2, 0]]  # the other one fills up, as far as it can
    assert lengths(least=5) == [[3, 1, 0, 0], [2, 4, 2, 0]]
    assert balanced([], 1) == []

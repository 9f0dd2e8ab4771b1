"""Batches of a pool: every query once an epoch, windows of its entries, any step by itself."""

import logging
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from hardneg.errors import InputError
from hardneg.negatives.groups import epoch_order
from hardneg.records import Positives
from hardneg.training.batches import VisitBatches, micro_sizes, trainable
from worlds.tiny_records import pool_of


def numbered(lengths, *, positives=2, episode=1):
    """Query i has passages 100 i, 100 i + 1, ... and positives 10 000 + 10 i, ..."""
    lists = [100 * i + np.arange(length) for i, length in enumerate(lengths)]
    good = [10_000 + 10 * i + np.arange(positives) for i in range(len(lengths))]
    return pool_of(lists, good, query_rows=np.arange(len(lengths)) * 3, episode=episode)


def batches_of(pool, *, negatives=2, **changes):
    """The batches of a pool that stays, whose entries return when all were there, as in ANCE-Tele."""
    options = {"queries_per_step": 3, "seed": 5, "episode": pool.episode, "fresh": False} | changes
    positions = trainable(pool, negatives)
    return VisitBatches(pool.positives, lambda step: pool, negatives=negatives, positions=positions, **options)


def test_every_query_once_an_epoch_and_the_last_step_takes_what_is_left():
    batches = batches_of(numbered([4] * 7))
    steps = [batches(step) for step in range(9)]
    assert [len(step.query_rows) for step in steps] == [3, 3, 1] * 3
    assert [step.step_queries for step in steps] == [3, 3, 1] * 3
    epochs = [np.concatenate([step.query_rows for step in steps[i : i + 3]]).tolist() for i in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(0, 21, 3)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "shuffled anew"


def test_any_step_by_itself_is_the_same():
    pool = numbered([4] * 7)
    straight = [batches_of(pool)(step) for step in range(8)]
    batches = batches_of(pool)
    for step in (7, 0, 5, 2, 7):
        found = batches(step)
        assert found.query_rows.tolist() == straight[step].query_rows.tolist()
        assert found.passage_rows.tolist() == straight[step].passage_rows.tolist()


def test_groups_are_a_positive_and_entries_that_return_when_all_were_there():
    batches = batches_of(numbered([4] * 7))
    drawn, positives = {}, {}
    for step in range(6):  # two epochs of two entries each: all four
        batch = batches(step)
        for query, (positive, *negatives) in zip(batch.query_rows // 3, batch.passage_rows, strict=True):
            drawn.setdefault(query, []).extend(negatives)
            positives.setdefault(query, []).append(positive)
    for query, rows in drawn.items():
        assert Counter(rows) == Counter(100 * query + np.arange(4))
        assert sorted(positives[query]) == [10_000 + 10 * query, 10_001 + 10 * query]


def test_the_first_positive_only():
    batches = batches_of(numbered([4] * 7), rotate=False)
    for step in range(6):
        batch = batches(step)
        assert batch.passage_rows[:, 0].tolist() == (10_000 + 10 * (batch.query_rows // 3)).tolist()


def test_seed_and_episode_change_the_order():
    rows = [
        batches_of(numbered([4] * 7, episode=e), seed=s)(0).query_rows.tolist()
        for s, e in ((5, 1), (6, 1), (5, 2))
    ]
    assert len({tuple(row) for row in rows}) == 3


def test_micro_batches_are_asked_for():
    batch = batches_of(numbered([4] * 7), micro_queries=2)(0)
    assert [len(part.query_rows) for part in batch.micro()] == [2, 1]
    assert [part.step_queries for part in batch.micro()] == [3, 3]


@pytest.mark.parametrize(
    ("queries", "most", "sizes"),
    [(9, 8, [5, 4]), (8, 4, [4, 4]), (7, 8, [7]), (3, 2, [3]), (5, 2, [3, 2]), (4, 2, [2, 2]), (10, 4, [4, 3, 3])],
)
def test_no_query_is_left_alone_in_a_part_of_in_batch_negatives_alone(queries, most, sizes):
    batch = batches_of(numbered([0] * queries), negatives=0, queries_per_step=queries, micro_queries=most)(0)
    parts = batch.micro()
    assert [len(part.query_rows) for part in parts] == sizes
    assert np.concatenate([part.query_rows for part in parts]).tolist() == batch.query_rows.tolist()
    assert np.array_equal(np.concatenate([part.passage_rows for part in parts]), batch.passage_rows)
    own = [min(most, queries - start) for start in range(0, queries, most)]
    assert micro_sizes(queries, most, alone=False) == own  # with negatives of their own, as ever


def test_queries_without_negatives_are_skipped_and_counted(caplog):
    with caplog.at_level(logging.WARNING, "hardneg"):
        batches = batches_of(numbered([4, 0, 1, 0, 4]))
    assert "2 of 5 training queries have no negative, and are skipped; mine deeper" in caplog.text
    assert batches.positions.tolist() == [0, 2, 4]
    assert sorted(batches(0).query_rows.tolist()) == [0, 6, 12]


def test_what_to_do_is_told_only_if_many_are_skipped(caplog):
    with caplog.at_level(logging.WARNING, "hardneg"):
        batches_of(numbered([4, 0, 1, 3, 4]))
    assert caplog.messages == ["1 of 5 training queries has no negative, and is skipped"]


def test_without_hard_negatives_all_queries_train():
    batches = batches_of(numbered([0, 0, 0]), negatives=0)
    assert batches(0).passage_rows.shape == (3, 1)


def test_nothing_to_train_on():
    with pytest.raises(InputError, match="NO_NEGATIVES: none of 3 training queries"):
        batches_of(numbered([0, 0, 0]))
    with pytest.raises(InputError, match="NO_NEGATIVES: the pool holds no query: all were left out"):
        batches_of(numbered([]))


# ---------------------------------------------------------------- negatives drawn at every visit


def visits_of(pool_at, first, **changes):
    options = {"queries_per_step": 3, "negatives": 2, "seed": 5} | changes
    return VisitBatches(
        Positives(first.query_rows, first.positive_offsets, first.positive_rows), pool_at, **options
    )


def test_a_pool_that_never_changes_fills_every_step_with_queries_that_can_train():
    pool = numbered([4, 0, 4, 0, 0, 4, 4, 0, 4, 4])
    batches = visits_of(lambda step: pool, pool, positions=trainable(pool, 2))
    steps = [batches(step) for step in range(4)]
    assert [len(step.query_rows) for step in steps] == [3, 3] * 2
    for epoch in (steps[:2], steps[2:]):
        assert sorted(row // 3 for step in epoch for row in step.query_rows.tolist()) == [0, 2, 5, 6, 8, 9]


def test_a_step_whose_queries_have_no_negatives_takes_the_next_ones_that_have():
    pools = [numbered([4] * 9), numbered([0] * 8 + [4]), numbered([0] * 9)]
    batches = visits_of(lambda step: pools[step // 3], pools[0])
    assert [len(batches(step).query_rows) for step in range(6)] == [3, 3, 3, 1, 1, 1]
    assert [batches(step).query_rows.tolist() for step in (3, 4, 5)] == [[24]] * 3
    with pytest.raises(InputError, match="NO_NEGATIVES: none of 9 training queries"):
        batches(6)


def test_a_step_takes_no_memory_for_the_queries_of_other_steps():
    queries = 100_000
    pool = pool_of([[1, 2], []] * (queries // 2), [[3]] * queries)
    batches = visits_of(lambda step: pool, pool, negatives=1, queries_per_step=8)
    batches(0)  # shuffles the epoch, and looks once which queries have a negative
    tracemalloc.start()
    batch = batches(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    order = epoch_order(pool.query_rows, seed=5, episode=0, epoch=0)[8:16]
    assert batch.query_rows.tolist() == order[order % 2 == 0].tolist()
    assert peak < queries, "not a byte for each training query"


def test_queries_that_are_skipped_are_counted_once_for_all_steps(caplog):
    pool = numbered([4, 0] * 4)
    batches = visits_of(lambda step: pool, pool, queries_per_step=1)
    with caplog.at_level(logging.WARNING, "hardneg"):
        steps = [batches(step) for step in range(8)]
    assert len(caplog.messages) == 1
    assert all(len(step.query_rows) == 1 and step.query_rows[0] % 6 == 0 for step in steps)


def test_positives_go_round_while_versions_of_the_negatives_come():
    versions = [numbered([4] * 6, positives=3, episode=version) for version in range(4)]
    batches = visits_of(lambda step: versions[step // 2 % 4], versions[0])
    seen = {}
    for step in range(8):  # four epochs, each with a version of its own
        batch = batches(step)
        for query, positive in zip(batch.query_rows.tolist(), batch.passage_rows[:, 0].tolist(), strict=True):
            seen.setdefault(query, []).append(positive)
    assert all(len(set(positives[:3])) == 3 and positives[3] == positives[0] for positives in seen.values())


def test_another_episode_has_another_order():
    pool = numbered([4] * 20)
    orders = [visits_of(lambda step: pool, pool, queries_per_step=20, episode=e)(0).query_rows for e in (1, 2)]
    assert orders[0].tolist() != orders[1].tolist()
    assert sorted(orders[0]) == sorted(orders[1])

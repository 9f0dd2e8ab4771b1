"""Ragged records: spans, cuts and selections by hand and against slow loops."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from hardneg.keyed_random import below, hash64, key
from hardneg.records import (
    BLOCK,
    Positives,
    Qrels,
    Run,
    TextTemplate,
    TokenBatch,
    blocks,
    changes,
    distinct,
    offsets_of,
    owners,
    spans,
    take_spans,
)

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


def numbers(purpose, size, top, seed=0):
    return below(hash64(key(seed, purpose), np.arange(size)), top)


def lists_of(record, *names):
    """The named flat arrays of a ragged record as lists, one for each query."""
    bounds = list(zip(record.offsets[:-1].tolist(), record.offsets[1:].tolist(), strict=True))
    return [[getattr(record, name)[a:b].tolist() for a, b in bounds] for name in names]


def qrels_of(lists, grades, query_rows=None):
    flat = [row for rows in lists for row in rows]
    return Qrels(
        np.array(range(len(lists)) if query_rows is None else query_rows, np.int32),
        offsets_of(np.array([len(rows) for rows in lists], np.int64)),
        np.array(flat, np.int32),
        np.array([grade for rows in grades for grade in rows], np.int32),
    )


def random_qrels(queries=50):
    lengths = numbers("lengths", queries, 6).tolist()
    grades = numbers("grades", sum(lengths), 4).tolist()
    lists = [sorted(set(numbers("rows", n, 1000, seed=i).tolist()))[:n] for i, n in enumerate(lengths)]
    cut = iter(grades)
    return qrels_of(lists, [[next(cut) for _ in rows] for rows in lists], query_rows=range(100, 100 + queries))


# ---------------------------------------------------------------- spans


def test_spans_owners_and_offsets_by_hand():
    offsets = offsets_of(np.array([2, 0, 3], np.int32))
    assert offsets.tolist() == [0, 2, 2, 5]
    assert offsets.dtype == INT64
    assert spans(offsets).tolist() == [2, 0, 3]
    assert owners(offsets).tolist() == [0, 0, 2, 2, 2]


def test_nothing_has_one_offset():
    offsets = offsets_of(np.array([], np.int64))
    assert offsets.tolist() == [0]
    assert offsets.dtype == INT64
    assert spans(offsets).tolist() == owners(offsets).tolist() == []


def test_offsets_pass_32_bits():
    assert offsets_of(np.array([2**31 - 1, 2**31 - 1], np.int32))[-1] == 2**32 - 2


def test_take_spans_by_hand():
    index, new = take_spans(np.array([0, 2, 2, 5]), np.array([2, 0, 1, 2]))
    assert index.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert new.tolist() == [0, 3, 5, 5, 8]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_take_spans_equals_a_slow_loop(dtype):
    offsets = offsets_of(numbers("lengths", 60, 5))
    rows = numbers("rows", 200, 60).astype(dtype)
    index, new = take_spans(offsets, rows)
    pieces = [list(range(offsets[row], offsets[row + 1])) for row in rows.tolist()]
    assert index.tolist() == [i for piece in pieces for i in piece]
    assert new.tolist() == np.cumsum([0] + [len(piece) for piece in pieces]).tolist()
    assert index.dtype == new.dtype == INT64


def test_taking_no_span_or_empty_ones_gives_nothing():
    for rows in (np.array([], np.int64), np.array([1, 1, 1])):
        index, new = take_spans(np.array([0, 2, 2, 5]), rows)
        assert index.tolist() == []
        assert new.tolist() == [0] * (len(rows) + 1)


# ---------------------------------------------------------------- runs

RUN = Run(
    query_rows=np.array([7, 3, 9, 4], np.int32),
    offsets=np.array([0, 3, 3, 4, 6]),
    passage_rows=np.array([10, 11, 12, 20, 30, 31], np.int32),
    scores=np.array([3.0, 2.0, 1.0, 9.0, 5.0, 4.0], np.float32),
    unit="chunk",
    collection="c0ffee",
)


@pytest.mark.parametrize("values", [[], [5], [3, 1, 3, 3, 2, 1], [[4, 0], [0, 9]], [2**63, 0, 2**63]])
def test_distinct_values_ascend(values):
    dtype = np.uint64 if 2**63 in values else np.int32
    found = distinct(np.array(values, dtype))
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(np.ravel(values).tolist()))


def test_changes_by_hand():
    assert changes(np.array([4, 4, 2, 4])).tolist() == [True, False, True, True]
    assert changes(np.array([])).tolist() == []


def test_hits_of_a_query():
    assert len(RUN) == 4
    assert Run(RUN.query_rows, RUN.offsets, RUN.passage_rows, RUN.scores).unit == "passage"
    rows, scores = RUN.hits(0)
    assert rows.tolist() == [10, 11, 12]
    assert scores.tolist() == [3.0, 2.0, 1.0]
    assert RUN.hits(1)[0].tolist() == []
    assert RUN.hits(3)[1].tolist() == [5.0, 4.0]


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 100])
def test_a_cut_run_keeps_the_best_of_every_query(depth):
    cut = RUN.cut(depth)
    rows, scores = lists_of(RUN, "passage_rows", "scores")
    assert lists_of(cut, "passage_rows", "scores") == [
        [one[:depth] for one in rows],
        [one[:depth] for one in scores],
    ]
    assert cut.query_rows.tolist() == RUN.query_rows.tolist()
    assert (cut.unit, cut.collection) == ("chunk", "c0ffee")
    assert (cut.offsets.dtype, cut.passage_rows.dtype, cut.scores.dtype) == (INT64, INT32, np.float32)


@pytest.mark.parametrize("block", [1, 50, 1 << 17])
def test_cutting_equals_a_slow_loop_on_many_lists(monkeypatch, block):
    monkeypatch.setattr(blocks, "__defaults__", (block,))
    lengths = numbers("lengths", 300, 9)
    offsets = offsets_of(lengths)
    flat = np.arange(offsets[-1], dtype=np.int32)
    run = Run(np.arange(300, dtype=np.int32), offsets, flat, flat.astype(np.float32))
    (expected,) = lists_of(run, "passage_rows")
    (found,) = lists_of(run.cut(4), "passage_rows")
    assert found == [rows[:4] for rows in expected]
    assert max(map(len, found)) == 4


def test_some_lists_are_replaced():
    other = Run(RUN.query_rows[[3, 0]], np.array([0, 1, 4]), np.arange(4, dtype=np.int32), np.ones(4, np.float32))
    found = RUN.replaced(np.array([3, 0]), other)
    rows, scores = lists_of(RUN, "passage_rows", "scores")
    assert lists_of(found, "passage_rows", "scores") == [
        [[1, 2, 3], *rows[1:3], [0]],
        [[1.0] * 3, *scores[1:3], [1.0]],
    ]
    assert found.query_rows.tolist() == RUN.query_rows.tolist()
    assert (found.unit, found.collection) == ("chunk", "c0ffee")
    assert RUN.replaced(np.zeros(0, np.int64), RUN.select(np.zeros(0, np.int64))) == RUN


def test_cutting_takes_little_memory_besides_what_it_gives():
    n, deep = 5000, 100
    flat = np.zeros(n * deep, np.int32)
    run = Run(np.arange(n, dtype=np.int32), np.arange(n + 1) * deep, flat, flat.astype(np.float32))
    tracemalloc.start()
    kept = run.cut(deep - 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(kept.scores) == n * (deep - 1)
    assert peak < 8 * len(kept.scores) + 40 * BLOCK, "8 bytes a hit, and the temporaries of a block"


# ---------------------------------------------------------------- judgements


def test_positives_of_qrels_by_hand():
    qrels = qrels_of([[1, 5, 9], [2], [], [3, 4]], [[0, 1, 3], [0], [], [2, -1]], query_rows=[10, 20, 30, 40])
    positives = qrels.positives()
    assert positives.query_rows.tolist() == [10, 20, 30, 40]
    assert lists_of(positives, "passage_rows") == [[[5, 9], [], [], [3]]]
    assert lists_of(qrels.positives(2), "passage_rows") == [[[9], [], [], [3]]]
    assert lists_of(qrels.positives(4), "passage_rows") == [[[], [], [], []]]
    assert lists_of(qrels.positives(0), "passage_rows") == [[[1, 5, 9], [2], [], [3]]]
    assert len(positives) == len(qrels) == 4


@pytest.mark.parametrize("minimum", [0, 1, 2, 3])
def test_positives_equal_a_slow_loop(minimum):
    qrels = random_qrels()
    rows, grades = lists_of(qrels, "passage_rows", "grades")
    expected = [
        [row for row, grade in zip(*pair, strict=True) if grade >= minimum]
        for pair in zip(rows, grades, strict=True)
    ]
    positives = qrels.positives(minimum)
    assert lists_of(positives, "passage_rows") == [expected]
    assert [positives.of(i).tolist() for i in range(len(positives))] == expected
    assert (positives.offsets.dtype, positives.passage_rows.dtype) == (INT64, INT32)


@pytest.mark.parametrize("chosen", [[], [3], [49, 0, 0, 7], list(range(50))[::-1]])
def test_selections_equal_slow_loops(chosen):
    qrels = random_qrels()
    rows, grades = lists_of(qrels, "passage_rows", "grades")
    selected = qrels.select(np.array(chosen, np.int64))
    assert selected.query_rows.tolist() == [100 + i for i in chosen]
    assert lists_of(selected, "passage_rows", "grades") == [[rows[i] for i in chosen], [grades[i] for i in chosen]]

    positives = qrels.positives()
    (rows,) = lists_of(positives, "passage_rows")
    selected = positives.select(np.array(chosen, np.int64))
    assert isinstance(selected, Positives)
    assert selected.query_rows.tolist() == [100 + i for i in chosen]
    assert lists_of(selected, "passage_rows") == [[rows[i] for i in chosen]]


def test_selecting_then_taking_positives_is_taking_positives_then_selecting():
    qrels, chosen = random_qrels(), np.array([5, 48, 5, 2])
    one, other = qrels.select(chosen).positives(), qrels.positives().select(chosen)
    for field in dataclasses.fields(Positives):
        assert getattr(one, field.name).tolist() == getattr(other, field.name).tolist()


def test_the_first_positive_of_every_query():
    positives = Positives(np.array([4, 2], np.int32), np.array([0, 2, 3]), np.array([8, 9, 7], np.int32))
    assert positives.first().tolist() == [8, 7]


@pytest.mark.parametrize("offsets", [[0, 0, 3], [0, 2, 2, 3], [0, 3, 3]])
def test_there_is_no_first_positive_where_a_query_has_none(offsets):
    # without the check the first positive of the next query would be taken
    rows = np.arange(len(offsets) - 1, dtype=np.int32)
    with pytest.raises(AssertionError):
        Positives(rows, np.array(offsets), np.array([8, 9, 7], np.int32)).first()


# ---------------------------------------------------------------- tokens


def test_a_token_batch_takes_sequences():
    batch = TokenBatch(np.array([1, 2, 3, 4, 5, 6], np.int32), np.array([0, 2, 2, 6]))
    assert len(batch) == 3
    assert batch.lengths.tolist() == [2, 0, 4]
    taken = batch.take(np.array([2, 0]))
    assert taken.ids.tolist() == [3, 4, 5, 6, 1, 2]
    assert taken.offsets.tolist() == [0, 4, 6]
    assert len(batch.take(np.array([], np.int64))) == 0


def test_records_of_arrays_compare_by_value():
    one, same = (Positives(np.array([3], np.int32), np.array([0, 1]), np.array([7], np.int32)) for _ in range(2))
    assert one == same
    assert one != Positives(one.query_rows, one.offsets, np.array([8], np.int32))
    assert one != Positives(one.query_rows, one.offsets, np.array([7, 8], np.int32))
    assert one != "something else"
    assert one != Qrels(one.query_rows, one.offsets, one.passage_rows, np.array([1], np.int32))
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    runs = [
        Run(one.query_rows, one.offsets, one.passage_rows, np.array([x], np.float32)) for x in (np.nan, np.nan, 1)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_records_are_immutable():
    qrels = random_qrels()
    for record in (
        RUN,
        qrels,
        qrels.positives(),
        TextTemplate("query", 32),
        TokenBatch(RUN.passage_rows, RUN.offsets),
    ):
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, getattr(record, name))


def test_templates_compare_by_value():
    template = TextTemplate("query", 32, tokenizer="aa")
    assert template == TextTemplate("query", 32, tokenizer="aa")
    assert template != TextTemplate("query", 32, tokenizer="bb")
    assert dataclasses.asdict(template) == {
        "side": "query",
        "max_length": 32,
        "prompt": "",
        "use_titles": True,
        "title_join": "sep",
        "chunks": 1,
        "max_characters": 0,
        "tokenizer": "aa",
    }

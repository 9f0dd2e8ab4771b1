"""Keyed draws: published constants, even spread, slow loops, and no dependence on order or partition."""

import math

import numpy as np
import pytest

from calls import uncalled
from hardneg import keyed_random
from hardneg.records import offsets_of

WORD = 2**64


def splitmix_finalise(x):
    """The finaliser of splitmix64, in Python integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def slow_hash64(base, *columns):
    for value in columns:
        column = splitmix_finalise((value % WORD * 0x9E3779B97F4A7C15 + 0x94D049BB133111EB) % WORD)
        base = splitmix_finalise((base + 0x9E3779B97F4A7C15 + column) % WORD)
    return base


def slow_smallest(words, offsets, counts):
    taken = []
    for i, count in enumerate(counts):
        span = range(offsets[i], offsets[i + 1])
        taken += sorted(span, key=lambda j: (int(words[j]), j))[:count]
    return taken


def ragged(lengths, seed=0):
    words = keyed_random.hash64(keyed_random.key(seed, "words"), np.arange(sum(lengths)))
    return words, offsets_of(np.array(lengths, np.int64))


# ---------------------------------------------------------------- words


def test_the_finaliser_gives_the_published_stream_of_splitmix64():
    # the first outputs of the reference generator from seed 0: finalise(k * golden)
    stream = [(k * 0x9E3779B97F4A7C15) % WORD for k in (1, 2, 3)]
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    with np.errstate(over="ignore"):
        assert keyed_random._mix(np.array(stream, np.uint64)).tolist() == published
    assert [splitmix_finalise(word) for word in stream] == published


def test_a_finalised_word_by_hand():
    # 1: x ^ x >> 30 = 1, times the first constant; then by the second
    first = 0xBF58476D1CE4E5B9
    second = ((first ^ (first >> 27)) * 0x94D049BB133111EB) % WORD
    assert keyed_random._mix(np.array([0, 1], np.uint64)).tolist() == [0, second ^ (second >> 31)]


@pytest.mark.parametrize("base", [0, 1, WORD - 1, 0x123456789ABCDEF0])
def test_hash64_equals_a_slow_loop(base):
    rows, places = np.arange(40), np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**62])
    found = keyed_random.hash64(base, rows[:, None], places[None, :])
    assert found.shape == (40, 6)
    assert found.dtype == np.uint64
    assert found.tolist() == [[slow_hash64(base, int(row), int(place)) for place in places] for row in rows]


def test_the_same_number_gives_the_same_word_in_any_width():
    values = [-1, 0, 5, 2**31 - 1]
    assert np.array_equal(
        keyed_random.hash64(7, np.array(values, np.int32)), keyed_random.hash64(7, np.array(values, np.int64))
    )


def test_a_word_depends_on_the_order_of_columns_and_on_each_of_them():
    words = [
        keyed_random.hash64(3, *map(np.array, columns)) for columns in ([1, 2], [2, 1], [1], [1, 2, 0], [0, 1, 2])
    ]
    assert len({int(word) for word in words}) == 5
    assert keyed_random.hash64(3, np.array(1)) != keyed_random.hash64(4, np.array(1))


def test_words_of_one_column_never_repeat():
    assert len(np.unique(keyed_random.hash64(11, np.arange(200_000)))) == 200_000


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 62])
def test_flipping_one_input_bit_flips_each_output_bit_half_the_time(bit):
    values = np.arange(20_000)
    changed = keyed_random.hash64(5, values) ^ keyed_random.hash64(5, values ^ (1 << bit))
    flips = np.unpackbits(changed.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(flips - 0.5).max() < 0.02  # five standard deviations of a fair coin are 0.018


# ---------------------------------------------------------------- keys


def test_a_key_is_the_same_for_ever():
    # of b"42\x1fsample/query\x1f3" by b2sum -l 64, its bytes read from the last
    assert keyed_random.key(42, "sample/query", 3) == 0x3CC0E8C8AF8263ED


def test_keys_differ_in_every_part_and_do_not_run_together():
    names = [(1, "a"), (2, "a"), (1, "b"), (1, "a", 0), (1, "a", 1), (1, "a", 0, 1), (1, "a", 1, 0), (1, "a", 10)]
    assert len({keyed_random.key(*name) for name in names}) == len(names)
    assert keyed_random.key(1, "a", 1, 23) != keyed_random.key(1, "a", 12, 3)
    assert keyed_random.key(1, "a", np.int32(7)) == keyed_random.key(1, "a", 7)


# ---------------------------------------------------------------- integers below n


def test_below_by_hand():
    words = np.array([0, 2**63 - 1, 2**63, WORD - 1], np.uint64)  # 0, just under a half, a half, just under one
    assert keyed_random.below(words, 10).tolist() == [0, 4, 5, 9]
    assert keyed_random.below(words, np.array([1, 2, 2, 7])).tolist() == [0, 0, 1, 6]
    assert keyed_random.below(words, 10).dtype == np.int64


@pytest.mark.parametrize("n", [1, 3, 2537, 8_841_823, 2**40 + 1, 2**53])
def test_below_is_the_floor_of_a_fraction_of_n(n):
    words = keyed_random.hash64(keyed_random.key(2, "floor"), np.arange(1000))
    slow = [math.floor((int(word) >> 11) * 2.0**-53 * n) for word in words]
    assert keyed_random.below(words, n).tolist() == slow


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8_841_823, 2**31 - 1, 2**40 + 1, 2**53 - 1, 2**53])
def test_below_never_reaches_its_bound(n):
    words = np.array([0, 2**11 - 1, WORD - 2**11, WORD - 1], np.uint64)
    found = keyed_random.below(words, n)
    assert found.min() == 0
    assert found.max() == n - 1


def chi_square(counts):
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_below_is_uniform():
    found = keyed_random.below(keyed_random.hash64(keyed_random.key(1, "uniform"), np.arange(100_000)), 100)
    counts = np.bincount(found, minlength=100)
    assert 57 < chi_square(counts) < 158  # 99 degrees of freedom, 1 in 1000 on either side


# ---------------------------------------------------------------- without replacement


def test_smallest_by_hand():
    words = np.array([5, 1, 3, 9, 8, 7, 2], np.uint64)
    offsets = np.array([0, 3, 3, 6, 7])
    found = keyed_random.smallest(words, offsets, np.array([2, 4, 5, 0]))
    assert found.tolist() == [1, 2, 5, 4, 3]  # span by span, each by word ascending; all where there are fewer


LENGTHS = [[7], [0], [0, 0], [1, 0, 4, 0], [200] * 30, [3, 500, 0, 17, 1] * 9, [1] * 300]


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} spans of {sum(lengths)}")
def test_smallest_equals_a_slow_loop(lengths):
    words, offsets = ragged(lengths)
    for counts in (np.zeros(len(lengths), int), np.arange(len(lengths)) % 40, np.full(len(lengths), 1000)):
        assert keyed_random.smallest(words, offsets, counts).tolist() == slow_smallest(words, offsets, counts)


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)} spans of {sum(lengths)}")
def test_equal_words_and_words_that_differ_in_the_last_bits_are_ordered_too(lengths):
    # the fast sort looks at fewer bits than a word has: what it cannot tell apart must still be right
    words, offsets = ragged(lengths)
    counts = np.full(len(lengths), 4)
    for alike in (words % np.uint64(3), np.uint64(WORD - 1) - words % np.uint64(5), words >> np.uint64(50)):
        assert keyed_random.smallest(alike, offsets, counts).tolist() == slow_smallest(alike, offsets, counts)


def test_words_that_differ_early_take_the_fast_way():
    words, offsets = ragged([200] * 500)
    expected = slow_smallest(words, offsets, [30] * 500)
    counts = np.full(500, 30)
    with uncalled(np, "lexsort", control=lambda: keyed_random.smallest(words % np.uint64(3), offsets, counts)):
        assert keyed_random.smallest(words, offsets, counts).tolist() == expected


def test_spans_of_extreme_words_stay_apart():
    words = np.array([WORD - 1, WORD - 2, 0, 1, WORD - 1, 0], np.uint64)
    assert keyed_random.smallest(words, np.array([0, 2, 4, 6]), np.array([1, 1, 1])).tolist() == [1, 2, 5]


def test_a_draw_does_not_depend_on_the_partition_or_on_other_lists():
    lengths = [40, 3, 0, 25, 60, 8]
    words, offsets = ragged(lengths)
    counts = np.array([5, 5, 5, 25, 7, 3])
    whole = keyed_random.smallest(words, offsets, counts)
    parts = []
    for i in range(len(lengths)):
        alone = keyed_random.smallest(
            words[offsets[i] : offsets[i + 1]], offsets[i : i + 2] - offsets[i], counts[[i]]
        )
        parts += (alone + offsets[i]).tolist()
    assert whole.tolist() == parts


def test_a_keyed_draw_does_not_depend_on_the_order_of_queries():
    def drawn(queries):
        words = keyed_random.hash64(
            keyed_random.key(9, "sample"), np.repeat(queries, 20), np.tile(np.arange(20), len(queries))
        )
        found = keyed_random.smallest(words, offsets_of(np.full(len(queries), 20)), np.full(len(queries), 6))
        return dict(zip(queries.tolist(), (found.reshape(-1, 6) % 20).tolist(), strict=True))

    assert drawn(np.array([4, 8, 15, 16])) == drawn(np.array([16, 4, 15, 8]))
    assert drawn(np.array([15]))[15] == drawn(np.array([4, 15]))[15]


def test_every_element_is_drawn_as_often_and_at_every_place():
    lists, length, count = 12_000, 10, 3
    words = keyed_random.hash64(
        keyed_random.key(2, "spread"), np.repeat(np.arange(lists), length), np.tile(np.arange(length), lists)
    )
    found = keyed_random.smallest(words, offsets_of(np.full(lists, length)), np.full(lists, count)).reshape(
        lists, count
    )
    local = found - np.arange(lists)[:, None] * length
    assert all(len(set(row)) == count for row in local.tolist())
    for place in range(count):
        assert chi_square(np.bincount(local[:, place], minlength=length)) < 27.9  # 9 degrees, 1 in 1000
    pairs = np.bincount(local[:, 0] * length + local[:, 1], minlength=100)
    assert chi_square(pairs[pairs > 0]) < 137  # 89 degrees: the ordered pairs of different elements
    assert (pairs > 0).sum() == 90


def test_a_permutation_is_one_and_is_keyed():
    one, other = keyed_random.permutation(1, 1000), keyed_random.permutation(2, 1000)
    assert sorted(one.tolist()) == list(range(1000))
    assert one.tolist() == keyed_random.permutation(1, 1000).tolist() != other.tolist()
    assert one.tolist() == sorted(range(1000), key=lambda i: slow_hash64(1, i))
    assert keyed_random.permutation(1, 0).tolist() == []

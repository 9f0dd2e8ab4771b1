"""Sampling from sources: counts, keys, weights, and the promise that no positive ever gets in."""

from dataclasses import replace

import numpy as np
import pytest

from hardneg.data.text import copies_among
from hardneg.keyed_random import hash64, key
from hardneg.negatives import sources
from hardneg.negatives.candidates import Filters, candidates
from hardneg.negatives.mix import union
from hardneg.negatives.pool import concatenate
from hardneg.negatives.sources import draw_entries, random_source, sample_source
from hardneg.records import Positives, Run, blocks, offsets_of
from worlds.tiny_records import assert_same, positives_of, run_of

N_PASSAGES = 300


def case(seed=0, n_queries=60, lists_per_query=1, depth=40):
    """A run, positives and text keys, with missing queries and copies of positives."""
    rng = np.random.default_rng(seed)
    query_rows = rng.permutation(1000)[:n_queries].astype(np.int32)
    in_run = np.repeat(rng.permutation(query_rows)[: n_queries - 2], lists_per_query)
    lengths = rng.integers(0, depth, len(in_run))
    rows = [rng.permutation(N_PASSAGES)[:n] for n in lengths]
    scores = [np.sort(rng.normal(size=n))[::-1] for n in lengths]
    run = Run(
        in_run,
        offsets_of(lengths),
        np.concatenate(rows).astype(np.int32),
        np.concatenate(scores).astype(np.float32),
    )
    counts = rng.integers(1, 4, n_queries)
    positive_rows = np.concatenate([rng.permutation(N_PASSAGES)[:n] for n in counts]).astype(np.int32)
    keys = rng.integers(0, 150, N_PASSAGES).astype(np.uint64)
    return run, Positives(query_rows, offsets_of(counts), positive_rows), keys


def sampled(run, positives, *, source="query", episode=2, depth=30, count=8, seed=7, **options):
    options = {"source": source, "episode": episode, "depth": depth, "count": count, "seed": seed} | options
    return sample_source(run, positives, **options)


def small_blocks(monkeypatch, size):
    monkeypatch.setattr(blocks, "__defaults__", (size,))
    monkeypatch.setattr(sources, "BLOCK", size)


def assert_no_known(pool, positives, keys):
    for i in range(len(positives)):
        drawn = pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]
        assert not np.isin(drawn, positives.of(i)).any()
        assert not np.isin(keys[drawn], keys[positives.of(i)]).any()


# ---------------------------------------------------------------- lists


def test_sample_equals_a_slow_loop():
    run, positives, keys = case()
    pool = sampled(run, positives, text_keys=keys)
    everything = sampled(run, positives, text_keys=keys, count=None)
    base, some_short = key(7, "draw", 2), False
    for i, query in enumerate(positives.query_rows):
        span = range(everything.offsets[i], everything.offsets[i + 1])

        def word(j, query=int(query)):
            pair = np.array(query << 32 | int(everything.passage_rows[j]))
            mined = np.array((-1 << 32) ^ (2 << 8 | 3))  # no anchor, episode 2, source 3
            return int(hash64(base, pair, mined))

        chosen = sorted(sorted(span, key=word)[:8])
        got = slice(pool.offsets[i], pool.offsets[i + 1])
        assert pool.passage_rows[got].tolist() == everything.passage_rows[chosen].tolist()
        assert pool.ranks[got].tolist() == everything.ranks[chosen].tolist()
        some_short |= len(chosen) < 8
    assert some_short


def test_all_candidates_are_the_plain_ones():
    run, positives, keys = case()
    plain = candidates(run, positives, source="query", episode=2, depth=30, text_keys=keys)
    assert_same(sampled(run, positives, text_keys=keys, count=None), plain)


@pytest.mark.parametrize("size", [1, 37, 500])
@pytest.mark.parametrize("lists_per_query", [1, 2])
@pytest.mark.parametrize("scored", [False, True])
def test_block_size_changes_nothing(monkeypatch, size, lists_per_query, scored):
    """Margins compare the scores of the lists or, in ``scored``, given ones of each query and passage."""
    run, positives, keys = case(1, lists_per_query=lists_per_query)
    scores = np.random.default_rng(1).normal(1, 1, (len(positives), N_PASSAGES)).astype(np.float32)
    options = {
        "text_keys": keys,
        "positive_scores": np.linspace(0, 2, len(positives)).astype(np.float32),
        "filters": Filters(absolute_margin=0.1),
        "anchors": np.arange(len(run), dtype=np.int32),
        "source": "lookahead",
        "compared": (lambda at, passages: scores[at, passages]) if scored else None,
    }
    plain = sampled(run, positives, **options)
    assert len(plain.passage_rows) > 100
    small_blocks(monkeypatch, size)
    assert_same(sampled(run, positives, **options), plain)


def test_workers_and_order_change_nothing():
    run, positives, keys = case(2)
    whole = sampled(run, positives, text_keys=keys)
    shuffled = np.random.default_rng(0).permutation(len(positives))
    shards = [sampled(run, positives.select(part), text_keys=keys) for part in np.array_split(shuffled, 3)]
    assert_same(concatenate(shards), whole.select(shuffled))


def test_draws_depend_on_seed_episode_and_source():
    run, positives, _ = case(3)
    plain = sampled(run, positives)
    for other in ({"seed": 8}, {"episode": 3}, {"source": "bm25"}):
        assert sampled(run, positives, **other).passage_rows.tolist() != plain.passage_rows.tolist(), other


def test_a_smaller_draw_is_part_of_a_larger_one():
    run, positives, _ = case(4)
    small, large = sampled(run, positives, count=3), sampled(run, positives, count=9)
    for i in range(len(positives)):
        few, many = (p.passage_rows[p.offsets[i] : p.offsets[i + 1]].tolist() for p in (small, large))
        assert set(few) <= set(many)


def test_no_positive_and_no_copy_of_one_is_ever_drawn():
    for seed in range(5):
        run, positives, keys = case(seed)
        pool = sampled(run, positives, text_keys=keys, count=25)
        assert_no_known(pool, positives, keys)
        for i in range(len(positives)):  # without replacement
            drawn = pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]
            assert len(set(drawn.tolist())) == len(drawn)


def three_each(n_queries=20_000):
    """Every query has the list 1, 2, 3 with scores log 5, log 3, log 2; its positive is 0."""
    run = Run(
        np.arange(n_queries, dtype=np.int32),
        np.arange(n_queries + 1) * 3,
        np.tile(np.array([1, 2, 3], np.int32), n_queries),
        np.tile(np.log(np.array([5.0, 3.0, 2.0])).astype(np.float32), n_queries),
    )
    positives = Positives(run.query_rows, np.arange(n_queries + 1), np.zeros(n_queries, np.int32))
    return run, positives


@pytest.mark.parametrize("count", [1, 2])
def test_all_entries_are_drawn_alike(count):
    run, positives = three_each()
    pool = sampled(run, positives, count=count)
    found = np.bincount(pool.passage_rows, minlength=4)[1:] / len(positives)
    np.testing.assert_allclose(found, count / 3, atol=4 * np.sqrt(0.25 / len(positives)))


def test_counts_may_differ_by_query():
    run, positives = three_each(4)
    pool = sampled(run, positives, count=None)
    drawn = draw_entries(pool, np.array([0, 1, 2, 9]), seed=1)
    assert np.diff(drawn.offsets).tolist() == [0, 1, 2, 3]
    assert drawn.passage_rows[-3:].tolist() == [1, 2, 3]


def test_a_draw_from_a_drawn_pool_takes_each_source_alike():
    everyone = positives_of([[0]] * 200)
    ranked = sampled(run_of([list(range(1, 41))] * 200), everyone, count=5, seed=42)
    drawn_anew = random_source(everyone, N_PASSAGES, episode=2, count=5, seed=42)
    pool = union([ranked, drawn_anew])

    def share(**options):
        return (draw_entries(pool, 5, seed=42, **options).sources == ranked.sources[0]).mean()

    assert abs(share(purpose="export") - 0.5) < 0.06, "4 standard deviations"
    assert share() > 0.8, "under the key of the first draw, its entries come first"


def test_shortfalls_are_logged(caplog):
    run, positives = three_each(4)
    with caplog.at_level("INFO"):
        sampled(run, positives, count=3)
        assert caplog.messages == []
        sampled(run, positives, count=5)
    assert caplog.messages == ["query: 4 queries got too few negatives; 8 are missing"]


def test_no_queries():
    run, positives = three_each(4)
    nothing = positives.select(np.zeros(0, np.int64))
    assert len(sampled(run, nothing)) == 0
    assert len(random_source(nothing, 10, count=2, seed=1, episode=1)) == 0


# ---------------------------------------------------------------- the whole corpus


def slow_random(positives, i, n_passages, count, seed, episode, keys, *, texts=False):
    """The random negatives of one query by plain rejection, None where the trials do not suffice.

    With ``texts``, no two of them have one text.
    """
    base, drawn = key(seed, "draw/random", episode), []
    known = {int(keys[row]) for row in positives.of(i)}
    for trial in range(2 * count + 16):
        word = int(hash64(base, positives.query_rows[i : i + 1], np.array([trial]))[0])
        row = int(np.floor((word >> 11) * 2.0**-53 * n_passages))
        if int(keys[row]) not in known and row not in drawn and len(drawn) < count:
            drawn.append(row)
            known |= {int(keys[row])} if texts else set()
    return sorted(drawn) if len(drawn) == count else None


@pytest.mark.parametrize("texts", [False, True])
def test_random_equals_a_slow_loop(texts):
    _, positives, keys = case(5)
    options = {"text_keys": keys, "copies": copies_among(keys) if texts else None}
    pool = random_source(positives, N_PASSAGES, count=10, seed=3, episode=1, **options)
    for i in range(len(positives)):
        expected = slow_random(positives, i, N_PASSAGES, 10, 3, 1, keys, texts=texts)
        assert pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]].tolist() == expected
    assert (pool.ranks == 0).all()
    assert np.isnan(pool.scores).all()


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("n_passages", [12, 30, N_PASSAGES])
def test_random_on_small_corpora_is_exact_and_clean(monkeypatch, n_passages, texts):
    _, positives, keys = case(6)
    positives = replace(positives, passage_rows=positives.passage_rows % n_passages)
    keys = keys[:n_passages] % np.uint64(n_passages // 2)
    options = {"count": 10, "seed": 3, "episode": 1, "text_keys": keys, "collection": "c0ffee"}
    options |= {"copies": copies_among(keys) if texts else None}
    pool = random_source(positives, n_passages, **options)
    assert_no_known(pool, positives, keys)
    for i in range(len(positives)):
        drawn = pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]
        allowed = keys[~np.isin(keys, keys[positives.of(i)])]
        allowed, told = (np.unique(allowed), keys[drawn]) if texts else (allowed, drawn)
        assert len(set(told.tolist())) == len(drawn) == min(10, len(allowed))
    small_blocks(monkeypatch, 100)
    part = np.random.default_rng(0).permutation(len(positives))[:9]
    assert_same(random_source(positives.select(part), n_passages, **options), pool.select(part))


def test_random_negatives_are_drawn_by_trials_where_half_of_the_corpus_has_one_text(monkeypatch):
    n, count = 20_000, 20
    keys = np.arange(n, dtype=np.uint64)
    keys[: 7 * n // 10] = 0
    positives = Positives(np.arange(30, dtype=np.int32), np.arange(31), np.arange(n - 30, n, dtype=np.int32))
    options = {"count": count, "seed": 3, "episode": 1, "text_keys": keys, "copies": copies_among(keys)}
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_from_corpus", None)  # which hashes all passages for each query
        pool = random_source(positives, n, **options)
    assert np.diff(pool.offsets).tolist() == [count] * 30
    for i in range(30):
        drawn = keys[pool.passage_rows[pool.offsets[i] : pool.offsets[i + 1]]]
        assert len(set(drawn.tolist())) == count
    small_blocks(monkeypatch, 100)
    part = np.arange(5, 17)
    assert_same(random_source(positives.select(part), n, **options), pool.select(part))


def test_random_is_uniform():
    n_queries = 20_000
    positives = Positives(
        np.arange(n_queries, dtype=np.int32), np.arange(n_queries + 1), np.zeros(n_queries, np.int32)
    )
    pool = random_source(positives, 8, count=3, seed=1, episode=1)
    shares = np.bincount(pool.passage_rows, minlength=8) / n_queries
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:], 3 / 7, atol=4 * np.sqrt(0.25 / n_queries))


def test_what_contains_an_answer_takes_no_place_in_the_top():
    run, positives = run_of([[1, 2, 3, 4]]), positives_of([[9]])
    options = {"source": "query", "episode": 1, "depth": 3, "count": None, "seed": 0}
    answers = lambda queries, passages: np.isin(passages, [1, 3])  # noqa: E731
    pool = sample_source(run, positives, filters=Filters(top=1), contains=answers, **options)
    assert pool.passage_rows.tolist() == [2]
    assert pool.filtered == {"query": 0}

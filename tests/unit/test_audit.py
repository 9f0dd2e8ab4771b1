"""The audit: each signal by hand, the rule that puts them together, and the order of the suspected pairs."""

import numpy as np
import pytest

from hardneg.diagnostics import audit as audit_module
from hardneg.diagnostics import text_runs
from hardneg.diagnostics.audit import (
    KINDS,
    Pairs,
    StateRun,
    audit_pairs,
    by_both,
    by_ranker,
    by_states,
    likeness,
    places,
    standing,
    suspicion,
)
from hardneg.diagnostics.text_runs import runs_of, words_of
from hardneg.evaluation.matching import tokens_of
from hardneg.records import blocks
from worlds.tiny_records import pool_of, run_of

NAN = float("nan")


def test_each_pair_of_a_pool_counts_once():
    pairs = Pairs.of(pool_of([[4, 2, 4], [], [2]], query_rows=[7, 8, 9]))
    assert pairs.query_rows.tolist() == [7, 7, 9]
    assert pairs.passage_rows.tolist() == [4, 2, 2]
    assert (pairs.counts.tolist(), pairs.offsets.tolist()) == ([2, 1, 1], [0, 2, 2, 3])


# ---------------------------------------------------------------- texts


def test_runs_of_three_words_by_hand():
    one_two, two_three = runs_of("one two ,"), runs_of("two , THREE")
    assert len(one_two) == len(two_three) == 1
    assert sorted(runs_of("One two, three").tolist()) == sorted([*one_two.tolist(), *two_three.tolist()])
    again = runs_of("a b c a b c a").tolist()  # abc bca cab, and abc bca once more
    assert len(again) == len(set(again)) == 3
    assert set(again) == set(runs_of("a b c a b").tolist())
    short = [runs_of(text).tolist() for text in ("one", "one two", "two one", "one two three")]
    assert [len(numbers) for numbers in short] == [1, 1, 1, 1]
    assert len({numbers[0] for numbers in short}) == 4
    assert runs_of(" \n").tolist() == []


@pytest.mark.parametrize(
    ("left", "right", "other"),
    [
        (
            "東京タワーは東京都港区にある電波塔である。",
            "東京タワーは東京都港区にある電波塔です。",
            "犬が公園で走っている。",
        ),
        ("北京大学是中国最好的大学之一", "北京大学是中国最老的大学之一", "上海在中国的东部海岸"),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", "กรุงเทพมหานครคือเมืองหลวงของประเทศไทย", "แมวกำลังนอนหลับอยู่บนเตียง"),
    ],
)
def test_near_copies_without_blanks_between_words_are_seen(left, right, other):
    """A sentence was one word, so that the likeness was 0 if one character differed."""
    pool = pool_of([[1, 2]], [[0]])
    near, far = likeness(Pairs.of(pool), [left, right, other].__getitem__).tolist()
    assert near >= KINDS["text"].threshold > 0.1 > far


def test_korean_words_and_words_in_other_scripts_stay_whole():
    assert words_of("한국어 책, GPU2 für") == tokens_of("한국어 책, GPU2 für")
    assert words_of("GPU2が速い") == ["gpu2", "か\u3099", "速", "い"]


def shingles(text):
    """The runs of three words of a text, as they are defined."""
    words = tokens_of(text)
    return {tuple(words[i : i + 3]) for i in range(max(len(words) - 2, 1))} - {()}


# Several blocks, as of very many passages, with room for all texts and for some, and one block.
@pytest.mark.parametrize(("together", "held"), [(8, 1 << 25), (8, 200), (1 << 14, 0)])
def test_likeness_equals_a_loop_over_pairs(monkeypatch, together, held):
    monkeypatch.setattr(audit_module, "TOGETHER", together)
    monkeypatch.setattr(text_runs, "HELD", held)
    monkeypatch.setattr(audit_module, "blocks", lambda offsets: blocks(offsets, 20))
    draw = np.random.default_rng(5)
    texts = [" ".join(draw.choice(list("abc"), draw.integers(0, 12))) for _ in range(40)]
    lists = [draw.choice(40, draw.integers(0, 9), replace=False).tolist() for _ in range(30)]
    positives = [draw.choice(40, draw.integers(0, 4), replace=False).tolist() for _ in range(30)]
    read = []
    found = likeness(Pairs.of(pool_of(lists, positives)), lambda row: read.append(row) or texts[row])

    def share(a, b):
        a, b = shingles(texts[a]), shingles(texts[b])
        return len(a & b) / max(len(a | b), 1)

    pairs = zip(lists, positives, strict=True)
    expected = [max((share(row, one) for one in own), default=0) for rows, own in pairs for row in rows]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert (len(read) == len(set(read))) == (held != 200)  # each text is read once, if there is room


def test_long_comparisons_report_progress(monkeypatch):
    told = []
    show = lambda title, unit: lambda done, total: told.append((title, unit, done, total))  # noqa: E731
    monkeypatch.setattr("hardneg.process.progress.shower", show)
    monkeypatch.setattr(audit_module, "EVERY", 1)
    monkeypatch.setattr(audit_module, "TOGETHER", 1)
    monkeypatch.setattr(audit_module, "blocks", lambda offsets: blocks(offsets, 3))
    pairs = Pairs.of(pool_of([[1, 2], [3], [1, 3]], [[0], [0], [0]]))
    likeness(pairs, ["a b c", "a b d", "a c d", "b c d"].__getitem__)
    assert {one[:2] for one in told} == {("comparing texts", "pairs")}
    done = [one[2] for one in told]
    assert done == sorted(done)
    assert {0, 2, 3, 5} == set(done)
    told.clear()
    by_states(pairs, [StateRun(name, run_of([[1, 2], [3], [0, 1]])) for name in ("one", "two")])
    assert told == [("comparing lists", "states", done, 2) for done in (1, 2)]


def test_likeness_is_the_share_of_common_runs_of_three_words():
    texts = ["a b c d e", "A b c d x", "a b c d e", "y z", "", "Y z", "q r s t"]
    pool = pool_of([[1, 2, 6], [5, 4]], [[0, 6], [3]])
    #  {abc bcd cde} and {abc bcd cdx}: two of four; the third equals the second positive
    assert likeness(Pairs.of(pool), texts.__getitem__).tolist() == [0.5, 1.0, 1.0, 1.0, 0.0]
    assert likeness(Pairs.of(pool_of([[1]], [[]])), texts.__getitem__).tolist() == [0.0]


# ---------------------------------------------------------------- ranks


def test_places_in_a_run():
    run = run_of([[5, 3, 9], [3]], query_rows=[2, 0])
    queries, passages = np.array([0, 2, 2, 1, 2], np.int32), np.array([3, 9, 4, 5, 5], np.int32)
    assert places(run, queries, passages).tolist() == [1, 3, 0, 0, 1]


def test_places_equal_a_loop():
    rng = np.random.default_rng(3)
    lists = {row: rng.choice(300, 40, replace=False).tolist() for row in rng.permutation(4000)[:3500].tolist()}
    queries, passages = (
        rng.integers(0, 4000, 20_000).astype(np.int32),
        rng.integers(0, 300, 20_000).astype(np.int32),
    )
    where = {(row, one): place for row, passages in lists.items() for place, one in enumerate(passages, 1)}
    wanted = [where.get(pair, 0) for pair in zip(queries.tolist(), passages.tolist(), strict=True)]
    assert places(run_of(lists), queries, passages).tolist() == wanted


def test_a_negative_is_above_when_it_stands_before_every_positive():
    pool = pool_of([[1, 2, 3], [1, 2], [5]], [[8, 9], [7], []])
    run = run_of([[1, 9, 2, 8], [2, 4], [5]])
    # 3 is not found; 7 is not found, so it stands below 2; the third query has no positive to be above of
    near, high = standing(run, Pairs.of(pool))
    assert high.tolist() == [True, False, False, False, True, True]
    assert near.tolist() == [1, 0.5, 0, 0, 1, 1]


def test_states_count_those_that_rank_a_negative_too_high():
    pool = pool_of([[1, 2]], [[9]])
    states = [
        StateRun("untrained", run_of([[1, 2, 9]])),
        StateRun("episode-1", run_of([[1, 2, 9]])),
        StateRun("final", run_of([[1, 9, 2]])),
    ]
    values, strength = by_states(Pairs.of(pool), states)
    assert values.tolist() == pytest.approx([1, 2 / np.log2(3) / 3])
    assert strength.tolist() == pytest.approx([1, (2 / np.log2(3) + 1 / 2) / 3])


def test_learned_names_what_training_could_not_push_down():
    pool = pool_of([[1, 2, 3], [4]], [[9], [8]])
    leads = {(0, 1): -2.0, (0, 2): 0.25, (1, 4): -0.5}  # no step drew 3

    def of(query_rows, passage_rows):
        pairs = zip(query_rows.tolist(), passage_rows.tolist(), strict=True)
        return np.array([leads.get(pair, np.nan) for pair in pairs], np.float32)

    found = audit_pairs(Pairs.of(pool), leads=of)
    assert [one.name for one in found.signals] == ["learned"]
    assert found.ranking().tolist() == [1]
    assert found.order().tolist() == [1, 2, 3, 0]  # of 3 nothing is known


def test_both_asks_bm25_and_the_newest_state():
    pairs = Pairs.of(pool_of([[1, 2, 3]], [[9]]))
    values, strength = by_both(pairs, run_of([[1, 2, 9]]), run_of([[3, 1, 9]]))
    assert values.tolist() == pytest.approx([1 / np.log2(3), 0, 0])
    assert strength.tolist() == pytest.approx([1 / np.log2(3), 0, 0])


def test_a_query_that_is_a_passage_takes_no_place_before_its_negatives():
    """Query 0 is passage 7, and passage 7 is a hit of query 1 like any other."""
    pairs = Pairs.of(pool_of([[1, 2], [1]], [[9], [9]]))
    own = np.array([0], np.int32), np.array([7], np.int32)
    run = run_of([[7, 1, 9, 2], [7, 1, 9]])
    near, high = standing(run, pairs, own)
    assert near.tolist() == pytest.approx([1, 1 / 2, 1 / np.log2(3)])
    assert high.tolist() == [True, False, True]
    found = audit_pairs(pairs, states=[StateRun("final", run)], bm25=run, own=own)
    wanted = pytest.approx([1, 0, 1 / np.log2(3)])
    assert {one.name: one.values.tolist() for one in found.signals} == {"retriever": wanted, "both": wanted}
    old = Pairs.of(pool_of([[7, 1]], [[9]]))  # the query itself is a negative: it is the first suspect
    assert standing(run, old, own)[0].tolist() == pytest.approx([1, 1 / np.log2(3)])


def test_the_ranker_compares_with_the_best_positive():
    pool = pool_of([[1, 2], [3]], [[8, 9], []], query_rows=[4, 5])
    scores = {(4, 1): 2.0, (4, 2): 0.5, (4, 8): 1.0, (4, 9): 1.5, (5, 3): 1.0}
    asked = []

    def score(queries, passages):
        asked.extend(queries.tolist())
        return np.array(
            [scores[pair] for pair in zip(queries.tolist(), passages.tolist(), strict=True)], np.float32
        )

    np.testing.assert_array_equal(by_ranker(Pairs.of(pool), score), [0.5, -1.0, NAN])
    assert asked == sorted(asked)  # the pairs of a query stand together


def test_scores_that_a_ranker_left_in_the_pool_serve_too():
    scores = {
        "ranker_scores": np.array([2, 0.5, 1], np.float32),
        "positive_scores": np.array([1, 1.5], np.float32),
    }
    pairs = Pairs.of(pool_of([[1, 2], [3]], [[8, 9], []], ranker="digest", **scores))
    found = audit_pairs(pairs)
    assert [one.name for one in found.signals] == ["ranker"]
    np.testing.assert_array_equal(found.signals[0].values, [0.5, -1.0, NAN])
    assert found.ranking().tolist() == [0]


# ---------------------------------------------------------------- together


def test_suspicion_by_hand():
    strengths = [np.array(one, np.float32) for one in ([0.9, 0.0, 0.5, NAN], [2, 3, 2, 0])]
    # shares of pairs at least as strong: 1/3, 3/3, 2/3 of those that are known; and 3/4, 1/4, 3/4, 4/4
    wanted = -np.log([1 / 3 * 3 / 4, 1 * 1 / 4, 2 / 3 * 3 / 4, 1 / np.e])
    assert suspicion(strengths, 4).tolist() == pytest.approx(wanted.tolist())
    assert suspicion([], 2).tolist() == [0, 0]
    assert suspicion([np.zeros(0, np.float32)], 0).tolist() == []


def test_suspicion_knows_no_scale_and_grows_with_strength():
    rng = np.random.default_rng(1)
    strengths = [rng.uniform(0, 3, 50).astype(np.float32) for _ in range(3)]
    before = suspicion(strengths, 50)
    np.testing.assert_allclose(suspicion([1000 * strengths[0] - 7, *strengths[1:]], 50), before)
    np.testing.assert_allclose(suspicion([*strengths, np.ones(50, np.float32)], 50), before)
    strengths[0][13] = 4
    after = suspicion(strengths, 50)
    assert after[13] > before[13]
    assert (np.delete(after, 13) <= np.delete(before, 13)).all()


def test_an_audit_ranks_counts_and_leaves_out_what_is_not_known():
    pool = pool_of([[1, 2, 3], [4]], [[9], [8]], source=np.array([3, 2, 3, 2]))
    texts = dict.fromkeys(range(10), "p q r s") | {9: "a b c", 1: "x y z", 2: "a b c", 8: "u v w"}
    states = [StateRun(name, run_of([[3, 1, 9, 2], [8]])) for name in ("untrained", "episode-1")]
    assert (KINDS["retriever"].threshold, KINDS["text"].threshold) == (0.4, 0.3)
    found = audit_pairs(Pairs.of(pool), text_of=texts.__getitem__, states=states)
    assert [one.name for one in found.signals] == ["text", "retriever"]
    assert found.fired.tolist() == [1, 1, 1, 0]
    # text: 2 alone is like the positive; near the top stand 3, 1, 2 in that order
    assert found.suspicion.tolist() == pytest.approx((-np.log([2 / 4, 1 / 4 * 3 / 4, 1 / 4, 1])).tolist())
    assert found.ranking().tolist() == [1, 2, 0]
    assert found.order().tolist() == [1, 2, 0, 3]
    [text, retriever] = found.counts()
    assert (text["pairs"], text["by_source"], text["queries"]) == (1, {"bm25": 1}, 1)
    assert (retriever["pairs"], retriever["by_source"], retriever["threshold"]) == (2, {"query": 2}, 0.4)
    assert found.sources() == [
        {"source": "bm25", "pairs": 2, "suspected": 1, "share": 0.5},
        {"source": "query", "pairs": 2, "suspected": 2, "share": 1.0},
    ]
    other = audit_pairs(Pairs.of(pool), text_of=texts.__getitem__, states=states, thresholds={"retriever": 1.1})
    assert other.ranking().tolist() == [1]
    alone = audit_pairs(Pairs.of(pool))
    assert (alone.signals, alone.ranking().tolist(), alone.order().tolist()) == ((), [], [0, 1, 2, 3])

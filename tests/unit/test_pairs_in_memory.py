"""Collections from pairs in memory: the same as from a file of the same rows, in every shape that people have."""

import json
from pathlib import Path

import numpy as np
import pytest

import hardneg as hn
from hardneg.errors import HardnegError, InputError

ROWS = [
    {"anchor": "what jumps", "positive": "the fox jumps", "negative": "a dog sleeps"},
    {"anchor": "what sleeps", "positive": "a dog sleeps", "negative": "the fox jumps"},
    {"anchor": "what shines", "positive": ["the sun shines", "a star shines"], "negative": "it rains"},
]


def content(made):
    """All that a collection says, without its name."""
    rows = {split: made.qrels(split) for split in made.splits}
    return (
        made.columns(),
        list(made.query_texts.take(range(made.n_queries))),
        {split: (one.query_rows.tolist(), one.passage_rows.tolist()) for split, one in rows.items()},
    )


@pytest.fixture
def of_file(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return hn.open_collection(str(file), cache=tmp_path / "cache")


@pytest.mark.parametrize("shape", ["list", "generator", "frame", "dataset", "dictionary", "split"])
def test_rows_in_memory_make_the_collection_of_a_file(tmp_path, of_file, shape):
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    lists = [
        row | {"positive": [row["positive"]] if isinstance(row["positive"], str) else row["positive"]}
        for row in ROWS
    ]
    given = {
        "list": ROWS,
        "generator": (row for row in ROWS),
        "frame": pandas.DataFrame(ROWS),
        "dataset": datasets.Dataset.from_list(lists),
        "dictionary": datasets.DatasetDict({"train": datasets.Dataset.from_list(lists)}),
        "split": {"train": ROWS},
    }[shape]
    made = hn.Collection.from_pairs(given, to=tmp_path / "made")
    assert content(made) == content(of_file)
    assert made.line() == "Collection of 5 passages, 3 queries (splits: train)"


@pytest.mark.parametrize("format", [None, "pandas", "polars", "arrow", "numpy"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_dataset_of_any_format_is_read_alike(tmp_path, of_file, format, streamed):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    rows = [
        row | {"positive": [row["positive"]] if isinstance(row["positive"], str) else row["positive"]}
        for row in ROWS
    ]
    given = datasets.Dataset.from_list(rows)
    given = (given.to_iterable_dataset() if streamed else given).with_format(format)
    assert content(hn.Collection.from_pairs(given, to=tmp_path / "made")) == content(of_file)


@pytest.mark.parametrize("format", ["pandas", "arrow", "polars", "numpy"])
def test_columns_that_a_format_hides_are_not_read(tmp_path, format):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    given = datasets.Dataset.from_list([{"anchor": "what", "positive": "this", "negative": "that", "score": 0}])
    data = hn.Collection.from_pairs(
        given.with_format(format, columns=["anchor", "positive"]), to=tmp_path / "made"
    )
    assert data.n_passages == 1
    assert [*data.grades("train").values()] == [{data.passage_ids.take([0])[0]: 1}]
    assert data.facts["ignored_fields"] == {}


def test_splits_are_named_as_in_files(tmp_path):
    made = hn.Collection.from_pairs({"train": ROWS[:2], "validation": ROWS[2:]}, to=tmp_path / "made")
    assert made.splits == ("dev", "train")
    missing = [{"query": "what", "pos": "this", "neg": float("nan")}]
    assert hn.Collection.from_pairs(missing, to=tmp_path / "nan").n_passages == 1


def test_a_single_column_and_columns_without_names_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="the pairs are of the type Series; give a list of mappings"):
        hn.Collection.from_pairs(pandas.DataFrame(ROWS)["anchor"], to=tmp_path / "never")
    with pytest.raises(InputError, match="row 1 of the pairs is no mapping of column names"):
        hn.Collection.from_pairs(pandas.DataFrame([["what", "this"]]), to=tmp_path / "never")


def test_equal_pairs_are_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    first, again = (hn.Collection.from_pairs(list(ROWS)) for _ in range(2))
    assert first.path == again.path
    assert hn.Collection.from_pairs(ROWS[:2]).path != first.path


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("what", "this")], "row 1 of the pairs is no mapping of column names to values; give a list"),
        ("train.csv", "the pairs are 'train.csv', but files are not read here; give the path to train(data"),
        (Path("train.csv"), "the pairs are 'train.csv', but files are not read here; give the path to train("),
        (5, "the pairs are of the type int; give a list of mappings"),
        ({"train": 5}, "the pairs of train are of the type int; give a list of mappings"),
        ([], "NO_POSITIVES: there are no pairs; give a list of mappings"),
        ([{"one": "what", "two": "this"}], "rows of train: UNKNOWN_COLUMNS: the columns are one, two"),
        ({"anchor": ["what"], "positive": ["this"]}, "pairs are given by 'anchor', 'positive'; give a list"),
        ({}, "no pairs are given"),
        ({"train": ROWS, "dev": []}, "NO_POSITIVES: there are no pairs of dev; leave the split out"),
        ({"dev": ROWS, "validation": ROWS}, "pairs are given for two splits 'dev'; join them"),
        ([ROWS[0], {"anchor": "what", "positive": 3}], "rows of train:2: WRONG_TYPE: the field 'positive' is 3"),
    ],
)
def test_rows_of_another_shape_are_refused_in_a_line(tmp_path, rows, said):
    with pytest.raises(InputError) as caught:
        hn.Collection.from_pairs(rows, to=tmp_path / "never")
    assert said in str(caught.value)
    assert not (tmp_path / "never").exists()


def negatives_of(pool, data):
    """The text of the one negative of each query, by its text."""
    queries = data.query_texts.take(pool.query_rows)
    return dict(zip(queries, data.texts.take(pool.passage_rows), strict=True))


def test_negatives_in_memory_are_kept_as_those_of_a_file(tmp_path, of_file):
    data = hn.Collection.from_pairs(ROWS, to=tmp_path / "made")
    pool = hn.import_negatives(ROWS, data, tmp_path / "given")
    kept = hn.import_negatives(str(tmp_path / "train.jsonl"), of_file, tmp_path / "of_file")
    assert negatives_of(pool, data) == negatives_of(kept, of_file)
    assert negatives_of(pool, data) == {row["anchor"]: row["negative"] for row in ROWS}
    assert hn.load_pool(tmp_path / "given").passage_rows.tolist() == pool.passage_rows.tolist()


def test_a_negative_that_is_a_positive_of_the_query_is_left_out(tmp_path):
    rows = [ROWS[0] | {"negative": "the fox jumps"}, ROWS[1]]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "made")
    pool = hn.import_negatives(rows, data, tmp_path / "given")
    assert list(data.query_texts.take(pool.query_rows[np.diff(pool.offsets) > 0])) == ["what sleeps"]


def test_negatives_that_are_all_positives_of_the_collection_make_no_pool(tmp_path):
    """As in a collection of an older version, which read each text of a labelled list as a positive."""
    both = ("positive", "negative")
    rows = [{"anchor": row["anchor"], "positive": row[name]} for row in ROWS for name in both]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "made")
    with pytest.raises(InputError) as caught:
        hn.import_negatives(ROWS, data, tmp_path / "given")
    assert "NO_NEGATIVES: all negatives of the source (pairs in memory) are positives" in str(caught.value)
    assert not (tmp_path / "given").exists()


def test_negatives_are_kept_of_one_split(tmp_path):
    rows = {"train": ROWS[:2], "dev": ROWS[2:]}
    data = hn.Collection.from_pairs(rows, to=tmp_path / "made")
    pool = hn.import_negatives(rows, data, tmp_path / "given", split="dev")
    assert list(data.texts.take(pool.passage_rows)) == ["it rains"]


@pytest.mark.parametrize(
    ("rows", "split", "said"),
    [
        ([{"anchor": "what jumps", "positive": "the fox jumps"}], "train", "NO_NEGATIVES: the source (pairs"),
        (ROWS, "test", "UNKNOWN_SPLIT"),
        ([ROWS[0] | {"negative": "of another collection"}], "train", "1 of 1 negatives are texts"),
    ],
)
def test_negatives_that_cannot_be_kept_are_refused(tmp_path, rows, split, said):
    data = hn.Collection.from_pairs(ROWS, to=tmp_path / "made")
    with pytest.raises(HardnegError) as caught:
        hn.import_negatives(rows, data, tmp_path / "given", split=split)
    assert said in str(caught.value)
    assert not (tmp_path / "given").exists()

"""Collections from pairs in memory: the same as from a file of the same rows, in every shape that people have."""

import json

import pytest

import hardneg as hn
from hardneg.errors import InputError

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


def test_splits_are_named_as_in_files(tmp_path):
    made = hn.Collection.from_pairs({"train": ROWS[:2], "validation": ROWS[2:]}, to=tmp_path / "made")
    assert made.splits == ("dev", "train")
    missing = [{"query": "what", "pos": "this", "neg": float("nan")}]
    assert hn.Collection.from_pairs(missing, to=tmp_path / "nan").n_passages == 1


def test_a_single_column_and_columns_without_names_are_refused(tmp_path):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="the pairs of train are a Series; give a list of mappings"):
        hn.Collection.from_pairs(pandas.DataFrame(ROWS)["anchor"], to=tmp_path / "never")
    with pytest.raises(InputError, match="pair 1 of train is no mapping of column names"):
        hn.Collection.from_pairs(pandas.DataFrame([["what", "this"]]), to=tmp_path / "never")


def test_equal_pairs_are_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    first, again = (hn.Collection.from_pairs(list(ROWS)) for _ in range(2))
    assert first.path == again.path
    assert hn.Collection.from_pairs(ROWS[:2]).path != first.path


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("what", "this")], "pair 1 of train is no mapping of column names to values; give a list of mappings"),
        ("train.csv", "the pairs of train are a str; give a list of mappings"),
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

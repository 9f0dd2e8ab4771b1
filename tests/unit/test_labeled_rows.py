"""Rows in the formats of sentence-transformers' ``mine_hard_negatives``: with labels, and with scores."""

import json

import numpy as np
import pytest

import hardneg as hn
from hardneg.cli import run
from hardneg.data import collection
from hardneg.errors import InputError

LABELED = [
    {"anchor": "what jumps", "positive": ["a fox", "a dog", "a cat"], "labels": [1, 0, 0]},
    {"anchor": "what sleeps", "positive": ["a stone", "a dog"], "labels": [0, 1]},
]
POSITIVES = {"what jumps": ["a fox"], "what sleeps": ["a dog"]}
NEGATIVES = {"what jumps": ["a dog", "a cat"], "what sleeps": ["a stone"]}


def written(path, rows):
    """The rows as JSON Lines, CSV or Parquet, as the path's name ends."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    table = pytest.importorskip("pandas").DataFrame(rows)
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        cells = {name: [one if isinstance(one, str) else json.dumps(one) for one in table[name]] for name in table}
        type(table)(cells).to_csv(path, index=False)
    return path


def positives_of(data, split="train"):
    queries = {query: data.passage_ids.rows(list(grades)) for query, grades in data.grades(split).items()}
    texts = data.query_texts.take(data.query_ids.rows(list(queries)))
    return dict(zip(texts, map(data.texts.take, queries.values()), strict=True))


def negatives_of(pool, data):
    queries = data.query_texts.take(pool.query_rows)
    spans = zip(pool.offsets[:-1], pool.offsets[1:], strict=True)
    return {one: data.texts.take(pool.passage_rows[a:b]) for one, (a, b) in zip(queries, spans, strict=True)}


def fault_of(rows, tmp_path):
    with pytest.raises(InputError) as caught:
        hn.Collection.from_pairs(rows, to=tmp_path / "never")
    return str(caught.value)


# ---------------------------------------------------------------- labeled-list


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
def test_a_list_of_labels_in_a_file_divides_a_list_of_texts(tmp_path, name):
    file = written(tmp_path / name, LABELED)
    assert run(["import", str(file), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "pool")]) == 0
    data = hn.open_collection(tmp_path / "c")
    assert positives_of(data) == POSITIVES
    assert negatives_of(hn.load_pool(tmp_path / "pool"), data) == NEGATIVES
    assert data.facts["ignored_fields"] == {}
    assert hn.examine(data)["splits"]["train"]["positives"] == 2
    assert hn.check_import(file).judgements == 2


@pytest.mark.parametrize("shape", ["list", "tuples", "dataset", "frame", "numpy"])
def test_a_list_of_labels_in_memory_divides_a_list_of_texts(tmp_path, shape):
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    rows = {
        "list": LABELED,
        "tuples": [row | {"labels": tuple(row["labels"])} for row in LABELED],
        "dataset": datasets.Dataset.from_list(LABELED),
        "frame": pandas.DataFrame(LABELED),
        "numpy": datasets.Dataset.from_list(LABELED).with_format("numpy"),
    }[shape]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "c")
    assert positives_of(data) == POSITIVES
    assert negatives_of(hn.import_negatives(rows, data, tmp_path / "pool"), data) == NEGATIVES


def test_labels_are_grades_and_of_ids_judgements(tmp_path):
    graded = [{"query": "what", "pos": ["a", "b", "c"], "labels": [2, 0.7, 0.3]}]
    data = hn.Collection.from_pairs(graded, to=tmp_path / "graded")
    assert sorted(next(iter(data.grades("train").values())).values()) == [1, 2]
    written(tmp_path / "train.jsonl", [{"query": "what", "document_ids": ["17", "18"], "labels": [1, 0]}])
    written(tmp_path / "corpus.jsonl", [{"id": "17", "text": "this"}, {"id": "18", "text": "that"}])
    data = hn.import_collection(f"pairs:{tmp_path}", tmp_path / "by_id")
    assert [*data.grades("train").values()] == [{"17": 1, "18": 0}]


def test_labels_of_no_list_are_left_out_as_other_columns_are(tmp_path):
    rows = [{"query": "what", "pos": ["a", "b"], "labels": "faq"}, {"query": "who", "pos": "c", "labels": [3, 4]}]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "c")
    assert positives_of(data) == {"what": ["a", "b"], "who": ["c"]}
    assert data.facts["ignored_fields"] == {"labels": 1}


@pytest.mark.parametrize("name", [None, "train.jsonl", "train.csv"])
@pytest.mark.parametrize(
    ("positives", "column"),
    [
        (["a"], {"scores": [0.9]}),
        (["a"], {"labels": [0]}),
        (["a", "b"], {"scores": []}),
        (["a", "b"], {"scores": ["x", "y"]}),
        (["a", "b"], {"scores": [0.9, 0.5, 0.4]}),
        (["a", "b"], {"labels": []}),
        (["a", "b"], {"labels": ["animal", "x"]}),
        (["a", "b"], {"labels": [17]}),
        (["a", "b"], {"labels": [3, 17, 22]}),
        (["a", "b"], {"labels": [0, 1], "neg": ["c"]}),
        (["a", "b"], {"scores": [0.9, 0.8], "neg": ["c"]}),
        (["a", "b"], {"scores": [0.9], "neg": ["c"]}),
        (["a", "b"], {"scores": [0.9, 0.8], "neg": []}),
    ],
)
def test_lists_that_mean_something_else_are_left_out_as_other_columns_are(tmp_path, positives, column, name):
    rows = [{"query": "what", "pos": positives, **column}]
    if name == "train.csv":
        rows = [{key: json.dumps(one) if isinstance(one, list) else one for key, one in rows[0].items()}]
    made = {True: hn.Collection.from_pairs, False: hn.import_collection}[name is None]
    data = made(rows if name is None else written(tmp_path / name, rows), to=tmp_path / "c")
    assert positives_of(data) == {"what": positives}
    assert data.facts["ignored_fields"] == {next(iter(column)): 1}


@pytest.mark.parametrize(
    "cell",
    [
        "[True, False, 0]",
        "[true, false, 0]",
        "['1', '0', '0']",
        '["1", "0", "0"]',
        "[1 0 0]",
        "[ True False False]",
        " [1, 0, 0] ",
        "[np.int64(1), np.int64(0), np.int64(0)]",
        "[np.True_, np.False_, np.False_]",
        "[1.0, 0.0, -1.0]",
    ],
)
def test_labels_in_cells_are_read_in_each_notation(tmp_path, cell):
    rows = [LABELED[0] | {"positive": json.dumps(LABELED[0]["positive"]), "labels": cell}]
    data = hn.import_collection(written(tmp_path / "train.csv", rows), tmp_path / "c")
    assert positives_of(data) == {"what jumps": ["a fox"]}
    assert data.facts["ignored_fields"] == {}


@pytest.mark.parametrize("cell", ["[1, 0]", "[1.0, nan, 0.0]", "[1, null, 0]", "[1 ... 0]"])
def test_labels_in_cells_that_are_not_of_all_texts_are_refused(tmp_path, cell):
    rows = [LABELED[0] | {"positive": json.dumps(LABELED[0]["positive"]), "labels": cell}]
    with pytest.raises(InputError, match="WRONG_COLUMNS: 2 labels in 'labels' of 3 texts in 'positive'"):
        hn.import_collection(written(tmp_path / "train.csv", rows), tmp_path / "never")


def test_items_of_numpy_in_a_list_are_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    rows = [row | {"labels": [*numpy.array(row["labels"])]} for row in LABELED]
    assert positives_of(hn.Collection.from_pairs(rows, to=tmp_path / "list")) == POSITIVES
    rows = [row | {"labels": (*map(numpy.bool_, row["labels"]),)} for row in LABELED]
    assert positives_of(hn.Collection.from_pairs(rows, to=tmp_path / "tuple")) == POSITIVES


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("labels", [None, float("nan"), "", [], ...])
def test_a_row_without_labels_among_rows_with_labels_is_refused(tmp_path, labels, order):
    without = {key: one for key, one in (LABELED[1] | {"labels": labels}).items() if one is not ...}
    rows = [LABELED[0], without, {"anchor": "who", "positive": ["a dog"]}][::order]
    said = "WRONG_COLUMNS: the 2 texts in 'positive' have no labels in 'labels', as those of other rows have; give"
    assert f"rows of train:2: {said}" in fault_of(rows, tmp_path)
    (found,) = hn.check_import(written(tmp_path / "train.jsonl", rows)).faults
    assert f"train.jsonl:2: {said}" in str(found)


def test_a_row_whose_column_of_negatives_is_empty_is_divided_by_its_labels(tmp_path):
    rows = [LABELED[0] | {"negative": None}, LABELED[1] | {"positive": "a dog", "negative": "a stone"}]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "c")
    assert positives_of(data) == POSITIVES
    assert negatives_of(hn.import_negatives(rows, data, tmp_path / "pool"), data) == NEGATIVES


def test_an_only_text_that_is_a_negative_is_no_positive(tmp_path):
    """Such a list is another column, until labels divide the texts of another row."""
    lone = {"query": "who", "positive": ["c"], "labels": [0]}
    divided = {"query": "what", "positive": ["a", "b"], "labels": [1, 0]}
    said = "WRONG_COLUMNS: the only text in 'positive' is a negative by 'labels', which divides"
    for rows in ([lone, divided], [divided, lone]):
        with pytest.raises(InputError, match=said):
            hn.Collection.from_pairs(rows)
    assert positives_of(hn.Collection.from_pairs([divided, lone | {"labels": [1]}]))["who"] == ["c"]


@pytest.mark.parametrize("older", [{}, {"reading": 4}])
def test_negatives_are_not_kept_for_a_collection_of_an_older_reading(tmp_path, monkeypatch, capsys, older):
    file = written(tmp_path / "train.jsonl", LABELED)
    with monkeypatch.context() as patch:
        patch.setattr(collection, "settings_of", lambda source, rules: {"format": "pairs", **vars(rules), **older})
        hn.import_collection(file, tmp_path / "c")
    assert hn.import_collection(file, tmp_path / "new").digest == hn.open_collection(tmp_path / "c").digest
    assert run(["import", str(file), "--to", str(tmp_path / "c"), "--negatives", str(tmp_path / "pool")]) == 2
    said = "EXISTS: another version of hardneg made this collection, which may read the source otherwise"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": [1, 0]}, "rows of train:1: WRONG_COLUMNS: 2 labels in 'labels' of 3 texts in 'positive'"),
        (
            {"labels": [1, None, 0]},
            "rows of train:1: WRONG_COLUMNS: 2 labels in 'labels' of 3 texts in 'positive'",
        ),
        ({"labels": [2.5, 0, 0]}, "rows of train:1: BAD_GRADE: the label 2.5 in 'labels' is"),
        ({"labels": None, "scores": [0.9, 0.5, 0.4]}, "rows of train:1: AMBIGUOUS: 'positive' is a list, but the"),
    ],
)
def test_lists_that_do_not_say_what_is_positive_are_refused_in_a_line(tmp_path, changed, said):
    rows = [LABELED[0] | changed]
    assert said in fault_of(rows, tmp_path)
    assert fault_of(rows, tmp_path).endswith(", or rename the column if it means something else")
    (found,) = hn.check_import(written(tmp_path / "train.jsonl", rows)).faults
    assert said.removeprefix("rows of train:1: ") in str(found)


# ---------------------------------------------------------------- labeled-pair

SCORED = [
    {"anchor": "what jumps", "positive": "a fox", "score": 0.9},
    {"anchor": "what jumps", "positive": "a dog", "score": 0.6},
    {"anchor": "what jumps", "positive": "a cat", "score": 0.3},
    {"anchor": "what sleeps", "positive": "a dog", "score": 1},
]
TOLD = "the bound 0.5 of a score between 0 and 1 made 3 of 4 judgements; if the scores are a model's"


def test_judgements_by_the_bound_of_a_score_are_told(tmp_path, caplog):
    data = hn.Collection.from_pairs(SCORED, to=tmp_path / "memory")
    assert caplog.text.count(TOLD) == 1
    (advised,) = (line for line in hn.examine(data)["advice"] if "bound 0.5" in line)
    assert advised.startswith("T" + TOLD[1:])
    file = written(tmp_path / "train.jsonl", SCORED)
    made = hn.import_collection(file, tmp_path / "file")
    assert caplog.text.count(TOLD) == 2
    assert made.facts["counts"] == {"judgements_by_bound": 3}
    assert hn.check_import(file).counted == made.facts["counts"]
    assert caplog.text.count(TOLD) == 3


def test_whole_grades_and_scores_beside_negatives_are_not_of_the_bound(tmp_path, caplog):
    rows = [row | {"score": int(row["score"] > 0.5)} for row in SCORED]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "whole")
    taught = [row | {"negative": "a stone"} for row in SCORED]
    beside = hn.Collection.from_pairs(taught, to=tmp_path / "beside")
    assert data.facts["counts"] == beside.facts["counts"] == {}
    assert "bound 0.5" not in caplog.text + "".join(hn.examine(data)["advice"])


def test_of_labels_only_those_that_the_bound_made_positives_are_told(tmp_path):
    row = {"query": "what", "pos": ["a", "b", "c"]}
    data = hn.Collection.from_pairs([row | {"labels": [2, 1, 0.3]}], to=tmp_path / "none")
    assert data.facts["counts"] == {}
    data = hn.Collection.from_pairs([row | {"labels": [2, 0.7, 0.3]}], to=tmp_path / "one")
    assert data.facts["counts"] == {"judgements_by_bound": 1}


@pytest.mark.parametrize(("label", "told"), [(0, True), (1, False)])
def test_who_looks_for_negatives_learns_that_rows_of_label_0_are_judgements(tmp_path, label, told):
    rows = [
        {"anchor": "what", "positive": "this", "label": 1},
        {"anchor": "what", "positive": "that", "label": label},
    ]
    data = hn.Collection.from_pairs(rows, to=tmp_path / "c")
    with pytest.raises(InputError, match="NO_NEGATIVES") as caught:
        hn.import_negatives(rows, data, tmp_path / "pool")
    assert ("its rows of grade 0 are judgements, not negatives" in str(caught.value)) == told


# ---------------------------------------------------------------- triplets and tuples with scores

TUPLES = [
    {"anchor": "what jumps", "positive": "a fox", "negative_1": "a dog", "negative_2": "a cat"},
    {"anchor": "what sleeps", "positive": "a dog", "negative_1": "a fox", "negative_2": "a stone"},
]
TRIPLETS = [
    {"anchor": row["anchor"], "positive": row["positive"], "negative": row[f"negative_{i}"]}
    for row in TUPLES
    for i in (1, 2)
]
NUMBERS = [[0.75, 0.5, 0.25], [1, 0.125, 0.0625]]
OF_TUPLES = [row | {"scores": scores} for row, scores in zip(TUPLES, NUMBERS, strict=True)]
OF_TRIPLETS = [
    row | {"scores": [NUMBERS[i // 2][0], NUMBERS[i // 2][1 + i % 2]]} for i, row in enumerate(TRIPLETS)
]


@pytest.mark.parametrize("name", [None, "train.jsonl", "train.csv", "train.parquet"])
@pytest.mark.parametrize("rows", [OF_TUPLES, OF_TRIPLETS])
def test_a_list_of_scores_beside_negatives_is_a_teachers(tmp_path, rows, name):
    source = rows if name is None else written(tmp_path / name, rows)
    made = {True: hn.Collection.from_pairs, False: hn.import_collection}[name is None]
    data = made(source, to=tmp_path / "c")
    pool = hn.import_negatives(source, data, tmp_path / "pool")
    assert data.facts["ignored_fields"] == {}
    assert sorted(pool.positive_scores.tolist()) == [0.75, 1]
    of_texts = dict(zip(data.texts.take(pool.passage_rows), pool.ranker_scores.tolist(), strict=True))
    assert of_texts == {"a dog": 0.5, "a cat": 0.25, "a fox": 0.125, "a stone": 0.0625}


@pytest.mark.parametrize("scores", [0.5, [0.5, 0.25], [0.5, 0.25, None], [0.5, 0.25, -3.4028236e38]])
def test_scores_that_are_not_of_all_texts_are_left_out(tmp_path, scores):
    data = hn.Collection.from_pairs([row | {"scores": scores} for row in TUPLES], to=tmp_path / "c")
    assert data.facts["ignored_fields"] == {"scores": 1}


@pytest.mark.parametrize("written", [float(np.finfo(np.float32).max), float(str(np.finfo(np.float32).max))])
@pytest.mark.parametrize("name", ["scores", "label"])
def test_the_largest_scores_of_a_teacher_are_kept(tmp_path, written, name):
    most = float(np.finfo(np.float32).max)  # numpy prints it rounded up
    rows = [row | {name: [written, 0.5, -written]} for row in TUPLES]
    pool = hn.import_negatives(rows, hn.Collection.from_pairs(rows, to=tmp_path / "c"), tmp_path / "pool")
    assert set(pool.ranker_scores.tolist()) == {0.5, -most}
    assert set(pool.positive_scores.tolist()) == {most}

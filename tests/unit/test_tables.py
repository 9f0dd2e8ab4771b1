"""Pairs, triplets and corpora in named columns, as sentence-transformers and FlagEmbedding have, in all files."""

import bz2
import csv
import gzip
import io
import json
import os
import re

import numpy as np
import pytest

from hardneg.data.collection import Collection
from hardneg.data.formats.contexts import text_id
from hardneg.data.formats.tables import read_rows
from hardneg.data.importing import detect, find_source, import_collection, kind_of_file
from hardneg.errors import HardnegError, InputError, SettingsError

ROWS = [
    {"anchor": "what is it", "positive": 'a "quoted", thing', "negative": "something else"},
    {"anchor": "who is there", "positive": "naïve ☃ me", "negative": 'a "quoted", thing'},
    {"anchor": "what is it", "positive": "another thing", "negative": ""},
]
PASSAGES = ['a "quoted", thing', "something else", "naïve ☃ me", "another thing"]


def jsonl(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def table(rows, delimiter=","):
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def plain(rows):
    return "".join("\t".join(row) + "\n" for row in [list(rows[0]), *(row.values() for row in rows)]).encode()


def otherwise(data):
    return b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n").removesuffix(b"\r\n")


def parquet(path, rows):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.Table.from_pylist(rows), path)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def imported(place, to, **options):
    return import_collection(str(place), to, **options)


def fault(place, tmp_path, **options):
    with pytest.raises(InputError) as caught:
        imported(place, tmp_path / "never", **options)
    assert not (tmp_path / "never").exists()
    return str(caught.value).removeprefix(f"{tmp_path}/")


def texts_of(collection, split="train"):
    """The positives of each query of a split, by texts."""
    qrels = collection.qrels(split)
    queries = collection.query_texts.take(qrels.query_rows)
    spans = zip(qrels.offsets[:-1], qrels.offsets[1:], strict=True)
    return {q: collection.texts.take(qrels.passage_rows[a:b]) for q, (a, b) in zip(queries, spans, strict=True)}


EXPECTED = {"what is it": ['a "quoted", thing', "another thing"], "who is there": ["naïve ☃ me"]}


# ---------------------------------------------------------------- kinds of files


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("data.jsonl", jsonl(ROWS)),
        ("data.json", json.dumps(ROWS, indent=1).encode()),
        ("data.csv", table(ROWS)),
        ("semicolons.csv", table(ROWS, ";")),
        ("tabs.csv", table(ROWS, "\t")),
        ("data.tsv", plain(ROWS)),
        ("bom.csv", otherwise(table(ROWS))),
        ("excel.csv", otherwise(b"sep=;\n" + table(ROWS, ";"))),
        ("bars.csv", b'"sep=|"\n' + table(ROWS, "|")),
        ("blank.csv", b"\n\n" + table(ROWS, ";").replace(b"\nwho", b"\n\nwho")),
        ("commas.csv", table([row | {"a,b,c,d": ""} for row in ROWS], ";").replace(b"a,b,c,d", b'"a,b,c,d"')),
        ("bom.tsv", otherwise(plain(ROWS))),
        ("bom.jsonl", otherwise(jsonl(ROWS))),
        ("packed.csv.gz", gzip.compress(table(ROWS))),
    ],
)
def test_every_kind_of_file_gives_one_collection(tmp_path, name, data):
    c = imported(write(tmp_path / name, data), tmp_path / "c")
    assert list(c.texts) == PASSAGES
    assert texts_of(c) == EXPECTED
    assert c.digest == imported(write(tmp_path / "x" / "train.jsonl", jsonl(ROWS)).parent, tmp_path / "d").digest


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_breaks_within_a_text_of_csv_stay_as_they_are(tmp_path, end):
    texts = ["one\r\ntwo\r\n", "one\ntwo", "one\rtwo", "\r\n\r\nend"]
    rows = [{"anchor": f"which {i}", "positive": text} for i, text in enumerate(texts)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([rows[0].keys(), *(row.values() for row in rows)])
    c = imported(write(tmp_path / "train.csv", stream.getvalue()), tmp_path / "c")
    assert list(c.texts) == texts
    assert c.digest == imported(write(tmp_path / "train.jsonl", jsonl(rows)), tmp_path / "d").digest


def test_parquet_and_what_datasets_saves_give_the_same(tmp_path):
    expected = imported(write(tmp_path / "data.jsonl", jsonl(ROWS)), tmp_path / "c").digest
    parquet(tmp_path / "data.parquet", ROWS)
    assert imported(tmp_path / "data.parquet", tmp_path / "p").digest == expected
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_list(ROWS)
    saved.save_to_disk(str(tmp_path / "one"))
    assert imported(tmp_path / "one", tmp_path / "o").digest == expected
    datasets.DatasetDict({"train": saved, "validation": saved}).save_to_disk(str(tmp_path / "two"))
    both = imported(tmp_path / "two", tmp_path / "t")
    assert both.splits == ("dev", "train")
    assert texts_of(both, "dev") == texts_of(both) == EXPECTED


def test_a_missing_pyarrow_is_one_line_with_its_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"PACKAGE_MISSING: .* pyarrow; pip install 'hardneg\[parquet\]'"):
        imported(f"pairs:{write(tmp_path / 'a.parquet', b'')}", tmp_path / "c")


def test_the_split_is_in_the_name_of_the_file_or_of_its_folder(tmp_path):
    rows = [{"query": "q", "answer": "a"}]
    names = ["train-00000-of-00002", "my_train-00001-of-00002", "nq.validation", "Test", "test/part-0", "val/data"]
    for number, name in enumerate(names):
        one = [{**rows[0], "answer": f"a{number}"}]
        write(tmp_path / "in" / f"{name}.jsonl", jsonl(one))
    c = imported(tmp_path / "in", tmp_path / "c")
    assert {split: sorted(texts_of(c, split)["q"]) for split in c.splits} == {
        "train": ["a0", "a1"],
        "dev": ["a2", "a5"],
        "test": ["a3", "a4"],
    }


def test_a_file_twice_is_refused(tmp_path):
    write(tmp_path / "in" / "train.csv", table(ROWS))
    write(tmp_path / "in" / "train.csv.gz", gzip.compress(table(ROWS)))
    assert fault(tmp_path / "in", tmp_path).startswith("in/train.csv.gz: AMBIGUOUS")


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    "row",
    [
        {"anchor": "q", "positive": "p"},
        {"Query": "q", " Positive ": "p"},
        {"query": "q", "pos": ["p"], "neg": []},
        {"question": "q", "answer": "p"},
        {"query": "q", "document": "p", "id": 7},
        {"sentence1": "q", "sentence2": "p", "score": 1.0},
        {"sentence1": "q", "sentence2": "p", "label": 1},
        {"query": "q", "text": "p"},
    ],
)
def test_the_names_of_columns_tell_queries_and_positives(tmp_path, row):
    c = imported(write(tmp_path / "data.jsonl", jsonl([row])), tmp_path / "c")
    assert texts_of(c) == {"q": ["p"]}
    assert (list(c.query_ids), list(c.passage_ids)) == ([text_id("q")], [text_id("p")])


def test_lists_of_flagembedding_may_stand_in_csv_as_json_or_as_python(tmp_path):
    rows = [
        {"query": "q", "pos": '["p1", "p2"]', "neg": "['n1', \"it's\"]"},
        {"query": "r", "pos": "[see below]", "neg": ""},
    ]
    c = imported(write(tmp_path / "data.csv", table(rows)), tmp_path / "c")
    assert list(c.texts) == ["p1", "p2", "n1", "it's", "[see below]"]
    assert texts_of(c) == {"q": ["p1", "p2"], "r": ["[see below]"]}


def test_scores_are_grades(tmp_path):
    scores = [1, 0, "1.0", 0.73, 0.2, 0.5, 3]
    rows = [{"sentence1": "q", "sentence2": f"p{i}", "score": s} for i, s in enumerate(scores)]
    c = imported(write(tmp_path / "data.jsonl", jsonl(rows)), tmp_path / "c")
    qrels = c.qrels("train")
    graded = dict(zip(c.texts.take(qrels.passage_rows), qrels.grades.tolist(), strict=True))
    assert graded == {"p0": 1, "p1": 0, "p2": 1, "p3": 1, "p4": 0, "p5": 1, "p6": 3}


@pytest.mark.parametrize("score", [3.8, "high", "nan", 2.0**40, [1], None])
def test_other_scores_are_refused(tmp_path, score):
    rows = [{"sentence1": "q", "sentence2": "p", "score": 1}, {"sentence1": "q", "sentence2": "x", "score": score}]
    line = "data.jsonl:2: BAD_GRADE: the score "
    assert fault(write(tmp_path / "data.jsonl", jsonl(rows)), tmp_path).startswith(line)


def test_rows_may_have_more_or_fewer_negatives_and_repeat_what_was_said(tmp_path):
    rows = [
        {"anchor": "q", "positive": "p", "negative_1": "n1", "negative_2": "n2"},
        {"anchor": "q", "positive": "p", "negative_1": None},
        {"anchor": "r", "positive": "p"},
    ]
    source = find_source(str(write(tmp_path / "data.jsonl", jsonl(rows))))
    given = list(source.negatives())
    assert [(one.query, list(one.positives), list(one.negatives)) for one in given] == [("q", ["p"], ["n1", "n2"])]
    c = import_collection(source, tmp_path / "c")
    assert texts_of(c) == {"q": ["p"], "r": ["p"]}
    assert list(c.texts) == ["p", "n1", "n2"]


def test_a_query_keeps_the_id_that_it_has(tmp_path):
    rows = [{"qid": 3, "query": "q", "positive": "p"}, {"qid": 3, "query": "other", "positive": "p"}]
    place = write(tmp_path / "data.jsonl", jsonl(rows))
    assert fault(place, tmp_path).startswith(
        "data.jsonl:2: DUPLICATE_ID: query '3' is a duplicate of the one at line 1"
    )
    assert list(imported(write(place, jsonl(rows[:1])), tmp_path / "c").query_ids) == ["3"]


def test_passages_of_a_corpus_keep_their_ids_and_pairs_meet_them(tmp_path):
    corpus = [
        {"id": "a", "title": "T", "text": "one"},
        {"id": "b", "text": "two"},
        {"id": "c", "text": "never asked"},
    ]
    rows = [{"query": "q", "pos": ["T one", "new"], "neg": ["two"]}]
    write(tmp_path / "in" / "corpus.jsonl", jsonl(corpus))
    write(tmp_path / "in" / "train.jsonl", jsonl(rows))
    c = imported(tmp_path / "in", tmp_path / "c")
    assert list(c.passage_ids) == ["a", "b", "c", text_id("new")]
    assert texts_of(c) == {"q": ["one", "new"]}


# ---------------------------------------------------------------- a corpus alone


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("corpus.jsonl", jsonl([{"_id": "1", "title": "", "text": "one"}, {"_id": 2, "text": "two"}])),
        ("my.csv", "id,title,text\n1,,one\n2,,two\n"),
        ("docs.tsv", "docid\tcontents\n1\tone\n2\ttwo\n"),
        ("collection.tsv", "1\tone\n2\ttwo\n"),
        ("corpus.tsv", "1\t\tone\n2\t\ttwo\n"),
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_a_corpus_alone_is_a_collection(tmp_path, name, data, folder):
    place = write(tmp_path / "in" / name, data)
    place = place.parent if folder else place
    assert detect(str(place)) == "corpus"
    c = imported(place, tmp_path / "c")
    assert (list(c.passage_ids), list(c.texts), c.n_queries, c.splits) == (["1", "2"], ["one", "two"], 0, ())
    assert Collection.open(tmp_path / "c").digest == c.digest


def test_passages_without_an_id_are_numbered(tmp_path):
    c = imported(write(tmp_path / "data.csv", "text\none\ntwo\n"), tmp_path / "c")
    assert list(c.passage_ids) == ["0", "1"]


def test_lists_may_be_a_corpus_alone(tmp_path):
    c = Collection.from_lists({"1": "one"}, to=tmp_path / "c")
    assert (c.n_queries, c.splits) == (0, ())
    with pytest.raises(InputError, match="NO_QUERIES"):
        Collection.from_lists({"1": "one"}, {}, {}, to=tmp_path / "d")


def test_queries_without_a_corpus_are_no_corpus(tmp_path):
    write(tmp_path / "in" / "queries.jsonl", jsonl([{"_id": "1", "text": "x"}]))
    (tmp_path / "in" / "qrels").mkdir()
    message = fault(tmp_path / "in", tmp_path)
    assert "UNKNOWN_FORMAT" in message
    assert "queries and judgements need passages (passages.tsv) beside them; add what is missing" in message


@pytest.mark.parametrize("blank", [",", '"",""', "", ", "])
def test_rows_of_empty_cells_alone_are_skipped_in_csv(tmp_path, blank):
    place = write(tmp_path / "a.csv", f"query,positive\nx,y\n{blank}\n\nz,w\n{blank}\n")
    if " " in blank:  # a blank is a text
        assert "a.csv:3: EMPTY_TEXT" in fault(place, tmp_path)
    else:
        assert texts_of(imported(place, tmp_path / "c")) == {"x": ["y"], "z": ["w"]}


def test_an_empty_list_in_a_cell_is_a_query_without_positives(tmp_path):
    c = imported(write(tmp_path / "a.csv", "query,positive,negative\nx,y,\nz,[],\n"), tmp_path / "c")
    assert texts_of(c) == {"x": ["y"], "z": []}
    assert c.n_passages == 1


# ---------------------------------------------------------------- what is not understood

TAUGHT = '{"query": "x", "pos": ["y"], "neg": ["n"], "pos_scores": %s, "neg_scores": %s}\n'


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        (
            "a.csv",
            "prompt,completion\nx,y\n",
            "a.csv: UNKNOWN_COLUMNS: the columns are prompt, completion; looked for",
        ),
        ("a.csv", "anchr,positive\nx,y\n", "rename 'anchr' to 'anchor'"),
        ("a.csv", "how to open a file,open() opens a file.\n", "put a first line with the names of the columns"),
        ("a.csv", "query,positive\rx,y\r", "a.csv:1: BAD_QUOTING: its lines end in CR alone"),
        (
            "a.csv",
            b"query,positive\nx,y\nx y\rz,w\n",
            "a.csv:3: BAD_QUOTING: a text that is not in quotes holds a CR",
        ),
        ("a.csv", "sep=;\nquery;positive;positive\nx;y;z\n", "a.csv:2: AMBIGUOUS: two columns are called"),
        ("a.csv", "sep=;\nquery;positive\nx;y;z\n", "a.csv:3: WRONG_COLUMNS: 3 columns"),
        ("a.csv", "sep=;\nquery;positive\n", "a.csv: EMPTY_FILE"),
        ("a.csv", "query,completion\nx,y\n", "whose positive is called 'positive'"),
        ("a.jsonl", '{"pos": ["x"]}\n', "whose query is called 'anchor' or 'query'"),
        ("a.jsonl", '{"query": "x", "pos": "y"}\n{"q": 1}\n', "a.jsonl:2: UNKNOWN_COLUMNS: the columns are q;"),
        (
            "a.jsonl",
            '{"query": "x", "pos": "y"}\n{"query": "z", "source": "w"}\n',
            "a.jsonl:2: MISSING_FIELD: the record has no positive (found: query, source); add it (null where",
        ),
        (
            "a.jsonl",
            '{"query": "x", "pos": "y"}\n{"pos": "z"}\n',
            "a.jsonl:2: MISSING_FIELD: the record has no query (found: pos); add it, or leave the record out",
        ),
        ("a.csv", "query,positive,positive\nx,y,z\n", "a.csv:1: AMBIGUOUS: two columns are called 'positive'"),
        ("a.csv", "query,positive\nx,y\nx\n", "a.csv:3: WRONG_COLUMNS: 1 column where the header names 2"),
        ("a.csv", 'query,positive\nx,"y\nz\n', "a.csv:2: BAD_QUOTING"),
        ("a.csv", 'query,positive\nx,"y"z\n', "a.csv:2: BAD_QUOTING"),
        ("a.csv", b"query,positive\nx,caf\xe9\n", "a.csv:2: BAD_UTF8: not UTF-8 at byte 6 (0xe9)"),
        ("a.csv", "query,positive\n", "a.csv: EMPTY_FILE"),
        (
            "a.csv",
            "query,positive\nx,\n",
            "a.csv:2: EMPTY_TEXT: the text of a passage is empty; remove its row (hardneg import --check lists",
        ),
        ("a.csv", "query,positive\n,x\n", "a.csv:2: EMPTY_TEXT: the text of a query is empty"),
        (
            "a.jsonl",
            '{"query": "x", "pos": ["y", " "]}\n',
            "a.jsonl:1: EMPTY_TEXT: the text of a passage is empty",
        ),
        ("a.tsv", "query\tpositive\nx\ty\tz\n", "a.tsv:2: WRONG_COLUMNS"),
        ("a.jsonl", '{"query": "x", "pos": 7}\n', "a.jsonl:1: WRONG_TYPE: the field 'pos' is 7"),
        (
            "a.jsonl",
            '{"query": "x", "pos": {"text": "y"}}\n',
            "a.jsonl:1: WRONG_TYPE: the field 'pos' is an object",
        ),
        ("a.jsonl", '{"query": null, "pos": "y"}\n', "a.jsonl:1: WRONG_TYPE: the field 'query' is null"),
        (
            "a.jsonl",
            TAUGHT % ("[1]", "[1, 2]"),
            "a.jsonl:1: WRONG_COLUMNS: 3 scores of 1 positives and 1 negatives",
        ),
        ("a.jsonl", TAUGHT % ('["1"]', "[1]"), "a.jsonl:1: WRONG_TYPE: the scores in 'pos_scores'"),
        (
            "a.jsonl",
            TAUGHT % ("[1]", "[-3.5e38]"),
            "'neg_scores' are [-3.5e+38], no list of numbers within ±3.4e38",
        ),
        ("a.tsv", "query\tpositive\rx\ty\r", "a.tsv:1: BAD_QUOTING: its lines end in CR alone; write it again"),
        ("corpus.tsv", "1\tx\r2\ty\r", "corpus.tsv:1: BAD_QUOTING: its lines end in CR alone"),
        (
            "a.jsonl",
            '{"query": "x", "pos": "y"}\r{"query": "z", "pos": "w"}\r',
            "a.jsonl:1: BAD_JSON: its lines end in CR alone; write it again",
        ),
        ("a.jsonl", '{"query": "x", "pos": ["y", null, 7]}\n', "is a list that holds a number and null, neither"),
        ("corpus.jsonl", '{"id": 1.5, "text": "y"}\n', "the field 'id' is 1.5, not a string or an integer"),
        ("a.csv", b"\x28\xb5\x2f\xfd\x24\x00\x00", "a.csv:1: BAD_UTF8: this is zstd, and not text; unpack it, or"),
        ("a.jsonl", bz2.compress(b"{}"), "a.jsonl:1: BAD_UTF8: this is bzip2, and not text"),
        ("a.csv", b"PAR1\x15\x04", "a.csv:1: BAD_UTF8: this is Parquet, and not text; let its name end in"),
        ("a.jsonl.zst", b"\x28\xb5", "a.jsonl.zst: UNKNOWN_FORMAT: files packed as .zst are not read; unpack it"),
        ("a.txt", "x\n", "a.txt: UNKNOWN_FORMAT: the name of this file does not tell its format; give one of"),
    ],
)
def test_what_is_not_understood_says_where_and_what_was_looked_for(tmp_path, name, data, part):
    message = fault(write(tmp_path / name, data), tmp_path)
    assert part in message
    assert "\n" not in message


def test_packed_files_of_a_folder_are_named(tmp_path):
    for name in ("corpus.jsonl.xz", "queries.jsonl.xz"):
        write(tmp_path / "in" / name, b"x")
    assert "corpus.jsonl.xz is packed in a way that is not read; unpack it" in fault(tmp_path / "in", tmp_path)


@pytest.mark.parametrize("packed", ["test.jsonl.zst", "test/a.csv.xz"])
def test_a_packed_file_beside_plain_ones_is_no_missing_split(tmp_path, packed):
    place = tmp_path / "in"
    write(place / "train.jsonl", jsonl(ROWS))
    for name in ("train.jsonl.zst", ".cache.csv.zst", "figures.zip"):  # a copy, and what is no table
        write(place / name, b"x")
    imported(place, tmp_path / "c")
    write(place / packed, b"x")
    assert f"{packed}: UNKNOWN_FORMAT: files packed as" in fault(place, tmp_path)


def test_text_that_begins_as_packed_files_do_is_text(tmp_path):
    place = write(tmp_path / "a.csv", "BZh anchor,query,positive\nz,x,y\n")
    assert imported(place, tmp_path / "c").n_queries == 1
    place = write(tmp_path / "b.jsonl", '{"query": "x",\r"pos": "y"}\n')  # a blank of JSON
    assert imported(place, tmp_path / "d").n_queries == 1


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (("train.jsonl",), "test.jsonl"),
        (("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"), "qrels/dev.tsv"),
    ],
)
def test_a_link_to_nothing_is_no_missing_split(tmp_path, made, broken):
    for name in made:
        row = "query-id\tcorpus-id\tscore\n1\t1\t1\n" if name.endswith("tsv") else '{"_id": 1, "text": "a"}\n'
        write(tmp_path / "in" / name, '{"query": "x", "pos": "y"}\n' if name == "train.jsonl" else row)
    (tmp_path / "in" / broken).with_name(".#lock.jsonl").symlink_to("nothing")  # as editors leave them
    imported(tmp_path / "in", tmp_path / "c")
    (tmp_path / "in" / broken).symlink_to("nothing")
    assert fault(tmp_path / "in", tmp_path).endswith(
        "NOT_FOUND: a link to a file that is not there; fetch the file again, or remove the link"
    )


def test_a_stream_is_no_missing_file(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    assert "NOT_FOUND: this is a stream and not a file" in fault(tmp_path / "a.jsonl", tmp_path)


def test_damaged_parquet_is_one_line(tmp_path):
    parquet(tmp_path / "a.parquet", ROWS)
    whole = (tmp_path / "a.parquet").read_bytes()
    for data in (b"", b"PAR1", whole[:-20], whole[:40] + b"\xff" * 40 + whole[80:]):
        write(tmp_path / "b.parquet", data)
        assert fault(f"pairs:{tmp_path / 'b.parquet'}", tmp_path).startswith("b.parquet")


def test_parquet_of_mixed_types_names_the_row(tmp_path):
    rows = [{"query": "q", "positive": b"\xff", "negative": None}]
    parquet(tmp_path / "a.parquet", rows)
    assert fault(tmp_path / "a.parquet", tmp_path).startswith(
        "a.parquet:1: WRONG_TYPE: the field 'positive' is binary data"
    )


def unreadable(suffix):
    """Columns of two rows whose second value is none in Python, by name."""
    import pyarrow as pa

    bad_text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes()), pa.py_buffer(b"a\xff")]
    )
    twice = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=["a", "a"])
    return {
        "day": pa.array([0, 2**30], pa.int32()).cast(pa.date32()),
        "moment": pa.array([0, 2**62], pa.timestamp("us")),
        "zoned": pa.array([0, 0], pa.timestamp("us", "No/Where")),
        "broken": bad_text,
        **({"twice": twice} if suffix == "arrow" else {}),
    }


def written(place, columns):
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table(columns)
    if place.suffix == ".parquet":
        pa.parquet.write_table(table, place)
    else:
        with pa.OSFile(str(place), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return place


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_column_that_nobody_reads_may_hold_what_cannot_be_read(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    columns = {"query": ["q", "r"], "positive": ["p", "s"], **unreadable(suffix)}
    found = imported(written(tmp_path / f"a.{suffix}", columns), tmp_path / "c")
    assert sorted(found.texts) == ["p", "s"]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_are_read_in_parts_of_a_few_rows(tmp_path, monkeypatch, suffix):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("hardneg.data.formats.tables.ROWS", 2)
    place = written(tmp_path / f"a.{suffix}", {"query": list("abcde")})
    assert list(read_rows(place)) == [(line, {"query": query}) for line, query in enumerate("abcde", 1)]


@pytest.mark.parametrize("name", ["day", "moment", "zoned", "broken", "twice"])
@pytest.mark.parametrize("column", ["query", "positive", "query_id", "negative", "score"])
def test_a_value_that_is_read_and_cannot_be_names_its_row(tmp_path, name, column):
    pytest.importorskip("pyarrow")
    columns = {"query": ["q", "r"], "positive": ["p", "s"], "score": [1, 1], column: unreadable("arrow")[name]}
    told = fault(written(tmp_path / "a.arrow", columns), tmp_path)
    assert re.match(r"a\.arrow:[12]: (BAD_TABLE: it cannot be read|WRONG_TYPE: the field|BAD_GRADE)", told), told
    if name in ("broken", "twice") and column != "score":
        line = 2 if name == "broken" else 1
        assert told.startswith(f"a.arrow:{line}: BAD_TABLE: it cannot be read (")


def test_a_huge_field_passes_and_a_quote_that_never_closes_does_not(tmp_path):
    big = "x" * 300_000
    place = write(tmp_path / "a.csv", table([{"query": "q", "positive": big}]))
    assert list(imported(place, tmp_path / "c").texts) == [big]
    place = write(place, 'query,positive\n"a' + ("b" * 99 + "\n") * 200_000)
    assert fault(place, tmp_path).startswith("a.csv:2: BAD_QUOTING: a column of more than 16,777,216 characters")


def test_columns_and_rows_of_a_blank_file(tmp_path):
    for suffix in ("csv", "tsv", "jsonl"):
        place = write(tmp_path / f"a.{suffix}", b"")
        assert kind_of_file(place) is None
        with pytest.raises(HardnegError):
            list(read_rows(place))


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.jsonl", '{"ask": "x", "reply": "y"}\n'), ("a.json", '[{"ask": "x"}]'), ("a.csv", "ask,reply\nx,y\n")],
)
def test_a_folder_of_unknown_columns_names_them(tmp_path, name, text):
    """Such lines were read as Tevatron's, and "the corpus has no passage" was all that was said."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=f"{name}: UNKNOWN_COLUMNS: the columns are ask"):
        import_collection(str(tmp_path), tmp_path / "c")


def test_tevatron_is_told_by_its_fields(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"query_id": "q", "query_text": "x"}\n')
    assert detect(str(tmp_path)) == "tevatron"
    (tmp_path / "a.jsonl").write_text("{")  # the reader of the file says what is wrong
    assert detect(str(tmp_path)) == "tevatron"


def test_a_null_in_place_of_a_score_is_a_fault_and_no_field_is_none(tmp_path):
    """A null counted as relevant without a word, where an empty cell of a CSV file was refused."""
    place = tmp_path / "a.jsonl"
    place.write_text('{"query": "q", "text": "t", "score": 0}\n{"query": "q", "text": "u"}\n')
    c = import_collection(str(place), tmp_path / "c")
    assert sorted(c.qrels("train").grades.tolist()) == [0, 1]
    place.write_text('{"query": "q", "text": "t", "score": 0}\n{"query": "q", "text": "u", "score": null}\n')
    with pytest.raises(
        InputError, match=r"a\.jsonl:2: BAD_GRADE: the score is empty, which is neither a whole grade"
    ):
        import_collection(str(place), tmp_path / "d")

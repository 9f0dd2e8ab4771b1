"""Folders of three kinds of tables: which files are which, headers or none, splits, and their faults."""

import gzip
import json

import pytest

import hardneg as hn
from hardneg.data import importing
from hardneg.data.importing import detect, import_collection
from hardneg.errors import InputError

PASSAGES = [{"doc_id": "d1", "title": "One", "text": "the first"}, {"doc_id": "d2", "text": "the second"}]
TABLES = {
    "passages.jsonl": PASSAGES,
    "queries.tsv": "q1\twhat is one\nq2\twhat is two\n",
    "qrels.tsv": "q1\t0\td1\t1\n",
}


def write(folder, contents):
    """The folder with these files, each a text or rows of JSON Lines."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return folder


def judged(made):
    """The grades of a collection by split, query and passage."""
    return {
        split: {
            (query, passage): grade for query, of in made.grades(split).items() for passage, grade in of.items()
        }
        for split in made.splits
    }


@pytest.mark.parametrize(
    ("changes", "splits"),
    [
        ({}, {"train": {("q1", "d1"): 1}}),
        ({"qrels.tsv": "q1\td1\nq2\td2\n"}, {"train": {("q1", "d1"): 1, ("q2", "d2"): 1}}),
        ({"qrels.tsv": "q1\td1\t2\nq2\td2\t0\n"}, {"train": {("q1", "d1"): 2, ("q2", "d2"): 0}}),
        ({"qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td2\t3\n"}, {"train": {("q1", "d2"): 3}}),
        ({"qrels.tsv": "Query ID\tDoc ID\nq1\td2\n"}, {"train": {("q1", "d2"): 1}}),
        (
            {"qrels.tsv": None, "qrels.txt": "q1 0 d1 1\nq2 0 d2 1\n"},
            {"train": {("q1", "d1"): 1, ("q2", "d2"): 1}},
        ),
        (
            {"qrels.tsv": None, "qrels/test.tsv": "q1\td1\t1\n", "qrels/train.tsv": "q2\td2\t1\n"},
            {"test": {("q1", "d1"): 1}, "train": {("q2", "d2"): 1}},
        ),
        (
            {
                "qrels.tsv": None,
                "dev-qrels.csv": "qid,passage_id,label\nq1,d1,1\n",
                "qrels_test.tsv.gz": "q2\td2\n",
            },
            {"dev": {("q1", "d1"): 1}, "test": {("q2", "d2"): 1}},
        ),
        (
            {
                "qrels.tsv": None,
                "judgements.jsonl": [{"query_id": "q1", "document_ids": ["d1", "d2"], "score": 1}],
            },
            {"train": {("q1", "d1"): 1, ("q1", "d2"): 1}},
        ),
        ({"queries.tsv": "id\ttext\nq1\twhat is one\nq2\twhat is two\n"}, {"train": {("q1", "d1"): 1}}),
        (
            {"queries.tsv": None, "questions.csv": 'question_id,question\nq1,"what, one"\nq2,what is two\n'},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {
                "queries.tsv": None,
                "topics.txt": "q1\twhat is one\n",
                "queries/test.jsonl": [{"_id": "q2", "text": "two"}],
            },
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "docs.tsv": "d1\tOne\tthe first\nd2\t\tthe second\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {
                "passages.jsonl": None,
                "corpus/part-1.csv": "pid,text\nd1,a\n",
                "corpus/part-2.csv": "pid,text\nd2,b\n",
            },
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "PASSAGES.CSV": "ID,Text\nd1,a\nd2,b\n"}
            | {"qrels.tsv": None, "TRAIN-QRELS.TSV": "q1\td1\n", "TEST-QRELS.TXT": "q2 0 d2 1\n"},
            {"test": {("q2", "d2"): 1}, "train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "docs.csv": "id,text\nd1,a\nd2,b\n"}
            | {"queries.tsv": None, "questions.csv": "id,text\nq1,one\nq2,two\n"}
            | {"qrels.tsv": None, "train-qrels.csv": "query_id,passage_id\nq1,d1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"queries.tsv": None, "queries/train.tsv": "query_id\ttext\nq1\tone\nq2\ttwo\n"}
            | {"qrels.tsv": None, "qrels/dev.tsv": "query_id\tpassage_id\nq1\td1\n"},
            {"dev": {("q1", "d1"): 1}},
        ),
        (
            {"queries.tsv": None, "queries.txt.gz": "q1\tone\nq2\ttwo\n"}
            | {"qrels.tsv": None, "qrels.txt": "# judged by nobody\nq1 0 d1 1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"qrels.tsv": None, "qrels.csv": "query,passage_id,score\nq1,d1,1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "docs.csv": "Document ID,Title,Text\nd1,,a\nd2,,b\n"}
            | {"qrels.tsv": None, "qrels.csv": "Query ID,Document-ID\nq1,d1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "docs.csv": "Doc ID,id,text\n7,d1,a\n7,d2,b\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"passages.jsonl": None, "docs.csv": "id,doc_id,text\n1,d1,a\n2,d2,b\n"}
            | {"qrels.tsv": None, "qrels.csv": "query_id,doc_id\nq1,d2\n"},
            {"train": {("q1", "d2"): 1}},
        ),
        (
            {"passages.jsonl": None, "my-passages.tsv": "d1\ta\n", "corpus/part.tsv": "d2\tb\n"}
            | {"qrels.tsv": None, "qrels.csv": "query,document,grade\nq1,d1,2\n"},
            {"train": {("q1", "d1"): 2}},
        ),
        (
            {"queries.tsv": None, "queries.csv": "query-id,query,answer\nq1,one,x\nq2,two,y\n"}
            | {"qrels.tsv": None, "qrels.csv": "query-id,corpus-id,score\nq1,d1,1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"queries.tsv": None, "queries.csv": "query_id,query,Document ID\nq1,one,7\nq2,two,8\n"}
            | {"qrels.tsv": None, "qrels.csv": "query_id,doc,grade\nq1,d1,1\n"},
            {"train": {("q1", "d1"): 1}},
        ),
        (
            {"docs_readme.txt": "read me\n", "docs/info.json": '{"version": 1}', "README.txt": "x\ty\n"},
            {"train": {("q1", "d1"): 1}},
        ),
    ],
)
def test_each_kind_may_be_any_table(tmp_path, changes, splits):
    folder = write(tmp_path / "in", {name: one for name, one in (TABLES | changes).items() if one is not None})
    assert detect(str(folder)) == "tables"
    made = import_collection(folder, tmp_path / "out")
    assert judged(made) == splits
    assert sorted(made.passage_ids) == ["d1", "d2"]
    assert {*made.query_ids} == {"q1", "q2"}
    assert made.query_texts[[*made.query_ids].index("q2")].endswith("two")


def test_titles_and_texts_are_read_and_other_columns_counted(tmp_path):
    queries = "query_id,query,answer_type\nq1,what is one,fact\n"
    changed = TABLES | {"queries.csv": queries, "qrels.csv": "query_id,doc_id,who\nq1,d1,me\n"}
    del changed["queries.tsv"], changed["qrels.tsv"]
    made = import_collection(write(tmp_path / "in", changed), tmp_path / "out")
    assert ([*made.titles], [*made.texts]) == (["One", ""], ["the first", "the second"])
    assert {*made.facts["ignored_fields"]} == {"answer_type", "who"}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "qrels.tsv",
            "qid\tdid\trel\nq1\td1\t1\n",
            "qrels.tsv: UNKNOWN_COLUMNS: the columns are qid, did, rel; looked",
        ),
        ("qrels.tsv", "q1\td1\t1\nq2\td2\tx\n", "qrels.tsv:2: BAD_GRADE"),
        ("qrels.tsv", "q1\td1\t1\nq2\td2\n", "qrels.tsv:2: WRONG_COLUMNS"),
        ("qrels.tsv", "q1\td9\t1\n", "qrels.tsv:1: UNKNOWN_ID"),
        ("qrels.csv", "q1,d1,1\n", "qrels.csv: UNKNOWN_COLUMNS"),
        (
            "queries.tsv",
            "qid\ttitle\nq1\tone\n",
            "queries.tsv: UNKNOWN_COLUMNS: the columns are qid, title; looked",
        ),
        ("queries.txt", "id\ttext\nq3\tone\n", "give it the ending .tsv if its first line names the columns"),
        ("queries.tsv", "", "queries.tsv: EMPTY"),
        ("qrels.tsv", "", "qrels.tsv: EMPTY"),
        ("passages.csv", "text\nthe third\n", "passages.csv: UNKNOWN_COLUMNS"),
        ("docs.tsv", "id\ttitle\tpassage_text\nd3\tx\ty\n", "docs.tsv: UNKNOWN_COLUMNS"),
        ("qrels.csv", "query_id,doc_id,score\nq1,d1,0\n", "this judgement, with another grade, is a duplicate"),
    ],
)
def test_faults_name_the_file_and_what_to_do(tmp_path, name, content, told):
    folder = write(tmp_path / "in", TABLES | {name: content})
    with pytest.raises(InputError) as caught:
        import_collection(f"tables:{folder}", tmp_path / "out")
    assert told in str(caught.value)


def test_a_kind_that_is_missing_is_named(tmp_path):
    folder = write(tmp_path / "in", {"passages.jsonl": PASSAGES, "queries.tsv": TABLES["queries.tsv"]})
    with pytest.raises(InputError, match=r"NOT_FOUND: no file of judgements here; add it, such as qrels\.tsv"):
        importing.find_source(f"tables:{folder}")


def test_a_packed_split_is_not_left_out_in_silence(tmp_path):
    folder = write(tmp_path / "in", TABLES | {"qrels.test.tsv.zst": "x"})
    with pytest.raises(InputError, match=r"qrels\.test\.tsv\.zst"):
        importing.find_source(f"tables:{folder}")


def test_what_hardneg_wrote_is_no_table_and_is_told_once(tmp_path, hardneg):
    folder = write(tmp_path / "in", TABLES)
    import_collection(folder, folder / "queries")
    status, _, said = hardneg("import", folder, "--to", tmp_path / "again")
    assert status == 0
    assert said.count("queries is of hardneg, and not read as data") == 1


def test_a_run_is_no_table(tmp_path, hardneg):
    folder = write(tmp_path / "in", TABLES)
    hardneg("search", "--data", folder, "--split", "train", "--bm25", "--out", folder / "queries-run.txt")
    assert (folder / "queries-run.txt").is_file()
    assert import_collection(folder, tmp_path / "out").n_queries == 2


@pytest.mark.parametrize("name", ["train.jsonl", "new.csv", "qrels/dev.tsv", "queries-2.txt"])
def test_what_would_change_the_reading_of_a_folder_is_not_written_there(tmp_path, name):
    folder = write(tmp_path / "in", TABLES)
    assert importing.would_read(folder, folder / name)
    assert not importing.would_read(folder, folder / "run.txt")


CORPUS = {"corpus.csv": "id,text\nd1,a\nd2,b\n"}


@pytest.mark.parametrize(
    ("contents", "format"),
    [
        (CORPUS | dict.fromkeys(("queries.csv", "qrels-info.csv"), "question,document_id\nwhat,d1\n"), "pairs"),
        (
            CORPUS | {"train-questions.csv": "qid,question,doc_id\n1,what,d1\n", "qrels.test.txt": "1 0 d1 1\n"},
            "pairs",
        ),
        ({"train.csv": "anchor,positive\na,b\n", "queries.txt": "1\ta\n", "queries.txt.gz": "1\ta\n"}, "pairs"),
        (
            {"corpus.tsv": "psg_id\ttitle\ttext\np1\tt\tx\n"}
            | {"queries.jsonl": [{"qid": "1", "question": "what", "answers": [], "positive_ctxs": ["p1"]}]},
            "qa",
        ),
    ],
)
def test_folders_of_other_conventions_are_read_as_before(tmp_path, contents, format):
    folder = write(tmp_path / "in", contents)
    assert detect(str(folder)) == format
    assert import_collection(folder, tmp_path / "out").n_queries == 1


@pytest.mark.parametrize("qrels", ["query_id\tdoc_id\tgrade\n", "", "q1\n"])
def test_a_fault_of_the_judgements_makes_no_corpus_of_the_questions(tmp_path, qrels):
    folder = write(tmp_path / "in", CORPUS | {"questions.csv": "id,text\nq1,what\n", "qrels.txt": qrels})
    with pytest.raises(InputError, match=r"qrels\.txt"):
        import_collection(folder, tmp_path / "out")


def test_judgements_name_passages_by_the_column_that_holds_their_ids(tmp_path):
    passages = "passage_id,document_id,text\n1,7,alpha\n2,7,beta\n7,2,gamma\n"
    qrels = "query_id,document_id,passage_id,grade\nq,7,2,1\n"
    tables = {"passages.csv": passages, "queries.csv": "query_id,text\nq,a?\n", "qrels.csv": qrels}
    assert judged(import_collection(write(tmp_path / "in", tables), tmp_path / "out")) == {
        "train": {("q", "2"): 1}
    }


def test_a_check_counts_the_faults_of_all_three(tmp_path):
    qrels = "q1\td9\t1\nq9\td1\t1\nq1\td1\tx\n"
    found = hn.check_import(write(tmp_path / "in", TABLES | {"qrels.tsv": qrels}))
    assert {group.code for group in found.faults} >= {"UNKNOWN_ID", "BAD_GRADE"}

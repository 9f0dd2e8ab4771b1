"""Pairs whose positives are named by their ids, beside a corpus that has these ids."""

import json

import pytest

import hardneg as hn
from hardneg.data.checking import check_import
from hardneg.errors import InputError

CORPUS = "id;title;text\n17;Bash;A shell, which\n18;Make;Builds\n19;Zip;Packs\n"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    (place / "corpus.csv").write_text(CORPUS)
    return place


def judged(collection, split):
    """The grades of passages by the text of the query."""
    qrels, found = collection.qrels(split), {}
    for i, query in enumerate(qrels.query_rows.tolist()):
        span = slice(qrels.offsets[i], qrels.offsets[i + 1])
        ids = [collection.passage_ids[row] for row in qrels.passage_rows[span].tolist()]
        found[collection.query_texts[query]] = dict(zip(ids, qrels.grades[span].tolist(), strict=True))
    return found


@pytest.mark.parametrize("name", ["document_id", "passage_id", "Doc_ID", "pid", "positive_id"])
def test_a_table_may_name_the_positives_by_their_ids(folder, tmp_path, name):
    (folder / "train.csv").write_text(
        f"question,{name},note\nwhat reads,17,a\nwhat builds,18,b\nwhat reads,17,c\n"
    )
    (folder / "test.jsonl").write_text(json.dumps({"query": "what packs", name: [19, 17], "label": 2}) + "\n")
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert list(found.passage_ids) == ["17", "18", "19"]
    assert found.titles[0] == "Bash"
    assert judged(found, "train") == {"what reads": {"17": 1}, "what builds": {"18": 1}}
    assert judged(found, "test") == {"what packs": {"19": 2, "17": 2}}


def test_a_list_of_ids_stands_in_a_cell(folder, tmp_path):
    (folder / "train.csv").write_text('query,document_id\nwhat reads,"[17, 18]"\nx,"[""19""]"\n')
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert judged(found, "train") == {"what reads": {"17": 1, "18": 1}, "x": {"19": 1}}


def test_the_corpus_may_call_its_ids_so_too(folder, tmp_path):
    (folder / "corpus.csv").write_text(CORPUS.replace("id;", "document_id;"))
    (folder / "train.csv").write_text("query,document_id\nwhat reads,18\n")
    assert judged(hn.import_collection(str(folder), tmp_path / "c"), "train") == {"what reads": {"18": 1}}


def test_a_text_wins_over_an_id(folder, tmp_path):
    (folder / "train.csv").write_text("query,document_id,passage\nwhat reads,18,Packs\n")
    assert judged(hn.import_collection(str(folder), tmp_path / "c"), "train") == {"what reads": {"19": 1}}


def test_an_id_that_the_corpus_lacks_is_named_with_its_line(folder, tmp_path):
    (folder / "train.csv").write_text("query,document_id\nwhat reads,17\nnothing,4711\n")
    with pytest.raises(InputError, match=r"train.csv:3: UNKNOWN_ID: .*passage '4711'"):
        hn.import_collection(str(folder), tmp_path / "c")
    found = hn.import_collection(str(folder), tmp_path / "c", allow_unjudged=True)
    assert judged(found, "train")["what reads"] == {"17": 1}


@pytest.mark.parametrize(
    ("corpus", "said"),
    [
        (None, "the column 'document_id' holds ids of passages, and there is no table of the passages; give"),
        ("title,text\nBash,A shell\n", "holds ids of passages, and corpus.csv has none; give"),
    ],
)
def test_ids_without_passages_that_have_them_are_refused(folder, tmp_path, corpus, said):
    (folder / "train.csv").write_text("query,document_id\nwhat reads,17\n")
    if corpus is None:
        (folder / "corpus.csv").unlink()
    else:
        (folder / "corpus.csv").write_text(corpus)
    with pytest.raises(InputError, match=f"train.csv: UNKNOWN_COLUMNS: .*{said}"):
        hn.import_collection(str(folder), tmp_path / "c")


def test_ids_in_the_column_of_a_text_are_not_taken_for_texts(folder, tmp_path):
    (folder / "train.csv").write_text("query,document\nwhat reads,17\nwhat builds,18\nwhat packs,Packs\n")
    said = (
        r"train.csv: UNKNOWN_COLUMNS: 2 of 3 texts of the pairs are ids of the passages in corpus.csv; call their"
    )
    with pytest.raises(InputError, match=said):
        hn.import_collection(str(folder), tmp_path / "c")
    assert check_import(str(folder)).faults


@pytest.mark.parametrize("name", ["article_id", "articleid", "content-id"])
def test_nobody_is_told_to_call_ids_texts(tmp_path, name):
    (tmp_path / "train.csv").write_text(f"question,{name}\nwhat reads,17\n")
    with pytest.raises(InputError, match="UNKNOWN_COLUMNS") as fault:
        hn.import_collection(str(tmp_path / "train.csv"), tmp_path / "c")
    if name != "articleid":
        assert f"if '{name}' holds ids of passages, call it 'document_id', and add a table" in str(fault.value)
    assert "rename 'c" not in str(fault.value)

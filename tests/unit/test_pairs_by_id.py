"""Pairs whose positives are named by their ids, beside a corpus that has these ids."""

import json

import pytest

import hardneg as hn
from hardneg.api.convert import convert
from hardneg.data.checking import check_import
from hardneg.errors import InputError
from hardneg.negatives.pool import load_pool

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


@pytest.mark.parametrize(
    "name", ["document_id", "passage_id", "Doc_ID", "Document ID", "pid", "docno", "corpus-id"]
)
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


@pytest.mark.parametrize("name", ["document_id", "Document ID", "docno", "DOC-ID"])
def test_the_corpus_may_call_its_ids_so_too(folder, tmp_path, name):
    (folder / "corpus.csv").write_text(CORPUS.replace("id;", f"{name};"))
    (folder / "train.csv").write_text("query,document_id\nwhat reads,18\n")
    assert judged(hn.import_collection(str(folder), tmp_path / "c"), "train") == {"what reads": {"18": 1}}


@pytest.mark.parametrize(
    ("names", "row"), [("query-id,query,positive", "q1,a,Builds"), ("query-id,query,corpus-id", "q1,a,18")]
)
def test_a_hyphen_in_the_name_of_an_id_is_no_sign_of_another_convention(folder, tmp_path, names, row):
    (folder / "train.csv").write_text(f"{names}\n{row}\n")
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert ([*found.query_ids], judged(found, "train")) == (["q1"], {"a": {"18": 1}})


@pytest.mark.parametrize("names", ["query-id,corpus-id,score", "query-id,corpus-id,text"])
def test_judgements_of_beir_are_neither_pairs_nor_passages(folder, tmp_path, names):
    (folder / "train.csv").write_text(f"{names}\n1,2,3\n")
    with pytest.raises(InputError, match=r"train\.csv: UNKNOWN_COLUMNS"):
        hn.import_collection(f"pairs:{folder}", tmp_path / "c")


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


@pytest.mark.parametrize("first", [{"positive": "Builds", "doc_id": "18"}, {"doc_id": "18"}])
def test_a_table_names_all_positives_in_one_way(folder, tmp_path, first):
    """Otherwise a record that lacks its text would be judged by another column."""
    rows = [{"query": "a", **first}, {"query": "b", "doc_id": "17"}, {"query": "c", "positive": "Packs"}]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    line = 2 if "positive" in first else 1  # the first one without a text
    with pytest.raises(InputError, match=rf"train.jsonl:{line}: (MISSING_FIELD|UNKNOWN_COLUMNS)"):
        hn.import_collection(str(folder), tmp_path / "c")


def test_passages_of_one_document_are_numbered_beside_texts(folder, tmp_path):
    (folder / "corpus.csv").write_text("document_id,chunk,text\n1,0,aa\n1,1,bb\n")
    (folder / "train.csv").write_text("query,positive\nx,bb\n")
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert judged(found, "train") == {"x": {"1": 1}}
    assert list(found.passage_ids) == ["0", "1"]


@pytest.mark.parametrize("name", ["docno", "Doc ID", "doc-id", "document_id"])
def test_parts_of_documents_are_numbered_in_a_corpus_alone(tmp_path, name):
    (tmp_path / "corpus.csv").write_text(f"{name},text\n17,aa\n17,bb\n")
    assert [*hn.import_collection(str(tmp_path / "corpus.csv"), tmp_path / "c").passage_ids] == ["0", "1"]


@pytest.mark.parametrize("name", ["docid", "doc_id", "DOC_ID", "passage_id", "Passage ID", "pid"])
def test_a_corpus_alone_has_ids_under_these_names(tmp_path, name):
    (tmp_path / "corpus.csv").write_text(f"{name},text\n17,aa\n18,bb\n")
    assert [*hn.import_collection(str(tmp_path / "corpus.csv"), tmp_path / "c").passage_ids] == ["17", "18"]


@pytest.mark.parametrize("named", [None, "positive", "passage_id", "document_id"])
@pytest.mark.parametrize("name", ["Doc ID", "doc_id", "docno", "document_id"])
def test_id_goes_before_the_ids_of_the_documents(tmp_path, name, named):
    (tmp_path / "corpus.csv").write_text(f"{name},id,text\n17,1,aa\n17,2,bb\n")
    if named:
        (tmp_path / "train.csv").write_text(f"query,{named}\nx,{'bb' if named == 'positive' else '2'}\n")
    found = hn.import_collection(str(tmp_path), tmp_path / "c")
    assert [*found.passage_ids] == ["1", "2"]
    assert not named or judged(found, "train") == {"x": {"2": 1}}


@pytest.mark.parametrize("name", ["Doc ID", "doc_id", "docid", "docno", "passage_id"])
def test_a_column_of_ids_that_both_tables_have_goes_before_id(tmp_path, name):
    (tmp_path / "corpus.csv").write_text(f"id,{name},text\n1,a1,aa\n2,b2,bb\n")
    (tmp_path / "train.csv").write_text(f"query,{name}\nx,b2\n")
    assert judged(hn.import_collection(str(tmp_path), tmp_path / "c"), "train") == {"x": {"b2": 1}}


@pytest.mark.parametrize(
    ("corpus", "train"),
    [
        ("id,text\nParis,Paris\nRome,Rome\n", "query,positive\nof France,Paris\nof Italy,Rome\n"),
        ("text\n0\n1\n2\n3\n", "query,answer\none plus one,2\ntwo plus one,3\n"),
    ],
)
def test_a_text_may_be_what_an_id_or_a_number_is(folder, tmp_path, corpus, train):
    (folder / "corpus.csv").write_text(corpus)
    (folder / "train.csv").write_text(train)
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert sum(map(len, judged(found, "train").values())) == 2


@pytest.mark.parametrize(
    ("names", "fix"),
    [
        ("query,passage_text,passage_id", "rename 'passage_text' to 'passage'"),
        ("question,answer_text,answer_id", "rename 'answer_text' to 'answer'"),
        (
            "query,body,doc_id",
            "the nearest convention is sentence-transformers', whose positive is called 'positive'",
        ),
    ],
)
def test_a_text_under_another_name_is_not_overlooked_for_an_id(tmp_path, names, fix):
    (tmp_path / "train.csv").write_text(f"{names}\na,b,1\n")
    with pytest.raises(InputError, match="UNKNOWN_COLUMNS") as fault:
        hn.import_collection(str(tmp_path / "train.csv"), tmp_path / "c")
    assert fix in str(fault.value)


def test_negatives_beside_ids_are_texts(folder, tmp_path):
    (folder / "train.csv").write_text("query,document_id,negative\nwhat reads,17,Packs\nwhat builds,18,Sings\n")
    convert(str(folder), tmp_path / "c", negatives=tmp_path / "pool")
    found = hn.Collection.open(tmp_path / "c")
    assert list(found.texts)[3:] == ["Sings"]
    assert load_pool(tmp_path / "pool").passage_rows.tolist() == [2, 3]


def test_cells_hold_lists_as_pandas_writes_them_or_nothing(folder, tmp_path):
    (folder / "train.csv").write_text("query,document_id\na,\"['17', '18']\"\nb,\nc,\"[19]\"\n")
    found = hn.import_collection(str(folder), tmp_path / "c")
    assert judged(found, "train") == {"a": {"17": 1, "18": 1}, "b": {}, "c": {"19": 1}}


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("document_id", "['17' '18']"),
        ("positive", "['one text' 'two text']"),
        ("positive", "['one text'\n \"it's two\"\n 'three']"),
        ("positive", "['one', \"two\"r'three']"),
        ("positive", "['one' 'two' 'three' ... 'ten']"),  # numpy shortens arrays of more than 1,000 items
        ("document_id", "['17', '18', ..., '99']"),
    ],
)
def test_texts_that_no_comma_parts_are_not_made_one(folder, tmp_path, name, cell):
    written = cell.replace('"', '""')
    (folder / "train.csv").write_text(f'query,{name}\na,17\nb,"{written}"\n')
    with pytest.raises(InputError, match=r"train\.csv:3: WRONG_TYPE: .*; write .*lists,? as JSON"):
        hn.import_collection(str(folder), tmp_path / "c")
    assert "WRONG_TYPE" in {fault.code for fault in check_import(str(folder)).faults}


def test_quotes_that_a_comma_parts_and_empty_texts_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("""query,positive,negative\nx,"['say "" "", or', 'b']","['', 'c']"\n""")
    assert [*hn.import_collection(str(tmp_path / "a.csv"), tmp_path / "c").texts] == ['say " ", or', "b", "c"]


@pytest.mark.parametrize("name", ["article_id", "articleid", "content-id"])
def test_nobody_is_told_to_call_ids_texts(tmp_path, name):
    (tmp_path / "train.csv").write_text(f"question,{name}\nwhat reads,17\n")
    with pytest.raises(InputError, match="UNKNOWN_COLUMNS") as fault:
        hn.import_collection(str(tmp_path / "train.csv"), tmp_path / "c")
    if name != "articleid":
        assert f"if '{name}' holds ids of passages, call it 'document_id', and add a table of them" in str(
            fault.value
        )
    assert "rename 'c" not in str(fault.value)

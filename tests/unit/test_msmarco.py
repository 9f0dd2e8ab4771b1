"""MS MARCO folders: passages with and without titles, documents, official names, and faults by line."""

import gzip

import pytest

import hardneg as hn
from hardneg.data.importing import detect, import_collection
from hardneg.errors import InputError


@pytest.fixture
def passages(tmp_path):
    folder = tmp_path / "passages"
    folder.mkdir()
    (folder / "corpus.tsv").write_text('1\tA title\ta "text\n2\t\tanother\n', newline="")
    (folder / "train.query.txt").write_text("q1\twhat is it\nq2\tand that\n")
    (folder / "qrels.train.tsv").write_text("q1\t0\t1\t1\nq2 0 2 1\n")
    return folder


def test_passages_are_read_without_quoting(passages, tmp_path):
    assert detect(str(passages)) == "msmarco"
    collection = import_collection(str(passages), tmp_path / "c")
    assert collection.titles.take([0, 1]) == ["A title", ""]
    assert collection.texts.take([0, 1]) == ['a "text', "another"]
    qrels = collection.qrels("train")
    assert [collection.query_ids[row] for row in qrels.query_rows] == ["q1", "q2"]
    assert [collection.passage_ids[row] for row in qrels.passage_rows] == ["1", "2"]


def test_it_is_the_same_collection_as_from_lists_gzipped_and_with_crlf(passages, tmp_path):
    plain = import_collection(f"msmarco:{passages}", tmp_path / "a")
    lists = hn.Collection.from_lists(
        [("1", "A title", 'a "text'), ("2", "", "another")],
        {"q1": "what is it", "q2": "and that"},
        {"train": {"q1": ["1"], "q2": ["2"]}},
        to=tmp_path / "b",
    )
    for path in list(passages.iterdir()):
        data = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        path.unlink()
        (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(data))
    packed = import_collection(str(passages), tmp_path / "c")
    assert plain.digest == lists.digest == packed.digest


def test_documents_keep_url_and_title_on_lines_of_the_title(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "msmarco-docs.tsv").write_text("D1\thttp://x\tOne\tbody one\nD2\thttp://y\t\tbody two\n")
    (folder / "msmarco-doctrain-queries.tsv").write_text("7\twhich\n")
    (folder / "msmarco-doctrain-qrels.tsv").write_text("7 0 D2 1\n")
    collection = import_collection(str(folder), tmp_path / "c")
    assert collection.titles.take([0, 1]) == ["http://x\nOne", "http://y"]
    assert collection.texts.take([0, 1]) == ["body one", "body two"]
    assert list(collection.splits) == ["train"]


@pytest.mark.parametrize(
    ("name", "text", "code", "line"),
    [
        ("corpus.tsv", "1\ta\tb\n2\tonly\n", "WRONG_COLUMNS", 2),
        ("corpus.tsv", "", "EMPTY_FILE", None),
        ("train.query.txt", "q1\ta\tb\n", "WRONG_COLUMNS", 1),
        ("qrels.train.tsv", "q1 0 1\n", "WRONG_COLUMNS", 1),
        ("qrels.train.tsv", "q1 0 1 1\nq2 0 2 x\n", "BAD_GRADE", 2),
        ("qrels.train.tsv", "q1 0 1 1\nq2 0 9 1\n", "UNKNOWN_ID", None),
    ],
)
def test_faults_name_file_and_line(passages, tmp_path, name, text, code, line):
    (passages / name).write_text(text)
    with pytest.raises(InputError) as caught:
        import_collection(str(passages), tmp_path / "c")
    assert (caught.value.code, caught.value.status) == (code, 3)
    assert caught.value.path.name == name
    if line:
        assert caught.value.line == line
    assert not (tmp_path / "c").exists()


def test_two_files_of_a_split_are_refused(passages, tmp_path):
    (passages / "queries.train.tsv").write_text("q3\tthree\n")
    with pytest.raises(InputError, match="AMBIGUOUS: two files of split 'train'"):
        import_collection(str(passages), tmp_path / "c")

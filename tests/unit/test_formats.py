"""Reading foreign files: lines, BEIR, plain QA, and the choice between them."""

import gc
import gzip
import json
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

import hardneg as hn
from hardneg.api.convert import convert
from hardneg.data import importing
from hardneg.data.collection import Collection
from hardneg.data.formats import lines
from hardneg.data.importing import find_source, import_collection, open_data
from hardneg.errors import ArtifactError, InputError, ResourceError, SettingsError
from hardneg.storage import artifacts
from hardneg.storage.artifacts import publish

CORPUS = [
    {"_id": "p1", "title": "A title", "text": 'a lone " quote'},
    {"_id": "p2", "title": "", "text": "naïve ☃"},
    {"_id": "p3", "text": "third"},
]
QUERIES = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}, {"_id": "q3", "text": "in no qrels"}]
HEADER = "query-id\tcorpus-id\tscore\n"


def jsonl(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def beir(folder, corpus=CORPUS, queries=QUERIES, **qrels):
    """A BEIR folder; texts may be given raw."""
    (folder / "qrels").mkdir(parents=True)
    qrels = qrels or {"train": HEADER + "q2\tp1\t1\nq1\tp3\t2\n", "test": HEADER + "q1\tp2\t1.0\n"}
    files = {"corpus.jsonl": corpus, "queries.jsonl": queries}
    files |= {f"qrels/{split}.tsv": rows for split, rows in qrels.items()}
    for name, content in files.items():
        text = content if isinstance(content, str | bytes) else jsonl(content)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def qa(folder, corpus='psg_id\ttitle\ttext\np1\tA title\ta lone " quote\np2\t\tnaïve ☃\n', **splits):
    """A plain-QA folder."""
    folder.mkdir(parents=True)
    one = {"qid": "q1", "question": "who", "answers": ["me", "I"], "positive_ctxs": ["p2"], "source": "here"}
    splits = splits or {"train": [one, {"qid": "q2", "question": "why"}], "dev": [one]}
    (folder / "corpus.tsv").write_text(corpus)
    for split, questions in splits.items():
        (folder / f"{split}.jsonl").write_text(questions if isinstance(questions, str) else jsonl(questions))
    return folder


def imported(folder, **options):
    return import_collection(str(folder), folder.parent / "out", **options)


def fault(folder, **options):
    """The line that the import of this folder ends with; nothing may be left behind."""
    with pytest.raises(InputError) as caught:
        imported(folder, **options)
    assert not list(folder.parent.glob("*out*"))
    return str(caught.value).removeprefix(f"{folder}/")


# ---------------------------------------------------------------- lines


def written(tmp_path, data, name="file"):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_byte_order_mark_line_ends_and_compression_change_nothing(tmp_path, monkeypatch, compress, chunk):
    monkeypatch.setattr(lines, "CHUNK", chunk)
    expected = [(1, "a\tb"), (2, ""), (3, "é")]
    for data in (b"a\tb\n\n\xc3\xa9\n", b"a\tb\r\n\r\n\xc3\xa9\r\n", b"\xef\xbb\xbfa\tb\n\n\xc3\xa9"):
        assert list(lines.read_lines(written(tmp_path, compress(data)))) == expected
    assert list(lines.read_lines(written(tmp_path, compress(b"")))) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"ok\nab\xffcd\n", "file:2: BAD_UTF8: not UTF-8 at byte 3 (0xff)"),
        (b"ok\n\xc3", "file:2: BAD_UTF8: not UTF-8 at byte 1 (0xc3)"),
        (b"ok\r\nok\r\na\0b\n", "file:3: NUL: a NUL at byte 2"),
        (gzip.compress(b"line\n" * 1000, mtime=0)[:-9], "file: TRUNCATED_GZIP"),
        (gzip.compress(b"line\n" * 1000, mtime=0)[:-3], "file: TRUNCATED_GZIP"),
        (gzip.compress(b"line\n" * 9, mtime=0)[:-8] + bytes(8), "file: BAD_GZIP"),
        (gzip.compress(b"line\n", mtime=0) + b"rubbish", "file: BAD_GZIP"),
        (gzip.compress(b"line\n", mtime=0)[:10] + b"\xff" * 20, "file: BAD_GZIP"),
    ],
)
def test_faults_of_bytes_name_line_and_byte(tmp_path, data, message):
    with pytest.raises(InputError) as caught:
        list(lines.read_lines(written(tmp_path, data)))
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_name_that_lies_and_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"BAD_GZIP: named \.gz, but not gzip"):
        list(lines.read_lines(written(tmp_path, b"plain", "a.gz")))
    with pytest.raises(InputError, match="NOT_FOUND"):
        list(lines.read_lines(tmp_path / "nowhere"))
    with pytest.raises(ResourceError, match="UNREADABLE"):
        list(lines.read_lines(tmp_path))


def test_a_line_of_100_mb_is_refused_in_little_memory(tmp_path):
    path = written(tmp_path, b"short\n" + b"x" * 100_000_000 + b"\nshort\n")
    tracemalloc.start()
    with pytest.raises(InputError, match=r"file:2: LONG_LINE: a line of more than 67,108,864 bytes"):
        list(lines.read_lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 << 20


def test_a_line_just_below_the_limit_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    monkeypatch.setattr(lines, "CHUNK", 4)
    assert list(lines.read_lines(written(tmp_path, b"x" * 10))) == [(1, "x" * 10)]
    with pytest.raises(InputError, match=":1: LONG_LINE"):
        list(lines.read_lines(written(tmp_path, b"x" * 16)))


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "FREE_EXPANSION", 1 << 20)
    bomb = written(tmp_path, gzip.compress(b"ab\n" * (1 << 20), mtime=0))
    read = 0

    def counted():
        nonlocal read
        for _, line in lines.read_lines(bomb):
            read += len(line) + 1

    with pytest.raises(InputError, match="GZIP_BOMB: expands to more than 200 times its size"):
        counted()
    assert read <= lines.FREE_EXPANSION + lines.CHUNK
    monkeypatch.setattr(lines, "FREE_EXPANSION", 8 << 20)
    assert sum(1 for _ in lines.read_lines(bomb)) == 1 << 20


# ---------------------------------------------------------------- BEIR


def test_beir_by_hand(tmp_path):
    c = imported(beir(tmp_path / "in"))
    assert list(c.passage_ids) == ["p1", "p2", "p3"]
    assert list(c.titles) == ["A title", "", ""]
    assert list(c.texts) == ['a lone " quote', "naïve ☃", "third"]
    assert list(c.query_ids) == ["q1", "q2", "q3"]  # q3 is in no split, and kept
    assert c.splits == ("test", "train")
    train = c.qrels("train")
    assert train.query_rows.tolist() == [0, 1]
    assert train.passage_rows.tolist() == [2, 0]
    assert train.grades.tolist() == [2, 1]
    assert c.qrels("test").grades.tolist() == [1]
    assert c.facts["counts"] == {}


def test_spelling_of_the_files_does_not_change_the_digest(tmp_path):
    plain = beir(tmp_path / "a" / "in")
    other = beir(tmp_path / "b" / "in")
    for path in [p for p in other.rglob("*") if p.is_file()]:
        data = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, mtime=0))
        path.unlink()
    lists = Collection.from_lists(
        CORPUS,
        {q["_id"]: q["text"] for q in QUERIES},
        {"test": {"q1": ["p2"]}, "train": {"q1": {"p3": 2}, "q2": {"p1": 1}}},
    )
    assert imported(plain).digest == imported(other).digest == lists.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": ""}, "corpus.jsonl: EMPTY_FILE: the file holds no record"),
        ({"queries": ""}, "queries.jsonl: EMPTY_FILE"),
        ({"corpus": jsonl(CORPUS) + "{broken\n"}, "corpus.jsonl:4: BAD_JSON: not valid JSON"),
        ({"corpus": jsonl(CORPUS) + "\n"}, "corpus.jsonl:4: BAD_JSON: an empty line"),
        ({"corpus": "[" * 100_000}, "corpus.jsonl:1: BAD_JSON"),
        ({"corpus": '{"_id": ' + "1" * 5000 + "}\n"}, "corpus.jsonl:1: BAD_JSON"),
        ({"corpus": "[1]\n"}, "corpus.jsonl:1: BAD_JSON: a list where an object is expected"),
        ({"corpus": [{"text": "x"}]}, "corpus.jsonl:1: MISSING_FIELD: the field '_id' is missing"),
        ({"corpus": [{"_id": "a"}]}, "corpus.jsonl:1: MISSING_FIELD: the field 'text' is missing"),
        ({"corpus": [{"_id": "a", "text": None}]}, "corpus.jsonl:1: WRONG_TYPE: the field 'text' is null"),
        ({"corpus": [{"_id": 1.5, "text": "x"}]}, "corpus.jsonl:1: WRONG_TYPE: the field '_id' is 1.5"),
        ({"corpus": [{"_id": True, "text": "x"}]}, "corpus.jsonl:1: WRONG_TYPE"),
        ({"corpus": [{"_id": "", "text": "x"}]}, "corpus.jsonl:1: EMPTY_ID"),
        ({"corpus": [*CORPUS, {"_id": "p4", "text": " "}]}, "corpus.jsonl:4: EMPTY_TEXT"),
        ({"corpus": '{"_id": "a", "text": "x\\u0000"}\n'}, "corpus.jsonl:1: NUL"),
        ({"corpus": '{"_id": "a", "text": "\\ud800"}\n'}, "corpus.jsonl:1: BAD_UNICODE"),
        ({"corpus": b'{"_id": "a", "text": "\xe9"}\n'}, "corpus.jsonl:1: BAD_UTF8: not UTF-8 at byte 23 (0xe9)"),
        (
            {"corpus": [*CORPUS, {"_id": "p2", "text": "other"}]},
            "corpus.jsonl:4: DUPLICATE_ID: passage 'p2' is a duplicate of the one at line 2 of corpus.jsonl",
        ),
        ({"queries": [*QUERIES, QUERIES[0]]}, "queries.jsonl:4: DUPLICATE_ID: query 'q1'"),
        ({"test": "q1\tp2\t1\n"}, "qrels/test.tsv:1: NO_HEADER: the first line 'q1\\tp2\\t1' is no header"),
        ({"test": ""}, "qrels/test.tsv:1: NO_HEADER"),
        ({"test": HEADER}, "qrels/test.tsv: EMPTY_FILE"),
        ({"test": HEADER + "q1\tp2\n"}, "qrels/test.tsv:2: WRONG_COLUMNS: 2 tab-separated columns where 3"),
        ({"test": HEADER + "q1\tp2\tabc\n"}, "qrels/test.tsv:2: BAD_GRADE: the relevance 'abc'"),
        ({"test": HEADER + "q1\tp2\t1.5\n"}, "qrels/test.tsv:2: BAD_GRADE"),
        ({"test": HEADER + f"q1\tp2\t{2**63}\n"}, "qrels/test.tsv:2: BAD_GRADE"),
        ({"test": HEADER + f"q1\tp2\t{2**31}\n"}, "qrels/test.tsv:2: BAD_GRADE"),
        ({"test": HEADER + "q1\tp1\t1\nq1\tp9\t1\n"}, "qrels/test.tsv:3: UNKNOWN_ID: 1 judgement names an id"),
        (
            {"test": HEADER + "q1\tp1\t1\nq1\tp2\t1\nq1\tp1\t0\n"},
            "qrels/test.tsv:4: DUPLICATE_ID: this judgement, with another grade, is a duplicate of the one at",
        ),
    ],
)
def test_beir_faults(tmp_path, change, message):
    assert fault(beir(tmp_path / "in", **change)).startswith(message)


def test_no_garbage_is_collected_in_the_depth_of_nested_json(tmp_path, monkeypatch):
    """There the stack is nearly full: what ends other objects would fail, and Python would print that."""
    collects, decode = [], json.JSONDecoder.decode

    def watched(self, line):
        collects.append(gc.isenabled())
        return decode(self, line)

    monkeypatch.setattr(json.JSONDecoder, "decode", watched)
    assert "nested too deeply" in fault(beir(tmp_path / "in", corpus="[" * 100_000))
    assert collects[-1:] == [False]
    assert gc.isenabled()


def test_beir_what_may_pass_is_counted(tmp_path):
    corpus = [*CORPUS, {"_id": "p2", "text": "other"}, {"_id": 4, "text": "", "metadata": {}}]
    rows = HEADER + "q1\tp1\t1\nq1\tp1\t2\nq1\tp9\t1\nq9\tp1\t1\nq2\t4\t-2\n"
    options = {"allow_empty": True, "allow_unjudged": True, "on_duplicate": "first"}
    c = imported(beir(tmp_path / "in", corpus, test=rows), **options)
    assert c.facts["counts"] == {
        "passage_duplicates": 1,
        "judgement_duplicates": 1,
        "empty_passage_texts": 1,
        "unknown_judgements": 2,
    }
    assert c.facts["ignored_fields"] == {"metadata": 1}
    assert list(c.passage_ids) == ["p1", "p2", "p3", "4"]
    assert c.qrels("test").grades.tolist() == [1, -2]


def test_a_file_that_is_missing_or_there_twice(tmp_path):
    folder = beir(tmp_path / "in")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(b"", mtime=0))
    assert fault(folder).startswith("corpus.jsonl: AMBIGUOUS")
    (folder / "corpus.jsonl.gz").unlink()
    (folder / "corpus.jsonl").unlink()
    assert fault(folder, format="beir").startswith("corpus.jsonl: NOT_FOUND")


# ---------------------------------------------------------------- plain QA


def test_qa_by_hand(tmp_path):
    c = imported(qa(tmp_path / "in"))
    assert list(c.texts) == ['a lone " quote', "naïve ☃"]
    assert list(c.query_texts) == ["who", "why"]
    assert c.splits == ("dev", "train")
    train = c.qrels("train")
    assert train.query_rows.tolist() == [0, 1]  # q2 has no positive, and is in the split
    assert train.offsets.tolist() == [0, 1, 1]
    assert (train.passage_rows.tolist(), train.grades.tolist()) == ([1], [1])
    assert (c.answers(0), c.answers(1)) == (["me", "I"], [])
    assert c.facts["ignored_fields"] == {"source": 2}


def test_qa_columns_are_found_by_name(tmp_path):
    corpus = "text\textra\tpsg_id\ttitle\nbody\t?\t7\thead\n"
    c = imported(qa(tmp_path / "in", corpus, test=[{"qid": 1, "question": "who", "positive_ctxs": [7]}]))
    assert [c.passage_ids[0], c.titles[0], c.texts[0], c.query_ids[0]] == ["7", "head", "body", "1"]
    assert c.qrels("test").passage_rows.tolist() == [0]
    assert c.facts["ignored_fields"] == {"extra": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": "p1\tt\tx\n"}, "corpus.tsv:1: NO_HEADER: the first line 'p1\\tt\\tx' is no header"),
        ({"corpus": "psg_id\ttitle\ttext\n"}, "corpus.tsv: EMPTY_FILE"),
        ({"corpus": 'psg_id\ttitle\ttext\np1\t"t\tx\ty"\n'}, "corpus.tsv:2: WRONG_COLUMNS: 4 tab-separated"),
        ({"test": ""}, "test.jsonl: EMPTY_FILE"),
        ({"test": [{"question": "x"}]}, "test.jsonl:1: MISSING_FIELD: the field 'qid'"),
        (
            {"test": [{"qid": "a", "question": "x", "answers": "y"}]},
            "test.jsonl:1: WRONG_TYPE: the field 'answers'",
        ),
        ({"test": [{"qid": "a", "question": "x", "positive_ctxs": [{}]}]}, "test.jsonl:1: WRONG_TYPE"),
        ({"test": [{"qid": "a", "question": "x", "positive_ctxs": ["p9"]}]}, "test.jsonl:1: UNKNOWN_ID"),
        (
            {"dev": [{"qid": "a", "question": "x"}], "test": [{"qid": "a", "question": "y"}]},
            "test.jsonl:1: DUPLICATE_ID: query 'a' is a duplicate of the one at line 1 of dev.jsonl",
        ),
        (
            {"dev": [{"qid": "a", "question": "x"}], "test": [{"qid": "a", "question": "x", "answers": ["1"]}]},
            "test.jsonl:1: DUPLICATE_ID: query 'a'",
        ),
    ],
)
def test_qa_faults(tmp_path, change, message):
    assert fault(qa(tmp_path / "in", **change)).startswith(message)


# ---------------------------------------------------------------- choosing, caching, publishing


def test_open_data_imports_once_and_again_when_the_files_change(tmp_path):
    folder = beir(tmp_path / "in")
    first = open_data(str(folder))
    assert first.path.parent == artifacts.cache_root() / "collections"
    inode = first.path.stat().st_ino
    assert open_data(f"beir:{folder}").path == first.path
    assert first.path.stat().st_ino == inode
    assert open_data(str(folder), cache=tmp_path / "other").path.is_relative_to(tmp_path / "other")
    (folder / "queries.jsonl").write_text(jsonl(QUERIES[:2]))
    changed = open_data(str(folder))
    assert changed.path != first.path
    assert changed.n_queries == 2


OPENING = """
import os, sys, time
from hardneg.data import importing
publish = importing.publish_source
def slowly(*arguments):
    os.write(told, f"import {os.getpid()}\\n".encode())
    time.sleep(1)
    return publish(*arguments)
folder, told = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
importing.publish_source = slowly
os.write(told, b"ready\\n")
while open(sys.argv[2]).read().count("ready") < 3:
    time.sleep(0.01)
print(importing.open_data(folder).path)
"""


def test_processes_that_open_the_same_data_import_it_once(tmp_path):
    """Three processes that begin at once; whoever comes first keeps the others waiting."""
    command = [sys.executable, "-c", OPENING, str(beir(tmp_path / "in")), str(tmp_path / "told")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    opened = {process.communicate(timeout=300)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(opened) == 1
    told = (tmp_path / "told").read_text().splitlines()
    assert told.count("ready") == 3
    assert len(told) == 4, "one of them imported"


def test_threads_that_open_the_same_data_import_it_once(tmp_path, monkeypatch):
    folder, publish, calls = beir(tmp_path / "in"), importing.publish_source, []

    def slowly(*arguments):
        calls.append(arguments)
        time.sleep(0.3)
        return publish(*arguments)

    monkeypatch.setattr(importing, "publish_source", slowly)
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(open_data, [str(folder)] * 3))
    assert len({c.path for c in opened}) == len(calls) == 1


def test_texts_are_not_held_in_memory(tmp_path):
    text = "words " * 200
    folder = beir(tmp_path / "in", [{"_id": f"p{i}", "text": f"{i} {text}"} for i in range(15_000)])
    tracemalloc.start()
    imported(folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (folder / "corpus.jsonl").stat().st_size > 18e6
    assert peak < 9e6


def test_open_data_opens_a_canonical_folder(tmp_path):
    c = imported(beir(tmp_path / "in"))
    assert open_data(c.path).path == c.path
    with pytest.raises(SettingsError, match="CANONICAL"):
        import_collection(str(c.path), tmp_path / "again")


def test_what_is_no_collection_is_said(tmp_path):
    with pytest.raises(SettingsError, match="UNKNOWN_FORMAT: no format is called 'bier'; did you mean beir"):
        open_data(f"bier:{tmp_path}")
    with pytest.raises(SettingsError, match="UNKNOWN_FORMAT"):
        import_collection(str(beir(tmp_path / "in")), tmp_path / "out", format="csv")
    with pytest.raises(InputError, match="NOT_FOUND"):
        open_data(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="UNKNOWN_FORMAT: the files here fit no known format"):
        open_data(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["corpus.tsv", "queries.tsv"], "passages and queries need judgements (qrels.tsv) beside them"),
        (["collection.tsv", "qrels.test.txt"], "passages and judgements need queries (queries.tsv) beside them"),
        (["queries.jsonl"], "queries need passages (passages.tsv) and judgements (qrels.tsv) beside them"),
        (["queries.jsonl", "qrels"], "queries and judgements need passages (passages.tsv) beside them"),
        (["photos.jpg"], "fit no known format (photos.jpg); name one of"),
        (["README.md", "docs", "src"], "fit no known format (README.md, docs, src); name one of"),
    ],
)
def test_an_incomplete_folder_is_told_what_it_lacks(tmp_path, names, told):
    assert told in str(importing.unknown_folder(tmp_path, set(names)))


@pytest.mark.parametrize("read", [open_data, hn.check_import])
def test_a_source_without_passages_says_as_what_it_was_read(tmp_path, read):
    (tmp_path / "train.jsonl").write_text(jsonl([{"query_id": "1", "query": "one"}]))
    told = "EMPTY_CORPUS: the corpus has no passage; train.jsonl was read as tevatron"
    if read is open_data:
        with pytest.raises(InputError, match=told):
            read(f"tevatron:{tmp_path}")
    else:
        assert str(read(f"tevatron:{tmp_path}").faults[0]).startswith(told)


OTHERS = {
    "transformers": ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"],
    "sentence-transformers": ["modules.json", "config_sentence_transformers.json"],
}


@pytest.mark.parametrize("files", OTHERS.values(), ids=OTHERS)
def test_a_model_is_no_collection(files, tmp_path):
    for name in files:
        (tmp_path / name).write_text("{}")
    for call in (open_data, hn.open_collection, lambda data: convert(data, tmp_path / "out")):
        with pytest.raises(ArtifactError, match="WRONG_KIND: this is a model, not a collection"):
            call(str(tmp_path))


def test_what_else_training_writes_is_no_collection(tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp/settings.json").write_text("{}")
    (tmp_path / "exp/places.json").write_text("{}")
    with publish(tmp_path / "pool", "negatives"):
        pass
    for name, said in (("exp", "an experiment"), ("pool", "a pool of negatives")):
        for call in (
            hn.open_collection,
            lambda data: convert(data, tmp_path / "out"),
            lambda data: hn.import_collection(data, tmp_path / "out"),
            hn.check_import,
            find_source,
        ):
            with pytest.raises(ArtifactError, match=f"WRONG_KIND: this is {said}, not a collection"):
                call(str(tmp_path / name))
    with pytest.raises(ArtifactError, match="WRONG_KIND: this is an experiment, not"):
        hn.check_import(tmp_path / "exp", format="dpr")


def test_a_place_in_a_collection_is_refused(tmp_path):
    folder, place = beir(tmp_path / "in"), tmp_path / "to/col"
    convert(str(folder), place)
    for inside in (place / "inside", place / "deep/er"):
        for call in (convert, import_collection):
            with pytest.raises(SettingsError, match=r"EXISTS: this place lies in a collection, .*col; give"):
                call(str(folder), inside)
    (tmp_path / "to/manifest.json").write_text("{}")  # as many programs have one
    convert(str(folder), tmp_path / "to/other")


def test_only_a_collection_is_replaced(tmp_path):
    folder = beir(tmp_path / "in")
    old = imported(folder)
    with pytest.raises(ArtifactError, match="EXISTS"):
        imported(folder)
    (folder / "queries.jsonl").write_text(jsonl(QUERIES[:2]))
    assert imported(folder, replace=True).digest != old.digest
    with pytest.raises(ArtifactError, match="EXISTS"):
        import_collection(str(folder), folder, replace=True)


# ---------------------------------------------------------------- real collections


@pytest.mark.shared
@pytest.mark.parametrize("name", ["scifact", "cranfield", "cacm"])
def test_real_beir_collections_have_their_known_counts(shared_data, tmp_path, name):
    stats = json.loads((shared_data / name / "stats.json").read_text())
    c = import_collection(str(shared_data / name), tmp_path / name)
    assert (c.n_passages, c.n_queries) == (stats["docs"], stats["queries"])
    assert set(c.splits) == {"train", "test"} & stats.keys()
    for split in c.splits:
        known = {part: stats[split][part] for part in ("queries", "judgements", "positives")}
        assert c.facts["splits"][split] == known
    assert c.facts["counts"] == {}


@pytest.mark.shared
def test_real_questions_have_their_known_counts(shared_data, tmp_path):
    stats = json.loads((shared_data / "wiki_openqa" / "stats.json").read_text())
    c = import_collection(f"qa:{shared_data / 'wiki_openqa'}", tmp_path / "out")
    assert c.n_passages == stats["docs"]
    for split, known in stats["splits"].items():
        assert len(c.qrels(split)) == known["total"]
        assert (c.qrels(split).positives().offsets[1:] == range(1, known["total"] + 1)).all()
    assert c.n_queries == sum(known["total"] for known in stats["splits"].values())
    assert c.passage_ids.rows(list(c.passage_ids)).tolist() == list(range(c.n_passages))
    ranked = sorted(c.passage_ids, key=str.encode)
    assert [ranked[rank] for rank in c.passage_ids.id_rank] == list(c.passage_ids)
    text_of = dict(zip(c.passage_ids, c.texts, strict=True))
    dev = c.qrels("dev")
    for i in range(0, len(dev), 50):
        answers = c.answers(dev.query_rows[i])
        passage = c.texts[dev.passage_rows[i]].lower()
        assert any(answer.lower() in passage for answer in answers)
    assert len(text_of) == c.n_passages

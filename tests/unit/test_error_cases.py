"""Each row of the error table that needs no model, through the command line.

A fault is one line with its place, its code and its status. Nothing is published, existing files stay as they
were, and the corrected command succeeds.
"""

import errno
import gzip
import json
import os
import pickle
import re
import resource
import shutil

import numpy as np
import pytest

from faults.injected import LINE, Payload
from formats.samples import BEIR, MSMARCO, QA, RUN, TREC, files
from hardneg.negatives.pool import DTYPES, NegativePool, save_pool
from hardneg.storage import artifacts, disk

HEADER = "query-id\tcorpus-id\tscore\n"
FORMATS = {"beir": BEIR, "qa": QA, "msmarco": MSMARCO}


def everything(folder):
    """All that stands in a folder: name -> bytes."""
    found = sorted(path for path in folder.rglob("*") if "cache" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture
def refused(hardneg, tmp_path):
    """A command that must fail in one line and change nothing: its status, and the line's parts."""

    def run(*arguments):
        before = everything(tmp_path)
        status, out, err = hardneg(*arguments)
        lines = [line for line in err.splitlines() if not line.startswith("importing: ")]  # where it takes long
        assert (out, len(lines)) == ("", 1), err
        match = LINE.fullmatch(lines[0])
        assert match, err
        assert everything(tmp_path) == before
        return status, match

    return run


@pytest.fixture
def succeeds(hardneg):
    """A command that must succeed: what it prints, as JSON."""

    def run(*arguments):
        status, out, err = hardneg(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return run


# ---------------------------------------------------------------- imports


def line(name, number, text):
    """Put a text in place of a line of a file."""

    def damage(folder):
        lines = (folder / name).read_bytes().split(b"\n")
        lines[number - 1] = text if isinstance(text, bytes) else text.encode()
        (folder / name).write_bytes(b"\n".join(lines))

    return damage


def whole(name, text):
    """Put a text in place of a file."""
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def packed(name, change):
    """Compress a file, and change what comes of it."""

    def damage(folder):
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(change(gzip.compress(data, mtime=0)))

    return damage


def bomb(folder):
    record = json.dumps({"_id": "p0", "text": "a" * 50_000}) + "\n"
    with gzip.open(folder / "corpus.jsonl.gz", "wb") as stream:
        for _ in range(1500):
            stream.write(record.encode())
    (folder / "corpus.jsonl").unlink()


IMPORTS = [
    ("too few columns", "beir", line("qrels/test.tsv", 2, "q4\tp4"), "qrels/test.tsv:2", "WRONG_COLUMNS"),
    ("too many columns", "msmarco", line("corpus.tsv", 3, "p2\ta\tb\tc"), "corpus.tsv:3", "WRONG_COLUMNS"),
    ("too few in qrels", "msmarco", line("qrels.dev.tsv", 1, "q4 p4 1"), "qrels.dev.tsv:1", "WRONG_COLUMNS"),
    ("broken JSON", "beir", line("corpus.jsonl", 3, '{"_id": "p2", "text": '), "corpus.jsonl:3", "BAD_JSON"),
    ("broken JSON of QA", "qa", line("dev.jsonl", 2, "[1]"), "dev.jsonl:2", "BAD_JSON"),
    ("deep JSON", "beir", line("queries.jsonl", 1, "[" * 100_000), "queries.jsonl:1", "BAD_JSON"),
    ("not UTF-8", "beir", line("corpus.jsonl", 2, b'{"_id": "p1", "text": "\xff"}'), "corpus.jsonl:2", "BAD_UTF8"),
    ("NUL", "qa", line("corpus.tsv", 3, "p1\t\ta\0b"), "corpus.tsv:3", "NUL"),
    (
        "NUL in JSON",
        "beir",
        line("queries.jsonl", 2, '{"_id": "q1", "text": "\\u0000"}'),
        "queries.jsonl:2",
        "NUL",
    ),
    (
        "surrogate",
        "beir",
        line("corpus.jsonl", 1, '{"_id": "\\ud800", "text": "x"}'),
        "corpus.jsonl:1",
        "BAD_UNICODE",
    ),
    ("empty id", "beir", line("corpus.jsonl", 2, '{"_id": " ", "text": "x"}'), "corpus.jsonl:2", "EMPTY_ID"),
    ("empty id in columns", "msmarco", line("corpus.tsv", 2, "\tt\tx"), "corpus.tsv:2", "EMPTY_ID"),
    (
        "missing id",
        "beir",
        line("corpus.jsonl", 2, '{"id": "p1", "text": "x"}'),
        "corpus.jsonl:2",
        "MISSING_FIELD",
    ),
    ("missing question", "qa", line("dev.jsonl", 1, '{"qid": "q3"}'), "dev.jsonl:1", "MISSING_FIELD"),
    ("wrong type", "qa", line("dev.jsonl", 1, '{"qid": "q3", "question": 1}'), "dev.jsonl:1", "WRONG_TYPE"),
    ("grade of words", "beir", line("qrels/train.tsv", 3, "q0\tp2\tabc"), "qrels/train.tsv:3", "BAD_GRADE"),
    ("grade of 64 bits", "beir", line("qrels/train.tsv", 3, f"q0\tp2\t{2**63}"), "qrels/train.tsv:3", "BAD_GRADE"),
    ("no header", "beir", whole("qrels/test.tsv", "q4\tp4\t1\n"), "qrels/test.tsv:1", "NO_HEADER"),
    ("no header of QA", "qa", whole("corpus.tsv", "p1\tt\tx\n"), "corpus.tsv:1", "NO_HEADER"),
    ("bomb", "beir", bomb, "corpus.jsonl.gz", "GZIP_BOMB"),
    (
        "truncated gzip",
        "beir",
        packed("corpus.jsonl", lambda data: data[:-20]),
        "corpus.jsonl.gz",
        "TRUNCATED_GZIP",
    ),
    ("damaged gzip", "qa", packed("dev.jsonl", lambda data: data[:-8] + bytes(8)), "dev.jsonl.gz", "BAD_GZIP"),
    ("no gzip", "msmarco", packed("corpus.tsv", lambda data: b"p1\tx\n"), "corpus.tsv.gz", "BAD_GZIP"),
    ("empty corpus", "beir", whole("corpus.jsonl", ""), "corpus.jsonl", "EMPTY_FILE"),
    ("empty corpus of QA", "qa", whole("corpus.tsv", "psg_id\ttitle\ttext\n"), "corpus.tsv", "EMPTY_FILE"),
    ("empty queries", "beir", whole("queries.jsonl", ""), "queries.jsonl", "EMPTY_FILE"),
    ("empty queries in columns", "msmarco", whole("dev.query.txt", ""), "dev.query.txt", "EMPTY_FILE"),
    ("empty qrels", "msmarco", whole("qrels.dev.tsv", ""), "qrels.dev.tsv", "EMPTY_FILE"),
]


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    """What the sound folders are imported to."""
    from hardneg.data.importing import import_collection

    found = {}
    for format, contents in FORMATS.items():
        folder = tmp_path_factory.mktemp(format)
        files(contents)(folder / "in")
        found[format] = import_collection(str(folder / "in"), folder / "out").digest
    return found


@pytest.mark.parametrize(
    ("format", "damage", "place", "code"), [c[1:] for c in IMPORTS], ids=[c[0] for c in IMPORTS]
)
def test_a_record_that_is_wrong(refused, succeeds, digests, tmp_path, format, damage, place, code):
    folder, out = tmp_path / "in", tmp_path / "out"
    files(FORMATS[format])(folder)
    damage(folder)
    status, fault = refused("import", f"{format}:{folder}", "--to", out)
    where = fault["path"] + (f":{fault['line']}" if fault["line"] else "")
    assert (status, fault["code"], where) == (3, code, f"{folder}/{place}")
    shutil.rmtree(folder)
    files(FORMATS[format])(folder)
    assert succeeds("import", folder, "--to", out)["digest"] == digests[format]


ALLOWED = [
    (
        "empty text",
        line("corpus.jsonl", 2, '{"_id": "p1", "text": " "}'),
        ("corpus.jsonl:2", "EMPTY_TEXT"),
        ["--allow-empty"],
        {"empty_passage_texts": 1},
    ),
    (
        "empty query",
        line("queries.jsonl", 2, '{"_id": "q1", "text": ""}'),
        ("queries.jsonl:2", "EMPTY_TEXT"),
        ["--allow-empty"],
        {"empty_query_texts": 1},
    ),
    (
        "the same id with another text",
        line("corpus.jsonl", 6, '{"_id": "p1", "text": "other"}\n{"_id": "p5", "text": "x"}'),
        ("corpus.jsonl:6", "DUPLICATE_ID"),
        ["--on-duplicate", "first"],
        {"passage_duplicates": 1},
    ),
    (
        "the same id with the same text",
        line("queries.jsonl", 5, '{"_id": "q1", "text": "what passage is 1?"}\n{"_id": "q4", "text": "x"}'),
        ("queries.jsonl:5", "DUPLICATE_ID"),
        ["--on-duplicate", "first"],
        {"query_duplicates": 1},
    ),
    (
        "the same judgement",
        line("qrels/train.tsv", 7, "q0\tp1\t1\n"),
        ("qrels/train.tsv:7", "DUPLICATE_ID"),
        ["--on-duplicate", "first"],
        {"judgement_duplicates": 1},
    ),
    (
        "unknown ids",
        whole("qrels/train.tsv", HEADER + "q0\tp1\t1\n" + "".join(f"q0\tx{i}\t1\n" for i in range(12))),
        ("qrels/train.tsv:3", "UNKNOWN_ID"),
        ["--allow-unjudged"],
        {"unknown_judgements": 12},
    ),
]


@pytest.mark.parametrize(
    ("damage", "expected", "flags", "counted"), [c[1:] for c in ALLOWED], ids=[c[0] for c in ALLOWED]
)
def test_what_a_flag_lets_pass_is_counted(refused, succeeds, tmp_path, damage, expected, flags, counted):
    folder, out = tmp_path / "in", tmp_path / "out"
    files(BEIR)(folder)
    damage(folder)
    status, fault = refused("import", folder, "--to", out)
    assert (status, f"{fault['path']}:{fault['line']}", fault["code"]) == (
        3,
        f"{folder}/{expected[0]}",
        expected[1],
    )
    assert flags[0] in fault[0]
    assert succeeds("import", folder, "--to", out, *flags)["counts"] == counted


def test_duplicates_name_both_lines_and_unknown_ids_the_first_ten_and_the_total(refused, tmp_path):
    files(BEIR)(tmp_path / "in")
    ALLOWED[2][1](tmp_path / "in")
    fault = refused("import", tmp_path / "in", "--to", tmp_path / "out")[1]
    assert (fault["line"], "at line 2 of corpus.jsonl" in fault[0]) == ("6", True)
    files(BEIR)(tmp_path / "in")
    ALLOWED[5][1](tmp_path / "in")
    fault = refused("import", tmp_path / "in", "--to", tmp_path / "out")[1]
    assert "12 judgements name ids that are not there" in fault[0]
    assert re.findall(r"'x(\d+)'", fault[0]) == [str(i) for i in range(10)]


def test_a_grade_with_a_point_is_an_integer_and_no_first_row_is_eaten(succeeds, tmp_path):
    files({**MSMARCO, "qrels.dev.tsv": "q4 0 p4 1.0\n"})(tmp_path / "in")
    assert succeeds("import", tmp_path / "in", "--to", tmp_path / "out")["splits"]["dev"]["judgements"] == 1
    files(TREC)(tmp_path)
    (tmp_path / "qrels").write_text("q0 0 p0 1.0\nq1 0 p0 1\n")
    found = succeeds("evaluate", tmp_path / "run.trec", "--qrels", tmp_path / "qrels", "--measures", "RR@10")
    assert (found["queries"], found["measures"]["RR@10"]) == (2, 1.0)


# ---------------------------------------------------------------- runs and judgements

RUNS = [
    ("duplicate passage", "run.trec", RUN + "q0 Q0 p1 9 1.0 x\n", "run.trec:13", "DUPLICATE_HIT"),
    ("NaN score", "run.trec", RUN.replace("9.5", "nan", 1), "run.trec:1", "BAD_SCORE"),
    ("score of words", "run.trec", RUN.replace("8.5", "high", 1), "run.trec:2", "BAD_SCORE"),
    ("malformed line", "run.trec", RUN + "q9 Q0 p1\n", "run.trec:13", "WRONG_COLUMNS"),
    ("not UTF-8", "run.trec", RUN.encode() + b"q9 Q0 \xff 1 1 x\n", "run.trec:13", "BAD_UTF8"),
    ("empty run", "run.trec", "", "run.trec", "EMPTY_FILE"),
    ("grade of words", "qrels.trec", "q0 0 p1 1\nq1 0 p1 abc\n", "qrels.trec:2", "BAD_GRADE"),
    ("grade of 64 bits", "qrels.trec", f"q0 0 p1 1\nq1 0 p1 {2**63}\n", "qrels.trec:2", "BAD_GRADE"),
    ("two grades", "qrels.trec", "q0 0 p1 1\nq0 0 p1 2\n", "qrels.trec:2", "CONFLICTING_GRADES"),
    ("empty qrels", "qrels.trec", "# none\n", "qrels.trec", "EMPTY_FILE"),
]


@pytest.mark.parametrize(("name", "content", "place", "code"), [c[1:] for c in RUNS], ids=[c[0] for c in RUNS])
def test_a_run_or_qrels_that_is_wrong(refused, succeeds, tmp_path, name, content, place, code):
    files(TREC)(tmp_path)
    whole(name, content)(tmp_path)
    command = ("evaluate", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.trec")
    status, fault = refused(*command, "--per-query", tmp_path / "by-query.jsonl")
    where = fault["path"] + (f":{fault['line']}" if fault["line"] else "")
    assert (status, fault["code"], where) == (3, code, f"{tmp_path}/{place}")
    files(TREC)(tmp_path)
    succeeds(*command)


def test_queries_missing_from_the_run_or_from_the_qrels_are_counted(succeeds, tmp_path):
    files({**TREC, "qrels.trec": "q0 0 p0 1\nq8 0 p0 1\n"})(tmp_path)
    found = succeeds("evaluate", tmp_path / "run.trec", "--qrels", tmp_path / "qrels.trec", "--measures", "RR@10")
    assert found == {"measures": {"RR@10": 0.5}, "queries": 2, "missing": 1, "unjudged": 2}


# ---------------------------------------------------------------- a collection, searched


@pytest.fixture
def collection(succeeds, tmp_path):
    files(BEIR)(tmp_path / "in")
    succeeds("import", tmp_path / "in", "--to", tmp_path / "collection")
    return tmp_path / "collection"


def test_more_hits_than_passages_and_none_at_all(refused, succeeds, collection, tmp_path):
    search = ("search", "--data", collection, "--bm25", "--split", "train", "--out", tmp_path / "run")
    status, fault = refused(*search, "--k", 0)
    assert (status, fault["code"]) == (2, "USAGE")
    found = succeeds(*search, "--k", 1000)
    assert found["hits"] == 6 * found["queries"]
    assert not re.search(r"^\S+ Q0 -1 ", (tmp_path / "run").read_text(), re.MULTILINE)


DAMAGES = {
    "CORRUPT": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "WRONG_SIZE": lambda data: data[:-1],
    "MISSING_FILE": None,
}


@pytest.mark.parametrize("code", DAMAGES)
@pytest.mark.parametrize("name", ["content/passages.texts.utf8", "content/qrels/train.grades.npy"])
def test_a_damaged_collection(refused, succeeds, collection, tmp_path, name, code):
    shutil.copytree(collection, tmp_path / "copy")
    data, change = (collection / name).read_bytes(), DAMAGES[code]
    (collection / name).unlink()
    if change:
        (collection / name).write_bytes(change(data))
    search = ("search", "--bm25", "--split", "train", "--out", tmp_path / "run")
    status, fault = refused(*search, "--data", collection)
    assert (status, fault["code"], fault["path"]) == (4, code, str(collection / name))
    succeeds(*search, "--data", tmp_path / "copy")


def test_a_run_of_another_collection(refused, succeeds, collection, tmp_path):
    succeeds("search", "--data", collection, "--bm25", "--split", "train", "--out", tmp_path / "run")
    line("corpus.jsonl", 1, '{"_id": "p0", "text": "changed"}')(tmp_path / "in")
    status, fault = refused("evaluate", tmp_path / "run", "--data", tmp_path / "in", "--split", "train")
    assert (status, fault["code"]) == (4, "OTHER_COLLECTION")
    assert len(set(re.findall(r"[0-9a-f]{12}…", fault[0]))) == 2
    succeeds("evaluate", tmp_path / "run", "--data", collection, "--split", "train")


# ---------------------------------------------------------------- settings and usage


def test_all_wrong_settings_at_once_before_any_model_or_data_is_looked_for(hardneg, tmp_path):
    (tmp_path / "s.toml").write_text("depth = 'deep'\nquerys_per_step = 8\nscale = nan\n")
    assignments = ["alpha=1.5", "learning_rate=nan", "beta", "optimizer=sgd", "passages_reference=[16, 0]"]
    options = [word for text in assignments for word in ("--set", text)]
    train = [
        "train",
        "ance-tele",
        "--data",
        tmp_path / "none",
        "--model",
        tmp_path / "none",
        "--out",
        tmp_path / "exp",
    ]
    status, out, err = hardneg(*train, "--preset", "dmo", "--config", tmp_path / "s.toml", *options)
    assert (status, out) == (2, "")
    assert sorted(err.splitlines()) == [
        "BAD_OVERRIDE: 'beta' is not key=value; write --set key=value",
        "BAD_SETTING: alpha = 1.5; it should be less than 1",
        'BAD_SETTING: depth = "deep"; it should be a valid integer',
        "BAD_SETTING: learning_rate = NaN; it should be a finite number",
        "BAD_SETTING: optimizer = \"sgd\"; it should be 'adamw' or 'lamb'",
        "BAD_SETTING: passages_reference.1 = 0; it should be greater than 0",
        "BAD_SETTING: scale = NaN; it should be a finite number",
        "UNKNOWN_PRESET: ance-tele has no preset 'dmo'; did you mean 'demo'?",
        "UNKNOWN_SETTING: there is no setting 'querys_per_step'; did you mean 'queries_per_step'?",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


WORDS = [
    ("import beir:{in} --to {out} --on-duplicate fist", "did you mean 'first'?"),
    ("import {in} --to {out} --format bier", "did you mean beir?"),
    ("evaluate {in}/run --data {in} --split tset", "did you mean 'test'?"),
    ("evaluate {in}/run --data {in} --measures nDCG10", ""),
    ("search --data {in} --bm25 --split tain --out {out}", "did you mean 'train'?"),
    ("mine --data {in} --sources bm52 --out {out}", "did you mean 'bm25'?"),
]


@pytest.mark.parametrize(("command", "advice"), WORDS)
def test_a_word_that_is_nearly_right(refused, tmp_path, command, advice):
    files(BEIR)(tmp_path / "in")
    places = {"in": tmp_path / "in", "out": tmp_path / "out"}
    status, fault = refused(*command.format(**places).split())
    assert status == 2
    assert fault[0].endswith(advice), fault[0]


# ---------------------------------------------------------------- disk


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "DISK_FULL"), (errno.EROFS, "NOT_WRITABLE"), (errno.EIO, "IO_ERROR")]
)
def test_a_disk_that_refuses(refused, succeeds, monkeypatch, tmp_path, number, code):
    def failing(path):
        raise OSError(number, os.strerror(number), str(path))

    files(BEIR)(tmp_path / "in")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync", failing)
        status, fault = refused("import", tmp_path / "in", "--to", tmp_path / "out")
    assert (status, fault["code"]) == (5, code)
    assert code != "DISK_FULL" or re.search(r"[\d,]+ bytes that are free", fault[0])
    succeeds("import", tmp_path / "in", "--to", tmp_path / "out")


def test_a_file_that_may_not_grow(refused, succeeds, tmp_path):
    files(BEIR)(tmp_path / "in")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        status, fault = refused("import", tmp_path / "in", "--to", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (status, fault["code"]) == (5, "NOT_WRITABLE")
    succeeds("import", tmp_path / "in", "--to", tmp_path / "out")


def test_a_place_in_use_is_no_place_to_write_to(refused, collection, tmp_path):
    assert refused("import", tmp_path / "in", "--to", collection)[0] == 2
    assert refused("import", tmp_path / "in", "--to", tmp_path / "in/corpus.jsonl/x")[0] == 2


# ---------------------------------------------------------------- trust


def seal(folder):
    """Give a folder a manifest that fits its files."""
    old = artifacts.read_manifest(folder)
    found = {name: ((folder / name).stat().st_size, artifacts.digest_file(folder / name)) for name in old.files}
    new = artifacts.Manifest(old.kind, old.settings, old.inputs, old.facts, found)
    artifacts.write_json(folder / artifacts.MANIFEST, new.as_json())


@pytest.mark.parametrize("as_array", [True, False])
def test_a_pickle_in_place_of_an_array_is_never_run(refused, succeeds, collection, tmp_path, as_array):
    from hardneg.data.collection import Collection

    arrays = {name: np.zeros(1, dtype) for name, dtype in DTYPES.items()}
    arrays |= {"offsets": np.array([0, 1]), "positive_offsets": np.array([0, 1])}
    digest = Collection.open(collection).digest
    save_pool(NegativePool(**arrays, episode=1, collection=digest), tmp_path / "pool", settings={}, inputs={})
    shutil.copytree(tmp_path / "pool", tmp_path / "bad")
    payload, place = Payload(tmp_path / "mark"), tmp_path / "bad/scores.npy"
    if as_array:
        np.save(place, np.array([payload], dtype=object), allow_pickle=True)
    else:
        place.write_bytes(pickle.dumps(payload))
    seal(tmp_path / "bad")
    status, fault = refused("inspect", tmp_path / "bad", "--data", collection)
    assert (status, fault["code"], fault["path"]) == (9, "UNSAFE_PICKLE", str(place))
    assert not (tmp_path / "mark").exists()
    succeeds("inspect", tmp_path / "pool", "--data", collection)


@pytest.mark.parametrize("command", ["diagnose", "show"])
def test_an_experiment_is_not_put_beside_itself(refused, tmp_path, command):
    status, told = refused(command, tmp_path / "exp", tmp_path / "a/../exp")
    assert status == 2
    assert "BAD_SETTING: this experiment is given twice" in told[0]


@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["--data", ""], ["--model="]])
def test_an_option_without_a_value_is_not_taken_for_the_present_folder(refused, tmp_path, words):
    given = {"--data": "data", "--model": "m", "--out": str(tmp_path / "new")}
    given.pop(words[0].rstrip("="))
    status, told = refused("train", "warmup", *(word for pair in given.items() for word in pair), *words)
    flag = words[0].rstrip("=")
    assert (status, told[0]) == (2, f"USAGE: the value of {flag} is empty; give one, or leave {flag} out")


def test_a_folder_that_is_no_run_is_told_as_what_it_is(refused, tmp_path):
    from hardneg.data.collection import Collection

    Collection.from_lists({"p": "a text"}, {"q": "a query"}, {"test": {"q": ["p"]}}, to=tmp_path / "collection")
    (tmp_path / "folder").mkdir()
    for place, kind in (("collection", "a collection"), ("folder", "a folder")):
        status, told = refused("evaluate", tmp_path / place, "--data", tmp_path / "collection")
        assert (status, told[0]) == (
            4,
            f"{tmp_path / place}: WRONG_KIND: this is {kind}, not a run; "
            "give a run file (hardneg search), an experiment (hardneg train), or the folder of a run in it",
        )


def test_the_present_run_is_not_replaced_by_its_own_reranking(refused, tmp_path):
    (tmp_path / "run.trec").write_text("q Q0 p 1 1.0 t\n")
    run = tmp_path / "run.trec"
    status, told = refused("rerank", "--data", "x", "--run", run, "--ranker", "m", "--out", run)
    assert (status, told[0]) == (
        2,
        f"{run}: EXISTS: this file is an input of the command, and would be overwritten; give another --out",
    )

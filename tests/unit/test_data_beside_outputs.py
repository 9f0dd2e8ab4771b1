"""A folder of data in which hardneg itself wrote something, and files that only their packing hides."""

import json
import os
import shutil
from pathlib import Path

import pytest

import hardneg as hn
from formats import samples
from hardneg.api.inputs import check_beside_sources, check_file
from hardneg.data.formats import beir, pairs, qa
from hardneg.data.formats.folders import sidecar_of
from hardneg.data.importing import (
    FOLDERS,
    LATER_FIELDS,
    LATER_SIGNS,
    OF_FILES,
    SIGNS,
    SPLITS,
    detect,
    find_source,
    import_collection,
    would_read,
)
from hardneg.errors import InputError, ResourceError, SettingsError
from hardneg.process.progress import showing
from hardneg.storage.artifacts import write_json
from hardneg.storage.lease import LOCK
from hardneg.storage.manifest import Manifest

ROWS = "anchor,positive\nwhat is a shell,a program that reads commands\nwhat does make do,it builds\n"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text(ROWS)
    return tmp_path / "data"


def read(place):
    """The digests of a place's files, and how many passages it has."""
    source = find_source(str(place))
    return dict(source.inputs), len(list(source.passages()))


def test_what_hardneg_wrote_into_a_folder_of_data_is_no_data(data, tmp_path):
    before = read(data)
    import_collection(str(data), data / "collection")
    exp, model, runs = data / "exp", data / "model", data / "runs"
    for folder in (exp, model, runs):
        folder.mkdir()
    (exp / "settings.json").write_text('{\n  "recipe": "star"\n}\n')
    (exp / LOCK).write_text("process 12 on host\n")
    (exp / "margins.tsv").write_text("1\t1\t22\t29\t1.8648\n")
    (exp / "metrics.jsonl").write_text('{"step": 1}\n')
    (model / "config.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{\n  "do_lower_case": true\n}\n')
    (model / "train.jsonl").write_text('{"anchor": "a", "positive": "b"}\n')
    (data / "run.tsv").write_text("q1\tp1\t1\n")
    for name in ("run.tsv", "bm25.trec.gz"):
        write_json(sidecar_of(data / name), Manifest("run", {}, {}, {}, {}, 1).as_json())
    assert (read(data), detect(str(data))) == (before, "pairs")
    shutil.copy(exp / "margins.tsv", runs / "margins.tsv")  # what is not hardneg's own is read
    with pytest.raises(InputError, match="UNKNOWN_COLUMNS"):
        read(data)


def test_folders_that_are_not_read_are_named(data, capsys):
    import_collection(str(data), data / "collection")
    with showing(True):
        read(data)
    assert capsys.readouterr().err == f"{data}: collection is of hardneg, and not read as data\n"


def test_other_files_of_these_names_hide_no_data(data, tmp_path):
    """A manifest, a lock or a description that hardneg did not write stands beside data of others, too."""
    (data / "dev").mkdir()
    (data / "dev/a.csv").write_text(ROWS)
    (data / "dev/manifest.json").write_text('{"files": ["a.csv"]}')
    (data / "dev" / LOCK).touch()
    sidecar_of(data / "train.csv").write_text('{"rows": 2}')
    assert set(find_source(str(data)).inputs) == {"train.csv", "dev/a.csv"}


def test_folders_and_names_that_cannot_be_looked_at_are_no_obstacle(data, monkeypatch):
    before = read(data)
    for name in (".closed", "lost+found"):
        (data / name).mkdir()
    (data / f"{'x' * 250}.md").touch()  # with the suffix of a description it is too long

    close(monkeypatch, ".closed", "lost+found")
    assert read(data) == before


def close(monkeypatch, *names):
    """Close the folders of these names to this user, who may be root."""

    def listed(folder, real=Path.iterdir):
        if folder.name in names:
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(Path, "iterdir", listed)


@pytest.mark.parametrize("name", ["train", "qrels"])
def test_data_in_a_closed_folder_are_not_left_out_in_silence(data, monkeypatch, name):
    (data / name).mkdir()
    (data / name / "more.csv").write_text(ROWS)
    close(monkeypatch, name)
    with pytest.raises(ResourceError, match=rf"{name}: UNREADABLE: cannot read \(Permission denied\)"):
        read(data)


@pytest.mark.parametrize("name", ["train", "qrels", ""])
def test_a_folder_that_may_only_be_listed_is_named(data, monkeypatch, name):
    shut = data / name
    shut.mkdir(exist_ok=True)
    (shut / "more.csv").write_text(ROWS)

    def looked_at(path, *, follow_symlinks=True, real=os.stat):
        if str(path).startswith(f"{shut}{os.sep}"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", looked_at)
    for reader in (find_source, hn.open_collection):
        with pytest.raises(ResourceError, match=rf"{shut.name}: UNREADABLE"):
            reader(str(data))


@pytest.mark.parametrize("format", ["tevatron", "qa", "dpr"])
def test_a_closed_folder_beside_data_whose_format_reads_no_folder_is_no_obstacle(tmp_path, monkeypatch, format):
    files = {
        "tevatron": [
            ("train.jsonl", {"query_id": "q", "query": "a", "positive_passages": [], "negative_passages": []})
        ],
        "qa": [("corpus.tsv", "id\ttext\ttitle\n"), ("train.jsonl", {"qid": "q", "question": "a", "answers": []})],
        "dpr": [("train.json", [{"question": "a", "answers": [], "positive_ctxs": [], "negative_ctxs": []}])],
    }[format]
    for name, content in files:
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content) + "\n")
    (tmp_path / "alice").mkdir()
    assert detect(str(tmp_path)) == format
    close(monkeypatch, "alice")
    assert detect(str(tmp_path)) == format
    assert find_source(str(tmp_path)).format == format


def test_the_message_about_a_closed_folder_says_how_to_leave_it_out(data, monkeypatch):
    (data / "alice").mkdir()
    close(monkeypatch, "alice")
    with pytest.raises(
        ResourceError, match=r"alice: UNREADABLE: .*; open the folder, move it away, or hide it \(\.alice\)"
    ):
        read(data)


@pytest.mark.parametrize("format", ["beir", "tables"])
def test_judgements_in_a_closed_folder_are_not_called_missing(tmp_path, monkeypatch, format):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "p", "text": "one"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "one?"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp\t1\n")
    find_source(f"{format}:{tmp_path}")
    close(monkeypatch, "qrels")
    for named in (f"{format}:{tmp_path}", str(tmp_path)):
        with pytest.raises(ResourceError, match="qrels: UNREADABLE"):
            find_source(named)
    (tmp_path / "corpus.jsonl").unlink()
    (tmp_path / "corpus.tsv").write_text("p\tone\n")  # with a file of JSON Lines it looks like the format qa
    with pytest.raises(ResourceError, match="qrels: UNREADABLE"):
        find_source(str(tmp_path))


@pytest.mark.parametrize("place", ["new.tsv", "sub/new.csv", "new.jsonl.gz"])
def test_a_table_that_would_become_data_is_not_written(data, place):
    (data / "sub").mkdir()
    what = "EXISTS: the tables of this folder are data, and this file would be read as a part of them"
    for named in (data, f"pairs:{data}"):
        with pytest.raises(SettingsError, match=what):
            check_file(data / place, [named])


def test_other_files_are(data, tmp_path):
    for place in (data / "page.html", data / "run.trec.gz", tmp_path / "new.tsv", data / "a/b/c.tsv"):
        check_file(place, [data])
    beir_folder(tmp_path / "beir")
    check_file(tmp_path / "beir/new.tsv", [tmp_path / "beir"])  # its files are known by their names
    with pytest.raises(SettingsError, match="would be read as a part"):
        check_file(tmp_path / "beir/qrels/new.tsv", [tmp_path / "beir"])
    for name in ("_new.csv", ".new.jsonl", "state.json"):
        check_file(data / name, [data])
    check_file(data / "run.tsv", [data], told=True)
    with pytest.raises(SettingsError, match="would be overwritten"):
        check_file(data / "train.csv", [data])


TABLES = {"docs.csv": "id,text\n1,a\n", "queries.tsv": "q\ta\n", "qrels.test.txt": "q 0 1 1\n"}
TREC = {"corpus.tsv": "1\ta\n", "topics.test.tsv": "q\ta\n", "qrels.test.txt": "q 0 1 1\n"}
MSMARCO = {"collection.tsv": "1\ta\n", "queries.dev.tsv": "q\ta\n", "qrels.dev.txt": "q 0 1 1\n"}


@pytest.mark.parametrize(
    ("contents", "file"),
    [
        (TABLES, "qrels.test.txt"),
        (TREC, "qrels.test.txt"),
        (MSMARCO, "qrels.dev.txt"),
        ({"corpus.tsv": "1\ta\n", "topics.txt": "q\ta\n", "qrels.txt": "q 0 1 1\n"}, "qrels.txt"),
        ({"train/x.jsonl": '{"query": "a", "positive": "b"}\n'}, "train/x.jsonl"),
    ],
)
def test_no_file_of_the_data_is_written_over(tmp_path, contents, file):
    samples.files(contents)(tmp_path / "data")
    find_source(str(tmp_path / "data"))
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for out, place in [("data", "data"), ("link", "data"), ("data", "link")]:
        for told in (False, True):
            with pytest.raises(SettingsError, match="this file is an input of the command, and would be over"):
                check_file(tmp_path / out / file, [tmp_path / place], told=told)


def test_a_run_and_a_text_beside_the_data_may_be_written_again(tmp_path):
    samples.files({**TABLES, "notes.txt": "x", "queries-run.txt": "q 0 1 1 1 x\n"})(tmp_path)
    write_json(sidecar_of(tmp_path / "queries-run.txt"), Manifest("run", {}, {}, {}, {}, 1).as_json())
    check_file(tmp_path / "queries-run.txt", [tmp_path], told=True)
    check_file(tmp_path / "notes.txt", [tmp_path])


# Formats of folders that `SPLITS` lacks.
ASKED_THEMSELVES = {"pairs", "corpus", "beir", "tables"}  # in would_read
NEVER_DETECTED = {
    "sentence-transformers",
    "flagembedding",
    "msmarco-docs",
}  # folders that are told as another format
# For each format that is detected, a folder of it, and a new file that would be read as a part of it.
DETECTED = {
    "beir": (samples.BEIR, "qrels/new.tsv"),
    "qa": (samples.QA, "new.jsonl"),
    "msmarco": (samples.MSMARCO, "new.query.txt"),
    "dpr": (samples.DPR, "new.json"),
    "trec": (samples.TOPICS, "topics.new.tsv"),
    "tevatron": (samples.TEVATRON, "new.jsonl"),
    "tables": ({"docs.csv": "id,text\n1,a\n", "queries.tsv": "q\ta\n", "qrels.tsv": "q\t1\n"}, "dev-qrels.txt"),
    "pairs": ({"train.csv": ROWS}, "new.csv"),
    "corpus": ({"texts.csv": "id,text\n1,a text\n2,another\n"}, "new.csv"),
}


def test_every_format_of_folders_stands_in_the_tables():
    """A new format must be in each: else nothing guards its folders."""
    told = {format for format, _ in (*SIGNS, *LATER_SIGNS)}
    assert set(FOLDERS) == ASKED_THEMSELVES | NEVER_DETECTED | set(SPLITS)
    assert set(SPLITS) == told - ASKED_THEMSELVES
    assert set(LATER_FIELDS) == {format for format, _ in LATER_SIGNS}
    assert set(FOLDERS) >= OF_FILES
    assert set(DETECTED) == set(FOLDERS) - NEVER_DETECTED


@pytest.mark.parametrize("format", DETECTED)
def test_a_file_that_would_become_data_of_any_format_is_known(tmp_path, format):
    contents, new = DETECTED[format]
    samples.files(contents)(tmp_path / "data")
    assert detect(str(tmp_path / "data")) == format
    assert would_read(tmp_path / "data", tmp_path / "data" / new)
    assert not would_read(tmp_path / "data", tmp_path / "data/page.html")


def test_an_export_does_not_become_training_data(data, tmp_path):
    pool = tmp_path / "pool"
    hn.mine(data, None, pool, sources=("random",), count=1, cache=tmp_path / "cache")
    with pytest.raises(SettingsError, match="would be read as a part of them"):
        hn.export_pool(pool, data, data / "mined.jsonl", format="sentence-transformers", cache=tmp_path / "cache")
    assert [path.name for path in data.iterdir()] == ["train.csv"]


def test_a_table_of_suspects_does_not_become_data_that_an_experiment_remembers(data, tmp_path):
    """An experiment remembers its collection, which names the files that it was imported from."""
    collection = import_collection(str(data), tmp_path / "collection")
    with pytest.raises(SettingsError, match="would be read as a part"):
        check_beside_sources(data / "suspects.tsv", collection)
    check_beside_sources(data.parent / "suspects.tsv", collection)  # the data are in a folder below
    check_beside_sources(data / "suspects.txt", collection)


def test_a_split_of_another_format_is_not_written(tmp_path):
    tevatron = tmp_path / "tevatron"
    tevatron.mkdir()
    row = {
        "query_id": "1",
        "query": "a",
        "positive_passages": [{"docid": "d", "text": "b"}],
        "negative_passages": [],
    }
    (tevatron / "train.jsonl").write_text(json.dumps(row) + "\n")
    assert detect(str(tevatron)) == "tevatron"
    with pytest.raises(SettingsError, match="would be read as a part"):
        check_file(tevatron / "mined.jsonl", [tevatron])
    check_file(tevatron / "mined.tsv", [tevatron])


def beir_folder(folder):
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "a text"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")


def test_a_packed_copy_of_a_split_is_no_obstacle(tmp_path):
    beir_folder(tmp_path / "beir")
    (tmp_path / "beir/qrels/train.tsv.zst").write_bytes(b"x")
    assert set(beir.records(tmp_path / "beir").inputs) == {"corpus.jsonl", "queries.jsonl", "qrels/train.tsv"}


@pytest.mark.parametrize("end", [".bz2", ".zst", ".GZ", ".xz"])
def test_a_split_in_a_file_that_is_not_unpacked_is_refused(tmp_path, end):
    beir_folder(tmp_path / "beir")
    (tmp_path / f"beir/qrels/test.tsv{end}").write_bytes(b"x")
    with pytest.raises(
        InputError, match=rf"qrels/test.tsv{end}: UNKNOWN_FORMAT: files packed as {end} are not read"
    ):
        beir.records(tmp_path / "beir")
    (tmp_path / "qa").mkdir()
    (tmp_path / "qa/corpus.tsv").write_text("id\ttext\ttitle\n1\tb\tc\n")
    (tmp_path / "qa/train.jsonl").write_text(json.dumps({"question": "a", "answers": ["b"]}) + "\n")
    (tmp_path / f"qa/dev.jsonl{end}").write_bytes(b"x")
    with pytest.raises(InputError, match=rf"dev.jsonl{end}: UNKNOWN_FORMAT"):
        qa.records(tmp_path / "qa")


def test_a_table_named_gz_in_capitals_is_refused(data):
    (data / "test.csv.GZ").write_bytes(b"x")
    with pytest.raises(InputError, match=r"test.csv.GZ: UNKNOWN_FORMAT: files packed as .GZ are not read"):
        pairs.records(data)


def test_a_teachers_scores_in_a_cell_are_those_of_a_list(tmp_path):
    fields = {"anchor": "a", "positive": "b", "negative": "c", "label": [9.5, 1.25]}
    cells = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    (tmp_path / "train.jsonl").write_text(json.dumps(fields) + "\n")
    (tmp_path / "train.tsv").write_text("\t".join(cells) + "\n" + "\t".join(cells.values()) + "\n")
    found = []
    for name in ("train.jsonl", "train.tsv"):
        source = pairs.records(tmp_path / name)
        assert source.negatives is not None
        (record,) = source.negatives()
        found.append(tuple(record)[:7])
    assert found[0] == found[1]
    assert found[0][5:] == ([9.5], [1.25])
    (tmp_path / "train.tsv").write_text("anchor\tpositive\tnegative\tlabel\na\tb\tc\t[1, x]\n")
    with pytest.raises(InputError, match="WRONG_TYPE: the scores in 'label'"):
        list(pairs.records(tmp_path / "train.tsv").negatives())
    (tmp_path / "train.tsv").write_text("anchor\tpositive\tnegative\tlabel\na\tb\tc\t[good]\n")
    (record,) = pairs.records(tmp_path / "train.tsv").negatives()  # a label in words is no score
    assert record.negative_scores == []


def test_columns_of_a_corpus_that_are_not_read_are_counted(tmp_path):
    (tmp_path / "corpus.csv").write_text("document_id,title,text\nd9,t,some text\n")
    made = import_collection(str(tmp_path / "corpus.csv"), tmp_path / "to")
    assert made.facts["ignored_fields"] == {"document_id": 1}

"""What scripts and cron jobs meet: no command writes to /dev, waits for a pipe, or takes a value for an option."""

import json
import os
import signal
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import hardneg as hn
from hardneg.api.inputs import check_file, check_folder, check_new
from hardneg.cli import without_anywhere
from hardneg.data.formats.trec import sidecar_of
from hardneg.data.judgements import read_judgements
from hardneg.errors import InputError, ResourceError, SettingsError
from hardneg.process.signals import stop_flag
from hardneg.storage import places
from hardneg.storage.artifacts import publish
from hardneg.storage.disk import check_writable, make_folder, publish_file, write_json
from hardneg.storage.lease import lease
from hardneg.storage.places import check_no_stream, check_readable, kernel_folder
from worlds.tiny_world import one_thread  # noqa: F401

NO_FILES = "NOT_WRITABLE: this leads into .*, which holds devices and streams, and no files"
STREAM = "NOT_FOUND: this is a stream and not a file"


@pytest.fixture
def dev(tmp_path, monkeypatch):
    """A folder that stands for /dev; its stdout is a link to a file, as the shell makes one by ``> o``."""
    folder = tmp_path / "dev"
    (folder / "shm").mkdir(parents=True)
    (tmp_path / "o").touch()
    (folder / "stdout").symlink_to(tmp_path / "o")
    (tmp_path / "link").symlink_to("dev/stdout")
    (tmp_path / "folder").symlink_to(folder)
    monkeypatch.setattr(places, "KERNEL", (str(folder),))
    monkeypatch.setattr(places, "SHARED_MEMORY", str(folder / "shm"))
    return folder


@contextmanager
def pipe():
    """A pipe that ends at once, as a path: who reads it does not wait."""
    reads, writes = os.pipe()
    os.close(writes)
    yield Path(f"/dev/fd/{reads}")
    os.close(reads)


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize("name", ["dev/stdout", "link", "folder/stdout", "dev/new", "folder/new", "dev/fd/3"])
def test_no_output_takes_a_place_in_the_folders_of_the_kernel(tmp_path, dev, name):
    place = tmp_path / name
    writers = [
        lambda: write_json(place, 1),
        lambda: publish(place, "thing", replace=True).__enter__(),
        lambda: publish_file(place).__enter__(),
        *(lambda check=check: check(place) for check in (check_writable, check_folder, check_file, check_new)),
    ]
    for write in writers:
        with pytest.raises(ResourceError, match=NO_FILES) as raised:
            write()
        assert raised.value.status == 5
    assert sorted(path.name for path in dev.iterdir()) == ["shm", "stdout"]
    assert os.readlink(dev / "stdout") == str(tmp_path / "o")
    assert os.readlink(tmp_path / "link") == "dev/stdout"
    assert (tmp_path / "o").read_bytes() == b""


def test_no_folder_is_made_in_the_folders_of_the_kernel(dev):
    for make in (make_folder, lambda place: lease(place).__enter__()):
        with pytest.raises(ResourceError, match=NO_FILES):
            make(dev / "experiment")
    assert not (dev / "experiment").exists()


def test_files_may_be_kept_in_shared_memory(dev):
    write_json(dev / "shm/deep/results.json", 1)
    assert json.loads((dev / "shm/deep/results.json").read_text()) == 1


@pytest.mark.parametrize(
    "place", ["/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1", "/dev/x/../stdin"]
)
def test_streams_of_the_system_are_known(place, tmp_path):
    assert kernel_folder(Path(place)) in ("/dev", "/proc")
    with open(tmp_path / "o", "wb") as stream:  # a redirected stream leads to a plain file
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{stream.fileno()}")
        with pytest.raises(ResourceError, match=NO_FILES):
            check_no_stream(tmp_path / "link")
        assert os.path.samefile(tmp_path / "link", tmp_path / "o")
    assert kernel_folder(tmp_path / "o") is kernel_folder(Path("/dev/shm/run.trec")) is None


def test_a_link_is_followed_before_the_way_goes_up(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/dev/shm")
    monkeypatch.chdir(tmp_path)
    for place in ("link/../null", "link/../x.trec", "link/..", tmp_path / "link/../stdout"):
        assert kernel_folder(Path(place)) == "/dev", place
    for place in ("link/x.trec", "link", ".", "..", "x/../y"):
        assert kernel_folder(Path(place)) is None, place


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert kernel_folder(tmp_path / "a") is None


def test_commands_refuse_streams_as_outputs_before_any_work(world, dev, hardneg):
    data = ("--data", world.collection.path)
    for words in (
        ("search", *data, "--bm25", "--out"),
        ("encode", *data, "--model", world.model, "--out"),
        ("mine", *data, "--sources", "bm25", "--out"),
        ("evaluate", "nowhere", *data, "--per-query"),
        ("audit", "nowhere", *data, "--page"),
        ("export", "nowhere", *data, "--format", "dpr", "--out"),
        ("train", "warmup", *data, "--model", world.model, "--out"),
        ("diagnose", "nowhere", "--out"),
    ):
        status, out, err = hardneg(*words, dev / "stdout")
        assert (status, out, err.count("NOT_WRITABLE: this leads into")) == (5, "", 1), (words, err)
        status, out, err = hardneg(*words, "-")
        assert (status, out, err.count("BAD_SETTING: the output is -, which")) == (2, "", 1), (words, err)
    assert (dev / "stdout").is_symlink()
    assert not Path("-").exists()


def test_a_file_of_somebody_else_is_not_taken_for_the_manifest_of_a_run(world, tmp_path):
    run = tmp_path / "u.trec"
    sidecar_of(run).write_text('{"my": "own file"}')
    with pytest.raises(
        SettingsError, match=r"u\.trec\.manifest\.json: EXISTS: a run's manifest would take the place"
    ):
        hn.search_split(world.collection, run, bm25=True, k=3)
    assert [path.name for path in tmp_path.glob("u*")] == [sidecar_of(run).name]
    assert sidecar_of(run).read_text() == '{"my": "own file"}'
    sidecar_of(run).unlink()
    for _ in range(2):
        hn.search_split(world.collection, run, bm25=True, k=3)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_no_file_of_a_model_is_written_over(tmp_path, name):
    model = tmp_path / "model"
    model.mkdir()
    for one in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / one).write_text(one)
    with pytest.raises(SettingsError, match=r"EXISTS: this file is a part of .*model, and would be lost"):
        check_file(model / name, told=True)
    assert (model / name).read_text() == name
    for own in ("test.trec", "run.txt", "per_query.json", "hardneg-run.json", "notes.bin"):  # which no model has
        (model / own).touch()
        check_file(model / own)


def test_a_damaged_manifest_of_a_run_is_made_again(world, tmp_path, hardneg):
    run = tmp_path / "r.trec"
    search = ("search", "--data", world.collection.path, "--bm25", "--k", 3, "--out", run)
    assert hardneg(*search)[0] == 0
    whole = sidecar_of(run).read_bytes()
    for damaged in (whole.replace(b'"hits"', b'"hitz"'), whole[:-40], whole[len(whole) // 2 :], b""):
        assert damaged != whole
        sidecar_of(run).write_bytes(damaged)
        status, _, err = hardneg(*search)
        assert status == 0, err
        assert sidecar_of(run).read_bytes() == whole


# ---------------------------------------------------------------- inputs


def test_a_stream_is_no_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    there = socket.socket(socket.AF_UNIX)
    there.bind(str(tmp_path / "socket"))
    for place in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/null"), str(tmp_path / "pipe")):
        with pytest.raises(InputError, match=STREAM):
            check_readable(place)
    there.close()
    with pytest.raises(InputError, match="NOT_FOUND: - stands for no stream here"):
        check_readable("-")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "pipe/below"):
        check_readable(place)


def test_nobody_waits_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    said = []

    def read():
        with pytest.raises(InputError, match=STREAM) as raised:
            read_judgements(tmp_path / "pipe")
        said.append(raised.value.code)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert said == ["NOT_FOUND"]


def test_commands_refuse_pipes_as_inputs(world, tmp_path, hardneg):
    data = ("--data", world.collection.path)
    hn.search_split(world.collection, tmp_path / "b.trec", bm25=True, k=3)
    mine = ("mine", *data, "--out", tmp_path / "pool", "--sources")
    with pipe() as stream:
        for words in (
            ("evaluate", stream, *data),
            ("evaluate", tmp_path / "b.trec", "--qrels", stream),
            ("evaluate", tmp_path / "b.trec", *data, "--judgements", stream),
            ("compare", stream, tmp_path / "b.trec", *data),
            ("fuse", stream, tmp_path / "b.trec", "--out", tmp_path / "f.trec"),
            ("rerank", "--run", stream, "--ranker", "nowhere", *data, "--out", tmp_path / "f.trec"),
            (*mine, "file", "--file", stream),
            (*mine, "bm25", "--judgements", stream),
            ("inspect", stream),
            ("audit", stream),
            ("verify", stream),
            ("train", "star", *data, "--model", world.model, "--out", tmp_path / "exp", "--judgements", stream),
        ):
            status, out, err = hardneg(*words)
            assert (status, out, err.count("\n"), err.count(STREAM)) == (3, "", 1, 1), (words, err)
            assert str(stream) in err
    status, _, err = hardneg("evaluate", "-", *data)
    assert (status, err) == (3, "-: NOT_FOUND: - stands for no stream here; give the path of a file\n")


def test_what_python_cannot_seek_in_has_a_reason(tmp_path, monkeypatch):
    from hardneg.data.formats import lines

    monkeypatch.setattr(lines, "check_readable", lambda path: None)
    with pipe() as stream, pytest.raises(ResourceError, match="UNREADABLE: cannot read") as raised:
        list(lines.read_chunks(stream))
    assert "None" not in str(raised.value)


def test_verify_goes_on_where_a_place_is_missing(world, tmp_path, hardneg):
    run, missing = tmp_path / "a.trec", tmp_path / "nosuch"
    hn.search_split(world.collection, run, bm25=True, k=3)
    for words in ((run, missing), (missing, run)):
        status, out, err = hardneg("verify", *words, "--json")
        report = json.loads(out)
        assert (status, err.count("\n"), report["whole"]) == (3, 1, False)
        assert [one["path"] for one in report["checked"]] == [str(run)]
        assert [(one["path"], one["code"]) for one in report["faults"]] == [(str(missing), "NOT_FOUND")]
    assert "1 checked, all whole; 1 not there, or nothing to verify\n" in hardneg("verify", missing, run)[1]
    run.write_text("")
    status, out, err = hardneg("verify", missing, run)
    assert (status, err.count("\n"), "1 checked, 1 damaged" in out) == (4, 2, True)


# ---------------------------------------------------------------- options that stand anywhere


@pytest.mark.parametrize(
    ("words", "left", "taken"),
    [
        ("search --query -q --json --k 1", "search --query -q --json --k 1", ""),
        ("search -q --query --quiet --json --debug", "search --query --quiet --json", "-q --debug"),
        ("search --query=--debug --quiet", "search --query=--debug", "--quiet"),
        ("--debug train ance --preset -q -q", "train ance --preset -q", "--debug -q"),
        ("evaluate -q -- --debug -q", "evaluate -- --debug -q", "-q"),
        ("nosuch -q --query -q", "nosuch --query", "-q"),
        ("search --json -q", "search --json", "-q"),
        ("search --query", "search --query", ""),
    ],
)
def test_an_option_that_stands_anywhere_is_no_value_of_another(words, left, taken):
    assert without_anywhere(words.split()) == (left.split(), set(taken.split()))


def test_what_looks_like_an_option_can_be_searched_for(world, hardneg):
    place = ("search", "--data", world.collection.path, "--bm25", "--json", "--k", "1")
    for query in ("-q", "--debug", "--quiet"):
        status, out, err = hardneg(*place, "--query", query)
        assert (status, type(json.loads(out))) == (0, list), err


def test_who_keeps_nothing_is_not_told_that_something_was_kept(hardneg, monkeypatch):
    def stopped(**given):
        raise KeyboardInterrupt

    monkeypatch.setattr(stop_flag, "heard", None)
    monkeypatch.setattr("hardneg.cli.commands", lambda app: stopped)
    assert hardneg("evaluate", "run")[::2] == (75, "STOPPED: stopped by a signal; run the same command again\n")
    monkeypatch.setattr(stop_flag, "heard", signal.SIGTERM)  # training, stopped at once by a second signal
    assert hardneg("train", "star")[2].endswith("run the same command again; it goes on from what is kept\n")


def test_mining_says_how_to_look_at_its_pool(world, tmp_path, hardneg):
    data, pool = world.collection.path, tmp_path / "pool"
    mine = ("mine", "--data", data, "--sources", "bm25", "--count", "3")
    assert hardneg(*mine, "--out", pool)[1].splitlines()[-1] == f"more: hardneg inspect {pool} --data {data}"
    other = pool.with_name("a pool")
    assert f"more: hardneg inspect '{other}' --data" in hardneg(*mine, "--out", other)[1]
    assert hardneg("inspect", pool, "--data", data)[0] == 0
    assert json.loads(hardneg(*mine, "--out", tmp_path / "second", "--json")[1])["pool"] == str(
        tmp_path / "second"
    )

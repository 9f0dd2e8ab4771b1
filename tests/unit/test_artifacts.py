"""Artefacts are whole or absent: published, replaced, refused by the system."""

import contextlib
import errno
import json
import os
import resource
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from faults.injected import dead_pid, fate, fault_of, temporaries, tree
from faults.small_artefact import KIND, make, text_of
from hardneg.errors import ArtifactError, ResourceError
from hardneg.storage import disk
from hardneg.storage.artifacts import (
    MANIFEST,
    check_writable,
    digest_file,
    digest_json,
    is_published,
    lease,
    load_array,
    open_artifact,
    publish,
    read_json,
    read_manifest,
    remove,
    verify,
    write_json,
)

pytestmark = pytest.mark.usefixtures("flushes")


# ---------------------------------------------------------------- whole


def test_what_is_published_is_read_back(tmp_path):
    path = make(tmp_path / "deep/er/pool")
    manifest = open_artifact(path, KIND)
    assert manifest == verify(path) == read_manifest(path)
    assert (manifest.kind, manifest.settings, manifest.inputs) == (KIND, {"k": 10}, {"collection": "c0ffee"})
    assert manifest.facts == {"rows": 5}
    assert set(manifest.files) == {"rows.npy", "texts/words.json"}
    for name, (size, sha) in manifest.files.items():
        assert size == (path / name).stat().st_size
        assert sha == digest_file(path / name)
    assert load_array(path / "rows.npy").tolist() == [0, 1, 2, 3, 4]
    assert (path / "texts/words.json").read_bytes() == '{\n "größe": 1,\n "text": "one"\n}\n'.encode()
    assert temporaries(tmp_path) == []


def test_a_manifest_says_what_the_formats_promise(tmp_path):
    raw = json.loads((make(tmp_path / "pool") / MANIFEST).read_bytes())
    assert raw == {
        "format_version": 1,
        "kind": "pool",
        "settings": {"k": 10},
        "inputs": {"collection": "c0ffee"},
        "facts": {"rows": 5},
        "files": {
            "rows.npy": {"bytes": 148, "sha256": digest_file(tmp_path / "pool/rows.npy")},
            "texts/words.json": {"bytes": 34, "sha256": digest_file(tmp_path / "pool/texts/words.json")},
        },
        "digest": digest_json({name: value for name, value in raw.items() if name != "digest"}),
    }


def test_a_place_may_be_given_as_text(tmp_path):
    assert text_of(Path(make(str(tmp_path / "pool")))) == "one"
    write_json(str(tmp_path / "a.json"), 1)
    assert read_json(str(tmp_path / "a.json")) == 1


def test_a_fault_in_the_block_leaves_nothing(tmp_path):
    def work(fault):
        with publish(tmp_path / "pool", KIND) as draft:
            draft.json("a.json", 1)
            assert temporaries(tmp_path) != []
            raise fault

    for fault in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(fault):
            work(fault)
        assert list(tmp_path.iterdir()) == []


def test_a_fault_in_the_block_leaves_the_old_artefact(tmp_path):
    make(tmp_path / "pool")
    before = tree(tmp_path)
    with pytest.raises(ZeroDivisionError), publish(tmp_path / "pool", KIND, replace=True) as draft:
        draft.json("texts/words.json", 2 / 0)
    assert tree(tmp_path) == before


def test_nothing_is_seen_before_the_block_ends(tmp_path):
    with publish(tmp_path / "pool", KIND) as draft:
        draft.json("a.json", 1)
        assert not (tmp_path / "pool").exists()
        assert not is_published(tmp_path / "pool")
    assert is_published(tmp_path / "pool", KIND)


def publish_what_is_deleted(path, more):
    with publish(path, KIND) as draft:
        draft.json("a.json", 1)
        shutil.rmtree(draft.path)
        for name in more:
            draft.json(name, 2)


@pytest.mark.parametrize("more", [[], ["b/c.json"]], ids=["before the manifest", "between two files"])
def test_what_was_deleted_while_it_was_made_is_not_published(tmp_path, more):
    with pytest.raises(ResourceError, match="pool: NOT_WRITABLE: somebody deleted what was being written"):
        publish_what_is_deleted(tmp_path / "pool", more)
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_written_last_and_everything_is_flushed_before_the_rename(tmp_path):
    with fate() as seen:
        make(tmp_path / "pool")
    draft = disk.temporary(tmp_path / "pool", disk.NEW).name
    done = [(action, Path(path).name) for action, path in seen.points]
    last = [place for place in done if place[0] in ("sync", "rename")][-7:]
    assert last[:3] == [("sync", "rows.npy"), ("sync", "words.json"), ("sync", MANIFEST)]
    assert last[3:] == [("sync", draft), ("sync", "texts"), ("rename", "pool"), ("sync", tmp_path.name)]
    assert done.index(("write", MANIFEST)) > done.index(("sync", "words.json"))
    assert max(i for i, (action, _) in enumerate(done) if action == "write") == done.index(("write", MANIFEST))


def test_files_are_flushed_by_fsync(tmp_path, monkeypatch):
    flushed, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(os.fstat(handle).st_ino), real(handle))[1])
    path = make(tmp_path / "pool")
    files = [*(p for p in path.rglob("*")), path, tmp_path]
    assert {p.stat().st_ino for p in files} == set(flushed)
    write_json(tmp_path / "a.json", 1)
    assert (tmp_path / "a.json").stat().st_ino in flushed


@pytest.mark.parametrize("folder", [True, False])
def test_threads_that_make_the_same_thing_at_once_do_not_meet(tmp_path, folder):
    together = threading.Barrier(2, timeout=20)

    def make_one(text):
        with publish(tmp_path / "pool", KIND, replace=True) if folder else disk.publish_file(tmp_path / "a") as it:
            together.wait()
            it.json("a.json", text) if folder else it.write(text.encode())
            together.wait()

    with ThreadPoolExecutor() as threads:
        list(threads.map(make_one, ["one", "two"]))
    if folder:
        verify(tmp_path / "pool")
    assert (tmp_path / ("pool/a.json" if folder else "a")).read_text().strip('"\n') in ("one", "two")
    assert temporaries(tmp_path) == []


def test_what_a_dead_thread_left_is_swept(tmp_path):
    def leave():
        disk.temporary(tmp_path / "pool", disk.NEW).mkdir()

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert len(temporaries(tmp_path)) == 1
    make(tmp_path / "pool")
    assert temporaries(tmp_path) == []


# ---------------------------------------------------------------- replacing


def test_nothing_is_replaced_unless_asked(tmp_path):
    path = make(tmp_path / "pool")
    before = tree(path)
    with pytest.raises(ArtifactError) as raised:
        make(path, "two")
    assert (raised.value.code, raised.value.status) == ("EXISTS", 2)
    assert tree(path) == before
    assert temporaries(tmp_path) == []
    assert text_of(make(path, "two", replace=True)) == "two"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("old", ["file", "link", "dangling"])
def test_a_file_or_link_is_replaced_without_touching_what_it_points_to(tmp_path, old):
    target = tmp_path / "target"
    if old == "file":
        (tmp_path / "pool").write_text("old")
    else:
        if old == "link":
            make(target, "behind the link")
        (tmp_path / "pool").symlink_to(target)
    began = []
    with pytest.raises(ArtifactError, match="EXISTS"), publish(tmp_path / "pool", KIND):
        began.append("it is found before anything is made")
    assert not began
    assert text_of(make(tmp_path / "pool", replace=True)) == "one"
    assert old != "link" or text_of(target) == "behind the link"
    assert temporaries(tmp_path) == []


def test_the_folder_in_which_a_command_runs_can_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(make(tmp_path / "pool"))
    make(Path("."), "two", replace=True)
    assert text_of(tmp_path / "pool") == "two"
    assert temporaries(tmp_path) == []


def test_a_name_too_long_for_that_of_a_draft_is_refused_before_anything_is_made(tmp_path):
    long = tmp_path / ("a" * 240)
    for refuse in (check_writable, make):
        with pytest.raises(ResourceError, match=r"NOT_WRITABLE: the name is \d+ bytes too long"):
            refuse(long)
    assert list(tmp_path.iterdir()) == []


def test_an_old_artefact_that_is_half_deleted_is_never_put_back(tmp_path, monkeypatch):
    path, killed = make(tmp_path / "pool"), KeyboardInterrupt

    def watch(action, place, data):
        if action == "remove" and place.name == MANIFEST:  # one file of the old artefact is gone already
            raise killed

    monkeypatch.setattr(disk, "watch", watch)
    with pytest.raises(killed):
        make(path, "two", replace=True)
    monkeypatch.setattr(disk, "watch", None)
    (left,) = temporaries(tmp_path)
    left, dead = tmp_path / left, f"-{dead_pid()}@"
    left.rename(left.with_name(left.name.replace(f"-{os.getpid()}@", dead)))
    remove(path)
    assert text_of(make(path, "three")) == "three"
    assert temporaries(tmp_path) == []


def test_two_processes_may_delete_the_same_leftover(tmp_path, monkeypatch):
    left = tmp_path / f"{disk.TEMPORARY}gone-other-{dead_pid()}@{socket.gethostname()}"
    for name in ("a", "b/c", "d"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_text("x")

    def watch(action, place, data):  # the other one is always a little earlier
        if action == "remove" and left in place.parents and place.is_file():
            place.unlink()

    monkeypatch.setattr(disk, "watch", watch)
    write_json(tmp_path / "file.json", 1)
    assert temporaries(tmp_path) == []


def test_what_is_left_of_something_else_and_cannot_be_deleted_refuses_nothing(tmp_path, monkeypatch):
    left = tmp_path / f"{disk.TEMPORARY}gone-other-{dead_pid()}@{socket.gethostname()}"
    left.write_text("x")

    def watch(action, place, data):
        if action == "remove" and place == left:
            raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(disk, "watch", watch)
    write_json(tmp_path / "file.json", 1)
    assert read_json(tmp_path / "file.json") == 1
    assert temporaries(tmp_path) == [left.name]


# ---------------------------------------------------------------- refused by the system


def refused(folder, at, kind):
    """Publish at a place where an old artefact stands; what was refused, or None."""
    make(folder / "pool", "old")
    with fate(at, kind) as seen:
        fault = fault_of(lambda: make(folder / "pool", "new", replace=True))
    if fault is None:
        assert len(seen.points) <= at
        return None
    assert (fault.status, fault.path) == (5, folder / "pool")
    assert fault.code == {"eio": "IO_ERROR"}.get(kind, "DISK_FULL")
    return seen.points[at][0]


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
def test_refused_at_any_point_an_artefact_stays_as_it_was(tmp_path, kind):
    make(tmp_path / "pool", "old")
    before, actions, folder = tree(tmp_path), set(), tmp_path / "0"
    while action := refused(folder, int(folder.name), kind):
        actions.add(action)
        if action == "remove":  # the old one is on its way out
            assert text_of(folder / "pool") == "new"
        else:
            assert tree(folder) == before
            assert [p.name for p in folder.iterdir()] == ["pool"]
        assert text_of(make(folder / "pool", "new", replace=True)) == "new"  # the corrected command succeeds
        assert temporaries(folder) == []
        folder = tmp_path / str(int(folder.name) + 1)
    assert actions == {"mkdir", "open", "write", "sync", "rename", "remove"}


def test_refused_at_any_point_a_first_artefact_is_absent(tmp_path):
    for at in range(1000):
        with fate(at) as seen:
            fault = fault_of(lambda: make(tmp_path / "deep/pool"))
        if fault is None:
            break
        assert fault.code == "IO_ERROR"
        assert [p for p in tmp_path.rglob("*") if p.name != "deep"] == []
    assert at == len(seen.points) > 10


def test_another_artefact_that_comes_first_stays(tmp_path):
    with (
        ThreadPoolExecutor(1) as another,  # this thread would take its own draft for one of a dead process
        pytest.raises(ArtifactError, match="EXISTS"),
        publish(tmp_path / "pool", KIND),
    ):
        another.submit(make, tmp_path / "pool", "theirs").result()
    assert text_of(tmp_path / "pool") == "theirs"
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize(
    "moment",
    [
        lambda place, to: to.name.startswith(".tmp-old"),  # ours is about to move the old one aside
        lambda place, to: to == place,  # the old one is aside: ours is about to come
    ],
)
@pytest.mark.parametrize("ends", ["publishes", "only moved it aside"])
def test_processes_that_replace_at_the_same_moment_are_both_done(tmp_path, monkeypatch, moment, ends):
    place, theirs, came = make(tmp_path / "pool", "old"), make(tmp_path / "elsewhere", "theirs"), []

    def other(action, to, data):
        """Another process, which replaces at the same moment: the old one is aside, its own is there or is not."""
        if action == "rename" and not came and moment(place, to):
            came.append(to)
            if place.exists():
                os.rename(place, tmp_path / "theirs aside")
            if ends == "publishes":
                os.rename(theirs, place)

    monkeypatch.setattr(disk, "watch", other)
    assert text_of(make(place, "new", replace=True)) == "new"
    assert len(came) == 1
    verify(place)
    assert temporaries(tmp_path) == []


def test_two_that_come_first_at_the_same_moment_clash(tmp_path, monkeypatch):
    theirs = make(tmp_path / "elsewhere", "theirs")

    def other(action, to, data):
        if action == "rename" and to == tmp_path / "pool":
            os.rename(theirs, to)

    monkeypatch.setattr(disk, "watch", other)
    with pytest.raises(ArtifactError, match="EXISTS"):
        make(tmp_path / "pool", "ours")
    assert text_of(tmp_path / "pool") == "theirs"
    assert temporaries(tmp_path) == []


@contextlib.contextmanager
def largest_file(size):
    """No file of this process may grow beyond ``size`` bytes: a full disk, made by the system itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_bytes(draft):
    (draft / "big").write_bytes(bytes(100_000))


def write_array(draft):
    draft.array("big.npy", np.zeros(100_000))


def write_weights(draft):
    from safetensors.numpy import save_file

    save_file({"big": np.zeros(100_000)}, draft / "big.safetensors")


@pytest.mark.parametrize("write", [write_bytes, write_array, write_weights])
def test_a_write_that_really_falls_short_is_told_whichever_library_writes(tmp_path, write):
    make(tmp_path / "pool", "old")
    with (
        pytest.raises(ResourceError) as raised,
        publish(tmp_path / "pool", KIND, replace=True) as draft,
        largest_file(8192),
    ):
        write(draft)
    assert raised.value.status == 5
    assert text_of(tmp_path / "pool") == "old"
    assert temporaries(tmp_path) == []


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system that refuses even root")
def test_a_place_that_refuses_is_found_before_any_computing():
    for work in (
        lambda: check_writable(Path("/sys/kernel/hardneg/pool")),
        lambda: make(Path("/sys/kernel/hardneg/pool")),
        lambda: write_json(Path("/sys/kernel/hardneg.json"), 1),
        lambda: contextlib.ExitStack().enter_context(lease(Path("/sys/kernel/hardneg"))),
    ):
        with pytest.raises(ResourceError, match=r"^/sys/kernel/hardneg.*: NOT_WRITABLE: "):
            work()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system in which nobody makes files")
def test_a_place_of_the_system_is_named_itself():
    with pytest.raises(ResourceError, match=r"^/proc/pool: NOT_WRITABLE: "):
        check_writable(Path("/proc/pool"))


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    below = tmp_path / "file/pool"
    for work in (lambda: make(below), lambda: write_json(below, 1), lambda: lease(tmp_path / "file").__enter__()):
        with pytest.raises(ResourceError, match="NOT_WRITABLE"):
            work()
    assert (tmp_path / "file").read_text() == "mine"

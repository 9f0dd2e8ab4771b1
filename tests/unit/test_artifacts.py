"""Artefacts are whole or absent: faults, kills at every step, full disks, flipped bits, pickles and leases."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from faults import dead_pid, fate, fault_of, flip, run_python, settle, temporaries, tree
from hardneg import disk
from hardneg.artifacts import (
    MANIFEST,
    TEMPORARY,
    Manifest,
    check_writable,
    digest_file,
    digest_json,
    is_current,
    is_published,
    lease,
    load_array,
    open_artifact,
    publish,
    read_json,
    read_manifest,
    verify,
    write_json,
)
from hardneg.errors import ArtifactError, ResourceError

KIND = "pool"


def make(path, text="one", **options):
    """A small artefact of two files, one in a subfolder."""
    with publish(path, KIND, settings={"k": 10}, inputs={"collection": "c0ffee"}, **options) as draft:
        draft.json("texts/words.json", {"text": text, "größe": 1})
        draft.array("rows.npy", np.arange(5, dtype=np.int32))
        draft.facts["rows"] = 5
    return path


def text_of(path):
    open_artifact(path, KIND)
    return read_json(path / "texts/words.json")["text"]


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


# ---------------------------------------------------------------- absent: killed at any step


CRASH = """
import os, sys
from pathlib import Path
from hardneg import artifacts

folder, kind = Path(sys.argv[1]), sys.argv[2]
path = folder / "place"

def write(text):
    if kind == "file":
        artifacts.write_json(path, text)
    else:
        with artifacts.publish(path, "pool", replace=True) as draft:
            draft.json("a/text.json", text)
            draft.json("b.json", text)

def read():
    if kind == "file":
        return artifacts.read_json(path)
    artifacts.open_artifact(path, "pool")
    return artifacts.read_json(path / "a/text.json")

def die_at(steps):
    left = [steps]
    def wrapped(real):
        def call(*arguments, **options):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return real(*arguments, **options)
        return call
    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        setattr(os, name, wrapped(getattr(os, name)))

def survivors():
    return [p.name for p in folder.iterdir() if p != path]

def child(steps):
    pid = os.fork()
    if pid == 0:
        die_at(steps)
        write("new")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for old in (False, True):
    steps = 0
    while True:
        if old:
            write("old")
        status = child(steps)
        seen = read() if path.exists() else None
        assert seen in ("old", "new", None), (old, steps, seen)
        assert len(survivors()) <= 2
        try:  # whatever comes next at this place sweeps, even if it fails
            with artifacts.publish_file(path) if kind == "file" else artifacts.publish(path, "x", replace=True):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert survivors() == [], (old, steps, survivors())
        assert path.exists() or not old, (old, steps)
        after = read() if path.exists() else None
        assert after in ("old", "new", None) and not (seen == "new" and after == "old"), (old, steps, seen, after)
        assert status in (0, 9)
        if status == 0:
            assert after == "new"
            break
        steps += 1
        if path.is_dir():
            artifacts.remove(path)
        path.unlink(missing_ok=True)
    print(steps)
    artifacts.remove(path)
"""


@pytest.mark.parametrize(("kind", "least"), [("folder", 8), ("file", 2)])
def test_killed_at_any_step_it_is_whole_or_absent_and_the_next_publish_sweeps(tmp_path, kind, least):
    (tmp_path / "place").mkdir()  # the cache of digests, which a slow machine makes use of, stands elsewhere
    child = run_python(CRASH, tmp_path / "place", kind)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert all(int(steps) >= least for steps in out.split())  # that many places to die were tried
    assert len(out.split()) == 2


SLOW_WRITER = """
import sys, time
from pathlib import Path
from hardneg import artifacts
with artifacts.publish(Path(sys.argv[1]), "pool") as draft:
    draft.json("a.json", 1)
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_leaves_a_temporary_that_the_next_publish_sweeps(tmp_path):
    child = run_python(SLOW_WRITER, tmp_path / "pool")
    assert child.stdout.readline() == "writing\n"
    alive = temporaries(tmp_path)
    assert len(alive) == 1
    make(tmp_path / "other")
    make(tmp_path / "pool")  # while it lives, its draft is its own
    assert temporaries(tmp_path) == alive
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert temporaries(tmp_path) == alive
    make(tmp_path / "pool", "two", replace=True)
    assert temporaries(tmp_path) == []
    assert text_of(tmp_path / "pool") == "two"


def test_an_old_artefact_that_stepped_aside_for_one_that_never_came_is_put_back(tmp_path):
    path = make(tmp_path / "pool", "old")
    os.rename(path, tmp_path / f"{TEMPORARY}old-pool-{dead_pid()}@{socket.gethostname()}")
    with pytest.raises(ArtifactError, match="EXISTS"):
        make(path, "new")
    assert text_of(path) == "old"
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
    if old == "dangling":
        with pytest.raises(ResourceError, match="NOT_WRITABLE"):
            make(tmp_path / "pool", replace=True)
    else:
        assert text_of(make(tmp_path / "pool", replace=True)) == "one"
    assert old != "link" or text_of(target) == "behind the link"
    assert temporaries(tmp_path) == []


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
    with pytest.raises(ArtifactError, match="EXISTS"), publish(tmp_path / "pool", KIND):
        make(tmp_path / "pool", "theirs")
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


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    below = tmp_path / "file/pool"
    for work in (lambda: make(below), lambda: write_json(below, 1), lambda: lease(tmp_path / "file").__enter__()):
        with pytest.raises(ResourceError, match="NOT_WRITABLE"):
            work()
    assert (tmp_path / "file").read_text() == "mine"


# ---------------------------------------------------------------- verified before use


def damage(path, how):
    if how == "flipped":
        flip(path, len(path.read_bytes()) // 2, bit=3)
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "doubled":
        path.write_bytes(path.read_bytes() * 2)
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("name", ["rows.npy", "texts/words.json"])
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("flipped", "CORRUPT"),
        ("short", "WRONG_SIZE"),
        ("doubled", "WRONG_SIZE"),
        ("empty", "WRONG_SIZE"),
        ("gone", "MISSING_FILE"),
    ],
)
def test_damage_is_found_and_the_file_named(tmp_path, name, how, code):
    path = make(tmp_path / "pool")
    for file in path.rglob("*.*"):
        settle(file)
    open_artifact(path, KIND)  # its digests are remembered
    damage(path / name, how)
    for check in (lambda: open_artifact(path, KIND), lambda: verify(path)):
        with pytest.raises(ArtifactError) as raised:
            check()
        assert (raised.value.code, raised.value.status, raised.value.path) == (code, 4, path / name)
    with pytest.raises(ArtifactError, match=code):
        is_current(path, KIND, {"collection": "c0ffee"})


def test_a_flipped_bit_in_any_byte_of_a_file_is_found(tmp_path):
    path = make(tmp_path / "pool")
    for file in (path / "rows.npy", path / "texts/words.json"):
        whole = file.read_bytes()
        for position in range(len(whole)):
            flip(file, position, bit=position % 8)
            with pytest.raises(ArtifactError, match=f"{file.name}: CORRUPT: "):
                open_artifact(path, KIND)
            file.write_bytes(whole)
    open_artifact(path, KIND)


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_found(tmp_path):
    path = make(tmp_path / "pool")
    file = path / MANIFEST
    whole = file.read_bytes()
    for position in range(len(whole)):
        flip(file, position, bit=position % 8)
        with pytest.raises(ArtifactError) as raised:
            read_manifest(path)
        assert raised.value.code in ("CORRUPT", "BAD_MANIFEST")
        assert raised.value.path == file
        file.write_bytes(whole)
    read_manifest(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"kind": 3}', "[" * 100_000, "\0" * 600])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    path = make(tmp_path / "pool")
    (path / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json: BAD_MANIFEST: "):
        open_artifact(path, KIND)


def test_settings_that_are_no_table_are_refused(tmp_path):
    path = make(tmp_path / "pool")
    raw = json.loads((path / MANIFEST).read_bytes())
    (path / MANIFEST).write_text(json.dumps({**raw, "settings": None}))
    with pytest.raises(ArtifactError, match="BAD_MANIFEST"):
        open_artifact(path, KIND)


def test_a_folder_without_a_manifest_is_no_artefact(tmp_path):
    make(tmp_path / "pool")
    (tmp_path / "pool" / MANIFEST).unlink()
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "pool", tmp_path / "nowhere", tmp_path / "file"):
        assert not is_published(place)
        assert not is_current(place, KIND, {})
        with pytest.raises(ArtifactError) as raised:
            open_artifact(place, KIND)
        assert (raised.value.code, raised.value.status) == ("NO_MANIFEST", 4)


def test_only_verify_minds_a_file_too_many(tmp_path):
    path = make(tmp_path / "pool")
    (path / "texts/.notes").write_text("mine")
    open_artifact(path, KIND)
    with pytest.raises(ArtifactError) as raised:
        verify(path)
    assert (raised.value.code, raised.value.path) == ("EXTRA_FILE", path / "texts/.notes")


def test_another_kind_or_version_is_refused_with_both_values(tmp_path):
    path = make(tmp_path / "pool")
    with pytest.raises(ArtifactError, match="WRONG_KIND: this is a pool, not a run; give the path of a run"):
        open_artifact(path, "run")
    assert not is_published(path, "run")
    later = Manifest(KIND, format_version=2)
    write_json(path / MANIFEST, later.as_json())
    with pytest.raises(ArtifactError, match="FORMAT_VERSION: format version 2, this hardneg reads 1"):
        open_artifact(path, KIND)


def test_current_is_what_was_made_from_the_same(tmp_path):
    path = make(tmp_path / "pool")
    assert is_current(path, KIND, {"collection": "c0ffee"})
    assert not is_current(path, "run", {"collection": "c0ffee"})
    for inputs in ({}, {"collection": "other"}, {"collection": "c0ffee", "model": "m"}):
        assert not is_current(path, KIND, inputs)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_disk_that_cannot_be_read_is_no_bug_of_ours(tmp_path, monkeypatch, number):
    path = make(tmp_path / "pool")
    for name, check in (
        (MANIFEST, lambda: read_manifest(path)),
        ("rows.npy", lambda: verify(path)),
        ("texts/words.json", lambda: read_json(path / "texts/words.json")),
    ):
        with monkeypatch.context() as patch:
            refuse(patch, path / name, number)
            with pytest.raises(ResourceError) as raised:
                check()
        assert (raised.value.code, raised.value.status, raised.value.path) == ("UNREADABLE", 5, path / name)


def refuse(patch, path, number):
    """This file cannot be opened."""
    import builtins
    import io

    real = io.open

    def refusing(file, *arguments, **options):
        if str(file) == str(path):
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **options)

    patch.setattr(builtins, "open", refusing)
    patch.setattr(io, "open", refusing)


# ---------------------------------------------------------------- identity


def test_a_digest_knows_neither_time_nor_place_nor_machine(tmp_path, monkeypatch):
    one = make(tmp_path / "one")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    with publish(tmp_path / "deep/two", KIND, settings={"k": 10}, inputs={"collection": "c0ffee"}) as draft:
        draft.facts["rows"] = 5
        draft.array("rows.npy", np.arange(10, dtype=np.int32)[::2] // 2)  # the same values, laid out otherwise
        draft.json("texts/words.json", {"größe": 1, "text": "one"})
        settle(draft / "rows.npy")
    assert read_manifest(one).digest == read_manifest(tmp_path / "deep/two").digest
    assert tree(one) == tree(tmp_path / "deep/two")


def test_a_digest_knows_everything_else(tmp_path):
    whole = Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 2}, {"f": (3, "sha")})
    others = [
        Manifest("run", {"a": 1}, {"b": "x"}, {"c": 2}, {"f": (3, "sha")}),
        Manifest(KIND, {"a": 2}, {"b": "x"}, {"c": 2}, {"f": (3, "sha")}),
        Manifest(KIND, {"a": 1}, {"b": "y"}, {"c": 2}, {"f": (3, "sha")}),
        Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 3}, {"f": (3, "sha")}),
        Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 2}, {"f": (4, "sha")}),
        Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 2}, {"f": (3, "shb")}),
        Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 2}, {"g": (3, "sha")}),
        Manifest(KIND, {"a": 1}, {"b": "x"}, {"c": 2}, {"f": (3, "sha")}, 2),
    ]
    assert len({manifest.digest for manifest in [whole, *others]}) == len(others) + 1


def test_a_digest_remembered_wrongly_is_found_by_verify(tmp_path):
    path = make(tmp_path / "pool")
    settle(path / "rows.npy")
    open_artifact(path, KIND)
    flip(path / "rows.npy", 130)
    settle(path / "rows.npy")  # someone put the old time back
    open_artifact(path, KIND)
    with pytest.raises(ArtifactError, match=r"rows\.npy: CORRUPT: "):
        verify(path)

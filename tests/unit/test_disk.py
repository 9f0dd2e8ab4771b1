"""Files are whole or absent, leftovers of dead processes are deleted, and a refusal is one line."""

import ast
import contextlib
import errno
import itertools
import json
import os
import socket
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

import hardneg
from faults.injected import dead_pid, fate, fault_of, temporaries, tree
from hardneg.errors import InputError, ResourceError
from hardneg.storage import disk
from hardneg.storage.artifacts import is_published, publish
from hardneg.storage.disk import TEMPORARY, append_lines, check_writable, publish_file, remove, write_json
from hardneg.storage.os_errors import TOLD, disk_faults, require_space
from hardneg.storage.safe_read import as_written, read_json

pytestmark = pytest.mark.usefixtures("flushes")

FAULTS = [
    (errno.ENOSPC, "DISK_FULL"),
    (errno.EDQUOT, "DISK_FULL"),
    (errno.EROFS, "NOT_WRITABLE"),
    (errno.EACCES, "NOT_WRITABLE"),
    (errno.EPERM, "NOT_WRITABLE"),
    (errno.ENAMETOOLONG, "NOT_WRITABLE"),
    (errno.EXDEV, "NOT_WRITABLE"),  # a folder of a lower layer of an overlay, as in a container, cannot be renamed
    (errno.ENOSYS, "NOT_WRITABLE"),
    (errno.EIO, "IO_ERROR"),
]


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "deep/results.json"
    write_json(path, {"ä": 1.5})
    assert path.read_bytes() == '{\n "ä": 1.5\n}\n'.encode()
    with pytest.raises(ZeroDivisionError), publish_file(path) as stream:
        stream.write(b"%d" % (read_json(path)["ä"] / 0))
    assert read_json(path) == {"ä": 1.5}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, float("nan"))
    assert read_json(path) == {"ä": 1.5}
    write_json(path, 2)
    assert read_json(path) == 2
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_that_flushes_no_folders_is_told_once(tmp_path, monkeypatch, caplog, number):
    """So do folders that VirtualBox, CIFS and Docker share."""
    real = os.fsync

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(disk, "_unflushed", threading.Event())
    with caplog.at_level("WARNING"):
        write_json(tmp_path / "deep/a.json", 1)
        with publish(tmp_path / "pool", "negatives") as draft:
            draft.json("b.json", 2)
    assert read_json(tmp_path / "deep/a.json") == 1
    assert read_json(tmp_path / "pool/b.json") == 2
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}: this disk flushes no folders ({os.strerror(number)}): a power cut may ")


@pytest.mark.parametrize(("number", "folders"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_any_other_refusal_to_flush_is_a_fault(tmp_path, monkeypatch, number, folders):
    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode) == folders:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises((OSError, ResourceError)) as raised:
        write_json(tmp_path / "a.json", 1)
    assert os.strerror(number) in str(raised.value) or raised.value.code == "IO_ERROR"


def test_a_file_never_takes_the_place_of_a_folder_or_a_device(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "folder", tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ResourceError, match="NOT_WRITABLE: this is no plain file"):
            write_json(place, 1)
    assert (tmp_path / "folder").is_dir()
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), FAULTS, ids=lambda value: errno.errorcode.get(value, value))
def test_a_refusal_is_one_clear_line(tmp_path, number, code):
    with pytest.raises(ResourceError) as raised, disk_faults(tmp_path / "pool"):
        raise OSError(number, os.strerror(number))
    assert (raised.value.code, raised.value.status, raised.value.path) == (code, 5, tmp_path / "pool")
    if number not in TOLD:  # found when a file is opened or renamed, not while a library writes
        return
    with pytest.raises(ResourceError, match=code), disk_faults(tmp_path):  # as libraries in other languages put it
        raise RuntimeError(f"write error in index.faiss: 0 != 1 ({os.strerror(number)})")


@pytest.mark.parametrize("kind", ["eio", "short"])
def test_refused_at_any_point_a_file_is_the_old_or_the_new(tmp_path, kind):
    write_json(tmp_path / "a.json", "old")
    for at in range(100):
        with fate(at, kind) as seen:
            fault = fault_of(lambda: write_json(tmp_path / "a.json", "new"))
        if fault is None:
            break
        assert fault.path == tmp_path / "a.json"
        last = at == 4  # the folder could not be flushed after the rename
        assert tree(tmp_path) == {"a.json": b'"new"\n' if last else b'"old"\n'}
        write_json(tmp_path / "a.json", "old")
    assert [action for action, _ in seen.points] == ["open", "write", "sync", "rename", "sync"]


def test_a_fault_that_is_none_of_these_passes_unchanged(tmp_path):
    others = [
        FileNotFoundError(errno.ENOENT, "no such file"),
        OSError("odd"),
        ValueError("5 requested and 3 written"),
    ]
    for fault in (*others, InputError("NUL", "a", "b (os error 28)")):
        with pytest.raises(type(fault)) as raised, disk_faults(tmp_path):
            raise fault
        assert raised.value is fault


def test_a_full_disk_is_told_with_what_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 1234567})())
    with pytest.raises(ResourceError) as raised, disk_faults(tmp_path / "pool"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(raised.value) == (
        f"{tmp_path / 'pool'}: DISK_FULL: the disk is full: more is needed than the 1,234,567 bytes that are free;"
        " free some space and run the command again"
    )


def test_checking_a_place_leaves_nothing_there(tmp_path, monkeypatch):
    check_writable(tmp_path / "not/yet/there")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    check_writable(Path("relative/pool"))
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_processes_of_this_machine_left_at_this_place_is_swept(tmp_path):
    host, dead, live = socket.gethostname(), dead_pid(), os.getppid()
    kept = [
        f"{TEMPORARY}new-pool-{live}@{host}",  # at work
        f"{TEMPORARY}new-pool-{dead}@elsewhere",  # another machine's process cannot be asked
        f"{TEMPORARY}new-pool-{dead}@{host}+1",  # nor that of another container under the same name
        f"{TEMPORARY}new-pool-large-{dead}@{host}",  # of the place pool-large
        f"{TEMPORARY}new-pool-notes",
        "pool-2",
    ]
    gone = [
        f"{TEMPORARY}new-pool-{dead}@{host}",  # of an earlier version
        f"{TEMPORARY}new-pool-{dead}@{disk.machine()}",
        f"{TEMPORARY}new-pool-{os.getpid()}@{host}",
        f"{TEMPORARY}gone-other-{dead}@{host}",  # half deleted, whatever it was
    ]
    for name in kept + gone:
        (tmp_path / name).mkdir()
    (tmp_path / f"{TEMPORARY}new-pool-{dead}@{host}" / "half.npy").write_bytes(b"x")
    write_json(tmp_path / "pool", 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, "pool"])


@pytest.mark.skipif(not os.path.exists(disk.NAMESPACE), reason="this system has no namespaces")
def test_a_container_of_the_same_name_is_another_machine(tmp_path, monkeypatch):
    left = disk.temporary(tmp_path / "pool", disk.NEW)
    assert left.name.endswith(f"@{socket.gethostname()}+{os.stat(disk.NAMESPACE).st_ino}")
    left = left.with_name(left.name.replace(f"-{os.getpid()}@", f"-{dead_pid()}@"))
    left.mkdir()
    monkeypatch.setattr(disk, "NAMESPACE", str(tmp_path))
    write_json(tmp_path / "pool", 1)
    assert left.is_dir()
    monkeypatch.setattr(disk, "NAMESPACE", str(tmp_path / "not there"))  # a system without namespaces
    assert disk.temporary(tmp_path / "pool", disk.NEW).name.endswith(f"@{socket.gethostname()}")
    monkeypatch.undo()
    write_json(tmp_path / "pool", 2)
    assert not left.exists()


def test_an_artefact_that_stepped_aside_in_a_container_before_is_put_back(tmp_path):
    """The container was started again under its name; who holds the folder knows that nobody replaces anything."""
    aside = tmp_path / f"{TEMPORARY}old-resume-{dead_pid()}@{socket.gethostname()}+1"
    aside.mkdir()
    disk.sweep(tmp_path / "resume")
    assert aside.is_dir()
    disk.sweep_below(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["resume"]
    aside.mkdir()
    disk.sweep_below(tmp_path)  # something has taken its place
    assert aside.is_dir()


def test_a_place_whose_name_holds_special_characters_is_swept_too(tmp_path):
    leftover = tmp_path / f"{TEMPORARY}new-run[1].x*-{dead_pid()}@{socket.gethostname()}"
    leftover.write_bytes(b"half")
    write_json(tmp_path / "run[1].x*", 1)
    assert [p.name for p in tmp_path.iterdir()] == ["run[1].x*"]


# ---------------------------------------------------------------- lines


def test_lines_are_added_and_flushed(tmp_path):
    file = tmp_path / "rows.jsonl"
    with fate() as seen:
        append_lines(file, b"one\n")
        append_lines(file, b"two\nthree\n")
    assert file.read_bytes() == b"one\ntwo\nthree\n"
    assert [action for action, _ in seen.points] == ["open", "write", "sync"] * 2


def test_a_line_that_a_crash_tore_spoils_no_other(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"one\ntw")
    append_lines(file, b"three\n")
    assert file.read_bytes() == b"one\ntw\nthree\n"


@pytest.mark.parametrize("kind", ["eio", "enospc", "short"])
def test_refused_lines_leave_no_trace(tmp_path, kind):
    file = tmp_path / "rows.jsonl"
    append_lines(file, b"one\n")
    for at in range(3):
        with fate(at, kind), pytest.raises(ResourceError) as raised:
            append_lines(file, b"two and more\n")
        assert raised.value.path == file
        assert file.read_bytes() == b"one\n"


# ---------------------------------------------------------------- arrays, folders, deleting


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.zeros((0, 4), np.float16),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::2],
        np.array([True, False]),
        np.zeros(3, [("a", "<i4"), ("b", "<f8")]),
    ],
)
def test_an_array_is_written_as_numpy_would(tmp_path, values):
    with disk.create(tmp_path / "ours.npy") as stream:
        disk.write_array(stream, values)
    np.save(tmp_path / "numpys.npy", np.ascontiguousarray(values), allow_pickle=False)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpys.npy").read_bytes()


def test_the_names_of_new_folders_are_flushed(tmp_path):
    with fate() as seen:
        disk.make_folder(tmp_path / "a/b")
    places = [(action, Path(path).relative_to(tmp_path).as_posix()) for action, path in seen.points]
    assert places == [("mkdir", "a"), ("sync", "."), ("mkdir", "a/b"), ("sync", "a")]


def test_what_is_removed_is_gone_at_once_for_readers(tmp_path):
    (tmp_path / "pool/deep").mkdir(parents=True)
    (tmp_path / "pool/deep/a").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path / "pool")
    remove(tmp_path / "link")
    with fate() as seen:
        remove(tmp_path / "pool")
    assert [action for action, _ in seen.points] == ["rename", "remove", "remove", "remove"]
    remove(tmp_path / "pool")
    assert list(tmp_path.iterdir()) == []


FAULTS = {"eio": errno.EIO, "enospc": errno.ENOSPC}


def test_a_sidecar_goes_with_the_file_it_speaks_of(tmp_path):
    run, sidecar = tmp_path / "run", tmp_path / "run.manifest.json"
    for at in range(20):
        run.write_text("old")
        sidecar.write_text("of the old")
        with fate(at) as seen, contextlib.suppress(ResourceError), publish_file(run, sidecar=sidecar) as stream:
            stream.write(b"new")
        assert (run.read_text(), sidecar.exists()) in {("old", True), ("new", False)}
        if len(seen.points) <= at:
            break
    assert [action for action, _ in seen.points] == ["open", "write", "sync", "rename", "rename", "remove", "sync"]
    assert run.read_text() == "new"


@pytest.mark.parametrize("how", [*FAULTS, "lasting", "interrupt"])
@pytest.mark.parametrize("before", [True, False])
def test_a_file_and_its_own_sidecar_are_replaced_together(tmp_path, monkeypatch, how, before):
    run, sidecar = tmp_path / "run", tmp_path / "run.manifest.json"
    old, new = ("old", "of old") if before else (None, None), ("new", "of new")
    found = []
    for at in itertools.count():
        for path, text in zip((run, sidecar), old, strict=True):
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        seen = []

        def watch(action, path, data, seen=seen, at=at):
            seen.append(action)
            if len(seen) == at + 1 or (how == "lasting" and len(seen) > at + 1 and action != "remove"):
                raise KeyboardInterrupt if how == "interrupt" else OSError(FAULTS.get(how, errno.ENOSPC), "no")

        monkeypatch.setattr(disk, "watch", watch)
        with (
            contextlib.suppress(ResourceError, KeyboardInterrupt),
            publish_file(run, sidecar=sidecar, described=lambda draft: b"of " + draft.read_bytes()) as stream,
        ):
            stream.write(b"new")
        monkeypatch.setattr(disk, "watch", None)
        found.append(tuple(path.read_text() if path.exists() else None for path in (run, sidecar)))
        assert found[-1] in {old, new}, at
        if len(seen) <= at:
            break
        disk.sweep(run)
    assert found[-1] == new
    assert found.count(old) >= 6  # until both drafts are whole, nothing changes
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_signal_just_after_a_rename_leaves_a_file_with_its_own_sidecar(tmp_path, monkeypatch, at, before):
    run, sidecar = tmp_path / "run", tmp_path / "run.manifest.json"
    if before:
        run.write_text("old")
        sidecar.write_text("of old")
    rename, seen = os.rename, []

    def renamed(*places):
        rename(*places)
        seen.append(places)
        if len(seen) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", renamed)
    with (
        contextlib.suppress(KeyboardInterrupt),
        publish_file(run, sidecar=sidecar, described=lambda draft: b"of " + draft.read_bytes()) as stream,
    ):
        stream.write(b"new")
    monkeypatch.undo()
    found = [path.read_text() if path.exists() else None for path in (run, sidecar)]
    assert found == (["old", "of old"] if before and at == 1 else ["new", "of new"])
    assert temporaries(tmp_path) == []


def test_a_folder_in_the_place_of_a_sidecar_is_refused_before_anything_changes(tmp_path):
    run, sidecar = tmp_path / "run", tmp_path / "run.manifest.json"
    run.write_text("old")
    sidecar.mkdir()
    with (
        pytest.raises(ResourceError, match=r"run\.manifest\.json: NOT_WRITABLE: this is no plain file"),
        publish_file(run, sidecar=sidecar, described=lambda draft: b"of it"),
    ):
        raise AssertionError("the block is not entered")
    assert run.read_text() == "old"


# ---------------------------------------------------------------- room


def test_what_will_not_fit_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 1000})())
    require_space(tmp_path / "not/there", 1000)
    with pytest.raises(
        ResourceError, match="DISK_FULL: the disk is full: 1,001 bytes are needed, 1,000 are free;"
    ):
        require_space(tmp_path / "not/there", 1001)


def test_a_full_disk_is_told_with_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 10})())
    with (
        pytest.raises(ResourceError, match="4,096 bytes are needed, 10 are free"),
        disk_faults(tmp_path, needed=4096),
    ):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")


# ---------------------------------------------------------------- the only writer

WRITES = {"write_text", "write_bytes", "mkdir", "makedirs", "rename", "replace", "unlink", "rmtree", "fsync"} | {
    "truncate",
    "ftruncate",
    "pwrite",
    "symlink_to",
    "rmdir",
    "tofile",
}
OTHERS = {"storage/digests.py", "storage/lease.py"}  # a cache that may fail; locks and heartbeats


def writes_of(tree):
    """The calls of a module that change files."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        mode = [ast.unparse(argument) for argument in (*node.args[1:2], *(k.value for k in node.keywords))]
        if name == "open" and any(set("wax+") & set(text.strip("'")) for text in mode if text.startswith("'")):
            yield name
        owner, _, method = name.rpartition(".")
        if method in WRITES and (owner in ("os", "shutil") or method not in ("replace", "rename", "truncate")):
            yield name
        if name in ("np.save", "np.savez"):
            yield name


def test_no_other_module_changes_files():
    source = Path(hardneg.__file__).parent
    found = {
        path.relative_to(source).as_posix(): sorted(set(writes_of(ast.parse(path.read_text()))))
        for path in source.rglob("*.py")
    }
    assert {name for name, calls in found.items() if calls} == {"storage/disk.py", *OTHERS}
    assert {"os.rename", "os.fsync", "path.unlink"} <= set(found["storage/disk.py"])


def test_a_cache_that_is_closed_to_this_user_is_told_with_how_to_choose_another(tmp_path, monkeypatch):
    """As in a container whose user is not the owner of its home folder: nobody has chosen that place."""
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    said = f"set HARDNEG_CACHE to a folder of yours: this is the cache, {tmp_path / 'cache'}"
    place = tmp_path / "cache" / "bm25" / "one"

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    with (
        pytest.raises(ResourceError, match=rf"one: NOT_WRITABLE: .* \(Permission denied\); {said}"),
        disk_faults(place),
    ):
        refused()
    mine = tmp_path / "mine"
    with pytest.raises(ResourceError, match=r"mine: NOT_WRITABLE: .*; choose another place"), disk_faults(mine):
        refused()
    monkeypatch.setattr(Path, "is_file", refused)
    with pytest.raises(ResourceError, match=rf"one: UNREADABLE: .* \(Permission denied\); {said}"):
        is_published(place)


@pytest.mark.parametrize("text", ["ünïcode", "run\udce9"])
def test_json_holds_every_name_of_a_file_in_a_spelling_that_is_known_as_ours(tmp_path, text):
    write_json(tmp_path / "a.json", {"place": text, "other": "ü"})
    data = (tmp_path / "a.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"place": text, "other": "ü"}
    assert as_written(data, json.loads(data))
    assert ("ü".encode() in data) == (text == "ünïcode")

"""Artefacts are whole or absent: faults, kills at every step, full disks, flipped bits, pickles and leases."""

import contextlib
import errno
import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hardneg import digests, disk
from hardneg.artifacts import (
    MANIFEST,
    TEMPORARY,
    Manifest,
    cached_digest,
    check_writable,
    digest_file,
    digest_folder,
    digest_json,
    disk_faults,
    is_current,
    is_published,
    lease,
    load_array,
    open_artifact,
    publish,
    publish_file,
    read_json,
    read_manifest,
    verify,
    write_json,
)
from hardneg.errors import ArtifactError, BusyError, HardnegError, InputError, ResourceError, TrustError

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


def temporaries(folder):
    return sorted(p.name for p in folder.rglob(f"{TEMPORARY}*"))


def tree(folder):
    """Names and bytes of everything below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def settle(path):
    """Make a file look as old as most are, so that its digest is remembered."""
    os.utime(path, ns=(10**18, 10**18))


def dead_pid():
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def run_python(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=os.environ
    )


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


def test_the_manifest_is_written_last_and_everything_is_flushed_before_the_rename(tmp_path, monkeypatch):
    seen = []
    real_sync, real_rename = disk.sync, os.rename

    def sync(path):
        seen.append(("sync", path.name))
        if path.is_file() and path.name != MANIFEST:
            assert not any(p.name == MANIFEST for p in tmp_path.rglob(MANIFEST))
        real_sync(path)

    monkeypatch.setattr(disk, "sync", sync)
    monkeypatch.setattr(os, "rename", lambda a, b: (seen.append(("rename", Path(b).name)), real_rename(a, b))[1])
    make(tmp_path / "pool")
    draft = disk.temporary(tmp_path / "pool").name
    assert seen[:3] == [("sync", "rows.npy"), ("sync", "words.json"), ("sync", MANIFEST)]
    assert sorted(seen[3:5]) == [("sync", draft), ("sync", "texts")]
    assert seen[5:] == [("rename", "pool"), ("sync", tmp_path.name)]


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
    child = run_python(CRASH, tmp_path, kind)
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


def test_only_what_dead_processes_of_this_machine_left_at_this_place_is_swept(tmp_path):
    host, dead, live = socket.gethostname(), dead_pid(), os.getppid()
    kept = [
        f"{TEMPORARY}pool-{live}@{host}",  # at work
        f"{TEMPORARY}pool-{dead}@elsewhere",  # another machine's process cannot be asked
        f"{TEMPORARY}pool-large-{dead}@{host}",  # of the place pool-large
        f"{TEMPORARY}pool-notes",
        "pool-2",
    ]
    gone = [f"{TEMPORARY}pool-{dead}@{host}", f"{TEMPORARY}pool-{os.getpid()}@{host}"]
    for name in kept + gone:
        (tmp_path / name).mkdir()
    (tmp_path / f"{TEMPORARY}pool-{dead + 0}@{host}" / "half.npy").write_bytes(b"x")
    make(tmp_path / "pool")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, "pool"])


def test_a_place_whose_name_holds_special_characters_is_swept_too(tmp_path):
    leftover = tmp_path / f"{TEMPORARY}run[1].x*-{dead_pid()}@{socket.gethostname()}"
    leftover.write_bytes(b"half")
    write_json(tmp_path / "run[1].x*", 1)
    assert [p.name for p in tmp_path.iterdir()] == ["run[1].x*"]


def test_an_old_artefact_that_stepped_aside_for_one_that_never_came_is_put_back(tmp_path):
    path = make(tmp_path / "pool", "old")
    os.rename(path, tmp_path / f"{TEMPORARY}pool-old-{dead_pid()}@{socket.gethostname()}")
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


# ---------------------------------------------------------------- refused by the system

FAULTS = [
    (errno.ENOSPC, "DISK_FULL"),
    (errno.EDQUOT, "DISK_FULL"),
    (errno.EROFS, "NOT_WRITABLE"),
    (errno.EACCES, "NOT_WRITABLE"),
    (errno.EPERM, "NOT_WRITABLE"),
    (errno.ENAMETOOLONG, "NOT_WRITABLE"),
    (errno.EIO, "IO_ERROR"),
]


def fail_at(monkeypatch, name, call, number):
    """The ``call``-th call of this function of ``os`` fails; the others work."""
    real, calls = getattr(os, name), []

    def function(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, function)


PLACES = [("mkdir", 2), ("mkdir", 3), *(("fsync", call) for call in range(1, 7)), ("rename", 1), ("rename", 2)]


@pytest.mark.parametrize(("number", "code"), FAULTS, ids=lambda value: errno.errorcode.get(value, value))
@pytest.mark.parametrize(("name", "call"), PLACES)
def test_refused_anywhere_an_artefact_stays_as_it_was(tmp_path, monkeypatch, name, call, number, code):
    make(tmp_path / "pool", "old")
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        fail_at(patch, name, call, number)
        with pytest.raises(ResourceError) as raised:
            make(tmp_path / "pool", "new", replace=True)
    assert (raised.value.code, raised.value.status, raised.value.path) == (code, 5, tmp_path / "pool")
    assert tree(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["pool"]
    assert text_of(make(tmp_path / "pool", "new", replace=True)) == "new"  # the corrected command succeeds


@pytest.mark.parametrize(("name", "call"), [place for place in PLACES if place != ("rename", 2)])
def test_refused_anywhere_a_first_artefact_is_absent(tmp_path, monkeypatch, name, call):
    with monkeypatch.context() as patch:
        fail_at(patch, name, call, errno.EIO)
        with pytest.raises(ResourceError, match="IO_ERROR"):
            make(tmp_path / "pool")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), FAULTS, ids=lambda value: errno.errorcode.get(value, value))
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_refused_anywhere_a_file_stays_as_it_was(tmp_path, monkeypatch, name, number, code):
    write_json(tmp_path / "a.json", "old")
    with monkeypatch.context() as patch:
        fail_at(patch, name, 1, number)
        with pytest.raises(ResourceError, match=f"a.json: {code}: "):
            write_json(tmp_path / "a.json", "new")
    assert tree(tmp_path) == {"a.json": b'"old"\n'}


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
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: type("", (), {"free": 1234567})())
    with pytest.raises(ResourceError) as raised, disk_faults(tmp_path / "pool"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(raised.value) == (
        f"{tmp_path / 'pool'}: DISK_FULL: the disk is full: more is needed than the 1,234,567 bytes that are free;"
        " free some space and run the command again"
    )


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


def test_checking_a_place_leaves_nothing_there(tmp_path, monkeypatch):
    check_writable(tmp_path / "not/yet/there")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    check_writable(Path("relative/pool"))
    assert list(tmp_path.iterdir()) == []


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
    (path / MANIFEST).write_text(json.dumps(later.as_json()))
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


# ---------------------------------------------------------------- digests


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


def test_equal_json_has_equal_digests_and_nothing_else_has():
    assert digest_json({"a": [1, 2], "b": "ß"}) == digest_json({"b": "ß", "a": (1, 2)})
    # of {"a":1} by sha256sum
    assert digest_json({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_json(float("inf"))


def test_the_digest_of_a_foreign_folder_is_that_of_its_files(tmp_path):
    for name in ("model", "copy"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "sub/weights").write_bytes(b"w")
    (tmp_path / "copy/.cache/hub").mkdir(parents=True)
    (tmp_path / "copy/.cache/hub/time.metadata").write_text("today")  # what a download leaves behind
    (tmp_path / "copy/.gitattributes").write_text("x")
    digest = digest_folder(tmp_path / "model")
    assert digest_folder(tmp_path / "copy") == digest
    (tmp_path / "copy/sub/weights").rename(tmp_path / "copy/sub/other")
    assert digest_folder(tmp_path / "copy") != digest
    (tmp_path / "copy/sub/other").rename(tmp_path / "copy/sub/weights")
    (tmp_path / "copy/sub/weights").write_bytes(b"v")
    assert digest_folder(tmp_path / "copy") != digest


def test_a_remembered_digest_is_not_computed_again(tmp_path, monkeypatch):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    digest = cached_digest(file)
    assert digest == digest_file(file)
    monkeypatch.setattr(digests, "digest_file", lambda path: pytest.fail("computed again"))
    assert cached_digest(file) == digest
    (tmp_path / "copy").write_bytes(b"one")
    os.link(file, tmp_path / "link")
    assert cached_digest(tmp_path / "link") == digest


@pytest.mark.parametrize("change", ["content", "size", "other file"])
def test_a_remembered_digest_notices_a_change(tmp_path, change):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    before = cached_digest(file)
    if change == "content":
        file.write_bytes(b"two")
    elif change == "size":
        file.write_bytes(b"four")
        settle(file)
    else:
        (tmp_path / "other").write_bytes(b"two")
        settle(tmp_path / "other")
        os.replace(tmp_path / "other", file)
    assert cached_digest(file) == digest_file(file) != before


def test_a_change_within_one_tick_of_the_clock_is_noticed(tmp_path):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    moment = file.stat().st_mtime_ns
    assert cached_digest(file) == digest_file(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(moment, moment))
    assert cached_digest(file) == digest_file(file)


def test_without_a_writable_cache_digests_are_computed(tmp_path, monkeypatch):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    (tmp_path / "cache").write_text("a file stands in the way")
    assert cached_digest(file) == digest_file(file)
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "broken"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/digests.sqlite").write_text("this is no database, whatever its name may be")
    assert cached_digest(file) == digest_file(file)


def test_a_digest_remembered_wrongly_is_found_by_verify(tmp_path):
    path = make(tmp_path / "pool")
    settle(path / "rows.npy")
    open_artifact(path, KIND)
    flip(path / "rows.npy", 130)
    settle(path / "rows.npy")  # someone put the old time back
    open_artifact(path, KIND)
    with pytest.raises(ArtifactError, match=r"rows\.npy: CORRUPT: "):
        verify(path)


# ---------------------------------------------------------------- arrays


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("form", ["object array", "structured", "pickle"])
def test_a_pickle_is_refused_and_never_executed(tmp_path, form, mmap):
    payload = Payload(tmp_path / "executed")
    if form == "object array":
        np.save(tmp_path / "a.npy", np.array([payload], dtype=object), allow_pickle=True)
    elif form == "structured":
        fields = [(f"field{i}", "<i4") for i in range(20)] + [("o", object)]
        values = np.zeros(1, dtype=fields)
        values["o"] = payload
        np.save(tmp_path / "a.npy", values, allow_pickle=True)
    else:
        (tmp_path / "a.npy").write_bytes(pickle.dumps(payload))
    with pytest.raises(TrustError) as raised:
        load_array(tmp_path / "a.npy", mmap=mmap)
    assert (raised.value.code, raised.value.status) == ("UNSAFE_PICKLE", 9)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_no_array_is_refused(tmp_path, mmap):
    np.savez(tmp_path / "zip.npy.npz", np.arange(3))
    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "short.npy", np.arange(100))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-8])
    (tmp_path / "folder.npy").mkdir()
    for name in ("zip.npy.npz", "text.npy", "empty.npy", "short.npy", "folder.npy", "nowhere.npy"):
        with pytest.raises(ArtifactError, match=f"{name}: BAD_ARRAY: "):
            load_array(tmp_path / name, mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_damaged_header_ends_in_one_line(tmp_path, mmap):
    file = tmp_path / "a.npy"
    np.save(file, np.arange(6, dtype=np.int32).reshape(2, 3))
    whole = file.read_bytes()
    for position in range(128):
        for bit in (position % 8, (position + 3) % 8):
            flip(file, position, bit)
            with contextlib.suppress(HardnegError):
                assert isinstance(load_array(file, mmap=mmap), np.ndarray)
            file.write_bytes(whole)


def test_an_array_is_mapped_or_read(tmp_path):
    for values in (np.arange(6.0).reshape(2, 3), np.zeros((0, 4), np.float16), np.float32(3)):
        np.save(tmp_path / "a.npy", values)
        mapped, read = load_array(tmp_path / "a.npy"), load_array(tmp_path / "a.npy", mmap=False)
        assert isinstance(mapped, np.memmap)
        assert not isinstance(read, np.memmap)
        assert not mapped.flags.writeable
        for found in (mapped, read):
            assert (found.shape, found.dtype) == (np.shape(values), values.dtype)
            assert np.array_equal(found, values)


def test_json_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: NOT_FOUND: "):
        read_json(tmp_path / "nowhere.json")
    for text in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "a.json").write_bytes(text)
        with pytest.raises(ArtifactError, match=r"a\.json: BAD_JSON: "):
            read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match="NOT_FOUND"):
        read_json(tmp_path / "a.json/below")
    with pytest.raises(ResourceError, match="UNREADABLE"):
        read_json(tmp_path)


# ---------------------------------------------------------------- leases

HOLDER = """
import sys, time
from pathlib import Path
from hardneg import artifacts
with artifacts.lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    child = run_python(HOLDER, tmp_path / "experiment")
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_second_holder_is_told_at_once_who_holds(tmp_path, holder):
    begun = time.monotonic()
    with pytest.raises(BusyError) as raised, lease(tmp_path / "experiment"):
        pytest.fail("held twice")
    assert time.monotonic() - begun < 1
    assert raised.value.status == 6
    assert str(raised.value) == (
        f"{tmp_path / 'experiment'}: IN_USE: in use by process {holder.pid} on {socket.gethostname()};"
        " wait for it or stop it"
    )
    assert holder.poll() is None
    with pytest.raises(BusyError), lease(tmp_path / "experiment"):  # being refused takes nothing away
        pass


def test_the_lease_of_a_killed_holder_is_free(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease(tmp_path / "experiment"):
        assert (tmp_path / "experiment/.lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_a_lease_ends_with_its_block_even_by_a_fault(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lease(tmp_path), lease(tmp_path / "other"):
            raise ZeroDivisionError
    with lease(tmp_path), pytest.raises(BusyError, match=f"process {os.getpid()} on"), lease(tmp_path):
        pass


def test_a_lease_that_the_file_system_cannot_give_is_not_called_busy(tmp_path, monkeypatch):
    def no_locks(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("hardneg.lease.fcntl.flock", no_locks)
    with pytest.raises(ResourceError, match=r"NOT_WRITABLE: cannot write \(No locks available\)"), lease(tmp_path):
        pass


def test_a_lease_on_a_full_disk_is_refused_and_given_back(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        fail_at(patch, "pwrite", 1, errno.ENOSPC)
        with pytest.raises(ResourceError, match="DISK_FULL"), lease(tmp_path):
            pass
    with lease(tmp_path):
        pass

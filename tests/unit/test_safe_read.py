"""Only plain data is read: damage and pickles end in one line."""

import contextlib
import errno
import os
import pickle

import numpy as np
import pytest

from faults.injected import Payload, flip
from hardneg.errors import ArtifactError, HardnegError, InputError, ResourceError, TrustError
from hardneg.storage.manifest import read_manifest
from hardneg.storage.safe_read import load_array, read_json, undisturbed


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


def test_a_pipe_in_place_of_our_json_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(ArtifactError, match=r"BAD_JSON: not valid JSON \(this is no plain file\)"):
        read_json(tmp_path / "manifest.json")
    with pytest.raises(
        ArtifactError, match=r"BAD_MANIFEST: the manifest cannot be read \(this is no plain file\)"
    ):
        read_manifest(tmp_path)


@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_no_array_is_refused(tmp_path, mmap):
    np.savez(tmp_path / "zip.npy.npz", np.arange(3))
    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "short.npy", np.arange(100))
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-8])
    for name in ("zip.npy.npz", "text.npy", "empty.npy", "short.npy", "nowhere.npy"):
        with pytest.raises(ArtifactError, match=f"{name}: BAD_ARRAY: "):
            load_array(tmp_path / name, mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ESTALE, errno.EACCES])
def test_what_the_system_refuses_is_no_damage(tmp_path, monkeypatch, number, mmap):
    """To make the artefact again would not help; and a resumed run must not take it for damaged."""

    def refused(*arguments, **options):
        raise OSError(number, os.strerror(number))

    np.save(tmp_path / "a.npy", np.arange(3))
    monkeypatch.setattr(np.lib.format, "open_memmap" if mmap else "read_array", refused)
    with pytest.raises(
        ResourceError, match=rf"a\.npy: UNREADABLE: cannot read \({os.strerror(number)}\)"
    ) as raised:
        load_array(tmp_path / "a.npy", mmap=mmap)
    assert raised.value.status == 5
    (tmp_path / "folder.npy").mkdir()
    monkeypatch.undo()
    with pytest.raises(ResourceError, match="UNREADABLE"):
        load_array(tmp_path / "folder.npy", mmap=mmap)


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


def test_a_header_is_read_again_where_another_thread_disturbed_its_parser(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(3))
    opened, calls = np.lib.format.open_memmap, []

    def disturbed(*arguments, **options):
        calls.append(arguments)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=36)")
        return opened(*arguments, **options)

    monkeypatch.setattr(np.lib.format, "open_memmap", disturbed)
    assert load_array(tmp_path / "a.npy").tolist() == [0, 1, 2]
    assert len(calls) == 3


def test_a_parser_that_always_fails_is_not_called_for_ever():
    calls = []

    def fails():
        calls.append(1)
        raise SystemError

    with pytest.raises(SystemError):
        undisturbed(fails)
    assert len(calls) == 20


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

"""Manifests: damage is found before use, and the digest is of what was made and from what."""

import errno
import json
import os
import socket
import time

import numpy as np
import pytest

from faults.injected import flip, rot, settle, tree
from faults.small_artefact import KIND, make
from hardneg.errors import ArtifactError, ResourceError
from hardneg.storage import digests
from hardneg.storage.artifacts import (
    MANIFEST,
    Manifest,
    is_current,
    is_published,
    open_artifact,
    publish,
    read_json,
    read_manifest,
    verify,
    write_json,
)

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


def test_a_folder_that_is_not_there_is_told_from_an_unfinished_one(tmp_path):
    with pytest.raises(ArtifactError, match="none: NO_MANIFEST: there is nothing here; check the path"):
        read_manifest(tmp_path / "none")
    with pytest.raises(ArtifactError, match="NO_MANIFEST: no complete artefact is here"):
        read_manifest(tmp_path)


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
def test_damage_is_found_and_the_file_named(tmp_path, monkeypatch, name, how, code):
    monkeypatch.setattr(digests, "LARGE", 0)
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
    with pytest.raises(ArtifactError, match="this is a pool, not an index; give the path of an index"):
        open_artifact(path, "index")
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


def test_a_digest_remembered_wrongly_is_found_by_verify(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 0)
    path = make(tmp_path / "pool")
    settle(path / "rows.npy")
    open_artifact(path, KIND)
    rot(path / "rows.npy", 130)
    open_artifact(path, KIND)
    with pytest.raises(ArtifactError, match=r"rows\.npy: CORRUPT: "):
        verify(path)


@pytest.mark.parametrize(
    ("place", "kind", "fix"),
    [
        ("pool", "negatives", "make the artefact again (hardneg mine, score or train)"),
        ("emb", "embeddings", "make the artefact again (hardneg encode)"),
        ("new", "geometry", "make the artefact again"),
        ("cache/tokens/" + 32 * "0", "tokens", "delete {}, and run the same command again"),
    ],
)
def test_a_damaged_artefact_says_how_it_is_made_again(tmp_path, place, kind, fix):
    path = tmp_path / place
    fix = fix.format(path)
    with publish(path, kind) as draft:
        draft.text("words", "one")
    (path / "words").write_text("more than one")
    with pytest.raises(ArtifactError, match="WRONG_SIZE") as raised:
        open_artifact(path, kind)
    assert raised.value.fix.endswith(fix)
    (path / MANIFEST).write_text("{")  # what is asked for is known
    with pytest.raises(ArtifactError, match="BAD_MANIFEST") as raised:
        open_artifact(path, kind)
    assert raised.value.fix.endswith(fix)
    (path / MANIFEST).write_text(json.dumps({"kind": kind}))  # it still says what it is
    with pytest.raises(ArtifactError, match="BAD_MANIFEST") as raised:
        read_manifest(path)
    assert raised.value.fix.endswith(fix)

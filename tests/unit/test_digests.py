"""Digests of values and files, and how they are remembered."""

import os
import sqlite3

import pytest

from calls import uncalled
from faults.injected import settle
from hardneg.errors import SettingsError
from hardneg.storage import digests
from hardneg.storage.digests import cache_root, cached_digest, digest_file, digest_json


@pytest.fixture(autouse=True)
def all_files_are_large(monkeypatch):
    monkeypatch.setattr(digests, "LARGE", 0)


def test_equal_json_has_equal_digests_and_nothing_else_has():
    assert digest_json({"a": [1, 2], "b": "ß"}) == digest_json({"b": "ß", "a": (1, 2)})
    # of {"a":1} by sha256sum
    assert digest_json({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_json(float("inf"))


def test_a_remembered_digest_is_not_computed_again(tmp_path):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    os.link(file, tmp_path / "link")
    digest = cached_digest(file)
    assert digest == digest_file(file)
    (tmp_path / "copy").write_bytes(b"one")
    with uncalled(digests, "digest_file", control=lambda: cached_digest(tmp_path / "copy")):
        assert cached_digest(file) == cached_digest(tmp_path / "link") == digest


def test_a_small_file_is_hashed_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "LARGE", 4)
    for name, content, remembered in (("small", b"one", False), ("large", b"four", True)):
        file = tmp_path / name
        file.write_bytes(content)
        settle(file)
        assert cached_digest(file) == digest_file(file)
        assert (tmp_path / "cache/digests.sqlite").exists() is remembered


@pytest.mark.parametrize("change", ["content", "content with the old time", "size", "other file"])
def test_a_remembered_digest_notices_a_change(tmp_path, change):
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    before = cached_digest(file)
    if change.startswith("content"):
        file.write_bytes(b"two")
        if change != "content":
            settle(file)
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


def test_who_may_write_into_a_shared_cache_is_for_the_umask_to_say(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    before = os.umask(0o002)
    try:
        cached_digest(file)
    finally:
        os.umask(before)
    assert (tmp_path / "cache/digests.sqlite").stat().st_mode & 0o777 == 0o664


def test_with_a_cache_that_may_only_be_read_a_file_is_hashed_once(tmp_path, monkeypatch):
    known, new, hashed = tmp_path / "known", tmp_path / "new", []
    for file in (known, new):
        file.write_bytes(file.name.encode())
        settle(file)
    cached_digest(known)

    def read_only(place, real=sqlite3.connect, **options):
        return real(f"file:{place}?mode=ro", uri=True, **options)

    monkeypatch.setattr(digests.sqlite3, "connect", read_only)
    monkeypatch.setattr(digests, "digest_file", lambda path: hashed.append(path) or digest_file(path))
    for file in (known, new, new):
        assert cached_digest(file) == digest_file(file)
    assert hashed == [new, new]


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


def test_the_cache_may_lie_in_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HARDNEG_CACHE", "~/store")
    assert cache_root() == tmp_path / "store"
    monkeypatch.delenv("HARDNEG_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache/hardneg"


def test_without_a_home_folder_one_line_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNEG_CACHE", "~nobody-of-this-name/store")
    with pytest.raises(SettingsError, match=r"NO_HOME: ~nobody-of-this-name/store begins .* set HARDNEG_CACHE"):
        cache_root()
    file = tmp_path / "big"
    file.write_bytes(b"one")
    settle(file)
    assert cached_digest(file) == digest_file(file)  # a digest does not need the cache

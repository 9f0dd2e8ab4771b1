"""Digests: the identity of values and files, and where digests of large files are remembered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from hardneg.errors import SettingsError

SETTLED_NS = 2_000_000_000  # coarsest clock of a file system: a file this fresh may change and keep its time
LARGE = 1 << 18  # bytes; a smaller file is hashed in less time than it takes to ask the database for it


def canonical_json(value: Any) -> bytes:
    """JSON with one spelling: sorted keys, no blanks, so that equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """SHA-256 of a JSON value in its canonical spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_root() -> Path:
    """The user's cache folder: ``$HARDNEG_CACHE``, else ``$XDG_CACHE_HOME/hardneg``, else ``~/.cache/hardneg``.

    As the XDG base directory specification asks, a relative ``$XDG_CACHE_HOME`` is ignored.

    Raises
    ------
    SettingsError : the user has no home folder, as in some containers, and neither variable is set.
    """
    if own := os.environ.get("HARDNEG_CACHE"):
        return in_home(own).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else in_home("~/.cache")) / "hardneg"


def in_home(path: str) -> Path:
    """A path whose ``~`` or ``~user`` at the beginning is replaced by the home folder, as shells do it.

    Raises
    ------
    SettingsError : nobody has this name, or the user has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        what = f"{path} begins in a home folder that does not exist"
        raise SettingsError("NO_HOME", what, "set HARDNEG_CACHE, or write the path without ~") from None


def cached_digest(path: Path) -> str:
    """The SHA-256 of a file; a large one's is kept across processes by (device, inode, size, time of change)."""
    status = path.stat()
    if status.st_size < LARGE or time.time_ns() - status.st_mtime_ns < SETTLED_NS:
        return digest_file(path)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(sqlite3.connect(cache_root() / "digests.sqlite", timeout=10)) as database,
            database,
        ):
            database.execute(
                "CREATE TABLE IF NOT EXISTS digests (device INTEGER, inode INTEGER, size INTEGER,"
                " mtime INTEGER, sha256 TEXT, PRIMARY KEY (device, inode, size, mtime))"
            )
            query = "SELECT sha256 FROM digests WHERE device=? AND inode=? AND size=? AND mtime=?"
            row = database.execute(query, identity).fetchone()
            if row:
                return str(row[0])
            digest = digest_file(path)
            database.execute("INSERT OR REPLACE INTO digests VALUES (?,?,?,?,?)", (*identity, digest))
            return digest
    except (sqlite3.Error, OSError, SettingsError):  # without a writable cache the file is verified all the same
        return digest_file(path)

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

TABLE = "digests_by_ctime"  # rows of the older table, digests, lack the ctime
KEY = "device, inode, size, mtime, ctime"  # numbers


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
    """The SHA-256 of a file; a large one's is kept across processes by (device, inode, size, times of change).

    Everybody may set the time of the content (mtime), and only the system that of the file (ctime).
    """
    status = path.stat()
    if status.st_size < LARGE or time.time_ns() - status.st_mtime_ns < SETTLED_NS:
        return digest_file(path)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    digest = None
    try:
        with contextlib.closing(_database()) as database, database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({KEY}, sha256 TEXT, PRIMARY KEY ({KEY}))")
            query = f"SELECT sha256 FROM {TABLE} WHERE ({KEY}) = (?,?,?,?,?)"
            if row := database.execute(query, identity).fetchone():
                return str(row[0])
            digest = digest_file(path)
            database.execute(f"INSERT OR REPLACE INTO {TABLE} VALUES (?,?,?,?,?,?)", (*identity, digest))
    except (sqlite3.Error, OSError, SettingsError):  # without a writable cache the file is verified all the same
        pass
    return digest or digest_file(path)


def _database() -> sqlite3.Connection:
    """The database of digests, made as the umask says: SQLite itself would let nobody else write into it."""
    file = cache_root() / "digests.sqlite"
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_RDONLY | os.O_CREAT, 0o666))
    return sqlite3.connect(file, timeout=10)

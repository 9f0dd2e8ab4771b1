"""Reading plain data from disk: JSON and arrays, never a pickle."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardneg.errors import ArtifactError, InputError, ResourceError, TrustError
from hardneg.storage.os_errors import reading

T = TypeVar("T")
_PARSER = threading.Lock()
SMALL = 1 << 14  # bytes of a file whose spelling is checked once; with the 512 that are remembered, 8 MB at most


def plain_bytes(path: Path) -> bytes:
    """The bytes of a plain file; a pipe, which would be waited for, or a device raises :class:`ValueError`."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError("this is no plain file")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file of ours."""
    try:
        with reading(path):
            return json.loads(plain_bytes(Path(path)))
    except (FileNotFoundError, NotADirectoryError) as fault:
        raise InputError("NOT_FOUND", "no such file", "check the path", path=path) from fault
    except (ValueError, RecursionError) as fault:
        raise ArtifactError("BAD_JSON", f"not valid JSON ({fault})", "make it again", path=path) from fault


def as_written(data: bytes, value: Any) -> bool:
    """Whether ``data`` is the very spelling in which we write ``value``; any other spelling is damage here.

    ``value`` was read from ``data``. Small files, such as most manifests, are read many times. Of their bytes the
    answer is remembered, because spelling takes much longer than reading.
    """
    return _small_as_written(data) if len(data) <= SMALL else _spelt(data, value)


@lru_cache(maxsize=512)
def _small_as_written(data: bytes) -> bool:
    return _spelt(data, json.loads(data))


def _spelt(data: bytes, value: Any) -> bool:
    return any(data == f"{json.dumps(value, indent=1, ensure_ascii=plain)}\n".encode() for plain in (True, False))


def load_array(path: Path, *, mmap: bool = True) -> NDArray[Any]:
    """Open an ``.npy`` array, memory-mapped and never unpickled."""
    try:
        with reading(path):  # what the system refuses is no damage
            return undisturbed(lambda: _opened(path, mmap))
    except ResourceError:
        raise
    except Exception as fault:  # a damaged header can raise almost any exception
        if holds_pickle(path):
            what = "a pickle, which could run code, in place of a plain array"
            raise TrustError("UNSAFE_PICKLE", what, "get it as a plain array", path=path) from fault
        what = f"not a plain array ({fault})"
        raise ArtifactError("BAD_ARRAY", what, "make the artefact again", path=path) from fault


def _opened(path: Path, mmap: bool) -> NDArray[Any]:
    if mmap:
        return np.lib.format.open_memmap(path, mode="r")
    with open(path, "rb") as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def undisturbed(parse: Callable[[], T], tries: int = 20) -> T:
    """Call ``parse``, which uses ``ast.literal_eval``, and call it again if another thread disturbed it.

    Up to 3.11, Python counts the depth of syntax trees for all threads together. If two threads build a tree at
    the same time, one of them can get a SystemError that has nothing to do with the text. numpy reads headers with
    ``literal_eval``.
    """
    for left in reversed(range(tries)):
        try:
            with _PARSER:
                return parse()
        except SystemError:  # a thread that does not hold our lock disturbed it
            if not left:
                raise
            time.sleep(0.001)
    raise AssertionError("unreachable")


def holds_pickle(path: Path) -> bool:
    """Whether a file that is no plain array begins as a pickle, or as an array of Python objects."""
    if not path.is_file():
        return False
    with open(path, "rb") as stream:
        head = stream.read(4096)
    return head[:1] == b"\x80" or (head.startswith(np.lib.format.MAGIC_PREFIX) and b"|O" in head)

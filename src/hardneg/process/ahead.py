"""Work that a thread does ahead: numpy sorts, copies and counts without Python's lock."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hardneg.process.threads import usable_threads

T = TypeVar("T")

_END = object()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items in their order. Where a second processor is there, a thread makes the next one meanwhile.

    A fault of the iterator is raised in its place.
    """
    if usable_threads() < 2:
        yield from items
        return
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, items, _END)
        while (item := waiting.result()) is not _END:
            waiting = thread.submit(next, items, _END)
            yield item  # type: ignore[misc]  # it is no _END

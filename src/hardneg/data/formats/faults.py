"""Faults of records while a source is read: raised at once or, while an import is only checked, collected.

A reader continues after a fault that is collected, so that all faults of a file are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hardneg.errors import InputError

_collector: ContextVar[Callable[[InputError], None] | None] = ContextVar("collector", default=None)


class Unread(str):
    """An empty text in place of a field that could not be read; its fault is collected already."""


@contextmanager
def collecting(add: Callable[[InputError], None]) -> Iterator[None]:
    """In the block, pass each fault after which a reader can continue to ``add``, instead of raising it."""
    token = _collector.set(add)
    try:
        yield
    finally:
        _collector.reset(token)


def refuse(fault: InputError) -> None:
    """Raise a fault, or collect it; then the reader leaves the record out and goes on."""
    add = _collector.get()
    if add is None:
        raise fault
    add(fault)


def unread(fault: InputError) -> Unread:
    """Raise the fault of a field, or collect it and return what stands for the field."""
    refuse(fault)
    return Unread()

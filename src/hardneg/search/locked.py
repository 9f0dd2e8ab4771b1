"""Methods, and properties that are computed once, of objects with a ``lock`` that lets one thread in at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from hardneg.process.distributed import apart
from hardneg.surroundings import own_surroundings

P = ParamSpec("P")
T = TypeVar("T")


def one_at_a_time(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """Let one thread at a time into a method of an object; it may call other such methods of the same object."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock, own_surroundings():
            return method(self, *args, **kwargs)

    return call


class opened_once(cached_property[T]):  # noqa: N801  # it stands where ``cached_property`` would
    """A property that is computed once, by one thread, and kept.

    A process that works while the others of its group wait keeps nothing. All processes open the embeddings
    together later, and a process that had kept them would not take part.
    """

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        with instance.lock, own_surroundings():
            kept = self.attrname in instance.__dict__
            found = super().__get__(instance, owner)
            if not kept and apart():
                instance.__dict__.pop(self.attrname, None)
            return found

"""Objects that let one thread in at a time: their lock, their methods, and properties that are computed once."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from hardneg.process.distributed import apart
from hardneg.surroundings import own_surroundings

P = ParamSpec("P")
T = TypeVar("T")


class Turn:
    """A lock that is free in a forked process, where no thread that held it runs."""

    living: ClassVar[weakref.WeakSet[Turn]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.lock = threading.RLock()
        Turn.living.add(self)

    @staticmethod
    def renew() -> None:
        """Make all locks free."""
        for turn in Turn.living:
            turn.lock = threading.RLock()


os.register_at_fork(after_in_child=Turn.renew)


class Guarded:
    """An object that lets one thread in at a time, and belongs to its process."""

    def __init__(self) -> None:
        self._turn = Turn()

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """The lock of this object and its shallow copies."""
        return self._turn.lock

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> Any:
        what = f"a {type(self).__name__} can be neither pickled nor copied deeply"
        raise TypeError(f"{what}: its model and vectors belong to this process; open one in each process")


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

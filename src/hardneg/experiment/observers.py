"""Functions of the user that are called with steps and states while an experiment runs; they change no result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hardneg.callers import users_own
from hardneg.errors import Interrupted
from hardneg.process.distributed import by_consensus, is_leader, member
from hardneg.process.signals import stop_flag

Told = Callable[[dict[str, Any]], object]  # its return value is ignored


class Observers:
    """The functions that are told what happens. Only rank 0 calls them.

    If a function raises an exception, no function is called any more. Training stops at the next place from which
    it can be resumed, and then :meth:`heeded` raises the exception.

    Parameters
    ----------
    on_step : called with each record of ``metrics.jsonl``, some steps late, because records are written several at
        a time.
    on_state : called with ``name``, ``kind``, ``episode``, ``step``, ``path`` (the folder of its weights, None
        where they are not kept) and ``measures`` (value by split and measure) of each state that was measured.
    """

    def __init__(self, on_step: Told | None = None, on_state: Told | None = None) -> None:
        self.on_step, self.on_state = on_step, on_state
        self.fault: Exception | None = None
        self.told: set[str] = set()  # names of states

    def tell_steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell the records of steps, in order."""
        for row in rows:
            self._call(self.on_step, dict(row))

    def tell_state(self, name: str, told: Callable[[], dict[str, Any]]) -> None:
        """Tell of a state that was measured, once for each name, and stop if asked to; all processes call this."""
        if is_leader() and self.on_state is not None and name not in self.told:
            self.told.add(name)
            self._call(self.on_state, {"name": name, **told()})
        with by_consensus():
            stop_flag.check()

    def _call(self, function: Told | None, argument: dict[str, Any]) -> None:
        if function is None or self.fault is not None:
            return
        try:
            with users_own():
                function(argument)
        except Exception as fault:  # a function of the user's may raise anything
            self.fault = fault
            stop_flag.ask(together=member()[1] > 1)

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Raise a function's exception when the block ends or is stopped; the block's own exceptions go first."""
        try:
            yield
        except Interrupted:
            if self.fault is None:
                raise
        finally:
            stop_flag.forget()
        if self.fault is not None:
            raise self.fault

"""Keeps the embeddings of the state that is best on dev, so that the model that stays can be searched at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hardneg.diagnostics.measured import Measured
from hardneg.diagnostics.summary import dev_values
from hardneg.evaluation.measures import Measure
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.process.distributed import by_leader
from hardneg.search.embeddings import discard

Remembered = Callable[[], Snapshot | None]  # None where nobody else holds the state any more


class BestVectors:
    """The embeddings of the best state on dev so far, which stay until a better state comes.

    Parameters
    ----------
    measure : decides on dev which state is better.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.newest: Remembered = _none  # not kept from being freed: a state has a whole model
        self.best: Remembered = _none
        self.places: set[Path] = set()  # of its embeddings

    def look(self, state: State, seen: Mapping[str, Measured]) -> None:
        """Keep the embeddings of a state if it is the best one ``seen``, and delete those that were kept before.

        All processes call it together, for the forms of a state too: where an index decides, a state is judged
        once its indexed form is ``seen``. Embeddings that a state ``keeps`` for others are not deleted.
        """
        if not isinstance(state, Snapshot):
            return
        self.newest = self.newest if state.of else weakref.ref(state)
        newest, before = self.newest(), self.best()
        if newest is None or newest is before or not by_leader(self._is_best, newest.name, seen):
            return
        places = set() if newest.keeps else newest.stores()
        if before is not None:
            before.release()
        by_leader(discard_all, self.places - newest.stores())
        newest.keeps, self.best, self.places = True, self.newest, places

    def settle(self, kept: Any, last: Any) -> None:
        """Delete the embeddings of the last state and of the best one so far, except those of the state kept."""
        if isinstance(last, Snapshot) and isinstance(kept, Snapshot):
            for state in (self.best(), last):
                if state is not None:
                    state.release()
            by_leader(discard_all, (self.places | last.stores()) - kept.stores())

    def _is_best(self, name: str, seen: Mapping[str, Measured]) -> bool:
        indexed = {one.record.of for one in seen.values() if one.record.kind == "indexed"}
        if indexed and name not in indexed:
            return False
        dev = dev_values(seen, "", self.measure)  # by name: a state that cannot be kept is not among them
        return max(dev, key=lambda one: dev[one], default=None) == name


def _none() -> None:
    return None


def discard_all(places: Iterable[Path]) -> None:
    """Delete the embeddings in these folders."""
    for place in sorted(places):
        discard(place)

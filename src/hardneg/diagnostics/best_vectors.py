"""Keeps the embeddings of the state that is best on dev, so that the model that stays can be searched at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hardneg.diagnostics.measured import Measured
from hardneg.diagnostics.summary import dev_values
from hardneg.evaluation.measures import Measure
from hardneg.experiment.names import LAST
from hardneg.experiment.snapshot import Snapshot, State
from hardneg.process.distributed import by_leader
from hardneg.search.embeddings import discard


class BestVectors:
    """The embeddings of the best state on dev so far, which stay until a better state comes.

    Parameters
    ----------
    measure : decides on dev which state is better.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.places: set[Path] = set()

    def look(self, state: State, seen: Mapping[str, Measured]) -> None:
        """Keep the embeddings of a state if it is the best one ``seen``, and delete those that were kept before.

        All processes call it together. Embeddings that a state ``keeps`` for others are not deleted.
        """
        if not isinstance(state, Snapshot) or state.of or not by_leader(self._is_best, state.name, seen):
            return
        places = set() if state.keeps else state.stores()
        by_leader(discard_all, self.places - state.stores())
        state.keeps, self.places = True, places

    def settle(self, kept: Any, last: Any) -> None:
        """Delete the embeddings of the last state if another state was kept, except those that both share."""
        if kept is not last and isinstance(last, Snapshot) and isinstance(kept, Snapshot):
            by_leader(discard_all, last.stores() - kept.stores() - self.places)

    def _is_best(self, name: str, seen: Mapping[str, Measured]) -> bool:
        dev = dev_values(seen, name, self.measure)  # the state is the last one so far
        return max(dev, key=lambda one: dev[one], default=None) == LAST


def discard_all(places: Iterable[Path]) -> None:
    """Delete the embeddings in these folders."""
    for place in sorted(places):
        discard(place)

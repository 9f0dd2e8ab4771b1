"""The names of states of the model that results are kept under, and what people are shown for them."""

from __future__ import annotations

BM25 = "bm25"
FINAL = "final"  # what `model/` holds
LAST = "last"  # after the last step, where another state is kept
UNTRAINED = "untrained"  # the model as it came, with its own settings
STARTED = "untrained-as-trained"  # what training starts from, where settings make that another one
SHOWN = {STARTED: "untrained, as trained on"}


def shown(name: str) -> str:
    """The name of a state for people; what an index retrieves has the kind of index behind it."""
    state, slash, index = name.partition("/")
    return SHOWN.get(state, state) + slash + index

"""The names of states of the model in results, and the names that people are shown for them."""

from __future__ import annotations

BM25 = "bm25"
FINAL = "final"  # the state in `model/`
LAST = "last"  # the state after the last step, if another one is kept
UNTRAINED = "untrained"  # the model that the user gave, with its own settings
STARTED = "untrained-as-trained"  # the state that training starts from, if settings change the model
SHOWN = {STARTED: "untrained, as trained on"}


def shown(name: str) -> str:
    """The name of a state for people; a state searched through an index gets the index's kind after its name."""
    state, slash, index = name.partition("/")
    return SHOWN.get(state, state) + slash + index

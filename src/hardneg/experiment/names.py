"""The names of states of the model that results are kept under, their kinds, and what people see of them."""

from __future__ import annotations

from typing import Literal

# What a state is. episode: what the next episode mines with; version: behind a version of refreshed negatives;
# passing: measured on the way; indexed: another state, as an index retrieves it.
Kind = Literal[
    "bm25", "untrained", "untrained-as-trained", "passing", "episode", "version", "last", "final", "indexed"
]
Asked = Literal["all", "judged", "dev"]  # judged: dev and test, no training queries; dev: that alone

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

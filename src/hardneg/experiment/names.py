"""The names of states of the model in results, their kinds, and the names that people are shown for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

# What a state is. episode: what the next episode mines with; version: behind a version of refreshed negatives;
# passing: measured on the way; indexed: another state, as an index retrieves it; reranked: its runs, re-ranked;
# retriever: what ranks first where a ranker is trained.
Kind = Literal[
    "bm25",
    "untrained",
    "untrained-as-trained",
    "passing",
    "episode",
    "version",
    "last",
    "final",
    "indexed",
    "reranked",
    "retriever",
]
Asked = Literal["all", "judged", "dev"]  # judged: dev and test, no training queries; dev: that alone

BM25 = "bm25"
FINAL: Final = "final"  # the state in `model/`
LAST: Final = "last"  # the state after the last step, if another one is kept
UNTRAINED = "untrained"  # the model that the user gave, with its own settings
RETRIEVED = "retriever"  # what a ranker that is trained re-ranks, as it is
STARTED = "untrained-as-trained"  # the state that training starts from, if settings change the model
FUSED = f"+{BM25}"  # stands after the name of a state whose runs were fused with BM25's
SHOWN = {STARTED: "untrained, as trained on"}


def few_of_dev(results: Mapping[str, Any], asked: int | None) -> int | None:
    """The first passages of BM25 for each query among which dev was judged; None: that left out no passage.

    Parameters
    ----------
    results : content of ``results.json``, which says it in ``dev_among``.
    asked : the setting ``dev_passages``, for results of before that.
    """
    if (found := results.get("dev_among")) is None:
        return asked
    return int(found["first"]) if found["passages"] < found["of"] else None


def with_bm25(state: str) -> str:
    """The name of a state's runs, fused with BM25's."""
    return f"{state}{FUSED}"


def shown(name: str) -> str:
    """The name of a state for people.

    A state that is searched through an index gets the index's kind after its name.
    """
    alone = name.removesuffix(FUSED)
    state, slash, index = alone.partition("/")
    return SHOWN.get(state, state) + slash + index + (" + BM25" if alone != name else "")

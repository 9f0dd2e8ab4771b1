"""The names of states of the model in results, their kinds, and the names that people are shown for them.

Here, too, are the names of models and rows in metrics and timing that several floors know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

# The kind of a state. episode: the next episode mines with it; version: a version of refreshed negatives was mined
# with it; passing: it was measured between two steps; indexed: another state, searched through an index; reranked:
# another state's runs, re-ranked; retriever: the model that ranks first when a ranker is trained.
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
Asked = Literal["all", "judged", "dev"]  # judged: dev and test, no training queries; dev: only dev

BM25 = "bm25"
FINAL: Final = "final"  # the state in `model/`
LAST: Final = "last"  # the state after the last step, if another one is kept
UNTRAINED = "untrained"  # the model that the user gave, with its own settings
RETRIEVED = "retriever"  # the retriever whose hits a trained ranker re-ranks, by itself
STARTED = "untrained-as-trained"  # the state that training starts from, if settings change the model
BEFORE = (UNTRAINED, STARTED)  # the states before the first step, one of which can be kept
RANKER = "ranker"  # a second model in metrics, checkpoints and timing; after a state's name, where it re-ranks
BY_FIRST = "first-ranker"  # stands after the name of a state whose hits AR2's first ranker re-ranked
BEGIN = "begin"  # the stage of the timing's rows that describe the machine of an execution
FUSED = f"+{BM25}"  # stands after the name of a state whose runs were fused with BM25's
SHOWN = {STARTED: "untrained, as trained on"}


def reads_as_trained(run: str) -> bool:
    """Whether a state reads the queries of this run as long as training steps do, not as long as search does.

    Those of test have the length of search in every state, also in the final one; all others that of training
    steps. So dev compares states in the same way during training and at the end (as ANCE-Tele's published scripts
    do).
    """
    return run != "test"


def name_of_step(episode: int, step: int, *, several: bool) -> str:
    """The name of the state after so many steps of an episode; it says which episode if there are ``several``."""
    return f"episode-{episode}-step-{step}" if several else f"step-{step}"


def before_training(dev: Mapping[str, float]) -> str:
    """The better on dev of the states before the first step, with which those of training are compared."""
    return max((name for name in BEFORE if name in dev), key=lambda name: dev[name], default=UNTRAINED)


def few_of_dev(results: Mapping[str, Any], asked: int | None) -> int | None:
    """How many first hits of BM25 for each query dev was judged among; None: dev was judged among all passages.

    Parameters
    ----------
    results : content of ``results.json``, which has the number in ``dev_among``.
    asked : the setting ``dev_passages``, used for older results, which have no ``dev_among``.
    """
    if (found := results.get("dev_among")) is None:
        return asked
    return int(found["first"]) if found["passages"] < found["of"] else None


def baseline_of(values: Mapping[str, float]) -> tuple[str, float] | None:
    """Name and value of the ranking that training is compared with; None: there is none.

    That is the ranking of the retriever whose hits a trained ranker re-ranks; else BM25's.
    """
    titles = {RETRIEVED: RETRIEVED, BM25: "BM25"}
    return next(((title, values[name]) for name, title in titles.items() if name in values), None)


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

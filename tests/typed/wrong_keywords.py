"""Calls that mypy must refuse: it complains about each comment here that hides no error."""

from collections.abc import Sequence
from typing import Any, assert_type

import hardneg as hn
from hardneg.api.outcomes import Hits

hn.train("star", "d", "m", "o", learning_rate=1e-5, on_step=print, progress=False)
hn.train("star", "d", "m", "o", learning_rat=1e-5)  # type: ignore[call-overload]
hn.train("star", "d", "m", "o", learning_rate="high")  # type: ignore[call-overload]
hn.train_adore("d", "m", "o", episodes=3)  # type: ignore[call-arg]


def by_variables(recipe: str, texts: Sequence[str], searcher: hn.Searcher, settings: dict[str, Any]) -> None:
    """A recipe whose name is known only later takes what all recipes take; texts may be in any sequence."""
    hn.train(recipe, "d", "m", "o", progress=False, learning_rate=1e-5, seed=3)
    hn.train(recipe, "d", "m", "o", **settings)
    hn.train(recipe, "d", "m", "o", learning_rat=1e-5)  # type: ignore[call-overload]
    hn.train("star", "d", "m", "o", extra=["bm25"])  # type: ignore[call-overload]
    assert_type(searcher.search(texts), list[Hits])
    assert_type(searcher.search("one"), Hits)

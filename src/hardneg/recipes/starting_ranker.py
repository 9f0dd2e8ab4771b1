"""The ranker that training starts from: a given one, or the retriever's model with a new head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.rankers import new_ranker, open_ranker
from hardneg.models.source import ModelSource


@dataclass(frozen=True)
class StartingRanker:
    """A ranker that training starts from.

    Attributes
    ----------
    model : the ranker.
    is_new : its head is drawn at random, so it must be trained before anybody learns from it.
    """

    model: CrossEncoder
    is_new: bool


def starting_ranker(source: ModelSource, overrides: Mapping[str, Any], *, seed: int) -> StartingRanker:
    """The ranker that a record names; where it names none, its encoder with a head drawn from the seed.

    Parameters
    ----------
    overrides : fields of :class:`~hardneg.models.cross_encoder.RankerSettings`.

    Raises
    ------
    SettingsError : what it names is no cross-encoder of one label, or a setting does not fit it.
    """
    if source.ranker is None:
        return StartingRanker(new_ranker(source, seed=seed, **overrides), is_new=True)
    return StartingRanker(open_ranker(source, **overrides), is_new=False)

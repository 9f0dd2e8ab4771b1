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
    is_new : whether its head is drawn at random, so that it must be trained before a model learns from it.
    """

    model: CrossEncoder
    is_new: bool


def starting_ranker(source: ModelSource, overrides: Mapping[str, Any], *, seed: int) -> StartingRanker:
    """The ranker that a source names, or if it names none, the encoder of the source with a new random head.

    Parameters
    ----------
    overrides : fields of :class:`~hardneg.models.cross_encoder.RankerSettings`.
    seed : the seed of a new head.

    Raises
    ------
    SettingsError : the named model is no cross-encoder with one label, or a setting does not fit it.
    """
    if source.ranker is None:
        return StartingRanker(new_ranker(source, seed=seed, **overrides), is_new=True)
    return StartingRanker(open_ranker(source, **overrides), is_new=False)

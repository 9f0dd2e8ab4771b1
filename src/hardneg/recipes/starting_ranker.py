"""The ranker that training starts from: a given one, or the retriever's model with a new head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hardneg.errors import SettingsError
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.rankers import new_ranker, open_ranker
from hardneg.models.recomputing import check_recomputing
from hardneg.models.source import ModelSource
from hardneg.process.progress import say
from hardneg.recipes.settings import TrainingSettings


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


def ranker_of(source: ModelSource, settings: TrainingSettings) -> StartingRanker:
    """The ranker that training with these settings starts from; raises as :func:`starting_ranker`."""
    overrides = settings.new_ranker_overrides if source.ranker is None else settings.ranker_overrides
    ranker = starting_ranker(source, overrides, seed=settings.seed)
    if settings.recompute_layers:
        check_recomputing(ranker.model)
    return ranker


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
        return StartingRanker(as_long_as_it_takes(partial(new_ranker, source, seed=seed), overrides), is_new=True)
    return StartingRanker(as_long_as_it_takes(partial(open_ranker, source), overrides), is_new=False)


def as_long_as_it_takes(
    load: Callable[..., CrossEncoder], overrides: Mapping[str, Any], tell: Callable[[str], None] = say
) -> CrossEncoder:
    """Load a ranker; if its pairs would be longer than it takes, they are as long as that, and a line says so.

    A preset names one length for all models.

    Parameters
    ----------
    load : loads it with fields of :class:`~hardneg.models.cross_encoder.RankerSettings`.
    tell : takes the line.
    """
    try:
        return load(**overrides)
    except SettingsError as fault:
        if fault.code != "TOO_LONG" or "max_length" not in overrides:
            raise
        ranker = load(**{name: value for name, value in overrides.items() if name != "max_length"})
        longest = ranker.tower.longest
        if overrides["max_length"] <= longest:  # so it is a prompt that is too long
            raise
    if ranker.settings.max_length < longest:  # it was trained with shorter ones
        ranker = load(**{**overrides, "max_length": longest})
    tell(f"ranker: it takes pairs of {longest} tokens, not of {overrides['max_length']}")
    return ranker

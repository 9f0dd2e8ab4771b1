"""Whether a model is the one that an experiment began with: by its digest where it is there, else by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardneg.api.inputs import source_at
from hardneg.config import build
from hardneg.errors import HardnegError


def digest_at(place: str, record: Mapping[str, Any]) -> str | None:
    """The digest of the model at a place as an experiment begins with it, with the settings of the record.

    Returns None if the model is gone, or cannot be opened so. A name on the hub is not opened, as that could
    download the model for a page that is only made again.
    """
    from hardneg.api.recipes import recipe_named
    from hardneg.recipes.ranker import RankerTraining, fresh_ranker
    from hardneg.recipes.starting_model import starting_encoder

    try:
        source = source_at(place, device="cpu")
        if source.hub_name is not None:
            return None
        recipe = recipe_named(record["recipe"])
        settings = build(recipe.settings, record["settings"])
        if isinstance(settings, RankerTraining):
            return str(fresh_ranker(source, settings, tell=lambda line: None).digest())
        return str(starting_encoder(source, settings).digest())
    except (HardnegError, KeyError, OSError):
        return None


def same_name(one: str, another: str) -> bool:
    """Whether two places may name the same model: folders may have moved, and an experiment names its model."""
    parts = names_of(one), names_of(another)
    both = min(map(len, parts))
    return parts[0][-both:] == parts[1][-both:]


def names_of(place: str) -> tuple[str, ...]:
    """The names by which a model is known: of a folder its own, and the experiment's if hardneg trained it."""
    path = Path(place)
    if path.name == "model" and path.parent.name:
        path = path.parent
    return (path.name,) if path.is_dir() or path.is_absolute() else path.parts

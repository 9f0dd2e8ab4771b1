"""Lines that say, before training, how settings change the model from the state in which it came."""

from __future__ import annotations

import dataclasses
from typing import Any

from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import PretrainedModel
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.starting_model import settings_of
from hardneg.shown import as_set

PROMPTS = ("query_prompt", "passage_prompt")
FAMILY = (*PROMPTS, "query_length", "passage_length")  # what `prompts` decides of a model


def overridden(settings: TrainingSettings, model: PretrainedModel, start: BiEncoder) -> list[str]:
    """A line for each way in which training changes the model that came, with the preset or setting behind it.

    The list is empty if the model's own two towers have different settings.

    Parameters
    ----------
    start : the model as training starts with it.
    """
    if (own := settings_of(model)) is None:
        return []
    names = [field.name for field in dataclasses.fields(EncoderSettings)]
    changes = [(name, getattr(own, name), getattr(start.settings, name)) for name in names]
    changes.append(("towers", "tied" if model.tied else "untied", "tied" if start.tied else "untied"))
    lines = [
        f"{name}: the model's {shown(name, old)} -> {shown(name, new)}{note(name, new, start)}"
        f" ({origin(settings, name)})"
        for name, old, new in changes
        if old != new
    ]
    if settings.reinit_layers:
        why = origin(settings, "reinit_layers")
        lines.append(f"reinit_layers: the top {settings.reinit_layers} of the model's layers begin anew ({why})")
    if start.settings.normalize or (own.normalize and start.settings.scale != 1):
        score = "cosine" if start.settings.normalize else "product of vectors of any length"
        lines.append(f"scale: logits are {start.settings.scale:g} times the {score} ({scale_of(settings, own)})")
    return lines


def scale_of(settings: TrainingSettings, own: EncoderSettings) -> str:
    """The origin of the scale of cosine scores, in words."""
    if settings.scale is not None:
        return settings.origin_of("scale")
    return "the model's own, or that of sentence-transformers" if own.normalize else "set scale = 20"


def origin(settings: TrainingSettings, name: str) -> str:
    """Where a setting of the encoder comes from, in words: a preset, a file, the user, or the recipe itself."""
    if settings.prompts is not None and name in FAMILY and getattr(settings, name) is None:
        return f"prompts {settings.prompts}"
    return settings.origin_of(name)


def note(name: str, new: Any, start: BiEncoder) -> str:
    """The note on a head that the model did not bring, or on queries of another length in search; else ""."""
    if name == "query_length" and start.settings.search_query_length not in (None, new):
        return f" in training; search and test keep search_query_length = {start.settings.search_query_length}"
    return ", fresh" if name == "head" and new == "ance" else ""


def shown(name: str, value: Any) -> str:
    """A value in the spelling of settings; a prompt in quotes, because its last space counts."""
    return repr(value) if name in PROMPTS else as_set(value)

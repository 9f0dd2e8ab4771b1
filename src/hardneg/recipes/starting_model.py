"""The model that training starts from: loaded from its source, and changed as the settings say."""

from __future__ import annotations

import dataclasses

from hardneg.data.tokens import check_prompt
from hardneg.errors import SettingsError
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import PretrainedModel, open_encoder, read_model
from hardneg.models.reinit import reinitialize
from hardneg.models.source import ModelSource
from hardneg.recipes.settings import TrainingSettings
from hardneg.records import Side


def own_encoder(source: ModelSource, settings: TrainingSettings) -> BiEncoder:
    """The model as it came, with the prompts and lengths of its family if the settings name one."""
    return open_encoder(dataclasses.replace(source, prompts=settings.prompts))


def starting_encoder(source: ModelSource, settings: TrainingSettings) -> BiEncoder:
    """A fresh model as training starts with it: with what the settings override."""
    return trained_encoder(read_model(source), settings)


def trained_encoder(model: PretrainedModel, settings: TrainingSettings) -> BiEncoder:
    """Make the model that training starts with from a model that was read."""
    if settings.towers == "tied" and not model.tied:
        what = "towers = tied, but there are two models"
        raise SettingsError("TWO_MODELS", what, "give one, or towers = untied")
    encoder = model.encoder(family=settings.prompts, **settings.encoder_overrides)
    prompt, in_steps = encoder.settings.passage_prompt, settings.train_passage_length
    check_prompt(encoder.tokenizer("passage"), "passage", prompt, "train_passage_length", in_steps)
    if in_steps is not None and in_steps > (length := encoder.settings.passage_length):
        what = (
            f"train_passage_length = {in_steps} is more than passage_length = {length}, which cuts in steps, too"
        )
        raise SettingsError("BAD_SETTING", what, "set a lower train_passage_length, or leave it out")
    if settings.towers == "untied":
        encoder = encoder.untied().eval()
    sides: tuple[Side, ...] = ("query",) if encoder.tied else ("query", "passage")
    for side in sides if settings.reinit_layers else ():
        reinitialize(encoder.tower(side).transformer, settings.reinit_layers, seed=settings.reinit_seed)
    return encoder


def settings_of(model: PretrainedModel, prompts: str | None = None) -> EncoderSettings | None:
    """The settings of a model as it came, with a family's prompts and lengths if one is named.

    The result is None if the settings of two towers differ, or if the family's texts are too long for the model.
    """
    try:
        return model.settings(family=prompts)
    except SettingsError as fault:
        if fault.code in ("TOWERS_DIFFER", "TOO_LONG"):
            return None
        raise

"""The model that training starts from: loaded from its source, and changed as the settings say."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from hardneg.errors import SettingsError
from hardneg.experiment.folder import Experiment
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import open_encoder
from hardneg.models.reinit import reinitialize
from hardneg.models.source import ModelSource
from hardneg.process.distributed import is_leader, world_size
from hardneg.process.progress import say
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.untrained import Own, own_model
from hardneg.records import Side


def own_encoder(source: ModelSource, settings: TrainingSettings) -> BiEncoder:
    """The model as it came, with the prompts and lengths of its family if the settings name one."""
    return open_encoder(dataclasses.replace(source, prompts=settings.prompts))


def untrained_encoder(source: ModelSource, settings: TrainingSettings) -> BiEncoder:
    """The model as it came; where it cannot be had so, as training starts with it."""
    try:
        return own_encoder(source, settings)
    except SettingsError:
        return starting_encoder(source, settings)


def starting_encoder(source: ModelSource, settings: TrainingSettings) -> BiEncoder:
    """A fresh model as training starts with it: with what the settings override."""
    told = dataclasses.replace(source, prompts=settings.prompts)
    encoder = open_encoder(told, **settings.encoder_overrides)
    if settings.towers == "tied" and not encoder.tied:
        what = "towers = tied, and there are two models"
        raise SettingsError("TWO_MODELS", what, "give one, or towers = untied")
    if settings.towers == "untied" and encoder.tied:
        untied = dataclasses.replace(told, passage_model=source.model)
        encoder = open_encoder(untied, **settings.encoder_overrides)
    sides: tuple[Side, ...] = ("query",) if encoder.tied else ("query", "passage")
    for side in sides if settings.reinit_layers else ():
        reinitialize(encoder.tower(side).transformer, settings.reinit_layers, seed=settings.reinit_seed)
    return encoder


def as_it_came(
    source: ModelSource, settings: TrainingSettings, start: BiEncoder
) -> tuple[Own | None, EncoderSettings]:
    """The model as it came, if training does not start from it, and its own settings.

    There is none where two towers do not agree unless they are told to, or a family's texts are too long for it.
    """
    try:
        own = own_encoder(source, settings)
    except SettingsError as fault:
        if fault.code in ("TOWERS_DIFFER", "TOO_LONG"):
            return None, start.settings
        raise
    return own_model(
        own, start, partial(own_encoder, source, settings), reinit=settings.reinit_layers
    ), own.settings


def say_what_differs(experiment: Experiment, device: str) -> None:
    """A line where an experiment goes on elsewhere than it began: its last bits may differ, and nothing else."""
    if not is_leader():
        return
    where = {"threads": torch.get_num_threads(), "processes": world_size(), "device": torch.device(device).type}
    changed = [f"{name} {then} before, {now} now" for name, (then, now) in experiment.begin(where).items()]
    if changed:
        what = f"{experiment.path}: {', '.join(changed)}; figures will agree, but for rounding, and bytes will not"
        say(what)

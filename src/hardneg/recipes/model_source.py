"""Which model, and how it is loaded; what else training starts from: the splits, and the machine."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardneg.arguments import check_fields
from hardneg.data.training_data import AUTO
from hardneg.errors import SettingsError
from hardneg.experiment.folder import Experiment
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.loading import load_encoder
from hardneg.models.pretrained import PACKAGE
from hardneg.models.reinit import reinitialize
from hardneg.process.distributed import is_leader, world_size
from hardneg.process.progress import say
from hardneg.process.threads import pick_device
from hardneg.recipes.settings import TrainingSettings
from hardneg.recipes.untrained import Own, own_model
from hardneg.records import Side

Place = str | Path


@dataclasses.dataclass(frozen=True)
class Splits:
    """Which splits train, steer and judge.

    Attributes
    ----------
    dev : a name; ``auto``: the split "dev" or, without one that has judgements, "dev.small" or "validation", else
        min(500, 10 %) of the training queries, held out; ``none``.
    test : a name, or ``none``; the default is passed over where it is absent or has nothing to measure by.
    """

    train: str = "train"
    dev: str = AUTO
    test: str = "test"

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_SPLITS = Splits()


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A bi-encoder, before it is loaded: where it comes from and how it is read.

    Attributes
    ----------
    model, passage_model, allow_bin, prompts : see :func:`~hardneg.models.loading.load_encoder`. Where one trains,
        the settings say the prompts.
    device : as everywhere; None: CUDA where there is one.
    query_length, passage_length : tokens to cut at, in place of the model's own.
    """

    model: str
    passage_model: str | None = None
    allow_bin: bool = False
    device: str | None = None
    prompts: str | None = None
    query_length: int | None = None
    passage_length: int | None = None

    @classmethod
    def at(cls, model: Place, passage_model: Place | None = None, **options: Any) -> ModelSource:
        """That of places as users give them."""
        return cls(str(model), None if passage_model is None else str(passage_model), **options)

    @property
    def name(self) -> str:
        """What people call it; never where it lies."""
        names = [self.model] if self.passage_model is None else [self.model, self.passage_model]
        return " and ".join(Path(name).name if Path(name).is_dir() else name for name in names)

    @property
    def hub_name(self) -> str | None:
        """Its name on the hub, if that is where it comes from."""
        local = self.model.startswith(PACKAGE) or Path(self.model).expanduser().exists()
        return None if local else self.model

    @property
    def device_here(self) -> str:
        """The device, chosen now where none is named; raises :class:`SettingsError` where it is not here."""
        return pick_device(self.device)

    @property
    def lengths(self) -> dict[str, Any]:
        """The lengths that replace the model's own, as encoders name them; a query's is that of search too."""
        lengths: dict[str, Any] = {}
        if self.query_length is not None:
            lengths |= {"query_length": self.query_length, "search_query_length": None}
        return lengths if self.passage_length is None else lengths | {"passage_length": self.passage_length}

    def encoder(self, **overrides: Any) -> BiEncoder:
        """The model, loaded; ``overrides``, fields of the encoder's settings, win over prompts and lengths."""
        return load_encoder(
            self.model,
            self.passage_model,
            device=self.device_here,
            allow_bin=self.allow_bin,
            prompts=self.prompts,
            **self.lengths | overrides,
        )

    def tokenizing(self, **overrides: Any) -> BiEncoder:
        """The model alone, as it comes and on the CPU: loaded for its tokenizer."""
        return ModelSource(self.model, allow_bin=self.allow_bin, device="cpu").encoder(**overrides)

    def own(self, settings: TrainingSettings) -> BiEncoder:
        """The model as it came, with the prompts and lengths of its family if the settings name one."""
        return dataclasses.replace(self, prompts=settings.prompts).encoder()

    def untrained(self, settings: TrainingSettings) -> BiEncoder:
        """The model as it came; where it cannot be had so, as training starts with it."""
        try:
            return self.own(settings)
        except SettingsError:
            return self.load(settings)

    def load(self, settings: TrainingSettings) -> BiEncoder:
        """A fresh one, with what the settings override."""
        told = dataclasses.replace(self, prompts=settings.prompts)
        encoder = told.encoder(**settings.encoder_overrides)
        if settings.towers == "tied" and not encoder.tied:
            what = "towers = tied, and there are two models"
            raise SettingsError("TWO_MODELS", what, "give one, or towers = untied")
        if settings.towers == "untied" and encoder.tied:
            untied = dataclasses.replace(told, passage_model=self.model)
            encoder = untied.encoder(**settings.encoder_overrides)
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
        own = source.own(settings)
    except SettingsError as fault:
        if fault.code in ("TOWERS_DIFFER", "TOO_LONG"):
            return None, start.settings
        raise
    return own_model(own, start, partial(source.own, settings), reinit=settings.reinit_layers), own.settings


def say_what_differs(experiment: Experiment, device: str) -> None:
    """A line where an experiment goes on elsewhere than it began: its last bits may differ, and nothing else."""
    if not is_leader():
        return
    where = {"threads": torch.get_num_threads(), "processes": world_size(), "device": torch.device(device).type}
    changed = [f"{name} {then} before, {now} now" for name, (then, now) in experiment.begin(where).items()]
    if changed:
        what = f"{experiment.path}: {', '.join(changed)}; figures will agree, but for rounding, and bytes will not"
        say(what)

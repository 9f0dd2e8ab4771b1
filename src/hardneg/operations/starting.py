"""What training starts from: the splits, and the pretrained encoder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hardneg.data.training_data import AUTO
from hardneg.errors import SettingsError
from hardneg.experiment.settings import TrainingSettings
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import load_encoder
from hardneg.models.pretrained import PACKAGE
from hardneg.models.reinit import reinitialize
from hardneg.records import Side


@dataclasses.dataclass(frozen=True)
class Splits:
    """Which splits train, steer and judge.

    Attributes
    ----------
    dev : a name; ``auto``: the split "dev", else min(500, 10 %) of the training queries, held out; ``none``.
    test : a name, or ``none``; the default is passed over where it is absent.
    """

    train: str = "train"
    dev: str = AUTO
    test: str = "test"


DEFAULT_SPLITS = Splits()


@dataclasses.dataclass(frozen=True)
class Base:
    """The pretrained encoder that every episode starts from."""

    model: str
    passage_model: str | None
    allow_bin: bool
    device: str

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

    def own(self, settings: TrainingSettings) -> BiEncoder:
        """The model as it came, with the prompts and lengths of its family if one is named."""
        options: dict[str, Any] = {"device": self.device, "allow_bin": self.allow_bin, "prompts": settings.prompts}
        return load_encoder(self.model, self.passage_model, **options)

    def load(self, settings: TrainingSettings) -> BiEncoder:
        """A fresh one, with what the settings override."""
        options: dict[str, Any] = {
            "device": self.device,
            "allow_bin": self.allow_bin,
            "prompts": settings.prompts,
            **settings.encoder_overrides,
        }
        encoder = load_encoder(self.model, self.passage_model, **options)
        if settings.towers == "tied" and not encoder.tied:
            what = "towers = tied, and there are two models"
            raise SettingsError("TWO_MODELS", what, "give one, or towers = untied")
        if settings.towers == "untied" and encoder.tied:
            encoder = load_encoder(self.model, self.model, **options)
        sides: tuple[Side, ...] = ("query",) if encoder.tied else ("query", "passage")
        for side in sides if settings.reinit_layers else ():
            reinitialize(encoder.tower(side).transformer, settings.reinit_layers, seed=settings.reinit_seed)
        return encoder

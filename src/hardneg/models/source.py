"""Where models come from and what may be read of them, as one record. This module loads no torch."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from hardneg.data.formats.folders import was_manifest
from hardneg.models.code import allowed_code
from hardneg.process.threads import pick_device
from hardneg.storage.artifacts import MANIFEST, Manifest, is_published
from hardneg.storage.digests import in_home

PACKAGE = "package:"  # before the name of an installed package that carries a model
REMEMBERED = "models"  # the cache's folder of what was read of models, so that they are opened faster
OURS = ("model", "ranker")  # the kinds of models that hardneg publishes
OUR_KEYS = Manifest("").as_json().keys()
Place = str | Path


def has_manifest(folder: Path) -> bool:
    """Whether hardneg wrote the manifest in a model's folder. Other programs name files of theirs so too."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return False
    try:
        raw = json.loads(manifest.read_bytes())
    except (ValueError, RecursionError, OSError):
        return any(was_manifest(manifest, kind) for kind in OURS)
    # Other programs list files or name a kind, too. A damaged manifest of ours may lack a key.
    return isinstance(raw, dict) and 2 * len(OUR_KEYS & raw.keys()) > len(OUR_KEYS)


def trained_name(place: Place) -> str | None:
    """The name for people of a model that hardneg trained, ``EXPERIMENT/model``; None for any other model."""
    made = has_manifest(Path(place)) and any(is_published(Path(place), kind) for kind in OURS)
    return os.path.join(*Path(place).absolute().parts[-2:]) if made else None


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """The models of a command before they are loaded: where they come from, and how they are read.

    Attributes
    ----------
    model, passage_model : the bi-encoder, and a second one for the passages where there are two towers: each a
        folder, ``package:NAME``, or a name on the hub.
    ranker : a cross-encoder that scores pairs, in the same three forms; None: there is none.
    filter_by, teacher : frozen models that score pairs, bi-encoders or cross-encoders. The bounds on mined
        negatives compare the scores of ``filter_by``; ``teacher`` is distilled.
    prompts : a family whose prompts and lengths to take; in training, the settings name it.
    query_prompt, passage_prompt : texts to put before queries and passages, in place of the model's own prompts.
    query_length, passage_length : tokens to cut at, in place of the model's own.
    allow_bin : read ``.bin`` weights, with torch's restricted loader.
    allow_code : revisions at which models may run their own code; by default, those that this process allows.
    device : the device to compute on; None: CUDA where there is one.
    """

    model: str
    passage_model: str | None = None
    ranker: str | None = None
    filter_by: str | None = None
    teacher: str | None = None
    prompts: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    query_length: int | None = None
    passage_length: int | None = None
    allow_bin: bool = False
    allow_code: tuple[str, ...] = dataclasses.field(default_factory=allowed_code)
    device: str | None = None

    @classmethod
    def at(cls, model: Place, passage_model: Place | None = None, **options: Any) -> ModelSource:
        """Make a record of places as users give them; ``options`` are the other fields."""
        return cls(str(model), None if passage_model is None else str(passage_model), **options)

    @property
    def places(self) -> list[str]:
        """The places of the bi-encoder's models: one for both sides, or one for queries and one for passages."""
        return [self.model] if self.passage_model is None else [self.model, self.passage_model]

    @property
    def name(self) -> str:
        """The bi-encoder's name for people: a folder's own name; ``EXPERIMENT/model`` if hardneg trained it."""
        own = [trained_name(name) or (Path(name).name if Path(name).is_dir() else name) for name in self.places]
        return " and ".join(own)

    @property
    def trained_name(self) -> str | None:
        """The name of the model, or of the query model, if hardneg trained it; else None."""
        return trained_name(self.model)

    @property
    def of_ranker(self) -> ModelSource:
        """The record of the model that a ranker begins with: the named ranker, or the query model."""
        return dataclasses.replace(self, model=self.ranker or self.model, passage_model=None)

    @property
    def hub_name(self) -> str | None:
        """The model's name on the hub, if that is where it comes from."""
        local = self.model.startswith(PACKAGE) or in_home(self.model).exists()
        return None if local else self.model

    @property
    def device_here(self) -> str:
        """The named device, or the one chosen now; raises :class:`SettingsError` where it does not exist."""
        return pick_device(self.device)

    @property
    def told(self) -> dict[str, Any]:
        """The prompts and lengths that replace the model's own, by the names of encoder settings.

        The length of queries also holds in search.
        """
        names = ("query_prompt", "passage_prompt", "query_length", "passage_length")
        told = {name: value for name in names if (value := getattr(self, name)) is not None}
        return told | {"search_query_length": None} if "query_length" in told else told

    @property
    def tokenizing(self) -> ModelSource:
        """The record of the query model alone on the CPU, for a command that needs only its tokenizer."""
        return ModelSource(self.model, allow_bin=self.allow_bin, allow_code=self.allow_code, device="cpu")

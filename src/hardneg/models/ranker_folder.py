"""The folder of a ranker as a format: ours, sentence-transformers' ``CrossEncoder``, a plain classifier."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardneg.arguments import brief
from hardneg.errors import InputError, SettingsError
from hardneg.models.cross_encoder import KIND, Activation, RankerSettings
from hardneg.models.pretrained import read_json_object
from hardneg.models.source import has_manifest
from hardneg.models.st_folder import CONFIG, MODULES, TRANSFORMER_CONFIG, pair_length, read_modules
from hardneg.models.warned import warn_once
from hardneg.storage.artifacts import open_artifact, read_manifest

log = logging.getLogger(__name__)

SETTINGS = "hardneg_ranker.json"  # settings that no other format has a place for
TASK = "sequence-classification"
ONE_LABEL = "give a cross-encoder of one label, or train one"
CLASSIFIER = "ForSequenceClassification"  # how the names of transformers' classes end
OF_HEADS = ("classifier", "score", "classification_head")  # how the names of the weights of their heads begin
ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
FUNCTIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}


class ManyLabels(SettingsError):
    """A folder is of a classifier of several labels: no ranker, and no bi-encoder either.

    A new ranker may begin with its transformer, as many begin with a model of natural language inference.
    """


@dataclass(frozen=True)
class RankerFolder:
    """The settings in the folder of a ranker; weights and tokenizer are not among them.

    Attributes
    ----------
    transformer : where weights and tokenizer lie.
    length : the most tokens of a pair; None: the tokenizer and the positions say it.
    settings : as this package saved them; None: it did not.
    longest : the most tokens of a pair that the ranker can be given, as this package saved it; None: it did not.
    """

    transformer: Path
    length: int | None
    activation: Activation
    settings: RankerSettings | None
    longest: int | None = None


def is_marked(folder: Path) -> bool:
    """Whether this package, or sentence-transformers, says that the folder is of a ranker."""
    if (folder / SETTINGS).is_file():
        return True
    if has_manifest(folder):
        return read_manifest(folder).kind == KIND
    return _json(folder / CONFIG).get("model_type") == "CrossEncoder"


def is_classifier(folder: Path) -> bool:
    """Whether a Hugging Face folder is of a sequence classifier with one label."""
    return labels_of(folder) == 1


def labels_of(folder: Path) -> int | None:
    """The number of labels of a sequence classifier; None: the folder is of another model."""
    config = _json(folder / "config.json")
    return _labels(config) if _classifies(config) else None


def has_classifier(weights: Iterable[str]) -> bool:
    """Whether any of these names of weights is one of a classification head, as transformers calls it."""
    return any(name.partition(".")[0] in OF_HEADS for name in weights)


def refuse_ranker(folder: Path) -> SettingsError:
    """The fault for a ranker, or another classifier, that is given where a bi-encoder is needed."""
    labels = labels_of(transformer_of(folder))
    if labels not in (None, 1):
        what = f"this is a classifier of {labels} labels: its vectors were never trained to be compared"
        return ManyLabels("IS_A_RANKER", what, "give a bi-encoder, or an encoder without such a head", path=folder)
    what = "this is a ranker, which scores pairs of texts: it makes no vectors"
    return SettingsError("IS_A_RANKER", what, "give a bi-encoder, or use it as a ranker", path=folder)


def read_ranker_folder(folder: Path) -> RankerFolder:
    """Read what the files of a ranker say; weights and tokenizer stay on disk.

    Raises
    ------
    SettingsError : it is of another model, or has a module or an activation that this package does not compute.
    InputError : a file is broken.
    ArtifactError : a folder of ours is corrupt.
    TrustError : a module is somebody's own code.
    """
    if has_manifest(folder):
        if read_manifest(folder).kind == "model":
            raise _not_a_ranker("this is a bi-encoder, which makes vectors", folder)
        open_artifact(folder, KIND)
    transformer = _transformer(folder)
    config = _json(transformer / "config.json")
    if not _classifies(config):
        raise _not_a_ranker("this is a model without a classification head", folder)
    if (labels := _labels(config)) != 1:
        raise ManyLabels("NOT_A_RANKER", f"this is a classifier of {labels} labels", ONE_LABEL, path=folder)
    if prompt := default_prompt(_json(folder / CONFIG)):
        message = (
            "%s: CrossEncoder puts its default prompt %s before the texts; hardneg does not, so scores differ"
        )
        warn_once(log, folder, message, brief(prompt))
    length = pair_length(transformer, folder) if (folder / MODULES).is_file() else None
    longest = _json(folder / SETTINGS).get("longest")
    return RankerFolder(transformer, length, _activation(folder, config), _settings(folder), longest)


def default_prompt(config: Mapping[str, Any]) -> str:
    """The prompt that sentence-transformers' ``CrossEncoder`` puts before texts by default, or ""."""
    prompts = config.get("prompts")
    return str(prompts.get(config.get("default_prompt_name")) or "") if isinstance(prompts, dict) else ""


def transformer_of(folder: Path) -> Path:
    """The folder of a bi-encoder's transformer, for a new ranker; with two towers that of the query tower."""
    if (folder / "query").is_dir() and not (folder / "config.json").is_file():
        folder = folder / "query"
    modules = read_modules(folder) if (folder / MODULES).is_file() else []
    return modules[0].folder if modules else folder


def _transformer(folder: Path) -> Path:
    if not (folder / MODULES).is_file():
        if not (folder / "config.json").is_file() and (folder / "query").is_dir():
            raise _not_a_ranker("this is a bi-encoder of two towers", folder)
        return folder
    modules = read_modules(folder)
    kinds = " → ".join(module.kind for module in modules) or "no modules"
    if _json(folder / CONFIG).get("model_type") != "CrossEncoder":
        raise _not_a_ranker(f"this is a bi-encoder ({kinds})", folder)
    if (
        kinds != "Transformer"
        or _json(modules[0].folder / TRANSFORMER_CONFIG).get("transformer_task", TASK) != TASK
    ):
        raise _unsupported(f"{kinds} in a CrossEncoder", folder / MODULES)
    return modules[0].folder


def _activation(folder: Path, config: dict[str, Any]) -> Activation:
    """The activation after the score, in newer or older spelling; sentence-transformers' default is a sigmoid."""
    modular = _json(folder / CONFIG) if (folder / MODULES).is_file() else {}
    old = config.get("sentence_transformers") or {}
    said = modular.get("activation_fn") or old.get("activation_fn")
    said = str(said or config.get("sbert_ce_default_activation_function") or FUNCTIONS["sigmoid"])
    name = said.rsplit(".", 1)[-1]
    if not said.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise _unsupported(f"the activation {said}", folder)
    return ACTIVATIONS[name]


def _settings(folder: Path) -> RankerSettings | None:
    file = folder / SETTINGS
    if not file.is_file():
        return None
    try:
        return RankerSettings(**read_json_object(file)["settings"])
    except (KeyError, TypeError) as fault:
        what = f"not the settings of a ranker ({fault})"
        raise InputError("BAD_MODEL", what, "save the model again", path=file) from fault


def _classifies(config: dict[str, Any]) -> bool:
    return any(str(name).endswith(CLASSIFIER) for name in config.get("architectures") or ())


def _labels(config: dict[str, Any]) -> int:
    """The number of labels of a classifier; without a setting it is transformers' default, two."""
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) else int(config.get("num_labels") or 2)


def _json(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.is_file() else {}


def _not_a_ranker(what: str, folder: Path) -> SettingsError:
    return SettingsError("NOT_A_RANKER", what, ONE_LABEL, path=folder)


def _unsupported(what: str, path: Path) -> SettingsError:
    fix = "use a Transformer for sequence classification, with Identity or Sigmoid"
    return SettingsError("UNSUPPORTED_MODULE", f"{what} is not supported", fix, path=path)

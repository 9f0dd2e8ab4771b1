"""The sentence-transformers directory as a format: what its modules say, in old and new spellings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hardneg.arguments import brief
from hardneg.errors import InputError, SettingsError, TrustError
from hardneg.models.bi_encoder import AnceHead
from hardneg.models.pooling import Pooling
from hardneg.models.pretrained import find_weights, read_json_file, read_json_object, read_tensors
from hardneg.models.source import ModelSource

log = logging.getLogger(__name__)

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
TRANSFORMER_CONFIG = "sentence_bert_config.json"
DENSE_WEIGHTS = ("model.safetensors",)

LIBRARY = "sentence_transformers."
POOLING: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
LEGACY_POOLING = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
PASSAGE_PROMPTS = ("document", "passage", "corpus")


@dataclass(frozen=True)
class Module:
    """One entry of ``modules.json``."""

    kind: str
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """The settings in the module's ``config.json``; {} where it has no such file."""
        file = self.folder / "config.json"
        return read_json_object(file) if file.is_file() else {}


@dataclass(frozen=True)
class SentenceFolder:
    """The settings of a sentence-transformers directory, and the places of its parts."""

    transformer: Path
    pooling: Pooling
    head: tuple[Path, Path] | None  # folders of Dense and LayerNorm
    normalize: bool
    dim: int | None  # the vector is cut to it
    max_length: int | None
    lower_case: bool
    query_prompt: str
    passage_prompt: str
    similarity: str | None


def read_st_folder(folder: Path, source: ModelSource) -> SentenceFolder:
    """Read the modules and settings of a directory; weights and tokenizer stay on disk.

    Raises
    ------
    SettingsError : it has a module, or a setting of one, that this package does not compute; the name is given.
    TrustError : a module is somebody's own code.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise _unsupported(" → ".join(kinds) or "no modules", folder / MODULES)
    rest = modules[2:]
    head = None
    if [module.kind for module in rest[:2]] == ["Dense", "LayerNorm"]:
        head = _ance_head(rest[0], rest[1])
        rest = rest[2:]
    normalize = bool(rest) and rest[0].kind == "Normalize"
    rest = rest[normalize:]
    dim = _cut(rest.pop(), source) if len(rest) == 1 and rest[0].kind == "Dense" else None
    if rest:
        raise _unsupported(rest[0].kind, folder / MODULES)
    settings = _transformer_settings(modules[0].folder)
    prompts, similarity = _prompts(folder)
    named = [name for name, prompt in prompts.items() if prompt]
    if named and not {"query", *PASSAGE_PROMPTS} & {*named}:
        log.warning(
            "%s has prompts, but none for queries or passages (%s), so texts get none; trainings have the"
            " settings query_prompt and passage_prompt",
            folder.name,
            f"{', '.join(named):.80}",
        )
    return SentenceFolder(
        transformer=modules[0].folder,
        pooling=_pooling(modules[1]),
        head=head,
        normalize=normalize,
        dim=dim,
        max_length=settings.get("max_seq_length"),
        lower_case=bool(settings.get("do_lower_case")),
        query_prompt=prompts.get("query") or "",
        passage_prompt=next((prompts[name] or "" for name in PASSAGE_PROMPTS if prompts.get(name)), ""),
        similarity=similarity,
    )


def read_ance_head(folders: tuple[Path, Path], width: int, source: ModelSource) -> AnceHead:
    """Read the ANCE head from its Dense and LayerNorm folders."""
    head = AnceHead(width)
    state = {
        name: tensor
        for folder in folders
        for name, tensor in read_tensors(find_weights(folder, source, DENSE_WEIGHTS)).items()
    }
    if {name: tensor.shape for name, tensor in state.items()} != {
        name: tensor.shape for name, tensor in head.state_dict().items()
    }:
        raise InputError(
            "BAD_MODEL",
            f"the head holds {sorted(state)}",
            f"it needs Linear({width}, {width}) and LayerNorm",
            path=folders[0],
        )
    head.load_state_dict(state)
    return head


def read_modules(folder: Path) -> list[Module]:
    """The entries of ``modules.json``.

    Raises
    ------
    InputError : the file is broken.
    TrustError : a module is somebody's own code.
    """
    modules = []
    entries = read_json_file(folder / MODULES)
    shapes = [isinstance(entry, dict) and {"type", "path"} <= entry.keys() for entry in entries or ()]
    if not all(shapes):
        what = "an entry without a type and a path"
        raise InputError("BAD_MODEL", what, "get the model folder again", path=folder / MODULES)
    for entry in entries:
        name = str(entry["type"])
        if not name.startswith(LIBRARY):
            raise TrustError(
                "REMOTE_CODE",
                f"the module {name} is no module of sentence-transformers",
                "use a model of sentence-transformers' own modules",
                path=folder / MODULES,
            )
        modules.append(Module(name.rsplit(".", 1)[1], folder / entry["path"]))
    return modules


def _unsupported(name: str, path: Path) -> SettingsError:
    return SettingsError(
        "UNSUPPORTED_MODULE",
        f"{name} is not supported",
        "use Transformer, Pooling (cls, mean, lasttoken), optionally Dense + LayerNorm, Normalize",
        path=path,
    )


def _pooling(module: Module) -> Pooling:
    config = module.config
    mode = config.get("pooling_mode")
    if mode is None:
        mode = [name for name, key in LEGACY_POOLING.items() if config.get(key)] or ["mean"]
    modes = [mode] if isinstance(mode, str) else list(mode)
    if len(modes) != 1 or modes[0] not in POOLING:
        raise _unsupported(f"Pooling ({', '.join(modes)})", module.folder)
    if not config.get("include_prompt", True):
        raise _unsupported("Pooling that leaves out the prompt", module.folder)
    return POOLING[modes[0]]


def _ance_head(dense: Module, norm: Module) -> tuple[Path, Path]:
    if not _is_linear(dense) or not dense.config.get("bias", True):
        raise _unsupported(_dense_name(dense), dense.folder)
    return dense.folder, norm.folder


def _cut(dense: Module, source: ModelSource) -> int:
    """The number of first dimensions that a Dense module keeps; refused if it does anything else."""
    if _is_linear(dense) and not dense.config.get("bias", True):
        file = find_weights(dense.folder, source, DENSE_WEIGHTS)
        weight = read_tensors(file)["linear.weight"]
        if torch.equal(weight, torch.eye(*weight.shape)):
            return len(weight)
    raise _unsupported(_dense_name(dense), dense.folder)


def _is_linear(dense: Module) -> bool:
    activation = str(dense.config.get("activation_function", "Tanh"))
    return activation.endswith(".Identity") and not dense.config.get("use_residual", False)


def _dense_name(dense: Module) -> str:
    return f"Dense ({str(dense.config.get('activation_function', 'Tanh')).rsplit('.', 1)[-1]})"


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """The settings in ``sentence_bert_config.json`` or under an older name (``sentence_roberta_config.json``)."""
    files = [folder / TRANSFORMER_CONFIG, *sorted(folder.glob("sentence_*_config.json"))]
    return next((read_json_object(file) for file in files if file.is_file()), {})


def _prompts(folder: Path) -> tuple[dict[str, str | None], str | None]:
    file = folder / CONFIG
    config = read_json_object(file) if file.is_file() else {}
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(one, str | None) for one in prompts.values()):
        what = f"prompts = {brief(prompts)} is not an object of texts"
        raise InputError("BAD_MODEL", what, 'write them as in {"query": "query: "}', path=file)
    return prompts, config.get("similarity_fn_name")

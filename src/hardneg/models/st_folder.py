"""The sentence-transformers directory as a format: what its modules say, in old and new spellings."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardneg.arguments import brief
from hardneg.errors import InputError, SettingsError, TrustError
from hardneg.models.encoder_settings import Head
from hardneg.models.heads import ACTIVATIONS, AnceHead, DenseHead
from hardneg.models.pooling import Pooling
from hardneg.models.pretrained import find_weights, read_json_file, read_json_object, read_tensors
from hardneg.models.source import ModelSource
from hardneg.models.warned import warn_once

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
MEAN = LEGACY_POOLING["mean"]
LOADED = ("tokenizer_args", "processor_kwargs")  # the old and the new name of what a tokenizer is loaded with
CONFIGURED = ("config_args", "config_kwargs")
BUILT = ("model_args", "model_kwargs")
HARMLESS = {"trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "use_fast", "padding"}
HARMLESS_OF_MODEL = {"torch_dtype", "dtype", "attn_implementation", "add_pooling_layer", "device_map"}
HARMLESS_OF_MODEL |= {"low_cpu_mem_usage", "use_safetensors", "unpad_inputs"}

# What is read of each file, or changes no vector. A warning names anything else: a later version may know more.
READ = {
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
    "truncate_dim",
    "model_type",
    "__version__",
    "requirements",
}
READ_OF_TRANSFORMER = {*LOADED, *CONFIGURED, *BUILT, "processing_kwargs", "max_seq_length", "do_lower_case"}
READ_OF_TRANSFORMER |= {"query_length", "document_length", "query_expansion", "modality_config", "unpad_inputs"}
READ_OF_POOLING = {"pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension"}
READ_OF_POOLING |= {*LEGACY_POOLING.values()}
USUAL = {"transformer_task": ("feature-extraction", "sequence-classification")}
USUAL |= {
    "module_output_name": ("token_embeddings", "scores"),
    "method_output_name": ("last_hidden_state", "logits"),
}
SENTENCE = "sentence_embedding"  # what modules after pooling read and write
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
    head: Head
    head_modules: tuple[Module, ...]  # Dense and LayerNorm (ance), or one or more Dense
    normalize: bool
    dim: int | None  # the vector is cut to it, by a Dense module or by truncate_dim
    query_length: int | None  # most tokens; None: the folder does not say
    passage_length: int | None
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
    head, head_modules, rest = _head(modules[2:], source)
    normalize = bool(rest) and rest[0].kind == "Normalize" and not _other_vectors(rest[0])
    rest = rest[normalize:]
    dim = _cut(rest[0], source) if [module.kind for module in rest] == ["Dense"] else None
    if rest[dim is not None :]:
        raise _unsupported(_name_of(rest[0]), folder / MODULES)
    settings = _transformer_settings(modules[0].folder)
    query_length, passage_length, _ = _lengths(settings, folder, "vectors")
    told = _told(folder)
    _tell_unread(folder, "the model", [key for key in told if key not in READ and told[key]])
    pooling = modules[1].config
    _tell_unread(folder, "its pooling", [key for key in pooling if key not in READ_OF_POOLING and pooling[key]])
    prompts, similarity = _prompts(told, folder), told.get("similarity_fn_name")
    named = [name for name, prompt in prompts.items() if prompt]
    given = any(value is not None for value in (source.prompts, source.query_prompt, source.passage_prompt))
    if named and not given and not {"query", *PASSAGE_PROMPTS} & {*named}:
        message = (
            "%s has prompts, but none for queries or passages (%s), so texts get none; give query_prompt and"
            " passage_prompt"
        )
        warn_once(log, folder, message, f"{', '.join(named):.80}")
    return SentenceFolder(
        transformer=modules[0].folder,
        pooling=_pooling(modules[1]),
        head=head,
        head_modules=head_modules,
        normalize=normalize,
        dim=min((cut for cut in (dim, _truncation(told, folder)) if cut is not None), default=None),
        query_length=query_length,
        passage_length=passage_length,
        lower_case=bool(settings.get("do_lower_case")),
        query_prompt=prompts.get("query") or "",
        passage_prompt=next((prompts[name] or "" for name in PASSAGE_PROMPTS if prompts.get(name)), ""),
        similarity=similarity,
    )


def read_head(said: SentenceFolder, width: int, source: ModelSource) -> nn.Module | None:
    """Read the head that a directory has after pooling, for pooled vectors of this width; None if it has none.

    Raises
    ------
    InputError : its weights do not fit together.
    """
    if said.head == "none":
        return None
    stored = [read_tensors(find_weights(one.folder, source, DENSE_WEIGHTS)) for one in said.head_modules]
    if said.head == "ance":
        return _ance_head(stored[0] | stored[1], width, said.head_modules[0].folder)
    for module, state in zip(said.head_modules, stored, strict=True):
        weight, bias = state.get("linear.weight"), state.get("linear.bias")
        sound = weight is not None and weight.ndim == 2 and weight.shape[1] == width
        if weight is None or not sound or (bias is not None and bias.shape != weight.shape[:1]):
            what = f"the layer does not take vectors of {width} dimensions"
            raise InputError("BAD_MODEL", what, "get the model folder again", path=module.folder)
        width = len(weight)
    layers = [(state["linear.weight"].float(), _float(state.get("linear.bias"))) for state in stored]
    return DenseHead(layers, [_activation(module) for module in said.head_modules])


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _ance_head(state: dict[str, Tensor], width: int, folder: Path) -> AnceHead:
    """The ANCE head with these weights of its Dense and LayerNorm."""
    head = AnceHead(width)
    if {name: tensor.shape for name, tensor in state.items()} != {
        name: tensor.shape for name, tensor in head.state_dict().items()
    }:
        what = f"the head holds {sorted(state)}"
        raise InputError("BAD_MODEL", what, f"it needs Linear({width}, {width}) and LayerNorm", path=folder)
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
        "use Transformer, Pooling (cls, mean, lasttoken), optionally Dense, LayerNorm after one Dense, Normalize",
        path=path,
    )


def _chat(folder: Path) -> SettingsError:
    """The fault for a transformer that sentence-transformers gives every text as a message of a chat."""
    what = "Transformer that applies a chat template to every text is not supported"
    fix = "choose another model; or, to train on texts without it, take message out of modality_config"
    return SettingsError("UNSUPPORTED_MODULE", what, f"{fix} in {TRANSFORMER_CONFIG}", path=folder)


def mode_of(pooling: Pooling) -> str:
    """What sentence-transformers calls a pooling; raises :class:`SettingsError` where it has no name for it."""
    for mode, name in POOLING.items():
        if name == pooling:
            return mode
    what = f"pooling = {pooling} has no name in sentence-transformers, so its folders cannot say it"
    raise SettingsError("UNSUPPORTED_MODULE", what, "save a model with another pooling")


def _pooling(module: Module) -> Pooling:
    config = module.config
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else _flagged(module) if mode is None else list(mode)
    if len(modes) != 1 or modes[0] not in POOLING:
        raise _unsupported(f"Pooling ({', '.join(modes)})", module.folder)
    if not config.get("include_prompt", True):
        raise _unsupported("Pooling that leaves out the prompt", module.folder)
    return POOLING[modes[0]]


def _flagged(module: Module) -> list[str]:
    """The modes whose flags are true in the old spelling; one that says nothing about the mean means the mean."""
    config = module.config
    modes = [mode for mode, key in LEGACY_POOLING.items() if config.get(key)]
    unknown = sorted(key for key in config if key.startswith("pooling_mode_") and config[key])
    unknown = [key for key in unknown if key not in LEGACY_POOLING.values()]
    if unknown:
        raise _unsupported(f"Pooling ({', '.join([*modes, *unknown])})", module.folder)
    if not modes and config.get(MEAN) is False:
        log.warning("%s: no pooling mode is true; the mean is taken, as sentence-transformers does", module.folder)
    return modes or ["mean"]


def _head(rest: list[Module], source: ModelSource) -> tuple[Head, tuple[Module, ...], list[Module]]:
    """The kind of the head, its modules, and what comes after it.

    A Dense module at the end may be no part of the head: if nothing normalises, and it keeps the first dimensions
    as they are, it cuts the vectors.
    """
    if [module.kind for module in rest[:2]] == ["Dense", "LayerNorm"]:
        _check_dense(rest[0])
        if _activation(rest[0]) != "Identity" or not rest[0].config.get("bias", True):
            raise _unsupported(_name_of(rest[0]), rest[0].folder)
        return "ance", tuple(rest[:2]), rest[2:]
    dense = [*itertools.takewhile(lambda module: module.kind == "Dense", rest)]
    if dense and len(dense) == len(rest) and _cut(dense[-1], source) is not None:
        dense.pop()
    for module in dense:
        _check_dense(module)
    return ("dense" if dense else "none"), tuple(dense), rest[len(dense) :]


def _cut(dense: Module, source: ModelSource) -> int | None:
    """The number of first dimensions that a Dense module keeps; None if it does anything else."""
    plain = _activation(dense) == "Identity" and not dense.config.get("use_residual", False)
    if plain and not dense.config.get("bias", True):
        weight = read_tensors(find_weights(dense.folder, source, DENSE_WEIGHTS))["linear.weight"].float()
        if torch.equal(weight, torch.eye(*weight.shape)):
            return len(weight)
    return None


def _check_dense(dense: Module) -> None:
    """Refuse a layer that does something besides a product, an addition and a known activation."""
    if dense.config.get("use_residual") or _other_vectors(dense) or _activation(dense) not in ACTIVATIONS:
        raise _unsupported(_name_of(dense), dense.folder)


def _other_vectors(module: Module) -> list[str]:
    """The names of what a module reads or writes, where it is not the vector of the text."""
    named = (module.config.get(f"module_{way}_name") for way in ("input", "output"))
    return [str(name) for name in named if name not in (None, SENTENCE)]


def _activation(dense: Module) -> str:
    """The name of a layer's activation, as ``Tanh``."""
    return str(dense.config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]


def _name_of(module: Module) -> str:
    """The name of a module, and what is special about it."""
    if module.kind != "Dense":
        others = ", ".join(_other_vectors(module)) if module.kind == "Normalize" else ""
        return f"{module.kind} ({others})" if others else module.kind
    residual = ["use_residual"] * bool(module.config.get("use_residual"))
    return f"Dense ({', '.join([_activation(module), *residual, *_other_vectors(module)])})"


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """The settings in ``sentence_bert_config.json`` or under an older name (``sentence_roberta_config.json``)."""
    files = [folder / TRANSFORMER_CONFIG, *sorted(folder.glob("sentence_*_config.json"))]
    return next((read_json_object(file) for file in files if file.is_file()), {})


def pair_length(transformer: Path, folder: Path) -> int | None:
    """The most tokens of a pair that the settings of a ``CrossEncoder``'s transformer say; None: they say none."""
    return _lengths(_transformer_settings(transformer), folder, "scores")[2]


def _lengths(settings: dict[str, Any], folder: Path, results: str) -> tuple[int | None, int | None, int | None]:
    """The most tokens of a query, a passage and a pair that the settings of a transformer say; None: they do not.

    The first of these places counts, as in sentence-transformers 6: what its tokenizer is called with, the lengths
    of the two kinds of text, what the tokenizer is loaded with, ``max_seq_length``. ``results`` is what a warning
    calls the results of the model. Where a chat template makes messages of all texts, the settings are refused.
    """
    if "message" in _modalities(settings):
        raise _chat(folder)
    loaded, called = _options(settings, LOADED), _options(settings, ("processing_kwargs",))
    texts = called.pop("text", None) or {}
    both = texts.pop("max_length", None)
    most = loaded.pop("model_max_length", None) or settings.get("max_seq_length")
    besides = {**_options(settings, CONFIGURED), **_options(settings, BUILT), **loaded, **called, **texts}
    if besides.get("truncation") is True:  # so it is here, too
        del besides["truncation"]
    others = {*besides} - HARMLESS - HARMLESS_OF_MODEL
    others |= {key for key in settings if key not in READ_OF_TRANSFORMER and _is_unusual(settings, key)}
    others |= {key for key in ("query_expansion",) if settings.get(key)}
    others |= {"modality_config"} if _is_unusual(_text_of(settings), "method_output_name") else set()
    _tell_unread(folder, "its transformer", others, results)
    query, passage = (settings.get(f"{side}_length") for side in ("query", "document"))
    return both or query or most, both or passage or most, both or most


def _is_unusual(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a setting says anything but what every model of texts does."""
    return bool(settings.get(key)) and settings[key] not in USUAL.get(key, ())


def _modalities(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``modality_config`` says, by kinds of input; {} if nothing: then texts are read as they are."""
    kinds = settings.get("modality_config")
    return kinds if isinstance(kinds, dict) else {}


def _text_of(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``modality_config`` says about texts; {} if nothing."""
    text = _modalities(settings).get("text")
    return text if isinstance(text, dict) else {}


def _tell_unread(folder: Path, part: str, names: Collection[str], results: str = "vectors") -> None:
    """Warn of settings of a directory that are not applied here; ``results`` are the results of the model."""
    if names:
        told = "%s sets %s of %s, which is not applied here, so its %s may be other ones"
        warn_once(log, folder, told, f"{', '.join(sorted(names)):.80}", part, results)


def _options(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A copy of the options under the first of these names that is there, two levels deep."""
    found = next((one for name in names if isinstance(one := settings.get(name), dict)), {})
    return {key: dict(value) if isinstance(value, dict) else value for key, value in found.items()}


def _told(folder: Path) -> dict[str, Any]:
    """What a directory says about the model as a whole."""
    file = folder / CONFIG
    return read_json_object(file) if file.is_file() else {}


def _prompts(told: Mapping[str, Any], folder: Path) -> dict[str, str | None]:
    prompts = told.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(one, str | None) for one in prompts.values()):
        what = f"prompts = {brief(prompts)} is not an object of texts"
        raise InputError("BAD_MODEL", what, 'write them as in {"query": "query: "}', path=folder / CONFIG)
    return prompts


def _truncation(told: Mapping[str, Any], folder: Path) -> int | None:
    """The number of first dimensions that sentence-transformers keeps after all modules; None: all.

    As here, it does not normalise the cut vectors again.
    """
    dim = told.get("truncate_dim")
    if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool) or dim < 1):
        what = f"truncate_dim = {brief(dim)} is not a number of dimensions"
        raise InputError("BAD_MODEL", what, "give a whole number above 0, or null", path=folder / CONFIG)
    return dim

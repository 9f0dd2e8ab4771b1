"""A model's folder as transformers read it, kept in the cache, so that a search need not import transformers.

A record in the cache has the configuration and the tokenizer; weights come from the folder each time. It is found
by the digests of the folder's settings and tokenizer files, and by the versions of the packages that read them.
"""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from hardneg.errors import HardnegError
from hardneg.models.flat_attention import ATTENTION
from hardneg.models.plain_bert import KIND as BERT
from hardneg.models.plain_bert import NEEDED, PlainBert, PlainConfig, plain_bert
from hardneg.models.pretrained import SAFE_WEIGHTS, check_code, find_weights, read_tensors
from hardneg.models.source import REMEMBERED, ModelSource
from hardneg.storage.artifacts import (
    cached_digest,
    canonical_json,
    digest_json,
    is_published,
    open_artifact,
    publish,
    read_json,
)

KIND = REMEMBERED  # of a record
VERSION = 2
READ = ("*.json", "*.txt", "*.model")  # the files that transformers reads in a folder besides weights
PACKAGES = ("transformers", "tokenizers")
CONFIG, TOKENIZER = "config.json", "tokenizer.json"


@dataclasses.dataclass(frozen=True)
class PlainTokenizer:
    """The part of transformers' tokenizer that a tower reads."""

    backend_tokenizer: Tokenizer
    model_max_length: int
    init_kwargs: dict[str, Any]
    split_special_tokens: bool


@dataclasses.dataclass(frozen=True)
class Remembered:
    """A transformer and its tokenizer without transformers; ``unused``: names of weights without a place."""

    transformer: PlainBert
    tokenizer: PlainTokenizer
    unused: set[str]


def recall(folder: Path, source: ModelSource, cache: Path) -> Remembered | None:
    """The remembered model of a folder, with its weights; None where :func:`remember` has kept nothing of it.

    Raises
    ------
    TrustError, InputError : the folder brings code that is not allowed, or has no weights.
    """
    if check_code(folder) is not None:
        return None
    weights = find_weights(folder, source)
    place = _place(folder, cache)
    if weights.name != SAFE_WEIGHTS[0] or not is_published(place, KIND):
        return None
    try:
        open_artifact(place, KIND)
        said = read_json(place / CONFIG)
        tokenizer = Tokenizer.from_file(str(place / TOKENIZER))
    except HardnegError:  # a damaged record counts as missing
        return None
    stored = read_tensors(weights)
    model = plain_bert(PlainConfig(said["values"], _identity(said["identity"])), stored)
    if model is None:
        return None
    used = model.state_dict().keys()
    unused = {name for name in stored if name.removeprefix(f"{BERT}.") not in used}
    return Remembered(model, PlainTokenizer(tokenizer, said["longest"], said["tokenizer"], said["splits"]), unused)


def remember(folder: Path, transformer: Any, tokenizer: Any, source: ModelSource, cache: Path) -> None:
    """Keep what transformers read in a folder, if a plain BERT is the same model."""
    config = transformer.config
    if not _is_plain(transformer) or check_code(folder) is not None:
        return
    weights = find_weights(folder, source)
    place = _place(folder, cache)
    if weights.name != SAFE_WEIGHTS[0] or is_published(place, KIND):
        return
    values = {name: getattr(config, name) for name in (*NEEDED, "model_type", "hidden_act")}
    identity = config.to_diff_dict()
    if not _same(plain_bert(PlainConfig(values, identity), read_tensors(weights)), transformer):
        return
    said = {
        "values": values,
        "identity": identity,
        "longest": tokenizer.model_max_length,
        "splits": tokenizer.split_special_tokens,
        "tokenizer": {"model_input_names": tokenizer.init_kwargs.get("model_input_names")},
    }
    try:
        if canonical_json(_identity(json.loads(canonical_json(identity)))) != canonical_json(identity):
            return
        canonical_json(said)  # refuses what JSON cannot hold
        with publish(place, KIND, settings={"version": VERSION}, inputs={}, replace=True) as draft:
            draft.json(CONFIG, said)
            draft.text(TOKENIZER, tokenizer.backend_tokenizer.to_str())
    except (HardnegError, TypeError, ValueError):  # without a writable cache, searches are only slower
        return


def _identity(stored: dict[str, Any]) -> dict[str, Any]:
    """A configuration as transformers has it, from JSON: it numbers labels, and keys of JSON are strings.

    Sorted as strings, 10 comes before 2, and the model's digest would be another one.
    """
    labels = stored.get("id2label")
    return stored | {"id2label": {int(number): name for number, name in labels.items()}} if labels else stored


def _place(folder: Path, cache: Path) -> Path:
    files = sorted({file for pattern in READ for file in folder.glob(pattern) if file.is_file()})
    known = {file.name: cached_digest(file) for file in files}
    return cache / KIND / digest_json([VERSION, known, {name: version(name) for name in PACKAGES}])[:32]


def _is_plain(transformer: Any) -> bool:
    """Whether this is transformers' own BERT, running on flat tokens, with the usual activation."""
    config, kind = transformer.config, type(transformer)
    own = kind.__module__.startswith("transformers.") and config.model_type == BERT
    return own and config.hidden_act == "gelu" and config._attn_implementation == ATTENTION


def _same(model: PlainBert | None, transformer: Any) -> bool:
    """Whether the plain model has exactly the weights of the other one."""
    if model is None:
        return False
    ours, theirs = model.state_dict(), transformer.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name].cpu()) for name in ours)

"""Encoders are saved as directories that sentence-transformers loads, and that give the same embeddings there."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hardneg.data.tokens import separator
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.heads import ACTIVATIONS, AnceHead, DenseHead
from hardneg.models.loading import PASSAGE, QUERY, SETTINGS
from hardneg.models.st_folder import (
    CONFIG,
    DENSE_WEIGHTS,
    LEGACY_POOLING,
    MODULES,
    TRANSFORMER_CONFIG,
    mode_of,
)
from hardneg.models.tower import Tower, publish_model
from hardneg.records import Side
from hardneg.shown import markdown_code
from hardneg.storage.artifacts import Draft
from hardneg.storage.disk import foreign

CARD = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, feature-extraction, dense-retrieval, hardneg]
{metadata}---

# {title}

{about}

## Use

The score of a query and a passage is the dot product of their vectors ({dim} dimensions).

```python
from sentence_transformers import SentenceTransformer

{models}
queries = query_model.encode_query(["a question"])
passages = passage_model.encode_document([{passage}])
scores = queries @ passages.T
```

## Settings

| setting | value |
|---|---|
{table}
"""


def save_encoder(
    encoder: BiEncoder,
    path: Path,
    *,
    card: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Publish an encoder as a sentence-transformers directory.

    An untied encoder becomes two, in ``query`` and ``passage``. A pretrained model's pooler is not saved.

    Parameters
    ----------
    card : what the model card says before use and settings, e.g. training data and measured results.
    metadata : further entries of the card's head, for machines, e.g. ``base_model`` and ``model-index``.
    inputs : digests of what made the model, for the manifest.
    replace : allow a model at ``path`` to be replaced.

    Raises
    ------
    ArtifactError : something is at ``path`` already.
    ResourceError : the disk refuses.
    """
    with publish_model(encoder, path, inputs=inputs, replace=replace) as draft:
        if encoder.tied:
            _write_folder(draft, "", encoder, ("query", "passage"))
        else:
            _write_folder(draft, f"{QUERY}/", encoder, ("query",))
            _write_folder(draft, f"{PASSAGE}/", encoder, ("passage",))
            draft.json(SETTINGS, {"settings": asdict(encoder.settings)})
        draft.text("README.md", _card(encoder, Path(path).name, card, metadata or {}))


def _write_folder(draft: Draft, inside: str, encoder: BiEncoder, sides: tuple[Side, ...]) -> None:
    """Write a complete sentence-transformers directory for the tower of ``sides``.

    ``inside`` is "", or the name of a folder of the draft with its slash.
    """
    settings, tower = encoder.settings, encoder.tower(sides[0])
    length = max(encoder.search_template(side).max_length for side in sides)
    tower.save(draft, inside)
    transformer = {"max_seq_length": length, "do_lower_case": False, **without_pooler(tower)}
    _write_json(draft, inside + TRANSFORMER_CONFIG, transformer)
    _write_json(draft, inside + CONFIG, _st_config(settings))
    _write_json(draft, inside + SETTINGS, {"settings": asdict(settings)})
    kinds = ["Transformer", *_write_modules(draft, inside, settings, tower)]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    _write_json(draft, inside + MODULES, modules)


def without_pooler(tower: Tower) -> dict[str, Any]:
    """The setting that keeps sentence-transformers from adding a random pooler; {} where it would add none."""
    kind = type(tower.transformer)
    has_pooler = "add_pooling_layer" in inspect.signature(kind).parameters
    return {"model_args": {"add_pooling_layer": False}} if has_pooler else {}


def _st_config(settings: EncoderSettings) -> dict[str, Any]:
    cosine = settings.normalize and settings.dim is None
    return {
        "prompts": {"query": settings.query_prompt, "document": settings.passage_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if cosine else "dot",
    }


def _write_modules(draft: Draft, inside: str, settings: EncoderSettings, tower: Tower) -> list[str]:
    """Write the modules after the transformer, in the spelling that all readers know; returns their kinds."""
    width, kinds = tower.width, ["Pooling"]
    active = {"word_embedding_dimension": width}
    pooled = mode_of(settings.pooling)
    active |= {key: mode == pooled for mode, key in LEGACY_POOLING.items()}
    _write_json(draft, f"{inside}1_Pooling/config.json", active)
    if isinstance(tower.head, AnceHead):
        kinds += ["Dense", "LayerNorm"]
        state = tower.head.state_dict()
        linear = {name: state[name] for name in state if name.startswith("linear.")}
        norm = {name: state[name] for name in state if name.startswith("norm.")}
        _write_module(draft, f"{inside}2_Dense", _dense(width, width, bias=True), linear)
        _write_module(draft, f"{inside}3_LayerNorm", {"dimension": width}, norm)
    if isinstance(tower.head, DenseHead):
        for layer, activation in zip(tower.head.linears, tower.head.activations, strict=True):
            kinds.append("Dense")
            state = {f"linear.{name}": tensor for name, tensor in layer.state_dict().items()}
            after = len(state["linear.weight"])
            said = _dense(width, after, bias="linear.bias" in state, activation=activation)
            _write_module(draft, f"{inside}{len(kinds)}_Dense", said, state)
            width = after
    if settings.normalize:
        kinds.append("Normalize")
    if settings.dim is not None:
        kinds.append("Dense")  # cuts the vector: the first rows of the identity
        cut = {"linear.weight": torch.eye(settings.dim, width)}
        _write_module(draft, f"{inside}{len(kinds)}_Dense", _dense(width, settings.dim, bias=False), cut)
    return kinds


def _dense(inputs: int, outputs: int, *, bias: bool, activation: str = "Identity") -> dict[str, Any]:
    kind = ACTIVATIONS[activation]
    named = f"{kind.__module__}.{kind.__qualname__}"
    return {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": named}


def _write_module(draft: Draft, folder: str, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    _write_json(draft, f"{folder}/config.json", config)
    with foreign(draft / f"{folder}/{DENSE_WEIGHTS[0]}") as file:
        save_file({name: tensor.cpu().contiguous() for name, tensor in state.items()}, file)


def _write_json(draft: Draft, name: str, value: Any) -> None:
    draft.text(name, json.dumps(value, indent=2) + "\n")


def _card(encoder: BiEncoder, title: str, about: str | None, metadata: Mapping[str, Any]) -> str:
    settings = encoder.settings
    joined = settings.use_titles and settings.title_join == "sep"
    join = separator(encoder.tokenizer("passage")) if joined else " "
    query, passage = (encoder.search_template(side).max_length for side in ("query", "passage"))
    if encoder.tied and query != passage:  # one folder has one length, the longer one
        models = "\n".join(
            f'{side}_model = SentenceTransformer("this folder")\n{side}_model.max_seq_length = {length}'
            for side, length in ((QUERY, query), (PASSAGE, passage))
        )
    elif encoder.tied:
        models = 'query_model = passage_model = SentenceTransformer("this folder")'
    else:
        models = "\n".join(
            f'{side}_model = SentenceTransformer("this folder/{side}")' for side in (QUERY, PASSAGE)
        )
    rows = [f"| {name} | {markdown_code(repr(value))} |" for name, value in asdict(settings).items()]
    return CARD.format(
        metadata="".join(f"{name}: {json.dumps(value)}\n" for name, value in metadata.items()),  # JSON is YAML
        title=title,
        about=about or "A dense retriever trained with hardneg.",
        dim=encoder.dim,
        models=models,
        passage=f'"a title" + "{join}" + "its text"' if settings.use_titles else '"a text"',
        table="\n".join(rows),
    )

"""Reading rankers from folders, writing them to folders, and making new ones from encoders."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hardneg.arguments import checked
from hardneg.data.tokens import separator
from hardneg.errors import InputError, SettingsError
from hardneg.models.code import allow_code
from hardneg.models.cross_encoder import KIND, CrossEncoder, PairHead, RankerSettings
from hardneg.models.pretrained import find_weights, locate, quiet, read_json_object, read_tensors, usable
from hardneg.models.ranker_folder import (
    FUNCTIONS,
    SETTINGS,
    is_classifier,
    is_marked,
    labels_of,
    read_ranker_folder,
    refuse_ranker,
    transformer_of,
)
from hardneg.models.source import ModelSource
from hardneg.models.tower import TYPES, UNTYPED, Tower, publish_model, read_tower
from hardneg.process.progress import say
from hardneg.shown import markdown_code
from hardneg.storage.artifacts import Draft
from hardneg.storage.disk import foreign

WEIGHTS = "model.safetensors"
VERY_LARGE = 10**30  # transformers' limit of a tokenizer that has none
OLD = ("sentence_transformers", "sbert_ce_default_activation_function")  # its entries in a configuration

CARD = """---
library_name: sentence-transformers
pipeline_tag: text-ranking
tags: [sentence-transformers, cross-encoder, reranker, hardneg]
{metadata}---

# {title}

{about}

## Use

{use}

## Settings

| setting | value |
|---|---|
{table}
"""

USE = """{logits}```python
{imports}

scores = CrossEncoder("this folder").predict([({query}, {passage})]{activation})
```"""

LOGITS = """The model's configuration names a sigmoid, which `predict` applies by default. hardneg ranks, stores \
and compares scores before it, as below. The order of passages is the same.

"""

USE_CUT = """This ranker cuts a query at {query_length} tokens and a passage at {passage_length}, special tokens \
included, before it joins them. `CrossEncoder` knows only the length of the pair, so give it texts that are cut: \
with whole texts its scores differ.{besides}

{logits}```python
{imports}

model = CrossEncoder("this folder")


def cut(text, tokens):
    found = model.tokenizer(text, truncation=True, max_length=tokens, return_offsets_mapping=True)
    return text[: max((end for _, end in found["offset_mapping"]), default=0)]


scores = model.predict([(cut({query}, {query_length}), cut({passage}, {passage_length}))]{activation})
```"""


# ---------------------------------------------------------------- reading


@checked
def load_ranker(
    ranker: str | Path, *, device: torch.device | str = "cpu", allow_bin: bool = False, **overrides: Any
) -> CrossEncoder:
    """Load a cross-encoder of one label, in evaluation mode and float32.

    Parameters
    ----------
    ranker : a folder (ours, sentence-transformers' ``CrossEncoder``, Hugging Face's for sequence classification),
        ``package:NAME``, or a name on the hub.
    allow_bin : read ``.bin`` weights, with torch's restricted loader.
    overrides : fields of :class:`RankerSettings` to set otherwise than the folder says.

    Raises
    ------
    SettingsError : no such model, no ranker, an unknown or impossible setting, or a kind that is not supported.
    InputError : the folder is incomplete or broken.
    ArtifactError : a folder of ours is corrupt.
    TrustError : it brings code that :func:`hardneg.allow_code` has not allowed, or has only pickled weights.
    """
    source = ModelSource.at(ranker, ranker=str(ranker), device=str(device), allow_bin=allow_bin)
    return open_ranker(source, **overrides)


def open_ranker(source: ModelSource, **overrides: Any) -> CrossEncoder:
    """Load the ranker of a record, which must name one; raises as :func:`load_ranker`."""
    assert source.ranker is not None
    _check_names(overrides)
    device = source.device_here
    allow_code(*source.allow_code)
    folder = locate(source.ranker, source)
    said = read_ranker_folder(folder)
    with usable(said.transformer):
        tower, _ = read_tower(said.transformer, source)
        if said.settings is not None:  # its tokenizer says where pairs were cut, not where they must be
            tower.pretrained_tokenizer.model_max_length = said.longest or VERY_LARGE
        tower.head = _stored_head(tower, said.transformer, source)
        _set_labels(tower)
        settings = said.settings or RankerSettings(
            max_length=min(said.length or tower.longest, tower.longest),
            activation=said.activation,
            title_join="space",
        )
        ranker = CrossEncoder(replace(settings, **overrides), tower).to(device).eval()
        if said.settings is None:
            _leave_types_out(ranker)
        return ranker


def new_ranker(
    source: ModelSource, *, seed: int, tell: Callable[[str], None] = say, **overrides: Any
) -> CrossEncoder:
    """A ranker that begins with the transformer of a bi-encoder, or of any encoder, and a new head.

    A line for the user says so. From two towers the ranker takes that of the queries. A pooler that a BERT brings
    is kept, as transformers keeps it; all other weights of the head are drawn from the seed. The head of a
    classifier of several labels is left out, and the line says that, too.

    Parameters
    ----------
    source : its ``model`` is the encoder.
    tell : takes the line.
    overrides : fields of :class:`RankerSettings`.

    Raises
    ------
    SettingsError : it is a ranker already, or as :func:`load_ranker` says.
    """
    _check_names(overrides)
    device = source.device_here
    allow_code(*source.allow_code)
    found = locate(source.model, source)
    folder = transformer_of(found)
    labels = labels_of(folder)
    several = labels not in (None, 1)
    if is_classifier(found) or (is_marked(found) and not several):
        raise refuse_ranker(found)
    with usable(folder):
        tower, _ = read_tower(folder, source)
        tower.head = head = PairHead(tower.transformer.config)
        head.draw(seed, float(getattr(tower.transformer.config, "initializer_range", 0.02)))
        pooler = _take_pooler(head, folder, source)
        _set_labels(tower)
        splits = tower.tokenizer.encode_special_tokens  # so no separator is read from its name
        made = RankerSettings(max_length=tower.longest, title_join="space" if splits else "sep")
        settings = replace(made, **overrides)
        ranker = CrossEncoder(settings, tower).to(device).eval()
        kept = " after its own pooler" if pooler else ""
        left = f"; its own head of {labels} labels is left out" if several else ""
        tell(f"ranker: {found.name} with a new head{kept}, drawn from seed {seed}: it must be trained{left}")
        return ranker


def _leave_types_out(ranker: CrossEncoder) -> None:
    """Read pairs of somebody's ranker without token types where its tokenizer gives none, as transformers does.

    The general class of tokenizers gives none from transformers 5 on, whatever tokenizer.json says. The note in
    the configuration is saved with the ranker and belongs to its identity, since scores differ.
    """
    tower = ranker.tower
    if tower.takes_types and ranker.form.has_types and TYPES not in tower.pretrained_tokenizer.model_input_names:
        setattr(tower.transformer.config, UNTYPED, True)


def _stored_head(tower: Tower, folder: Path, source: ModelSource) -> PairHead:
    """The head of a sequence classifier."""
    head, file = PairHead(tower.transformer.config), find_weights(folder, source)
    names = head.stored_names(tower.transformer.base_model_prefix)
    stored = _stored(file, list(names.values()))
    if missing := sorted(set(names.values()) - set(stored)):
        what = f"{len(missing)} weights of the head are missing, first {missing[0]}"
        raise InputError("MISSING_WEIGHTS", what, "get the model folder again", path=file)
    head.load_state_dict({ours: stored[theirs].float() for ours, theirs in names.items()})
    return head


def _take_pooler(head: PairHead, folder: Path, source: ModelSource) -> bool:
    """Let the head begin with the pooler that is stored with a transformer; returns whether there is one."""
    if "pooler" not in head.form.dense:
        return False
    file, bare = find_weights(folder, source), head.form.dense.removeprefix("{}.")
    stored = _stored(file, [f"{bare}.weight", f"{bare}.bias"], ending=True)
    if len(stored) != 2:
        return False
    head.dense.load_state_dict({name.rsplit(".", 1)[-1]: tensor.float() for name, tensor in stored.items()})
    return True


def _stored(file: Path, names: list[str], *, ending: bool = False) -> dict[str, Tensor]:
    """The tensors with these names, or with names that end in them, from a file of weights or all of its parts."""
    files = [file]
    if file.suffix == ".json":
        places = read_json_object(file)["weight_map"]
        files = sorted({file.parent / place for name, place in places.items() if _named(name, names, ending)})
    return {
        name: tensor
        for part in files
        for name, tensor in read_tensors(part).items()
        if _named(name, names, ending)
    }


def _named(name: str, names: list[str], ending: bool) -> bool:
    return any(name == one or (ending and name.endswith(f".{one}")) for one in names)


def _set_labels(tower: Tower) -> None:
    """Set one label of a fixed name in the configuration, so that a folder's names do not change the identity."""
    config: Any = tower.transformer.config
    config.id2label, config.label2id, config.problem_type = {0: "LABEL_0"}, {"LABEL_0": 0}, None
    for name in OLD:
        if hasattr(config, name):
            delattr(config, name)


def _check_names(overrides: Mapping[str, Any]) -> None:
    for name in overrides:
        if name not in (known := RankerSettings.names()):
            near = get_close_matches(name, known, 1) or [", ".join(known)]
            raise SettingsError("UNKNOWN_SETTING", f"a ranker has no setting {name!r}", f"did you mean {near[0]}?")


# ---------------------------------------------------------------- writing


def save_ranker(
    ranker: CrossEncoder,
    path: Path,
    *,
    card: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Publish a ranker as a folder that any version of transformers reads as a classifier of one label.

    sentence-transformers' ``CrossEncoder`` reads it as a model with the same scores, activation and length of
    pairs. It does not know lengths of a query or a passage alone; the model card then says how to cut them.

    Parameters
    ----------
    card : what the model card says before use and settings.
    metadata : further entries of the card's head, for machines.
    inputs : digests of what made the model, for the manifest.
    replace : allow a ranker at ``path`` to be replaced.

    Raises
    ------
    ArtifactError : something is at ``path`` already.
    ResourceError : the disk refuses.
    """
    with publish_model(ranker, path, kind=KIND, inputs=inputs, replace=replace) as draft:
        _write_model(draft, ranker)
        draft.json(SETTINGS, {"settings": asdict(ranker.settings), "longest": ranker.tower.longest})
        draft.text("README.md", _card(ranker, Path(path).name, card, metadata or {}))


def _write_model(draft: Draft, ranker: CrossEncoder) -> None:
    """Write configuration, tokenizer and weights; names of inputs are written out, as versions differ in them."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSIFIERS

    tower, config = ranker.tower, copy.deepcopy(ranker.tower.transformer.config)
    classifier: Any = CLASSIFIERS[type(config)]
    config.architectures = [classifier.__name__]
    config.sentence_transformers = {"activation_fn": FUNCTIONS[ranker.settings.activation]}
    tokenizer = copy.deepcopy(tower.pretrained_tokenizer)
    names = ["input_ids", *([TYPES] if tower.takes_types else []), "attention_mask"]
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names = names
    tokenizer.model_max_length = ranker.settings.max_length
    with quiet(), foreign((draft / "config.json").parent) as folder:
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    with foreign(draft / WEIGHTS) as file:
        save_file(_state(tower), file, metadata={"format": "pt"})


def _state(tower: Tower) -> dict[str, Tensor]:
    """All weights under the names that transformers' classifier has for them."""
    transformer, head = tower.transformer, tower.head
    assert isinstance(head, PairHead)
    state = {f"{transformer.base_model_prefix}.{name}": x for name, x in transformer.state_dict().items()}
    names = head.stored_names(transformer.base_model_prefix)
    state |= {names[name]: x for name, x in head.state_dict().items()}
    return {name: x.detach().cpu().contiguous() for name, x in state.items()}


def _card(ranker: CrossEncoder, title: str, about: str | None, metadata: Mapping[str, Any]) -> str:
    settings = ranker.settings
    text = "a text"
    if settings.use_titles:
        join = separator(ranker.tokenizer) if settings.title_join == "sep" else " "  # blanks around it are tokens
        text = f"a title{join}its text"
    passage = json.dumps(settings.passage_prompt + text, ensure_ascii=False)
    if settings.max_characters:  # the prompt is put before what is left
        passage = f"{json.dumps(text, ensure_ascii=False)}[:{settings.max_characters}]"
        if settings.passage_prompt:
            passage = f"{json.dumps(settings.passage_prompt, ensure_ascii=False)} + {passage}"
    return CARD.format(
        metadata="".join(f"{name}: {json.dumps(value)}\n" for name, value in metadata.items()),  # JSON is YAML
        title=title,
        about=about or "A ranker (cross-encoder) trained with hardneg.",
        use=_use(ranker, query=json.dumps(settings.query_prompt + "a question"), passage=passage),
        table="\n".join(f"| {name} | {markdown_code(repr(value))} |" for name, value in asdict(settings).items()),
    )


def _use(ranker: CrossEncoder, **texts: str) -> str:
    """How ``CrossEncoder`` gives the ranker's scores; it cuts the longer text of a pair, and no text by itself."""
    template, form, chunks = ranker.template, ranker.form, ranker.settings.chunks
    room, around = template.max_length - form.special, sum(form.around)
    query, passage = (side.max_length - around for side in (template.query, template.passage))
    texts |= {"logits": "", "imports": "from sentence_transformers import CrossEncoder", "activation": ""}
    if ranker.settings.activation != "identity":
        texts |= {"logits": LOGITS, "activation": ", activation_fn=torch.nn.Identity()"}
        texts["imports"] = f"import torch\n{texts['imports']}"
    characters = ranker.settings.max_characters
    if query == room // 2 and passage >= room and not characters:
        return USE.format(**texts)
    besides = ""
    if characters:
        besides += f" Before that, it cuts a passage, its title included, after {characters} characters."
    if query > room // 2 and query + passage > room:
        besides += " If a pair is still too long, it may also cut the query, which this ranker never does to fit."
    if chunks > 1:
        besides += f" It reads only the first sequence of a passage; this ranker reads up to {chunks}."
    lengths = {"query_length": template.query.max_length, "passage_length": template.passage.max_length}
    return USE_CUT.format(**texts, **lengths, besides=besides)

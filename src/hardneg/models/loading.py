"""Encoders are loaded from our own folders, sentence-transformers directories and Hugging Face folders."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from hardneg.arguments import checked
from hardneg.config import read_preset
from hardneg.data.tokens import check_prompt, special_around
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.models.bi_encoder import BiEncoder, width_of
from hardneg.models.code import allow_code, commit_of
from hardneg.models.encoder_settings import OF_VECTORS, EncoderSettings, TitleJoin
from hardneg.models.flat_transformer import is_causal
from hardneg.models.heads import AnceHead, DenseHead
from hardneg.models.pooling import Pooling
from hardneg.models.pretrained import check_code, find_weights, locate, read_json_file, read_tensors, usable
from hardneg.models.ranker_folder import has_classifier, is_classifier, is_marked, labels_of, refuse_ranker
from hardneg.models.source import ModelSource, has_manifest
from hardneg.models.st_folder import MODULES, SentenceFolder, read_head, read_st_folder
from hardneg.models.tower import KIND, Tower, read_tower
from hardneg.models.warned import warn_once
from hardneg.storage.artifacts import open_artifact

log = logging.getLogger(__name__)

DISTANCES = ("euclidean", "manhattan")  # similarities of sentence-transformers that rank otherwise than products

SETTINGS = "hardneg.json"  # what sentence-transformers has no place for
QUERY, PASSAGE = "query", "passage"  # folders of the two towers of an untied model

NORMALIZED_SCALE = 20.0  # sentence-transformers' own for cosine scores
ANCE_WEIGHTS = {  # names in the released checkpoints of ANCE
    "embeddingHead.weight": "linear.weight",
    "embeddingHead.bias": "linear.bias",
    "norm.weight": "norm.weight",
    "norm.bias": "norm.bias",
}


@dataclass(frozen=True)
class Part:
    """A tower, the settings that its folder has, and the similarity that the folder declares, if any."""

    tower: Tower
    settings: EncoderSettings
    folder: Path
    similarity: str | None = None


@checked
def load_encoder(
    model: str | Path,
    passage_model: str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    allow_bin: bool = False,
    prompts: str | None = None,
    **overrides: Any,
) -> BiEncoder:
    """Load a bi-encoder, in evaluation mode and float32.

    Lengths that are not given are the model's own: those that a folder of ours or of sentence-transformers states
    (``max_seq_length``), else :attr:`~hardneg.models.tower.Tower.longest`.

    Parameters
    ----------
    model : a folder (ours, sentence-transformers', Hugging Face's), ``package:NAME``, or a name on the hub.
    passage_model : a second one for the passages: the encoder is untied.
    allow_bin : read ``.bin`` weights, with torch's restricted loader.
    prompts : a family whose prompts and lengths to take (``e5``, ``bge``, ``gte``, ``nomic``).
    overrides : fields of :class:`EncoderSettings` to set otherwise than the folder, or ``prompts``, says.

    Raises
    ------
    SettingsError : no such model, an unknown or impossible setting, or a kind of model that is not supported.
    InputError : the folder is incomplete or broken.
    ArtifactError : a folder of ours is corrupt.
    TrustError : it brings code that :func:`hardneg.allow_code` has not allowed, or has only pickled weights.
    """
    source = ModelSource.at(model, passage_model, device=str(device), allow_bin=allow_bin, prompts=prompts)
    return open_encoder(source, **overrides)


def open_encoder(source: ModelSource, *, recalled: Path | None = None, **overrides: Any) -> BiEncoder:
    """Load the bi-encoder of a record, in evaluation mode and float32; raises as :func:`load_encoder`.

    Parameters
    ----------
    recalled : for inference alone: a cache that may know the model, so that transformers need not be imported.
    overrides : fields of :class:`EncoderSettings`, which win over the record's prompts and lengths.
    """
    _check_names(overrides)
    return read_model(source, recalled=recalled).encoder(**overrides)


@dataclass(frozen=True)
class PretrainedModel:
    """A bi-encoder as it is read from its folders, before other settings replace those of the folders.

    Attributes
    ----------
    parts : one part for both sides, or the part of the queries and that of the passages.
    told : settings of its record, which override those of its folders and of the family.
    device : where it is to compute.
    prompts : the family that its record names; None: none.
    """

    parts: list[Part]
    told: Mapping[str, Any]
    device: str
    prompts: str | None = None

    @property
    def tied(self) -> bool:
        """Whether one tower encodes both sides."""
        return len(self.parts) == 1

    def settings(self, *, family: str | None = None, **overrides: Any) -> EncoderSettings:
        """The settings of its folders, overridden by those of its record, and these by ``overrides``.

        Parameters
        ----------
        family : whose prompts and lengths override those of the folders; None: that of its record, if any.

        Raises
        ------
        SettingsError : its towers do not agree (``TOWERS_DIFFER``), or a length is too long for it (``TOO_LONG``).
        """
        family = self.prompts if family is None else family
        given = {**self.told, **overrides}
        told = family_of(family) | given
        settings = replace(_merged(self.parts, told), **told)
        _check_lengths(self.parts, settings, family, given)
        return settings

    def encoder(self, *, family: str | None = None, **overrides: Any) -> BiEncoder:
        """The encoder with these :meth:`settings`. It uses the parts themselves, so a model gives one encoder."""
        settings = self.settings(family=family, **overrides)
        for part in self.parts:
            _fit_head(part, settings)
            _warn_of_similarity(part, settings)
        return BiEncoder(settings, *(part.tower for part in self.parts)).to(self.device).eval()


def read_model(source: ModelSource, *, recalled: Path | None = None) -> PretrainedModel:
    """Read the bi-encoder of a record; ``recalled`` and the faults are those of :func:`open_encoder`."""
    device = source.device_here
    allow_code(*source.allow_code)
    folders = [locate(place, source) for place in source.places]
    if len(folders) == 1 and (folders[0] / SETTINGS).is_file() and (folders[0] / QUERY).is_dir():
        _verify(folders[0])
        folders = [folders[0] / QUERY, folders[0] / PASSAGE]
    parts = [_read(folder, source, recalled) for folder in folders]
    return PretrainedModel(parts, source.told, device, source.prompts)


def family_of(prompts: str | None) -> dict[str, Any]:
    """The prompts and lengths of a family, by the names of encoder settings."""
    return {} if prompts is None else read_preset("prompts", prompts)


def _verify(folder: Path) -> None:
    """Check the files of a folder that has a manifest; a ranker's is refused."""
    if is_marked(folder):
        raise refuse_ranker(folder)
    if has_manifest(folder):
        try:
            open_artifact(folder, KIND)
        except ArtifactError as fault:
            lost = Path(str(fault.path))
            if fault.code == "MISSING_FILE" and lost.suffix == ".py" and commit_of(folder):
                check_code(lost.parent)  # the hub was not asked for code that nobody allowed
            raise


def _read(folder: Path, source: ModelSource, recalled: Path | None) -> Part:
    _verify(folder)
    with usable(folder):
        part = (_read_st if (folder / MODULES).is_file() else _read_plain)(folder, source, recalled)
        limit = part.tower.longest
    settings = _saved_settings(folder) or part.settings
    if settings.passage_length > limit:
        message = "%s says %d tokens (max_seq_length), but its model takes %d: longer texts are cut there"
        warn_once(log, folder, message, settings.passage_length, limit)
    return replace(
        part,
        settings=replace(
            settings,
            query_length=min(settings.query_length, limit),
            passage_length=min(settings.passage_length, limit),
            search_query_length=settings.search_query_length and min(settings.search_query_length, limit),
        ),
    )


def _read_plain(folder: Path, source: ModelSource, recalled: Path | None) -> Part:
    """Read a Hugging Face folder; a head like that of the released ANCE checkpoints is recognised.

    Where tokens attend to those before them alone, only the last one has read the whole text.
    """
    tower, unused = read_tower(folder, source, recalled=recalled)
    length = tower.longest
    pooling: Pooling = "last" if is_causal(tower.transformer) else "cls"
    ends = special_around(tower.tokenizer)[1] and not tower.tokenizer.encode_special_tokens
    join: TitleJoin = "sep" if ends else "space"  # no token ends a text, or none is read from its name
    settings = EncoderSettings(pooling=pooling, title_join=join, query_length=length, passage_length=length)
    if not unused.issuperset(ANCE_WEIGHTS):
        if is_classifier(folder) or (labels_of(folder) is not None and has_classifier(unused)):
            raise refuse_ranker(folder)
        return Part(tower, settings, folder)
    tower.head = AnceHead(tower.width)
    stored = read_tensors(find_weights(folder, source))
    tower.head.load_state_dict({ours: stored[theirs] for theirs, ours in ANCE_WEIGHTS.items()})
    return Part(tower, replace(settings, head="ance"), folder)


def _read_st(folder: Path, source: ModelSource, recalled: Path | None) -> Part:
    """Read a sentence-transformers directory, which this package or another wrote.

    Some declare cosine similarity and leave it to the search to normalise. Here scores are products, so the model
    normalises.
    """
    said = read_st_folder(folder, source)
    tower, _ = read_tower(said.transformer, source, recalled=recalled)
    tower.head = read_head(said, tower.width, source)
    _check_case(tower, said, folder)
    normalize = said.normalize or said.similarity == "cosine"
    width = width_of(tower)
    dim = None if said.dim is None or said.dim > width else said.dim
    return Part(
        tower,
        EncoderSettings(
            pooling=said.pooling,
            head=said.head,
            normalize=normalize,
            dim=dim,
            scale=NORMALIZED_SCALE if normalize else 1.0,
            query_prompt=said.query_prompt,
            passage_prompt=said.passage_prompt,
            query_length=said.query_length or tower.longest,
            passage_length=said.passage_length or tower.longest,
            title_join="space",
        ),
        folder,
        said.similarity,
    )


def _warn_of_similarity(part: Part, settings: EncoderSettings) -> None:
    """Warn where products of the vectors rank passages otherwise than the similarity that the folder declares."""
    whole = settings.dim in (None, width_of(part.tower))
    if part.similarity in DISTANCES and not (settings.normalize and whole):
        message = "%s declares %s as its similarity; here passages are ranked by products"
        warn_once(log, part.folder, message, part.similarity)
    if part.similarity == "cosine" and settings.normalize and not whole:
        message = (
            "%s declares cosine as its similarity, but its vectors are cut to %d dimensions; here passages are"
            " ranked by products of the cut vectors, which are not normalised again"
        )
        warn_once(log, part.folder, message, settings.dim)


def _saved_settings(folder: Path) -> EncoderSettings | None:
    """The settings that this package saved in a folder; None where it saved none."""
    file = folder / SETTINGS
    if not file.is_file():
        return None
    try:
        return EncoderSettings(**read_json_file(file)["settings"])
    except (KeyError, TypeError) as fault:
        raise InputError(
            "BAD_MODEL", f"not the settings of an encoder ({fault})", "save the model again", path=file
        ) from fault


def _fit_head(part: Part, settings: EncoderSettings) -> None:
    """Give the tower the head that the settings want: a fresh one of ANCE's when it has none of that kind."""
    tower = part.tower
    if settings.head == "none":
        tower.head = None
    elif settings.head == "ance" and not isinstance(tower.head, AnceHead):
        tower.head = AnceHead(tower.width)
    elif settings.head == "dense" and not isinstance(tower.head, DenseHead):
        what = f"head = dense, but {part.folder} has no dense layers after pooling"
        raise SettingsError("BAD_SETTING", what, "leave head out, or take a model that has them")


def _merged(parts: list[Part], overrides: Mapping[str, Any]) -> EncoderSettings:
    """The settings of an encoder made of one part, or of a query part and a passage part.

    Each side keeps its own fields; fields that both share must be equal, or be overridden.
    """
    query, passage = parts[0].settings, parts[-1].settings
    for name in OF_VECTORS:
        ours, theirs = getattr(query, name), getattr(passage, name)
        if ours != theirs and name not in overrides:
            raise SettingsError(
                "TOWERS_DIFFER",
                f"{name} is {ours!r} in {parts[0].folder} and {theirs!r} in {parts[-1].folder}",
                f"set {name}, or choose two models with the same one",
            )
    own = ("scale", "query_prompt", "query_length", "search_query_length")
    return replace(passage, **{name: getattr(query, name) for name in own})


# ---------------------------------------------------------------- checks


def _check_names(overrides: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(EncoderSettings)]
    for name in overrides:
        if name not in known:
            near = get_close_matches(name, known, 1) or [", ".join(known)]
            raise SettingsError(
                "UNKNOWN_SETTING", f"an encoder has no setting {name!r}", f"did you mean {near[0]}?"
            )


def _check_lengths(
    parts: list[Part], settings: EncoderSettings, family: str | None, given: Mapping[str, Any]
) -> None:
    """Refuse lengths beyond the model's; the fault says which of them a family brought, and which were given."""
    sides = (("query_length", parts[0]), ("search_query_length", parts[0]), ("passage_length", parts[-1]))
    for name, part in sides:
        if (length := getattr(settings, name) or 0) > (limit := part.tower.longest):
            what, fix = f"{name} = {length}, the model takes {limit} tokens", "lower it"
            if family is not None and name not in given:
                what, fix = f"prompts = {family} means {what}", f"give {name} as well, at most {limit}"
            raise SettingsError("TOO_LONG", what, fix)
    for name in ("query_length", "search_query_length"):
        check_prompt(parts[0].tower.tokenizer, "query", settings.query_prompt, name, getattr(settings, name))
    room = settings.passage_length * settings.chunks  # the prompt may end in a later chunk
    check_prompt(parts[-1].tower.tokenizer, "passage", settings.passage_prompt, "passage_length", room)


def _check_case(tower: Tower, said: SentenceFolder, folder: Path) -> None:
    if said.lower_case and tower.tokenizer.encode("A").ids != tower.tokenizer.encode("a").ids:
        raise SettingsError(
            "UNSUPPORTED_MODULE",
            "Transformer (do_lower_case with a tokenizer that keeps case) is not supported",
            "put a lower-casing normalizer into tokenizer.json",
            path=folder,
        )

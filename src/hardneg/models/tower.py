"""The common base of bi-encoders and rankers: a transformer with its tokenizer, and models made of these.

A :class:`Tower` turns token sequences into one vector each. A :class:`TowerModel` has one or more of them, and
settings: its identity, its copies for inference and its folder are the same for a bi-encoder and a ranker.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from hardneg.data.tokens import plain_tokenizer, tokenizer_digest
from hardneg.errors import InputError
from hardneg.models.capacity import bytes_of_batch
from hardneg.models.flat_transformer import (
    READS_PADDING,
    can_pack,
    first_position,
    first_states,
    hidden_states,
    use_flat_attention,
)
from hardneg.models.heads import identity_of
from hardneg.models.packing import lay_out, upload
from hardneg.models.plain_bert import PlainBert
from hardneg.models.pooling import Pooling, pool
from hardneg.models.pretrained import check_code, quiet, read_tokenizer, read_transformer
from hardneg.models.remembered import PlainTokenizer, recall, remember
from hardneg.models.source import ModelSource
from hardneg.models.warned import warn_once
from hardneg.process.hardware import Precision
from hardneg.records import TokenBatch
from hardneg.storage.artifacts import Draft, canonical_json, publish
from hardneg.storage.disk import foreign

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

KIND = "model"  # of a published folder
TYPES = "token_type_ids"  # transformers' name of token types
UNTYPED = "hardneg_without_token_types"  # in a configuration: pairs are read without types, though it has them
ALIGNMENT = 64  # bytes; where torch's memory begins
FREQUENCIES = "inv_freq"  # how transformers' names of the buffers of rotary positions end

# What a transformer's configuration says about its origin rather than its function.
ALONE = "no padding"  # in the identity of models whose vectors were made with padding by older versions
ORIGIN = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


class Tower(nn.Module):
    """A transformer with its tokenizer; ``code`` is the digest of the code that the model brought, if any.

    Attributes
    ----------
    head : what comes after pooling, in float32, or None. Loading sets it; the model that has the tower applies it.
    """

    def __init__(
        self,
        transformer: PreTrainedModel | PlainBert,
        tokenizer: PreTrainedTokenizerBase | PlainTokenizer,
        *,
        code: str | None = None,
    ) -> None:
        super().__init__()
        self.code = code
        self.transformer: Any = transformer
        self.head: nn.Module | None = None
        self.pretrained_tokenizer: Any = tokenizer
        self.tokenizer: Tokenizer = plain_tokenizer(tokenizer.backend_tokenizer)
        self._tell_of_splits()
        self.tokenizer_digest = tokenizer_digest(self.tokenizer)
        if can_pack(transformer):
            use_flat_attention(transformer)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy, or what was pickled."""
        super().__setstate__(state)
        self._tell_of_splits()

    def _tell_of_splits(self) -> None:
        """Let special tokens in texts be words if the model wants it; copies of a tokenizer forget it."""
        self.tokenizer.encode_special_tokens = self.pretrained_tokenizer.split_special_tokens

    @property
    def width(self) -> int:
        """Size h of the last hidden states, which some OPTs project to another width."""
        config = self.transformer.config
        return int(getattr(config, "word_embed_proj_dim", None) or config.hidden_size)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that the transformer has positions for and the tokenizer allows.

        RoBERTa and its kin begin to count positions after that of the padding: they use 512 of 514.
        """
        config = self.transformer.config
        named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))  # second: T5
        positions = next((int(most) for most in named if most and most > 0), self.width * 1024)
        table = getattr(getattr(self.transformer, "embeddings", None), "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        unused = max(first_position(self.transformer), 0 if padding is None else int(padding) + 1)
        return int(min(positions - unused, self.pretrained_tokenizer.model_max_length))

    @property
    def takes_types(self) -> bool:
        """Whether the transformer has token types, which mark the second text of a pair, as BERT has.

        The transformer and tokenizer.json decide, and the inputs that the tokenizer's settings name outright. The
        class of the tokenizer does not count: whether transformers' general class gives types out changed between
        its versions. It counts only for a ranker that was trained elsewhere, whose configuration then says so
        (:data:`UNTYPED`) when it is loaded.
        """
        config = self.transformer.config
        named = self.pretrained_tokenizer.init_kwargs.get("model_input_names") or [TYPES]
        several = (getattr(config, "type_vocab_size", 0) or 0) > 1 and not getattr(config, UNTYPED, False)
        return TYPES in named and several and TYPES in inspect.signature(self.transformer.forward).parameters

    def pooled(self, tokens: TokenBatch, pooling: Pooling) -> Tensor:
        """One vector a sequence [n, h], in the order of the batch: float32, on the transformer's device, no head.

        Nothing is padded, and no sequence sees another. The batch must not be empty.

        Raises
        ------
        InputError : a sequence has no token: its text is empty, and the tokenizer has no special tokens. Or a
            token has no embedding.
        """
        if not tokens.lengths.all():
            what = "a text has no token: it is empty, and the tokenizer puts no special tokens around it"
            raise InputError("NO_TOKENS", what, "remove it, or set a prompt")
        size = getattr(self.transformer.config, "vocab_size", None)
        if size is not None and (top := int(tokens.ids.max(initial=0))) >= size:
            what = f"the tokenizer gives the token id {top}, but the model has embeddings for ids below {size}"
            raise InputError("BAD_MODEL", what, "get the tokenizer of this model, or resize its embeddings")
        device, order = self.transformer.device, np.argsort(-tokens.lengths, kind="stable")
        sorted_tokens = tokens.take(order)
        layout = lay_out(sorted_tokens.lengths, device)
        ids = upload(sorted_tokens.ids, device)
        types = None
        if sorted_tokens.types is not None and self.takes_types:
            types = upload(sorted_tokens.types, device).int()
        if pooling == "cls":
            vectors = first_states(self.transformer, ids, layout, types).float()
        else:
            vectors = pool(hidden_states(self.transformer, ids, layout, types), layout.bounds, pooling)
        return vectors[upload(np.argsort(order), device)]

    def save(self, draft: Draft, inside: str = "") -> None:
        """Write transformer and tokenizer as a Hugging Face folder, without the head.

        The tokenizer reads texts as :class:`Tower` does, also where texts are padded (see :func:`as_read`).

        Parameters
        ----------
        inside : "", or the name of a folder of the draft with its slash.
        """
        with quiet(), foreign((draft / f"{inside}config.json").parent) as folder:
            self.transformer.save_pretrained(folder)
            _keep_window(self.transformer.config, folder)
            as_read(self.pretrained_tokenizer).save_pretrained(folder)


def _keep_window(config: Any, folder: Path) -> None:
    """Write a configuration again if its window would be read as another one.

    Where tokens attend to both sides, Gemma's configuration halves its window each time that it is read. The first
    versions of transformers 5 saved the half.
    """
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_bidirectional_attention", False):
        return
    if type(config).from_pretrained(folder).sliding_window != window:
        whole = copy.deepcopy(config)
        whole.sliding_window = (window - 1) * 2
        whole.save_pretrained(folder)


def as_read(tokenizer: Any) -> Any:
    """The tokenizer, or a copy of it, that cuts and pads texts at their ends, and has a padding token if it can.

    A tower cuts texts at their ends and never pads. sentence-transformers pads, so a tokenizer without a padding
    token gets the one that ends a text.
    """
    padless = tokenizer.pad_token is None and tokenizer.eos_token is not None
    if not padless and tokenizer.padding_side == tokenizer.truncation_side == "right":
        return tokenizer
    other = copy.deepcopy(tokenizer)
    other.padding_side = other.truncation_side = "right"
    if padless:
        other.pad_token = other.eos_token
    return other


def read_tower(folder: Path, source: ModelSource, *, recalled: Path | None = None) -> tuple[Tower, set[str]]:
    """The tower of a Hugging Face folder, without a head; and the names of the weights it has no place for.

    Parameters
    ----------
    recalled : a cache from which the tower may come, for inference alone, without transformers.

    Raises
    ------
    InputError : files are missing or broken, or weights the transformer needs are not there.
    SettingsError : the type of model cannot encode.
    TrustError : it brings code, or pickled weights, that are not allowed.
    """
    if recalled is not None and (known := recall(folder, source, recalled)) is not None:
        return Tower(aligned(known.transformer), known.tokenizer), known.unused
    transformer, unused = read_transformer(folder, source)
    aligned(transformer)
    tokenizer = read_tokenizer(folder)
    if tokenizer.truncation_side != "right":
        warn_once(
            log, folder, "%s: its tokenizer cuts long texts at their beginning; here they are cut at their end"
        )
    tower = Tower(transformer, tokenizer, code=check_code(folder))
    if recalled is not None:
        remember(folder, tower.transformer, tower.pretrained_tokenizer, source, recalled)
    return tower, unused


def aligned(model: M) -> M:
    """Copy weights that do not begin at a multiple of 64 bytes, as those that torch makes do; returns the model.

    A weight that is read begins where the header of its file ends. Products with a single row have other last bits
    at other places, so equal models in two files would not have equal vectors.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()
    return model


class TowerModel(nn.Module):
    """A model of one or more towers, with settings that are a dataclass.

    Attributes
    ----------
    precision : what the transformers compute in now.
    """

    settings: DataclassInstance

    def __init__(self, settings: DataclassInstance, towers: Iterable[Tower]) -> None:
        super().__init__()
        self.settings = settings
        self.towers = nn.ModuleList(towers)
        self.precision: Precision = "float32"
        self._masters: dict[int, Tensor] = {}  # while copies stand in their place: id of a tensor -> its data

    def __getstate__(self) -> Any:
        """What copies and pickles have; refused while copies of the weights stand in their place."""
        if self._masters:
            what = "this model is in use, by an open retriever perhaps, so its weights are not its own"
            raise TypeError(f"{what}: close the retriever before you copy or pickle the model, or load it anew")
        return super().__getstate__()

    @property
    def code(self) -> list[str]:
        """The digests of the code that the models brought, sorted."""
        return sorted({tower.code for tower in self.each_tower() if tower.code})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def each_tower(self) -> list[Tower]:
        """The towers, in order."""
        return list(self.towers)  # type: ignore[arg-type]

    def working_memory(self, tokens: int) -> int:
        """The most bytes that a batch of so many tokens takes inside a transformer, without gradient."""
        return bytes_of_batch([tower.transformer.config for tower in self.each_tower()], tokens)

    @contextmanager
    def inference(self, precision: Precision = "float32") -> Iterator[Self]:
        """Work in the block without dropout and gradient, on a copy of the transformers' weights in ``precision``.

        Afterwards mode and weights are as before, bit for bit. Inside, :attr:`precision` is the precision of the
        vectors, and :meth:`digest` is still that of the original weights.
        """
        with self.prepared(precision), torch.no_grad():
            yield self

    @contextmanager
    def prepared(self, precision: Precision) -> Iterator[Self]:
        """Be as inside :meth:`inference`, but leave it to the block whether torch keeps gradients.

        So the block may stay open for long. torch's switch belongs to the thread, and a block that was forgotten
        ends where Python collects it: perhaps in the middle of other work, which has switched gradients off.
        """
        before = self.training, self.precision, self._masters
        replaced = [(tensor, tensor.data) for tower in self.each_tower() for tensor in _floats(tower)]
        try:
            self.eval()
            self.precision = precision
            self._masters = {id(tensor): data for tensor, data in replaced} | self._masters
            for tensor, data in replaced:
                tensor.data = data.to(getattr(torch, precision))
            yield self
        finally:
            for tensor, data in replaced:
                tensor.data = data
            training, self.precision, self._masters = before
            self.train(training)

    def digest(self) -> str:
        """SHA-256 over weights, settings, transformer configurations and tokenizers: the model's identity.

        Inside :meth:`inference` it is the same: a precision belongs to vectors, not to the model.
        """
        return self.digest_of(self, self.each_tower(), asdict(self.settings))

    def digest_of(self, part: nn.Module, towers: Iterable[Tower], settings: Mapping[str, Any]) -> str:
        """SHA-256 over the weights of a part of this model, its towers and the settings that matter for it."""
        state = hashlib.sha256(canonical_json([dict(settings), *map(_describe, towers)]))
        for name, held in sorted(part.state_dict(keep_vars=True).items()):
            tensor = self._masters.get(id(held), held.detach())
            state.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]))
            state.update(tensor.cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
        return state.hexdigest()


@contextmanager
def publish_model(
    model: TowerModel,
    path: Path,
    *,
    kind: str = KIND,
    inputs: Mapping[str, str] | None = None,
    replace: bool = False,
) -> Iterator[Draft]:
    """Publish a model's folder; the block writes it.

    The manifest says the settings and the model's digest.

    Raises
    ------
    ArtifactError : something is at ``path`` already, and is not to be replaced.
    ResourceError : the disk refuses.
    """
    assert model.precision == "float32", "copies in another precision are not the model's weights"
    with publish(Path(path), kind, settings=asdict(model.settings), inputs=inputs, replace=replace) as draft:
        yield draft
        draft.facts["digest"] = model.digest()


def _floats(tower: Tower) -> Iterator[Tensor]:
    """The tensors of a tower's transformer that are in the precision of its work.

    The head is not among them, for it stays float32, and neither are the frequencies of rotary positions. An
    angle is a position times a frequency: of frequencies in bfloat16 it is off by 0.6 at position 500.
    """
    transformer: Any = tower.transformer
    buffers = [x for name, x in transformer.named_buffers() if not name.endswith(FREQUENCIES)]
    return (x for x in [*transformer.parameters(), *buffers] if x.is_floating_point())


def _describe(tower: Tower) -> list[Any]:
    config: dict[str, Any] = tower.transformer.config.to_diff_dict()
    kept = {name: config[name] for name in sorted(config) if name not in ORIGIN}
    marks = [mark for mark in (tower.code, ALONE if config.get("model_type") in READS_PADDING else "") if mark]
    return [tower.tokenizer_digest, kept, *marks, *identity_of(tower.head)]

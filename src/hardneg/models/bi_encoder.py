"""The bi-encoder: texts of both sides to vectors whose dot product is the score."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hardneg.data.tokens import plain_tokenizer, tokenizer_digest
from hardneg.errors import SettingsError
from hardneg.models.capacity import bytes_of_batch
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.packing import (
    Layout,
    can_pack,
    first_states,
    hidden_states,
    lay_out,
    upload,
    use_flat_attention,
)
from hardneg.models.pooling import pool
from hardneg.process.hardware import Precision
from hardneg.records import Side, TextTemplate, TokenBatch, offsets_of
from hardneg.storage.artifacts import canonical_json

Encode = Callable[[TokenBatch, Side], Tensor]  # vectors [n, dim] float32

OF_VECTORS = ("pooling", "head", "normalize", "dim")  # settings that decide what vector tokens get

# What a transformer's configuration says about its origin rather than its function.
ORIGIN = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")


class AnceHead(nn.Module):
    """Linear + LayerNorm on the pooled vector (Xiong et al., 2021, released code)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        start = torch.Generator().manual_seed(
            0
        )  # a fresh head is part of the model, not of the experiment's draws
        nn.init.normal_(self.linear.weight, std=0.02, generator=start)
        nn.init.zeros_(self.linear.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """[n, h] → [n, h]."""
        projected: Tensor = self.norm(self.linear(pooled))
        return projected


class Tower(nn.Module):
    """A transformer, its tokenizer and its head; ``code``: the digest of what the model brought itself, if any."""

    def __init__(
        self,
        transformer: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        head: AnceHead | None = None,
        *,
        code: str | None = None,
    ) -> None:
        super().__init__()
        self.code = code
        self.transformer = transformer
        self.head = head
        self.pretrained_tokenizer = tokenizer
        self.tokenizer: Tokenizer = plain_tokenizer(tokenizer.backend_tokenizer)
        self.tokenizer_digest = tokenizer_digest(self.tokenizer)
        if can_pack(transformer):
            use_flat_attention(transformer)

    @property
    def width(self) -> int:
        """Size h of the hidden states."""
        return int(self.transformer.config.hidden_size)


class BiEncoder(nn.Module):
    """One transformer for both sides (tied) or one each.

    Parameters
    ----------
    query : the tower of the queries; also that of the passages unless ``passage`` is given.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        query: Tower,
        passage: Tower | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.towers = nn.ModuleList([query] if passage is None else [query, passage])
        self.precision: Precision = "float32"  # that transformers compute in now
        self._masters: dict[int, Tensor] = {}  # while copies stand in their place: id of a tensor -> its data
        _check_widths(settings, query.width, (passage or query).width)

    @property
    def tied(self) -> bool:
        """Whether one tower encodes both sides."""
        return len(self.towers) == 1

    @property
    def code(self) -> list[str]:
        """Digests of the code that models brought."""
        return sorted({tower.code for side in get_args(Side) if (tower := self.tower(side)).code})

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self.settings.dim or self.tower("query").width

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def tower(self, side: Side) -> Tower:
        """The tower that encodes this side."""
        return self.towers[0 if side == "query" else -1]  # type: ignore[return-value]

    def tokenizer(self, side: Side) -> Tokenizer:
        """The tokenizer of this side; it neither truncates nor pads."""
        return self.tower(side).tokenizer

    def template(self, side: Side) -> TextTemplate:
        """How this side's texts become tokens in training."""
        settings, digest = self.settings, self.tower(side).tokenizer_digest
        if side == "query":
            return TextTemplate(
                side, settings.query_length, settings.query_prompt, use_titles=False, tokenizer=digest
            )
        return TextTemplate(
            side,
            settings.passage_length,
            settings.passage_prompt,
            settings.use_titles,
            settings.title_join,
            settings.chunks,
            settings.max_characters,
            digest,
        )

    def untied(self) -> BiEncoder:
        """An encoder with a tower for each side: the passages' is this one's own, the queries' a copy of it."""
        if not self.tied:
            return self
        tower = self.tower("passage")
        return BiEncoder(self.settings, copy.deepcopy(tower), tower)

    def search_template(self, side: Side) -> TextTemplate:
        """How this side's texts become tokens in search, where queries may be longer than in training."""
        template = self.template(side)
        if side == "passage":
            return template
        return replace(template, max_length=self.settings.search_query_length or template.max_length)

    def working_memory(self, tokens: int) -> int:
        """Bytes that a batch of so many tokens takes inside a transformer at most, without gradient."""
        return bytes_of_batch([self.tower(side).transformer.config for side in get_args(Side)], tokens)

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Vectors [n, dim] float32 on the module's device, with gradient where enabled."""
        if not len(tokens):
            return torch.zeros(0, self.dim, device=self.device)
        tower, lengths = self.tower(side), tokens.lengths
        order = np.argsort(-lengths, kind="stable")
        ids = upload(tokens.take(order).ids, self.device)
        layout = lay_out(lengths[order], self.device)
        pooled = self._pool(tower.transformer, ids, layout)
        back = upload(np.argsort(order), self.device)
        return self._project(pooled[back], tower.head)

    def _pool(self, transformer: nn.Module, ids: Tensor, layout: Layout) -> Tensor:
        if self.settings.pooling == "cls":
            return first_states(transformer, ids, layout).float()
        return pool(hidden_states(transformer, ids, layout), layout.bounds, self.settings.pooling)

    def _project(self, pooled: Tensor, head: nn.Module | None) -> Tensor:
        """Head, normalisation and cut, in float32 also under autocast."""
        with torch.autocast(pooled.device.type, enabled=False):
            vectors = pooled if head is None else head(pooled)
            if self.settings.normalize:
                vectors = F.normalize(vectors, dim=-1)
            return vectors[:, : self.dim]

    def encode_pair(
        self, queries: TokenBatch, passages: TokenBatch, encode: Encode | None = None
    ) -> tuple[Tensor, Tensor]:
        """Vectors of both sides; a tied encoder runs once over all of them.

        Parameters
        ----------
        encode : by what, in place of :meth:`encode`.
        """
        encode = encode or self.encode
        if not self.tied:
            return encode(queries, "query"), encode(passages, "passage")
        lengths = np.concatenate([queries.lengths, passages.lengths])
        both = TokenBatch(np.concatenate([queries.ids, passages.ids]), offsets_of(lengths))
        vectors = encode(both, "passage")
        return vectors[: len(queries)], vectors[len(queries) :]

    @contextmanager
    def inference(self, precision: Precision = "float32") -> Iterator[BiEncoder]:
        """Encode without dropout or gradient, with a copy of the transformers' weights in ``precision``.

        Mode and weights are back afterwards, bit for bit. Inside, :attr:`precision` is what vectors are made in,
        and :meth:`digest` is still that of the weights themselves.
        """
        before = self.training, self.precision, self._masters
        replaced = [(tensor, tensor.data) for tower in self.towers for tensor in _floats(tower)]
        try:
            self.eval()
            self.precision = precision
            self._masters = {id(tensor): data for tensor, data in replaced} | self._masters
            for tensor, data in replaced:
                tensor.data = data.to(getattr(torch, precision))
            with torch.no_grad():
                yield self
        finally:
            for tensor, data in replaced:
                tensor.data = data
            training, self.precision, self._masters = before
            self.train(training)

    def digest(self, side: Side | None = None) -> str:
        """SHA-256 over weights, settings, transformer configurations and tokenizers: the model's identity.

        Of one ``side``: the identity of what makes vectors of tokens there, whatever the other side is, and
        however texts become tokens, which token stores answer for. Inside :meth:`inference` it is the same: the
        precision of the work belongs to the vectors, not to the model.
        """
        towers = self.towers if side is None else [self.tower(side)]
        weights = (self if side is None else self.tower(side)).state_dict(keep_vars=True)
        settings = asdict(self.settings)
        kept = settings if side is None else {name: settings[name] for name in OF_VECTORS}
        state = hashlib.sha256(canonical_json([kept, *map(_describe, towers)]))
        for name, held in sorted(weights.items()):
            tensor = self._masters.get(id(held), held.detach())
            state.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]))
            state.update(tensor.cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
        return state.hexdigest()


def _floats(tower: nn.Module) -> Iterator[Tensor]:
    """The floating-point tensors of a tower's transformer; what follows it stays float32."""
    transformer: Any = tower.transformer
    return (x for x in [*transformer.parameters(), *transformer.buffers()] if x.is_floating_point())


def _describe(tower: Any) -> list[Any]:
    config: dict[str, Any] = tower.transformer.config.to_diff_dict()
    kept = {name: config[name] for name in sorted(config) if name not in ORIGIN}
    return [tower.tokenizer_digest, kept, *([tower.code] if tower.code else [])]


def _check_widths(settings: EncoderSettings, query: int, passage: int) -> None:
    if query != passage:
        raise SettingsError(
            "TOWERS_DIFFER",
            f"the query encoder has {query} dimensions, the passage encoder {passage}",
            "choose two of the same size",
        )
    if settings.dim and settings.dim > query:
        raise SettingsError(
            "BAD_SETTING", f"dim = {settings.dim}, the model has {query}", "give a smaller one or none"
        )

"""The bi-encoder: it maps texts of both sides to vectors whose dot product is the score."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from hardneg.errors import SettingsError
from hardneg.models.encoder_settings import OF_VECTORS, EncoderSettings
from hardneg.models.heads import DenseHead
from hardneg.models.tower import Tower, TowerModel
from hardneg.records import Side, TextTemplate, TokenBatch, offsets_of

Encode = Callable[[TokenBatch, Side], Tensor]  # vectors [n, dim] float32


class BiEncoder(TowerModel):
    """A bi-encoder of one transformer for both sides (tied), or of one for each.

    Parameters
    ----------
    query : the tower of the queries; also that of the passages unless ``passage`` is given.
    """

    settings: EncoderSettings

    def __init__(self, settings: EncoderSettings, query: Tower, passage: Tower | None = None) -> None:
        super().__init__(settings, [query] if passage is None else [query, passage])
        _check_widths(settings, width_of(query), width_of(passage or query))

    @property
    def tied(self) -> bool:
        """Whether one tower encodes both sides."""
        return len(self.towers) == 1

    @property
    def dim(self) -> int:
        """Size of the vectors."""
        return self.settings.dim or width_of(self.tower("query"))

    def tower(self, side: Side) -> Tower:
        """The tower that encodes this side."""
        return self.towers[0 if side == "query" else -1]  # type: ignore[return-value]

    def tokenizer(self, side: Side) -> Tokenizer:
        """The tokenizer of this side; it neither truncates nor pads."""
        return self.tower(side).tokenizer

    def template(self, side: Side) -> TextTemplate:
        """How this side's texts become tokens in training."""
        return self.settings.template(side, self.tower(side).tokenizer_digest)

    def search_template(self, side: Side) -> TextTemplate:
        """How this side's texts become tokens in search, where queries may be longer than in training."""
        return self.settings.search_template(side, self.tower(side).tokenizer_digest)

    def untied(self) -> BiEncoder:
        """An encoder with a tower for each side: this one's tower for passages, a copy of it for queries."""
        if not self.tied:
            return self
        tower = self.tower("passage")
        return BiEncoder(self.settings, copy.deepcopy(tower), tower)

    def encode(self, tokens: TokenBatch, side: Side) -> Tensor:
        """Vectors [n, dim] float32 on the module's device, with gradient where enabled."""
        if not len(tokens):
            return torch.zeros(0, self.dim, device=self.device)
        tower = self.tower(side)
        return self._project(tower.pooled(tokens, self.settings.pooling), tower.head)

    def _project(self, pooled: Tensor, head: nn.Module | None) -> Tensor:
        """Turn pooled states [n, h] into vectors [n, dim]: head, normalisation and cut, in float32 always."""
        with torch.autocast(pooled.device.type, enabled=False):
            vectors = pooled if head is None else head(pooled)
            if self.settings.normalize:
                vectors = F.normalize(vectors, dim=-1)
            return vectors[:, : self.dim]

    def encode_pair(
        self, queries: TokenBatch, passages: TokenBatch, encode: Encode | None = None
    ) -> tuple[Tensor, Tensor]:
        """The vectors [n, dim] of queries and of passages.

        A tied encoder runs once, over all texts together.

        Parameters
        ----------
        encode : the function that encodes one side, in place of :meth:`encode`.
        """
        encode = encode or self.encode
        if not self.tied:
            return encode(queries, "query"), encode(passages, "passage")
        lengths = np.concatenate([queries.lengths, passages.lengths])
        both = TokenBatch(np.concatenate([queries.ids, passages.ids]), offsets_of(lengths))
        vectors = encode(both, "passage")
        return vectors[: len(queries)], vectors[len(queries) :]

    def digest(self, side: Side | None = None) -> str:
        """The model's identity (:meth:`TowerModel.digest`), or that of one ``side``.

        The identity of a side covers all that decides which vectors it makes of tokens. It covers neither the
        other side nor how texts become tokens, which the digests of token stores cover.
        """
        if side is None:
            return super().digest()
        tower, settings = self.tower(side), asdict(self.settings)
        return self.digest_of(tower, [tower], {name: settings[name] for name in OF_VECTORS})


def width_of(tower: Tower) -> int:
    """Size of the vectors of a tower, before they are cut."""
    return tower.head.width if isinstance(tower.head, DenseHead) else tower.width


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

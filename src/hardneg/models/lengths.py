"""How many texts are cut at the lengths in force: counted by their token stores, or estimated from a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hardneg import keyed_random
from hardneg.data.collection import Collection
from hardneg.data.tokens import cut_texts
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.encoder_settings import EncoderSettings
from hardneg.models.tokenizing import shorter, store_of
from hardneg.records import Int64, Side, TextTemplate

SIDES: tuple[Side, Side] = ("passage", "query")
MOST = 2_000  # texts of a sample, where the token store did not count: takes seconds, and is right to 2 %


@dataclass(frozen=True)
class Cut:
    """How many texts of one side a length cuts.

    Attributes
    ----------
    length, own : the length in tokens at which texts are cut, and the length that the original model takes.
    texts, cut : the number of texts, and the number of those that are cut.
    chunks : the number of sequences of ``length`` that a text may have.
    exact : whether all texts were counted; else ``cut`` is an estimate from ``drawn`` of them.
    in_steps : whether only training steps cut at this length.
    """

    side: Side
    length: int
    own: int
    texts: int
    cut: int
    chunks: int = 1
    exact: bool = True
    drawn: int = 0
    in_steps: bool = False

    def __str__(self) -> str:
        """One line for people, such as ``passages: 37 % of 15,775 are cut at 64 tokens (the model takes 256)``."""
        return f"{self.plural}: {self.told}"

    @property
    def plural(self) -> str:
        """The word for the texts: queries or passages."""
        word = "queries" if self.side == "query" else "passages"
        return f"{word} in training steps" if self.in_steps else word

    @property
    def name(self) -> str:
        """What ``results.json`` calls the texts: ``query``, ``passage`` or ``passage in steps``."""
        return f"{self.side} in steps" if self.in_steps else self.side

    @property
    def told(self) -> str:
        """The line for people without the word for the texts: ``37 % of 15,775 are cut at 64 tokens``."""
        at = f"{self.length} tokens" if self.chunks == 1 else f"{self.chunks} chunks of {self.length} tokens"
        longer = f" (the model takes {self.own})" if self.own > self.length else ""
        if not self.cut:
            return f"none{'' if self.exact else f' of a sample of {self.drawn:,}'} is cut at {at}{longer}"
        drawn = "" if self.exact else f", by a sample of {self.drawn:,}"
        share = percent(self.cut / self.texts)
        about = "about " if share[0].isdigit() and not self.exact else ""  # not "about under 1 %"
        return f"{about}{share} of {self.texts:,} are cut at {at}{longer}{drawn}"

    def as_json(self) -> dict[str, Any]:
        """The record for ``results.json``; ``drawn`` is in it only where ``cut`` is an estimate."""
        found = {"tokens": self.length, "own": self.own, "texts": self.texts, "cut": self.cut}
        found |= {"chunks": self.chunks} if self.chunks > 1 else {}
        return found | {"share": self.cut / max(self.texts, 1)} | ({} if self.exact else {"drawn": self.drawn})


def percent(share: float) -> str:
    """A share in per cent for people; shares below 1 % or above 99 % are not rounded to 0 or 100 %."""
    if share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


@dataclass(frozen=True)
class Length:
    """The length that cuts the texts of one side, with the tokenizer that counts their tokens.

    Attributes
    ----------
    own : the length in tokens that the original model takes.
    in_steps : whether only training steps cut at this length.
    """

    template: TextTemplate
    tokenizer: Tokenizer
    own: int
    in_steps: bool = False

    def count_cut(self, collection: Collection, cache: Path) -> Cut:
        """The number of texts that training cuts, as counted by their token store, which is made on first use.

        A store of an older hardneg has no such count: then the number is estimated.
        """
        cut = store_of(self.template, self.tokenizer, collection, cache).cut
        return self.sample_cut(collection) if cut is None else self._cut(collection, cut)

    def sample_cut(self, collection: Collection, most: int = MOST) -> Cut:
        """Estimate the number of texts that training cuts from ``most`` drawn ones; no token store is written."""
        passages = self.template.side == "passage"
        drawn = draw(np.arange(count(collection, self.template.side)), most)
        texts = (collection.texts if passages else collection.query_texts).take(drawn)
        titles = collection.titles.take(drawn) if passages and len(collection.titles) else []
        return self._cut(
            collection, int(cut_texts(texts, titles, self.template, self.tokenizer).sum()), len(drawn)
        )

    def _cut(self, collection: Collection, cut: int, of: int | None = None) -> Cut:
        """The record of ``cut`` texts among ``of`` drawn ones; None: among all."""
        template, n = self.template, count(collection, self.template.side)
        exact = of is None or of == n
        total = cut if of is None else round(n * cut / max(of, 1))
        return Cut(
            template.side, template.max_length, self.own, n, total, template.chunks, exact, of or 0, self.in_steps
        )


def lengths_of(encoder: BiEncoder, own: EncoderSettings, in_steps: int | None = None) -> list[Length]:
    """The lengths of passages and of queries that an encoder trains at.

    Parameters
    ----------
    own : the settings of the original model.
    in_steps : tokens of a passage in training steps, where search reads more; None: both read the same.
    """
    lengths = [
        Length(encoder.template(side), encoder.tokenizer(side), own.template(side).max_length) for side in SIDES
    ]
    passages = lengths[0]
    template = shorter(passages.template, in_steps)
    if template == passages.template:
        return lengths
    return [*lengths, replace(passages, template=template, in_steps=True)]


def count(collection: Collection, side: Side) -> int:
    """The number of texts of a side."""
    return collection.n_queries if side == "query" else collection.n_passages


def draw(rows: Int64, most: int) -> Int64:
    """At most ``most`` of the rows, drawn without replacement; every call draws the same ones."""
    if len(rows) <= most:
        return rows
    words = keyed_random.hash64(keyed_random.key(0, "lengths"), rows)
    return rows[np.sort(keyed_random.smallest(words, np.array([0, len(rows)]), np.array([most])))]

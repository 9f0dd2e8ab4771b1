"""How many texts are cut at the lengths in force: counted where that is quick, else on a drawn part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.data.collection import Collection
from hardneg.data.tokens import BLOCK, TokenStore, cut_texts
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.tokenizing import token_store
from hardneg.records import Int64, Side, TextTemplate, spans

MOST = 2_000  # texts tokenised once more to know whether they are cut: seconds, and right to 1 %


@dataclass(frozen=True)
class Cut:
    """How many texts of one side a length cuts.

    Attributes
    ----------
    length, own : the length in tokens at which texts are cut, and the length that the model takes as it came.
    texts, cut : the number of texts, and the number of those that are cut.
    chunks : the number of sequences of ``length`` that a text may have.
    exact : whether all texts were counted; else ``cut`` is an estimate from ``drawn`` of them.
    """

    side: Side
    length: int
    own: int
    texts: int
    cut: int
    chunks: int = 1
    exact: bool = True
    drawn: int = 0

    def __str__(self) -> str:
        """One line for people, such as ``passages: 37 % of 15,775 are cut at 64 tokens (the model takes 256)``."""
        return f"{self.plural}: {self.told}"

    @property
    def plural(self) -> str:
        """The word for the texts: queries or passages."""
        return "queries" if self.side == "query" else "passages"

    @property
    def told(self) -> str:
        """The line for people without the word for the texts: ``37 % of 15,775 are cut at 64 tokens``."""
        at = f"{self.length} tokens" if self.chunks == 1 else f"{self.chunks} chunks of {self.length} tokens"
        longer = f" (the model takes {self.own})" if self.own > self.length else ""
        if not self.cut:
            return f"none{'' if self.exact else f' of a sample of {self.drawn:,}'} is cut at {at}{longer}"
        about, drawn = ("", "") if self.exact else ("about ", f", by a sample of {self.drawn:,}")
        return f"{about}{percent(self.cut / self.texts)} of {self.texts:,} are cut at {at}{longer}{drawn}"

    def as_json(self) -> dict[str, Any]:
        """The record for ``results.json``; ``drawn`` is in it only where ``cut`` is an estimate."""
        found = {"tokens": self.length, "own": self.own, "texts": self.texts, "cut": self.cut}
        found |= {"chunks": self.chunks} if self.chunks > 1 else {}
        return found | {"share": self.cut / max(self.texts, 1)} | ({} if self.exact else {"drawn": self.drawn})


def percent(share: float) -> str:
    """A share in per cent for people; no share but 0 and 1 is shown as 0 or 100 %."""
    if share < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"


def count_cut(
    encoder: BiEncoder, collection: Collection, cache: Path, side: Side, own: int, *, most: int = MOST
) -> Cut:
    """Count the texts of a side that training cuts, from the token store.

    Only texts that fill their length may be cut, so only these are tokenised once more.

    Parameters
    ----------
    own : tokens that the model takes as it came.
    most : of more texts that fill it, so many are drawn and tokenised.
    """
    template = encoder.template(side)
    full = full_texts(token_store(encoder, collection, cache, side), template)
    drawn = draw(full, most)
    found = int(are_cut(encoder, collection, side, drawn).sum())
    exact = len(drawn) == len(full)
    cut = found if exact else round(len(full) * found / len(drawn))
    n = count(collection, side)
    return Cut(side, template.max_length, own, n, cut, template.chunks, exact, len(drawn))


def sample_cut(encoder: BiEncoder, collection: Collection, side: Side, own: int, *, most: int) -> Cut:
    """Estimate the number of texts that training cuts from ``most`` drawn ones; no token store is written."""
    template, n = encoder.template(side), count(collection, side)
    drawn = draw(np.arange(n), most)
    found = int(are_cut(encoder, collection, side, drawn).sum())
    cut = round(n * found / max(len(drawn), 1))
    return Cut(side, template.max_length, own, n, cut, template.chunks, len(drawn) == n, len(drawn))


def count(collection: Collection, side: Side) -> int:
    """The number of texts of a side."""
    return collection.n_queries if side == "query" else collection.n_passages


def full_texts(store: TokenStore, template: TextTemplate) -> Int64:
    """The rows [n] of the texts that have as many tokens as the template allows."""
    if store.first is None:
        return np.flatnonzero(store.lengths == template.max_length)
    whole = spans(store.first) == template.chunks
    whole &= store.lengths[store.first[1:] - 1] == template.max_length
    return np.flatnonzero(whole)


def draw(rows: Int64, most: int) -> Int64:
    """At most ``most`` of the rows, drawn without replacement; every call draws the same ones."""
    if len(rows) <= most:
        return rows
    words = keyed_random.hash64(keyed_random.key(0, "lengths"), rows)
    return rows[np.sort(keyed_random.smallest(words, np.array([0, len(rows)]), np.array([most])))]


def are_cut(encoder: BiEncoder, collection: Collection, side: Side, rows: Int64) -> NDArray[np.bool_]:
    """Whether each of the texts in ``rows`` [n] loses tokens to the template's length: [n] bool."""
    template, tokenizer, found = encoder.template(side), encoder.tokenizer(side), [np.zeros(0, bool)]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        texts = (collection.query_texts if side == "query" else collection.texts).take(block)
        titles = collection.titles.take(block) if side == "passage" and len(collection.titles) else []
        found.append(cut_texts(texts, titles, template, tokenizer))
    return np.concatenate(found)

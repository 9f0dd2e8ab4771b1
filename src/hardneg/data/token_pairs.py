"""Pairs of a query and a passage as one token sequence each, joined from the tokens in token stores.

The stores hold both texts as tokens, so nothing is tokenised twice. A pair is the query's tokens and the passage's
tokens, with the special tokens that the tokenizer itself puts around and between two texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hardneg.data.tokens import TokenStore, post_processed, special_around
from hardneg.errors import SettingsError
from hardneg.records import Int64, TextTemplate, TokenBatch, offsets_of, spans, take_spans

Rows = NDArray[np.integer]


@dataclass(frozen=True)
class Special:
    """Special tokens that stand together in a pair, and the types they have there."""

    ids: tuple[int, ...]
    types: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class PairForm:
    """How a tokenizer makes one sequence of two texts, as ``[CLS] query [SEP] passage [SEP]``.

    Attributes
    ----------
    before, between, after : the special tokens around query and passage.
    types : token types of the query's own tokens and of the passage's; (0, 1) in BERT, (0, 0) in RoBERTa.
    around : how many special tokens stand before and after a text that is alone, as in a token store.
    """

    before: Special
    between: Special
    after: Special
    types: tuple[int, int]
    around: tuple[int, int]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairForm:
        """The form that the tokenizer's post-processor gives to two texts.

        Raises
        ------
        SettingsError : the tokenizer has no such form: two texts would have fewer special tokens than one, or
            change places.
        """
        pair = post_processed(tokenizer, "a", "b")
        query, passage = (pair.sequence_ids.index(text) for text in (0, 1))
        around = special_around(tokenizer)
        if passage < query or len(pair) - 2 < sum(around):
            raise SettingsError(
                "NO_PAIRS",
                "the tokenizer has no form for a query and a passage in one sequence",
                "choose a model whose tokenizer.json has a template for pairs",
            )
        parts = (slice(0, query), slice(query + 1, passage), slice(passage + 1, len(pair)))
        before, between, after = (Special(tuple(pair.ids[part]), tuple(pair.type_ids[part])) for part in parts)
        return cls(before, between, after, (pair.type_ids[query], pair.type_ids[passage]), around)

    @property
    def special(self) -> int:
        """Special tokens of a pair."""
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def has_types(self) -> bool:
        """Whether any token is of a type other than 0."""
        return any((*self.before.types, *self.between.types, *self.after.types, *self.types))


@dataclass(frozen=True)
class PairTemplate:
    """How texts become the token sequences of pairs.

    A pair holds the tokens of its stores, prompts included. With the templates of a bi-encoder, pairs contain the
    bi-encoder's prompts, and both models share its two stores. A model that only reads pairs has templates without
    prompts, unless it was trained with prompts. Titles stand before passages as in any store.

    Attributes
    ----------
    query, passage : templates of the token stores that pairs are put together from.
    max_length : tokens of a pair at most, special ones included. The passage is cut for it.
    """

    query: TextTemplate
    passage: TextTemplate
    max_length: int

    @classmethod
    def whole(cls, query: TextTemplate, passage: TextTemplate, form: PairForm, max_length: int) -> PairTemplate:
        """A template that keeps passages as long as a pair has room for: it makes the tokenizer's own pairs."""
        longest = max_length - form.special + sum(form.around)
        return cls(query, replace(passage, max_length=longest), max_length)

    def check(self, form: PairForm) -> None:
        """Refuse lengths at which a query may leave no token for its passage; raises ``SettingsError``."""
        least = self.query.max_length - sum(form.around) + form.special + 1
        if self.max_length < least:
            raise SettingsError(
                "MAX_LENGTH",
                f"pairs of {self.max_length} tokens leave no room for a passage beside a query of "
                f"{self.query.max_length}",
                f"set the pairs' length to {least} or more, or shorten the queries",
            )


@dataclass(frozen=True, eq=False)
class PairStore:
    """The token sequences of pairs, made when they are read.

    Attributes
    ----------
    queries, passages : token stores of both sides, or the tokens of a few texts that stand in no collection.
    """

    queries: TokenStore | TokenBatch
    passages: TokenStore | TokenBatch
    form: PairForm
    max_length: int

    def lengths(self, query_rows: Rows, passage_rows: Rows) -> Int64:
        """Tokens of each pair [n]."""
        query, passage = self._kept(query_rows, passage_rows)
        return query + passage + self.form.special

    def read(self, query_rows: Rows, passage_rows: Rows) -> TokenBatch:
        """The pairs of query ``query_rows[i]`` and passage ``passage_rows[i]`` [n], in that order."""
        form, (query, passage) = self.form, self._kept(query_rows, passage_rows)
        offsets = offsets_of(query + passage + form.special)
        ids = np.empty(offsets[-1], np.int32)
        types = np.empty(offsets[-1], np.uint8) if form.has_types else None

        def put(at: Int64, part: Special) -> Int64:
            for number, kind in zip(part.ids, part.types, strict=True):
                ids[at] = number
                if types is not None:
                    types[at] = kind
                at = at + 1
            return at

        def copy(at: Int64, side: TokenStore | TokenBatch, rows: Rows, kept: Int64, kind: int) -> Int64:
            places = _places(at, kept)
            ids[places] = side.ids[_places(side.offsets[rows] + form.around[0], kept)]
            if types is not None:
                types[places] = kind
            return at + kept

        at = put(offsets[:-1], form.before)
        at = copy(at, self.queries, query_rows, query, form.types[0])
        at = put(at, form.between)
        at = copy(at, self.passages, passage_rows, passage, form.types[1])
        put(at, form.after)
        return TokenBatch(ids, offsets, types)

    def read_documents(self, query_rows: Rows, passage_rows: Rows) -> tuple[TokenBatch, Int64 | None]:
        """The pairs of each query with every sequence of its passage, and each query's offsets [n + 1] in them.

        The offsets are None where every passage is one sequence.
        """
        if (first := getattr(self.passages, "first", None)) is None:
            return self.read(query_rows, passage_rows), None
        sequences, offsets = take_spans(first, passage_rows)
        return self.read(np.repeat(query_rows, spans(offsets)), sequences), offsets

    def _kept(self, query_rows: Rows, passage_rows: Rows) -> tuple[Int64, Int64]:
        """The numbers of query tokens [n] and of passage tokens [n] in each pair, without special tokens."""
        around, room = sum(self.form.around), self.max_length - self.form.special
        query, passage = (
            side.offsets[1:][rows] - side.offsets[rows] - around
            for side, rows in ((self.queries, query_rows), (self.passages, passage_rows))
        )
        return query, np.minimum(passage, room - query)


def _places(starts: Int64, lengths: Int64) -> Int64:
    """The indices of ``lengths[i]`` consecutive elements from ``starts[i]`` on, for each i in turn."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])

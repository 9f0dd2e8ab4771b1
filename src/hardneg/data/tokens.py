"""Token stores: the token ids of all texts of one side, tokenised once and read by row, without padding."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel

from hardneg.data.words import Sequences, WordTokenizer, parts_at_blanks
from hardneg.errors import SettingsError
from hardneg.process.progress import Tick, silent, wait_for_another
from hardneg.records import Int32, Int64, Side, TextTemplate, TokenBatch, offsets_of, spans, take_spans
from hardneg.storage.artifacts import (
    digest_json,
    is_published,
    load_array,
    open_artifact,
    place_in,
    publish,
)
from hardneg.storage.lease import LEASES, made_once

KIND = "tokens"
BLOCK = 4096  # texts tokenised at once
ENOUGH = 256  # number of texts from which on it pays to tokenise word by word


class Column(Protocol):
    """A column of strings that are read by row."""

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.integer]) -> list[str]:
        """The strings of these rows, in that order."""


class Texts(Protocol):
    """The texts that a token store is made from; a collection has this form."""

    @property
    def digest(self) -> str:
        """The digest of the collection."""

    @property
    def titles(self) -> Column:
        """The titles by passage row; a passage without a title has an empty one."""

    @property
    def texts(self) -> Column:
        """The texts by passage row."""

    @property
    def query_texts(self) -> Column:
        """The texts of the queries by query row."""


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The token ids of every text of one side, special tokens included; memory-mapped.

    The ids of sequence i are ``ids[offsets[i]:offsets[i + 1]]``. A sequence is a whole text, unless the template
    cuts documents into chunks: then document d has the sequences ``first[d]`` to ``first[d + 1] - 1``.

    Attributes
    ----------
    digest : identity of the sequences; it leaves out what was counted while they were made.
    cut : how many texts lost tokens to the length; None: an older hardneg made the store, and did not count them.
    """

    ids: NDArray[np.unsignedinteger]  # [T] uint16, uint32 for vocabularies above 65 536
    offsets: Int64  # [n + 1]
    digest: str
    first: Int64 | None = None  # [documents + 1]; None: a text is one sequence
    cut: int | None = None

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Open a published store, its files verified; raises :class:`hardneg.errors.ArtifactError`."""
        manifest = open_artifact(path, KIND)
        ids, offsets = (np.asarray(load_array(path / f"{name}.npy")) for name in ("ids", "offsets"))
        first = np.asarray(load_array(path / "first.npy")) if "first.npy" in manifest.files else None
        cut = manifest.facts.get("cut")
        return cls(ids, offsets, replace(manifest, facts={}).digest, first, cut)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Number of tokens of each sequence [n]."""
        return spans(self.offsets)

    def document(self, sequence: int) -> int:
        """The row of the text that a sequence belongs to."""
        return sequence if self.first is None else int(np.searchsorted(self.first, sequence, side="right")) - 1

    def read_documents(self, rows: NDArray[np.integer]) -> tuple[TokenBatch, Int64 | None]:
        """All sequences of the texts at ``rows`` [n], in that order, and the offsets [n + 1] of each text in them.

        The offsets are None where every text is one sequence.
        """
        if self.first is None:
            return self.read(rows), None
        index, offsets = take_spans(self.first, rows)
        return self.read(index), offsets

    def read(self, rows: NDArray[np.integer]) -> TokenBatch:
        """The token sequences of these rows, in that order."""
        index, offsets = take_spans(self.offsets, rows)
        return TokenBatch(self.ids.take(index).astype(np.int32), offsets)


@dataclass(frozen=True, eq=False)
class SomeTokens:
    """Some texts of a token store, read as if the store held no others: row i here is row ``rows[i]`` there.

    Attributes
    ----------
    rows : [n] rows of texts of ``store``, in which every text is one sequence.
    """

    store: TokenStore
    rows: Int32
    first: None = None

    def __post_init__(self) -> None:
        assert self.store.first is None, "each text is one sequence"

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def digest(self) -> str:
        """The identity of the sequences."""
        return digest_json([self.store.digest, self.rows.tolist()])

    @property
    def lengths(self) -> Int64:
        """Number of tokens of each sequence [n]."""
        return self.store.lengths[self.rows]

    def document(self, sequence: int) -> int:
        """The row, in the store, of the text that a sequence belongs to."""
        return int(self.rows[sequence])

    def read(self, rows: NDArray[np.integer]) -> TokenBatch:
        """The token sequences of these rows of ``rows``, in that order."""
        return self.store.read(self.rows[rows])


def tokenize(
    source: Texts,
    template: TextTemplate,
    tokenizer: Tokenizer,
    cache: Path,
    *,
    beside: Path | None = None,
    progress: Tick = silent,
) -> TokenStore:
    """Open the token store of one side of ``source`` in the cache; make it first if it is not there.

    A passage is ``[CLS] title [SEP] text [SEP]`` when it has a title that the template uses, else
    ``[CLS] text [SEP]``, with the tokenizer's own special tokens. The prompt comes before the text. A line break
    in a title becomes a separator too (``url [SEP] title`` of MS MARCO's documents). A sequence longer than the
    template's length is cut before its last special token. With ``chunks`` the rest goes into further sequences,
    each with its own special tokens; only the first one has prompt and title. An empty text becomes one sequence
    of special tokens.

    Parameters
    ----------
    cache : the folder of token stores; a store's key is the digest of collection, template and tokenizer.
    beside : a second cache, whose store is opened if the first has none; nothing is written there.
    progress : called with the number of texts done and the number of all.

    Raises
    ------
    SettingsError : the length leaves no room for text, or the tokenizer has no separator to join titles with.
    """
    template = replace(template, tokenizer=tokenizer_digest(tokenizer))
    name = Path(KIND, digest_json([source.digest, asdict(template)])[:32])
    path = place_in(cache, beside, name, TokenStore.open)
    if path != cache / name:  # nothing is made there
        return TokenStore.open(path)
    made_once(
        cache / LEASES / path.name,
        lambda: is_published(path, KIND),
        lambda: _build(path, source, template, tokenizer, progress),
        wait_for_another,
    )
    return TokenStore.open(path)


def token_batch(texts: list[str], titles: list[str], template: TextTemplate, tokenizer: Tokenizer) -> TokenBatch:
    """The token sequences of a few texts that are in no collection; ``titles`` may be empty.

    If the template cuts documents into chunks, every chunk is a sequence of the result.
    """
    found = _all_sequences(texts, titles, template, tokenizer)
    lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in found)])
    return TokenBatch(np.concatenate([np.zeros(0, np.int32), *(part.ids for part in found)]), offsets_of(lengths))


def cut_texts(
    texts: list[str], titles: list[str], template: TextTemplate, tokenizer: Tokenizer
) -> NDArray[np.bool_]:
    """Whether each of a few texts [n] has more tokens than the template keeps; ``titles`` may be empty."""
    found = _all_sequences(texts, titles, template, tokenizer)
    return np.concatenate([np.zeros(0, bool), *(part.cut for part in found)])


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """Digest of everything in a tokenizer that decides token ids: all but its truncation and padding."""
    splits = {"encode_special_tokens": True} if tokenizer.encode_special_tokens else {}  # its JSON does not say it
    return digest_json({**json.loads(tokenizer.to_str()), "truncation": None, "padding": None, **splits})


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of a tokenizer that neither truncates nor pads, whatever its file says."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.encode_special_tokens = tokenizer.encode_special_tokens  # whether a text's "[SEP]" is no special token
    copy.no_truncation()
    copy.no_padding()
    return copy


def check_prompt(tokenizer: Tokenizer, side: Side, prompt: str, name: str, length: int | None) -> None:
    """Refuse a prompt after which not even a text of one letter would be left; raises :class:`SettingsError`.

    Parameters
    ----------
    name, length : the setting at which texts of this side are cut, and its tokens; None: it cuts none.
    """
    taken = len(tokenizer.encode(prompt + "a").ids) - 1 if prompt and length else 0
    if length and taken >= length:
        what = f"{side}_prompt takes {taken} tokens, but {name} is {length}: no text would be left"
        raise SettingsError("TOO_LONG", what, f"shorten the prompt, or raise {name}")


def separator(tokenizer: Tokenizer) -> str:
    """The token that ends a text, e.g. ``[SEP]`` or ``</s>``.

    Raises
    ------
    SettingsError : the tokenizer puts nothing after a text, or would not read it inside a text.
    """
    if tokenizer.encode_special_tokens:
        what = "the tokenizer reads special tokens in a text as words (split_special_tokens)"
        raise SettingsError("NO_SEPARATOR", what, 'set title_join = "space"')
    encoding = tokenizer.encode("a")
    text_end = len(encoding) - encoding.special_tokens_mask[::-1].index(0)
    if text_end == len(encoding):
        raise SettingsError(
            "NO_SEPARATOR",
            "the tokenizer has no separator token to put after a title",
            'set title_join = "space"',
        )
    return str(encoding.tokens[text_end])


def post_processed(tokenizer: Tokenizer, text: str, pair: str | None = None) -> Encoding:
    """One or two texts of a single token each, and the special tokens that the tokenizer puts around them."""
    probe = Tokenizer(WordLevel({"a": 0}, unk_token="a"))  # whatever the vocabulary, every text is one token here
    if tokenizer.post_processor is not None:
        probe.post_processor = tokenizer.post_processor
    return probe.encode(text, pair)


def special_around(tokenizer: Tokenizer) -> tuple[int, int]:
    """How many special tokens the tokenizer puts before and after a text."""
    mask = post_processed(tokenizer, "a").special_tokens_mask
    return mask.index(0), mask[::-1].index(0)


def without_special(batch: TokenBatch, tokenizer: Tokenizer) -> TokenBatch:
    """The sequences without the special tokens before and after their texts."""
    before, after = special_around(tokenizer)
    lengths = batch.lengths - before - after
    offsets = offsets_of(lengths)
    index = np.arange(offsets[-1]) + np.repeat(batch.offsets[:-1] + before - offsets[:-1], lengths)
    return TokenBatch(batch.ids[index], offsets)


def joined_passages(titles: list[str], texts: list[str], join: str) -> list[str]:
    """Each passage as one string: title, ``join`` and text, or the text alone if it has no title."""
    return [title + join + text if title else text for title, text in zip(titles, texts, strict=True)]


def _build(path: Path, source: Texts, template: TextTemplate, tokenizer: Tokenizer, progress: Tick) -> None:
    strings = _strings(template, tokenizer)
    column = source.query_texts if template.side == "query" else source.texts
    total = len(column)
    sequences = _sequencer(tokenizer, template, total)
    lengths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    pieces, cut = np.ones(total, np.int64), 0
    inputs = {"collection": source.digest, "tokenizer": template.tokenizer}
    with publish(path, KIND, settings=asdict(template), inputs=inputs, replace=True) as draft:
        with draft.appending("ids.npy", _id_type(tokenizer)) as append:
            for start in range(0, total, BLOCK):
                end = min(start + BLOCK, total)
                rows = np.arange(start, end)
                titles = source.titles.take(rows) if template.side == "passage" and len(source.titles) else []
                found = sequences(strings(titles, column.take(rows)))
                cut += int(found.cut.sum())
                pieces[start:end] = found.counts
                lengths.append(found.lengths)
                append(found.ids)
                progress(end, total)
        draft.array("offsets.npy", offsets_of(np.concatenate(lengths)))
        if template.chunks > 1:
            draft.array("first.npy", offsets_of(pieces))
        draft.facts["cut"] = cut


def _all_sequences(
    texts: list[str], titles: list[str], template: TextTemplate, tokenizer: Tokenizer
) -> list[Sequences]:
    """The sequences of texts, a block of these at a time; ``titles`` may be empty."""
    strings = _strings(template, tokenizer)(titles, texts)
    sequences = _sequencer(tokenizer, template, len(texts))
    return [sequences(strings[start : start + BLOCK]) for start in range(0, len(strings), BLOCK)]


def _sequencer(tokenizer: Tokenizer, template: TextTemplate, total: int) -> Callable[[list[str]], Sequences]:
    """The function that makes the sequences of strings.

    It works word by word if that gives the same tokens and there are enough texts for it to pay.
    """
    if total >= ENOUGH and parts_at_blanks(tokenizer):
        _check_room(tokenizer, template.max_length)
        words = WordTokenizer(plain_tokenizer(tokenizer), special_around(tokenizer))
        return lambda strings: words.sequences(strings, template.max_length, template.chunks)
    truncating = _truncating(tokenizer, template.max_length)
    return lambda strings: _sequences(truncating.encode_batch_fast(strings), template)


def _sequences(encodings: list[Encoding], template: TextTemplate) -> Sequences:
    """The sequences of all texts: at least one for each, also where a text is empty."""
    full = [len(one) == template.max_length for one in encodings]  # reading ``overflowing`` copies it
    over = [of and len(one.overflowing) >= template.chunks for of, one in zip(full, encodings, strict=True)]
    counts = np.ones(len(encodings), np.int64)
    if template.chunks > 1:
        dealt = [[one, *one.overflowing[: template.chunks - 1]] for one in encodings]
        counts[:] = [len(one) for one in dealt]
        encodings = list(chain.from_iterable(dealt))
    lengths = np.array([len(one) for one in encodings], np.int64)
    ids = np.fromiter(chain.from_iterable(one.ids for one in encodings), np.int32, lengths.sum())
    return Sequences(ids, lengths, counts, np.array(over, bool))


def _check_room(tokenizer: Tokenizer, max_length: int) -> None:
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    if max_length <= special:
        raise SettingsError(
            "MAX_LENGTH",
            f"a maximum length of {max_length} tokens leaves no room for text ({special} are special)",
            f"set it above {special}",
        )


def _truncating(tokenizer: Tokenizer, max_length: int) -> Tokenizer:
    _check_room(tokenizer, max_length)
    copy = plain_tokenizer(tokenizer)
    copy.enable_truncation(max_length)
    return copy


def _strings(template: TextTemplate, tokenizer: Tokenizer) -> Callable[[list[str], list[str]], list[str]]:
    """The function from titles and texts to the strings that are tokenised."""
    titled = template.side == "passage" and template.use_titles
    join = "" if not titled else separator(tokenizer) if template.title_join == "sep" else " "

    def strings(titles: list[str], texts: list[str]) -> list[str]:
        if titled and titles:
            texts = joined_passages([title.replace("\n", join) for title in titles], texts, join)
        if template.max_characters:
            texts = [text[: template.max_characters] for text in texts]
        return [template.prompt + text for text in texts]

    return strings


def _id_type(tokenizer: Tokenizer) -> type[np.unsignedinteger]:
    return np.uint16 if max(tokenizer.get_vocab().values()) < 1 << 16 else np.uint32

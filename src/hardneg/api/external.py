"""Opens negatives made elsewhere as a run or a pool, the two forms that mining takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardneg.api.inputs import Data, Place, collection_of
from hardneg.api.inspect import pool_at
from hardneg.data.collection import Collection
from hardneg.data.formats.negative_lists import (
    NAME,
    asks_in_tokens,
    holds_tokens,
    list_files,
    read_id_lists,
    read_token_lists,
)
from hardneg.data.formats.table_files import table_files
from hardneg.data.formats.tables import JSON, suffix_of
from hardneg.data.formats.trec import read_run
from hardneg.data.importing import find_source, kind_of_file, of_columns
from hardneg.data.record_source import Source
from hardneg.data.tokens import TokenStore, separator, tokenize, without_special
from hardneg.data.training_data import named_split
from hardneg.errors import InputError, SettingsError
from hardneg.keyed_random import UInt64
from hardneg.models.source import ModelSource
from hardneg.negatives.candidates import Filters
from hardneg.negatives.external_lists import (
    find,
    hash_lists,
    pool_of_lists,
    pool_of_texts,
    rows_of_ids,
    rows_of_tokens,
    sequence_hashes,
    with_first,
)
from hardneg.negatives.groups import usable
from hardneg.negatives.imported_pool import from_file
from hardneg.negatives.pool import KIND, NegativePool, open_pool, save_pool
from hardneg.process.progress import is_shown, note, track
from hardneg.records import Int32, Positives, Run, Side, TokenBatch, spans
from hardneg.storage.artifacts import cached_digest, digest_json, is_published, read_manifest

if TYPE_CHECKING:
    from hardneg.models.bi_encoder import BiEncoder

RECORDS = (".json", ".jsonl")
BLOCK = 1 << 15  # texts hashed together


def open_negatives(
    place: Path, collection: Collection, positives: Positives, source: ModelSource | None, *, cache: Path
) -> Run | NegativePool:
    """Open negatives made elsewhere: a run, a pool (or an experiment: its last), a table of pairs, or JSON.

    A table has negatives as texts, in columns such as ``negative`` or ``neg``. JSON has negatives by passage id,
    or as token ids.

    Raises
    ------
    SettingsError : token ids are given without the model whose tokenizer made them.
    InputError : the file is malformed, names what the collection does not have, or names none of the queries.
    ArtifactError : the pool or run belongs to another collection, or is damaged.
    """
    given = _opened(place, collection, positives, source, cache)
    named = given.query_rows[spans(given.offsets) > 0]
    if len(positives) and not np.isin(named, positives.query_rows).any():
        what = "no query of the split has a negative in it"
        fix = "give negatives of these queries, such as a run that hardneg search --split train wrote"
        raise InputError("NO_NEGATIVES", what, fix, path=place)
    return given


def _opened(
    place: Path, collection: Collection, positives: Positives, source: ModelSource | None, cache: Path
) -> Run | NegativePool:
    pool = pool_at(place) or place
    if is_published(pool, KIND):
        return open_pool(pool, collection)
    if has_pairs(place):
        return given_pool(find_source(f"pairs:{place}"), collection, positives)
    if is_run(place):
        return read_run(place, collection.query_ids, collection.passage_ids, collection=collection.digest)
    files = list_files(place)
    if not holds_tokens(files[0]):
        lists = rows_of_ids(read_id_lists(files), collection.query_ids, collection.passage_ids)
        return pool_of_lists(lists, positives, collection.digest)
    if source is None:
        raise SettingsError("NO_MODEL", "token ids need the tokenizer that made them", "give --model")
    from hardneg.models.loading import open_encoder

    return pool_of_tokens(files, collection, positives, open_encoder(source.tokenizing), cache)


def negatives_digest(place: Path) -> str:
    """The digest of negatives made elsewhere, which is recorded as an input of a pool made from them."""
    pool = pool_at(place) or place
    if is_published(pool, KIND):
        return read_manifest(pool).digest
    if has_pairs(place):
        return digest_json(dict(find_source(f"pairs:{place}").inputs))
    return digest_json({file.name: cached_digest(file) for file in list_files(place)})


def has_token_ids(place: Path) -> bool:
    """Whether negatives made elsewhere are token ids, which need the tokenizer of a model."""
    if is_published(pool_at(place) or place, KIND) or has_pairs(place) or is_run(place):
        return False
    return holds_tokens(list_files(place)[0])


def is_run(place: Path) -> bool:
    """Whether a place is a file that is read as a run, because its name ends otherwise than JSON's."""
    return place.is_file() and Path(place.name.removesuffix(".gz")).suffix not in RECORDS


def has_pairs(place: Path) -> bool:
    """Whether a place holds tables of pairs with negatives as texts, and not lists of token ids."""
    if not place.is_file():
        return place.is_dir() and not any(place.glob(NAME)) and of_columns(table_files(place)) == "pairs"
    is_json = suffix_of(place) in JSON
    return kind_of_file(place) == "pairs" and not (is_json and holds_tokens(place) and asks_in_tokens(place))


def given_pool(source: Source, collection: Collection, positives: Positives) -> NegativePool:
    """A pool of the negatives that a source has in addition to its judgements; raises if it has none."""
    teacher = digest_json({"given": dict(source.inputs)})
    records = (one for one in source.negatives()) if source.negatives else ()
    pool = pool_of_texts(records, collection, positives, collection.digest, teacher)
    if not len(pool.passage_rows):
        what = f"the source ({source.format}) gives no negatives for these queries"
        if any(one.grade < 1 for one in source.judgements()):
            what += "; its rows of grade 0 are judgements, not negatives"
        raise InputError("NO_NEGATIVES", what, "give one with a column such as negative, or mine them")
    return pool


def note_given(data: Data, collection: Collection) -> None:
    """Say that data in a foreign format have negatives, which training does not take from there.

    If all passages are judged, none of them came as a negative, and the data are not read again.
    """
    if not is_shown() or isinstance(data, Collection) or is_published(Path(data)):
        return
    judged = [collection.qrels(split).passage_rows for split in collection.splits]
    if not judged or len(np.unique(np.concatenate(judged))) == collection.n_passages:
        return
    found = find_source(str(data))
    if found.negatives is not None and next(found.negatives(), None) is not None:
        note(
            f"{data}: it has negatives of its own, which are only passages here; to train on them, let hardneg"
            " import keep them as a pool, and give the pool to star, ance-tele, ranker, or to warmup with"
            " mixtures=file+in_batch"
        )


def keep_given(source: Source, data: Data, out: Place, *, split: str = "train") -> NegativePool:
    """Publish the negatives that a source gives as a pool of a split's queries at ``out``, and return it.

    Positives of a query, and passages with the same text as a positive, are left out; entries have the source
    ``file``. If none is left, as where an older version read the negatives as positives, the source is refused.
    """
    collection = collection_of(data)
    positives = named_split(collection, split, "split").positives()
    given = given_pool(source, collection, positives)
    pool = from_file(
        given,
        positives,
        collection,
        episode=1,
        depth=len(given.passage_rows),
        count=None,
        seed=0,
        filters=Filters(),
        contains=None,
    )
    kept = pool.select(usable(pool))
    if not len(kept.passage_rows):
        what = f"all negatives of the source ({source.format}) are positives of their queries in this collection"
        fix = "check the source; if an older hardneg made the collection, import it again"
        raise InputError("NO_NEGATIVES", what, fix)
    inputs = {"collection": collection.digest, "file": digest_json(dict(source.inputs))}
    save_pool(kept, Path(out), settings={"sources": ["file"], "split": split}, inputs=inputs)
    return kept


def pool_of_tokens(
    files: list[Path], collection: Collection, positives: Positives, encoder: BiEncoder, cache: Path
) -> NegativePool:
    """Turn lists of token ids into a pool: each becomes the first passage that has the same tokens.

    The texts behind the lists were cut, so the collection's texts are cut to the length of the longest list.
    """
    hashed = hash_lists(read_token_lists(files))
    rows = positives.query_rows
    queries = _hashes(_inner(encoder, collection, "query", hashed.query_length, cache), rows)
    table, of_table = _passages(encoder, collection, hashed.length, cache)
    lists = rows_of_tokens(
        hashed, collection.query_ids, find(queries, rows, hashed.queries), find(table, of_table, hashed.negatives)
    )
    return pool_of_lists(lists, positives, collection.digest)


class _Inner:
    """The token sequences of one side, which are at most ``length`` long, without special tokens."""

    def __init__(self, store: TokenStore, encoder: BiEncoder, side: Side) -> None:
        self.store, self.tokenizer = store, encoder.tokenizer(side)

    def read(self, rows: Int32) -> TokenBatch:
        return without_special(self.store.read(rows), self.tokenizer)


def _inner(encoder: BiEncoder, collection: Collection, side: Side, length: int, cache: Path) -> _Inner:
    tokenizer = encoder.tokenizer(side)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    template = replace(encoder.template(side), max_length=length + special, chunks=1)
    with track(f"tokenising for lists of {length} tokens", "texts") as tick:
        return _Inner(tokenize(collection, template, tokenizer, cache, progress=tick), encoder, side)


def _blocks(rows: Int32) -> Iterator[Int32]:
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


def _hashes(inner: _Inner, rows: Int32) -> UInt64:
    parts = [sequence_hashes(one.ids, one.offsets) for one in map(inner.read, _blocks(rows))]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _passages(encoder: BiEncoder, collection: Collection, length: int, cache: Path) -> tuple[UInt64, Int32]:
    """Hashes [n] of the passages' tokens, and the row [n] of each.

    A passage without a title may have a second hash, for the form that ANCE-Tele writes: the separator that
    otherwise stands after the title, and then the text.
    """
    inner = _inner(encoder, collection, "passage", length, cache)
    rows = np.arange(collection.n_passages, dtype=np.int32)
    hashes = [_hashes(inner, rows)]
    template = encoder.template("passage")
    untitled = rows[np.diff(collection.titles.offsets) == 0]
    if template.use_titles and template.title_join == "sep" and len(untitled):
        first = inner.tokenizer.token_to_id(separator(inner.tokenizer))
        assert first is not None
        for block in _blocks(untitled):
            one = with_first(inner.read(block), first, length)
            hashes.append(sequence_hashes(one.ids, one.offsets))
        rows = np.concatenate([rows, untitled])
    return np.concatenate(hashes), rows

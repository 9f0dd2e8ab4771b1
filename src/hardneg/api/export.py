"""Mined negatives in the formats of other trainers. What needs a tokenizer is imported where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardneg.api.inputs import Data, Place, at_least, cache_at, check_file, collection_of, one_of, source_at
from hardneg.api.inspect import last_pool
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.formats.arrays import write_records
from hardneg.data.formats.tables import JSON, suffix_of
from hardneg.data.tokens import joined_passages, without_special
from hardneg.errors import InputError, SettingsError
from hardneg.models.source import ModelSource
from hardneg.negatives.facts import EMPTY
from hardneg.negatives.groups import usable
from hardneg.negatives.pool import SCORES, NegativePool, open_pool, repeats, scores_in
from hardneg.negatives.scores import lowest_positive
from hardneg.negatives.sources import draw_entries
from hardneg.process.progress import Tick, track
from hardneg.records import Int32, Side, distinct, spans

FORMATS = ("sentence-transformers", "tevatron", "flagembedding", "dpr", "token-ids")
SIDES: tuple[Side, Side] = ("query", "passage")
BLOCK = 256  # queries whose texts are read together

Row = Mapping[str, Any]


@checked
def export_pool(
    pool: Place,
    data: Data,
    out: Place,
    *,
    format: str,
    negatives: int | None = None,
    seed: int = 42,
    model: Place | None = None,
    allow_bin: bool = False,
    cache: Place | None = None,
) -> dict[str, Any]:
    """Write the negatives of a pool, with texts, as another trainer reads them; a file at ``out`` is replaced.

    A query without a positive or without a negative is left out. A passage that several sources mined for a query
    is written once, and so is a text that several of its passages have; as token ids they are written as often as
    the pool has them, as ANCE-Tele trains on it. If a ranker scored the pool, its scores are written too, for
    distillation: for sentence-transformers as ``label``, a list with the scores of the positive and of each
    negative (``MarginMSELoss``, ``DistillKLDivLoss``); for Tevatron as ``score`` of each passage; for
    FlagEmbedding as ``pos_scores`` and ``neg_scores``; for DPR as ``score``, in place of the score that a negative
    had when it was mined.

    Parameters
    ----------
    pool : a pool, or an experiment: then its last pool.
    out : the file; gzip if it is named ``.gz``.
    format : ``sentence-transformers``: JSON Lines with the columns ``anchor``, ``positive``, ``negative_1``, ...,
        a row for each positive; a query with fewer negatives than the others repeats its negatives. ``tevatron``:
        JSON Lines with passages inline. ``flagembedding``: JSON Lines of ``query``, ``pos``, ``neg``. ``dpr``: an
        array with contexts inline. ``token-ids``: JSON Lines of token ids without special tokens
        (``split00.hn.json`` of ANCE-Tele). If a format takes a passage as one text, this is the title, a blank and
        the text.
    negatives : at most this many negatives of each query, drawn by ``seed`` (None: all).
    model : the model whose tokenizer and lengths ``token-ids`` uses.
    allow_bin : read the model's ``.bin`` weights, by torch's restricted loader.

    Returns
    -------
    ``file``, ``format``, and the counts ``queries``, ``rows``, ``negatives``, ``repeated`` (entries left out,
    since their query has the passage or its text already), ``filled`` (columns for sentence-transformers that
    repeat a negative, since the query has fewer than others) and ``left_out`` (queries).

    Raises
    ------
    SettingsError : an unknown format, ``token-ids`` without a model, or another format with one.
    ArtifactError : the pool is damaged or was mined from another collection.
    InputError : no query has both a positive and a negative.
    """
    place = Path(out)
    check_form(place, format, model, negatives)
    check_file(place, [pool, data])
    collection, source = collection_of(data, cache), last_pool(Path(pool))
    found = open_pool(source, collection)
    if found.ranker:
        lowest_positive(found)  # raises if a positive has no score
    chosen = found.select(usable(found))
    if not len(chosen):
        what, fix = "no query of the pool has a positive and a negative", "mine deeper"
        if not len(found.passage_rows):
            what, fix = EMPTY, "export an experiment that mined, or a pool"
        raise InputError("NO_NEGATIVES", what, fix, path=source)
    twice = repeats(chosen, collection.copies) if model is None else np.zeros(len(chosen.passage_rows), bool)
    chosen = chosen.keep(~twice)
    if negatives is not None:
        chosen = draw_entries(chosen, negatives, seed=seed, purpose="export")
    if model is not None:
        rows = token_rows(collection, chosen, source_at(model, allow_bin=allow_bin), cache)
    else:
        rows = text_rows(collection, chosen, format)
    with track("exporting", "queries") as tick:
        written = write_records(place, ticking(rows, len(chosen), tick), array=format == "dpr")
    counts = {"queries": len(chosen), "rows": written, "negatives": len(chosen.passage_rows)}
    counts |= {"repeated": int(twice.sum()), "filled": filled(chosen) if format == FORMATS[0] else 0}
    return {"file": str(place), "format": format, **counts, "left_out": len(found) - len(chosen)}


def check_form(place: Path, format: str, model: Place | None, negatives: int | None) -> None:
    """Refuse an unknown format or file name, and a model where none is needed or none is given."""
    one_of("--format", format, FORMATS)
    if format == "token-ids" and model is None:
        raise SettingsError("NO_MODEL", "token ids need a tokenizer", "give --model")
    if format != "token-ids" and model is not None:
        what = f"a model is given, but --format {format} writes texts"
        raise SettingsError("BAD_SETTING", what, "leave --model out, or give --format token-ids")
    if negatives is not None:
        at_least("--negatives", negatives)
    if suffix_of(place) not in ("", *JSON):
        what, fix = f"this name is one of a {suffix_of(place)} file, but JSON is written", "let it end in .jsonl"
        raise SettingsError("BAD_SETTING", what, fix, path=place)


def filled(pool: NegativePool) -> int:
    """How many columns repeat a negative, in rows of queries that have fewer negatives than others."""
    lengths = spans(pool.offsets)
    return int(((lengths.max() - lengths) * spans(pool.positive_offsets)).sum())


# ---------------------------------------------------------------- groups of texts


class Passage(NamedTuple):
    """A passage of a group.

    Attributes
    ----------
    score : the score in the list that a negative was drawn from.
    taught : the score of a ranker; None if no ranker scored the pool.
    """

    id: str
    title: str
    text: str
    score: float | None = None
    taught: float | None = None

    @property
    def whole(self) -> str:
        """Title and text joined to one text."""
        return joined_passages([self.title.replace("\n", " ")], [self.text], " ")[0]


@dataclass(frozen=True)
class Group:
    """A query with its positives and negatives."""

    query_id: str
    query: str
    answers: Sequence[str]
    positives: Sequence[Passage]
    negatives: Sequence[Passage]


def groups(collection: Collection, pool: NegativePool) -> Iterator[Group]:
    """Yield the queries of a pool with texts, in the pool's order."""
    for start in range(0, len(pool), BLOCK):
        part = pool.select(np.arange(start, min(start + BLOCK, len(pool))))
        rows = distinct(np.concatenate([part.positive_rows, part.passage_rows]))
        columns = [column.take(rows) for column in (collection.passage_ids, collection.titles, collection.texts)]
        passages = {row: Passage(*texts) for row, *texts in zip(rows.tolist(), *columns, strict=True)}
        ids, texts = collection.query_ids.take(part.query_rows), collection.query_texts.take(part.query_rows)
        scores = [score if np.isfinite(score) else None for score in part.scores.tolist()]
        of_entries, of_positives = (taught_scores(part, name) for name in SCORES)
        for i, (query_id, text) in enumerate(zip(ids, texts, strict=True)):
            span = range(int(part.offsets[i]), int(part.offsets[i + 1]))
            first = range(int(part.positive_offsets[i]), int(part.positive_offsets[i + 1]))
            yield Group(
                query_id,
                text,
                collection.answers(int(part.query_rows[i])),
                [passages[int(part.positive_rows[j])]._replace(taught=of_positives[j]) for j in first],
                [
                    passages[int(part.passage_rows[j])]._replace(score=scores[j], taught=of_entries[j])
                    for j in span
                ],
            )


def taught_scores(pool: NegativePool, name: str) -> Sequence[float | None]:
    """A ranker's scores of a pool's entries or positives, or None for each."""
    scores = scores_in(pool, name)
    return scores.tolist() if pool.ranker else [None] * len(scores)


def text_rows(collection: Collection, pool: NegativePool, format: str) -> Iterator[list[Row]]:
    """Yield for each query of a pool its rows in a format."""
    width = int(spans(pool.offsets).max())
    rows_of: Mapping[str, Callable[[Group], list[Row]]] = {
        "sentence-transformers": lambda group: sentence_transformers(group, width),
        "tevatron": tevatron,
        "flagembedding": flagembedding,
        "dpr": dpr,
    }
    return map(rows_of[format], groups(collection, pool))


def sentence_transformers(group: Group, width: int) -> list[Row]:
    """A row for each positive, with ``width`` negatives; a query that has fewer repeats its own in turn."""
    negatives = [group.negatives[i % len(group.negatives)] for i in range(width)]
    columns = {f"negative_{i}": negative.whole for i, negative in enumerate(negatives, 1)}
    rows: list[Row] = []
    for positive in group.positives:
        scores = [passage.taught for passage in (positive, *negatives)]
        label = {} if positive.taught is None else {"label": scores}
        rows.append({"anchor": group.query, "positive": positive.whole, **columns, **label})
    return rows


def tevatron(group: Group) -> list[Row]:
    """A record as Tevatron's version 1 writes it; version 2 reads it too."""
    answers = {"answers": list(group.answers)} if group.answers else {}
    passages = {
        name: [
            {"docid": passage.id, "title": passage.title, "text": passage.text, **scored("score", passage.taught)}
            for passage in some
        ]
        for name, some in (("positive_passages", group.positives), ("negative_passages", group.negatives))
    }
    return [{"query_id": group.query_id, "query": group.query, **answers, **passages}]


def scored(name: str, value: float | None) -> Row:
    """A score under its name; empty if there is no score."""
    return {} if value is None else {name: value}


def flagembedding(group: Group) -> list[Row]:
    """A record of FlagEmbedding."""
    texts: dict[str, Any] = {"query": group.query}
    scores = {}
    for name, some in (("pos", group.positives), ("neg", group.negatives)):
        texts[name] = [passage.whole for passage in some]
        if some[0].taught is not None:
            scores[f"{name}_scores"] = [passage.taught for passage in some]
    return [{**texts, **scores}]


def dpr(group: Group) -> list[Row]:
    """A record of DPR, with the query's id."""
    positives, negatives = (
        [
            {
                "title": passage.title,
                "text": passage.text,
                **scored("score", passage.score if passage.taught is None else passage.taught),
                "passage_id": passage.id,
            }
            for passage in some
        ]
        for some in (group.positives, group.negatives)
    )
    contexts = {"positive_ctxs": positives, "negative_ctxs": [], "hard_negative_ctxs": negatives}
    return [{"qid": group.query_id, "question": group.query, "answers": list(group.answers), **contexts}]


# ---------------------------------------------------------------- groups of token ids


def token_rows(
    collection: Collection, pool: NegativePool, source: ModelSource, cache: Place | None
) -> Iterator[list[Row]]:
    """Yield for each query its record of token ids, without the special tokens around a text."""
    from hardneg.models.loading import open_encoder
    from hardneg.models.tokenizing import token_store

    encoder, folder = open_encoder(source.tokenizing, chunks=1), cache_at(cache)
    stores = {side: token_store(encoder, collection, folder, side) for side in SIDES}

    def lists(side: Side, rows: Int32) -> list[list[int]]:
        batch = without_special(stores[side].read(rows), encoder.tokenizer(side))
        return [ids.tolist() for ids in np.split(batch.ids, batch.offsets[1:-1])]

    for i in range(len(pool)):
        span = slice(pool.offsets[i], pool.offsets[i + 1])
        [query] = lists("query", pool.query_rows[i : i + 1])
        positives, negatives = (lists("passage", rows) for rows in (pool.positives.of(i), pool.passage_rows[span]))
        query_id = collection.query_ids[int(pool.query_rows[i])]
        yield [{"qid": query_id, "query": query, "positives": positives, "negatives": negatives}]


# ---------------------------------------------------------------- files


def ticking(rows: Iterator[list[Row]], total: int, tick: Tick) -> Iterator[Row]:
    """Yield all rows one after the other, and tick after every block of queries."""
    for done in range(0, total, BLOCK):
        for some in islice(rows, BLOCK):
            yield from some
        tick(min(done + BLOCK, total), total)

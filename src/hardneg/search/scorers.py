"""Scorers of pairs of a collection's queries and passages, opened from a cross-encoder or a bi-encoder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hardneg.data.collection import Collection
from hardneg.errors import SettingsError
from hardneg.models.cross_encoder import CrossEncoder
from hardneg.models.loading import open_encoder
from hardneg.models.ranker_folder import ManyLabels
from hardneg.models.rankers import open_ranker
from hardneg.models.source import ModelSource
from hardneg.models.tokenizing import pair_store
from hardneg.search.encoding import Encoding
from hardneg.search.rerank import RankerScorer, RetrieverScorer
from hardneg.search.retriever import Retriever

ModelScorer = RankerScorer | RetrieverScorer


def ranker_scorer(ranker: CrossEncoder, collection: Collection, cache: Path) -> RankerScorer:
    """A cross-encoder over a collection as a scorer; its token stores live in the cache."""
    pairs = pair_store(ranker.tower, ranker.template, collection, cache)
    return RankerScorer(ranker, pairs, collection=collection)


def scorer_at(
    source: ModelSource, collection: Collection, cache: Path, encoding: Encoding, beside: Path | None = None
) -> ModelScorer:
    """A model over a collection as a scorer for training: a cross-encoder or a bi-encoder, as its folder says.

    A bi-encoder reads queries as long as its training steps do.

    Parameters
    ----------
    encoding : how a bi-encoder's embeddings are made, which live in the cache.
    beside : a second cache, which is only read.

    Raises
    ------
    SettingsError : the model cannot be read as either.
    """
    ranker = maybe_ranker(source)
    if ranker is not None:
        return ranker_scorer(ranker, collection, cache)
    retriever = Retriever(open_encoder(source), collection, cache, encoding=encoding, beside=beside)
    return RetrieverScorer(retriever, as_trained=True)


def maybe_ranker(source: ModelSource) -> CrossEncoder | None:
    """The model of a record, opened as a cross-encoder; None if it is a bi-encoder.

    A classifier of several labels is refused: nothing trained its vectors to be compared.
    """
    if source.passage_model is not None:
        return None
    lengths = {"query_length": source.query_length, "passage_length": source.passage_length}
    given = {name: length for name, length in lengths.items() if length is not None}
    try:
        return open_ranker(dataclasses.replace(source, ranker=source.model), **given)
    except SettingsError as fault:
        if fault.code != "NOT_A_RANKER" or isinstance(fault, ManyLabels):
            raise
        return None

"""A ranker behind a retriever, kept in memory to answer many times."""

from __future__ import annotations

from typing import Unpack

from hardneg.api.inputs import Data, Place, Reading, at_least, cache_at, collection_of, model_place, source_at
from hardneg.api.rank import RERANKED, open_scorer
from hardneg.api.search import SearcherOptions, hold
from hardneg.arguments import checked
from hardneg.search.rerank import RerankedRetriever
from hardneg.search.runs import OpenRetriever


@checked
def open_reranker(
    data: Data,
    ranker: Place,
    *,
    retriever: OpenRetriever | None = None,
    k: int = RERANKED,
    embeddings: Place | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> RerankedRetriever:
    """A retriever whose first hits a model re-ranks, opened once to answer many times.

    Its methods ``search_queries`` and ``search_texts`` return runs of rows;
    :func:`~hardneg.api.search.search_text` and :func:`~hardneg.api.search.search_split` take it as ``retriever=``.

    Parameters
    ----------
    ranker, embeddings : the model that scores pairs, and its embeddings if it is a bi-encoder; see
        :func:`open_scorer`.
    retriever : a retriever that ranks first, opened by :func:`~hardneg.api.retrievers.open_retriever` over the
        same collection; by default BM25.
    k : how many hits of each query are re-ranked; hits that are asked for below them keep their order.
    reading : how the model is read, see :class:`~hardneg.api.inputs.Reading`.

    Raises
    ------
    SettingsError : a setting is wrong, or the model cannot be read in this way.
    ArtifactError : the retriever is of another collection; embeddings are damaged or of another model.
    """
    at_least("k", k)
    collection, folder = collection_of(data, cache), cache_at(cache)
    first = SearcherOptions(None, retriever is None, retriever, None, None).open(collection, folder, Reading())
    scorer = open_scorer(
        source_at(model_place(ranker, "ranker"), **reading), collection, folder, embeddings=embeddings
    )
    hold(scorer, *([first] if retriever is None else []))  # the caller holds its own, or not
    return RerankedRetriever(first, scorer, k)

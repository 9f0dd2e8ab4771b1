"""A searcher ranks the passages of a collection; it is opened once and asked often. Also the runs of BM25."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack, overload

import numpy as np

from hardneg.api.inputs import Data, Place, Reading, at_least, cache_at, check_text, collection_of
from hardneg.api.outcomes import Hits, Scores, by_ids
from hardneg.api.search import SearcherOptions, check_reranking, hits_of, hold, reranked_by
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.training_data import named_split
from hardneg.errors import SettingsError
from hardneg.search.runs import OpenRetriever


class Closed(SettingsError, AttributeError):
    """A searcher is asked after it was closed; ``hasattr`` and ``inspect`` take it for a missing attribute."""


class Searcher:
    """A model or BM25 over a collection; :func:`open_searcher` opens it, and it stays loaded until it is closed.

    Attributes
    ----------
    collection : what is searched.
    """

    def __init__(self, collection: Collection, retriever: OpenRetriever, name: str) -> None:
        self.collection, self.name = collection, name
        self._retriever: OpenRetriever | None = retriever

    def __repr__(self) -> str:
        return f"Searcher of {self.name} over {self.collection.n_passages:,} passages"

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._retriever is None

    @property
    def retriever(self) -> OpenRetriever:
        """The retriever behind it, whose runs have rows of the collection; refused once the searcher is closed."""
        if (opened := self._retriever) is None:
            raise Closed("CLOSED", "this searcher is closed", "open another one by hn.open_searcher")
        return opened

    @overload
    def search(self, queries: str, k: int = 10) -> Hits: ...  # type: ignore[overload-overlap]  # a sequence, too
    @overload
    def search(self, queries: Sequence[str], k: int = 10) -> list[Hits]: ...
    @checked
    def search(self, queries: str | Sequence[str], k: int = 10) -> Any:
        """The best ``k`` passages for a text, or for each of several texts, which are encoded together.

        Returns
        -------
        For each hit of a text ``rank`` (from 1), ``score``, ``passage_id``, ``title`` and ``text``. For several
        texts, a list of such hits for each text, in the order of the texts.

        Raises
        ------
        SettingsError : a text is blank; the searcher is closed.
        InputError : a text holds half of a surrogate pair.
        """
        retriever = self.retriever  # kept while this call searches, even if another thread closes the searcher
        at_least("k", k)
        texts = [queries] if isinstance(queries, str) else list(queries)
        if not texts:
            return []
        for text in texts:
            check_text(text)
        run = retriever.search_texts(texts, k)
        found = [hits_of(self.collection, run.select(np.array([i]))) for i in range(len(texts))]
        return found[0] if isinstance(queries, str) else found

    @checked
    def run(self, split: str = "test", k: int = 1000) -> Scores:
        """The run of the queries of a split: ``{query id: {passage id: score}}``, best first.

        Raises
        ------
        SettingsError : there is no such split; the searcher is closed.
        """
        retriever = self.retriever
        at_least("k", k)
        rows = named_split(self.collection, split, "split").query_rows
        run = retriever.search_queries(rows, k)
        return by_ids(run, self.collection.query_ids, self.collection.passage_ids)

    def close(self) -> None:
        """Let go of vectors and weights; nothing can be searched afterwards."""
        retriever, self._retriever = self._retriever, None
        for one in (retriever, *(getattr(retriever, name, None) for name in ("first", "scorer"))):
            getattr(one, "close", lambda: None)()

    def __enter__(self) -> Searcher:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


@checked
def open_searcher(
    data: Data,
    model: Place | None = None,
    *,
    bm25: bool = False,
    embeddings: Place | None = None,
    index: Place | None = None,
    language: str | None = None,
    rerank_by: Place | None = None,
    rerank_k: int | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> Searcher:
    """Open a searcher over a collection: a model, or BM25. Close it, or use ``with``.

    Parameters
    ----------
    model, bm25, embeddings, index, language, rerank_by, rerank_k, reading : as for
        :func:`~hardneg.api.search.search_split`.

    Raises
    ------
    SettingsError : neither or both of a model and BM25 are asked for; a setting is wrong.
    ArtifactError : the embeddings or the index are damaged, or of another model or collection.
    """
    check_reranking(rerank_by, rerank_k)
    chosen = SearcherOptions(model, bm25, None, embeddings, index, language)
    chosen.check(reading, reranked=rerank_by is not None)
    collection, folder = collection_of(data, cache), cache_at(cache)
    first = chosen.open(collection, folder, reading)
    searcher = reranked_by(rerank_by, rerank_k, first, folder, reading)
    hold(first, getattr(searcher, "scorer", None))
    return Searcher(collection, searcher, "BM25" if model is None else str(model))


@checked
def bm25(
    data: Data, split: str = "test", *, k: int = 1000, language: str | None = None, cache: Place | None = None
) -> Scores:
    """The run of BM25 over the queries of a split: ``{query id: {passage id: score}}``, best first.

    Its k1 is 0.9 and its b is 0.4. ``evaluate``, ``compare`` and ``fuse`` take it as a run.

    Parameters
    ----------
    language : the language by which texts are split into terms; by default the collection's.

    Raises
    ------
    SettingsError : there is no such split, or no such language.
    """
    chosen = SearcherOptions(None, True, None, None, None, language)
    collection = collection_of(data, cache)
    searcher = Searcher(collection, chosen.open(collection, cache_at(cache), Reading()), "BM25")
    return searcher.run(split, k)  # which looks for the split before it opens the index

"""Embeddings of a collection, and searches of it. What needs a model is imported where it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from hardneg.api.inputs import (
    OF_MODELS,
    OF_SECOND,
    Data,
    Place,
    Reading,
    at_least,
    cache_at,
    check_file,
    check_folder,
    check_text,
    collection_of,
    holding,
    model_place,
    of_all_processes,
    of_second_model,
    one_of,
    source_at,
)
from hardneg.api.inspect import passage_facts
from hardneg.api.outcomes import Hits
from hardneg.arguments import brief, checked
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import check_ids, write_run
from hardneg.data.languages import BIGRAMS, language_named
from hardneg.data.training_data import named_split
from hardneg.errors import ArtifactError, SettingsError
from hardneg.process.agreement import check_told_alike
from hardneg.process.distributed import by_leader, group, shard_of
from hardneg.records import Int32, Run, Side
from hardneg.search.analysers import has_terms
from hardneg.search.bm25 import Bm25Index, open_bm25
from hardneg.search.bm25 import search as search_bm25
from hardneg.search.embedding_store import SHARD
from hardneg.search.locked import Guarded, opened_once
from hardneg.search.runs import OpenRetriever, check_request
from hardneg.storage.artifacts import SettingsClash, check_outside, is_published

AWAY = re.compile(r"\..*|lost\+found")  # names that may stand beside embeddings


@checked
def encode(
    data: Data,
    model: Place,
    out: Place,
    *,
    side: Side = "passage",
    shard: str | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    token_budget: int = 16384,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> dict[str, Any]:
    """Embed one side of a collection into shards at ``out``; the same call resumes an interrupted one.

    Parameters
    ----------
    shard : ``i/n``: this process makes every n-th shard from the i-th; the last to finish joins them. Without
        it, all of them (under ``torchrun``, those of this rank).
    token_budget : tokens of a batch.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Returns
    -------
    ``embeddings`` (the place), ``complete``; when it is, ``vectors``, ``dim`` and ``digest``; and until then
    ``missing``, the parts ``i/n`` that are not made yet (some may be at work).

    Raises
    ------
    ArtifactError : ``out`` holds embeddings made from something else, or files that are not of embeddings.
    NumericError : a vector holds NaN or Inf, or is zero.
    BusyError : another process makes this shard.
    """
    place, folder, part = Path(out), cache_at(cache), shard_of(shard)
    one_of("side", side, ("query", "passage"))
    one_of("dtype", dtype, ("float16", "float32"))
    at_least("token_budget", token_budget)
    check_folder(place)
    check_parts(place)
    with holding(place / "{}-of-{}".format(*part), folder):
        collection = collection_of(data, cache)

        from hardneg.models.loading import open_encoder
        from hardneg.models.tokenizing import token_store
        from hardneg.process.hardware import best_precision
        from hardneg.search.embeddings import missing_parts
        from hardneg.search.encoding import Encoding, encode_side

        source = source_at(model, **reading)
        encoder, encoding = open_encoder(source), Encoding(token_budget, dtype, best_precision(source.device_here))
        store = token_store(encoder, collection, folder, side, searching=True)
        made = encode_side(encoder, collection, store, place, side=side, encoding=encoding, shard=part)
    if made is None:
        missing = missing_parts(place, len(store), part[1])
        return {"embeddings": str(out), "complete": False, "missing": missing}
    return {"embeddings": str(out), "complete": True, "vectors": made.n, "dim": made.dim, "digest": made.digest}


def check_parts(place: Path) -> None:
    """Refuse a folder of other things, such as an experiment: what joins the parts would become its manifest.

    Hidden files and ``lost+found`` may be there, as at the root of a disk. New embeddings must lie outside of
    artefacts, which may be replaced as a whole.
    """
    there = [entry.name for entry in place.iterdir()] if place.is_dir() and not is_published(place) else []
    if any(name.startswith(SHARD) for name in there) or is_published(place):
        return
    if not all(AWAY.fullmatch(name) for name in there):
        raise SettingsClash(place)
    check_outside(place)


@checked
@group()
def search_split(
    data: Data,
    out: Place,
    *,
    model: Place | None = None,
    bm25: bool = False,
    retriever: OpenRetriever | None = None,
    embeddings: Place | None = None,
    index: Place | None = None,
    language: str | None = None,
    split: str = "test",
    k: int = 1000,
    rerank_by: Place | None = None,
    rerank_k: int | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> dict[str, Any]:
    """Search the queries of a split and write a TREC run file at ``out``, replacing what was there.

    Under ``torchrun`` the processes share the work: each searches the passages that it encoded, and rank 0 writes.
    So call it in all of them. A process of a group that a program of yours has opened works alone.

    Parameters
    ----------
    out : the file of the run, gzipped if its name ends in ``.gz``.
    model, bm25, retriever : what searches; give exactly one of them. A ``retriever`` is one that
        :func:`~hardneg.api.retrievers.open_retriever` opened over the same collection; nothing is loaded again.
    embeddings : the corpus as :func:`encode` embedded it with this model; by default the embeddings in the cache
        are used, and made if they are not there.
    index : search this index instead, which :func:`index` built over this model's embeddings.
    language : the language by which BM25 splits texts into terms; by default the collection's.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.
    k : the number of hits of a query; all passages if there are fewer than ``k``.
    rerank_by, rerank_k : a model that re-ranks this many first hits of each query, 100 by default
        (:func:`hardneg.rerank`); of ``reading``, only ``device`` and ``allow_bin`` apply to it.

    Returns
    -------
    ``run`` (the place), ``queries`` and ``hits``.

    Raises
    ------
    InputError : an id of the split's queries or of the passages holds a blank, which a TREC run cannot hold.
    SettingsError : a setting is wrong.
    ArtifactError : the embeddings are damaged, or of another model or collection; the retriever is of another
        collection.
    """
    at_least("k", k)
    check_reranking(rerank_by, rerank_k)
    chosen = SearcherOptions(model, bm25, retriever, embeddings, index, language)
    chosen.check(reading, reranked=rerank_by is not None)
    check_file(Path(out), [data], told=True)
    collection, folder = collection_of(data, cache), cache_at(cache)
    how = {"--bm25": bm25, "--k": k, "--split": split, "--language": language, "--rerank-k": rerank_k}
    check_told_alike({"data": collection.digest, **how, **of_all_processes(reading)})
    rows = named_split(collection, split, "split").query_rows
    blank = collection.passage_ids.first_blank()
    check_ids(collection.query_ids.take(rows) + ([] if blank is None else [collection.passage_ids[blank]]))
    first = chosen.open(collection, folder, reading)
    searcher = reranked_by(rerank_by, rerank_k, first, folder, reading)

    def write() -> dict[str, Any]:
        run = searcher.search_queries(rows, k)
        write_run(Path(out), run, collection.query_ids, collection.passage_ids)
        return {"run": str(out), "queries": len(run), "hits": len(run.scores)}

    if chosen.model is not None:
        opened: Any = first  # a retriever of a model
        check_told_alike({"model": opened.digest, "precision": opened.encoding.precision})
        opened.open_together()
    return by_leader(write)


@checked
def search_text(
    data: Data,
    text: str,
    *,
    model: Place | None = None,
    bm25: bool = False,
    retriever: OpenRetriever | None = None,
    embeddings: Place | None = None,
    index: Place | None = None,
    language: str | None = None,
    k: int = 5,
    rerank_by: Place | None = None,
    rerank_k: int | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> Hits:
    """The best ``k`` passages for one text; parameters as for :func:`search_split`.

    To ask often, open a searcher once (:func:`~hardneg.api.searcher.open_searcher`).

    Returns
    -------
    For each hit ``rank`` (from 1), ``score``, ``passage_id``, ``title`` and ``text``.
    """
    at_least("k", k)
    check_reranking(rerank_by, rerank_k)
    chosen = SearcherOptions(model, bm25, retriever, embeddings, index, language)
    chosen.check(reading, reranked=rerank_by is not None)
    check_text(text)
    collection, folder = collection_of(data, cache), cache_at(cache)
    searcher = reranked_by(rerank_by, rerank_k, chosen.open(collection, folder, reading), folder, reading)
    return hits_of(collection, searcher.search_texts([text], k))


def why_nothing(data: Data, text: str, *, language: str | None = None, cache: Place | None = None) -> str:
    """Why BM25 found no passage for a text, in sentences; ``language`` as of :func:`search_text`."""
    read = language_named(language) if language else collection_of(data, cache).language
    if not has_terms(read, text):
        return f"the query has no word that BM25 looks for, as it reads {read}"
    what = f"no passage has a word of the query. BM25 reads {read}"
    if read in BIGRAMS:
        return f"{what} in pairs of characters. It finds a single character only where that stands alone"
    return what if language else f"{what}; --language names another language"


def hits_of(collection: Collection, run: Run) -> Hits:
    """The hits of a run's only query, with texts."""
    rows, scores = run.hits(0)
    return Hits(
        {"rank": rank, "score": float(score), **passage_facts(collection, int(row))}
        for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)
    )


# ---------------------------------------------------------------- what searches


class Bm25(Guarded):
    """BM25 over a collection in the form of a retriever; it opens its index, which lives in the cache, once.

    Several threads may ask it at a time: only the opening is locked.

    Parameters
    ----------
    language : by which texts are split into terms; None: the collection's.
    """

    def __init__(self, collection: Collection, cache: Path, language: str | None = None) -> None:
        super().__init__()
        self.collection, self.cache, self.language = collection, cache, language

    def __reduce__(self) -> Any:
        return type(self), (self.collection, self.cache, self.language)  # a copy opens the index itself

    @opened_once
    def index(self) -> Bm25Index:
        """The index, built now if it is not there."""
        return open_bm25(self.collection, self.cache, self.language)

    def hold(self) -> None:
        """Open the index now."""
        _ = self.index

    def close(self) -> None:
        """Let go of the index; a later search opens it again."""
        self.__dict__.pop("index", None)

    def search_queries(self, query_rows: Int32, k: int) -> Run:
        """See :class:`OpenRetriever`."""
        return self._search(self.collection.query_texts.take(query_rows), query_rows, k)

    def search_texts(self, texts: Sequence[str], k: int) -> Run:
        """See :class:`OpenRetriever`."""
        return self._search(texts, np.arange(len(texts), dtype=np.int32), k)

    def _search(self, texts: Sequence[str], query_rows: Int32, k: int) -> Run:
        k = check_request(len(texts), self.collection.n_passages, k)
        return search_bm25(self.index, texts, query_rows, k)


@dataclass(frozen=True)
class SearcherOptions:
    """The options that say what searches, as a user gave them: see :func:`search_split`."""

    model: Place | None
    bm25: bool
    retriever: OpenRetriever | None
    embeddings: Place | None
    index: Place | None
    language: str | None = None

    def check(self, reading: Reading, *, reranked: bool) -> None:
        """Refuse options that name no searcher, or two; and embeddings or an index that do not fit it.

        Parameters
        ----------
        reranked : whether a model re-ranks, which takes some options of ``reading``, too.
        """
        stored = self.embeddings is not None or self.index is not None
        if self.language is not None and not self.bm25:
            what = "a language is given, but only BM25 uses one"
            raise SettingsError("BAD_SETTING", what, "leave --language out, or search with --bm25")
        if self.retriever is not None:
            own = {name: value for name, value in reading.items() if not (reranked and name in OF_SECOND)}
            if self.model is not None or self.bm25 or stored or not {*own.values()} <= {None, False}:
                what = "an open retriever is given, and a model or an option of one, too"
                raise SettingsError("TWO_SEARCHERS", what, "give the retriever alone")
            return
        if (self.model is None) != self.bm25:
            none = self.model is None
            what = "there is nothing to search with" if none else "a model and BM25 cannot both search"
            raise SettingsError("NO_MODEL" if none else "TWO_SEARCHERS", what, "give either --model or --bm25")
        if self.bm25 and stored:
            what = "BM25 searches neither embeddings nor an index of them"
            raise SettingsError("TWO_SEARCHERS", what, "give --model instead of --bm25, or leave them out")
        given: Mapping[str, Any] = dict(reading)
        if self.bm25 and (idle := [name for name in OF_MODELS if given.get(name) is not None]):
            what = f"{idle[0]} = {brief(given[idle[0]])} with BM25, which reads no model"
            raise SettingsError("BAD_SETTING", what, "leave it out, or search with --model")
        if self.embeddings is not None and self.index is not None:
            what = "embeddings and an index cannot both be searched"
            raise SettingsError("TWO_SEARCHERS", what, "give either --embeddings or --index")

    def open(self, collection: Collection, cache: Path, reading: Reading) -> OpenRetriever:
        """Open a retriever over this collection; one that is open already must be of the same collection."""
        if self.retriever is not None:
            if self.retriever.collection.digest != collection.digest:
                what = "the retriever was opened over another collection"
                raise ArtifactError("OTHER_COLLECTION", what, "give its own", path=collection.path)
            return self.retriever
        if self.model is None:
            return Bm25(collection, cache, self.language and language_named(self.language))

        from hardneg.api.retrievers import retriever_for

        source = source_at(self.model, **reading)
        return retriever_for(source, collection, cache, embeddings=self.embeddings, index=self.index)


def hold(*opened: Any) -> None:
    """Open now all that these retrievers and scorers need, and keep it; some of them have all that they need."""
    for one in opened:
        getattr(one, "hold", lambda: None)()


def check_reranking(ranker: Place | None, depth: int | None) -> None:
    """Refuse a depth of re-ranking that is below 1, or that is given without a model to re-rank by."""
    if depth is not None:
        at_least("rerank_k", depth)
        if ranker is None:
            what = f"rerank_k = {depth} has no effect without a ranker"
            raise SettingsError("BAD_SETTING", what, "give --rerank-by, or leave --rerank-k out")


def reranked_by(
    ranker: Place | None, depth: int | None, first: OpenRetriever, cache: Path, reading: Reading
) -> OpenRetriever:
    """The retriever with its first hits re-ranked by a model; the retriever itself if no model is named.

    Parameters
    ----------
    reading : only ``device`` and ``allow_bin`` apply to the ranker.
    """
    if ranker is None:
        return first

    from hardneg.api.rank import RERANKED, open_scorer
    from hardneg.search.rerank import RerankedRetriever

    source = source_at(model_place(ranker, "ranker"), **of_second_model(reading))
    scorer = open_scorer(source, first.collection, cache)
    return RerankedRetriever(first, scorer, RERANKED if depth is None else depth)

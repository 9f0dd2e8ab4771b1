"""Embeddings of a collection, and searches of it. What needs a model is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from hardneg.api.inputs import (
    Data,
    Place,
    at_least,
    cache_at,
    check_file,
    check_folder,
    collection_of,
    holding,
    one_of,
)
from hardneg.api.inspect import passage_facts
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import write_run
from hardneg.data.training_data import named_split
from hardneg.errors import SettingsError
from hardneg.models.source import ModelSource
from hardneg.process.distributed import shard_of
from hardneg.process.progress import track
from hardneg.records import Run, Side
from hardneg.search.bm25 import bm25_run, bm25_texts


@checked
def encode(
    data: Data,
    model: Place,
    out: Place,
    *,
    passage_model: Place | None = None,
    side: Side = "passage",
    shard: str | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    token_budget: int = 16384,
    allow_bin: bool = False,
    prompts: str | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    cache: Place | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed one side of a collection into shards at ``out``; the same call resumes an interrupted one.

    Parameters
    ----------
    shard : ``i/n``: this process makes every n-th shard from the i-th; whoever finishes last joins them. Without
        it, all of them (under ``torchrun``, those of this rank).
    token_budget : tokens of a batch.
    prompts : see :func:`~hardneg.models.loading.load_encoder`.
    query_length, passage_length : tokens to cut at, in place of the model's own; what searches these embeddings
        must be told the same.

    Returns
    -------
    ``embeddings`` (the place), ``complete``; and when it is, ``vectors``, ``dim`` and ``digest``.

    Raises
    ------
    ArtifactError : ``out`` holds embeddings made from something else.
    NumericError : a vector holds NaN or Inf, or is zero.
    BusyError : another process makes this shard.
    """
    place, folder, part = Path(out), cache_at(cache), shard_of(shard)
    one_of("side", side, ("query", "passage"))
    one_of("dtype", dtype, ("float16", "float32"))
    at_least("token_budget", token_budget)
    check_folder(place)
    with holding(place / "{}-of-{}".format(*part), folder):
        collection = collection_of(data, cache)

        from hardneg.models.loading import open_encoder
        from hardneg.models.tokenizing import token_store
        from hardneg.process.hardware import best_precision
        from hardneg.process.memory import require
        from hardneg.search.ann import traits
        from hardneg.search.embeddings import encode_store, encoding_memory

        source = ModelSource.at(
            model,
            passage_model,
            allow_bin=allow_bin,
            device=device,
            prompts=prompts,
            query_length=query_length,
            passage_length=passage_length,
        )
        encoder = open_encoder(source)
        store = token_store(encoder, collection, folder, side, searching=True)
        require(encoding_memory(encoder, token_budget, len(store)), "encoding", encoder.device.type)
        ids = collection.query_ids if side == "query" else collection.passage_ids
        texts = "queries" if side == "query" else "passages"
        with encoder.inference(best_precision(source.device_here)), track(f"encoding {texts}", "tokens") as tick:
            made = encode_store(
                encoder,
                store,
                place,
                side=side,
                budget=token_budget,
                dtype=dtype,
                shard=part,
                name=lambda row: ids[store.document(row)],
                facts=traits(encoder, side),
                progress=tick,
            )
    if made is None:
        return {"embeddings": str(out), "complete": False}
    return {"embeddings": str(out), "complete": True, "vectors": made.n, "dim": made.dim, "digest": made.digest}


@checked
def search_split(
    data: Data,
    out: Place,
    *,
    model: Place | None = None,
    passage_model: Place | None = None,
    bm25: bool = False,
    embeddings: Place | None = None,
    index: Place | None = None,
    split: str = "test",
    k: int = 1000,
    allow_bin: bool = False,
    prompts: str | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    cache: Place | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Search the queries of a split and write a TREC run file at ``out``, replacing what was there.

    Parameters
    ----------
    out : ``.gz`` by name.
    model, bm25 : what searches: one of the two.
    embeddings : the corpus as :func:`encode` embedded it with this model; else it is embedded into the cache.
    index : search this index instead, which :func:`index` built over this model's embeddings.
    query_length, passage_length : tokens to cut at, in place of the model's own.
    k : hits of a query; all passages where there are fewer.

    Returns
    -------
    ``run`` (the place), ``queries`` and ``hits``.

    Raises
    ------
    SettingsError : a setting is wrong.
    ArtifactError : the embeddings are damaged, or of another model or collection.
    """
    at_least("k", k)
    check_searcher(model, bm25, embeddings, index)
    check_file(Path(out))
    collection, folder = collection_of(data, cache), cache_at(cache)
    rows = named_split(collection, split).query_rows
    if bm25:
        run = bm25_run(collection, rows, k, folder)
    else:
        from hardneg.api.retrievers import retriever_for

        assert model is not None
        source = ModelSource.at(
            model,
            passage_model,
            allow_bin=allow_bin,
            device=device,
            prompts=prompts,
            query_length=query_length,
            passage_length=passage_length,
        )
        retriever = retriever_for(source, collection, folder, embeddings=embeddings, index=index)
        run = retriever.search_queries(rows, k)
    write_run(Path(out), run, collection.query_ids, collection.passage_ids)
    return {"run": str(out), "queries": len(run), "hits": len(run.scores)}


@checked
def search_text(
    data: Data,
    text: str,
    *,
    model: Place | None = None,
    passage_model: Place | None = None,
    bm25: bool = False,
    embeddings: Place | None = None,
    index: Place | None = None,
    k: int = 5,
    allow_bin: bool = False,
    prompts: str | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    cache: Place | None = None,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """The best ``k`` passages for one text; parameters as for :func:`search_split`.

    Returns
    -------
    For each hit ``rank`` (from 1), ``score``, ``passage_id``, ``title`` and ``text``.
    """
    at_least("k", k)
    check_searcher(model, bm25, embeddings, index)
    if not text.strip():
        raise SettingsError("NO_TEXT", "there is nothing to search for", "give a text that is not blank")
    collection, folder = collection_of(data, cache), cache_at(cache)
    if bm25:
        return hits_of(collection, bm25_texts(collection, [text], k, folder))

    from hardneg.api.retrievers import retriever_for

    assert model is not None
    source = ModelSource.at(
        model,
        passage_model,
        allow_bin=allow_bin,
        device=device,
        prompts=prompts,
        query_length=query_length,
        passage_length=passage_length,
    )
    retriever = retriever_for(source, collection, folder, embeddings=embeddings, index=index)
    return hits_of(collection, retriever.search_texts([text], k))


def hits_of(collection: Collection, run: Run) -> list[dict[str, Any]]:
    """The hits of a run's only query, with texts."""
    rows, scores = run.hits(0)
    return [
        {"rank": rank, "score": float(score), **passage_facts(collection, int(row))}
        for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)
    ]


def check_searcher(model: Place | None, bm25: bool, embeddings: Place | None, index: Place | None) -> None:
    """Either a model or BM25 searches; a model over embeddings or over an index."""
    if (model is None) != bm25:
        what = "there is nothing to search with" if model is None else "a model and BM25 cannot both search"
        raise SettingsError(
            "NO_MODEL" if model is None else "TWO_SEARCHERS", what, "give either --model or --bm25"
        )
    if bm25 and (embeddings is not None or index is not None):
        what = "BM25 searches neither embeddings nor an index of them"
        raise SettingsError("TWO_SEARCHERS", what, "give --model instead of --bm25, or leave them out")
    if embeddings is not None and index is not None:
        what = "embeddings and an index cannot both be searched"
        raise SettingsError("TWO_SEARCHERS", what, "give either --embeddings or --index")

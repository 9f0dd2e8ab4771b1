"""Retrievers of a model over a collection, for operations outside an experiment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Unpack

import torch

from hardneg.api.inputs import Data, Place, Reading, cache_at, collection_of, source_at
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.errors import SettingsError
from hardneg.experiment.layout import cache_beside
from hardneg.models.loading import open_encoder
from hardneg.models.source import ModelSource
from hardneg.process.hardware import best_precision
from hardneg.search.ann import check_index, open_index
from hardneg.search.embeddings import Dtype
from hardneg.search.encoding import Encoding
from hardneg.search.retrieve import Index
from hardneg.search.retriever import CachedRetriever, Retriever
from hardneg.storage.artifacts import digest_json, is_published, read_manifest


@checked
def open_retriever(
    data: Data,
    model: Place,
    *,
    embeddings: Place | None = None,
    index: Place | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> Retriever:
    """A model over a collection, opened once to answer many times, from several threads if need be.

    Its methods ``search_queries``, ``search_texts`` and ``search_passages`` return runs of rows;
    :func:`search_text` and :func:`search_split` take it as ``retriever=``. Close it, or use ``with``.

    Parameters
    ----------
    embeddings : the corpus as :func:`encode` embedded it with this model; by default the embeddings in the cache
        are used, and made if they are not there.
    index : search this index instead, which :func:`index` built over this model's embeddings.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Raises
    ------
    SettingsError : both embeddings and an index are named; the model cannot be read in this way.
    ArtifactError : the embeddings or the index are damaged, or of another model or collection.
    """
    if embeddings is not None and index is not None:
        what = "embeddings and an index cannot both be searched"
        raise SettingsError("TWO_SEARCHERS", what, "give one of them")
    collection, source = collection_of(data, cache), source_at(model, **reading)
    return retriever_for(source, collection, cache_at(cache), embeddings=embeddings, index=index).hold()


def retriever_for(
    source: ModelSource,
    collection: Collection,
    cache: Path,
    *,
    embeddings: Place | None = None,
    index: Place | None = None,
) -> Retriever:
    """A retriever of a model over a collection.

    Its embeddings live in the cache, keyed by digests, unless they are given, or the experiment that trained the
    model has them in a cache of its own.
    """
    encoder = open_encoder(source, recalled=cache)
    searched = None if index is None else open_index(Path(index))
    encoding = Encoding(dtype=stored_dtype(embeddings, searched), precision=best_precision(source.device_here))
    retriever = Retriever(
        encoder,
        collection,
        cache,
        encoding=encoding,
        passages_at=None if embeddings is None else Path(embeddings),
        beside=cache_beside(source.model),
    )
    if searched is None:
        return retriever
    side = retriever.sides["passage"]
    check_index(searched, encoder, digest=side, tokens=lambda: retriever.texts_digest)
    return retriever.through(searched)


def stored_dtype(embeddings: Place | None, index: Index | None) -> Dtype:
    """The dtype of the passages in these embeddings or this index, which queries are rounded to as well.

    Nothing is refused here: the retriever opens the embeddings.
    """
    if index is not None:
        return "float32" if index.dtype == torch.float32 else "float16"
    if embeddings is None or not is_published(place := Path(embeddings)):
        return "float16"
    return "float32" if read_manifest(place).settings.get("dtype") == "float32" else "float16"


def retriever_with_runs(source: ModelSource, collection: Collection, cache: Path) -> CachedRetriever:
    """A retriever as :func:`retriever_for` opens it, whose runs live in the cache."""
    encoder = open_encoder(source)
    encoding = Encoding(precision=best_precision(source.device_here))
    key = digest_json([encoder.digest(), collection.digest, dataclasses.asdict(encoding)])
    runs, beside = cache / "runs" / key[:32], cache_beside(source.model)
    return CachedRetriever(encoder, collection, runs, cache, encoding=encoding, beside=beside)

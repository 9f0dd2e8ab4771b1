"""A model over a collection, for operations that are no experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from hardneg.api.inputs import Place
from hardneg.data.collection import Collection
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.loading import open_encoder
from hardneg.models.source import ModelSource
from hardneg.process.hardware import best_precision
from hardneg.search.ann import check_index, open_index
from hardneg.search.retrieve import Index
from hardneg.search.retriever import CachedRetriever, Encoding, Retriever
from hardneg.storage.artifacts import digest_json


def retriever_for(
    source: ModelSource,
    collection: Collection,
    cache: Path,
    *,
    embeddings: Place | None = None,
    index: Place | None = None,
) -> Retriever:
    """A model over a collection; its embeddings live in the cache, keyed by digests, unless they are given."""
    retriever = Retriever(
        open_encoder(source),
        collection,
        cache,
        encoding=Encoding(precision=best_precision(source.device_here)),
        passages_at=None if embeddings is None else Path(embeddings),
    )
    if index is None:
        return retriever
    side = retriever.sides["passage"]
    return retriever.through(matching_index(index, retriever.encoder, side, lambda: retriever.texts_digest))


def retriever_with_runs(source: ModelSource, collection: Collection, cache: Path) -> CachedRetriever:
    """A model over a collection, whose runs live in the cache besides."""
    encoder = open_encoder(source)
    encoding = Encoding(precision=best_precision(source.device_here))
    key = digest_json([encoder.digest(), collection.digest, dataclasses.asdict(encoding)])
    return CachedRetriever(encoder, collection, cache / "runs" / key[:32], cache, encoding=encoding)


def matching_index(place: Place, encoder: BiEncoder, digest: str, texts: Callable[[], str] | None) -> Index:
    """An index that :func:`~hardneg.api.index.index` built, for queries of this model.

    Parameters
    ----------
    digest : identity of the encoder's passage side.
    texts : gives that of the passages' token sequences, and is asked last, for it may tokenise them; None: they
        are not compared.

    Raises
    ------
    ArtifactError : it is damaged, or of another model or other texts.
    TrustError : a pickle stands in its place.
    """
    index = open_index(Path(place))
    check_index(index, encoder, digest=digest, tokens=texts)
    return index

"""A model over a collection, for operations that are no experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from hardneg.api.inputs import Place
from hardneg.data.collection import Collection
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.capacity import best_precision
from hardneg.models.loading import open_encoder
from hardneg.models.source import ModelSource
from hardneg.search.ann import FaissIndex, check_index
from hardneg.search.retriever import Encoding, Snapshot
from hardneg.storage.artifacts import digest_json


def open_state(
    source: ModelSource,
    collection: Collection,
    cache: Path,
    *,
    embeddings: Place | None = None,
    index: Place | None = None,
) -> Snapshot:
    """A model over a collection; its runs and embeddings live in the cache, keyed by digests."""
    encoder = open_encoder(source)
    encoding = Encoding(precision=best_precision(source.device_here))
    key = digest_json([encoder.digest(), collection.digest, dataclasses.asdict(encoding)])
    state = Snapshot(
        encoder,
        collection,
        "model",
        cache / "runs" / key[:32],
        cache,
        encoding=encoding,
        passages_at=None if embeddings is None else Path(embeddings),
    )
    if index is None:
        return state
    opened = open_index(index, encoder, state.sides["passage"], lambda: state.texts_digest)
    return state.with_index(opened, "index", state.folder / "index")


def open_index(place: Place, encoder: BiEncoder, digest: str, texts: Callable[[], str] | None) -> FaissIndex:
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
    index = FaissIndex(Path(place))
    check_index(index, encoder, digest=digest)
    if texts is not None:
        check_index(index, encoder, digest=digest, tokens=texts())
    return index

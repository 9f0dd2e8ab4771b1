"""A model over a collection, for operations that are no experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardneg.api.inputs import Place
from hardneg.data.collection import Collection
from hardneg.models.bi_encoder import BiEncoder
from hardneg.models.capacity import best_precision
from hardneg.models.loading import load_encoder
from hardneg.process.threads import pick_device
from hardneg.search.ann import FaissIndex, check_index
from hardneg.search.retriever import Encoding, Snapshot
from hardneg.storage.artifacts import digest_json


def open_state(
    collection: Collection,
    cache: Path,
    *,
    model: Place,
    passage_model: Place | None,
    allow_bin: bool,
    device: str | None,
    embeddings: Place | None = None,
    index: Place | None = None,
    prompts: str | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
) -> Snapshot:
    """A model over a collection; its runs and embeddings live in the cache, keyed by digests."""
    device = pick_device(device)
    lengths = lengths_given(query_length, passage_length)
    encoder = load_encoder(model, passage_model, device=device, allow_bin=allow_bin, prompts=prompts, **lengths)
    encoding = Encoding(precision=best_precision(device))
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


def lengths_given(query_length: int | None, passage_length: int | None) -> dict[str, Any]:
    """The lengths that replace the model's own, by the names that encoders know; a query's is that of search."""
    lengths: dict[str, Any] = {}
    if query_length is not None:
        lengths |= {"query_length": query_length, "search_query_length": None}
    return lengths if passage_length is None else lengths | {"passage_length": passage_length}


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

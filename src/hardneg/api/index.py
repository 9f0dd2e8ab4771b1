"""Approximate and compressed indexes over stored embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardneg.api.inputs import Data, Place, Reading, cache_at, check_new, check_read, collection_of, source_at
from hardneg.api.reopen import experiment_data
from hardneg.api.settings import trained_by
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.training_data import named_split
from hardneg.errors import SettingsError
from hardneg.models.source import ModelSource
from hardneg.records import Qrels

if TYPE_CHECKING:  # both take long to load
    from torch import Tensor

    from hardneg.search.embedding_store import Embeddings

SPLIT = "dev"  # whose queries measure recall


@checked
def index(
    embeddings: Place,
    out: Place,
    *,
    kind: str = "flat",
    data: Data | None = None,
    split: str = SPLIT,
    model: Place | None = None,
    passage_model: Place | None = None,
    allow_bin: bool = False,
    prompts: str | None = None,
    query_prompt: str | None = None,
    passage_prompt: str | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
    cache: Place | None = None,
    device: str | None = None,
    **options: int,
) -> dict[str, Any]:
    """Build an index over the embeddings that :func:`encode` made, and measure its recall against exact search.

    Parameters
    ----------
    kind : ``flat``, ``ivf``, ``hnsw``, ``pq`` or ``ivfpq``.
    data, split, model, passage_model, allow_bin, prompts, query_prompt, passage_prompt, query_length,
    passage_length, cache, device :
        queries to measure recall with, and the model that encodes them; without ``data``, passages drawn from
        the embeddings are the queries. If the collection has no ``dev``, it is the one of the model's training.
    options : options of the kind; see :func:`hardneg.search.ann_building.build_index`.

    Returns
    -------
    ``index`` (the place), ``kind``, ``options``, ``rows``, ``dim``, ``bytes``, ``recall`` and ``recall_of``.

    Raises
    ------
    SettingsError : an option is wrong, or something is at ``out`` already.
    ArtifactError : the embeddings are damaged, or of another model or collection than the one that measures
        recall.
    """
    check_new(Path(out))
    if (data is None) != (model is None):
        what = "measuring recall with queries needs both a collection and a model"
        fix = "give --data and --model, or neither"
        raise SettingsError("NO_MODEL" if model is None else "NO_DATA", what, fix)
    if data is None and split != SPLIT:
        what = f"split = {split} has no effect without a collection whose queries it would choose"
        raise SettingsError("BAD_SETTING", what, "leave split out, or give --data and --model")
    read = Reading(
        passage_model=passage_model,
        allow_bin=allow_bin,
        prompts=prompts,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        query_length=query_length,
        passage_length=passage_length,
        device=device,
    )
    check_read(model, read)
    from hardneg.search.ann_building import build_index, choose
    from hardneg.search.embedding_store import Embeddings

    opened = Embeddings.open(embeddings)
    choose(kind, opened.n, opened.dim, options)  # before anything is encoded
    queries = None
    if data is not None and model is not None:
        opened, queries = _encoded(embeddings, data, split, source_at(model, **read), cache)
    manifest = build_index(opened, Path(out), kind, options, queries=queries)
    facts = {name: manifest.facts[name] for name in ("rows", "dim", "bytes", "recall", "recall_of")}
    return {"index": str(out), **manifest.settings, **facts}


def _encoded(
    embeddings: Place, data: Data, split: str, source: ModelSource, cache: Place | None
) -> tuple[Embeddings, Tensor]:
    """The embeddings, found to be those of the model and the collection, and those of the queries of a split."""
    import torch

    from hardneg.api.retrievers import retriever_for

    collection = collection_of(data, cache)
    rows = _judged(collection, split, source.model).query_rows
    retriever = retriever_for(source, collection, cache_at(cache), embeddings=embeddings)
    return retriever.passages, torch.from_numpy(retriever.queries.rows(rows))


def _judged(collection: Collection, split: str, model: Place) -> Qrels:
    """The judgements of a split; where there is no ``dev``, those that the training of the model held out."""
    before = trained_by(model) if split == "dev" and split not in collection.splits else None
    same = before is not None and before.collection == collection.digest
    dev = experiment_data(before.place, collection).dev if same else None  # type: ignore[union-attr]
    return named_split(collection, split, "split") if dev is None else dev

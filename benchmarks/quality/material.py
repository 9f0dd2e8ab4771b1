"""The material of contenders, made before any clock runs: a collection with its splits, and a model to start from.

The collection has the splits train, dev and test, so all contenders train, choose and are tested with the same
queries. The model is a sentence-transformers folder that cuts texts at one length, so all read the same tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hardneg.storage.digests import cached_digest, digest_json
from quality.cells import ANEW, FULL, Cell

LENGTH = 64
DEV = 500  # the most dev queries, which choose the state
ANEW_LAYERS, ANEW_SEED = 3, 0
SPLITS_SEED = 0  # seed of the queries that are held out if a collection has no dev
MAKING = Lock()  # cells that run at the same time share the material


def collection_folder(data: str, size: str, seed: int, folder: Path, dev: int = DEV) -> Path:
    """The canonical collection of a size, with ``dev`` dev queries; ``seed`` draws its training queries."""
    from hardneg.api.inputs import collection_of
    from hardneg.data.collection import Collection

    name = FULL if size == FULL else f"{size}-{seed}"
    place = folder / (name if dev == DEV else f"{name}-dev-{dev}")
    if (place / "manifest.json").is_file():
        return place
    whole = collection_of(data)
    splits = splits_of(whole, size, seed, dev)
    asked = {name for judged in splits.values() for name in judged}
    rows = range(whole.n_passages)
    names = whole.passage_ids.take(rows)
    passages = zip(names, whole.titles.take(rows), whole.texts.take(rows), strict=True)
    rows = range(whole.n_queries)
    every = zip(whole.query_ids.take(rows), whole.query_texts.take(rows), strict=True)
    queries = [(name, text) for name, text in every if name in asked]
    Collection.from_lists(passages, queries, splits, to=place, allow_empty=True)
    return place


def splits_of(whole: Any, size: str, seed: int, queries: int = DEV) -> dict[str, dict[str, dict[str, int]]]:
    """Judgements by split and query: train cut to a size, dev cut to ``queries`` queries, test whole."""
    from hardneg.data.training_data import DevDraw, choose_splits

    parts = choose_splits(whole, draw=DevDraw(SPLITS_SEED))
    assert parts.dev is not None
    assert parts.test is not None
    train, dev, test = (judged(whole, part) for part in (parts.train, parts.dev, parts.test))
    train = train if size == FULL else drawn(train, int(size), seed)
    return {"train": train, "dev": drawn(dev, queries, SPLITS_SEED), "test": test}


def judged(whole: Any, part: Any) -> dict[str, dict[str, int]]:
    """Grades by ids of queries and passages; 1 if the part holds positives without grades."""
    names = whole.query_ids.take(part.query_rows)
    ends = part.offsets.tolist()
    grades = getattr(part, "grades", np.ones(len(part.passage_rows), np.int32)).tolist()
    passages = whole.passage_ids.take(part.passage_rows)
    return {
        name: dict(zip(passages[a:b], grades[a:b], strict=True))
        for name, a, b in zip(names, ends[:-1], ends[1:], strict=True)
    }


def drawn(queries: dict[str, Any], n: int, seed: int) -> dict[str, Any]:
    """Draw ``n`` of the queries at random, in order of their ids."""
    names = sorted(queries)
    chosen = np.random.default_rng(seed).permutation(len(names))[:n]
    return {names[i]: queries[names[i]] for i in sorted(chosen.tolist())}


def base_folder(model: str, start: str, length: int, folder: Path) -> Path:
    """The model to start from: normalised vectors, texts cut at ``length``, top layers drawn anew or not."""
    from hardneg.models.pretrained import locate
    from hardneg.models.source import ModelSource

    source = locate(model, ModelSource(model))
    name = f"{start}-{length}-{source.name}-{digest_of(source)[:12]}"
    place = folder / name
    if (place / "modules.json").is_file():
        return place
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    from hardneg.models.reinit import layers_of, reinitialize

    base = SentenceTransformer(str(source), device="cpu")
    base.max_seq_length = length
    if not isinstance(base[-1], Normalize):
        base.append(Normalize())
    if start == ANEW:
        transformer: Any = base[0].auto_model
        reinitialize(transformer, min(ANEW_LAYERS, len(layers_of(transformer)) - 1), seed=ANEW_SEED)
    draft = folder / f".{name}"
    base.save_pretrained(str(draft))
    draft.rename(place)
    return place


def digest_of(model: Path) -> str:
    """The digest of all files of a model, by which one folder of a study holds the material of several."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    return digest_json([[path.relative_to(model).as_posix(), cached_digest(path)] for path in files])


def pool_file(collection: Path, passages: int) -> Path:
    """The file of the ids of the passages among which dev is judged."""
    return collection.with_name(f"{collection.name}.dev-pool-{passages}.json")


def make_pool(collection: Path, passages: int) -> None:
    """Write the ids of BM25's first passages for each dev query, and of the positives, as hardneg judges dev."""
    from hardneg.api.inputs import collection_of
    from hardneg.search.bm25 import bm25_run

    place = pool_file(collection, passages)
    if place.is_file():
        return
    found = collection_of(str(collection))
    dev = found.qrels("dev")
    run = bm25_run(found, dev.query_rows, passages, collection.with_name("cache"))
    rows = np.union1d(run.passage_rows, dev.positives().passage_rows)
    place.write_text(json.dumps(list(found.passage_ids.take(rows))))


def places_of(
    cell: Cell, data: str, model: str, length: int, folder: Path, *, dev: int = DEV, passages: int | None = None
) -> tuple[Path, Path]:
    """Collection and model of a cell; see :class:`~quality.study.Study` for ``dev`` and ``passages``."""
    called = cell.collection.replace(":", "-").replace("/", "-")
    with MAKING:
        collection = collection_folder(data, cell.size, cell.seed, folder / "data" / called, dev)
        if passages is not None:
            make_pool(collection, passages)
        return collection, base_folder(model, cell.start, length, folder / "models")

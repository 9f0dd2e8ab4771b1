"""What a model comes to on test: one search and the same measures for every contender's model, off the clock."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from outcomes import Values

from quality.cells import MEASURES

DEPTH = 100


def examine(data: Path, model: Path | None, cache: Path, device: str = "cpu") -> tuple[dict[str, Values], str]:
    """Every measure of every test query, in the order of their ids, and the digest of what was asked.

    Parameters
    ----------
    model : None: BM25.
    """
    import hardneg as hn
    from hardneg.api.inputs import collection_of
    from hardneg.data.formats.trec import read_runs
    from hardneg.evaluation.measures import evaluate, parse_measures

    collection = collection_of(str(data))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "test.trec.gz"
        who = {"bm25": True} if model is None else {"model": str(model), "device": device}
        hn.search_split(str(data), place, split="test", k=DEPTH, cache=cache, **who)
        runs, _, _ = read_runs([place], collection.query_ids, collection.passage_ids)
    qrels = collection.qrels("test")
    found = evaluate(runs[0], qrels, parse_measures(" ".join(MEASURES)), id_rank=collection.passage_ids.id_rank)
    names = collection.query_ids.take(found.query_rows)
    order = np.argsort(names)
    return {name: found.of(name)[order] for name in MEASURES}, digest_of(collection, [names[i] for i in order])


def digest_of(collection: object, names: list[str]) -> str:
    """What says that two cells were asked the same; sizes differ in training queries alone."""
    import hashlib

    texts: object = collection.passage_ids  # type: ignore[attr-defined]
    found = hashlib.sha256("\n".join(names).encode())
    found.update("\n".join(texts.take(range(len(texts)))).encode())  # type: ignore[attr-defined, arg-type]
    return found.hexdigest()

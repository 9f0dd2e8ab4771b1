"""The test of a model: one search and the same measures for every contender's model, outside of its time."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from outcomes import Values

from quality.cells import DEPTH, MEASURES


@dataclass(frozen=True)
class Exam:
    """The measures of a model on test.

    Attributes
    ----------
    values : every measure of every test query, in the order of their ids.
    fused : the same for the model's run fused with BM25's, where BM25 has ``weight``; None for BM25 itself.
    collection : the digest of the ids of test queries and passages.
    """

    values: dict[str, Values]
    fused: dict[str, Values] | None
    weight: float
    collection: str


def examine(data: Path, model: Path | None, cache: Path, device: str = "cpu") -> Exam:
    """Search test with a model, alone and fused with BM25; the weights of the fusion are tuned on dev.

    Parameters
    ----------
    model : folder of the model; None: test BM25.
    """
    import hardneg as hn
    from hardneg.api.inputs import collection_of

    collection = collection_of(str(data))
    with tempfile.TemporaryDirectory() as folder:

        def search(split: str, name: str, **who: object) -> Path:
            place = Path(folder) / f"{name}.{split}.trec.gz"
            hn.search_split(str(data), place, split=split, k=DEPTH, cache=cache, **who)  # type: ignore[arg-type]
            return place

        bm25 = {split: search(split, "bm25", bm25=True) for split in ("dev", "test")}
        if model is None:
            values, digest = measured(bm25["test"], collection)
            return Exam(values, None, 1.0, digest)
        own = {split: search(split, "own", model=str(model), device=device) for split in ("dev", "test")}
        place = Path(folder) / "fused.test.trec.gz"
        tuned = hn.fuse(
            [bm25["test"], own["test"]],
            place,
            method="linear",
            k=DEPTH,
            data=str(data),
            tune="dev",
            tuning_runs=[bm25["dev"], own["dev"]],
            measure=MEASURES[0],
            cache=cache,
        )
        values, digest = measured(own["test"], collection)
        return Exam(values, measured(place, collection)[0], float(tuned["weights"][0]), digest)


def measured(place: Path, collection: Any) -> tuple[dict[str, Values], str]:
    """Every measure of every test query of a run, in the order of the ids, and the digest of all ids."""
    from hardneg.data.formats.trec import read_runs
    from hardneg.evaluation.measures import evaluate, parse_measures

    runs, _, _ = read_runs([place], collection.query_ids, collection.passage_ids)
    qrels = collection.qrels("test")
    found = evaluate(runs[0], qrels, parse_measures(" ".join(MEASURES)), id_rank=collection.passage_ids.id_rank)
    names = collection.query_ids.take(found.query_rows)
    order = np.argsort(names)
    return {name: found.of(name)[order] for name in MEASURES}, digest_of(collection, [names[i] for i in order])


def digest_of(collection: Any, names: list[str]) -> str:
    """The digest of the ids of test queries and passages; all sizes share it, as only training queries differ."""
    import hashlib

    ids = collection.passage_ids
    found = hashlib.sha256("\n".join(names).encode())
    found.update("\n".join(ids.take(range(len(ids)))).encode())
    return found.hexdigest()

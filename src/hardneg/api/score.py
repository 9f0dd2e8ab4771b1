"""Scores of a pool's negatives and positives by a model, kept with their provenance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Unpack

from hardneg.api.inputs import (
    Data,
    Place,
    Reading,
    cache_at,
    check_new,
    collection_of,
    holding,
    model_place,
    source_at,
)
from hardneg.api.inspect import last_pool
from hardneg.api.rank import open_scorer
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.errors import SettingsError, raise_all
from hardneg.models.source import ModelSource
from hardneg.negatives.candidates import ALL, Filters
from hardneg.negatives.facts import warn_if_empty
from hardneg.negatives.pool import PARTS, NegativePool, open_pool, save_pool
from hardneg.negatives.scores import Guide, guide_of, within
from hardneg.process.hardware import best_precision
from hardneg.process.progress import track
from hardneg.records import Float32
from hardneg.storage.artifacts import digest_json, is_current, load_array, publish, read_manifest, remove
from hardneg.storage.lease import LEASES, sharing


@checked
def score(
    pool: Place,
    out: Place,
    *,
    data: Data,
    ranker: Place,
    filters: Filters = ALL,
    embeddings: Place | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> NegativePool:
    """Score every negative and positive of a pool by a model; publish the scored pool at ``out`` and return it.

    All else of the pool stays as it is. The scores are made in blocks that are kept in the cache until the pool is
    whole: the same call goes on where an earlier one was stopped.

    Parameters
    ----------
    pool : a pool, or an experiment: then its last pool.
    out : a new folder; a pool is never replaced.
    ranker : a model that scores pairs: a cross-encoder, or a bi-encoder.
    filters : keep only the negatives within these bounds on the scores; ranks cannot be bounded here.
    embeddings : for a bi-encoder: the corpus as :func:`~hardneg.api.search.encode` embedded it. By default the
        embeddings in the cache are used, and made if they are not there.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Raises
    ------
    SettingsError : a setting is wrong, something stands at ``out``, or the model cannot be read in this way.
    ArtifactError : the pool is damaged or was mined from another collection.
    NumericError : the model gives a score that is no number.
    BusyError : another process scores into ``out``.
    """
    out, folder = Path(out), cache_at(cache)
    check_new(out)
    if filters.on_ranks != ALL:
        what = f"ranks {filters.rank_from} to {filters.rank_to or 'the last'}; a pool is scored at all its ranks"
        raise SettingsError("BAD_SETTING", what, "bound ranks when negatives are mined: hardneg mine --rank-from")
    check_bounds(filters)
    place = last_pool(Path(pool))
    with holding(out, folder):
        collection = collection_of(data, cache)
        found = open_pool(place, collection)
        source = source_at(model_place(ranker, "ranker"), **reading)
        guide = open_guide(source, collection, folder, embeddings=embeddings)
        inputs = {"collection": collection.digest, "pool": read_manifest(place).digest, "ranker": guide.digest}
        if embeddings is not None:  # they may be float32, those in the cache are not
            inputs["embeddings"] = read_manifest(Path(embeddings)).digest
        how = {**inputs, "precision": best_precision(source.device_here)}
        key = digest_json([how, str(out.absolute())])  # another call may score the same pool elsewhere
        parts = Parts(folder / PARTS / key[:32], how)
        held = sharing(folder / LEASES / parts.folder.name)  # nothing deletes the blocks meanwhile
        with held, track("scoring", "pairs") as tick:
            scored = guide.scored(found, kept=parts, progress=tick)
        scored = scored if filters == ALL else within(scored, filters)
        warn_if_empty(scored)
        save_pool(scored, out, settings={"filters": dataclasses.asdict(filters)}, inputs=inputs)
        remove(parts.folder)
    return scored


def open_guide(
    source: ModelSource, collection: Collection, cache: Path, *, embeddings: Place | None = None
) -> Guide:
    """A model as a guide of training over a collection: a bi-encoder reads queries as its training steps do.

    Raises the faults of :func:`~hardneg.api.rank.open_scorer`.
    """
    scorer = open_scorer(source, collection, cache, embeddings=embeddings, as_trained=True)
    return guide_of(scorer, collection)


def check_bounds(filters: Filters) -> None:
    """Refuse bounds that are not finite numbers; all of them are told together."""
    raise_all(
        [
            SettingsError("BAD_SETTING", f"{name} = {value}", "give a finite number, or leave it out")
            for name, value in dataclasses.asdict(filters).items()
            if not isinstance(value, int | None) and not math.isfinite(value)
        ]
    )


@dataclasses.dataclass(frozen=True)
class Parts:
    """Blocks of scores on the disk, each published when it is whole and scored only once.

    Attributes
    ----------
    folder : the folder that holds the blocks.
    inputs : digests of what is scored, and of what scores it.
    """

    folder: Path
    inputs: Mapping[str, str]

    def __call__(self, block: int, score: Callable[[], Float32]) -> Float32:
        """The scores of a block, from the disk if they are there."""
        place = self.folder / f"{block:06}"
        if not is_current(place, PARTS, self.inputs):
            scores = score()
            with publish(place, PARTS, inputs=self.inputs, replace=True) as draft:
                draft.array("scores.npy", scores)
            return scores
        kept: Float32 = load_array(place / "scores.npy")
        return kept

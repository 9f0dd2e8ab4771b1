"""What is in a pool, with texts, for people. Loads no torch."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.api.inputs import Data, Place, at_least, collection_of
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError
from hardneg.experiment.layout import Layout
from hardneg.experiment.provenance import collection_within
from hardneg.keyed_random import key, permutation
from hardneg.negatives.facts import entries_of, realized, stats
from hardneg.negatives.pool import KIND as POOL
from hardneg.negatives.pool import NegativePool, load_pool, open_pool, scores_in
from hardneg.records import Int64
from hardneg.storage.artifacts import MANIFEST, is_published, kind_named
from hardneg.storage.manifest import read_manifest
from hardneg.storage.places import check_readable


@checked
def pool_stats(pool: NegativePool | Place) -> dict[str, Any]:
    """Counts that describe a pool, open or in its folder, and in ``per_query`` its realised mix."""
    pool = pool if isinstance(pool, NegativePool) else load_pool(pool)
    return {**stats(pool), "per_query": realized(pool)}


@checked
def inspect(
    path: Place,
    data: Data | None = None,
    *,
    query_id: str | None = None,
    random: int | None = None,
    seed: int = 0,
    cache: Place | None = None,
) -> list[dict[str, Any]]:
    """Queries of a pool with their positives, negatives and the provenance of each.

    Parameters
    ----------
    path : a pool, or an experiment: then its last pool.
    data : the collection; by default that of the experiment, from the place that the experiment remembers.
    query_id : the query to show; without it, ``random`` ones (by default one) are drawn by ``seed``.

    Returns
    -------
    For each query ``query_id``, ``text``, ``positives`` and ``negatives``; a passage has ``passage_id``, ``title``
    and ``text``, a negative also ``source``, ``rank``, ``score``, ``episode``, ``anchor`` (the positive whose
    neighbour it is) and ``momentum``; a value that its source does not know is None. In a pool that a ranker
    scored, positives and negatives also have its ``ranker_score``.

    Raises
    ------
    SettingsError : ``data`` is not given, and the stored place of the collection is unknown or empty; a query is
        named, and random ones are asked for too; the pool has no query.
    ArtifactError : the pool is damaged or was mined from another collection.
    InputError : the pool has no such query.
    """
    if random is not None:
        at_least("--random", random)
        if query_id is not None:
            what = f"the query {query_id!r:.80} is named, and {random} random ones are asked for"
            raise SettingsError("BAD_SETTING", what, "leave --query or --random out")
    place = last_pool(Path(path))
    collection = collection_within(place) if data is None else collection_of(data, cache)
    pool = open_pool(place, collection)
    if not len(pool):
        what = "this pool has no query: nothing was mined for it, as in an episode of in-batch negatives"
        raise SettingsError("NO_POOL", what, "mine one with the trained model: hardneg mine", path=place)
    drawn = permutation(key(seed, "inspect"), len(pool))[: random or 1]
    chosen = drawn if query_id is None else position_of(query_id, pool, collection)
    return [inspection(collection, pool, int(i)) for i in chosen]


def position_of(query_id: str, pool: NegativePool, collection: Collection) -> Int64:
    """The position [1] of a query in a pool."""
    row = int(collection.query_ids.rows([query_id])[0])
    found = np.flatnonzero(pool.query_rows == row)
    if not len(found):
        known = row >= 0
        what = f"{'the pool' if known else 'the collection'} has no query {query_id!r:.80}"
        raise InputError("UNKNOWN_QUERY", what, "give the id of a query that was mined for, or use --random")
    return found


def last_pool(path: Path) -> Path:
    """The pool at ``path`` itself, or the newest pool of the experiment there; raises if there is neither."""
    found = pool_at(path)
    if found is None:
        raise no_pool(path)
    return found


def pool_at(path: Path) -> Path | None:
    """The pool at ``path`` itself, or the newest pool of the experiment there; None if it is neither."""
    check_readable(path)
    if not path.exists():
        raise InputError(
            "NOT_FOUND", "there is nothing here", "give the path of a pool or an experiment", path=path
        )
    if is_published(path, POOL):
        return path
    layout = Layout(path)
    pools = [pool for pool in layout.pools() if is_published(pool, POOL)]
    if pools:
        return max(
            pools, key=lambda pool: [int(number) for number in re.findall(r"\d+", str(pool.relative_to(path)))]
        )
    if seeds := layout.seeds():
        what = f"this holds the experiments of {len(seeds)} seeds"
        raise SettingsError("SEVERAL_SEEDS", what, f"give one of them, such as {seeds[0].path}", path=path)
    if layout.settings.is_file():
        what = "this experiment has no pool: it mined none yet, or takes its negatives anew at every step"
        raise SettingsError(
            "NO_POOL", what, "mine one with the trained model: hardneg mine --model EXP/model", path=path
        )
    return None


def no_pool(path: Path) -> HardnegError:
    """The fault of a place that is neither a pool nor an experiment: it says what the place is instead."""
    fix = "give the folder of a pool (hardneg mine) or of an experiment (hardneg train)"
    if not path.is_dir():
        return ArtifactError("WRONG_KIND", "this is a file", fix, path=path)
    if (path / MANIFEST).is_file():
        return ArtifactError("WRONG_KIND", f"this is {kind_named(read_manifest(path).kind)}", fix, path=path)
    names = sorted(one.name for one in path.iterdir())
    held = ", ".join(names[:5]) + (", …" if len(names) > 5 else "") or "nothing"
    return SettingsError("NO_POOL", f"this is neither a pool nor an experiment; it holds {held}", fix, path=path)


def inspection(collection: Collection, pool: NegativePool, i: int) -> dict[str, Any]:
    """The i-th query of a pool with its passages, as :func:`inspect` returns it."""
    row = int(pool.query_rows[i])
    scores = {} if pool.positive_scores is None else positive_scores(pool, i)
    return {
        "query_id": collection.query_ids[row],
        "text": collection.query_texts[row],
        "positives": [
            {**passage_facts(collection, passage), **scores.get(passage, {})}
            for passage in pool.positives.of(i).tolist()
        ],
        "negatives": [
            {
                **passage_facts(collection, entry.passage_row),
                "source": entry.source,
                "rank": entry.rank,
                "score": entry.score,
                "episode": entry.episode,
                "anchor": None if entry.anchor is None else collection.passage_ids[entry.anchor],
                "momentum": entry.momentum,
                **({"ranker_score": entry.ranker_score} if pool.ranker else {}),
            }
            for entry in entries_of(pool, i)
        ],
    }


def positive_scores(pool: NegativePool, i: int) -> dict[int, dict[str, float | None]]:
    """The ranker's score of each positive of the i-th query, by passage row; None if it is not known."""
    span = slice(pool.positive_offsets[i], pool.positive_offsets[i + 1])
    given = scores_in(pool, "positive_scores")[span].tolist()
    known = [{"ranker_score": None if math.isnan(score) else score} for score in given]
    return dict(zip(pool.positive_rows[span].tolist(), known, strict=True))


def passage_facts(collection: Collection, row: int) -> dict[str, Any]:
    """Id, title and text of a passage."""
    return {
        "passage_id": collection.passage_ids[row],
        "title": collection.titles[row],
        "text": collection.texts[row],
    }

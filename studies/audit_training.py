"""The part of the audit study that trains: the effect of planted false negatives, and of dropping suspects.

Three pools differ in their negatives alone: ``clean`` has mined negatives, ``planted`` has the planted ones too,
``filtered`` is ``planted`` without every pair that a signal of the audit fires for. STAR trains on each with
equal steps and three seeds. Dev keeps its own judgements.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from audit_plants import Searched, drawn, is_held, joined, moved, published, with_planted
from harness import Step, Study, difference, paired, table
from outcomes import Values

from hardneg.data.collection import Collection
from hardneg.diagnostics.audit import Pairs
from hardneg.evaluation.significance import holm
from hardneg.negatives.pool import NegativePool, save_pool
from hardneg.records import Positives, owners, pair_keys, spans
from hardneg.storage.artifacts import is_published

MEASURE = "RR@10"
POOLS = ("clean", "planted", "filtered")
PAIRS = (("planted", "clean"), ("filtered", "planted"), ("filtered", "clean"))
BEFORE = {
    "bm25": "BM25",
    "untrained": "nothing, texts as long as the model takes",
    "untrained-as-trained": "nothing, texts cut as in training",
}
DRAW = 0


@dataclass(frozen=True)
class Prepared:
    """A collection to train on, and its pools by name."""

    collection: Path
    pools: Mapping[str, Path]
    facts: Mapping[str, int]  # how many negatives each pool has, and how many of them are planted


def folder_of(chosen: Namespace) -> Path:
    """The folder of the collection. Every outcome keeps its name, so the name says what was planted."""
    drawn_from = f"{chosen.trained_count}of{chosen.trained_depth}"
    return chosen.out / f"{chosen.name}-{chosen.planted}-{drawn_from}-dev{chosen.dev_queries}"


def study_of(chosen: Namespace) -> Path:
    """Where the pools and the experiments lie."""
    return folder_of(chosen).with_suffix(".trained")


def prepare(searched: Searched, chosen: Namespace, suspected: Callable[[Pairs], Pairs]) -> Prepared:
    """Publish the collection and the pools; what is already there is opened.

    Parameters
    ----------
    suspected : a function from the pairs of a pool to those for which a signal fires.
    """
    left, held = searched.hold(chosen.planted, DRAW)
    some = np.flatnonzero(spans(held.offsets))
    left, held = left.select(some), held.select(some)
    mined = searched.mined(
        left, depth=chosen.trained_depth, count=chosen.trained_count, draw=DRAW, sources=["query"]
    )
    clean = mined.keep(~is_held(held, mined.query_rows[owners(mined.offsets)], mined.passage_rows))
    pools = {"clean": clean, "planted": with_planted(clean, held)}
    pools["filtered"] = without(pools["planted"], suspected(Pairs.of(pools["planted"])))
    place, every = folder_of(chosen), joined(searched.collection, [chosen.dev])
    dev = every.select(np.sort(drawn(np.arange(len(every)), chosen.dev_queries)))
    rows = np.unique(np.concatenate([pools["planted"].passage_rows, left.passage_rows, dev.passage_rows]))
    collection = published(searched.collection, rows, {"train": left, "dev": dev}, place)
    places = {name: study_of(chosen) / f"pool-{name}" for name in pools}
    for name, pool in pools.items():
        publish(moved(pool, searched.collection, collection), places[name], collection)
    return Prepared(
        place, places, {name: len(pool.passage_rows) for name, pool in pools.items()} | planted_in(pools, held)
    )


def without(pool: NegativePool, pairs: Pairs) -> NegativePool:
    """A pool without the entries of these pairs."""
    keys = pair_keys(pairs.query_rows, pairs.passage_rows)
    every = pair_keys(pool.query_rows[owners(pool.offsets)], pool.passage_rows)
    return pool.keep(~np.isin(every, keys))


def planted_in(pools: Mapping[str, NegativePool], held: Positives) -> dict[str, int]:
    """How many entries of each pool are planted."""
    found = {}
    for name, pool in pools.items():
        found[f"planted in {name}"] = int(
            is_held(held, pool.query_rows[owners(pool.offsets)], pool.passage_rows).sum()
        )
    return found


def publish(pool: NegativePool, place: Path, collection: Collection) -> None:
    """Publish a pool, unless it is there."""
    if not is_published(place):
        save_pool(pool, place, settings={}, inputs={"collection": collection.digest})


# ---------------------------------------------------------------- the experiments


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that all experiments share."""
    return {
        "pooling": "mean",
        "normalize": True,
        "scale": 20.0,
        "query_length": chosen.query_length,
        "passage_length": chosen.passage_length,
        "queries_per_step": chosen.queries_per_step,
        "negatives_per_query": 1,
        "steps": chosen.steps,
        "learning_rate": chosen.rate,
        "dev_passages": chosen.dev_passages,
        "examine": "judged",
        "measures": MEASURE,
    }


def steps_of(chosen: Namespace) -> list[Step]:
    """The experiments, seed after seed, so that one seed is complete before the next begins."""
    return [
        Step(f"{name}-{seed}", "star", {"seed": seed}, given=(("--pool", f"pool-{name}"),))
        for seed in range(chosen.seeds)
        for name in POOLS
    ]


# ---------------------------------------------------------------- tables


def of_seeds(study: Study, name: str, seeds: int) -> list[Values]:
    """Dev by query, for each finished seed of a pool."""
    found = [study.values(f"{name}-{seed}", "dev", "final", MEASURE) for seed in range(seeds)]
    return [one for one in found if one is not None]


def told(study: Study, chosen: Namespace) -> str:
    """The tables of dev by pool and seed, and of differences over the seeds that all pools have."""
    by_pool = {name: of_seeds(study, name, chosen.seeds) for name in POOLS}
    if not any(by_pool.values()):
        return "Training: not run."
    rows = [
        (name, f"{np.mean(found):.4f}", " ".join(f"{one.mean():.4f}" for one in found))
        if found
        else (name, "not run", "")
        for name, found in by_pool.items()
    ]
    first = next(one for one in (study.outcome(f"{name}-0") for name in POOLS) if one is not None)
    before = [(told, f"{first.mean('dev', state, MEASURE):.4f}", "") for state, told in BEFORE.items()]
    parts = [table(("trained on", f"dev {MEASURE}", "seeds"), [*before, *rows])]
    if seeds := min(map(len, by_pool.values())):
        parts.append(differences({name: np.mean(found[:seeds], axis=0) for name, found in by_pool.items()}, seeds))
    return "\n\n".join(parts)


def differences(values: Mapping[str, Values], seeds: int) -> str:
    """The paired differences of means over seeds, by query; p is Holm-corrected over the table."""
    found = [paired(values[a], values[b]) for a, b in PAIRS]
    adjusted = holm([one["p"] for one in found])
    rows = [
        (f"{a} − {b}", difference(one), f"{p:.3f}") for (a, b), one, p in zip(PAIRS, found, adjusted, strict=True)
    ]
    count = len(next(iter(values.values())))
    head = f"dev {MEASURE}, mean of {seeds} seed{'s' * (seeds > 1)}, {count} queries"
    return table((head, "difference, 95 % interval", "p (Holm)"), rows)

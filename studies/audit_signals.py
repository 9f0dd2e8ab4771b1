"""The audit signals that need a training: a ranker, and states of the retriever, trained on a planted pool.

A part of the training queries gets a small pool with planted passages. STAR trains on this pool twice, the second
time from where the first ended, and a ranker with a new head trains on it too. So each model has learned that the
planted passages are negatives, as a user's models learn from unknown false negatives. Then the audit runs with all
of its signals, and with those that need no training.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from audit_figures import TOGETHER, figures, halves, precision, ranking_table, recall, signals_table, spread
from audit_plants import Bool, Searched, drawn, is_held, joined, moved, published, with_planted
from harness import Step, Study, table
from sklearn.metrics import roc_auc_score

from hardneg.api.audit import World, evidence, mean_leads
from hardneg.data.collection import Collection
from hardneg.diagnostics.audit import Audit, Pairs, StateRun, audit_pairs
from hardneg.experiment.margins import Margins
from hardneg.models.loading import open_encoder
from hardneg.models.saving import save_encoder
from hardneg.models.source import ModelSource
from hardneg.negatives.pool import SOURCES, load_pool, save_pool
from hardneg.records import owners, spans
from hardneg.storage.artifacts import is_published

MEASURE = "RR@10"
POOL, FIRST, SECOND, RANKER = "pool", "first", "second", "ranker"
PLANTED = SOURCES.index("file")
ENCODERS: dict[str, Any] = {"pooling": "mean", "normalize": True, "scale": 20.0}
RERANKED = 10  # hits of a dev query
AGAIN = 1000
BEFORE = "before training"


def folder_of(chosen: Namespace, draw: int) -> Path:
    """The folder of a draw's collection. Every outcome keeps its name, so the name says what was planted."""
    size = f"{chosen.signal_queries}q{chosen.signal_count}of{chosen.depth}"
    return chosen.out / f"{chosen.name}-signals-{size}-draw{draw}"


def common_of(chosen: Namespace) -> dict[str, object]:
    """The settings that the three experiments of a draw share."""
    return {
        "query_length": chosen.query_length,
        "passage_length": chosen.passage_length,
        "queries_per_step": chosen.signal_batch,
        "steps": chosen.signal_steps,
        "measures": MEASURE,
    }


def steps_of(chosen: Namespace, draw: int) -> list[Step]:
    """The experiments of a draw, each after those that it needs."""
    pool = (("--pool", POOL),)
    star = ENCODERS | {"seed": draw, "learning_rate": chosen.rate, "negatives_per_query": chosen.signal_negatives}
    ranker = {"seed": draw, "learning_rate": chosen.ranker_rate, "negatives_per_query": 3, "rerank": RERANKED}
    again = star | {"seed": AGAIN + draw}  # draws other negatives than the first time
    return [
        Step(FIRST, "star", star, given=pool),
        Step(SECOND, "star", again, model=FIRST, given=pool),
        Step(RANKER, "ranker", ranker, given=pool),
    ]


def study_of(chosen: Namespace, draw: int) -> Study:
    """The study of the experiments of a draw; their outcomes become figures of the draw."""
    place = folder_of(chosen, draw)
    data, model = str(place.absolute()), str(encoder_of(chosen).absolute())
    study = Study(place.with_suffix(".trained"), data, model, common_of(chosen), chosen.threads)
    return study.planning(steps_of(chosen, draw))


# ---------------------------------------------------------------- what is trained, and on what


def encoder_of(chosen: Namespace) -> Path:
    """The folder of the encoder that training starts from: the model, with the lengths of training as its own.

    So no state searches with longer texts, which would take longer than the training.
    """
    return chosen.out / f"encoder-{chosen.query_length}-{chosen.passage_length}"


def publish_encoder(chosen: Namespace) -> None:
    """Publish the encoder, unless it is there."""
    if not is_published(encoder_of(chosen)):
        lengths = {"query_length": chosen.query_length, "passage_length": chosen.passage_length}
        settings = {name: ENCODERS[name] for name in ("pooling", "normalize")} | lengths
        encoder = open_encoder(ModelSource.at(chosen.model, device="cpu"), **settings)
        save_encoder(encoder, encoder_of(chosen), inputs={})


def prepare(searched: Searched, chosen: Namespace, draw: int, place: Path) -> None:
    """Publish the collection of a draw and its pool at ``place``; what is already there is opened.

    Half of the queries have a planted passage, if there are so many; all are of the split ``train``.
    """
    left, held = searched.hold(chosen.planted, draw)
    training = searched.collection.qrels("train").positives().query_rows
    inside, plants = np.isin(held.query_rows, training), spans(held.offsets) > 0
    half = chosen.signal_queries // 2
    some = [drawn(np.flatnonzero(inside & which), half) for which in (plants, ~plants)]
    rows = np.sort(np.concatenate(some))
    left, held = left.select(rows), held.select(rows)
    mined = searched.mined(left, depth=chosen.depth, count=chosen.signal_count, draw=draw)
    mined = mined.keep(~is_held(held, mined.query_rows[owners(mined.offsets)], mined.passage_rows))
    pool = with_planted(mined, held)
    every = joined(searched.collection, [chosen.dev])
    every = every.select(np.flatnonzero(~np.isin(every.query_rows, left.query_rows)))
    dev = every.select(np.sort(drawn(np.arange(len(every)), chosen.signal_dev)))
    passages = np.unique(np.concatenate([pool.passage_rows, left.passage_rows, dev.passage_rows]))
    collection = published(searched.collection, passages, {"train": left, "dev": dev}, folder_of(chosen, draw))
    if not is_published(place):
        there = moved(pool, searched.collection, collection)
        save_pool(there, place, settings={}, inputs={"collection": collection.digest})


# ---------------------------------------------------------------- what the audit says


@dataclass(frozen=True)
class Told:
    """The audits of the pairs of a draw, and which pairs were planted."""

    states: Sequence[StateRun]
    every: Audit  # with all signals
    before: Audit  # with those that need no training
    truth: Bool  # [n]


def listen(folder: Path, collection: Path, cache: Path) -> Told:
    """Audit the pairs of a pool, with the finished experiments in this folder."""
    opened = Collection.open(collection)
    pool = load_pool(folder / POOL, n_passages=opened.n_passages, collection=opened.digest)
    worlds = [World(folder / POOL, pool, opened, cache, folder / name) for name in (FIRST, SECOND)]
    given = evidence(worlds[0], model=None, ranker=folder / RANKER, bm25=True, reading={"device": "cpu"}).given
    states = [*worlds[0].states(), *worlds[1].states()[-1:]]  # the second begins with the last state of the first
    pairs, drawn_in = Pairs.of(pool), [one.margins() for one in worlds]
    margins = Margins(*(np.concatenate(some) for some in zip(*drawn_in, strict=True)))
    every = audit_pairs(pairs, **given | {"states": states, "leads": partial(mean_leads, margins)})
    plain = {name: value for name, value in given.items() if name not in ("score", "leads")}
    before = audit_pairs(pairs, **plain | {"states": states[:1]})
    return Told(states, every, before, pairs.sources == PLANTED)


def draw(chosen: Namespace, number: int, searched: Searched) -> dict[str, Any]:
    """The figures of a draw; its experiments are executed first, unless they are finished."""
    study = study_of(chosen, number)
    publish_encoder(chosen)
    prepare(searched, chosen, number, study.folder / POOL)
    for step in steps_of(chosen, number):
        study.execute(step)
    told = listen(study.folder, folder_of(chosen, number), study.cache())
    return facts_of(told) | {"dev": learned(study)}


def facts_of(told: Told) -> dict[str, Any]:
    """The figures of the audit, and those of the orders that need no training."""
    facts = figures(told.every, told.truth)
    before = figures(told.before, told.truth)["ranking"]
    changed = (TOGETHER, "retriever", "both")
    facts["ranking"] |= {f"{name}, {BEFORE}": before[name] for name in changed if name in before}
    return facts | {"drawn": drawn_pairs(told)}


def drawn_pairs(told: Told) -> dict[str, Any]:
    """For the pairs that a step drew: their number, and how well each signal tells plants from others."""
    signals = {one.name: one.strength for one in told.every.signals}
    drawn = ~np.isnan(signals["learned"]) if "learned" in signals else np.zeros(len(told.truth), bool)
    truth = told.truth[drawn]
    areas = {}
    if 0 < truth.sum() < len(truth):
        areas = {name: float(roc_auc_score(truth, np.nan_to_num(one[drawn]))) for name, one in signals.items()}
    return {"pairs": int(drawn.sum()), "planted": int(truth.sum()), "areas": areas}


def learned(study: Study) -> dict[str, float]:
    """What each model does on dev."""
    found = {name: dict(study.results(name) or {})["dev"] for name in (FIRST, SECOND, RANKER)}
    values = {"bm25": found[FIRST]["bm25"], "untrained": found[FIRST]["untrained"]}
    return {name: one[MEASURE] for name, one in values.items()} | {
        name: one["final"][MEASURE] for name, one in found.items()
    }


# ---------------------------------------------------------------- tables


def settings_of(chosen: Namespace) -> dict[str, Any]:
    """The further settings that decide the figures of these draws, besides those of draws without a training."""
    names = [name for name in vars(chosen) if name.startswith("signal_") and name != "signal_draws"]
    return {name: getattr(chosen, name) for name in [*names, "rate", "ranker_rate", "dev"]}


def told(chosen: Namespace, found: Sequence[Mapping[str, Any]]) -> str:
    """The tables of the draws: what the models learned, and what the audit finds with them."""
    if not found:
        return f"{chosen.name}, with a ranker and trained states: not run."
    one = found[0]
    head = f"{chosen.name}, with a ranker and two states that trained on the pool:"
    head += f" {one['planted']:,} planted among {one['pairs']:,} negatives of {one['queries']:,} queries"
    head += f" ({one['planted'] / one['pairs']:.3f}), {len(found)} draw{'s' * (len(found) > 1)}."
    parts = [signals_table(found), ranking_table(found, precision), ranking_table(found, recall), halves(found)]
    return "\n\n".join([head, *parts, drawn_table(found), dev_table(chosen, found)])


def drawn_table(found: Sequence[Mapping[str, Any]]) -> str:
    """The table of how well each signal tells plants from other pairs, among those that a step drew."""
    of = [one["drawn"] for one in found]
    pairs, planted = (spread_of_counts([one[name] for one in of]) for name in ("pairs", "planted"))
    names = [name for name in found[0]["signals"] if all(name in one["areas"] for one in of)]
    rows = [(name, spread([one["areas"][name] for one in of])) for name in names]
    return table((f"the {pairs} pairs that a step drew, {planted} of them planted", "area under ROC"), rows)


def spread_of_counts(values: Sequence[int]) -> str:
    """The counts of the draws."""
    return " and ".join(f"{value:,}" for value in values)


def dev_table(chosen: Namespace, found: Sequence[Mapping[str, Any]]) -> str:
    """What each model does on dev."""
    of = {
        "bm25": "BM25",
        "untrained": "the encoder before training",
        FIRST: f"after {chosen.signal_steps} steps",
        SECOND: f"after {2 * chosen.signal_steps} steps",
        RANKER: f"BM25, the first {RERANKED} re-ranked by the ranker",
    }
    rows = [(told, spread([one["dev"][name] for one in found])) for name, told in of.items()]
    return table(("dev, the passages of the draw", MEASURE), rows)

"""The functions behind ``import hardneg`` and the command line.

Everywhere, ``data`` is a canonical collection's folder, ``[format:]SOURCE`` or an open
:class:`~hardneg.data.collection.Collection`; ``model`` is a folder, a hub name or ``package:NAME``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hardneg.artifacts import (
    cache_root,
    check_writable,
    digest_json,
    publish_file,
    read_manifest,
    write_json,
)
from hardneg.config import build, nearest, read_overrides, read_preset, read_toml
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import open_qrels, read_runs, write_run
from hardneg.data.ids import IdSpace
from hardneg.data.importing import import_collection as import_collection
from hardneg.data.importing import open_data
from hardneg.data.training_data import AUTO, TrainingData, choose_splits, named_split
from hardneg.distributed import shard_of
from hardneg.draws import key, permutation
from hardneg.errors import InputError, SettingsError
from hardneg.evaluation.compare import compare_runs
from hardneg.evaluation.measures import evaluate as evaluate_run
from hardneg.evaluation.measures import parse_measures
from hardneg.experiment import RESULTS, open_experiment
from hardneg.mining import Corpus, mine_pool
from hardneg.models.bi_encoder import BiEncoder, EncoderSettings, best_precision
from hardneg.models.loading import load_encoder
from hardneg.negatives.candidates import ALL, Filters
from hardneg.negatives.pool import NegativePool, entries_of, load_pool, realized, save_pool, stats
from hardneg.progress import note, track
from hardneg.recipes.ance_tele import AnceTele, ance_tele, plan
from hardneg.records import Qrels, Run, Side
from hardneg.results import bm25_judged, evaluation_depth, note_state, pool_seeds, retrieve_all, summarize
from hardneg.runtime import pick_device
from hardneg.search.bm25 import bm25_run, bm25_texts
from hardneg.search.embeddings import encode_store
from hardneg.search.retrieve import search_run
from hardneg.snapshot import Encoding, Snapshot, token_store

Data = str | Path | Collection


def one_of(option: str, value: str, choices: Sequence[str]) -> Any:
    """The value of an option that takes one of a few words."""
    if value not in choices:
        raise SettingsError("BAD_SETTING", f"{option} = {value!r}", nearest(value, choices))
    return value


def collection_of(data: Data, cache: Path | None = None) -> Collection:
    """The collection that ``data`` means."""
    return data if isinstance(data, Collection) else open_data(str(data), cache=cache)


# ---------------------------------------------------------------- training


def tele_settings(
    preset: str | None = None,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    **values: Any,
) -> AnceTele:
    """Settings of ANCE-Tele from a preset, a TOML file, ``key=value`` texts and values; later ones win."""
    layers = [
        {"precision": best_precision(pick_device(device))},
        read_preset("ance-tele", preset) if preset else {},
        read_toml(Path(config)) if config else {},
        read_overrides(overrides),
        values,
    ]
    return build(AnceTele, *layers)


def tele_encoder(settings: AnceTele, model: str, passage_model: str | None, device: str) -> BiEncoder:
    """A fresh pretrained encoder with what the settings override."""
    names = [field.name for field in dataclasses.fields(EncoderSettings)]
    overrides = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    if settings.towers == "tied" and passage_model is not None:
        raise SettingsError("TWO_MODELS", "towers = tied, and a passage model is given", "leave one of them out")
    if settings.towers == "untied":
        passage_model = passage_model or model
    return load_encoder(model, passage_model, device=device, **overrides)


@dataclasses.dataclass(frozen=True)
class Splits:
    """Which splits train, steer and judge."""

    train: str = "train"
    dev: str = AUTO
    test: str = "test"

    def choose(self, collection: Collection, seed: int) -> TrainingData:
        """These splits of a collection."""
        return choose_splits(collection, train=self.train, dev=self.dev, test=self.test, seed=seed)


DEFAULT_SPLITS = Splits()


def train_ance_tele(
    data: Data,
    model: str,
    out: str | Path,
    *,
    passage_model: str | None = None,
    settings: AnceTele | None = None,
    splits: Splits = DEFAULT_SPLITS,
    seeds: int = 1,
    negatives: str | Path | None = None,
    cache: str | Path | None = None,
    device: str | None = None,
    **values: Any,
) -> dict[str, Any]:
    """Train with teleportation negatives and return the results; the same call resumes.

    Parameters
    ----------
    out : the experiment's folder; the trained encoder stands in ``out/model``.
    settings : see :func:`tele_settings`; ``values`` are settings too, and win.
    seeds : executions with seeds seed, seed + 1, ..., each in ``out/seed-<s>``, pooled in ``out/results.json``.
    splits : names; dev ``auto`` holds queries out where there is no dev split, ``none`` has none.
    negatives : a pool to train the first episode with, instead of mining.
    """
    settings = settings.model_copy(update=values) if settings and values else settings or tele_settings(**values)
    collection = collection_of(data, None if cache is None else Path(cache))
    chosen = splits.choose(collection, settings.seed)
    if chosen.held_out:
        note(f"no dev split: {chosen.held_out} training queries are held out (--dev none to keep them)")
    where = partial(
        _train_one,
        data=chosen,
        base=partial(tele_encoder, model=model, passage_model=passage_model, device=pick_device(device)),
        cache=None if cache is None else Path(cache),
        negatives=None if negatives is None else Path(negatives),
    )
    if seeds == 1:
        return where(Path(out), settings)
    results = {}
    for seed in range(settings.seed, settings.seed + seeds):
        results[seed] = where(Path(out) / f"seed-{seed}", settings.model_copy(update={"seed": seed}))
    pooled = pool_seeds(results)
    write_json(Path(out) / RESULTS, pooled)
    return pooled


def _train_one(
    out: Path,
    settings: AnceTele,
    *,
    data: TrainingData,
    base: Callable[[AnceTele], BiEncoder],
    cache: Path | None,
    negatives: Path | None,
) -> dict[str, Any]:
    """One experiment, from wherever it stands to its results."""
    measures = parse_measures(settings.measures)
    given = None if negatives is None else load_pool(negatives, collection=data.collection.digest)
    inputs = {"collection": data.collection.digest, "model": base(settings).digest(), "data": data.digest}
    if negatives is not None:
        inputs["negatives"] = read_manifest(negatives).digest
    with open_experiment(
        out, recipe="ance-tele", settings=settings, inputs=inputs, cache=cache, grows=("episodes",)
    ) as experiment:
        if experiment.results is None:
            runs = {"bm25": bm25_judged(data, experiment.cache, evaluation_depth(measures))}
            for state in ance_tele(settings, data, partial(base, settings), experiment, given=given):
                runs[state.name] = retrieve_all(
                    state, data, depth=settings.depth, evaluation_depth=evaluation_depth(measures)
                )
                note_state(state.name, runs[state.name], data, measures)
            experiment.finish(summarize(data, runs, measures, seed=settings.seed))
        return dict(experiment.results)


def plan_ance_tele(
    data: Data,
    model: str,
    *,
    passage_model: str | None = None,
    settings: AnceTele,
    splits: Splits = DEFAULT_SPLITS,
    measure: bool = False,
    cache: str | Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Check everything an experiment needs, and say what it would do; with ``measure``, how long it would take."""
    folder = cache_root() if cache is None else Path(cache)
    collection = collection_of(data, folder)
    encoder = tele_encoder(settings, model, passage_model, pick_device(device))
    facts = plan(settings, splits.choose(collection, settings.seed), encoder, measure=measure)
    return {"settings": settings.model_dump(mode="json"), "facts": facts}


# ---------------------------------------------------------------- mining


def open_snapshot(
    collection: Collection,
    model: str,
    passage_model: str | None,
    cache: Path,
    device: str | None,
    *,
    token_budget: int = 16384,
    dtype: Literal["float16", "float32"] = "float16",
    embeddings: str | Path | None = None,
) -> Snapshot:
    """A model over a collection, its runs and embeddings in the cache."""
    device = pick_device(device)
    encoder = load_encoder(model, passage_model, device=device)
    encoding = Encoding(token_budget, dtype, best_precision(device))
    folder = cache / "runs" / digest_json([encoder.digest(), collection.digest, dataclasses.asdict(encoding)])[:32]
    return Snapshot(
        encoder,
        collection,
        "model",
        folder,
        cache,
        encoding=encoding,
        passages_at=None if embeddings is None else Path(embeddings),
    )


def mine(
    data: Data,
    model: str | None,
    out: str | Path,
    *,
    passage_model: str | None = None,
    split: str = "train",
    sources: Sequence[str] = ("query", "lookahead"),
    depth: int = 200,
    count: int = 30,
    previous: str | Path | None = None,
    alpha: float = 0.5,
    beta: float = 0.5,
    filters: Filters = ALL,
    seed: int = 42,
    cache: str | Path | None = None,
    device: str | None = None,
) -> NegativePool:
    """Mine negatives once, for any trainer, and publish them as a pool at ``out``.

    Parameters
    ----------
    sources, previous, alpha, beta : see :func:`hardneg.mining.mine_pool`.
    count : entries of a source; ``random`` and ``bm25`` need no model.
    """
    folder = cache_root() if cache is None else Path(cache)
    collection = collection_of(data, folder)
    positives = named_split(collection, split).positives()
    positives = positives.select(np.flatnonzero(np.diff(positives.offsets) > 0))
    before = None if previous is None else load_pool(Path(previous), collection=collection.digest)
    state = (
        Corpus(collection, folder)
        if model is None
        else open_snapshot(collection, model, passage_model, folder, device)
    )
    settings: dict[str, Any] = {
        "sources": list(sources),
        "depth": depth,
        "count": count,
        "alpha": alpha,
        "beta": beta,
        "seed": seed,
    }
    episode = 1 if before is None else before.episode + 1
    size = count * len({"query", "lookahead"} & set(sources))
    pool = mine_pool(state, positives, before, episode=episode, size=size, filters=filters, **settings)
    inputs = {"collection": collection.digest}
    if isinstance(state, Snapshot):
        inputs["model"] = state.digest
    save_pool(pool, Path(out), settings={**settings, "split": split}, inputs=inputs)
    return pool


def pool_stats(pool: NegativePool) -> dict[str, Any]:
    """Counts that describe a pool, and its realised mix."""
    return {**stats(pool), "per_query": realized(pool)}


def inspect(
    path: str | Path,
    data: Data,
    *,
    query_id: str | None = None,
    random: int = 1,
    seed: int = 0,
    cache: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Queries of a pool (or of an experiment's last pool) with their positives, negatives and provenance."""
    collection = collection_of(data, None if cache is None else Path(cache))
    pool = load_pool(last_pool(Path(path)), n_passages=collection.n_passages, collection=collection.digest)
    if query_id is None:
        positions = permutation(key(seed, "inspect"), len(pool))[:random]
    else:
        row = int(collection.query_ids.rows([query_id])[0])
        positions = np.flatnonzero(pool.query_rows == row)
        if row < 0 or not len(positions):
            raise InputError(
                "UNKNOWN_QUERY", f"the pool has no query '{query_id}'", "give the id of a training query"
            )
    return [inspection(collection, pool, int(i)) for i in positions]


def last_pool(path: Path) -> Path:
    """The pool itself, or the newest of an experiment."""
    pools = sorted(path.glob("episodes/*/negatives"), key=lambda pool: int(pool.parent.name))
    return pools[-1] if pools else path


def inspection(collection: Collection, pool: NegativePool, i: int) -> dict[str, Any]:
    """One query of a pool, with texts."""
    row = int(pool.query_rows[i])
    return {
        "query_id": collection.query_ids[row],
        "text": collection.query_texts[row],
        "positives": [passage_facts(collection, int(passage)) for passage in pool.positives.of(i)],
        "negatives": [
            {
                **passage_facts(collection, entry.passage_row),
                "source": entry.source,
                "rank": entry.rank,
                "score": entry.score,
                "episode": entry.episode,
                "anchor": None if entry.anchor is None else collection.passage_ids[entry.anchor],
                "momentum": entry.momentum,
            }
            for entry in entries_of(pool, i)
        ],
    }


def passage_facts(collection: Collection, row: int) -> dict[str, Any]:
    """Id, title and text of a passage."""
    return {
        "passage_id": collection.passage_ids[row],
        "title": collection.titles[row],
        "text": collection.texts[row],
    }


# ---------------------------------------------------------------- encoding and search


def encode(
    data: Data,
    model: str,
    out: str | Path,
    *,
    passage_model: str | None = None,
    side: Side = "passage",
    shard: str | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    token_budget: int = 16384,
    cache: str | Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Embed one side of a collection into shards at ``out``; an interrupted call resumes.

    Parameters
    ----------
    shard : ``i/n``: this process encodes every n-th unit from the i-th; the last one to finish merges.
    """
    check_writable(Path(out))
    folder = cache_root() if cache is None else Path(cache)
    collection = collection_of(data, folder)
    device = pick_device(device)
    encoder = load_encoder(model, passage_model, device=device)
    store = token_store(encoder, collection, folder, side)
    ids = collection.query_ids if side == "query" else collection.passage_ids
    with encoder.inference(best_precision(device)), track(f"encoding {side} texts", "tokens") as tick:
        made = encode_store(
            encoder,
            store,
            Path(out),
            side=side,
            budget=token_budget,
            dtype=dtype,
            shard=shard_of(shard),
            name=lambda row: ids[row],
            progress=tick,
        )
    if made is None:
        return {"embeddings": str(out), "complete": False}
    return {"embeddings": str(out), "complete": True, "vectors": made.n, "dim": made.dim, "digest": made.digest}


def search(
    data: Data,
    out: str | Path,
    *,
    model: str | None = None,
    passage_model: str | None = None,
    bm25: bool = False,
    embeddings: str | Path | None = None,
    split: str = "test",
    k: int = 1000,
    cache: str | Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Search a split's queries and write a TREC run file at ``out``."""
    check_writable(Path(out))
    folder = cache_root() if cache is None else Path(cache)
    collection = collection_of(data, folder)
    rows = named_split(collection, split).query_rows
    if bm25:
        run = bm25_run(collection, rows, k, folder)
    else:
        state = open_snapshot(collection, needed(model), passage_model, folder, device, embeddings=embeddings)
        run = search_run(state.queries.rows(rows), rows, state.passages, k, collection_digest=collection.digest)
    write_run(Path(out), run, collection.query_ids, collection.passage_ids)
    return {"run": str(out), "queries": len(run), "hits": len(run.scores)}


def search_text(
    data: Data,
    text: str,
    *,
    model: str | None = None,
    passage_model: str | None = None,
    bm25: bool = False,
    embeddings: str | Path | None = None,
    k: int = 5,
    cache: str | Path | None = None,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """The best ``k`` passages for one text, with ids, titles, texts and scores."""
    folder = cache_root() if cache is None else Path(cache)
    collection = collection_of(data, folder)
    if bm25:
        run = bm25_texts(collection, [text], k, folder)
    else:
        state = open_snapshot(collection, needed(model), passage_model, folder, device, embeddings=embeddings)
        run = state.search_texts([text], k)
    rows, scores = run.hits(0)
    return [
        {"rank": rank, "score": float(score), **passage_facts(collection, int(row))}
        for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)
    ]


def needed(model: str | None) -> str:
    """The model, which must be given."""
    if model is None:
        raise SettingsError("NO_MODEL", "there is nothing to search with", "give --model or --bm25")
    return model


# ---------------------------------------------------------------- evaluation


def evaluate(
    run: str | Path,
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: str | Path | None = None,
    measures: str = "RR@10 nDCG@10 R@100 R@1000",
    per_query: str | Path | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """Score a run file; ``measures``, ``queries``, ``missing`` and ``unjudged`` of the result say how and over what."""
    parsed = parse_measures(measures)
    runs, judged, queries = open_runs([Path(run)], data, split, qrels, cache)
    evaluation = evaluate_run(runs[0], judged, parsed, id_rank=None)
    if per_query is not None:
        ids = queries.take(evaluation.query_rows)
        with publish_file(Path(per_query)) as stream:
            for i, query_id in enumerate(ids):
                row = {name: float(values[i]) for name, values in evaluation.values.items()}
                stream.write(json.dumps({"query_id": query_id, **row}).encode() + b"\n")
    return evaluation.as_json()


def compare(
    runs: Sequence[str | Path],
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: str | Path | None = None,
    measures: str = "RR@10 nDCG@10",
    seed: int = 0,
    cache: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Paired tests of every pair of run files for every measure, with Holm correction and wins, ties, losses."""
    parsed = parse_measures(measures)
    opened, judged, _ = open_runs([Path(run) for run in runs], data, split, qrels, cache)
    evaluations = [evaluate_run(run, judged, parsed, id_rank=None) for run in opened]
    names = [str(run) for run in runs]
    return [
        dataclasses.asdict(row)
        for measure in map(str, parsed)
        for row in compare_runs(names, [e.values[measure] for e in evaluations], measure=measure, seed=seed)
    ]


def open_runs(
    paths: Sequence[Path], data: Data | None, split: str, qrels: str | Path | None, cache: str | Path | None
) -> tuple[list[Run], Qrels, IdSpace]:
    """Run files and the judgements they are scored by, from a collection's split or from a qrels file."""
    if (data is None) == (qrels is None):
        raise SettingsError("NO_JUDGEMENTS", "judgements come from one place", "give either --data or --qrels")
    if qrels is not None:
        judged, *spaces = open_qrels(Path(qrels))
        runs, queries, _ = read_runs(paths, *spaces)
        return runs, judged, queries
    assert data is not None
    collection = collection_of(data, None if cache is None else Path(cache))
    spaces = [collection.query_ids, collection.passage_ids]
    runs, queries, _ = read_runs(paths, *spaces, collection=collection.digest)
    return runs, named_split(collection, split), queries

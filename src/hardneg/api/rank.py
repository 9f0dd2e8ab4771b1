"""Runs made from runs: fused, or re-ranked by a model. Fusing loads no torch."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from hardneg.api.evaluate import check_overlap, named
from hardneg.api.inputs import (
    PROMPTS,
    AnyRun,
    Data,
    Place,
    Reading,
    at_least,
    cache_at,
    check_file,
    check_inputs,
    collection_of,
    kept_run,
    model_place,
    of_collection,
    one_of,
    opened_run,
    run_place,
    source_at,
)
from hardneg.api.judged_runs import check_limited, devs_of, experiments_of, judged_split
from hardneg.api.outcomes import by_ids
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import read_run, read_runs, write_run
from hardneg.data.ids import IdSpace, Vocabulary
from hardneg.data.own_passages import own_hits
from hardneg.data.training_data import named_split
from hardneg.errors import NumericError, SettingsError
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.measures import Evaluation, Measure, parse_measures
from hardneg.models.source import ModelSource
from hardneg.process.progress import track
from hardneg.records import Int32, Run, distinct, spans
from hardneg.search.fusion import Fusion, Method, Normalisation, Tuned, check_weights, of_queries, tune_weights
from hardneg.search.fusion import fuse as fuse_runs
from hardneg.shown import counted

if TYPE_CHECKING:
    from hardneg.search.rerank import PairScorer
    from hardneg.search.scorers import ModelScorer

log = logging.getLogger(__name__)

RERANKED = 100  # hits of each query, by default
TUNED_FOR = "RR@10"
TUNE_ON = "give runs of that split to tune on (--tuning-run), one for each run in the same order"
SAMPLE = 1 << 16  # rows that are looked up before all are
MOST_CONSTANT = 1_000_000  # of reciprocal ranks: beyond some 10 million, float32 tells no rank from the next


# ---------------------------------------------------------------- fusion


@checked
def fuse(
    runs: Sequence[AnyRun],
    out: Place | None = None,
    *,
    method: Method = "rrf",
    weights: Sequence[float] | None = None,
    normalisation: Normalisation | None = None,
    rank_constant: int | None = None,
    k: int = 1000,
    data: Data | None = None,
    tune: str | None = None,
    tuning_runs: Sequence[AnyRun] = (),
    measure: str | None = None,
    split: str = "test",
    cache: Place | None = None,
) -> dict[str, Any]:
    """Fuse runs over the same queries into one at ``out``, replacing what was there.

    Parameters
    ----------
    runs : two or more: files (TREC or MS MARCO, ``.gz`` or not), experiments, folders of runs that these keep,
        ``{query id: {passage id: score}}``, or runs of the rows of ``data``. The fused run has the queries of all
        of them that have a hit in a run of a weight above 0.
    out : the file of the fused run, gzipped if its name ends in ``.gz``. Without it nothing is written, and the
        fused run is returned.
    method : ``rrf``, reciprocal rank fusion, or ``linear``, the weighted sum of normalised scores; with
        ``normalisation`` (of ``linear``, by default ``min-max``) and ``rank_constant`` (of ``rrf``, by default 60)
        described at :class:`~hardneg.search.fusion.Fusion`.
    weights : one for each run, in their order; 1 each by default. A run of weight 0 gives no hits.
    k : the most hits of a query that are kept. Equal scores rank by id descending, as in every run's file.
    data : the collection; needed to tune, otherwise only to check that the runs are of it.
    tune : a split, such as ``dev``, on which the weights are chosen. All weights that are multiples of 0.1 and add
        up to 1 are tried; those whose fused run has the best ``measure`` win, and among equals the most even ones.
        If one of the runs is an experiment's, ``dev`` has the queries that it held out or drew.
    tuning_runs : runs over the queries of that split by the same systems, in the order of ``runs``; by default
        ``runs`` themselves are taken to hold its queries.
    measure : one measure, which is tuned for; by default RR@10.
    split : where an experiment stands for a run, the split of this run. Files are fused as they are, whatever
        split they are of: another split than test is refused where no run is an experiment.

    Returns
    -------
    ``run`` (the place; without ``out`` the run by ids), ``queries`` (those with hits), ``hits``, ``method``,
    ``weights``; when tuned, ``tuned`` with the split, the measure and its value.

    Raises
    ------
    SettingsError : a setting is wrong, or of the other method; weights are given and tuned; ``out`` is one of the
        runs; a split and no experiment.
    InputError : a malformed line of a run; no query of the split is in the runs that are tuned on.
    ArtifactError : the runs are of different collections, or some are of chunks and others are not.
    NumericError : linear fusion meets an infinite score.
    """
    fusion = checked_fusion(runs, weights, method, normalisation, rank_constant)
    at_least("k", k)
    check_idle_split(split, runs)
    tuning = check_tuning(runs, weights, data, tune, tuning_runs, measure)
    check_inputs(*runs, *tuning_runs)
    splits = [split] * len(runs) + [tune or ""] * len(tuning_runs)
    if out is not None:
        check_apart(out, [*runs, *tuning_runs], splits)
        check_file(Path(out), [data], told=True)
    collection = None if data is None else collection_of(data, cache)
    given, queries, passages, id_rank = open_ranked([*runs, *tuning_runs], splits, collection)
    if method == "linear":
        check_finite([*runs, *tuning_runs], given)
    facts: dict[str, Any] = {}
    if tuning is not None and collection is not None:
        tuned = tuning.best(given[-len(runs) :], collection, cache_at(cache), fusion=fusion, k=k, id_rank=id_rank)
        weights = tuned.weights
        facts = {"tuned": {"split": tuning.split, str(tuning.measure): tuned.value}}
    say_apart(given[: len(runs)], runs)
    with track("fusing", "queries") as tick:
        fused = fuse_runs(given[: len(runs)], weights, fusion=fusion, k=k, id_rank=id_rank, progress=tick)
    if out is not None:
        write_run(Path(out), fused, queries, passages)
    used = check_weights(weights, len(runs))
    say_without_hits(fused, [run for run, weight in zip(given, used, strict=False) if not weight])
    return {
        "run": by_ids(fused, queries, passages) if out is None else str(out),
        "queries": int((spans(fused.offsets) > 0).sum()),
        "hits": len(fused.scores),
        "method": method,
        "weights": list(used),
        **facts,
    }


def say_without_hits(fused: Run, idle: Sequence[Run]) -> None:
    """Warn of queries without hits in a fused run that runs of weight 0 have hits for: its file lacks them."""
    found = [run.query_rows[spans(run.offsets) > 0] for run in idle]
    without = fused.query_rows[spans(fused.offsets) == 0]
    if lost := int(np.isin(without, np.concatenate(found)).sum()) if found else 0:
        have = "query has" if lost == 1 else "queries have"
        log.warning("%s %s no hits in the fused run, since only runs of weight 0 have them", f"{lost:,}", have)


def check_finite(places: Sequence[AnyRun], runs: Sequence[Run]) -> None:
    """Refuse a run with a score that is NaN or infinite, which cannot be normalised; names the run."""
    for number, (place, run) in enumerate(zip(places, runs, strict=True), 1):
        if not np.isfinite(run.scores).all():
            path = Path(place) if isinstance(place, str | Path) else None
            what = f"{'' if path else f'{named(place, number)}: '}a score is infinite, and cannot be normalised"
            raise NumericError("NAN_SCORE", what, "fuse by rrf, which looks at ranks only", path=path)


def say_apart(given: Sequence[Run], places: Sequence[Any]) -> None:
    """Warn of runs that share no query, or no passage, with any other run: no list of theirs is mixed."""
    named = [str(place) if isinstance(place, str | Path) else f"run {i}" for i, place in enumerate(places, 1)]
    alone = alone_in([run.query_rows for run in given])
    strange = alone_in([run.passage_rows for run in given]) - alone
    if alone:
        names = ", ".join(named[i] for i in sorted(alone))
        log.warning("no query of these runs is in another one, so nothing of them is fused: %s", names)
    if strange:
        names = ", ".join(named[i] for i in sorted(strange))
        log.warning("no passage of these runs is in another one; are the ids of one collection? %s", names)


def ranked(run: Place, split: str, collection: Collection) -> Run:
    """A run whose ids the collection has: of a file, of an experiment, or of a folder that training kept it in."""
    kept = kept_run(run)
    if isinstance(kept, Run):
        return of_collection(kept, collection)
    place = run_place(run, split)
    return read_run(place, collection.query_ids, collection.passage_ids, collection=collection.digest)


def alone_in(rows: Sequence[Int32]) -> set[int]:
    """Which of several sets of rows have no row in common with any other."""
    size = max((int(some.max()) + 1 for some in rows if len(some)), default=0)
    once, twice = np.zeros(size, bool), np.zeros(size, bool)
    for some in rows:
        there = np.zeros(size, bool)
        there[some] = True
        twice |= once & there
        once |= there
    return {i for i, some in enumerate(rows) if not (twice[some[:SAMPLE]].any() or twice[some].any())}


def check_apart(out: Place, runs: Sequence[AnyRun], splits: Sequence[str]) -> None:
    """Refuse to write a run over one that it is made of."""
    pairs = zip(runs, splits, strict=True)
    files = [
        run_place(run, split)
        for run, split in pairs
        if isinstance(run, str | Path) and not isinstance(kept_run(run), Run)
    ]
    if Path(out).exists() and any(run.exists() and run.samefile(out) for run in files):
        what = "this file is an input of the command, and would be overwritten"
        raise SettingsError("EXISTS", what, "give another --out", path=Path(out))


def check_idle_split(split: str, runs: Sequence[AnyRun]) -> None:
    """Refuse a split where no run is an experiment: a file has the queries that it has."""
    if split != "test" and not experiments_of(runs):
        what = f"split = {split} has no effect on run files: it chooses the run of an experiment"
        raise SettingsError("BAD_SETTING", what, "leave split out, and give the run of the queries that you mean")


def checked_fusion(
    runs: Sequence[AnyRun],
    weights: Sequence[float] | None,
    method: Method,
    normalisation: Normalisation | None,
    rank_constant: int | None,
) -> Fusion:
    """The settings of the fusion; raises :class:`SettingsError` if they or the weights make no sense."""
    one_of("method", method, ("rrf", "linear"))
    idle = {"rrf": ("normalisation", normalisation), "linear": ("rank_constant", rank_constant)}[method]
    if idle[1] is not None:
        what = f"{idle[0]} = {idle[1]} with method = {method}, which has none"
        raise SettingsError("BAD_SETTING", what, "leave it out, or choose the other method")
    given: dict[str, Any] = {}
    if normalisation is not None:
        given["normalisation"] = one_of("normalisation", normalisation, ("min-max", "z"))
    if rank_constant is not None:
        given["rank_constant"] = at_least("rank_constant", rank_constant, 0)
        if rank_constant > MOST_CONSTANT:
            what = f"rank_constant = {rank_constant} is so large that ranks make no difference"
            raise SettingsError("BAD_SETTING", what, f"give {MOST_CONSTANT:,} or less")
    check_weights(weights, len(runs))
    return Fusion(method, **given)


def open_ranked(
    given: Sequence[AnyRun], splits: Sequence[str], collection: Collection | None
) -> tuple[list[Run], IdSpace, IdSpace, Int32]:
    """The runs, the ids of their queries and passages, and the rank of each passage's id.

    Where an experiment is given, the run of its final model on the split of the same place is meant.
    """
    places = [opened_run(run, split, collection) for run, split in zip(given, splits, strict=True)]
    if collection is None:
        runs, queries, passages = read_runs(places, Vocabulary(()), Vocabulary(()))
    else:
        spaces = collection.query_ids, collection.passage_ids
        runs, queries, passages = read_runs(places, *spaces, collection=collection.digest)
        for number, (place, run) in enumerate(zip(given, runs, strict=True), 1):
            warn_of_unknown(named(place, number), run, collection, queries, passages)
    return runs, queries, passages, passages.id_rank


def warn_of_unknown(name: str, run: Run, collection: Collection, queries: IdSpace, passages: IdSpace) -> None:
    """Warn of ids in a run that the collection does not have; they stay in the fused run."""
    for kind, rows, size, space in (
        ("query", run.query_rows, collection.n_queries, queries),
        ("passage", run.passage_rows, collection.n_passages, passages),
    ):
        strange = distinct(rows[rows >= size])
        if len(strange):
            found, first = counted(len(strange), f"{kind} id"), space.take(strange[:1])[0]
            what = "%s: %s not in the collection, such as %.80r; kept in the fused run"
            log.warning(what, name, found, first)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The split and the measure that weights are tuned for, and the names of the runs.

    Attributes
    ----------
    given : all runs, also those that are fused: the dev of an experiment among them may be held out of train.
    """

    split: str
    measure: Measure
    names: tuple[str, ...]
    given: tuple[AnyRun, ...] = ()

    def best(
        self, runs: Sequence[Run], collection: Collection, cache: Path, *, fusion: Fusion, k: int, id_rank: Int32
    ) -> Tuned:
        """The weights of the best fusion of these runs; raises what :func:`fuse` names."""
        if trained := experiments_of(self.given):
            judged = judged_split(collection, self.split, trained)
        else:
            judged = named_split(collection, self.split, "tune")

        def evaluation(run: Run) -> Evaluation:
            options: dict[str, Any] = {"collection": collection, "cache": cache, "id_rank": None}
            return evaluate_with_answers(run, judged, [self.measure], **options)

        there = [of_queries(run, judged.query_rows) for run in runs]
        for name, run in zip(self.names, there, strict=True):
            check_overlap(name, evaluation(run), f"split '{self.split}'", fix=TUNE_ON)
        own = devs_of(collection, trained) if self.split == "dev" else {}
        check_limited(self.given[-len(runs) :], runs, own)
        # a query that is a passage itself is no hit, but stands in the lists that are fused and written
        depth = min(k, self.measure.depth + bool(len(own_hits(judged.positives(), collection)[0])))
        with track("tuning weights", "mixtures") as tick:
            return tune_weights(
                there,
                lambda run: evaluation(run).means[str(self.measure)],
                fusion=fusion,
                k=depth,
                id_rank=id_rank,
                progress=tick,
            )


def check_tuning(
    runs: Sequence[AnyRun],
    weights: Sequence[float] | None,
    data: Data | None,
    tune: str | None,
    tuning_runs: Sequence[AnyRun],
    measure: str | None,
) -> Tuning | None:
    """The tuning that is asked for, or None; raises :class:`SettingsError` if the settings contradict."""
    if tune is None:
        if tuning_runs:
            what = "runs to tune on are given, but no split to tune on"
            raise SettingsError("BAD_TUNING", what, "give --tune dev too, or leave them out")
        if measure is not None:
            what = f"{measure} is given to tune for, but no split to tune on"
            raise SettingsError("BAD_TUNING", what, "give --tune dev too, or leave it out")
        return None
    if weights is not None:
        what = "weights are given, but you asked to tune them"
        raise SettingsError("BAD_TUNING", what, "give either --weights or --tune")
    if data is None:
        what = f"tuning on the split '{tune}' needs a collection"
        raise SettingsError("BAD_TUNING", what, "give --data too")
    if tuning_runs and len(tuning_runs) != len(runs):
        what = f"there are {len(tuning_runs)} runs to tune on for {len(runs)} to fuse"
        raise SettingsError("BAD_TUNING", what, "give one for each, in the same order")
    measures = parse_measures(measure or TUNED_FOR)
    if len(measures) != 1:
        raise SettingsError("BAD_TUNING", f"there are {len(measures)} measures", "tune for one measure")
    names = tuple(named(run, number) for number, run in enumerate(tuning_runs or runs, 1))
    return Tuning(tune, measures[0], names, (*runs, *tuning_runs))


# ---------------------------------------------------------------- re-ranking


@checked
def rerank(
    run: Place,
    out: Place,
    *,
    data: Data,
    ranker: Place,
    k: int = RERANKED,
    embeddings: Place | None = None,
    split: str = "test",
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> dict[str, Any]:
    """Re-rank the first hits of each query of a run file by a model; write the run at ``out``.

    Parameters
    ----------
    run : TREC or MS MARCO, over the queries and passages of ``data``; or an experiment, which stands for the run
        of its final model.
    split : of this run; another one than test is refused with a file, which has the queries that it has.
    out : the file of the new run, gzipped if its name ends in ``.gz``; an existing file is replaced, but ``run``
        is refused. The first ``k`` hits get the ranker's scores, and the others follow below them in their old
        order (:func:`~hardneg.search.rerank.rerank`).
    ranker : a model that scores pairs; see :func:`open_scorer`.
    k : how many hits of each query are re-ranked.
    embeddings : for a bi-encoder: the corpus as :func:`~hardneg.api.search.encode` embedded it. By default the
        embeddings in the cache are used, and made if they are not there.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Returns
    -------
    ``run`` (the place), ``queries``, ``hits`` and ``reranked``, the pairs that were scored.

    Raises
    ------
    SettingsError : a setting is wrong, or the model cannot be read in this way; ``out`` is ``run``.
    InputError : a malformed line of the run, or ids that the collection does not have.
    ArtifactError : the run is of another collection; embeddings are damaged or of another model.
    NumericError : the ranker gives a score that is no number.
    """
    at_least("k", k)
    check_idle_split(split, [run])
    check_inputs(run)
    check_apart(out, [run], [split])
    check_file(Path(out), [data], told=True)
    collection = collection_of(data, cache)
    queries, passages = collection.query_ids, collection.passage_ids
    given = ranked(run, split, collection)
    source = source_at(model_place(ranker, "ranker"), **reading)
    found = reranked(given, open_scorer(source, collection, cache_at(cache), embeddings=embeddings), collection, k)
    write_run(Path(out), found, queries, passages)
    pairs = int(np.minimum(spans(found.offsets), k).sum())
    return {"run": str(out), "queries": len(found), "hits": len(found.scores), "reranked": pairs}


def reranked(run: Run, scorer: PairScorer, collection: Collection, k: int) -> Run:
    """The run with its first ``k`` hits of each query re-ranked; a fault in a score names the pair's ids."""
    from hardneg.search.rerank import rerank as rerank_run

    def name(query: int, passage: int) -> str:
        return f"query {collection.query_ids[query]} and passage {collection.passage_ids[passage]}"

    with track("re-ranking", "pairs") as tick:
        return rerank_run(run, scorer, k, name=name, progress=tick)


def open_scorer(
    source: ModelSource,
    collection: Collection,
    cache: Path,
    *,
    embeddings: Place | None = None,
    as_trained: bool = False,
) -> ModelScorer:
    """A scorer of pairs of a collection's queries and passages by this model, whose folder says its kind.

    A cross-encoder reads each pair; for a bi-encoder, the corpus is embedded first.

    Parameters
    ----------
    as_trained : a bi-encoder reads queries as long as training steps do, not as long as search does.

    Raises
    ------
    SettingsError : embeddings or prompts, which only a bi-encoder has, are given with a cross-encoder. Faults of
        loading the model are raised, too.
    """
    from hardneg.search.scorers import maybe_ranker, ranker_scorer

    ranker = maybe_ranker(source)
    if ranker is None:
        from hardneg.api.retrievers import retriever_for
        from hardneg.search.rerank import RetrieverScorer

        retriever = retriever_for(source, collection, cache, embeddings=embeddings)
        return RetrieverScorer(retriever, as_trained=as_trained)
    if embeddings is not None or any(getattr(source, name) is not None for name in PROMPTS):
        what = "embeddings or prompts are given, but the ranker is a cross-encoder, which has none"
        raise SettingsError("BAD_SETTING", what, "leave them out")
    return ranker_scorer(ranker, collection, cache)

"""Mining once, for any trainer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from hardneg.api.external import has_token_ids, negatives_digest, open_negatives
from hardneg.api.inputs import (
    Data,
    Place,
    Reading,
    amended_by,
    at_least,
    cache_at,
    check_all,
    check_inputs,
    check_new,
    check_read,
    collection_of,
    holding,
    of_all_processes,
    of_second_model,
    one_of,
    source_at,
)
from hardneg.api.inspect import last_pool
from hardneg.api.retrievers import retriever_with_runs
from hardneg.api.score import check_bounds, open_guide
from hardneg.arguments import checked
from hardneg.data.collection import Collection
from hardneg.data.training_data import BY_QRELS, Labels, TrainingData, labelled, named_split
from hardneg.errors import SettingsError
from hardneg.models.source import ModelSource
from hardneg.negatives.candidates import ALL, Filters, check_scores
from hardneg.negatives.facts import warn_if_empty
from hardneg.negatives.imported_pool import check_answerable
from hardneg.negatives.labels import answers_of, current_positives
from hardneg.negatives.mining import TELEPORTED, Corpus, Miner, check_sources, mine_pool
from hardneg.negatives.pool import NegativePool, load_pool, open_pool, save_pool
from hardneg.negatives.scores import Guide
from hardneg.process.agreement import check_told_alike
from hardneg.process.distributed import by_leader, group, is_leader
from hardneg.process.progress import note
from hardneg.records import Run
from hardneg.search.bm25 import bm25_run
from hardneg.search.retriever import CachedRetriever
from hardneg.storage.artifacts import read_manifest

HALF = 0.5  # the default of both shares


@checked
@group()
def mine(
    data: Data,
    model: Place | None,
    out: Place,
    *,
    split: str = "train",
    sources: Sequence[str] = ("query", "lookahead"),
    depth: int = 200,
    count: int = 30,
    previous: Place | None = None,
    file: Place | None = None,
    alpha: float = HALF,
    beta: float = HALF,
    filters: Filters = ALL,
    filter_by: Place | None = None,
    labels: Labels | Literal["qrels", "answers"] = BY_QRELS,
    judgements: Place | None = None,
    seed: int = 42,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> NegativePool:
    """Mine negatives once, for any trainer, publish them as a pool at ``out`` and return it.

    Under ``torchrun`` the processes share the work: all of them encode and search, and rank 0 mines. So call it in
    all of them. A process of a group that a program of yours has opened works alone.

    Parameters
    ----------
    model : not needed (None) where only ``random`` and ``bm25`` are mined.
    out : a new folder; a pool is never replaced.
    sources : of ``random``, ``bm25``, ``query`` (passages near the query), ``lookahead`` (passages near the
        positive) and ``file``.
    depth : negatives are drawn from this many first hits of a run. The lists and pools that ``file`` may name are
        not cut.
    count : negatives of a query from each source. ``query`` and ``lookahead`` together have the sum of their
        counts, of which ``beta`` is the share of ``lookahead``.
    previous : the pool of the round before, or an experiment: then its last pool. Its negatives (momentum) are
        mixed with the newly mined ones in the proportion ``alpha`` : 1 - ``alpha``.
    file : what the source ``file`` takes: a run, a pool, or JSON of negatives by passage id (Tevatron's, DPR's) or
        as token ids (ANCE-Tele's ``split*.hn.json``, a file or their folder; they need ``model``).
    filters : bounds on rank, score and margin to the positive's score. For the source ``file``, they apply to the
        ranks and scores in a run or a pool; lists of ids, texts or tokens have neither.
    filter_by : a model, a cross-encoder or a bi-encoder, whose scores the bounds apply to. The pool keeps these
        scores, as it does those of :func:`~hardneg.api.score.score`. None: the bounds apply to the scores of the
        model that mines.
    labels : what makes a passage a positive: ``qrels`` or ``answers``; with ``answers``, a passage that contains
        an answer is never a negative. ``hardneg.data.training_data.Labels`` holds more choices.
    judgements : a file of people's judgements, as the audit's page saves it. Passages labelled relevant are not
        mined as negatives, and passages labelled positive are positives.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how the model is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Raises
    ------
    SettingsError : a setting is wrong, or something stands at ``out``.
    InputError : no query of the split has a positive, or none an answer.
    ArtifactError : ``previous`` is damaged or belongs to another collection.
    BusyError : another process mines into ``out``.
    """
    out, folder = Path(out), cache_at(cache)
    labels = labels_named(labels) if isinstance(labels, str) else labels
    check_new(out)
    _, settings, *_ = check_all(
        partial(check_sources, sources, by_model=model is not None, has_file=file is not None),
        partial(check_settings, sources, depth, count, alpha, beta, seed),
        partial(check_momentum, sources, previous),
        labels.check,
        partial(check_filters, filters, filter_by, sources),
        partial(check_shares, sources, previous, alpha=alpha, beta=beta),
        partial(check_inputs, previous, file, judgements),
        partial(check_read, model, reading),
    )
    note_window(filters, depth, sources)
    needs_model = bool(set(TELEPORTED) & set(sources))
    source = None if model is None else source_at(model, **reading)
    with holding(out, folder) if is_leader() else contextlib.nullcontext():
        collection = collection_of(data, cache)
        told = {"split": split, "labels": dataclasses.asdict(labels), "filters": dataclasses.asdict(filters)}
        check_told_alike({**settings, **told, "data": collection.digest, **of_all_processes(reading)})
        parts = data_of(collection, split, labels, judgements)
        inputs = open_mining_inputs(parts, folder, source, needs_model=needs_model, previous=previous, file=file)
        if isinstance(inputs.external, NegativePool) and set(sources) == {"file"}:
            ours = inputs.external.align(parts.train)
            check_answerable(ours, filters if filter_by is None else filters.on_ranks)
        if not needs_model:
            note_idle(model, sources, file)
        if filter_by is not None:
            inputs = inputs.guided(guide_by(filter_by, parts.collection, folder, reading))
        check_told_alike(inputs.digests)
        if isinstance(inputs.corpus, CachedRetriever):
            check_told_alike({"precision": inputs.corpus.encoding.precision})
            inputs.corpus.open_together(as_trained=True)

        made: list[NegativePool] = []

        def publish() -> None:
            pool = mine_from(inputs, parts, folder, filters=filters, **settings)
            warn_if_empty(pool, unread_language(pool, parts, sources, folder))
            besides = {"split": split, "filters": dataclasses.asdict(filters), **dataclasses.asdict(labels)}
            save_pool(pool, out, settings={**settings, **besides}, inputs=inputs.digests)
            made.append(pool)

        by_leader(publish)
    return made[0] if made else load_pool(out)


@dataclasses.dataclass(frozen=True)
class MiningInputs:
    """All that negatives are mined from, opened.

    Attributes
    ----------
    corpus : the collection, with a model over it if one is needed.
    previous : the pool of the round before.
    external : the negatives that the source ``file`` draws from.
    digests : the digests of all inputs, by name.
    guide : the model whose scores the bounds apply to; None: the model that mines.
    """

    corpus: Miner | Corpus
    previous: NegativePool | None
    external: Run | NegativePool | None
    digests: Mapping[str, str]
    guide: Guide | None = None

    def guided(self, guide: Guide) -> MiningInputs:
        """A copy of the inputs with a guide, whose digest joins the others."""
        return dataclasses.replace(self, guide=guide, digests={**self.digests, "filter_by": guide.digest})


def guide_by(place: Place, collection: Collection, cache: Path, reading: Mapping[str, Any]) -> Guide:
    """The model at ``place`` as a guide; of ``reading``, it uses only ``allow_bin`` and ``device``."""
    return open_guide(source_at(place, **of_second_model(reading)), collection, cache)


def open_mining_inputs(
    parts: TrainingData,
    cache: Path,
    source: ModelSource | None,
    *,
    needs_model: bool,
    previous: Place | None,
    file: Place | None,
) -> MiningInputs:
    """Open all that negatives are mined from; parameters as of :func:`mine`."""
    collection = parts.collection
    before = None if previous is None else last_pool(Path(previous))
    pool = None if before is None else open_pool(before, collection)
    digests = {"collection": collection.digest}
    if parts.judgements is not None:
        digests["judgements"] = parts.judgements.digest
    if before is not None:
        digests["previous"] = read_manifest(before).digest
    external = None
    if file is not None:
        external = open_negatives(Path(file), collection, parts.train, source, cache=cache)
        digests["file"] = negatives_digest(Path(file))
    if not needs_model:
        return MiningInputs(Corpus(collection, cache), pool, external, digests)
    assert source is not None
    retriever = retriever_with_runs(source, collection, cache)
    return MiningInputs(retriever, pool, external, digests | {"model": retriever.digest})


def mine_from(
    inputs: MiningInputs,
    parts: TrainingData,
    cache: Path,
    *,
    sources: Sequence[str],
    count: int,
    depth: int,
    **settings: Any,
) -> NegativePool:
    """Mine and mix; other settings as of :func:`~hardneg.negatives.mining.mine_pool`."""
    contains = answers_of(parts, cache)
    return mine_pool(
        inputs.corpus,
        current_positives(inputs.corpus, parts, depth, contains),
        inputs.previous,
        sources=sources,
        count=count,
        depth=depth,
        episode=1 if inputs.previous is None else inputs.previous.episode + 1,
        size=count * len(set(TELEPORTED) & set(sources)),
        contains=contains,
        given=inputs.external,
        guide=inputs.guide,
        by_answers=parts.by_answers,
        **settings,
    )


def unread_language(pool: NegativePool, parts: TrainingData, sources: Sequence[str], cache: Path) -> str | None:
    """The language as which BM25 read the texts, if it found nothing at all for the queries of an empty pool."""
    if len(pool.passage_rows) or "bm25" not in sources:
        return None
    found = bm25_run(parts.collection, parts.train.query_rows, 1, cache)
    return None if len(found.passage_rows) else parts.collection.language


def data_of(collection: Collection, split: str, labels: Labels, judgements: Place | None = None) -> TrainingData:
    """The queries of a split that can be mined for, with positives by ``labels`` and a file of judgements."""
    parts = TrainingData(collection, named_split(collection, split, "split").positives(), None, None)
    return labelled(amended_by(parts, judgements), dataclasses.asdict(labels))


# ---------------------------------------------------------------- settings, checked before any computing


def labels_named(name: str) -> Labels:
    """The labels of this name; their other fields keep their defaults."""
    return Labels(one_of("--labels", name, ("qrels", "answers")))


def check_settings(
    sources: Sequence[str], depth: int, count: int, alpha: float, beta: float, seed: int
) -> dict[str, Any]:
    """Check that each setting of a mixed pool is in its range; returns them by name."""
    checks: dict[str, Callable[[], Any]] = {
        "depth": partial(at_least, "depth", depth),
        "count": partial(at_least, "count", count),
        "alpha": partial(share, "alpha", alpha),
        "beta": partial(share, "beta", beta),
        "seed": partial(at_least, "seed", seed, 0),
    }
    return {"sources": list(sources), **dict(zip(checks, check_all(*checks.values()), strict=True))}


def share(name: str, value: float) -> float:
    """Check that the setting ``name`` is a share of a whole, 0 or more and less than 1; returns it."""
    if not 0 <= value < 1:
        raise SettingsError("BAD_SETTING", f"{name} = {value}", "give 0 or more and less than 1")
    return value


def check_momentum(sources: Sequence[str], previous: Place | None) -> None:
    """Refuse ``previous`` without the source ``query``, which momentum is mixed with."""
    if previous is not None and sources and "query" not in sources:
        what = f"momentum joins query negatives, the sources are {', '.join(sources)}"
        raise SettingsError("NO_MOMENTUM", what, "add query to the sources, or leave --previous out")


def check_shares(sources: Sequence[str], previous: Place | None, *, alpha: float, beta: float) -> None:
    """Refuse shares of what is not mixed: of momentum without ``previous``, of lookahead without both sources."""
    if previous is None and 0 < alpha < 1 and alpha != HALF:
        what = f"alpha = {alpha}, and there is no pool of the round before, whose share it is"
        raise SettingsError("BAD_SETTING", what, "give --previous, or leave it out")
    if 0 < beta < 1 and beta != HALF and not set(TELEPORTED) <= set(sources):
        missing = " and ".join(name for name in TELEPORTED if name not in sources)
        what = f"beta = {beta} divides negatives between query and lookahead, but the sources lack {missing}"
        raise SettingsError("BAD_SETTING", what, "name both, or leave beta out")


def note_window(filters: Filters, depth: int, sources: Sequence[str]) -> None:
    """Say if a window of ranks lies beyond the hits that are mined from, or ends there."""
    named = {"rank_from": filters.rank_from, "rank_to": filters.rank_to or 0}
    beyond = [f"{name} = {value}" for name, value in named.items() if value > depth]
    if beyond and set(sources) != {"random"} and is_leader():
        what = f"negatives come from the first {depth} hits that are no positives"
        note(f"{' and '.join(beyond)} with depth = {depth}: {what}")


def note_idle(model: Place | None, sources: Sequence[str], file: Place | None) -> None:
    """Say that a model is given which neither these sources nor token ids in a file need."""
    if model is not None and is_leader() and not (file is not None and has_token_ids(Path(file))):
        note(f"no effect of model = {model}: no model mines {' and '.join(sources)} negatives")


def check_filters(filters: Filters, filter_by: Place | None = None, sources: Sequence[str] = ()) -> None:
    """Refuse bounds that are not finite, or that a source has no scores for; and a model without a bound."""
    if filter_by is None:
        check_scores(sources, filters, by_model=bool(set(TELEPORTED) & set(sources)))
    if filter_by is not None and filters.on_scores == ALL:
        what = "a model is given to filter by, and no bound on its scores"
        fix = "give --relative-margin, --absolute-margin, --max-score or --top, or leave --filter-by out"
        raise SettingsError("NO_BOUND", what, fix)
    check_bounds(filters)

"""Suspected false negatives of a pool or an experiment, with texts, for people. Loads torch only for a model."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from hardneg import keyed_random
from hardneg.api.inputs import (
    Data,
    Place,
    Reading,
    at_least,
    cache_at,
    check_all,
    check_beside_sources,
    check_file,
    check_inputs,
    check_read,
    collection_of,
    judgements_of,
    model_place,
    of_second_model,
    source_at,
)
from hardneg.api.inspect import last_pool
from hardneg.api.suspects import suspects, write_table
from hardneg.arguments import checked
from hardneg.config import nearest
from hardneg.data.collection import Collection
from hardneg.data.judgements import Judgements
from hardneg.data.own_passages import own_hits
from hardneg.diagnostics.audit import KINDS, Pairs, StateRun, audit_pairs
from hardneg.diagnostics.audit_page import audit_page
from hardneg.errors import ArtifactError, HardnegError, InputError, SettingsError
from hardneg.evaluation.answers import AnswerCache
from hardneg.experiment.folder import kept_judgements, read_settings
from hardneg.experiment.layout import Layout, run_of
from hardneg.experiment.margins import NONE, Margins, mean_margins, read_margins
from hardneg.experiment.names import BM25
from hardneg.experiment.provenance import collection_within
from hardneg.experiment.so_far import states_so_far
from hardneg.experiment.states import ends_of, read_states, without_copy
from hardneg.negatives.facts import EMPTY
from hardneg.negatives.pool import NegativePool, open_pool
from hardneg.process.progress import note
from hardneg.records import Float32, Int32, Run, owners, pair_keys, spans
from hardneg.search.bm25 import bm25_run
from hardneg.search.runs import load_run
from hardneg.shown import counted
from hardneg.storage.artifacts import is_published, publish_file

log = logging.getLogger(__name__)

DEPTH = 200  # of the runs that are made here
QUERY = "query"  # the name of the run of the training queries


@checked
def audit(
    path: Place,
    data: Data | None = None,
    *,
    model: Place | None = None,
    ranker: Place | None = None,
    bm25: bool = True,
    judgements: Place | None = None,
    thresholds: Mapping[str, float] | None = None,
    most: int = 200,
    out: Place | None = None,
    page: Place | None = None,
    cache: Place | None = None,
    **reading: Unpack[Reading],
) -> dict[str, Any]:
    """Find negatives of a pool that are probably relevant, the most suspected first, with texts.

    The signals are those of :data:`~hardneg.diagnostics.audit.KINDS`; a signal that cannot be known is left out,
    and the result says why. :func:`~hardneg.diagnostics.audit.suspicion` combines them.

    Parameters
    ----------
    path : a pool, or an experiment: then its last pool, and the runs of all its states.
    data : the collection; by default that of the experiment, from the place that the experiment remembers.
    model : a model that searches the queries of the pool and counts as the newest state. A pool outside an
        experiment has no other state.
    ranker : a cross-encoder or a bi-encoder that scores pairs; without it, the scores that the pool holds are
        used.
    bm25 : also search the queries of the pool with BM25, which takes long for very many queries. Otherwise the
        BM25 lists that the experiment kept are used, if it kept a list for every query of the pool.
    judgements : a file of people's judgements, as the audit's page saves it. Pairs that it labels are left out,
        and so are those that the experiment was trained with; where both label a pair, the file counts.
    thresholds : for each signal, the least value at which it fires.
    most : pairs to return and to write.
    out : write the pairs as a table, tab-separated with texts, replacing what is there.
    page : write a page to look at the pairs and label them by keyboard, replacing what is there.
    reading : ``passage_model``, ``allow_bin``, ``prompts``, ``query_prompt``, ``passage_prompt``,
        ``query_length``, ``passage_length``, ``device``: how ``model`` is read, see
        :class:`~hardneg.api.inputs.Reading`.

    Returns
    -------
    ``pool``, ``queries``, ``pairs`` (distinct pairs of a query and a negative), ``suspected`` (pairs for which a
    signal fires), ``judged`` (pairs left out: people labelled them, or a split of the collection judges them not
    relevant and no other split relevant); ``signals``: for each ``signal`` its ``threshold``, ``pairs``,
    ``queries``, ``by_source`` and ``meaning``; ``left_out``: for each signal that is not known, why; ``sources``:
    for each ``source`` its ``pairs``, ``suspected`` and ``share``; ``suspects``: the pairs by suspicion, see
    :func:`~hardneg.api.suspects.suspect_facts`.

    Raises
    ------
    SettingsError : an unknown signal, a threshold that is not a number; it is not recorded where the collection
        is; the model cannot be read in this way.
    ArtifactError : the pool is damaged or was mined from another collection.
    InputError : a line of the judgements is wrong; the pool has no negatives.
    """
    at_least("--most", most)
    check_read(model, dict(reading))
    check_all(
        *(partial(check_threshold, *one) for one in (thresholds or {}).items()),
        *(partial(check_file, Path(file), [path, data, judgements]) for file in (out, page) if file is not None),
        partial(check_two, out, page),
        partial(check_inputs, path, judgements),
    )
    world = open_world(Path(path), data, cache)
    if out is not None:  # the data of the collection may lie where the table goes
        check_beside_sources(Path(out), world.collection)
    if not len(world.pool.passage_rows):
        fix = "mine some (hardneg mine --data DATA --model EXPERIMENT --out POOL), and audit POOL"
        raise InputError("NO_NEGATIVES", EMPTY, fix, path=world.place)
    known = known_judgements(world, judgements)
    gathered = evidence(world, model=model, ranker=ranker, bm25=bm25, reading=reading)
    facts = facts_of(world, gathered, known, thresholds=thresholds, most=most)
    if out is not None:
        write_table(Path(out), facts["suspects"], [one["signal"] for one in facts["signals"]])
    if page is not None:
        with publish_file(Path(page)) as stream:
            stream.write(audit_page(facts, known))
    return facts


def check_two(out: Place | None, page: Place | None) -> None:
    """Refuse a table and a page in one file."""
    if out is not None and page is not None and Path(out).absolute() == Path(page).absolute():
        what = "the table and the page are one file"
        raise SettingsError("EXISTS", what, "give another --page", path=Path(page))


def facts_of(
    world: World,
    gathered: Evidence,
    known: Judgements | None,
    *,
    thresholds: Mapping[str, float] | None = None,
    most: int = 200,
) -> dict[str, Any]:
    """What an audit of the pool finds, as :func:`audit` returns it.

    Parameters
    ----------
    known : judgements of people; pairs that they label are left out.
    """
    every = Pairs.of(world.pool)
    pairs = unlabelled(every, known, world.collection)
    found = audit_pairs(pairs, thresholds=thresholds, **gathered.given)
    order = found.ranking()
    facts: dict[str, Any] = {"pool": str(world.place), "queries": len(world.pool), "pairs": len(pairs)}
    facts |= {"suspected": len(order), "judged": len(every) - len(pairs), "signals": found.counts()}
    facts |= {"left_out": gathered.left_out, "sources": found.sources()}
    return facts | {"suspects": suspects(world.collection, found, order[:most].tolist())}


def audit_last_pool(
    experiment: Path, pool: NegativePool, collection: Collection, cache: Path, *, sample: Sampling
) -> dict[str, Any]:
    """Audit the last pool of an experiment for its report, without a model and with the BM25 lists that it kept.

    If the pool has very many negatives, only those of randomly drawn queries are audited, so that time and memory
    do not grow with the pool.

    Parameters
    ----------
    pool : the last pool of the experiment, already open.
    collection : the collection that the pool was mined from.

    Returns
    -------
    What :func:`audit` returns. ``queries`` and ``pairs`` count what was looked at; ``of_queries`` and
    ``of_entries`` count the queries and the entries of the whole pool.
    """
    place = last_pool(experiment)
    whole = World(place, pool, collection, cache, experiment)
    kept = whole.bm25_lists()
    part = sample.of(pool, None if kept is None else kept.query_rows)
    world = whole if part is None else replace(whole, pool=pool.select(part))
    gathered = evidence(world, model=None, ranker=None, bm25=False, reading={})
    facts = facts_of(world, gathered, world.judgements)
    return facts | {"of_queries": len(pool), "of_entries": len(pool.passage_rows)}


@dataclass(frozen=True)
class Sampling:
    """Which queries of a pool are audited: all of them, or a random sample if the pool is too large.

    Attributes
    ----------
    most : a pool with at most this many entries is audited whole.
    about : of a larger pool, queries are drawn that have at most this many entries together; at least one is
        drawn.
    seed : the queries are drawn by a keyed hash of their rows, so the same ones come again.
    """

    most: int = 1_000_000
    about: int = 100_000
    seed: int = 0

    def of(self, pool: NegativePool, better: Int32 | None = None) -> NDArray[np.int64] | None:
        """The positions [n] of the queries that are drawn, ascending; None: the whole pool is audited.

        Parameters
        ----------
        better : rows of randomly drawn queries of which more is known, such as kept BM25 lists. If the pool has
            any of them, only these are drawn.
        """
        if len(pool.passage_rows) <= self.most:
            return None
        known = np.flatnonzero(np.isin(pool.query_rows, [] if better is None else better))
        some = known if len(known) else np.arange(len(pool))
        words = keyed_random.hash64(keyed_random.key(self.seed, "report/audit"), pool.query_rows[some])
        drawn = some[np.argsort(words, kind="stable")]
        entries = np.cumsum(spans(pool.offsets)[drawn])
        return np.sort(drawn[: max(int(np.searchsorted(entries, self.about, "right")), 1)])


def check_threshold(name: str, value: float) -> None:
    """Refuse a threshold of no signal, or one that is no number: it would fire for no pair."""
    if name not in KINDS:
        what = f"--threshold {name:.60}={value:g}: there is no signal '{name:.60}'"
        raise SettingsError("BAD_SETTING", what, nearest(name, tuple(KINDS)))
    if not math.isfinite(value):
        raise SettingsError("BAD_SETTING", f"--threshold {name}={value}", "give a number")


# ---------------------------------------------------------------- what is looked at


@dataclass(frozen=True)
class World:
    """A pool, its collection, and the experiment that it belongs to, if any."""

    place: Path
    pool: NegativePool
    collection: Collection
    cache: Path
    experiment: Path | None

    @property
    def judgements(self) -> Judgements | None:
        """What people judged before the experiment was trained."""
        return None if self.experiment is None else kept_judgements(self.experiment, self.collection)

    def states(self) -> list[StateRun]:
        """What the states of the experiment retrieve for its training queries, in the order of training."""
        if self.experiment is None:
            return []
        found = {}
        for name, runs in _runs_of(Layout(self.experiment)):
            place = run_of(runs, QUERY)
            if is_published(place):
                try:
                    found[name] = StateRun(name, load_run(place))
                except ArtifactError as fault:
                    log.warning("%s; the audit leaves this state out", fault)
        return [one for one in found.values() if one.run.collection == self.collection.digest]

    def margins(self) -> Margins:
        """The training margins that the experiment kept; empty if it kept none."""
        try:
            if self.experiment is None:
                return NONE
            layout = Layout(self.experiment)
            states = read_states(layout.path) if layout.states.is_file() else []
            return read_margins(layout.margins, ends_of(states))
        except ArtifactError as fault:
            log.warning("%s; the audit leaves them out", fault)
            return NONE

    def kept_bm25(self) -> Run | None:
        """The BM25 lists that the experiment kept; None if a query of the pool has no such list."""
        run = self.bm25_lists()
        return run if run is not None and np.isin(self.pool.query_rows, run.query_rows).all() else None

    def bm25_lists(self) -> Run | None:
        """The BM25 lists that the experiment kept, often only for some queries; None if there are none to use."""
        place = None if self.experiment is None else run_of(Layout(self.experiment).runs_of(BM25), QUERY)
        if place is None or not is_published(place):
            return None
        try:
            run = load_run(place)
        except ArtifactError as fault:
            log.warning("%s; the audit leaves these lists out", fault)
            return None
        return run if run.collection == self.collection.digest else None


def _runs_of(layout: Layout) -> Iterator[tuple[str, Path]]:
    """Name and folder of runs of every state: as the experiment lists them, or those so far if it does not."""
    listed = layout.states.is_file()
    states = read_states(layout.path) if listed else states_so_far(layout, read_settings(layout.path))
    for state in without_copy(states):
        if state.runs is not None and state.of is None:
            yield state.name, layout / state.runs


def open_world(path: Path, data: Data | None, cache: Place | None) -> World:
    """The pool at ``path``, or the last one of the experiment there, with its collection."""
    place = last_pool(path)
    collection = collection_within(place) if data is None else collection_of(data, cache)
    pool = open_pool(place, collection)
    above = [one for one in (place.absolute(), *place.absolute().parents) if Layout(one).settings.is_file()]
    return World(place, pool, collection, cache_at(cache), above[0] if above else None)


def known_judgements(world: World, place: Place | None) -> Judgements | None:
    """What people judged: in the file at ``place``, and before the experiment was trained.

    The page saves both with the new labels, so a training with the saved file does not lose the earlier ones.
    """
    given, kept = judgements_of(place, world.collection), world.judgements
    if given is None or kept is None:
        return given or kept
    found = kept.overridden_by(given)
    note(
        f"{place}: its {counted(len(given.labels), 'label')} and those that the experiment was trained with,"
        f" {len(found.labels):,} in all"
    )
    return found


def unlabelled(pairs: Pairs, known: Judgements | None, collection: Collection) -> Pairs:
    """The pairs that may be false negatives and still need a person's look.

    No person gave them a label but "unsure", and no split judges them not relevant, unless another one judges them
    relevant. Such a pair is a false negative: a pool leaves out the positives of its own training alone.
    """
    keys = pair_keys(pairs.query_rows, pairs.passage_rows)
    refused, relevant = np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
    for split in collection.splits:
        qrels = collection.qrels(split)
        judged = pair_keys(qrels.query_rows[owners(qrels.offsets)], qrels.passage_rows)
        refused |= np.isin(keys, judged[qrels.grades <= 0])
        relevant |= np.isin(keys, judged[qrels.grades > 0])
    pairs = pairs.keep(~refused | relevant)
    if known is None:
        return pairs
    labelled = known.are(pairs.query_rows, pairs.passage_rows, "positive", "relevant", "negative")
    return pairs.keep(~labelled)


@dataclass(frozen=True)
class Evidence:
    """Arguments of :func:`~hardneg.diagnostics.audit.audit_pairs`, and why those of some signals are missing."""

    given: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def evidence(
    world: World, *, model: Place | None, ranker: Place | None, bm25: bool, reading: Mapping[str, Any]
) -> Evidence:
    """Gather all that can be known of the pairs of a pool; parameters as for :func:`audit`."""
    collection, found = world.collection, Evidence()
    found.given["text_of"] = collection.texts.__getitem__
    if collection.has_answers:
        found.given["answers"] = AnswerCache(collection, world.cache, answer_mode(world)).contains
    else:
        found.left_out["answer"] = "the collection has no answers"
    if ranker is not None:
        found.given["score"] = scorer(world, ranker, reading)
    elif world.pool.ranker_scores is None:
        found.left_out["ranker"] = "no ranker is given, and none scored the pool"
    states = world.states()
    if model is not None:
        states.append(StateRun(str(model), model_run(world, model, reading)))
    found.given.update(states=states, own=own_hits(world.pool.positives, collection))
    margins = world.margins()
    if len(margins.margins):
        found.given["leads"] = partial(mean_leads, margins)
    else:
        found.left_out["learned"] = "no margins of training are kept"
    if not states:
        for name in ("retriever", "both"):
            found.left_out[name] = "no runs of the training queries are kept, and no model is given"
    elif bm25:
        found.given["bm25"] = bm25_run(collection, world.pool.query_rows, DEPTH, world.cache)
    elif (kept := world.kept_bm25()) is not None:
        found.given["bm25"] = kept
    else:
        found.left_out["both"] = "BM25 was not searched"
    return found


def mean_leads(found: Margins, query_rows: Int32, passage_rows: Int32) -> Float32:
    """By how much each passage [n] scored above its query's positive, mean over the steps that drew the pair."""
    return -mean_margins(found, query_rows, passage_rows)


def answer_mode(world: World) -> Any:
    """How the experiment matches answers (``answer_mode``); as strings if there is no experiment."""
    if world.experiment is None:
        return "string"
    with contextlib.suppress(HardnegError):
        return read_settings(world.experiment)["result_settings"].get("answer_mode", "string")
    return "string"


def scorer(world: World, ranker: Place, reading: Mapping[str, Any]) -> Callable[[Int32, Int32], Float32]:
    """Scores of pairs by the model at ``ranker``; of ``reading``, it uses only ``allow_bin`` and ``device``."""
    from hardneg.api.rank import open_scorer

    source = source_at(model_place(ranker, "ranker"), **of_second_model(reading))
    return open_scorer(source, world.collection, world.cache, as_trained=True).score


def model_run(world: World, model: Place, reading: Mapping[str, Any]) -> Run:
    """What a model retrieves for the queries of the pool."""
    from hardneg.api.retrievers import retriever_with_runs

    source = source_at(model, **reading)
    retriever = retriever_with_runs(source, world.collection, world.cache)
    depth = min(DEPTH, world.collection.n_passages)
    return retriever.search("audit", world.pool.query_rows, depth, as_trained=True)

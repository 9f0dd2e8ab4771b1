"""The runs that are compared, and the judgements that fit them. Loads no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardneg.api.inputs import AnyQrels, AnyRun, Data, Place, collection_of, is_experiment, model_place, opened_run
from hardneg.api.reopen import experiment_data
from hardneg.callers import in_callers_words
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import open_qrels, qrels_of, read_runs
from hardneg.data.ids import IdSpace
from hardneg.data.training_data import ChosenSplits, named_split
from hardneg.errors import ArtifactError, InputError, SettingsError
from hardneg.experiment.folder import FORMAT, SPLITS, read_settings, splits_of
from hardneg.experiment.layout import Layout
from hardneg.experiment.names import few_of_dev
from hardneg.experiment.provenance import collection_within
from hardneg.experiment.so_far import dev_so_far
from hardneg.records import MIXED, Qrels, Run
from hardneg.search.fusion import check_alike
from hardneg.storage.safe_read import read_json

log = logging.getLogger(__name__)


def experiments_of(paths: Sequence[AnyRun]) -> list[Path]:
    """Choose the places that are experiments."""
    places = [Path(path) for path in paths if isinstance(path, str | Path)]
    return [path for path in places if path.is_dir() and is_experiment(Layout(path))]


def seeds_of_run(run: AnyRun) -> list[AnyRun]:
    """The experiments of single seeds in a folder that holds several; empty if it does not.

    Raises
    ------
    ArtifactError : some are not finished.
    """
    if not isinstance(run, str | Path):
        return []
    layout = Layout(Path(run))
    if layout.settings.is_file() or not layout.seeds():
        return []
    if not layout.results.is_file():
        what = "not all seeds of this experiment are trained"
        raise ArtifactError("NOT_FINISHED", what, "finish it by the command that began it", path=layout.path)
    return [layout.seed(seed).path for seed in read_json(layout.results)["seeds"]]


def check_split(split: str, paths: Sequence[AnyRun]) -> None:
    """Refuse a split beside a file of judgements, unless it says which run of an experiment is meant."""
    if split != "test" and not experiments_of(paths):
        what = f"split = {split}, but the judgements are those of qrels, whatever split they are of"
        raise SettingsError("BAD_SETTING", what, "leave one of them out")


def collection_of_experiment(paths: Sequence[AnyRun]) -> Collection | None:
    """The collection of the first of these places that is an experiment; None if none is.

    Raises
    ------
    ArtifactError : it has no model yet, or is one of several seeds, whose run could not be opened either.
    """
    found = experiments_of(paths)
    if not found:
        return None
    model_place(found[0])
    return collection_within(found[0])


def judged_split(collection: Collection, split: str, paths: Sequence[AnyRun]) -> Qrels:
    """The judgements of a split; ``dev`` and ``test`` are those that the experiments used, whatever their names.

    The dev may be held out of train, or drawn from a split. If the experiments drew different numbers of queries,
    the smallest dev is used, because it is a part of the others.

    Raises
    ------
    SettingsError : the collection has no such split, and no experiment has a dev.
    InputError : two experiments have devs of which neither is a part of the other, or different tests.
    """
    if split == "test":
        return named_split(collection, tested_on(paths) or split, "split")
    own = devs_of(collection, paths) if split == "dev" else {}
    same_dev(own)
    same_passages(own)
    if any(one.held_out or one.dev_queries is not None or one.dev != split for one in own.values()):
        devs = {place: experiment_data(place, collection).dev for place in own}
        return smallest_of({place: dev for place, dev in devs.items() if dev is not None})
    return named_split(collection, split, "split")


def smallest_of(devs: Mapping[Path, Qrels]) -> Qrels:
    """The smallest dev, of which all others must have the queries.

    Raises
    ------
    InputError : one lacks some of them: an older hardneg drew it in another way.
    """
    smallest = min(devs, key=lambda place: len(devs[place]))
    for place, dev in devs.items():
        if not np.isin(devs[smallest].query_rows, dev.query_rows).all():
            raise other_dev(place, smallest)
    return devs[smallest]


def other_dev(place: Path, first: Path) -> InputError:
    """The fault of an experiment whose dev has other queries than that of the first one."""
    what = f"its dev has other queries than that of {first}: another split, or others held out of train"
    return InputError("NO_OVERLAP", what, "compare them by --split test, or train them with one seed", path=place)


def tested_on(paths: Sequence[AnyRun]) -> str | None:
    """The split that the experiments among these places were tested on; None: there is none, or none says so.

    Raises
    ------
    InputError : two were tested on different splits.
    """
    first: tuple[Path, str] | None = None
    for place in experiments_of(paths):
        one = splits_told(place)
        if one is None or one.test is None:
            continue
        test = one.test
        first = first or (place, test)
        if test != first[1]:
            what = f"it was tested on the split '{test}', and {first[0]} on '{first[1]}'"
            raise InputError("NO_OVERLAP", what, "search with both of them, and compare these runs", path=place)
    return None if first is None else first[1]


def splits_told(place: Path, *, needed: bool = False) -> ChosenSplits | None:
    """The splits that an experiment names; None: it is of an older format, or its settings cannot be read.

    Raises
    ------
    ArtifactError : a newer hardneg began it; with ``needed``, also in place of None.
    """
    try:
        record = read_settings(place)
    except ArtifactError:
        if needed:
            raise
        return None
    older = record.get("format", 1) < FORMAT or not isinstance(record.get(SPLITS), Mapping)
    return None if older and not needed else splits_of(record, place)


def devs_of(collection: Collection, paths: Sequence[AnyRun]) -> dict[Path, ChosenSplits]:
    """The chosen splits of each place that is an experiment with a dev.

    An experiment of an older format, which does not record them, is left out: its dev is the collection's split
    ``dev``. If there is no such split, that is a fault.
    """
    found = {}
    for place in experiments_of(paths):
        one = splits_told(place, needed="dev" not in collection.splits)
        if one is not None and (one.held_out or one.dev is not None):
            found[place] = one
    return found


def same_dev(experiments: Mapping[Path, ChosenSplits]) -> None:
    """Refuse experiments with unrelated devs: a query that a run has no hits for would count as 0.

    Raises
    ------
    InputError : an experiment was judged on another split than the first one, or held out other training queries.
    """
    first: tuple[Path, tuple[Any, ...]] | None = None
    for place, one in experiments.items():
        held_out = bool(one.held_out)
        identity = (held_out, one.train, one.seed, one.measurable) if held_out else (held_out, one.dev)
        first = first or (place, identity)
        if identity != first[1]:
            raise other_dev(place, first[0])


def same_passages(experiments: Mapping[Path, ChosenSplits]) -> None:
    """Refuse experiments whose devs were judged among different passages.

    Raises
    ------
    InputError : dev was judged among other hits of BM25, or among all passages, than in the first experiment.
    """
    among = {place: dev_among(place, one) for place, one in experiments.items()}
    first = next(iter(among), None)
    for place, one in among.items():
        if first is not None and one != among[first]:
            what = f"its dev was evaluated on other passages than that of {first}"
            fix = "compare them by --split test, or train them with the same dev queries and dev_passages"
            raise InputError("NO_OVERLAP", what, fix, path=place)


def check_limited(paths: Sequence[AnyRun], runs: Sequence[Run], own: Mapping[Path, ChosenSplits]) -> None:
    """Warn of runs that rank few of the passages, unless all do; refuse those that rank different ones.

    Parameters
    ----------
    paths : what was given for each run.
    own : the splits of the experiments among them whose dev is meant; runs that an older one wrote say nothing.

    Raises
    ------
    InputError : two runs rank different parts of the passages.
    """
    few: list[tuple[Any, str, str]] = []
    first: tuple[Any, str] | None = None
    for number, (given, run) in enumerate(zip(paths, runs, strict=True), 1):
        place = Path(given) if isinstance(given, str | Path) else f"run {number}"
        splits = own.get(place) if isinstance(place, Path) else None
        among = dev_among(Path(place), splits) if splits else None
        if splits and among:
            fix = "take --split test" if splits.test else "give a test split, or train with dev_passages = none"
            few.append((place, f"its dev ranks the first {among[0]} passages of BM25 alone", fix))
        elif run.limited:
            fused = run.limited.startswith(MIXED)
            part = "one of the runs that are fused in it" if fused else "it"
            what = f"{part} ranks a part of the passages alone, as a dev with dev_passages does"
            few.append((place, what, "take --split test"))
        first = first or ((place, run.limited) if run.limited else None)
        if first and run.limited not in ("", first[1]):
            what = f"{place}: it does not rank the same part of the passages as {first[0]}"
            raise InputError("NO_OVERLAP", what, "compare runs that rank all passages: take --split test")
    told = (
        "%s: %s, so its figures are too high, and cannot be compared with those of a run that ranks all passages; "
    )
    for place, what, fix in few if len(few) < len(runs) or len(few) == 1 else ():
        log.warning(in_callers_words(told + fix), place, what)


def dev_among(experiment: Path, splits: ChosenSplits) -> tuple[int, int | None] | None:
    """What decides among which passages dev was judged: hits of BM25 for how many queries; None: all passages."""
    layout = Layout(experiment)
    found = read_json(layout.results) if layout.results.is_file() else dev_so_far(layout)
    asked = read_settings(experiment).get("result_settings", {}).get("dev_passages")
    first = few_of_dev(found if isinstance(found, dict) else {}, asked)
    return None if first is None else (first, splits.held_out or splits.dev_queries)


def open_runs(
    paths: Sequence[AnyRun], data: Data | None, split: str, qrels: AnyQrels | None, cache: Place | None
) -> tuple[list[Run], Qrels, IdSpace, IdSpace, Collection | None]:
    """Open runs and their judgements: runs, judgements, ids of queries and of passages, and the collection."""
    if data is None and qrels is None:
        data = collection_of_experiment(paths)
    if (data is None) == (qrels is None):
        raise SettingsError(
            "NO_JUDGEMENTS", "judgements are given twice, or not at all", "give either --data or --qrels"
        )
    if qrels is not None:
        check_split(split, paths)
        judged, *spaces = qrels_of(qrels) if isinstance(qrels, Mapping) else open_qrels(Path(qrels))
        runs, queries, passages = read_runs([opened_run(path, split, None) for path in paths], *spaces)
        check_alike(runs)
        check_limited(paths, runs, {})
        return runs, judged, queries, passages, None
    assert data is not None
    collection = collection_of(data, cache)
    places = [opened_run(path, split, collection) for path in paths]
    judged = judged_split(collection, split, paths)
    runs, queries, passages = read_runs(
        places, collection.query_ids, collection.passage_ids, collection=collection.digest
    )
    check_limited(paths, runs, devs_of(collection, paths) if split == "dev" else {})
    return runs, judged, queries, passages, collection

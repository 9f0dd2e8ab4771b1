"""Runs against judgements, and runs against runs. Loads no torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardneg.artifacts import publish_file
from hardneg.data.collection import Collection
from hardneg.data.formats.trec import open_qrels, read_runs
from hardneg.data.ids import IdSpace
from hardneg.data.training_data import named_split
from hardneg.errors import SettingsError
from hardneg.evaluation.answers import evaluate_with_answers
from hardneg.evaluation.compare import compare_runs
from hardneg.evaluation.measures import Evaluation, parse_measures
from hardneg.operations.opening import Data, Place, cache_at, check_file, collection_of
from hardneg.records import Qrels, Run


def evaluate(
    run: Place,
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: Place | None = None,
    measures: str = "RR@10 nDCG@10 R@100 R@1000",
    per_query: Place | None = None,
    cache: Place | None = None,
) -> dict[str, Any]:
    """Score a run file by the judgements of a collection's split, or of a qrels file.

    Parameters
    ----------
    run : TREC or MS MARCO, ``.gz`` or not.
    measures : in ir_measures notation, separated by blanks; ``Answer@20`` (or ``Answer(mode=regex)@20``) besides,
        which needs a collection with answers.
    per_query : where to write one JSON object a query: ``{"query_id": ..., "RR@10": ..., ...}``.

    Returns
    -------
    ``{"measures": {"RR@10": mean, ...}, "queries": n, "missing": n, "unjudged": n}``: the means are over
    ``queries``, of which ``missing`` are not in the run and score 0; ``unjudged`` queries of the run are left out.
    Where measures count different queries (those with a relevant passage, those with an answer), ``counted`` says
    how many each.

    Raises
    ------
    SettingsError : an unknown measure or split; neither or both of ``data`` and ``qrels``.
    InputError : a malformed line of the run or of the qrels; no answers.
    """
    parsed = parse_measures(measures)
    if per_query is not None:
        check_file(Path(per_query))
    runs, judged, queries, collection = open_runs([run], data, split, qrels, cache)
    evaluation = evaluate_with_answers(
        runs[0], judged, parsed, collection=collection, cache=cache_at(cache), id_rank=None
    )
    if per_query is not None:
        write_per_query(Path(per_query), evaluation, queries)
    return evaluation.as_json()


def write_per_query(path: Path, evaluation: Evaluation, queries: IdSpace) -> None:
    """Write the values of every query, one JSON object a line; null where a measure does not count the query."""
    columns = {
        name: [None if math.isnan(value) else value for value in values.tolist()]
        for name, values in evaluation.values.items()
    }
    with publish_file(path) as stream:
        for query_id, *values in zip(queries.take(evaluation.query_rows), *columns.values(), strict=True):
            row = {"query_id": query_id, **dict(zip(columns, values, strict=True))}
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def compare(
    runs: Sequence[Place],
    *,
    data: Data | None = None,
    split: str = "test",
    qrels: Place | None = None,
    measures: str = "RR@10 nDCG@10",
    seed: int = 0,
    cache: Place | None = None,
) -> list[dict[str, Any]]:
    """Paired tests of every pair of run files, for every measure.

    Returns
    -------
    For each measure and pair a row: ``a``, ``b``, ``measure``, ``difference`` (a - b) and its bootstrap
    ``interval`` (95 %), ``p`` of the two-sided randomisation test, ``p_holm`` (corrected over the pairs of a
    measure), ``p_t`` of the paired t-test, ``wins``, ``ties`` and ``losses`` of a.

    Raises
    ------
    SettingsError, InputError : as for :func:`evaluate`; fewer than two runs.
    """
    if len(runs) < 2:
        raise SettingsError("ONE_RUN", "there is nothing to compare with", "give two runs or more")
    parsed = parse_measures(measures)
    opened, judged, _, collection = open_runs(runs, data, split, qrels, cache)
    options: dict[str, Any] = {"collection": collection, "cache": cache_at(cache), "id_rank": None}
    evaluations = [evaluate_with_answers(run, judged, parsed, **options) for run in opened]
    names = [str(run) for run in runs]
    return [
        dataclasses.asdict(row)
        for measure in map(str, parsed)
        for row in compare_runs(names, [e.of(measure) for e in evaluations], measure=measure, seed=seed)
    ]


def open_runs(
    paths: Sequence[Place], data: Data | None, split: str, qrels: Place | None, cache: Place | None
) -> tuple[list[Run], Qrels, IdSpace, Collection | None]:
    """Run files, the judgements they are scored by, the id space of their queries, and the collection."""
    if (data is None) == (qrels is None):
        raise SettingsError("NO_JUDGEMENTS", "judgements come from one place", "give either --data or --qrels")
    places = [Path(path) for path in paths]
    if qrels is not None:
        judged, *spaces = open_qrels(Path(qrels))
        runs, queries, _ = read_runs(places, *spaces)
        return runs, judged, queries, None
    assert data is not None
    collection = collection_of(data, cache)
    judged = named_split(collection, split)
    runs, queries, _ = read_runs(
        places, collection.query_ids, collection.passage_ids, collection=collection.digest
    )
    return runs, judged, queries, collection

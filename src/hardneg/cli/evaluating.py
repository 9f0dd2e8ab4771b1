"""``hardneg evaluate`` and ``compare``: runs by judgements, and by each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    CacheOption,
    JsonOption,
    JudgementsOption,
    LeaveOutOwnOption,
    MaybeData,
    MeasuresOption,
    PerQueryOption,
    QrelsOption,
    SeedOption,
    SplitOption,
    show_result,
)


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run file, or an experiment.", metavar="RUN")],
    data: MaybeData = None,
    split: SplitOption = "test",
    qrels: QrelsOption = None,
    judgements: JudgementsOption = None,
    leave_out_own: LeaveOutOwnOption = False,
    measures: MeasuresOption = "RR@10 nDCG@10 R@100 R@1000",
    per_query: PerQueryOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a run, or an experiment, by judgements."""
    from hardneg.api.evaluate import evaluate as execute
    from hardneg.cli.tables import evaluation_table

    result = execute(
        run,
        data=data,
        split=split,
        qrels=qrels,
        judgements=judgements,
        leave_out_own=leave_out_own,
        measures=measures,
        per_query=per_query,
        cache=cache,
    )
    show_result(result, as_json, evaluation_table)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run files or experiments.", metavar="RUN...")],
    data: MaybeData = None,
    split: SplitOption = "test",
    qrels: QrelsOption = None,
    leave_out_own: LeaveOutOwnOption = False,
    measures: MeasuresOption = "RR@10 nDCG@10",
    seed: SeedOption = 0,
    per_query: PerQueryOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs or experiments by paired tests.

    Every pair is tested by randomisation, with Holm's correction. Wins, ties and losses are counted.
    overlap@100 is the share of their first 100 hits that two runs have in common; if both have fewer hits, it is
    the share of the longer list. An experiment of several seeds counts as one run: the values of each query are
    averaged over its seeds, and the difference of each seed is shown beside.
    """
    from hardneg.api.evaluate import compare as execute
    from hardneg.cli.tables import comparison_table

    where: dict[str, Any] = {"data": data, "split": split, "qrels": qrels, "per_query": per_query}
    rows = execute(runs, leave_out_own=leave_out_own, measures=measures, seed=seed, cache=cache, **where)
    show_result(rows, as_json, comparison_table)

"""The commands ``hardneg rerank`` and ``hardneg fuse``: runs made from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    CacheOption,
    DataOption,
    EmbeddingsOption,
    JsonOption,
    Machine,
    MaybeData,
    RankerOption,
    Reading,
    RunOut,
    begin,
    option,
    show_result,
    with_shared,
)

RunSplit = Annotated[str, option(help="Where an experiment is given: the split of its run.", metavar="SPLIT")]


@with_shared
def rerank(
    data: DataOption,
    run: Annotated[
        Path, option(help="The run whose first hits are re-ranked: a file, or an experiment.", metavar="RUN")
    ],
    ranker: RankerOption,
    out: RunOut,
    *,
    reading: Reading,
    k: Annotated[int, option("--k", min=1, help="Hits of each query to re-rank.")] = 100,
    embeddings: EmbeddingsOption = None,
    split: RunSplit = "test",
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Re-rank the first hits of each query by a model."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.rank import rerank as execute
    from hardneg.cli.tables import facts_table
    from hardneg.process.launch import check_alone

    check_alone("hardneg rerank")
    machine.tune()
    named: dict[str, Any] = {
        "data": data,
        "ranker": ranker,
        "k": k,
        "embeddings": embeddings,
        "split": split,
        **machine.places,
    }
    show_result(execute(run, out, **reading, **named), as_json, facts_table)


def fuse(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run files or experiments, two or more, over the same queries.", metavar="RUN..."),
    ],
    out: RunOut,
    method: Annotated[
        str, option(help="Fuse by reciprocal ranks, or by normalised scores.", metavar="rrf|linear")
    ] = "rrf",
    weights: Annotated[
        str | None, option(help="A number for each run: 0.7,0.3 (default: 1 each).", metavar="LIST")
    ] = None,
    normalisation: Annotated[
        str | None,
        option(help="How linear normalises the scores of a query (default: min-max).", metavar="min-max|z"),
    ] = None,
    rank_constant: Annotated[
        int | None, option(min=0, help="rrf: the number added to each rank (default: 60).", metavar="N")
    ] = None,
    k: Annotated[int, option("--k", min=1, help="Hits of each query to keep.")] = 1000,
    data: MaybeData = None,
    tune: Annotated[
        str | None, option(help="Find the best weights on this split (needs --data).", metavar="SPLIT")
    ] = None,
    tuning_run: Annotated[
        list[Path] | None,
        option(
            help="A run over the split of --tune. Give one for each RUN, in the same order (default: the RUNs"
            " themselves).",
            metavar="RUN",
        ),
    ] = None,
    measure: Annotated[
        str | None,
        option(help="Measure to tune for, in ir_measures notation (default: RR@10).", metavar="MEASURE"),
    ] = None,
    split: RunSplit = "test",
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fuse several runs into one."""
    begin()
    from hardneg.api.inputs import one_of
    from hardneg.api.rank import fuse as execute
    from hardneg.cli.tables import facts_table

    normalised: Any = None
    if normalisation is not None:
        normalised = one_of("--normalisation", normalisation, ("min-max", "z"))
    facts = execute(
        runs,
        out,
        method=one_of("--method", method, ("rrf", "linear")),
        weights=None if weights is None else numbers_in(weights),
        normalisation=normalised,
        rank_constant=rank_constant,
        k=k,
        data=data,
        tune=tune,
        tuning_runs=tuning_run or [],
        measure=measure,
        split=split,
        cache=cache,
    )
    show_result(facts, as_json, facts_table)


def numbers_in(text: str) -> list[float]:
    """The numbers of a list that commas separate."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r:.60} is no list of numbers", param_hint="'--weights'") from None

"""The commands ``hardneg rerank`` and ``hardneg fuse``: runs made from runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    CacheOption,
    DataOption,
    DeviceOption,
    JsonOption,
    MaxRam,
    MaxVram,
    MaybeData,
    Reading,
    ThreadsOption,
    begin,
    reads_model,
    show_result,
    tune,
)

RunOut = Annotated[Path, typer.Option(help="The new run file (TREC; gzip if its name ends in .gz).")]


@reads_model
def rerank(
    data: DataOption,
    run: Annotated[Path, typer.Option(help="The run file whose first hits are re-ranked.")],
    ranker: Annotated[str, typer.Option(help="What scores pairs: folder, hub name or package:NAME.")],
    out: RunOut,
    *,
    reading: Reading,
    k: Annotated[int, typer.Option("--k", min=1, help="Hits of each query to re-rank.")] = 100,
    embeddings: Annotated[Path | None, typer.Option(help="Passage embeddings made by encode.")] = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Re-rank the first hits of each query by a model."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.rank import rerank as execute
    from hardneg.cli.tables import facts_table

    tune(threads, max_ram, max_vram)
    named: dict[str, Any] = {
        "data": data,
        "ranker": ranker,
        "k": k,
        "embeddings": embeddings,
        "cache": cache,
        "device": device,
    }
    show_result(execute(run, out, **reading, **named), as_json, facts_table)


def fuse(
    runs: Annotated[list[Path], typer.Argument(help="Run files over the same queries, two or more.")],
    out: RunOut,
    method: Annotated[str, typer.Option(help="rrf: by reciprocal ranks; linear: by normalised scores.")] = "rrf",
    weights: Annotated[str | None, typer.Option(help="One number a run: 0.7,0.3 (default: 1 each).")] = None,
    normalisation: Annotated[str, typer.Option(help="Of linear, for each query: min-max or z.")] = "min-max",
    rank_constant: Annotated[int, typer.Option(min=0, help="Of rrf: what is added to a rank.")] = 60,
    k: Annotated[int, typer.Option("--k", min=1, help="Hits of each query to keep.")] = 1000,
    data: MaybeData = None,
    tune: Annotated[str | None, typer.Option(help="Find the best weights on this split (needs --data).")] = None,
    tuning_run: Annotated[
        list[Path] | None,
        typer.Option(help="A run over that split, one for each run in the same order (default: the runs)."),
    ] = None,
    measure: Annotated[str, typer.Option(help="Measure to tune for, in ir_measures notation.")] = "RR@10",
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fuse several runs into one."""
    begin()
    from hardneg.api.inputs import one_of
    from hardneg.api.rank import fuse as execute
    from hardneg.cli.tables import facts_table

    facts = execute(
        runs,
        out,
        method=one_of("--method", method, ("rrf", "linear")),
        weights=None if weights is None else numbers_in(weights),
        normalisation=one_of("--normalisation", normalisation, ("min-max", "z")),
        rank_constant=rank_constant,
        k=k,
        data=data,
        tune=tune,
        tuning_runs=tuning_run or [],
        measure=measure,
        cache=cache,
    )
    show_result(facts, as_json, facts_table)


def numbers_in(text: str) -> list[float]:
    """The numbers of a list that commas separate."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r:.60} is no list of numbers", param_hint="'--weights'") from None

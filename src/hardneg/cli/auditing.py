"""The command ``hardneg audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import (
    CacheOption,
    DeviceOption,
    JsonOption,
    JudgementsOption,
    MaxRam,
    MaxVram,
    MaybeModel,
    Reading,
    ThreadsOption,
    begin,
    reads_model,
    show_result,
    tune,
)


@reads_model
def audit(
    path: Annotated[Path, typer.Argument(help="A pool, or an experiment (its last pool and all its states).")],
    data: Annotated[
        str | None, typer.Option("--data", help="The collection (default: the experiment's own).")
    ] = None,
    model: MaybeModel = None,
    *,
    reading: Reading,
    ranker: Annotated[str | None, typer.Option(help="A ranker, whose scores are one more signal.")] = None,
    bm25: Annotated[bool, typer.Option("--bm25/--no-bm25", help="Ask BM25 too, for one of the signals.")] = True,
    judgements: JudgementsOption = None,
    threshold: Annotated[
        list[str] | None, typer.Option(help="SIGNAL=VALUE from which on it fires; may be repeated.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Pairs to write and to print as JSON.")] = 200,
    shown: Annotated[int, typer.Option("--show", min=0, help="Pairs to show in the terminal.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write the pairs with texts to this file (TSV).")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page (HTML) to label them by keyboard.")] = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Find negatives that are probably relevant."""
    begin(code=reading.pop("allow_code"))
    from hardneg.api.audit import audit as execute
    from hardneg.cli.audit_text import audit_text, threshold_of

    if model is not None or ranker is not None:
        tune(threads, max_ram, max_vram)
    found = execute(
        path,
        data,
        model=model,
        ranker=ranker,
        bm25=bm25,
        judgements=judgements,
        thresholds=dict(map(threshold_of, threshold or [])),
        most=most,
        out=out,
        page=page,
        cache=cache,
        device=device,
        **reading,
    )
    show_result(found, as_json, lambda found: audit_text(found, shown))

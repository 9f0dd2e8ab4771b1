"""The command ``hardneg audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import (
    JsonOption,
    JudgementsOption,
    Machine,
    MaybeModel,
    OwnData,
    Reading,
    begin,
    option,
    show_result,
    with_shared,
)


@with_shared
def audit(
    path: Annotated[
        Path, typer.Argument(help="A pool, or an experiment (its last pool and all its states).", metavar="POOL")
    ],
    data: OwnData = None,
    model: MaybeModel = None,
    *,
    reading: Reading,
    ranker: Annotated[
        str | None, option(help="A ranker, whose scores are one more signal.", metavar="MODEL")
    ] = None,
    bm25: Annotated[
        bool, option("--bm25/--no-bm25", help="Search with BM25 too, or take the lists that training kept.")
    ] = True,
    judgements: JudgementsOption = None,
    threshold: Annotated[
        list[str] | None,
        option(help="The minimum value at which a signal counts; may be repeated.", metavar="SIGNAL=VALUE"),
    ] = None,
    most: Annotated[int, option(min=1, help="Pairs to write and to print as JSON.")] = 200,
    shown: Annotated[int, option("--show", min=0, help="Pairs to show in the terminal.")] = 10,
    out: Annotated[
        Path | None, option(help="Write the pairs with texts to this file (TSV).", metavar="FILE")
    ] = None,
    page: Annotated[
        Path | None, option(help="Write a page (HTML) to label them by keyboard.", metavar="FILE")
    ] = None,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Find negatives that are probably relevant."""
    begin(code=reading.pop("allow_code"))
    from hardneg.api.audit import audit as execute
    from hardneg.cli.audit_text import audit_text, thresholds_of

    if model is not None or ranker is not None:
        machine.tune()
    found = execute(
        path,
        data,
        model=model,
        ranker=ranker,
        bm25=bm25,
        judgements=judgements,
        thresholds=thresholds_of(threshold or []),
        most=most,
        out=out,
        page=page,
        **machine.places,
        **reading,
    )
    show_result(found, as_json, lambda found: audit_text(found, shown))

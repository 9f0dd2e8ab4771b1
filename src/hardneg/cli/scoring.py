"""``hardneg score``: a model's scores of the negatives and positives of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    AbsoluteMargin,
    CacheOption,
    DataOption,
    DeviceOption,
    JsonOption,
    MaxRam,
    MaxScore,
    MaxVram,
    Reading,
    RelativeMargin,
    ThreadsOption,
    TopOption,
    begin,
    reads_model,
    show_result,
    tune,
)


@reads_model
def score(
    pool: Annotated[Path, typer.Argument(help="A pool, or an experiment (its last pool).")],
    data: DataOption,
    ranker: Annotated[str, typer.Option(help="What scores pairs: folder, hub name or package:NAME.")],
    out: Annotated[Path, typer.Option(help="The scored pool's folder.")],
    *,
    reading: Reading,
    max_score: MaxScore = None,
    absolute_margin: AbsoluteMargin = None,
    relative_margin: RelativeMargin = None,
    top: TopOption = None,
    embeddings: Annotated[Path | None, typer.Option(help="Passage embeddings made by encode.")] = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Score the negatives and positives of a pool by a model, and filter by the scores."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.inspect import pool_stats
    from hardneg.api.score import score as execute
    from hardneg.cli.tables import facts_table
    from hardneg.negatives.candidates import Filters

    tune(threads, max_ram, max_vram)
    named: dict[str, Any] = {
        "data": data,
        "ranker": ranker,
        "filters": Filters(1, None, max_score, absolute_margin, relative_margin, top),
        "embeddings": embeddings,
        "cache": cache,
        "device": device,
    }
    scored = execute(pool, out, **reading, **named)
    show_result({"pool": str(out), **pool_stats(scored)}, as_json, facts_table)

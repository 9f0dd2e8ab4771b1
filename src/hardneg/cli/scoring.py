"""``hardneg score``: a model's scores of the negatives and positives of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hardneg.cli.options import (
    AbsoluteMargin,
    DataOption,
    EmbeddingsOption,
    JsonOption,
    Machine,
    MaxScore,
    PoolArgument,
    RankerOption,
    Reading,
    RelativeMargin,
    TopOption,
    begin,
    option,
    show_result,
    with_shared,
)


@with_shared
def score(
    pool: PoolArgument,
    data: DataOption,
    ranker: RankerOption,
    out: Annotated[Path, option(help="The scored pool's folder.", metavar="POOL")],
    *,
    reading: Reading,
    max_score: MaxScore = None,
    absolute_margin: AbsoluteMargin = None,
    relative_margin: RelativeMargin = None,
    top: TopOption = None,
    embeddings: EmbeddingsOption = None,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Score a pool by a model, and filter by the scores."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.inspect import pool_stats
    from hardneg.api.score import score as execute
    from hardneg.cli.tables import facts_table
    from hardneg.negatives.candidates import Filters
    from hardneg.process.launch import check_alone

    check_alone("hardneg score")
    machine.tune()
    named: dict[str, Any] = {
        "data": data,
        "ranker": ranker,
        "filters": Filters(
            max_score=max_score, absolute_margin=absolute_margin, relative_margin=relative_margin, top=top
        ),
        "embeddings": embeddings,
        **machine.places,
    }
    scored = execute(pool, out, **reading, **named)
    show_result({"pool": str(out), **pool_stats(scored)}, as_json, facts_table)

"""``hardneg export``: writes negatives for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hardneg.cli.options import (
    AllowBin,
    AllowCode,
    CacheOption,
    DataOption,
    JsonOption,
    MaybeModel,
    PoolArgument,
    SeedOption,
    begin,
    option,
    show_result,
)


def export(
    pool: PoolArgument,
    data: DataOption,
    out: Annotated[Path, option(help="The file; gzip if its name ends in .gz.", metavar="FILE")],
    format: Annotated[
        str,
        option(
            help="sentence-transformers, tevatron, flagembedding, dpr or token-ids (needs --model).",
            metavar="FORMAT",
        ),
    ],
    negatives: Annotated[
        int | None, option(min=1, help="Negatives of a query, drawn by --seed (default: all).")
    ] = None,
    seed: SeedOption = 42,
    model: MaybeModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write mined negatives for another trainer."""
    begin(code=allow_code)
    from hardneg.api.export import export_pool
    from hardneg.cli.tables import facts_table

    options: dict[str, Any] = {"model": model, "allow_bin": allow_bin, "cache": cache}
    facts = export_pool(pool, data, out, format=format, negatives=negatives, seed=seed, **options)
    show_result(facts, as_json, facts_table)

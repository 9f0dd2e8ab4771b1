"""``hardneg import`` and ``export``: collections that come in, negatives that go out to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
from hardneg.errors import Faults, SettingsError


def import_command(
    source: Annotated[str, typer.Argument(help="[FORMAT:]PLACE, such as beir:FOLDER.", metavar="SOURCE")],
    to: Annotated[Path | None, option(help="The folder of the new collection.", metavar="DIR")] = None,
    format: Annotated[
        str, option(help="pairs, corpus, beir, qa, msmarco, dpr, tevatron, trec, ...", metavar="FORMAT")
    ] = "auto",
    language: Annotated[
        str | None,
        option(help="Language of the passages, for BM25: german, de, zh, ... (default: English).", metavar="NAME"),
    ] = None,
    negatives: Annotated[
        Path | None, option(help="Keep the negatives that the source gives in this pool.", metavar="DIR")
    ] = None,
    check: Annotated[bool, option("--check", help="Write nothing; list all errors with counts.")] = False,
    allow_empty: Annotated[bool, option("--allow-empty", help="Keep empty texts, and count them.")] = False,
    allow_unjudged: Annotated[
        bool, option("--allow-unjudged", help="Drop judgements of unknown ids, and count them.")
    ] = False,
    on_duplicate: Annotated[
        str, option(help="What to do with equal ids; first keeps the first.", metavar="error|first")
    ] = "error",
    as_json: JsonOption = False,
) -> None:
    """Read data of any format into a collection, or --check it."""
    if to is None and not check:
        raise SettingsError("USAGE", "Missing option '--to'", "give the new folder, or --check to write nothing")
    if to is not None and check:
        raise SettingsError("USAGE", "--to and --check do not go together", "leave one of them out")
    if negatives is not None and check:
        raise SettingsError("USAGE", "--negatives and --check do not go together", "leave one of them out")
    begin()
    from hardneg.api.inputs import one_of
    from hardneg.cli.tables import facts_table

    rules: dict[str, Any] = {
        "format": format,
        "allow_empty": allow_empty,
        "allow_unjudged": allow_unjudged,
        "on_duplicate": one_of("--on-duplicate", on_duplicate, ("error", "first")),
    }
    if to is not None:
        from hardneg.api.convert import convert

        facts = convert(source, to, language=language, negatives=negatives, **rules)
        show_result(facts, as_json, facts_table)
        return

    from hardneg.data.checking import check_import
    from hardneg.data.importing import find_source

    found = check_import(find_source(source, rules.pop("format")), language=language, **rules)
    facts = found.as_json()
    if not as_json:  # people read the faults below, on stderr
        del facts["lines"]
        if not found.faults:
            facts["next"] = "the same command with --to FOLDER in place of --check"
    show_result(facts, as_json, facts_table)
    if found.faults:
        raise Faults(found.faults)


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

"""The commands ``hardneg encode`` and ``hardneg search``."""

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
    MaybeModel,
    ModelOption,
    Reading,
    ThreadsOption,
    begin,
    reads_model,
    show_result,
    tune,
)


@reads_model
def encode(
    data: DataOption,
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="The folder of the embeddings.")],
    *,
    reading: Reading,
    queries: Annotated[bool, typer.Option("--queries", help="Encode the queries, not the passages.")] = False,
    shard: Annotated[str | None, typer.Option(help="i/n: encode only part i (from 0) of n parts.")] = None,
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    token_budget: Annotated[int, typer.Option(min=16, help="Tokens of a batch.")] = 16384,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Embed a corpus (or the queries) in resumable shards."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.inputs import one_of
    from hardneg.api.search import encode as execute
    from hardneg.cli.tables import facts_table

    tune(threads, max_ram, max_vram)
    facts = execute(
        data,
        model,
        out,
        **reading,
        side="query" if queries else "passage",
        shard=shard,
        dtype=one_of("--dtype", dtype, ("float16", "float32")),
        token_budget=token_budget,
        cache=cache,
        device=device,
    )
    show_result(facts, as_json, facts_table)


@reads_model
def search(
    data: DataOption,
    model: MaybeModel = None,
    *,
    reading: Reading,
    bm25: Annotated[bool, typer.Option("--bm25", help="Search with BM25, not a model.")] = False,
    language: Annotated[
        str | None, typer.Option(help="Language that BM25 analyses texts in (default: the collection's).")
    ] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Passage embeddings made by encode.")] = None,
    index: Annotated[Path | None, typer.Option(help="An index made by index, instead of exact search.")] = None,
    split: Annotated[str, typer.Option(help="Split whose queries are searched.")] = "test",
    query: Annotated[str | None, typer.Option(help="Search this text and print the hits.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=1, help="Hits for each query (default: 1000; 5 with --query).")
    ] = None,
    rerank_by: Annotated[
        str | None, typer.Option(help="A model that re-ranks the first hits: folder, hub name or package:NAME.")
    ] = None,
    rerank_k: Annotated[int, typer.Option("--rerank-k", min=1, help="Hits of each query that it re-ranks.")] = 100,
    out: Annotated[Path | None, typer.Option(help="The run file (TREC; gzip if its name ends in .gz).")] = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Search a split's queries into a run file, or search one text."""
    if (query is None) == (out is None):
        raise typer.BadParameter("give --out RUN, or --query TEXT", param_hint="'--out'")
    lexical = bm25 and rerank_by is None
    begin(resumable=not lexical, code=reading.pop("allow_code"))
    from hardneg.api.search import search_split, search_text
    from hardneg.cli.tables import facts_table, hits_text

    if lexical:  # needs no torch
        from hardneg.process.memory import limit_memory

        limit_memory(max_ram, max_vram)
    else:
        tune(threads, max_ram, max_vram)
    common: dict[str, Any] = {
        "model": model,
        **reading,
        "bm25": bm25,
        "language": language,
        "embeddings": embeddings,
        "index": index,
        "rerank_by": rerank_by,
        "rerank_k": rerank_k,
        "cache": cache,
        "device": device,
    }
    if query is not None:
        show_result(search_text(data, query, k=k or 5, **common), as_json, lambda hits: hits_text(query, hits))
    elif out is not None:
        show_result(search_split(data, out, split=split, k=k or 1000, **common), as_json, facts_table)

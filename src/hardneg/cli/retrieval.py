"""The commands ``hardneg encode`` and ``hardneg search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    DataOption,
    EmbeddingsOption,
    JsonOption,
    Machine,
    MaybeModel,
    ModelOption,
    Reading,
    begin,
    option,
    show_result,
    with_shared,
)


@with_shared
def encode(
    data: DataOption,
    model: ModelOption,
    out: Annotated[Path, option(help="The folder of the embeddings.", metavar="EMB")],
    *,
    reading: Reading,
    queries: Annotated[bool, option("--queries", help="Encode the queries, not the passages.")] = False,
    shard: Annotated[str | None, option(help="Encode only part I (from 0) of N parts.", metavar="I/N")] = None,
    dtype: Annotated[
        str, option(help="Number format of the stored vectors.", metavar="float16|float32")
    ] = "float16",
    token_budget: Annotated[int, option(min=16, help="Tokens of a batch.")] = 16384,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Encode a corpus, or queries, in resumable parts."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.inputs import one_of
    from hardneg.api.search import encode as execute
    from hardneg.cli.tables import facts_table
    from hardneg.process.launch import let_speak

    let_speak(each=True)  # each makes other parts
    machine.tune()
    facts = execute(
        data,
        model,
        out,
        **reading,
        side="query" if queries else "passage",
        shard=shard,
        dtype=one_of("--dtype", dtype, ("float16", "float32")),
        token_budget=token_budget,
        **machine.places,
    )
    show_result(facts, as_json, facts_table)


@with_shared
def search(
    data: DataOption,
    model: MaybeModel = None,
    *,
    reading: Reading,
    bm25: Annotated[bool, option("--bm25", help="Search with BM25, not a model.")] = False,
    language: Annotated[
        str | None,
        option(help="Language of the texts, for BM25 (default: the collection's).", metavar="NAME"),
    ] = None,
    embeddings: EmbeddingsOption = None,
    index: Annotated[
        Path | None, option(help="Search this index, which `hardneg index` made.", metavar="INDEX")
    ] = None,
    split: Annotated[
        str | None, option(help="Split whose queries are searched (default: test).", metavar="SPLIT")
    ] = None,
    query: Annotated[str | None, option(help="Search this text and print the hits.", metavar="TEXT")] = None,
    k: Annotated[
        int | None, option("--k", min=1, help="Hits for each query (default: 1000; 5 with --query).")
    ] = None,
    rerank_by: Annotated[
        str | None, option(help="A model that re-ranks the first hits (same forms as --model).", metavar="MODEL")
    ] = None,
    rerank_k: Annotated[
        int | None, option("--rerank-k", min=1, help="Hits of each query that it re-ranks (default: 100).")
    ] = None,
    out: Annotated[
        Path | None, option(help="The run file (TREC; gzip if its name ends in .gz).", metavar="RUN")
    ] = None,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Search the queries of a split, or one text."""
    if (query is None) == (out is None):
        raise typer.BadParameter("give --out RUN, or --query TEXT", param_hint="'--out'")
    if query is not None and split is not None:
        raise typer.BadParameter("a text is in no split: give --query or --split", param_hint="'--split'")
    lexical = bm25 and rerank_by is None
    begin(resumable=not lexical, code=reading.pop("allow_code"))
    from hardneg.api.search import search_split, search_text, why_nothing
    from hardneg.cli.tables import facts_table, hits_text
    from hardneg.process.distributed import group, is_leader

    if lexical:  # needs no torch
        machine.limit()
    else:
        machine.tune()
    common: dict[str, Any] = {
        "model": model,
        **reading,
        "bm25": bm25,
        "language": language,
        "embeddings": embeddings,
        "index": index,
        "rerank_by": rerank_by,
        "rerank_k": rerank_k,
        **machine.places,
    }
    if query is not None:
        found = search_text(data, query, k=k or 5, **common)
        why = why_nothing(data, query, language=language, cache=common["cache"]) if bm25 and not found else ""
        show_result(found, as_json, lambda hits: hits_text(query, hits, why))
    elif out is not None:
        with group():
            facts = search_split(data, out, split=split or "test", k=k or 1000, **common)
            if is_leader():
                show_result(facts, as_json, facts_table)

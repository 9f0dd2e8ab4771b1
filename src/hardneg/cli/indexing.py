"""The command ``hardneg index``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    CacheOption,
    DeviceOption,
    JsonOption,
    MaxRam,
    MaybeData,
    MaybeModel,
    Reading,
    ThreadsOption,
    begin,
    reads_model,
    show_result,
    tune,
)


@reads_model
def index(
    embeddings: Annotated[Path, typer.Argument(help="Passage embeddings made by encode.")],
    out: Annotated[Path, typer.Option(help="The folder of the index.")],
    kind: Annotated[str, typer.Option(help="flat, ivf, hnsw, pq or ivfpq.")] = "flat",
    lists: Annotated[int | None, typer.Option(min=1, help="ivf, ivfpq: number of clusters.")] = None,
    probes: Annotated[int | None, typer.Option(min=1, help="ivf, ivfpq: clusters searched for a query.")] = None,
    links: Annotated[int | None, typer.Option(min=1, help="hnsw: links of a passage.")] = None,
    ef_build: Annotated[int | None, typer.Option(min=1, help="hnsw: candidates while building.")] = None,
    ef: Annotated[int | None, typer.Option(min=1, help="hnsw: candidates of a search.")] = None,
    subvectors: Annotated[int | None, typer.Option(min=1, help="pq, ivfpq: codes of a passage.")] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="pq, ivfpq: bits of a code.")] = None,
    data: MaybeData = None,
    split: Annotated[str, typer.Option(help="Split of --data whose queries measure recall.")] = "dev",
    model: MaybeModel = None,
    *,
    reading: Reading,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    as_json: JsonOption = False,
) -> None:
    """Build an approximate or compressed index, and print its recall.

    Options that are not given are chosen by the size of the corpus. Recall is measured with random passages as
    queries, or with the queries of --data and --split, encoded by --model.
    """
    options: dict[str, Any] = {
        "lists": lists,
        "probes": probes,
        "links": links,
        "ef_build": ef_build,
        "ef": ef,
        "subvectors": subvectors,
        "bits": bits,
    }
    begin(code=reading.pop("allow_code"))
    from hardneg.api.index import index as execute
    from hardneg.cli.tables import facts_table

    tune(threads, max_ram)
    facts = execute(
        embeddings,
        out,
        kind=kind,
        data=data,
        split=split,
        model=model,
        **reading,
        cache=cache,
        device=device,
        **{name: value for name, value in options.items() if value is not None},
    )
    show_result(facts, as_json, facts_table)

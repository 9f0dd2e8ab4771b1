"""The command ``hardneg index``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    JsonOption,
    Machine,
    MaybeData,
    MaybeModel,
    Reading,
    begin,
    option,
    show_result,
    with_shared,
)


@with_shared
def index(
    embeddings: Annotated[Path, typer.Argument(help="Passage embeddings that encode made.", metavar="EMB")],
    out: Annotated[Path, option(help="The folder of the index.", metavar="INDEX")],
    kind: Annotated[str, option(help="The kind of the index.", metavar="flat|ivf|hnsw|pq|ivfpq")] = "flat",
    lists: Annotated[
        int | None, option(min=1, help="ivf, ivfpq: number of clusters; by default by the size of the corpus.")
    ] = None,
    probes: Annotated[
        int | None,
        option(min=1, help="ivf, ivfpq: clusters searched for a query; by default more for more lists."),
    ] = None,
    links: Annotated[int | None, option(min=2, help="hnsw: links of a passage; by default 32.")] = None,
    ef_build: Annotated[int | None, option(min=1, help="hnsw: candidates while building; by default 200.")] = None,
    ef: Annotated[int | None, option(min=1, help="hnsw: candidates of a search; by default 256.")] = None,
    subvectors: Annotated[
        int | None, option(min=1, help="pq, ivfpq: codes of a passage; by default one for 4 dimensions.")
    ] = None,
    bits: Annotated[int | None, option(min=1, help="pq, ivfpq: bits of a code; by default 8.")] = None,
    data: MaybeData = None,
    split: Annotated[str, option(help="Split of --data whose queries measure recall.", metavar="SPLIT")] = "dev",
    model: MaybeModel = None,
    *,
    reading: Reading,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Build an index, and measure its recall.

    The index is approximate or compressed. Recall is measured with random passages as queries, or with the queries
    of --data and --split, encoded by --model.
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
    from hardneg.process.launch import check_alone

    check_alone("hardneg index")
    machine.tune()
    facts = execute(
        embeddings,
        out,
        kind=kind,
        data=data,
        split=split,
        model=model,
        **reading,
        **machine.places,
        **{name: value for name, value in options.items() if value is not None},
    )
    show_result(facts, as_json, facts_table)

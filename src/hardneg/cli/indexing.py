"""``hardneg index``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardneg.cli.options import JsonOption, ThreadsOption, begin, show_result


def index(
    embeddings: Annotated[Path, typer.Argument(help="Passage embeddings made by encode.")],
    out: Annotated[Path, typer.Option(help="The folder of the index.")],
    kind: Annotated[str, typer.Option(help="flat, ivf, hnsw, pq or ivfpq.")] = "flat",
    lists: Annotated[int | None, typer.Option(min=1, help="ivf: clusters.")] = None,
    probes: Annotated[int | None, typer.Option(min=1, help="ivf: clusters that a search looks at.")] = None,
    links: Annotated[int | None, typer.Option(min=1, help="hnsw: links of a passage.")] = None,
    ef_build: Annotated[int | None, typer.Option(min=1, help="hnsw: candidates while building.")] = None,
    ef: Annotated[int | None, typer.Option(min=1, help="hnsw: candidates of a search.")] = None,
    subvectors: Annotated[int | None, typer.Option(min=1, help="pq: codes of a passage.")] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="pq: bits of a code.")] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an approximate or compressed index, and print its recall."""
    begin()
    from hardneg.operations.indexing import index as execute
    from hardneg.runtime import set_threads
    from hardneg.tables import facts_table

    set_threads(threads)
    options = {
        "lists": lists,
        "probes": probes,
        "links": links,
        "ef_build": ef_build,
        "ef": ef,
        "subvectors": subvectors,
        "bits": bits,
    }
    given = {name: value for name, value in options.items() if value is not None}
    show_result(execute(embeddings, out, kind=kind, **given), as_json, facts_table)

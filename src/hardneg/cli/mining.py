"""``hardneg mine`` and ``inspect``: pools of negatives, made and looked at."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

from hardneg.cli.options import (
    AbsoluteMargin,
    CacheOption,
    DataOption,
    JsonOption,
    JudgementsOption,
    LabelsOption,
    Machine,
    MaxScore,
    MaybeModel,
    OwnData,
    PoolArgument,
    Reading,
    RelativeMargin,
    SeedOption,
    TopOption,
    begin,
    option,
    show_result,
    with_shared,
)


@with_shared
def mine(
    data: DataOption,
    out: Annotated[Path, option(help="The pool's folder.", metavar="POOL")],
    model: MaybeModel = None,
    *,
    reading: Reading,
    split: Annotated[str, option(help="Split whose queries get negatives.", metavar="SPLIT")] = "train",
    sources: Annotated[
        str, option(help="Any of random, bm25, query, lookahead and file, with commas.", metavar="LIST")
    ] = "query,lookahead",
    depth: Annotated[int, option(min=1, help="Mine from the first N hits of a search.")] = 200,
    count: Annotated[
        int,
        option(
            min=1,
            help="Negatives of a query to keep from each source. The sources query and lookahead share 2 N: --beta"
            " of them come from lookahead.",
        ),
    ] = 30,
    previous: Annotated[
        Path | None,
        option(
            help="The pool of the episode before, or an experiment (its last pool), for momentum.", metavar="POOL"
        ),
    ] = None,
    file: Annotated[
        Path | None, option(help="Run, pool or JSON that the source `file` reads.", metavar="FILE")
    ] = None,
    alpha: Annotated[
        float, option(help="Share of negatives from the pool before (momentum), below 1.", metavar="SHARE")
    ] = 0.5,
    beta: Annotated[
        float, option(help="Share of lookahead negatives among the new ones, below 1.", metavar="SHARE")
    ] = 0.5,
    rank_from: Annotated[int, option(min=1, help="First rank to mine.")] = 1,
    rank_to: Annotated[int | None, option(min=1, help="Last rank to mine.")] = None,
    max_score: MaxScore = None,
    absolute_margin: AbsoluteMargin = None,
    relative_margin: RelativeMargin = None,
    top: TopOption = None,
    filter_by: Annotated[
        str | None,
        option(
            help="Apply the score bounds to the scores of this model, which has its own prompts and lengths"
            " (default: the miner's scores).",
            metavar="MODEL",
        ),
    ] = None,
    labels: LabelsOption = "qrels",
    judgements: JudgementsOption = None,
    seed: SeedOption = 42,
    machine: Machine,
    as_json: JsonOption = False,
) -> None:
    """Mine negatives once, for any trainer."""
    begin(resumable=True, code=reading.pop("allow_code"))
    from hardneg.api.inspect import pool_stats
    from hardneg.api.mine import labels_named
    from hardneg.api.mine import mine as execute
    from hardneg.cli.tables import facts_table
    from hardneg.negatives.candidates import Filters
    from hardneg.process.distributed import group, is_leader

    machine.tune()
    arguments: dict[str, Any] = dict(
        **reading,
        split=split,
        sources=[name.strip() for name in sources.split(",") if name.strip()],
        depth=depth,
        count=count,
        previous=previous,
        file=file,
        alpha=alpha,
        beta=beta,
        filters=Filters(
            rank_from=rank_from,
            rank_to=rank_to,
            max_score=max_score,
            absolute_margin=absolute_margin,
            relative_margin=relative_margin,
            top=top,
        ),
        filter_by=filter_by,
        labels=labels_named(labels),
        judgements=judgements,
        seed=seed,
        **machine.places,
    )
    with group():
        pool = execute(data, model, out, **arguments)
        if is_leader():
            command = shlex.join(["hardneg", "inspect", str(out), "--data", str(data)])
            more = f"\nmore: {command}"  # a pool holds no paths, so it needs --data
            show_result({"pool": str(out), **pool_stats(pool)}, as_json, lambda found: facts_table(found) + more)


def inspect(
    path: PoolArgument,
    data: OwnData = None,
    query: Annotated[str | None, option(help="Show the query with this id.", metavar="ID")] = None,
    random: Annotated[
        int | None, option(min=1, help="Show N random queries, drawn by --seed (default: 1).", metavar="N")
    ] = None,
    most: Annotated[int, option(min=1, help="Negatives to show for a query.")] = 20,
    seed: SeedOption = 0,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show queries with their positives and negatives."""
    begin()
    from hardneg.api.inspect import inspect as execute
    from hardneg.api.inspect import last_pool
    from hardneg.cli.tables import inspection_text
    from hardneg.negatives.pool import counted_by

    found = execute(path, data, query_id=query, random=random, seed=seed, cache=cache)
    unit = counted_by(last_pool(path))
    show_result(found, as_json, lambda found: "\n\n".join(inspection_text(one, most, unit) for one in found))

"""Commands around collections, pools and runs. A command imports what takes long to load when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    AbsoluteMargin,
    CacheOption,
    DataOption,
    JsonOption,
    JudgementsOption,
    LabelsOption,
    Machine,
    MaxScore,
    MaybeData,
    MaybeModel,
    MeasuresOption,
    OwnData,
    PerQueryOption,
    PoolArgument,
    QrelsOption,
    Reading,
    RelativeMargin,
    SeedOption,
    SplitOption,
    TopOption,
    begin,
    option,
    show_result,
    with_shared,
)
from hardneg.errors import Faults, SettingsError


def import_command(
    source: Annotated[str, typer.Argument(help="[FORMAT:]PLACE, such as beir:FOLDER.", metavar="SOURCE")],
    to: Annotated[Path | None, option(help="The folder of the canonical collection.", metavar="DIR")] = None,
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
    check: Annotated[bool, option("--check", help="Write nothing, and tell all faults with counts.")] = False,
    allow_empty: Annotated[bool, option("--allow-empty", help="Keep empty texts, and count them.")] = False,
    allow_unjudged: Annotated[
        bool, option("--allow-unjudged", help="Drop judgements of unknown ids, and count them.")
    ] = False,
    on_duplicate: Annotated[
        str, option(help="What to do with equal ids; first keeps the first.", metavar="error|first")
    ] = "error",
    as_json: JsonOption = False,
) -> None:
    """Read a collection of any format into the canonical form, or --check it."""
    if to is None and not check:
        raise SettingsError("USAGE", "Missing option '--to'", "give the new folder, or --check to write nothing")
    if to is not None and check:
        raise SettingsError("USAGE", "--to and --check do not go together", "leave one of them out")
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

    found = check_import(source, language=language, **rules)
    show_result(found.as_json(), as_json, lambda facts: facts_table({**facts, "lines": None}))
    if found.faults:
        raise Faults(found.faults)


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
    depth: Annotated[int, option(min=1, help="Number of hits of a run to mine from.")] = 200,
    count: Annotated[
        int,
        option(min=1, help="Negatives of each source for a query; query and lookahead share 2 x this by --beta."),
    ] = 30,
    previous: Annotated[Path | None, option(help="The pool before, for momentum.", metavar="POOL")] = None,
    file: Annotated[
        Path | None, option(help="Run, pool or JSON that the source `file` reads.", metavar="FILE")
    ] = None,
    alpha: Annotated[float, option(help="Share of momentum, below 1.", metavar="SHARE")] = 0.5,
    beta: Annotated[float, option(help="Share of lookahead in the new part, below 1.", metavar="SHARE")] = 0.5,
    rank_from: Annotated[int, option(min=1, help="First rank to mine.")] = 1,
    rank_to: Annotated[int | None, option(min=1, help="Last rank to mine.")] = None,
    max_score: MaxScore = None,
    absolute_margin: AbsoluteMargin = None,
    relative_margin: RelativeMargin = None,
    top: TopOption = None,
    filter_by: Annotated[
        str | None,
        option(help="Apply the score bounds to this model's scores (default: the miner's).", metavar="MODEL"),
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
        filters=Filters(rank_from, rank_to, max_score, absolute_margin, relative_margin, top),
        filter_by=filter_by,
        labels=labels_named(labels),
        judgements=judgements,
        seed=seed,
        **machine.places,
    )
    with group():
        pool = execute(data, model, out, **arguments)
        if is_leader():
            show_result({"pool": str(out), **pool_stats(pool)}, as_json, facts_table)


def inspect(
    path: PoolArgument,
    data: OwnData = None,
    query: Annotated[str | None, option(help="Show the query with this id.", metavar="ID")] = None,
    random: Annotated[int, option(min=1, help="Show so many queries, drawn by --seed.", metavar="N")] = 1,
    most: Annotated[int, option(min=1, help="Negatives to show for a query.")] = 20,
    seed: SeedOption = 0,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show queries with their positives and negatives."""
    begin()
    from hardneg.api.inspect import inspect as execute
    from hardneg.cli.tables import inspection_text

    found = execute(path, data, query_id=query, random=random, seed=seed, cache=cache)
    show_result(found, as_json, lambda found: "\n\n".join(inspection_text(one, most) for one in found))


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run file, or an experiment.", metavar="RUN")],
    data: MaybeData = None,
    split: SplitOption = "test",
    qrels: QrelsOption = None,
    judgements: JudgementsOption = None,
    measures: MeasuresOption = "RR@10 nDCG@10 R@100 R@1000",
    per_query: PerQueryOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a run, or an experiment, by judgements."""
    from hardneg.api.evaluate import evaluate as execute
    from hardneg.cli.tables import evaluation_table

    result = execute(
        run,
        data=data,
        split=split,
        qrels=qrels,
        judgements=judgements,
        measures=measures,
        per_query=per_query,
        cache=cache,
    )
    show_result(result, as_json, evaluation_table)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run files or experiments.", metavar="RUN...")],
    data: MaybeData = None,
    split: SplitOption = "test",
    qrels: QrelsOption = None,
    measures: MeasuresOption = "RR@10 nDCG@10",
    seed: SeedOption = 0,
    per_query: PerQueryOption = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs or experiments by paired tests.

    Every pair is tested by randomisation, with Holm's correction. Wins, ties and losses are counted, and the
    hits that both have among their first 100.
    """
    from hardneg.api.evaluate import compare as execute
    from hardneg.cli.tables import comparison_table

    where: dict[str, Any] = {"data": data, "split": split, "qrels": qrels, "per_query": per_query}
    rows = execute(runs, measures=measures, seed=seed, cache=cache, **where)
    show_result(rows, as_json, comparison_table)

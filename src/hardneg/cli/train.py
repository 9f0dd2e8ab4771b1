"""The commands ``hardneg train RECIPE``, made from the catalogue of recipes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
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
    JsonOption,
    JudgementsOption,
    MaxRam,
    MaxVram,
    ModelOption,
    PassageModel,
    PresetOption,
    PromptsOption,
    SeedsOption,
    TestSplit,
    ThreadsOption,
    TrainSplit,
    begin,
    example,
    parameters_of,
    show,
    show_result,
    tune,
    with_parameters,
)
from hardneg.recipes.catalogue import ANCE_TELE, RecipeFacts, RecipeOption

EXAMPLE = example(*ANCE_TELE.example)  # shown where no recipe is named
AFTER_SPLITS, AFTER_MODEL = "judgements", "prompts"  # a recipe's own options follow these shared ones in the help


def train_commands(recipes: Iterable[RecipeFacts]) -> typer.Typer:
    """Make the command ``train`` with a subcommand for each of these recipes."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback(invoke_without_command=True)(train)
    for facts in recipes:
        app.command(facts.name, help=facts.help, epilog=example(*facts.example))(command_of(facts))
    return app


def train(context: typer.Context) -> None:
    """Run a recipe from start to results; the same command resumes."""
    if context.invoked_subcommand is None:
        show(context.get_help())


def command_of(facts: RecipeFacts) -> Callable[..., None]:
    """Make the command of a recipe: it has the options that all recipes share, and the recipe's own."""
    options = {option.name: option for option in (*facts.options, *facts.model_options)}

    def command(**given: Any) -> None:
        own = {name: given.pop(name) for name in options}
        values = {name: own.pop(name) for name, option in options.items() if option.is_setting}
        values |= {"filter_by": "given"} if own.get("filter_by") else {}
        run(facts.name, **given, values=values, arguments=own)

    parameters = []
    for parameter in parameters_of(run):
        if parameter.name not in ("recipe", "values", "arguments"):
            parameters.append(parameter)
        if parameter.name == AFTER_SPLITS:
            parameters += map(parameter_of, facts.options)
        if parameter.name == AFTER_MODEL:
            parameters += map(parameter_of, facts.model_options)
    return with_parameters(command, parameters)


def parameter_of(option: RecipeOption) -> inspect.Parameter:
    """The parameter by which typer reads an option of a recipe."""
    shown = typer.Option(option.typed, min=option.least, help=option.help)
    kind: Any = option.kind
    annotation = Annotated[kind | None, shown]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def run(
    recipe: str,
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
    judgements: JudgementsOption = None,
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
    *,
    values: dict[str, Any],
    arguments: dict[str, Any],
) -> None:
    """Train by a recipe: its settings and arguments come from the shared options and from the recipe's own.

    Parameters
    ----------
    values : settings that the recipe's own options give.
    arguments : other arguments of the recipe that its own options give.
    """
    begin(resumable=True, code=allow_code)
    from hardneg.api.inputs import check_free
    from hardneg.process.distributed import rank

    check_free(out)
    from hardneg.api import recipes
    from hardneg.cli.tables import estimate_text, results_table, settings_text
    from hardneg.data.training_data import Splits

    tune(threads, max_ram, max_vram)
    given = {name: value for name, value in {"prompts": prompts, **values}.items() if value is not None}
    settings = recipes.settings_of(recipe, preset, config, assignments or [], device=device, out=out, **given)
    common = {
        "settings": settings,
        "splits": Splits(train, dev, test),
        "seeds": seeds,
        "judgements": judgements,
        "passage_model": passage_model,
        "allow_bin": allow_bin,
        "cache": cache,
        "device": device,
        **arguments,
    }
    if dry_run or estimate:
        plan = recipes.plan(recipe, data, model, out, estimate=estimate, **common)
        show_result(plan, as_json, estimate_text if estimate else settings_text)
        return
    results = recipes.train(recipe, data, model, out, **common)
    if not results or rank():  # one role or process of several: another one shows the results
        return
    show_result(results, as_json, lambda found: results_table(found, out))


def role() -> None:
    """Run one role of an experiment; the supervisor describes it on standard input."""
    import sys

    begin(resumable=True)
    from hardneg.api.recipes import recipe_named
    from hardneg.recipes.ance.roles import read_job, take_role

    job = read_job(sys.stdin)
    take_role(recipe_named(job.recipe), job)

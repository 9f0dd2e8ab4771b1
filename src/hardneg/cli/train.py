"""The commands ``hardneg train RECIPE``, made from the catalogue of recipes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from hardneg.cli.help import Command, Group
from hardneg.cli.options import (
    AllowBin,
    AllowCode,
    Assignments,
    ConfigOption,
    DevicesOption,
    DevSplit,
    DryRun,
    Estimate,
    ExperimentOption,
    JsonOption,
    Machine,
    MinutesOption,
    PassageModel,
    PeopleOption,
    PresetOption,
    PromptsOption,
    SeedsOption,
    TestSplit,
    TrainData,
    TrainModel,
    TrainSplit,
    begin,
    example,
    parameters_of,
    show,
    show_result,
    with_parameters,
    with_shared,
)
from hardneg.errors import SettingsError
from hardneg.recipes.catalogue import ANCE_TELE, RecipeFacts, RecipeOption
from hardneg.recipes.usual import USUAL, UsualOption

EXAMPLE = example(*ANCE_TELE.example)  # shown where no recipe is named
AFTER = {"preset": "usual", "judgements": "own", "prompts": "model"}  # other options follow these in the help
OURS = ("recipe", "values", "arguments", "usual", "beside")  # parameters whose values come from the command itself
NEEDED = ("data", "model", "out")  # on the command line, or in the file of --config
SPLITS = ("train", "dev", "test")
CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def train_commands(recipes: Iterable[RecipeFacts]) -> typer.Typer:
    """Make the command ``train`` with a subcommand for each of these recipes."""
    app = typer.Typer(rich_markup_mode=None, cls=Group)
    app.callback(invoke_without_command=True)(train)
    for facts in recipes:
        made = app.command(facts.name, help=facts.help, epilog=example(*facts.example), cls=Command)
        made(command_of(facts))
    return app


def train(context: typer.Context) -> None:
    """Run a recipe from start to results, or resume it.

    The same command again goes on where it was interrupted.
    """
    if context.invoked_subcommand is None:
        show(context.get_help())
        raise typer.Exit(SettingsError.status)  # a script that forgot the recipe must not go on


def command_of(facts: RecipeFacts) -> Callable[..., None]:
    """Make the command of a recipe: it has the options that all recipes share, and the recipe's own."""
    options = {option.name: option for option in (*facts.options, *facts.model_options)}

    def command(context: typer.Context, **given: Any) -> None:
        beside = flags_of(context.command.params, facts.name)
        own = {name: given.pop(name) for name in options}
        values = {name: own.pop(name) for name, option in options.items() if option.is_setting}
        values |= {"filter_by": "given"} if own.get("filter_by") else {}
        usual = {option.name: given.pop(option.name) for option in USUAL}
        run(facts.name, **with_config(given), values=values, arguments=own, usual=usual, beside=beside)

    others = {
        "usual": [usual_parameter(option, facts.name) for option in USUAL],
        "own": [parameter_of(option, "Recipe") for option in facts.options],
        "model": [parameter_of(option, "Model") for option in facts.model_options],
    }
    parameters = [CONTEXT]
    for parameter in parameters_of(run):
        if parameter.name not in (*OURS, *facts.without):
            parameters.append(
                parameter.replace(default=None) if parameter.name in (*NEEDED, *SPLITS) else parameter
            )
        parameters += others.get(AFTER.get(parameter.name, ""), [])
    return with_parameters(command, parameters)


def flags_of(parameters: Iterable[Any], recipe: str) -> dict[str, str]:
    """How each parameter of a recipe's command is typed, by the name that a settings file would have for it.

    An option for what everyone sets is left out if the recipe has no setting for it.
    """
    absent = {option.name for option in USUAL if not option.settings_of(recipe)}
    flags = [one.opts[0] for one in parameters if one.name not in absent]
    return {flag.lstrip("-").replace("-", "_"): f"the option {flag}" for flag in flags}


def with_config(given: dict[str, Any]) -> dict[str, Any]:
    """The options, completed by what the file of ``--config`` names besides settings; options win over it."""
    from hardneg.config import split_config
    from hardneg.storage.digests import in_home

    named: dict[str, Any] = {} if given["config"] is None else split_config(given["config"])[0]
    found = {name: named.get(name) if value is None else value for name, value in given.items()}
    for name in NEEDED:
        if found[name] is None:
            fix = f"give it, or write {name} = ... into the file of --config"
            raise SettingsError("USAGE", f"Missing option '--{name}'", fix)
        if not str(found[name]).strip():
            raise SettingsError(
                "USAGE", f"{name} is empty in the file of --config", "give it, or leave it out there"
            )
        if str(found[name]).startswith("~"):  # no shell has read the file
            found[name] = str(in_home(str(found[name])))
    given = {name: value for name, value in found.items() if value is not None or name not in SPLITS}
    return given | {"out": Path(str(found["out"]))}


def parameter_of(option: RecipeOption, panel: str) -> inspect.Parameter:
    """The parameter by which typer reads an option of a recipe."""
    shown = typer.Option(
        option.typed, metavar=option.metavar or "N", min=option.least, help=option.help, rich_help_panel=panel
    )
    return optional_parameter(option.name, option.kind, shown)


def usual_parameter(option: UsualOption, recipe: str) -> inspect.Parameter:
    """The parameter by which typer reads an option for what everyone sets; help hides it where it is refused."""
    shown = typer.Option(
        option.flag,
        metavar=option.metavar,
        min=option.least,
        help=option.help,
        rich_help_panel="Settings",
        hidden=not option.settings_of(recipe),
    )
    return optional_parameter(option.name, option.kind, shown)


def optional_parameter(name: str, kind: Any, shown: Any) -> inspect.Parameter:
    """The parameter of an option that may be left out."""
    annotation = Annotated[kind | None, shown]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@with_shared
def run(
    recipe: str,
    data: TrainData = "",
    model: TrainModel = "",
    out: ExperimentOption = Path(),
    config: ConfigOption = None,
    preset: PresetOption = None,
    assignments: Assignments = None,
    train: TrainSplit = "train",
    dev: DevSplit = "auto",
    test: TestSplit = "test",
    judgements: PeopleOption = None,
    passage_model: PassageModel = None,
    allow_bin: AllowBin = False,
    allow_code: AllowCode = None,
    prompts: PromptsOption = None,
    seeds: SeedsOption = 1,
    minutes: MinutesOption = None,
    dry_run: DryRun = False,
    estimate: Estimate = False,
    devices: DevicesOption = "1",
    *,
    machine: Machine,
    as_json: JsonOption = False,
    values: dict[str, Any],
    arguments: dict[str, Any],
    usual: dict[str, Any],
    beside: dict[str, str],
) -> None:
    """Train by a recipe: its settings and arguments come from the shared options and from the recipe's own.

    Parameters
    ----------
    values : settings that the recipe's own options give.
    arguments : other arguments of the recipe that its own options give.
    usual : options for what everyone sets, by name.
    beside : how each option is typed, by its name.
    """
    begin(resumable=True, code=allow_code)
    from hardneg.api.inputs import check_free
    from hardneg.process.distributed import rank

    check_free(out)
    from hardneg.api import recipes
    from hardneg.cli.ending import ending_text
    from hardneg.cli.tables import estimate_text, settings_text
    from hardneg.data.training_data import Splits
    from hardneg.process.launch import check_alone

    machine.tune()
    given = {name: value for name, value in {"prompts": prompts, **values}.items() if value is not None}
    layers: Any = (recipe, preset, config, assignments or [])
    given |= {"usual": usual, "beside": beside}
    settings = recipes.settings_of(*layers, device=machine.device, out=out, **given)
    common = {
        "settings": settings,
        "splits": Splits(train, dev, test),
        "seeds": seeds,
        "minutes": minutes,
        "judgements": judgements,
        "passage_model": passage_model,
        "allow_bin": allow_bin,
        **machine.places,
        **arguments,
    }
    if dry_run or estimate or devices != "1":
        check_alone("--estimate" if estimate else "--dry-run" if dry_run else "--devices")
        plan = recipes.plan(recipe, data, model, out, estimate=estimate, devices=devices, **common)
        show_result(plan, as_json, estimate_text if estimate else settings_text)
        return
    results = recipes.train(recipe, data, model, out, **common)
    if rank() or not (results or as_json):  # one process or role of several: another one shows the results
        return
    show_result(results, as_json, lambda found: ending_text(found, out))


def role() -> int:
    """Run one role of an experiment; the supervisor describes it on standard input.

    Returns
    -------
    The exit status.
    """
    import sys

    begin(resumable=True)
    from hardneg.recipes.roles.jobs import lead, read_job

    job = read_job(sys.stdin)
    if job.processes > 1:
        return lead(job)
    from hardneg.api.recipes import recipe_named
    from hardneg.process.distributed import group
    from hardneg.recipes.roles.taking import take_role

    with group():
        take_role(recipe_named(job.recipe), job)
    return 0

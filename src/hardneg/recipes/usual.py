"""The options of ``hardneg train`` for what everyone sets, and the settings that each of them gives a recipe.

This table is the only place that knows the settings by which a recipe counts its steps, negatives and lengths. It
loads no torch, for help shows the options.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hardneg.errors import Faults, HardnegError, SettingsError


@dataclass(frozen=True)
class UsualOption:
    """An option that every ``hardneg train RECIPE`` has.

    Attributes
    ----------
    name : by which the value is passed on.
    flag, metavar, kind, help : the option as a user types it and reads it.
    setting : the setting that it gives most recipes.
    of : the settings that it gives others, by recipe; none: such a recipe refuses the option.
    instead : what a recipe that refuses it has instead, by recipe.
    more : what is added to the value, by recipe.
    unsets : settings that would win over the value, or bound it; they are taken back.
    least, choices : what values there are.
    """

    name: str
    flag: str
    metavar: str
    kind: type
    help: str
    setting: str
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, int] = field(default_factory=dict)
    unsets: tuple[str, ...] = ()
    least: int | None = None

    def settings_of(self, recipe: str) -> tuple[str, ...]:
        """The settings that it gives a recipe; none: the recipe has no such setting."""
        return self.of.get(recipe, (self.setting,))

    def value_of(self, recipe: str, value: Any) -> Any:
        """The value of these settings."""
        return value + self.more[recipe] if recipe in self.more and type(value) is int else value


TURNS = "iterations, each of retriever_steps and ranker_steps"
USUAL: tuple[UsualOption, ...] = (
    UsualOption("lr", "--lr", "RATE", float, "Highest learning rate.", "learning_rate"),
    UsualOption(
        "steps",
        "--steps",
        "N",
        int,
        "Optimiser steps; of a recipe in episodes, those of a whole one.",
        "steps",
        of={"ance": (), "ar2": ()},
        instead={"ance": "refresh_every, of which it makes refreshes + 1, or --epochs", "ar2": TURNS},
        least=1,
    ),
    UsualOption(
        "epochs",
        "--epochs",
        "X",
        float,
        "Passes over the training queries, in place of --steps.",
        "epochs",
        unsets=("steps", "min_steps", "max_steps"),
    ),
    UsualOption("batch_size", "--batch-size", "N", int, "Queries of a step.", "queries_per_step", least=1),
    UsualOption(
        "n_negatives",
        "--negatives",
        "N",
        int,
        "Negatives of a query in a step, besides those of other queries.",
        "negatives_per_query",
        of={"ance-tele": ("passages_reference", "passages_paper"), "warmup": ("negatives",), "adore": ()},
        instead={"adore": "depth, the first hits of a query, all of which it compares"},
        more={"ance-tele": 1},  # its groups count the positive
        least=1,
    ),
    UsualOption(
        "max_length",
        "--max-length",
        "N",
        int,
        "Most tokens of a passage; of a ranker, those of a pair.",
        "passage_length",
        of={"ranker": ("max_length",)},
        least=3,
    ),
    UsualOption("seed", "--seed", "N", int, "Seed of all random draws.", "seed", least=0),
    UsualOption(
        "precision", "--precision", "KIND", str, "Numbers to compute in: float32 or bfloat16.", "precision"
    ),
)


def split_options(values: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a settings file in two parts: options for what everyone sets, and settings.

    An option is written as it is typed, with or without its dashes: ``lr``, ``batch_size``, ``"--batch-size"``.
    What is also the name of a setting of the recipe is that setting.

    Returns
    -------
    Values by the options' names, and by the settings'.

    Raises
    ------
    Faults : an option stands there twice, in two ways of writing.
    """
    flags = {option.flag.lstrip("-").replace("-", "_"): option.name for option in USUAL}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    faults: list[HardnegError] = []
    for key, value in values.items():
        plain = key.lstrip("-").replace("-", "_")
        name = key if key in known or plain not in {*known, *flags} else plain
        is_option = name in flags and name not in known
        part, name = (options, flags[name]) if is_option else (settings, name)
        if name in part:
            faults.append(SettingsError("BAD_SETTING", f"{key} is given twice", "leave one of them out"))
        part[name] = value
    if faults:
        raise Faults(faults)
    return options, settings


def usual_settings(
    recipe: str,
    given: Mapping[str, Any],
    known: Collection[str],
    assigned: Collection[str] = (),
    *,
    written: bool = False,
) -> dict[str, Any]:
    """The settings that these options give a recipe.

    Parameters
    ----------
    given : values by the options' names; None: the option is not given.
    known : the recipe's settings.
    assigned : settings that are set by name besides, which is once too often.
    written : the options stand in a settings file, beside those that are assigned.

    Raises
    ------
    Faults : options that the recipe has no setting for, or whose setting is given twice.
    """
    values: dict[str, Any] = {}
    faults = []
    for option in USUAL:
        if (value := given.get(option.name)) is None:
            continue
        names = [name for name in option.settings_of(recipe) if name in known]
        if not names:
            instead = option.instead.get(recipe)
            fix = f"set {instead}" if instead else "leave it out"
            faults.append(SettingsError("BAD_SETTING", f"{recipe} has no {option.flag}", fix))
        if twice := [name for name in names if name in assigned]:
            what = f"{twice[0]} is given twice, by {option.flag} and by {'name' if written else '--set'}"
            faults.append(SettingsError("BAD_SETTING", what, "leave one of them out"))
        values |= {name: None for name in option.unsets if name in known and name not in assigned}
        values |= {name: option.value_of(recipe, value) for name in names}
    if given.get("steps") is not None and given.get("epochs") is not None:
        faults.append(
            SettingsError("BAD_SETTING", "--steps and --epochs both say how long", "leave one of them out")
        )
    if faults:
        raise Faults(faults)
    return values

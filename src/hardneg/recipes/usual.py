"""The common options of ``hardneg train``, and the settings of a recipe that each of them sets.

The table says in which settings a recipe counts its steps, negatives and lengths, so that an option means the same
in all recipes. The module loads no torch, because help shows the options.
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
    name : the name by which the value is passed on.
    flag, metavar, kind, help : the option as a user types it and reads it.
    setting : the setting that the option sets in most recipes.
    of : recipe -> the settings that it sets there instead; an empty tuple: the recipe refuses the option.
    instead : recipe -> the settings to use instead, if the recipe refuses the option.
    more : recipe -> a number that is added to the value, or to each value of a list.
    unsets : settings that would override or bound the value; they are set to None.
    leaves : recipe -> those of them that do neither there, and stay.
    least : the least value of an integer.
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
    leaves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least: int | None = None

    def settings_of(self, recipe: str) -> tuple[str, ...]:
        """The settings that the option sets in a recipe; empty if the recipe refuses the option."""
        return self.of.get(recipe, (self.setting,))

    def value_of(self, recipe: str, value: Any) -> Any:
        """The value that these settings get from the value of the option."""
        more = self.more.get(recipe, 0)
        if isinstance(value, list):
            return [one + more if type(one) is int else one for one in value]
        return value + more if type(value) is int else value


TURNS = "iterations, each of retriever_steps and ranker_steps"
BOUNDS = ("min_steps", "max_steps")  # of the steps that epochs give
EARLIER = {"ance-tele": ("stop_step",)}  # it ends the episodes before the last one there
USUAL: tuple[UsualOption, ...] = (
    UsualOption("lr", "--lr", "RATE", float, "Peak learning rate.", "learning_rate"),
    UsualOption(
        "steps",
        "--steps",
        "N",
        int,
        "Training steps, each one update of the model; in a recipe with episodes, those of a full episode.",
        "steps",
        of={"ance": (), "ar2": ()},
        instead={"ance": "refresh_every, of which it makes refreshes + 1, or --epochs", "ar2": TURNS},
        unsets=("stop_step",),
        leaves=EARLIER,
        least=1,
    ),
    UsualOption(
        "epochs",
        "--epochs",
        "X",
        float,
        "Passes over the training queries, in place of --steps; of each mixture, of each full episode.",
        "epochs",
        unsets=("steps", *BOUNDS, "stop_step"),
        leaves=EARLIER,
    ),
    UsualOption(
        "batch_size",
        "--batch-size",
        "N",
        int,
        "Queries of a step.",
        "queries_per_step",
        unsets=("first_queries",),  # the steps of the first episode take as many
        least=1,
    ),
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
        "Maximum passage length in tokens; for a ranker, that of a pair.",
        "passage_length",
        of={"ranker": ("max_length",)},
        least=3,
    ),
    UsualOption("seed", "--seed", "N", int, "Seed of all random draws.", "seed", least=0),
    UsualOption(
        "precision", "--precision", "KIND", str, "Numbers to compute in: float32 or bfloat16.", "precision"
    ),
)
FLAGS = {option.flag.lstrip("-").replace("-", "_"): option.name for option in USUAL}  # as typed, without dashes


def split_options(values: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a settings file in two parts: common options, and settings.

    An option is written as it is typed, with or without its dashes: ``lr``, ``batch_size``, ``"--batch-size"``. A
    name that is also that of a setting of the recipe means the setting.

    Returns
    -------
    The values of options by name, and the values of settings by name.

    Raises
    ------
    Faults : an option is given twice, in two spellings.
    """
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    faults: list[HardnegError] = []
    for key, value in values.items():
        plain = key.lstrip("-").replace("-", "_")
        name = key if key in known or plain not in {*known, *FLAGS} else plain
        is_option = name in FLAGS and name not in known
        part, name = (options, FLAGS[name]) if is_option else (settings, name)
        if name in part:
            faults.append(SettingsError("BAD_SETTING", f"'{key}' is given twice", "leave one of them out"))
        part[name] = value
    if faults:
        raise Faults(faults)
    return options, settings


def usual_settings(
    recipe: str,
    given: Mapping[str, Any],
    known: Collection[str],
    assigned: Collection[str] = (),
    written: Collection[str] = (),
) -> dict[str, Any]:
    """The settings of a recipe that these options set.

    Parameters
    ----------
    given : values by the options' names; None: the option is not given.
    known : the recipe's settings.
    assigned, written : settings that the user sets by ``--set``, and by name in a file or in Python; an option for
        such a setting is a fault.

    Raises
    ------
    Faults : the recipe has no setting for an option, or a setting is given twice.
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
        if twice := [name for name in names if name in assigned or name in written]:
            what = (
                f"{twice[0]} is given twice, by {option.flag} and by {'name' if twice[0] in written else '--set'}"
            )
            faults.append(SettingsError("BAD_SETTING", what, "leave one of them out"))
        unset = set(option.unsets).difference(option.leaves.get(recipe, ()), assigned, written)
        values |= {name: None for name in option.unsets if name in known and name in unset}
        values |= {name: option.value_of(recipe, value) for name in names}
    if given.get("steps") is not None and given.get("epochs") is not None:
        faults.append(
            SettingsError("BAD_SETTING", "--steps and --epochs both say how long", "leave one of them out")
        )
    if faults:
        raise Faults(faults)
    return values

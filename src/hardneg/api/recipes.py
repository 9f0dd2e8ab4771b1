"""The recipes by name, and a function to train with each."""

from __future__ import annotations

import importlib
from typing import Any

from hardneg.api import train as training
from hardneg.api.inputs import Data, Place
from hardneg.api.outcomes import Results
from hardneg.api.settings import recipe_settings
from hardneg.arguments import checked
from hardneg.config import nearest
from hardneg.errors import SettingsError
from hardneg.process.progress import showing
from hardneg.recipes.catalogue import CATALOGUE
from hardneg.recipes.settings import Recipe, TrainingSettings

RECIPES: dict[str, Recipe] = {facts.name: importlib.import_module(facts.home).RECIPE for facts in CATALOGUE}


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
def train(recipe: str, data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Run a recipe and return the results; the same call resumes, or extends what may grow (``episodes``).

    Parameters
    ----------
    options : and all others as :func:`~hardneg.api.prepare.prepare` describes them.

    Returns
    -------
    What ``results.json`` holds: ``test`` and ``dev``: measures by state; ``comparisons``; ``forgetting``;
    ``pairwise_errors`` by split and state. With ``examine = "judged"`` it has ``examined`` in place of forgetting.
    Of several seeds: ``seeds``, and for every measure its ``mean``,
    ``std`` and ``values``. Of a role: {}.

    Raises
    ------
    As ``prepare``, and
    ArtifactError : something in ``out`` is damaged; the index is damaged, of another model or other passages, or
        not the one that the experiment began with.
    BusyError : another process works in ``out``.
    NumericError : a loss or gradient was not finite.
    """
    with showing(options.get("progress")):
        return Results(training.train_seeds(training.prepare(recipe_named(recipe), data, model, out, **options)))


@checked
def train_ance_tele(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train with teleportation negatives (Sun et al., 2022): :func:`train` with ``ance-tele``."""
    return train("ance-tele", data, model, out, **options)


@checked
def train_warmup(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train on BM25, random, in-batch or NCE negatives: :func:`train` with ``warmup``."""
    return train("warmup", data, model, out, **options)


@checked
def train_ance(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train with refreshed negatives (Xiong et al., 2021), in one process or two: :func:`train` with ``ance``."""
    return train("ance", data, model, out, **options)


@checked
def train_star(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train on static hard negatives and the reused batch (Zhan et al., 2021): :func:`train` with ``star``."""
    return train("star", data, model, out, **options)


@checked
def train_adore(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train the query side on what it retrieves (Zhan et al., 2021): :func:`train` with ``adore``."""
    return train("adore", data, model, out, **options)


@checked
def train_ar2(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train with a ranker that learns too (Zhang et al., 2022): :func:`train` with ``ar2``."""
    return train("ar2", data, model, out, **options)


@checked
def train_ranker(data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train a cross-encoder, from one or from an encoder, on groups of a pool: :func:`train` with ``ranker``."""
    return train("ranker", data, model, out, **options)

"""The recipes by name, and a function to train with each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
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
from hardneg.surroundings import kept_draws

RECIPES: dict[str, Recipe] = {facts.name: importlib.import_module(facts.home).RECIPE for facts in CATALOGUE}


def recipe_named(name: str) -> Recipe:
    """A recipe; raises :class:`SettingsError` for an unknown one."""
    if name not in RECIPES:
        raise SettingsError("UNKNOWN_RECIPE", f"no recipe is called {name!r:.60}", nearest(name, RECIPES))
    return RECIPES[name]


@checked
def settings_of(
    recipe: str,
    preset: str | None = None,
    config: Place | None = None,
    overrides: Sequence[str] = (),
    *,
    settings: TrainingSettings | None = None,
    usual: Mapping[str, Any] | None = None,
    device: str | None = None,
    out: Place | None = None,
    **values: Any,
) -> Any:
    """The settings of a recipe: its defaults, changed by what is given; later ones win.

    Parameters
    ----------
    recipe : such as ``ance-tele``.
    preset : the name of one of the recipe's presets; by default the one that the file ``config`` names.
    config : a TOML file of settings, as ``hardneg train --config`` takes it. Its ``data``, ``model``, ``out`` and
        splits play no part here.
    settings : settings of the recipe that were made before.
    usual : values of the options that all recipes share, by name, such as ``{"lr": 3e-5, "batch_size": 32}``.
    overrides : texts such as ``steps=100``, as ``--set`` takes them.
    values : settings by name, such as ``steps=100``.
    device, out : they decide the default of ``precision``: that of the experiment that was begun at ``out``, else
        the best of the device.

    Raises
    ------
    SettingsError : a setting is unknown or wrong (:class:`~hardneg.errors.Faults`: all that are).
    """
    given: dict[str, Any] = {"settings": settings, "usual": usual, "device": device, "out": out}
    return recipe_settings(recipe_named(recipe), preset, config, overrides, **given, **values)


@checked
def plan(
    recipe: str,
    data: Data,
    model: Place,
    out: Place | None = None,
    *,
    estimate: bool = False,
    devices: str | int = 1,
    **options: Any,
) -> dict[str, Any]:
    """What a recipe would do with the arguments of :func:`train`; everything is checked, and nothing is trained.

    One check is left to training: the comparison of an index's texts, because tokenising them may take long.

    Parameters
    ----------
    recipe, data, model, out, options : as for :func:`train`; ``out`` may be left out.
    estimate : also how long it would take here, and how much memory, timed on a sample.
    devices : the estimate is for this many devices like this one: 8; ``2x8`` for eight on each of two machines;
        ``6+2`` for six that train and two that mine (``ance`` and ``ar2`` in their asynchronous modes); ``@25``
        after any of these says that a device sends 25 GB a second to another one.

    Returns
    -------
    ``settings``; ``origins``: where the values come from that are not the defaults; ``episodes``: for each
    ``episode``, ``queries``, ``steps`` and ``passages_per_query``; ``facts``; with ``estimate``, ``seconds`` too.

    Raises
    ------
    As :func:`train`.
    """
    with kept_draws():
        return training.plan(recipe_named(recipe), data, model, out, estimate=estimate, devices=devices, **options)


@checked
def train(recipe: str, data: Data, model: Place, out: Place, **options: Any) -> Results:
    """Train a model by a recipe and return the results; the same call resumes it, or extends what may grow.

    ``hn.train("warmup", "my-data", "MODEL", "exp", preset="finetune")`` trains on your own data. The result stands
    in ``exp/model``, which sentence-transformers opens too. If training is interrupted, the same call goes on.
    Calls in several threads of a process take turns.

    Parameters
    ----------
    recipe : ``warmup`` (in-batch, BM25, random negatives); ``ance-tele``, ``ance`` and ``star`` (mined negatives);
        ``adore`` (the query side alone, over a fixed index); ``ar2`` (with a ranker that learns too); ``ranker``
        (a cross-encoder).
    data : a file or folder of questions and texts, a canonical collection, or an open one.
    model : the model to start from: a folder, a name on the hub, or ``package:NAME``.
    out : the experiment's folder.
    options : settings of the recipe by name, such as ``learning_rate``, ``epochs``, ``max_steps``,
        ``queries_per_step``, ``passage_length`` and ``seed``; ``hardneg settings RECIPE`` lists them with their
        meanings. Settings may come from several of these, of which the later ones win: ``preset`` (``finetune`` is
        for your own data), ``config`` (a TOML file), ``settings`` (made before by ``hn.settings_of``), and
        settings by name. Of the file, ``preset``, ``train``, ``dev`` and ``test`` count where ``preset`` and
        ``splits`` are not given; its ``data``, ``model`` and ``out`` are for the command alone. Other options:

        - ``splits`` (``hn.Splits``): which splits train, choose the best state, and test it;
        - ``seeds``: the number of experiments, each with another seed, whose figures are pooled;
        - ``minutes``: how long each of them may take here, by an estimate, in place of ``epochs``;
        - ``negatives``: a pool to train on first, which ``hn.mine`` made, or a number: negatives of a query in a
          step; ``judgements``: labels of people;
        - ``filter_by``, ``teacher``: frozen models that filter negatives, or whose scores are distilled;
        - ``index_folder`` (for ``adore``), ``ranker`` (for ``ar2``), ``retriever`` (for ``ranker``): what the
          recipe begins with;
        - ``passage_model``: a second model, for the passages; ``allow_bin``: read its weights from a pickle;
        - ``cache``: where token stores and vectors live; ``device``: ``cpu``, ``cuda``, ``cuda:1``;
        - ``role``: run only the trainer or only the inferencer of ``ance`` or ``ar2``; ``trainer_devices``,
          ``inferencer_devices``: the numbers of processes that train and that mine;
        - ``on_step``, ``on_state``: functions that are told of each step's record and of each measured state;
        - ``progress``: whether progress is shown; by default only in a notebook.

    Returns
    -------
    What ``out/results.json`` holds, as a dict that prints as one line and shows as a table: ``test`` and ``dev``,
    measures by state (``bm25``, ``untrained``, ``final``, ...); ``comparisons``, paired tests; ``kept``, the state
    in ``out/model``; ``forgetting`` and ``pairwise_errors`` where ``examine = "all"``. With several seeds:
    ``seeds``, and for every measure its ``mean``, ``std`` and ``values``. With ``role``: {}.

    Raises
    ------
    SettingsError : a setting or an argument is wrong; several at once are :class:`~hardneg.errors.Faults`.
    InputError : a line of the data is wrong, or no query can be trained on.
    ArtifactError : ``out`` holds another experiment, or something in it is damaged; the pool or the index is
        damaged, or of another collection or model.
    BusyError : another process works in ``out``.
    NumericError : a loss or gradient was not finite.
    TrustError : a model or an index would have to be read from a pickle.
    """
    with kept_draws(), showing(options.get("progress")):
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
    """Train on hard negatives mined once and in-batch ones (Zhan et al., 2021): :func:`train` with ``star``."""
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
    """Train a cross-encoder, from a ranker or an encoder, on groups of a pool: :func:`train` with ``ranker``."""
    return train("ranker", data, model, out, **options)

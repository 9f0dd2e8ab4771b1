"""Settings of recipes from their layers, with all faults at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hardneg.arguments import checked
from hardneg.config import build, read_overrides, read_preset, read_toml
from hardneg.errors import Faults, HardnegError
from hardneg.experiment.settings import Recipe, TrainingSettings
from hardneg.models.capacity import best_precision
from hardneg.operations.opening import Place
from hardneg.process.runtime import pick_device

T = TypeVar("T")


@checked
def recipe_settings(
    recipe: Recipe,
    preset: str | None = None,
    config: Place | None = None,
    overrides: Sequence[str] = (),
    *,
    settings: TrainingSettings | None = None,
    device: str | None = None,
    **values: Any,
) -> Any:
    """Settings of a recipe, from the defaults and these layers; later ones win.

    Parameters
    ----------
    preset : the name of one of the recipe's presets.
    config : a TOML file.
    settings : others, made before.
    overrides : ``key=value`` texts.
    values : settings by name.
    device : decides the default of ``precision``.

    Raises
    ------
    Faults : every unknown key, wrong type and value out of range at once, each with the nearest valid key.
    """
    readers: list[Callable[[], Mapping[str, Any]]] = [
        lambda: {"precision": best_precision(pick_device(device))},
        lambda: {} if preset is None else read_preset(recipe.name, preset),
        lambda: {} if config is None else read_toml(Path(config)),
        lambda: {} if settings is None else settings.model_dump(mode="json"),
        *(partial(read_overrides, [text]) for text in overrides),
    ]
    faults: list[HardnegError] = []
    layers = [layer for read in readers if (layer := attempt(read, faults)) is not None]
    built = attempt(lambda: build(recipe.settings, *layers, values), faults)
    if built is not None:
        attempt(built.check, faults)
    if built is None or faults:
        raise Faults(faults)
    sources = ["by default", f"preset {preset}", str(config), None, *("as set" for _ in overrides), "as set"]
    for layer, source in zip([*layers, values], sources, strict=True):
        if source is not None:
            built.coming_from(dict.fromkeys(layer, source))
        elif settings is not None:
            built.coming_from({name: settings.origin_of(name) for name in layer})
    return built


def attempt(read: Callable[[], T], faults: list[HardnegError]) -> T | None:
    """What ``read`` gives; None where it is at fault, which joins the other ``faults``."""
    try:
        return read()
    except Faults as several:
        faults.extend(several.faults)
    except HardnegError as fault:
        faults.append(fault)
    return None

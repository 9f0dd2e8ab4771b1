"""Settings of recipes from their layers, with all faults at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hardneg.config import build, read_overrides, read_preset, read_toml
from hardneg.errors import Faults, HardnegError, SettingsError
from hardneg.evaluation.measures import parse_measures
from hardneg.models.bi_encoder import best_precision
from hardneg.operations.opening import Place
from hardneg.recipes.ance_tele import AnceTele
from hardneg.runtime import pick_device

T = TypeVar("T")


def tele_settings(
    preset: str | None = None,
    config: Place | None = None,
    overrides: Sequence[str] = (),
    *,
    settings: AnceTele | None = None,
    device: str | None = None,
    **values: Any,
) -> AnceTele:
    """Settings of ANCE-Tele, from the defaults and these layers; later ones win.

    Parameters
    ----------
    preset : ``msmarco``, ``nq``, ``triviaqa`` or ``demo``.
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
        lambda: {} if preset is None else read_preset("ance-tele", preset),
        lambda: {} if config is None else read_toml(Path(config)),
        lambda: {} if settings is None else settings.model_dump(mode="json"),
        *(partial(read_overrides, [text]) for text in overrides),
    ]
    faults: list[HardnegError] = []
    layers = [layer for read in readers if (layer := attempt(read, faults)) is not None]
    built = attempt(lambda: build(AnceTele, *layers, values), faults)
    if built is not None:
        attempt(partial(check_settings, built), faults)
    if built is None or faults:
        raise Faults(faults)
    return built


def check_settings(settings: AnceTele) -> None:
    """Refuse what the settings alone cannot see to be wrong."""
    parse_measures(settings.measures)
    if len(set(settings.extra)) < len(settings.extra):
        what = f"extra = {settings.extra}: a source stands twice"
        raise SettingsError("REPEATED_SOURCE", what, "name each once")


def attempt(read: Callable[[], T], faults: list[HardnegError]) -> T | None:
    """What ``read`` gives; None where it is at fault, which joins the other ``faults``."""
    try:
        return read()
    except Faults as several:
        faults.extend(several.faults)
    except HardnegError as fault:
        faults.append(fault)
    return None

"""Warnings about a model's folder, which a command may read several times."""

from __future__ import annotations

from logging import Logger
from pathlib import Path

_said: set[tuple[object, ...]] = set()


def warn_once(log: Logger, folder: Path, message: str, *values: object) -> None:
    """Warn of something in a folder, once in a process.

    Parameters
    ----------
    message : with ``%`` places for the folder and the ``values``.
    """
    if (said := (folder.absolute(), message, *values)) not in _said:
        _said.add(said)
        log.warning(message, folder, *values)

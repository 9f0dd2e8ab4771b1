"""The system that this runs on: Linux."""

from __future__ import annotations

import sys

from hardneg.errors import SettingsError


def check_system() -> None:
    """Refuse any system but Linux.

    Locks, ``/proc`` and the affinity of processors are used in many places.

    Raises
    ------
    SettingsError : this is not Linux.
    """
    if sys.platform != "linux":
        what = f"hardneg runs on Linux only, but this is {sys.platform!r:.40}"
        raise SettingsError("NOT_LINUX", what, "use it on Linux, in a container, or under WSL")

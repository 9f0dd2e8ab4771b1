"""The environment variables of a launcher such as ``torchrun``: which process this is, and where the others are.

This module is kept apart from :mod:`~hardneg.process.distributed`, which opens a group: nothing here waits for
another process.
"""

from __future__ import annotations

import os
import socket

from hardneg.errors import SettingsError

each_speaks = False  # whether the processes of a machine have different things to say


def is_launched() -> bool:
    """Whether a launcher started this process, even if alone."""
    return "RANK" in os.environ


def rank() -> int:
    """The number of this process, as ``torchrun`` sets it; 0 when alone."""
    return _told("RANK", 0)


def world_size() -> int:
    """The number of processes that work together; 1 when alone."""
    return _told("WORLD_SIZE", 1, least=1)


def local_rank() -> int:
    """The number of this process on its machine."""
    return _told("LOCAL_RANK", 0)


def local_size() -> int:
    """The number of processes that share this machine."""
    return _told("LOCAL_WORLD_SIZE", 1, least=1)


def speaks() -> bool:
    """Whether this process tells people what all processes of this machine would tell alike."""
    return each_speaks or os.environ.get("LOCAL_RANK", "0") == "0"


def let_speak(*, each: bool) -> None:
    """Let ``each`` process of a machine warn, because it does work of its own; or only the first one."""
    global each_speaks
    each_speaks = each


def check_alone(command: str) -> None:
    """Refuse a command that does not divide its work between the processes that a launcher started.

    Raises
    ------
    SettingsError : there are several (exit 2).
    """
    if world_size() > 1:
        what = f"{command} works in one process, but the launcher started {world_size()}"
        raise SettingsError("ONE_PROCESS", what, "start it without torchrun (unset RANK and WORLD_SIZE)")


def _told(name: str, alone: int, *, least: int = 0) -> int:
    """A number that the launcher put into the environment; ``alone`` where it put none."""
    text = os.environ.get(name, str(alone))
    if not text.isdecimal() or int(text) < least:
        raise bad_launch(f"{name} = {text!r:.40}, not a number from {least} on")
    return int(text)


def bad_launch(what: str) -> SettingsError:
    """The fault of an environment that says only a part of what ``torchrun`` says."""
    return SettingsError("BAD_LAUNCH", what, "start it by torchrun, or unset RANK and WORLD_SIZE")


def check_launch(*needed: str) -> None:
    """Refuse a rank outside of the world, and several processes where one of the ``needed`` names is not set.

    Raises
    ------
    SettingsError : the environment variables that the launcher sets are wrong or incomplete (exit 2).
    """
    if rank() >= world_size():
        raise bad_launch(f"RANK = {rank()}, but WORLD_SIZE is {os.environ.get('WORLD_SIZE', 'not set')}")
    missing = [name for name in ("RANK", *needed) if not os.environ.get(name)]
    if world_size() > 1 and missing:
        raise bad_launch(f"WORLD_SIZE = {world_size()}, but {' and '.join(missing)} is not set")


def is_heard(host: str, port: int) -> bool:
    """Whether a process listens at ``host`` and ``port``."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except (OSError, OverflowError):
        return False
    return True

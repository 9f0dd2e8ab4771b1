"""Processes that work together compare what they were told before they work: one may have another command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hardneg import __version__
from hardneg.errors import SettingsError
from hardneg.process.distributed import member, peers


def check_told_alike(told: Mapping[str, Any]) -> None:
    """Refuse processes of one group that were told different things; alone, nothing is compared.

    All processes of the group call this together, and each of them raises the same fault.

    Parameters
    ----------
    told : what must be equal, by name; values that JSON can write, or that ``str`` tells.

    Raises
    ------
    SettingsError : a process has another value, or another version of hardneg (exit 2).
    """
    _, count = member()
    if count == 1:
        return
    import torch.distributed as dist

    mine = {"version": __version__, **told}
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in mine.items()}
    given: list[Any] = [None] * count
    with peers():
        dist.all_gather_object(given, texts)
    first = given[0]
    for number, other in enumerate(given):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if names:
            differing = [
                f"{name} = {other.get(name)!s:.60}, but process 0 has {first.get(name)!s:.60}"
                for name in names[:3]
            ]
            more = f", and {len(names) - 3} more" if len(names) > 3 else ""
            what = f"process {number} has {'; '.join(differing)}{more}"
            fix = "start all processes with the same command and version, on machines of one kind"
            raise SettingsError("RANKS_DIFFER", what, fix)

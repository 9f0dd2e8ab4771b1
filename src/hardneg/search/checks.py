"""What every search refuses before it computes anything."""

from __future__ import annotations

from hardneg.errors import InputError, SettingsError


def check_request(queries: int, passages: int, k: int) -> int:
    """How many hits a search for ``k`` gives: all passages when there are fewer.

    Raises
    ------
    SettingsError
        ``k`` is below 1.
    InputError
        There are no queries or no passages.
    """
    if k < 1:
        raise SettingsError("BAD_K", f"k is {k}", "search for at least one hit")
    if queries == 0:
        raise InputError("NO_QUERIES", "there are no queries", "give at least one query")
    if passages == 0:
        raise InputError("NO_PASSAGES", "there are no passages", "give at least one passage")
    return min(k, passages)

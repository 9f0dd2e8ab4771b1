"""An audit as plain text for a terminal: counts, and suspected pairs side by side with their positives."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hardneg.cli.tables import plain, table
from hardneg.errors import SettingsError
from hardneg.shown import counted

WIDTH, LINES = 54, 6  # of a text: characters of a line, and lines


def thresholds_of(given: Sequence[str]) -> dict[str, float]:
    """The value of each signal, from texts ``SIGNAL=VALUE``."""
    pairs = [threshold_of(one) for one in given]
    values = dict(pairs)
    if twice := [name for name in values if [one for one, _ in pairs].count(name) > 1]:
        raise SettingsError("BAD_SETTING", f"--threshold {twice[0]} is given twice", "leave one of them out")
    return values


def threshold_of(given: str) -> tuple[str, float]:
    """The signal and the value of ``SIGNAL=VALUE``."""
    name, _, value = given.partition("=")
    try:
        return name, float(value)
    except ValueError:
        what = f"--threshold {given!r:.60}"
        raise SettingsError("BAD_SETTING", what, "write it as SIGNAL=VALUE, such as text=0.6") from None


def audit_text(found: Mapping[str, Any], most: int) -> str:
    """What the signals say of a pool, and its most suspected pairs."""
    queries, pairs = counted(found["queries"], "query"), counted(found["pairs"], "negative")
    of = f"{queries}, {pairs}, {found['suspected']:,} suspected"
    of += f" ({found['judged']:,} more are judged)" if found["judged"] else ""
    parts = [f"{found['pool']}: {of}"]
    if found["signals"]:
        rows = [
            (one["signal"], one["threshold"], one["pairs"], one["queries"], one["meaning"])
            for one in found["signals"]
        ]
        parts.append(table(["signal", "from", "negatives", "queries", ""], rows))
    parts += [f"not known: {name}, because {why}" for name, why in found["left_out"].items()]
    shares = [(one["source"], one["pairs"], one["suspected"], one["share"]) for one in found["sources"]]
    parts.append(table(["source", "negatives", "suspected", "share"], shares))
    parts += [pair_text(place, one) for place, one in enumerate(found["suspects"][:most], 1)]
    return "\n\n".join(parts)


def pair_text(place: int, one: Mapping[str, Any]) -> str:
    """A suspected negative beside the positive of its query."""
    signals = ", ".join(f"{name} {one['signals'][name]:g}" for name in one["fired"])
    lines = [f"{place}. query {plain(one['query_id'])}: {plain(one['query'])}", f"   {signals}"]
    positive = one["positives"][0] if one["positives"] else None
    left = column(f"negative, {one['source']}", one)
    right = column("positive", positive) if positive else ["no positive"]
    lines += [f"   {a:{WIDTH}} | {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return "\n".join(lines)


def column(name: str, passage: Mapping[str, Any]) -> list[str]:
    """The lines of a passage; a text that is cut ends in dots."""
    title = "" if passage["title"] == passage["passage_id"] else plain(passage["title"])
    head = f"{name} [{plain(passage['passage_id'])}]"
    wrapped = textwrap.wrap(f"{title}: {plain(passage['text'])}" if title else plain(passage["text"]), WIDTH)
    if len(wrapped) > LINES:
        wrapped = [*wrapped[: LINES - 1], wrapped[LINES - 1][: WIDTH - 1] + "…"]
    return [*textwrap.wrap(head, WIDTH), *wrapped]

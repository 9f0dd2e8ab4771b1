"""Colour on a terminal, and never anywhere else: not in files and pipes, and not against NO_COLOR."""

from __future__ import annotations

import os
import sys
from typing import Literal, TextIO

Style = Literal["bold", "red", "green", "yellow"]
CODES: dict[Style, str] = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}


def painted(text: str, style: Style, stream: TextIO | None = None) -> str:
    """A text in a style, if ``stream`` (default: stdout) is a terminal whose user wants colour."""
    return f"\033[{CODES[style]}m{text}\033[0m" if shows_colour(stream or sys.stdout) else text


def shows_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colour; see https://no-color.org for NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # the stream was replaced or closed
        return False

"""Characters of foreign texts that nobody sees, but that control a terminal, turn a text or break a picture."""

from __future__ import annotations

import re

# Control characters but tab and line feed; marks that turn the direction of the text after them or part its lines;
# halves of characters; and what XML, and so a picture, cannot hold. Joiners are a part of words, and stay.
HIDDEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """A text whose hidden characters are shown by their code, such as ``⟨U+202E⟩``."""
    return HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def harmless(text: str) -> str:
    """A text for a terminal, which would obey hidden characters: they are escaped as in Python."""
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)

"""Scripts and style sheets of a report's page, and the bundle of libraries that draws its charts."""

from __future__ import annotations

import functools
import re
from importlib import resources
from pathlib import Path
from typing import Any

from hardneg.errors import HardnegError
from hardneg.storage.artifacts import is_current, publish
from hardneg.storage.digests import cache_root, digest_json

SCRIPTS = "scripts"  # the cache's folder of bundles, and their kind of artefact
BUNDLE = "bundle.js"


def asset(name: str) -> str:
    """A style sheet or script of the package."""
    return resources.files("hardneg.report").joinpath("assets", name).read_text("utf-8")


@functools.cache
def libraries() -> str:
    """The script that draws charts: Vega, Vega-Lite and Vega-Embed, bundled so that nothing is loaded.

    Bundling takes two seconds, so the bundle of each version is kept in the user's cache, if that can be written.
    """
    import vl_convert

    version = str(vl_convert.__version__)  # type: ignore[attr-defined]
    try:
        place = cache_root() / SCRIPTS / digest_json([SCRIPTS, version])[:32]
        return kept(place, {"vl-convert": version})
    except (HardnegError, OSError):
        return bundled()


def kept(place: Path, inputs: dict[str, str]) -> str:
    """The bundle at this place of the cache; it is made if it is not there, or is that of another version."""
    if not is_current(place, SCRIPTS, inputs):
        with publish(place, SCRIPTS, inputs=inputs, replace=True) as draft:
            draft.text(BUNDLE, bundled())
    return (place / BUNDLE).read_text("utf-8")


def bundled() -> str:
    """The bundle, made anew; text in it that would end a script element is escaped."""
    import vl_convert

    bundle: Any = vl_convert.javascript_bundle
    return re.sub(r"<(?=/script|!--)", r"\\x3c", bundle(), flags=re.IGNORECASE)

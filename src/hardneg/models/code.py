"""Code that models bring with them: it runs only at a revision that the user names. This module loads no torch."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hardneg.arguments import checked
from hardneg.callers import in_callers_words
from hardneg.errors import SettingsError, TrustError
from hardneg.models.taken_over import needs_no_code
from hardneg.models.warned import warn_once
from hardneg.storage.artifacts import digest_file, digest_json

log = logging.getLogger(__name__)

LOADED = ("AutoConfig", "AutoModel", "AutoTokenizer")  # what transformers may look up in an auto_map here
REFERENCE = re.compile(r"\w+\.\w+")  # a class of a module that lies beside the settings
COMMIT, DIGEST = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")

_allowed: set[str] = set()


@checked
def allow_code(*revisions: str) -> None:
    """From now on, let this process run the code that models bring, at these revisions and no other.

    Parameters
    ----------
    revisions : the commit of a model on the hub, or the digest of the code in a folder, which its refusal names.

    Raises
    ------
    SettingsError : a revision is neither; the name of a branch would not pin anything.
    """
    for revision in revisions:
        if not COMMIT.fullmatch(revision) and not DIGEST.fullmatch(revision):
            what = f"--allow-code = {revision!r:.80}"
            raise SettingsError("BAD_SETTING", what, "give a whole commit, or the digest that a refusal names")
    _allowed.update(revisions)


def allowed_code() -> tuple[str, ...]:
    """The revisions whose code may run."""
    return tuple(sorted(_allowed))


def allowed_commits() -> list[str]:
    """The allowed revisions that are commits of the hub."""
    return [revision for revision in allowed_code() if COMMIT.fullmatch(revision)]


def check_code(folder: Path, settings: dict[Path, Any]) -> str | None:
    """The digest of the code that a model brings and may run; None where it brings none, or none is needed.

    Where nobody allowed the code of a type that transformers has taken over, transformers' own class reads the
    model, and a warning says so.

    Parameters
    ----------
    settings : the contents of the folder's JSON files. If the code of a model may run, that of its saved copy may.

    Raises
    ------
    TrustError : its revision is not allowed, or the code lies elsewhere.
    """
    asking = [file for file, content in settings.items() if isinstance(content, dict) and content.get("auto_map")]
    check_inside(settings)
    if not asking:
        return None
    needless = all(needs_no_code(folder, file, settings[file]) for file in asking)
    commit, digest = commit_of(folder), None
    if not commit or _allowed:  # else the hub was not asked for code
        try:
            digest = digest_json(
                {file.name: digest_file(file) for file in sorted(set(files_of(folder, settings)))}
            )
        except TrustError:
            if not needless:
                raise
    if digest and {commit, digest} & _allowed:
        _allowed.add(digest)
        return digest
    if not needless:
        for path, _, reference in references(settings):
            if not REFERENCE.fullmatch(reference):
                raise lies_elsewhere(path, reference)
        raise refusal(asking[0], commit or str(digest))
    tell_needless(folder, digest or commit, settings)
    return None


def check_inside(settings: dict[Path, Any]) -> None:
    """Refuse code that is named inside other settings, such as those of one of several parts of a model.

    transformers would ask on stdin whether it may run.

    Raises
    ------
    TrustError : there is such code, which no revision allows.
    """
    for file, content in settings.items():
        if not file.name.endswith("config.json") or not isinstance(content, dict):
            continue
        inside = (pair for value in content.values() for pair in named_in(value))
        if any(name == "auto_map" and value for name, value in inside):
            what = "a part of the model asks to run its own code (auto_map inside another setting)"
            raise TrustError("REMOTE_CODE", what, "use a model without such parts", path=file)


def named_in(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name in a JSON value with what it names, however deep it lies."""
    left = [content]
    while left:
        one = left.pop()
        left.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        if isinstance(one, dict):
            yield from one.items()


def tell_needless(folder: Path, revision: str | None, settings: dict[Path, Any]) -> None:
    """Warn that the code which a folder names does not run, and say how to run it where that is possible."""
    here = all(REFERENCE.fullmatch(reference) for _, _, reference in references(settings))
    message = "%s names code of its own (auto_map), which does not run: transformers has this type of model%s"
    how = in_callers_words(f"; --allow-code {revision} runs it")
    warn_once(log, folder, message, how if here and revision else "")


def refusal(path: Path, revision: str) -> TrustError:
    """The fault that refuses code which the settings at ``path`` ask to run."""
    what = "the model asks to run its own code (auto_map)"
    fix = f"read its code; if you trust it, allow it by --allow-code {revision}"
    return TrustError("REMOTE_CODE", what, fix, path=path)


def lies_elsewhere(path: Path, reference: str) -> TrustError:
    """The fault that refuses code outside the model's folder, which no revision of the model names."""
    what = f"the code that the model asks to run ({reference:.80}) is not in its folder"
    return TrustError("REMOTE_CODE", what, "use a model that brings all its code itself", path=path)


def commit_of(folder: Path) -> str | None:
    """The commit that the hub's client keeps in ``folder``, or in a folder above it; None for any other folder."""
    kept = [place.name for place in (folder, *folder.parents) if place.parent.name == "snapshots"]
    return next(filter(COMMIT.fullmatch, kept), None)


def files_of(folder: Path, settings: dict[Path, Any]) -> Iterator[Path]:
    """Yield the modules that transformers would load, and the files beside them that they import."""
    from transformers.dynamic_module_utils import get_relative_import_files

    for path, _, reference in references(settings):
        module = folder / f"{reference.partition('.')[0]}.py"
        if not REFERENCE.fullmatch(reference) or not module.is_file():
            raise lies_elsewhere(path, reference)
        yield module
        yield from map(Path, get_relative_import_files(module))


def references(settings: dict[Path, Any]) -> Iterator[tuple[Path, str, str]]:
    """Yield what the settings ask to load: file, name of the Auto class, and reference to the class.

    For a tokenizer, the slow class comes first, then the fast one.
    """
    for path, content in settings.items():
        asked = content.get("auto_map") if isinstance(content, dict) else None
        if isinstance(asked, list):  # an older form for tokenizers
            asked = {"AutoTokenizer": asked}
        for name, value in asked.items() if isinstance(asked, dict) else ():
            for reference in value if isinstance(value, list) else [value]:
                if name in LOADED and reference is not None:
                    yield path, name, str(reference)

"""The tables in a file or folder, one level deep and without what hardneg wrote there, and their splits."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

from hardneg.data.formats.columns import SPLITS
from hardneg.data.formats.folders import is_file, is_manifest, is_own, paths_in, sidecar_of
from hardneg.data.formats.lines import PACKED, packed
from hardneg.data.formats.tables import suffix_of
from hardneg.errors import InputError, ResourceError
from hardneg.process.progress import note

CORPORA = frozenset({"corpus", "collection", "passages", "documents", "docs"})
NO_TABLES = re.compile(
    r"(?:dataset_dict|dataset_infos?|state|config)\.json|.*\.manifest\.json|cache-.*|lost\+found|[._].*"
)
TRAIN = "train"


def table_files(place: Path) -> list[Path]:
    """The tables in a file or folder, one level deep, in order of name; none may be there plain and packed."""
    if place.is_file():
        return [place] if suffix_of(place) else []
    inside = paths_inside(place)
    there = {*inside}
    runs = {path for path in inside if sidecar_of(path) in there and is_manifest(sidecar_of(path), "run")}
    found = [path for path in inside if path not in runs and is_table(path, place)]
    plain = {path.with_name(path.name.removesuffix(".gz")): path for path in found}
    if len(plain) < len(found):
        twice = next(path for path in found if path.name.endswith(".gz") and path.with_suffix("") in found)
        raise InputError("AMBIGUOUS", "it is here plain and as .gz", "remove one of them", path=twice)
    for path in inside:  # left out, the split that it holds would be missing
        unread = path.name.lower().endswith(PACKED) or (path.suffix.lower() == ".gz" and path.suffix != ".gz")
        alone = unread and path.with_suffix("") not in plain
        if found and alone and suffix_of(path.with_suffix("")) and not is_hidden(path, place):
            raise packed(path)
    return found


def paths_inside(place: Path) -> list[Path]:
    """The paths in a folder, and in each folder in it that is neither hidden nor of hardneg, in order.

    Raises
    ------
    ResourceError : such a folder is closed to this user.
    """
    here, own = paths_in(place), own_folders(place)
    folders = [path for path in here if path.is_dir() and path not in own and not is_hidden(path, place)]
    try:
        return sorted([*here, *chain.from_iterable(map(paths_in, folders))])
    except ResourceError as fault:
        fault.fix = f"open the folder, move it away, or hide it (.{Path(str(fault.path)).name})"
        raise


def own_folders(place: Path) -> list[Path]:
    """The folders in a place that hardneg wrote, which are no data."""
    inside = [path for path in paths_in(place) if not is_hidden(path, place) and path.is_dir()]
    return [folder for folder in inside if is_own(folder)]


def tell_own(place: Path) -> None:
    """Say which folders of a place are not read, because hardneg wrote them."""
    if place.is_dir() and (own := own_folders(place)):
        names = ", ".join(folder.name for folder in own[:5]) + (", …" if len(own) > 5 else "")
        note(f"{place}: {names} {'is' if len(own) == 1 else 'are'} of hardneg, and not read as data")


def is_table(path: Path, place: Path) -> bool:
    """Whether a file below a place may be one of its tables."""
    return bool(suffix_of(path)) and not is_hidden(path, place) and is_file(path)


def is_hidden(path: Path, place: Path) -> bool:
    """Whether a file below a place, or a folder on the way, is hidden or one that ``datasets`` or a disk adds."""
    return any(NO_TABLES.fullmatch(part) for part in path.relative_to(place).parts)


def would_read(place: Path, path: Path) -> bool:
    """Whether a new file at ``path`` would be one of the tables of a folder."""
    beside = path.parent != place and path.parent.is_dir() and is_own(path.parent)
    return not beside and bool(suffix_of(path)) and not is_hidden(path, place)


def words_of(path: Path) -> list[str]:
    """The words of a file's name in lower case, without its suffixes."""
    return re.split(r"[^a-z0-9]+", path.name.removesuffix(".gz").rpartition(".")[0].lower()) or [""]


def split_of(path: Path, place: Path) -> str:
    """The split that a file's name says, or that of its folder below ``place``; else ``train``."""
    folder = re.split(r"[^a-z0-9]+", path.parent.name.lower()) if path.parent != place and place.is_dir() else []
    return next((SPLITS[word] for word in (*words_of(path), *folder) if word in SPLITS), TRAIN)

"""The place of an experiment's collection, and who began it: stored for convenience, they do not identify it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hardneg.callers import asked_by
from hardneg.data.collection import Collection
from hardneg.errors import ArtifactError, HardnegError, SettingsError
from hardneg.experiment.folder import read_settings
from hardneg.experiment.layout import Layout
from hardneg.process.distributed import is_leader
from hardneg.process.launch import world_size
from hardneg.storage.artifacts import MANIFEST, read_json, write_json

FIX = "give it with --data"


def remember_collection(experiment: Path, collection: Collection) -> None:
    """Store the path where the collection lies now and, the first time, the command that began the experiment."""
    stored, layout = places_of(experiment), Layout(experiment)
    begins = not stored and not layout.metrics.exists() and not layout.results.exists()
    begun = asked_by() if begins else stored.get("begun_by")
    if begins and begun and world_size() > 1:  # which the launcher was told, and not the command
        begun += f" (in {world_size()} processes)"
    places = {"collection": str(collection.path.absolute())} | ({"begun_by": begun} if begun else {})
    if is_leader() and stored != places:
        write_json(layout.places, places)


def begun_by(experiment: Path) -> str | None:
    """The command, or the function in Python, that began an experiment; None if it is not known."""
    return places_of(experiment).get("begun_by")


def places_of(experiment: Path) -> dict[str, str]:
    """The places that an experiment stored; empty if the file is missing or damaged."""
    with contextlib.suppress(HardnegError, FileNotFoundError):
        found = read_json(Layout(experiment).places)
        if isinstance(found, dict) and isinstance(found.get("collection"), str):
            return {name: value for name, value in found.items() if isinstance(value, str)}
    return {}


def collection_within(path: Path) -> Collection:
    """The collection of an experiment, or of the experiment that a pool belongs to.

    Raises
    ------
    SettingsError : the place of the collection is not stored, or the collection is no longer there.
    ArtifactError : another collection is at this place now.
    """
    inside = [place for place in (path.absolute(), *path.absolute().parents) if Layout(place).settings.is_file()]
    place = places_of(inside[0]).get("collection") if inside else None
    if place is None:
        raise SettingsError("NO_DATA", "nothing here says where the collection is", FIX, path=path)
    if not (Path(place) / MANIFEST).is_file():
        what = f"the collection of this experiment is not at {place} any more"
        raise SettingsError("NO_DATA", what, FIX, path=path)
    collection, digest = Collection.open(place), read_settings(inside[0])["inputs"].get("collection")
    if collection.digest != digest:
        what = f"the collection at {place} is another one now (digest {collection.digest[:12]}, was {digest:.12})"
        raise ArtifactError("INPUT_CHANGED", what, FIX, path=path)
    return collection

"""The seal of a finished experiment: a manifest with the digests of its results, metrics and artefacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardneg.errors import ArtifactError
from hardneg.experiment.layout import JUDGEMENTS, MARGINS, METRICS, PASSING, RESULTS, STATES, VERSION_LOG, Layout
from hardneg.experiment.metrics import RESTORE as RESTORE_FILE
from hardneg.experiment.states import StateRecord, states_text
from hardneg.storage.artifacts import (
    Manifest,
    artifacts_below,
    check_files,
    digest_file,
    is_published,
    json_bytes,
    publish_file,
    read_manifest,
    read_manifest_file,
    write_json,
)

KIND = "experiment"
RESTORE = (
    "restore the folder, or train in a new one"  # training does not make again what is in its results already
)
TRAIN = "train again with the same command, which makes the model anew"
SEALED = (RESULTS, METRICS, MARGINS, STATES, VERSION_LOG, JUDGEMENTS)  # files that a seal covers, if they exist


def write_results(folder: Path, results: Mapping[str, Any], states: Sequence[StateRecord] = ()) -> None:
    """Write ``states.jsonl``, if there are states, and ``results.json``; replace the old seal by a new one."""
    layout = Layout(folder)
    if states:
        with publish_file(layout.states, sidecar=layout.seal) as stream:
            stream.write(states_text(states))
    with publish_file(layout.results, sidecar=layout.seal) as stream:
        stream.write(json_bytes(results))
    seal(folder)


def seal(folder: Path) -> None:
    """Write the manifest of the files and artefacts of a finished experiment."""
    made = {
        path.relative_to(folder).as_posix(): read_manifest(path).digest
        for path in artifacts_below(folder)
        if not PASSING & set(path.relative_to(folder).parts)
    }
    files = {
        name: ((folder / name).stat().st_size, digest_file(folder / name))
        for name in SEALED
        if (folder / name).is_file()
    }
    write_json(Layout(folder).seal, Manifest(KIND, inputs=made, files=files).as_json())


def is_sealed(folder: Path) -> bool:
    """Whether the folder has the manifest of a finished experiment."""
    return Layout(folder).seal.is_file()


def read_seal(folder: Path) -> Manifest:
    """Read and verify the manifest of a finished experiment."""
    return read_manifest_file(Layout(folder).seal)


def check_seal(folder: Path) -> None:
    """Compare results and metrics with the manifest, if there is one.

    Raises
    ------
    ArtifactError : a file is damaged or missing.
    """
    if not is_sealed(folder):
        return
    try:
        check_files(folder, read_seal(folder), digest_file)
    except ArtifactError as fault:
        results = Layout(folder).results
        if fault.path != results or not results.is_file():
            raise ArtifactError(fault.code, fault.what, RESTORE_FILE, path=fault.path) from fault
        fix = "delete this file and run the same command again: it makes the results anew"
        raise ArtifactError(fault.code, fault.what, fix, path=results) from fault


def lost_models(folder: Path) -> list[Path]:
    """The folders of trained models that a finished experiment made and that are gone."""
    layout = Layout(folder)
    if not is_sealed(folder):
        return []
    made = read_seal(folder).inputs
    return [place for place in (layout.model, layout.ranker) if place.name in made and not is_published(place)]


def check_made(folder: Path) -> None:
    """Compare the artefacts that the experiment's manifest names with the manifests of those in the folder.

    Raises
    ------
    ArtifactError : an artefact is missing, or is another one.
    """
    for name, digest in read_seal(folder).inputs.items():
        place = folder / name
        if not is_published(place):
            what = "the experiment made this, but it is gone"
            fix = TRAIN if place in lost_models(folder) else RESTORE
            raise ArtifactError("MISSING_FILE", what, fix, path=place)
        if read_manifest(place).digest != digest:
            what = "this is not what the experiment made"
            raise ArtifactError("CORRUPT", what, RESTORE, path=place)

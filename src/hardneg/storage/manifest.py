"""The manifest of an artefact: what the folder is, what made it, and what is in it. It is written last."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardneg.errors import ArtifactError
from hardneg.storage.digests import digest_json
from hardneg.storage.os_errors import reading
from hardneg.storage.safe_read import as_written, plain_bytes

MANIFEST = "manifest.json"
CARD = "README.md"  # a page for people beside it: they may edit it or leave it behind, so no check looks at it
FORMAT_VERSION = 1
LATER = {  # kinds whose form has changed since
    "embeddings": 2,  # 2: they state their precision; their model's digest is of master weights, in any precision
    "embedding-shard": 2,
    "checkpoint": 2,  # 2: it holds several models, each in files named after it
}


def version_of(kind: str) -> int:
    """The format version that artefacts of this kind are written and read in."""
    return LATER.get(kind, FORMAT_VERSION)


@dataclass(frozen=True)
class Manifest:
    """The description of an artefact: what it is, what made it, and the size and SHA-256 of each file."""

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # the settings that made it
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of what it was made from
    facts: Mapping[str, Any] = field(default_factory=dict)  # counts and the like, for readers
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # name -> (bytes, sha256)
    format_version: int = FORMAT_VERSION

    @property
    def digest(self) -> str:
        """Identity of the artefact: no time, host or path is in it."""
        return digest_json(self._content())

    def as_json(self) -> dict[str, Any]:
        """The manifest as it is written: its own digest is in it, so that it is verified too."""
        return {**self._content(), "digest": self.digest}

    def _content(self) -> dict[str, Any]:
        return {
            "format_version": self.format_version,
            "kind": self.kind,
            "settings": dict(self.settings),
            "inputs": dict(self.inputs),
            "facts": dict(self.facts),
            "files": {name: {"bytes": size, "sha256": sha} for name, (size, sha) in sorted(self.files.items())},
        }


MAKERS = {  # the commands that make a kind
    "collection": "hardneg import",
    "embeddings": "hardneg encode",
    "embedding-shard": "hardneg encode",
    "index": "hardneg index",
    "negatives": "hardneg mine, score or train",
    "run": "hardneg search, fuse, rerank or train",
    "model": "hardneg train",
    "ranker": "hardneg train",
    "checkpoint": "hardneg train",
}
CACHED = re.compile("[0-9a-f]{32}")  # the name of a folder in a cache: the digest of what it was made from


def again(folder: Path, kind: str) -> str:
    """What to do about a damaged artefact of a kind, which may be unknown: how it is made again.

    One in a cache is made by the command that needs it.
    """
    made = "make the artefact again"
    if CACHED.fullmatch(folder.name):
        return f"{made}: delete {folder}, and run the same command again"
    return f"{made} ({MAKERS[kind]})" if kind in MAKERS else made


def read_manifest(path: Path, kind: str = "") -> Manifest:
    """Read and verify the manifest of an artefact's folder; the files that it names are not looked at.

    ``kind``: what is expected there, for the message if the manifest does not say it any more.
    """
    return read_manifest_file(path / MANIFEST, kind)


def read_manifest_file(path: Path, kind: str = "") -> Manifest:
    """Read and verify a manifest in a file of any name, such as that beside a run."""
    raw: Any = None
    try:
        with reading(path):
            data = plain_bytes(path)
        raw = json.loads(data)
        files = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in raw["files"].items()}
        manifest = Manifest(
            raw["kind"], raw["settings"], raw["inputs"], raw["facts"], files, raw["format_version"]
        )
        written = manifest.as_json()
        whole = {**written, **raw} == written and as_written(data, raw)
    except (FileNotFoundError, NotADirectoryError) as fault:
        if not path.parent.exists():
            raise ArtifactError(
                "NO_MANIFEST", "there is nothing here", "check the path", path=path.parent
            ) from fault
        what = f"no complete artefact is here ({path.name} is missing)"
        raise ArtifactError("NO_MANIFEST", what, remedy(path, kind), path=path.parent) from fault
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as fault:
        what = f"the manifest cannot be read ({fault})"
        kind = kind or str(raw.get("kind")) if isinstance(raw, dict) else kind
        raise ArtifactError("BAD_MANIFEST", what, remedy(path, kind), path=path) from fault
    if not whole:
        what = "the manifest is not as it was written"
        raise ArtifactError("CORRUPT", what, remedy(path, manifest.kind), path=path)
    return manifest


def remedy(path: Path, kind: str) -> str:
    """What to do about the damaged manifest in a file: one beside a run may be removed."""
    if path.name != MANIFEST and kind == "run":
        return f"remove it, or make the run again ({MAKERS[kind]})"
    return again(path.parent, kind)

"""Negatives that change during training: their versions, and the version in force at a step.

A version is an immutable folder ``v0000``, ``v0001``, ... that the inferencer publishes and the trainer reads. A
version exists if its folder has a manifest; times of files play no part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from hardneg.errors import ArtifactError, PeerError
from hardneg.experiment.layout import version_in, versions_in
from hardneg.experiment.metrics import RESTORE
from hardneg.process.distributed import by_leader, is_leader
from hardneg.recipes.roles.peers import Wait
from hardneg.storage.artifacts import is_published, publish_file, read_manifest
from hardneg.storage.disk import append_lines

Mode = Literal["sync", "async", "async-fixed"]


class Versions:
    """The versions of an experiment's negatives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, version: int) -> Path:
        """The folder of a version, whether or not it exists yet."""
        return version_in(self.folder, version)

    def is_complete(self, version: int) -> bool:
        """Whether a version is published."""
        return is_published(self.path(version))

    def newest(self) -> int | None:
        """The number of the newest complete version."""
        return next((number for number, path in reversed(versions_in(self.folder)) if is_published(path)), None)

    def step(self, version: int) -> int:
        """The step whose model mined a version, by its manifest: one that is deleted may be mined again later."""
        return int(read_manifest(self.path(version)).inputs["step"])


def split_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Split the log of versions into complete lines and a torn last one, if any; no file counts as no lines."""
    *lines, torn = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    return lines, torn


def read_rows(path: Path, lines: Sequence[bytes]) -> list[tuple[int, int]]:
    """Read (first step, version) from every line of a log of versions."""
    try:
        rows = [(row["step"], row["version"]) for row in map(json.loads, lines)]
        if not all(isinstance(number, int) for row in rows for number in row):
            raise ValueError("steps and versions are whole numbers")
        return rows
    except (ValueError, KeyError, TypeError) as fault:
        raise ArtifactError("BAD_JSON", f"not a log of versions ({fault})", RESTORE, path=path) from fault


def version_at(rows: Sequence[tuple[int, int]], step: int) -> int | None:
    """The version in force at ``step``, by the rows of the log; None before the first."""
    return next((version for first, version in reversed(rows) if first <= step), None)


def first_step_at(rows: Sequence[tuple[int, int]], step: int) -> int | None:
    """The step at which the version in force at ``step`` took effect; None before the first."""
    return next((first for first, _ in reversed(rows) if first <= step), None)


class VersionLog:
    """The first step of each version: one line for each change, flushed to the disk before the step is made.

    In a group of processes, rank 0 reads and writes the file for all.

    Parameters
    ----------
    made : the last step that an earlier run is known to have made. Up to this step, the version of the last line
        was in force.
    """

    def __init__(self, path: Path, made: int = -1) -> None:
        self.path, self.made = path, made
        self.rows = by_leader(self._read)

    def _read(self) -> list[tuple[int, int]]:
        """All rows; a torn last line, left by a crash, is cut off."""
        lines, torn = split_lines(self.path)
        if torn:
            with publish_file(self.path) as stream:
                stream.writelines(line + b"\n" for line in lines)
        rows = read_rows(self.path, lines)
        if self.made >= 0 and not rows:
            what = f"it has no version, although {self.made + 1} steps were made"
            raise ArtifactError("CORRUPT", what, RESTORE, path=self.path)
        return rows

    def check(self, used: Iterable[tuple[int, int]]) -> None:
        """Refuse a log that has lost lines: it must name the versions that were used, as the metrics have them.

        Parameters
        ----------
        used : (step, version) of steps that were made.
        """
        for step, version in used:
            if version_at(self.rows, step) != version:
                what = f"it does not say that step {step + 1} used version {version}, as the metrics do"
                raise ArtifactError("CORRUPT", what, RESTORE, path=self.path)

    def version_used(self, step: int) -> int | None:
        """The version in force at ``step``, if an earlier run made this step; else None."""
        if not self.rows or step > max(self.rows[-1][0], self.made):
            return None
        return version_at(self.rows, step)

    def append(self, step: int, version: int) -> None:
        """Write a change of version, and flush it."""
        self.rows.append((step, version))
        if not is_leader():
            return
        row = json.dumps({"step": step, "version": version}) + "\n"
        append_lines(self.path, row.encode())


class VersionSelector:
    """Selects the version in force at a step. This is the only place where training waits for mining.

    ``sync``: version k is mined with the model of step k·m and takes effect at this step. ``async-fixed``: version
    k is mined with the model of step (k - 1)·m and takes effect at step k·m. Version 1 would have the model of
    version 0, so it is not mined, and version 0 stays in force. ``async``: the newest complete version takes
    effect.

    Parameters
    ----------
    every : m, steps between refreshes.
    max_staleness : the most steps between the model that mined a version and the step that uses it (``async``).
    stop_when_stale : raise an error if the newest version is older, instead of waiting for a newer one.
    wait : blocks until a version is there; it decides how long to wait, and what to raise then.
    """

    def __init__(
        self,
        versions: Versions,
        version_log: VersionLog,
        mode: Mode,
        *,
        every: int,
        wait: Wait,
        max_staleness: int | None = None,
        stop_when_stale: bool = False,
    ) -> None:
        self.versions, self.version_log, self.mode, self.every = versions, version_log, mode, every
        self.wait, self.max_staleness, self.stop_when_stale = wait, max_staleness, stop_when_stale
        self.current: int | None = None

    def __call__(self, step: int) -> int:
        """The version in force at ``step`` (from 0). A step that is made again gets the version that it had."""
        version = self.version_log.version_used(step)
        if version is None:
            version = self._chosen(step)
            if version != self.current and (not self.version_log.rows or self.version_log.rows[-1][1] != version):
                self.version_log.append(step, version)
        elif version != self.current:
            self._check_kept(version)
        self.current = version
        return version

    def first_step(self, step: int) -> int:
        """The step at which the version in force at ``step`` took effect; ask only after a version was selected.

        In ``async`` the log alone has this step, so a resumed run gets the same answer as the run before it.
        """
        if self.mode != "async":
            return scheduled_version(self.mode, step, self.every) * self.every
        first = first_step_at(self.version_log.rows, step)
        assert first is not None, "no version is in force yet"
        return first

    def _chosen(self, step: int) -> int:
        """The version for a step that is made for the first time: rank 0 chooses for all, and waits for it."""
        if self.mode == "async":
            return by_leader(self._newest, step)
        if self.current == (version := scheduled_version(self.mode, step, self.every)):
            return version
        return by_leader(self._scheduled, step)

    def _scheduled(self, step: int) -> int:
        version = scheduled_version(self.mode, step, self.every)
        self._check_kept(version)
        self.wait(lambda: self.versions.is_complete(version) or None, f"version {version} of the negatives")
        return version

    def _check_kept(self, version: int) -> None:
        """Refuse to wait for a version that was deleted; training needs one only if checkpoints are gone, too."""
        newest = self.versions.newest()
        if newest is not None and version < newest and not self.versions.is_complete(version):
            what = "the checkpoints are missing, and the negatives of earlier steps were deleted"
            raise ArtifactError("MISSING_FILE", what, "train in a new folder", path=self.versions.path(version))

    def _newest(self, step: int) -> int:
        def fresh() -> int | None:
            newest = self.versions.newest()
            if newest is None or self.max_staleness is None:
                return newest
            age = step - self.versions.step(newest)
            if age > self.max_staleness and self.stop_when_stale:
                what = f"the newest negatives are {age} steps old, at most {self.max_staleness} are allowed"
                fix = "look at the inferencer's log; run this again, or allow more by max_staleness"
                raise PeerError("STALE", what, fix, path=self.versions.folder)
            return newest if age <= self.max_staleness else None

        age = "" if self.max_staleness is None else f" at most {self.max_staleness} steps old"
        return self.wait(fresh, f"negatives{age}")


def scheduled_version(mode: Mode, step: int, every: int) -> int:
    """The version that a mode with a schedule uses at ``step``."""
    version = step // every
    return 0 if mode == "async-fixed" and version == 1 else version


def longest_in_force(mode: Mode, every: int) -> int:
    """The most steps that a version is in force; in ``async-fixed`` version 0 serves as version 1, too.

    In ``async`` a version may be in force longer, as long as mining the next one takes.
    """
    return 2 * every if mode == "async-fixed" else every


def source_step(mode: Mode, version: int, every: int) -> int:
    """The step whose model mines a version, in a mode with a schedule."""
    return max(version - 1, 0) * every if mode == "async-fixed" else version * every

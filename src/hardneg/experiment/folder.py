"""The experiment's folder: settings, stages, metrics and timing; the same command, run again, resumes it.

If several processes train together, only rank 0 writes. ``metrics.jsonl``, ``results.json`` and all published
stages are deterministic; ``timing.jsonl`` and ``log.txt`` are telemetry, which no digest covers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardneg import __version__
from hardneg.config import Settings, differences, read_value
from hardneg.data.collection import Collection
from hardneg.data.judgements import Judgements, read_judgements, save_judgements
from hardneg.data.training_data import ChosenSplits, TrainingData
from hardneg.errors import ArtifactError, HardnegError, InputError
from hardneg.experiment.layout import SETTINGS, Layout, cache_beside
from hardneg.experiment.metrics import RESTORE, Metrics
from hardneg.experiment.names import BEGIN
from hardneg.experiment.observers import Observers
from hardneg.experiment.results_manifest import check_seal, is_sealed, lost_models, seal, write_results
from hardneg.experiment.states import StateRecord
from hardneg.models.source import ModelSource
from hardneg.process.agreement import check_told_alike
from hardneg.process.distributed import is_leader
from hardneg.process.memory import PeakWatch, hand_back, peak_memory
from hardneg.process.progress import log_file, say
from hardneg.shown import as_set
from hardneg.storage.artifacts import (
    digest_json,
    lease,
    read_json,
    remove,
    write_json,
)
from hardneg.storage.disk import append_lines, sweep_below
from hardneg.storage.lease import holder_of
from hardneg.storage.safe_read import as_written

DIGEST = re.compile("[0-9a-f]{64}")
FORMAT = 3  # version of the files; 2 added models' names to metrics and checkpoints; 3 splits, base and states
SPLITS, BASE = "splits", "base_model"  # keys of settings.json: the splits, and the model that training starts from
SHOWN = 8  # settings that a message names
GIVEN = 3  # settings whose options a message shows
ENDED_BY = "ended_by"  # of a row of the timing that is no stage: the fault that ended a command


class Experiment:
    """One execution of a recipe in a folder of its own. Make one with :func:`open_experiment`.

    Parameters
    ----------
    cache : where token stores and embeddings live.
    source : the model that training starts from. If an experiment with a cache of its own trained it, that cache
        is read, too.
    """

    def __init__(self, path: Path, cache: Path, source: ModelSource | None = None) -> None:
        self.path, self.cache, self.layout = path, cache, Layout(path)
        self.beside = None if source is None else cache_beside(source.model)
        self.shares_cache = path not in cache.parents
        self.metrics = Metrics(self.layout.metrics)
        self.observers = Observers()
        self.noted: set[str] = set()  # states whose measures were shown during training

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @contextlib.contextmanager
    def observed(self, observers: Observers) -> Iterator[None]:
        """Tell these functions what happens in the block."""
        self.observers = observers
        self.metrics.mirrors.append(observers.tell_steps)
        try:
            with observers.heeded():
                yield
        finally:
            self.metrics.mirrors.remove(observers.tell_steps)

    @contextlib.contextmanager
    def timed(self, stage: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Measure the time of a block and write it to ``timing.jsonl``, together with the yielded facts.

        The row has the peak of memory of this process since its start, and its peak within the block.
        """
        hand_back()  # else memory that the stage before has freed would count in the peak of this one
        when, begun, watch = time.time(), time.perf_counter(), PeakWatch()
        try:
            yield facts
        finally:
            seconds = round(time.perf_counter() - begun, 4)
            times = {"stage": stage, "begun": round(when, 3), "seconds": seconds}
            own = watch.end()
            peaks = {"peak_mib": max(peak_memory(), own) >> 20, "own_peak_mib": own >> 20}  # records lag by pages
            row = {**times, **peaks, **facts}
            if is_leader():
                append_lines(self.layout.timing, json.dumps(row).encode() + b"\n")

    def begin(self, where: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Write facts of the machine to ``timing.jsonl``; returns what differs from before as {name: (then, now)}.

        What an earlier version of hardneg did not write was None then.

        Parameters
        ----------
        where : facts, apart from the settings, on which the last bits of results depend, such as the number of
            threads. They are compared with those of the last execution.
        """
        before: dict[str, Any] = next((row for row in reversed(self.timing) if row["stage"] == BEGIN), {})
        with self.timed(BEGIN, **where):
            pass
        return {name: (before.get(name), now) for name, now in where.items() if before and before.get(name) != now}

    @property
    def timing(self) -> list[dict[str, Any]]:
        """The rows of ``timing.jsonl`` so far; a line that is incomplete or damaged is left out."""
        if not self.layout.timing.is_file():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.layout.timing.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                rows += [row] if isinstance(row, dict) and "stage" in row else []
        return rows

    @property
    def results(self) -> Any:
        """The results of a finished experiment, after its seal is checked; None if it is not finished."""
        if not self.layout.results.is_file():
            return None
        check_seal(self.path)
        return read_json(self.layout.results)

    def finish(self, results: Mapping[str, Any], states: Sequence[StateRecord] = ()) -> None:
        """Write ``states.jsonl`` and ``results.json`` and seal them: the experiment is finished."""
        write_results(self.path, results, states)

    def reopen_without_models(self) -> None:
        """Mark a finished experiment as not finished if a trained model of it is gone; a line names each."""
        lost = lost_models(self.path)
        for place in lost:
            say(f"{place} is gone, and is made again")
        if lost:
            self.reopen()

    def reopen(self) -> None:
        """Mark the experiment as not finished, because it is being extended.

        The results go first: results without a seal are sealed again, while a seal alone counts for nothing.
        """
        remove(self.layout.results)
        remove(self.layout.seal)
        remove(self.layout.states)


@contextlib.contextmanager
def open_experiment(
    path: Path,
    *,
    recipe: str,
    settings: Settings,
    inputs: Mapping[str, str],
    data: TrainingData | None = None,
    source: ModelSource | None = None,
    cache: Path | None = None,
    grows: Sequence[str] = (),
    fixed: Mapping[str, str] | None = None,
) -> Iterator[Experiment]:
    """Lock the folder, check that it is this experiment, and yield it; in a group, rank 0 does so for all.

    Parameters
    ----------
    inputs : digests of what the experiment starts from (collection, model).
    data, source : the data that it is trained and judged on, and the model that it starts from. They are recorded
        so that figures can be made again.
    cache : the folder of token stores and other caches; default ``path/cache``.
    grows : integer settings that may grow on a finished experiment (``episodes``).
    fixed : integer settings that may not -> why, for the fault.

    Raises
    ------
    BusyError : another process holds the folder (exit 6).
    ArtifactError : the folder holds another experiment (settings or inputs differ), or one without its settings.
    """
    layout = Layout(path)
    experiment = Experiment(path, cache or layout.cache, source)
    check_told_alike(inputs)
    if not is_leader():
        yield experiment
        return
    with lease(path), log_file(layout.log):
        sweep_below(path)
        record = record_of(recipe, settings, inputs, data, source)
        if check_begun(path, record, settings, data, grows, fixed):
            experiment.reopen()
        elif layout.results.is_file() and not is_sealed(path):  # it died between results and seal
            seal(path)
        write_settings(path, record)
        keep_judgements(path, data)
        with noting_fault(layout):
            yield experiment


@contextlib.contextmanager
def join_experiment(
    path: Path,
    *,
    recipe: str,
    settings: Settings,
    inputs: Mapping[str, str],
    data: TrainingData | None = None,
    source: ModelSource | None = None,
    cache: Path | None = None,
) -> Iterator[Experiment]:
    """Work in an experiment's folder together with other processes; the first of them begins the experiment.

    Of a group of processes, rank 0 does so for all.

    Raises
    ------
    ArtifactError : the folder holds another experiment, or one that has lost its settings (exit 4).
    """
    record, layout = record_of(recipe, settings, inputs, data, source), Layout(path)
    check_told_alike(inputs)
    if not is_leader():
        yield Experiment(path, cache or layout.cache, source)
        return
    with log_file(layout.log):
        check_begun(path, record, settings, data)
        if not layout.settings.is_file():
            write_settings(path, record)
        keep_judgements(path, data)
        with noting_fault(layout):
            yield Experiment(path, cache or layout.cache, source)


def check_begun(
    path: Path,
    record: Mapping[str, Any],
    settings: Settings,
    data: TrainingData | None = None,
    grows: Sequence[str] = (),
    fixed: Mapping[str, str] | None = None,
) -> bool:
    """Whether the experiment is extended; raises if another one is here, or judgements that a new one lacks."""
    layout = Layout(path)
    layout.check_settings()
    if layout.settings.is_file():
        return check_same(completed(read_settings(path), settings), record, grows, path, fixed)
    if data is not None:
        check_judgements(path, data.collection, record["inputs"].get("judgements"))
    return False


@contextlib.contextmanager
def noting_fault(layout: Layout) -> Iterator[None]:
    """Note a fault of the input that ends the block in ``timing.jsonl``: the same command would end so again."""
    try:
        yield
    except InputError as fault:
        with contextlib.suppress(HardnegError, OSError):  # the fault itself is told in any case
            append_lines(layout.timing, json.dumps({ENDED_BY: str(fault)}).encode() + b"\n")
        raise


def executed_by(path: Path) -> list[str]:
    """The processes that execute an experiment now, in any role, as their locks name them; empty if none does."""
    places = (path, *Layout(path).roles_taken())
    return list(dict.fromkeys(name for place in places if (name := holder_of(place))))


def record_of(
    recipe: str,
    settings: Settings,
    inputs: Mapping[str, str],
    data: TrainingData | None = None,
    source: ModelSource | None = None,
) -> dict[str, Any]:
    """The record that identifies an experiment, as ``settings.json`` holds it.

    Two experiments have the same splits and model if their digests in ``inputs`` are equal; names may differ.
    """
    names = None if data is None or data.names is None else dataclasses.asdict(data.names)
    base = None if source is None else {"model": source.model, "passage_model": source.passage_model}
    return {
        "format": FORMAT,
        "recipe": recipe,
        "settings": settings.model_dump(mode="json"),
        "result_settings": settings.result_values(),
        "inputs": dict(inputs),
        SPLITS: names,
        BASE: base,
        **settings.told_besides,
    }


def completed(record: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The record of an experiment with the settings of this version, where it differs by some that are off."""
    fields = type(settings).model_fields
    lacking = {name for name in settings.result_values() if name in fields and name not in record["settings"]}
    defaults = type(settings).model_construct().model_dump(mode="json", include=lacking)
    off = {name: value for name, value in defaults.items() if not value}
    gone = {name for name, value in record["settings"].items() if name not in fields and not value}
    return {
        **record,
        **{
            of: {name: value for name, value in {**off, **record[of]}.items() if name not in gone}
            for of in ("settings", "result_settings")
        },
    }


def check_same(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    grows: Sequence[str],
    path: Path,
    fixed: Mapping[str, str] | None = None,
) -> bool:
    """Whether the experiment is extended; raises if it is another one, or has files of another format.

    Settings are compared before inputs, because a changed setting may be why a digest differs, and says more.
    """
    check_format(old, path)
    if changed := differences({"recipe": old["recipe"]}, {"recipe": new["recipe"]}):
        raise other_inputs(changed, path)
    before, now = dict(old["result_settings"]), dict(new["result_settings"])
    grown = [name for name in grows if before.get(name, 0) < now.get(name, 0)]
    for name in grown:
        before[name] = now[name]
    if before != now:
        names = before.keys() | now.keys()  # one side may omit a name, e.g. a default: ``settings`` has it
        told = [
            {name: one["settings"].get(name) for name in names} | own for one, own in ((old, before), (new, now))
        ]
        stored = [
            {name: value for name, value in one.items() if name in old["settings"] | new["settings"]}
            for one in told
        ]
        changed = differences(*stored) or differences(*told) or differences(before, now)
        more = f"; and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        what = "this experiment was started with other settings: " + "; ".join(changed[:SHOWN]) + more
        differing = sorted(name for name in names if before.get(name) != now.get(name))
        growing = {name: why for name, why in (fixed or {}).items() if before.get(name, 0) < now.get(name, 0)}
        what += "".join(f"; {name} may not grow: {why}" for name, why in growing.items())
        fix = f"use the old settings{as_before(old, new, differing)}, or give a new folder"
        if differing and not any(name in old["settings"] for name in differing):
            fix = "go on with the hardneg that began it, which had no such settings, or give a new folder"
        raise ArtifactError("SETTINGS_CHANGED", what, fix, path=path)
    if changed := differences(inputs_told(old, new), inputs_told(new, old)):
        raise other_inputs(changed, path)
    return bool(grown)


def as_before(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]) -> str:
    """The options that give settings their values of before, in brackets; nothing where not all can be given so.

    Somebody who gave a preset may not know the settings that differ, because the preset has changed since.
    """
    stored = [name for name in names if name in old["settings"] or name in new["settings"]]
    values = {name: old["settings"].get(name) for name in stored}
    can = all(name in old["settings"] and name in new["settings"] for name in stored)
    if not can or len(values) > GIVEN or any(isinstance(one, dict) or one == "given" for one in values.values()):
        return ""
    return f" ({' '.join('--set ' + shlex.quote(f'{name}={as_typed(one)}') for name, one in values.items())})"


def as_typed(value: Any) -> str:
    """The value of a setting as ``--set`` reads it back; a text that TOML would read as a number is quoted."""
    if isinstance(value, str) and (value.lower() == "none" or read_value(value) != value):
        return json.dumps(value, ensure_ascii=False)
    return as_set(value)


def inputs_told(record: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a record for people, where they may differ from those of ``other``.

    Where the digests of the splits differ, the names and numbers that choose the splits follow, if these differ.
    Where they are equal, so are the judgements of people: older records of rankers have no digest of them.
    """
    inputs, others = dict(record["inputs"]), other["inputs"]
    chosen, theirs = (complete(one.get(SPLITS)) for one in (record, other))
    if inputs.get(SPLITS) == others.get(SPLITS):
        inputs.pop("judgements", None)
    elif chosen and theirs and chosen != theirs:
        inputs.pop(SPLITS, None)
        named = ("train", "dev", "test")
        inputs |= {f"split {name}" if name in named else name: one for name, one in chosen.items()}
    return {name: brief(value) if isinstance(value, str) else value for name, value in inputs.items()}


def complete(names: Mapping[str, Any] | None) -> dict[str, Any]:
    """The stored names and draw of splits, with what an older record lacks; empty: there are none."""
    known = {field.name for field in dataclasses.fields(ChosenSplits)}
    given = {name: value for name, value in (names or {}).items() if name in known}
    return dataclasses.asdict(ChosenSplits(**given)) | dict(names or {}) if given else {}


def brief(value: str) -> str:
    """A value for people: the beginning of a digest, all of anything else."""
    return f"{value[:12]}…" if DIGEST.fullmatch(value) else value


def check_format(record: Mapping[str, Any], path: Path) -> None:
    """Refuse an experiment that was begun by a version of hardneg whose files have another format."""
    if (form := record.get("format", 1)) != FORMAT:
        what = f"this experiment has format version {form}, this hardneg goes on with {FORMAT}"
        fix = "give a new folder, or go on with the hardneg that began it"
        raise ArtifactError("FORMAT_VERSION", what, fix, path=path)


def keep_judgements(path: Path, data: TrainingData | None) -> None:
    """Copy the judgements of people into the experiment's folder, unless a copy is there."""
    place = Layout(path).judgements
    if data is not None and data.judgements is not None and not place.is_file():
        save_judgements(place, data.judgements)


def kept_judgements(path: Path, collection: Collection) -> Judgements | None:
    """The judgements of people that the experiment keeps; None: it was given none."""
    place = Layout(path).judgements
    if not place.is_file():
        return None
    return read_judgements(place).known(collection.query_ids, collection.passage_ids)


def check_judgements(path: Path, collection: Collection, digest: str | None) -> Judgements | None:
    """The judgements that the experiment keeps; raises if it is trained with others (``digest``; None: none)."""
    kept = kept_judgements(path, collection)
    if kept is not None and kept.digest != digest:
        what = "these are not the judgements that the experiment is trained with"
        fix = "restore this file, or remove it if it was added, or give a new folder"
        raise ArtifactError("INPUT_CHANGED", what, fix, path=Layout(path).judgements)
    return kept


def splits_of(record: Mapping[str, Any], path: Path) -> ChosenSplits:
    """The splits that an experiment's settings name; raises :class:`ArtifactError` where they name none."""
    check_format(record, path)
    if not isinstance(record.get(SPLITS), Mapping):
        raise ArtifactError("NOT_EXPERIMENT", "it does not name its splits", "train it again", path=path)
    return known_splits(record[SPLITS], path)


def known_splits(names: Mapping[str, Any], path: Path) -> ChosenSplits:
    """The stored names and draw of splits; raises :class:`ArtifactError` where a newer hardneg stored more."""
    if later := names.keys() - {field.name for field in dataclasses.fields(ChosenSplits)}:
        what = f"a newer hardneg began this experiment: it has {', '.join(sorted(later))} of splits, unknown here"
        raise ArtifactError("FORMAT_VERSION", what, "upgrade hardneg", path=path)
    return ChosenSplits(**names)


def other_inputs(changed: Sequence[str], path: Path) -> ArtifactError:
    """The fault of an experiment that was started from other inputs; ``changed`` names them."""
    what = "this experiment was started from something else: " + "; ".join(changed)
    fix = (
        "restore it, or give a new folder with --out; if nothing changed, another version of hardneg began it: go"
        " on with that one"
    )
    return ArtifactError("INPUT_CHANGED", what, fix, path=path)


def write_settings(path: Path, record: Mapping[str, Any]) -> None:
    """Write ``settings.json`` with its own digest in it."""
    content = {**record, "hardneg": __version__}
    write_json(Layout(path).settings, {**content, "digest": digest_json(content)})


def read_settings(path: Path) -> dict[str, Any]:
    """Read and verify the settings of an experiment's folder.

    Raises
    ------
    ArtifactError : the settings are damaged, or the folder is no experiment.
    """
    file = Layout(path).settings
    try:
        raw = read_json(file)
    except ArtifactError as fault:
        raise ArtifactError(fault.code, fault.what, RESTORE, path=file) from fault
    if not isinstance(raw, dict) or not {"recipe", "inputs", "result_settings"} <= set(raw):
        what = f"the {SETTINGS} here is not that of an experiment"
        raise ArtifactError("NOT_EXPERIMENT", what, "give a new folder", path=file)
    whole = as_written(file.read_bytes(), raw)
    if raw.pop("digest", None) != digest_json(raw) or not whole:
        what = "the settings are not as they were written"
        raise ArtifactError("CORRUPT", what, RESTORE, path=file)
    return raw

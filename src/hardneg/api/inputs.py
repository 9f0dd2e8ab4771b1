"""The arguments of all operations, checked: the collection, and the places to write to. Loads no torch."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import numpy as np

from hardneg.arguments import LARGEST, brief, checked
from hardneg.config import nearest
from hardneg.data.collection import Collection
from hardneg.data.formats.folders import SIDECAR, is_manifest, is_model, was_manifest
from hardneg.data.formats.tables import suffix_of
from hardneg.data.formats.trec import Scored, sidecar_of
from hardneg.data.importing import check_no_experiment, open_data, would_read
from hardneg.data.judgements import Judgements, read_judgements
from hardneg.data.training_data import TrainingData, amended
from hardneg.errors import ArtifactError, Faults, HardnegError, InputError, SettingsError, raise_all
from hardneg.experiment.layout import KEPT_FILES, Layout, is_experiment, trec_run
from hardneg.experiment.names import FINAL
from hardneg.models.source import ModelSource
from hardneg.process.distributed import rank
from hardneg.process.progress import note
from hardneg.records import Run, spans
from hardneg.search.runs import KIND as RUN
from hardneg.search.runs import load_run
from hardneg.shown import counted
from hardneg.storage.artifacts import (
    CARD,
    MANIFEST,
    SettingsClash,
    cache_root,
    check_outside,
    check_writable,
    is_published,
    kind_named,
    lease,
)
from hardneg.storage.disk import check_place
from hardneg.storage.lease import holding as holding
from hardneg.storage.manifest import read_manifest
from hardneg.storage.places import check_readable

log = logging.getLogger(__name__)

OF_A_MODEL = re.compile(  # names of the files of a model
    r".*\.(?:safetensors|onnx|model|h5)|.*model.*\.(?:bin|json)|merges\.txt|vocab\.(?:json|txt)"
    r"|(?:.*config.*|modules|tokenizer|special_tokens_map|added_tokens|hardneg(?:_ranker)?|router.*)\.json"
)

Data = str | Path | Collection
Place = str | Path
AnyRun = str | Path | Run | Mapping[str, Mapping[str, float]]  # a file or folder, rows, or scores by ids
AnyQrels = str | Path | Mapping[str, Mapping[str, int]]  # a file, or grades by ids
Word = TypeVar("Word", bound=str)


class Reading(TypedDict, total=False):
    """The options of every function that reads a model, apart from the model itself.

    Attributes
    ----------
    passage_model : the model that encodes passages, if it is not the one that encodes queries.
    allow_bin, prompts : see :func:`~hardneg.models.loading.load_encoder`.
    query_prompt, passage_prompt : texts that come before each query and each passage, in place of the model's own.
    query_length, passage_length : lengths in tokens at which texts are cut, in place of the model's own. To search
        embeddings, give the prompt and the length that they were made with.
    device : ``cpu``, ``cuda``, ``cuda:1``, ...; by default CUDA if there is a device, else the CPU.
    """

    passage_model: Place | None
    allow_bin: bool
    prompts: str | None
    query_prompt: str | None
    passage_prompt: str | None
    query_length: int | None
    passage_length: int | None
    device: str | None


def of_all_processes(reading: Mapping[str, Any]) -> dict[str, Any]:
    """The options of :class:`Reading` that all processes must share: not the device, nor places on a machine."""
    return {name: value for name, value in reading.items() if name not in ("device", "passage_model", "allow_bin")}


MODELS = ("model", "passage_model", "ranker", "filter_by", "teacher")  # the arguments that name a model


def source_at(model: Place, passage_model: Place | None = None, **options: Any) -> ModelSource:
    """The record of models as users name them, see :meth:`~hardneg.models.source.ModelSource.at`.

    An experiment stands for the model that it trained. As a ranker, it stands for the ranker if it trained one.

    Raises
    ------
    ArtifactError : an experiment has no model yet, or is one of several seeds.
    """
    named = {"model": model, "passage_model": passage_model, **options}
    places = {
        name: str(model_place(value, name)) if name in MODELS and value else value for name, value in named.items()
    }
    return ModelSource.at(**places)


def model_place(place: Place, role: str = "model") -> Place:
    """The model that a place means: an experiment means the one that it trained; raises as :func:`source_at`."""
    layout = Layout(Path(place))
    if not is_experiment(layout):
        return place
    if seeds := [seed.path for seed in layout.seeds()]:
        what = f"this is an experiment of {len(seeds)} seeds"
        raise ArtifactError("SEVERAL_SEEDS", what, f"name one of them: {seeds[0]}", path=layout.path)
    found = layout.ranker if role == "ranker" and is_published(layout.ranker) else layout.model
    if not is_published(found):
        begun = f"finish it by the command that began it (hardneg show {layout.path} says how far it came)"
        fix = f"{begun}, or name another model"
        raise ArtifactError("NOT_FINISHED", "this experiment has no model yet", fix, path=layout.path)
    return found


def run_place(place: Place, split: str) -> Path:
    """The run that a place means: an experiment means the run of its final model on a split.

    Raises
    ------
    ArtifactError : the experiment has no such run, or is one of several seeds; a folder is no experiment.
    """
    layout = Layout(Path(place))
    check_readable(layout.path)
    if not layout.path.is_dir():
        return layout.path
    if not is_experiment(layout):
        manifest = layout.path / MANIFEST
        kind = kind_named(read_manifest(layout.path).kind) if manifest.is_file() else "a folder"
        fix = "give a run file (hardneg search), an experiment (hardneg train), or the folder of a run in it"
        raise ArtifactError("WRONG_KIND", f"this is {kind}, not a run", fix, path=layout.path)
    model_place(layout.path)
    found = trec_run(layout.trec_runs, FINAL, split)
    if not found.is_file():
        there = sorted(one.name.split(".")[1] for one in layout.trec_runs.glob(f"{FINAL}.*.trec.gz"))
        what = f"this experiment has no run of its final model on split '{split}'"
        fix = f"{f'give --split {there[0]}, or ' if there else ''}search with the experiment"
        raise ArtifactError("NO_RUN", what, fix, path=layout.path)
    return found


def opened_run(run: AnyRun, split: str, collection: Collection | None) -> Path | Scored | Run:
    """A run in the form that is read: the path of a file, scores by ids, or a run of the collection's rows.

    Raises
    ------
    SettingsError : a run of rows is given without its collection. ArtifactError : it is of another collection, or
        ranks chunks.
    """
    run = kept_run(run)
    if isinstance(run, str | Path):
        return run_place(run, split)
    if isinstance(run, Mapping):
        return run
    if collection is None:
        what = "a run of rows has no ids without its collection"
        raise SettingsError("NO_JUDGEMENTS", what, "give data, or a run by ids")
    return of_collection(run, collection)


def kept_run(run: AnyRun) -> AnyRun:
    """The run that an experiment keeps in this folder, opened; all else as it is given."""
    if not isinstance(run, str | Path) or not is_published(Path(run)):
        return run
    return load_run(Path(run)) if read_manifest(Path(run)).kind == RUN else run


def of_collection(run: Run, collection: Collection) -> Run:
    """The run itself, if its rows are those of this collection; else raises :class:`ArtifactError`."""
    if run.unit == "chunk":
        what = "this run ranks the chunks of passages"
        raise ArtifactError("WRONG_KIND", what, "give one that ranks passages or documents", path=collection.path)
    if run.collection and run.collection != collection.digest:
        what = f"made for the collection {run.collection[:12]}…"
        raise ArtifactError("OTHER_COLLECTION", what, "give that one", path=collection.path)
    return run


def one_of(option: str, value: str, choices: Sequence[Word]) -> Word:
    """Check that an option's value is one of a few words; returns it."""
    for choice in choices:
        if value == choice:
            return choice
    raise SettingsError("BAD_SETTING", f"{option} = {value!r:.60}", nearest(value, choices))


def at_least(option: str, value: int, least: int = 1) -> int:
    """Check that an option's value is a count from ``least`` to :data:`LARGEST`; returns it."""
    if value < least:
        raise SettingsError("BAD_SETTING", f"{option} = {value}", f"give {least} or more")
    if value > LARGEST:
        raise SettingsError("BAD_SETTING", f"{option} = {brief(value)}", f"give {LARGEST:,} or less")
    return value


def check_all(*checks: Callable[[], Any]) -> list[Any]:
    """Call all checks and return their values; the faults of all of them are raised together."""
    found: list[Any] = []
    faults: list[HardnegError] = []
    for check in checks:
        try:
            found.append(check())
        except HardnegError as fault:
            faults += fault.faults if isinstance(fault, Faults) else [fault]
    raise_all(faults)
    return found


def cache_at(cache: Place | None) -> Path:
    """The folder of derived stores: ``cache``, else the user's."""
    if cache is None:
        return cache_root()
    check_folder(Path(cache))
    return Path(cache).absolute()  # the caller may change its working directory while something is open


def check_inputs(*places: object) -> None:
    """Refuse streams among the places that a command reads, before anything slow; what is no path is ignored.

    Raises
    ------
    InputError : one is a pipe, a socket or a device.
    """
    check_all(*(partial(check_readable, place) for place in places if isinstance(place, str | Path)))


@checked
def open_collection(data: Data, *, cache: Place | None = None) -> Collection:
    """Open a collection of any format: hardneg's own folder, a file of pairs, ``beir:FOLDER``, ``pydocs``, ...

    Data that hardneg did not write are imported into the cache once, and opened from there later.

    Raises
    ------
    InputError
        There is nothing at this place, its format is not recognised, or a record is wrong; nothing is kept.
    SettingsError
        What stands before the colon is no format.
    ArtifactError
        This is something else that hardneg wrote, such as a model or an experiment.
    """
    return collection_of(data, cache_at(cache))


def collection_of(data: Data, cache: Place | None = None) -> Collection:
    """Open the collection that ``data`` means; data in a foreign convention are imported into the cache."""
    if isinstance(data, Collection):
        return data
    check_no_experiment(data)
    return open_data(str(data), cache=None if cache is None else Path(cache))


def judgements_of(place: Place | None, collection: Collection) -> Judgements | None:
    """The judgements of people on this collection, read from a file; None if no file is given.

    Raises
    ------
    InputError : a line is wrong, or names what the collection does not have.
    """
    if place is None:
        return None
    return read_judgements(Path(place)).known(collection.query_ids, collection.passage_ids)


def amended_by(data: TrainingData, place: Place | None) -> TrainingData:
    """The data with people's judgements, read from a file; says what they change, and warns if it is nothing.

    Raises
    ------
    InputError : a line is wrong, or names what the collection does not have.
    """
    judged = judgements_of(place, data.collection)
    if judged is None:
        return data
    ours = np.isin(judged.query_rows, data.all_train.query_rows)
    if not ours.any():
        what = "%s: none of its judged pairs (%s) is of a training query, so it changes nothing"
        log.warning(what, place, f"{len(ours):,}")
        return amended(data, judged)
    after = amended(data, judged)
    labels = ", ".join(f"{n:,} {label}" for label, n in judged.counts(ours).items())
    said = f"{place}: {counted(int(ours.sum()), 'judged pair')} of training queries ({labels})"
    if not ours.all():
        said += f", {int((~ours).sum()):,} of other queries"
    if lost := int(np.sum((spans(data.all_train.offsets) > 0) & (spans(after.all_train.offsets) == 0))):
        said += f"; {counted(lost, 'training query')} {'has' if lost == 1 else 'have'} no positive any more"
    note(said)
    return after


# ---------------------------------------------------------------- places to write to, checked before any computing


def check_folder(out: Path) -> None:
    """Refuse a place where no folder can be made or written to."""
    check_place(out)
    for place in (out, *out.absolute().parents):
        if os.path.lexists(place):
            if not place.is_dir():
                raise SettingsError("NOT_A_FOLDER", "this is not a folder", "give another path", path=place)
            break
    check_writable(out)


def check_name(out: Path) -> None:
    """Refuse a path that is not UTF-8: a file of lines cannot name it, and safetensors opens no model there."""
    try:
        str(out).encode()
    except UnicodeEncodeError:
        what = f"the path {str(out)!r:.80} is not UTF-8"
        raise SettingsError("BAD_SETTING", what, "give a path that is UTF-8") from None


def check_file(out: Path, reads: Iterable[object] = (), *, told: bool = False) -> None:
    """Refuse a place where a file cannot or must not be written; say that an existing file will be replaced.

    Parameters
    ----------
    reads : everything that the command reads; what is not the path of a file is ignored.
    told : whether a manifest beside the file will tell what it is, so that nobody takes it for data.
    """
    check_name(out)
    check_place(out)
    if out.is_dir():
        raise SettingsError("NOT_A_FILE", "this is a folder", "give the path of a file", path=out)
    check_folder(out.absolute().parent)
    if told:
        check_place(sidecar_of(out))
        check_sidecar(out)
    if out.name.endswith(SIDECAR):
        what = f"names that end in {SIDECAR} are those of the files that describe runs"
        raise SettingsError("EXISTS", what, "give another name", path=out)
    target = Path(os.path.realpath(out))
    named = [Path(read) for read in reads if isinstance(read, str | Path)]
    places = [*named, *(Path(rest) for read in named if (rest := str(read).partition(":")[2]))]  # beir:FOLDER
    if not out.exists():
        check_outside(target)
        if not told:
            check_no_data(out, places)
        return
    if any(is_read(out, place) for place in places):
        what = "this file is an input of the command, and would be overwritten"
        raise SettingsError("EXISTS", what, "give another path", path=out)
    if is_part(out) or is_of_experiment(out) or is_of_model(out):
        what = f"this file is a part of {out.parent}, and would be lost"
        raise SettingsError("EXISTS", what, "give another path", path=out)
    check_outside(target)
    note(f"{out} is there already and will be replaced")


def check_sidecar(run: Path) -> None:
    """Refuse a run beside which a file of somebody else has the name of the run's manifest."""
    place = sidecar_of(run)
    if os.path.lexists(place) and not was_manifest(place, "run"):
        what = "a run's manifest would take the place of this file, which is not of hardneg"
        raise SettingsError("EXISTS", what, "give the run another name, or remove this file", path=place)


def check_no_data(out: Path, places: Iterable[Path]) -> None:
    """Refuse a new file that would be read as a part of the data in one of these folders."""
    if not out.exists() and any(is_among(out, place) for place in places):
        what = "the tables of this folder are data, and this file would be read as a part of them"
        raise SettingsError("EXISTS", what, "give a path outside of the folder", path=out)


def check_beside_sources(out: Path, collection: Collection) -> None:
    """Refuse a new file that would be read as a part of the data that a collection was imported from."""
    sources = read_manifest(collection.path).inputs
    above = out.absolute().parents[:2]
    check_no_data(out, [folder for folder in above if any((folder / name).is_file() for name in sources)])


def is_read(out: Path, place: Path) -> bool:
    """Whether a file is an input, or a part of the data in a folder; a run there is none."""
    if place.is_file():
        return place.samefile(out)
    if is_published(place) or is_experiment(Layout(place)):  # their own files are known by name
        return False
    folder = out.resolve().parent
    folder = folder.parent if folder.name == "qrels" else folder
    if place.is_dir() and place.resolve() == folder and suffix_of(out) != "":
        return True
    return is_among(out, place) and not is_manifest(sidecar_of(out.resolve()), "run")


def is_among(out: Path, place: Path) -> bool:
    """Whether a file is or would be read as a part of the data in a folder."""
    if not place.is_dir() or is_published(place):
        return False
    out, place = Path(os.path.realpath(out)), place.resolve()
    return place in out.parents[:2] and would_read(place, out)


def is_of_experiment(file: Path) -> bool:
    """Whether training wrote a file into the folder of an experiment, other than its page."""
    layout = Layout(file.resolve().parent)
    if is_experiment(layout):
        return file.name in KEPT_FILES
    whole = Layout(layout.path.parent)
    return whole.trec_runs == layout.path and is_experiment(whole)


def is_part(file: Path) -> bool:
    """Whether a file belongs to an artefact: the manifest beside it names it, or it is this manifest or a card."""
    if not is_published(file.parent):
        return False
    try:
        return file.name in (MANIFEST, CARD) or file.name in read_manifest(file.parent).files
    except HardnegError:
        return False


def is_of_model(file: Path) -> bool:
    """Whether a file belongs to a model in the form of transformers or sentence-transformers, by its name."""
    if OF_A_MODEL.fullmatch(file.name) is None:
        return False
    try:
        return is_model({path.name for path in file.parent.iterdir()})
    except OSError:  # of another user
        return False


PROMPTS = ("prompts", "query_prompt", "passage_prompt")
OF_MODELS = ("passage_model", *PROMPTS, "query_length", "passage_length")  # how a bi-encoder is read


OF_SECOND = ("allow_bin", "device")  # how a model beside it is read, which filters, re-ranks or scores


def of_second_model(reading: Mapping[str, Any]) -> Reading:
    """The options of ``reading`` that also apply to a second model."""
    return cast(Reading, {name: value for name, value in reading.items() if name in OF_SECOND})


def check_read(model: Place | None, reading: Mapping[str, Any]) -> None:
    """Refuse settings of how a model is read where none is given; raises :class:`SettingsError`."""
    if model is None and (idle := [name for name in OF_MODELS if reading.get(name) is not None]):
        what = f"{idle[0]} = {brief(reading[idle[0]])} has no effect without a model"
        raise SettingsError("BAD_SETTING", what, f"give --model too, or leave {idle[0]} out")


def check_text(text: str) -> None:
    """Refuse a text that cannot be searched for: a blank one, or one with half of a surrogate pair."""
    if not text.strip():
        raise SettingsError("NO_TEXT", "there is nothing to search for", "give a text that is not blank")
    try:
        text.encode()
    except UnicodeEncodeError:
        what = f"the text {text!r:.80} is not UTF-8, or holds a lone surrogate"
        raise InputError("BAD_UNICODE", what, "correct the text") from None


def check_new(out: Path) -> None:
    """Refuse a place where something stands already, which would be lost, or that lies in what hardneg wrote."""
    check_place(out)
    if os.path.lexists(out):
        raise SettingsClash(out)
    check_folder(out)
    check_outside(out)


def check_free(experiment: Path) -> None:
    """Refuse an experiment's folder that another process works in, before anything slow is loaded."""
    if rank() == 0 and Layout(experiment).lock.is_file():
        with lease(experiment):
            pass

"""Settings of recipes from their layers, with all faults at once."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from hardneg.api.inputs import Place
from hardneg.arguments import check_value, checked
from hardneg.config import PRESET, WHOLE, build, nearest, read_overrides, read_preset, read_value, split_config
from hardneg.data.training_data import DEFAULT_SPLITS, ChosenSplits, DevDraw, Splits, TrainingData
from hardneg.errors import ArtifactError, Faults, HardnegError, SettingsError
from hardneg.experiment.folder import known_splits, read_settings
from hardneg.experiment.layout import Layout
from hardneg.foreign_names import ours
from hardneg.process.hardware import Precision, best_precision
from hardneg.process.progress import note, say
from hardneg.process.threads import pick_device
from hardneg.recipes.epochs import ROUNDED
from hardneg.recipes.idle import idle_lines
from hardneg.recipes.settings import Recipe, TrainingSettings
from hardneg.recipes.usual import BOUNDS, FLAGS, split_options, usual_settings
from hardneg.shown import as_set, counted

log = logging.getLogger(__name__)
T = TypeVar("T")

AS_SET = "as set"  # the origin of a value that the caller gave
STOP = "stop_step"
LENGTHS = {"steps", "epochs"}  # options for how long training is
BEFORE = "before"  # stands for the origins in settings that were made before


@dataclasses.dataclass(frozen=True)
class Begun:
    """What is known of an experiment that trained a model.

    Attributes
    ----------
    place : its folder.
    queries, collection : digests of the queries that it was trained and judged on, and of the collection.
    """

    place: str
    recipe: str
    seed: int
    queries: str
    collection: str
    splits: ChosenSplits


@checked
def recipe_settings(
    recipe: Recipe,
    preset: str | None = None,
    config: Place | None = None,
    overrides: Sequence[str] = (),
    *,
    settings: TrainingSettings | None = None,
    usual: Mapping[str, Any] | None = None,
    device: str | None = None,
    out: Place | None = None,
    beside: Mapping[str, str] | None = None,
    **values: Any,
) -> Any:
    """Settings of a recipe, from the defaults and these layers; later ones win.

    Parameters
    ----------
    preset : the name of one of the recipe's presets; by default the one that the file ``config`` names.
    config : a TOML file of settings, and of options for what everyone sets (``lr = 3e-5``). Its data, model and
        folder are read only by the command line.
    settings : settings of the recipe that were made before.
    overrides : ``key=value`` texts.
    usual : options for what everyone sets, by the names of :data:`~hardneg.recipes.usual.USUAL`.
    values : settings by name. Given all at once, as a plan has them, some may have no effect.
    device, out : decide the default of ``precision``: that of the experiment that was begun at ``out``, else
        the best of the device.
    beside : arguments of the caller that are not settings, by name, each with the way to give it
        (``the option --seeds``). If one of them is among the settings, the fault says how to give it.

    Raises
    ------
    Faults : every unknown key, wrong type and value out of range at once, each with the nearest valid key.
    """
    faults: list[HardnegError] = given_twice(overrides)
    path = None if config is None else Path(config)
    named, written = (path and attempt(partial(split_config, path), faults)) or ({}, {})
    preset = named.get("preset") if preset is None else preset
    known = recipe.settings.model_fields
    alone = partial(without_others, beside or {}, known, faults)
    options = attempt(lambda: named_options(usual or {}, known), faults) or {}
    readers: list[tuple[str, Callable[[], Mapping[str, Any]]]] = [
        (f"{PRESET}{preset}", lambda: {} if preset is None else read_preset(recipe.name, preset)),
        (str(config), lambda: alone(file_settings(recipe, written), path)),
        (BEFORE, lambda: {} if settings is None else settings.model_dump(mode="json")),
        (AS_SET, lambda: usual_settings(recipe.name, options, known, assigned(overrides), values)),
        *((AS_SET, partial(lambda text: alone(read_overrides([text])), text)) for text in overrides),
    ]
    best = attempt(lambda: best_precision(pick_device(device)), faults)
    layers = [(source, layer) for source, read in readers if (layer := attempt(read, faults)) is not None]
    layers.append((AS_SET, values))
    asked = any("precision" in layer for _, layer in layers)
    layers.insert(0, ("by default", {"precision": going_on(out, best)} if best and not asked else {}))
    told = None if settings is None else {name for name in recipe.settings.model_fields if settings.is_told(name)}
    if LENGTHS.intersection(options) and STOP not in values:
        layers += stops_of_caller(layers, told)
    layers += unset_epochs(recipe.settings.steps_instead, layers, told)
    built = attempt(lambda: build(recipe.settings, *(layer for _, layer in layers)), faults)
    if built is not None:
        before = {} if settings is None else settings.lifted
        above = layers if "epochs" in options else ()
        built.lift(lifted_bounds(built, before, above, assigned(overrides) | {*values}))
        for source, layer in layers:
            origin = (settings or built).origin_of if source == BEFORE else lambda name, source=source: source
            built.coming_from({name: origin(name) for name in layer})
        if recipe.settings.model_fields.keys() <= values.keys():  # such as those of a plan, given back
            built.coming_from(dict.fromkeys(values, WHOLE))
        attempt(built.check, faults)  # which asks where values come from
    if built is None or faults:
        raise Faults(faults)
    told_before = [] if settings is None else idle_lines(settings)  # when those were made
    for line in [line for line in idle_lines(built) if line not in told_before]:
        log.warning("%s", line)
    return built


def stops_of_caller(
    layers: Sequence[tuple[str, Mapping[str, Any]]], told: Collection[str] | None
) -> list[tuple[str, dict[str, Any]]]:
    """Layers that set the early stops of the caller again: options for the length lift only those of presets.

    The arguments are those of :func:`unset_epochs`.
    """
    return [
        (source, {STOP: layer[STOP]})
        for source, layer in layers
        if layer.get(STOP) is not None
        and not source.startswith(PRESET)
        and (source != BEFORE or STOP in (told or ()))
    ]


def lifted_bounds(
    built: TrainingSettings,
    before: Mapping[str, int],
    layers: Sequence[tuple[str, Mapping[str, Any]]],
    named: Collection[str],
) -> dict[str, int]:
    """The bounds on steps that an option for epochs sets to None, and that hold for other lengths.

    Parameters
    ----------
    built : the settings from all layers.
    before : the bounds that such an option lifted in settings made before.
    layers : the origin and the values of each layer, in order; none if there is no such option.
    named : the settings that the caller names, whose bounds are what they are named.
    """
    found: dict[str, Any] = dict(before)
    for source, layer in layers:
        below = {**layer, **before} if source == BEFORE else {} if source == AS_SET else layer
        found |= {name: below[name] for name in BOUNDS if name in below}
    free = [name for name in found if getattr(built, name) is None and name not in named]
    return {name: found[name] for name in free if isinstance(found[name], int)}  # not the word none


def unset_epochs(
    steps_instead: Mapping[str, str], layers: Sequence[tuple[str, Mapping[str, Any]]], told: Collection[str] | None
) -> list[tuple[str, dict[str, Any]]]:
    """Layers that unset epochs if a later layer gives the steps that would follow from them.

    What the caller gives is one layer here, so the order of options does not matter.

    Parameters
    ----------
    steps_instead : settings that count steps -> the settings that count the same in epochs.
    layers : the origin and the values of each layer, in order.
    told : the settings that were told in the layer of settings made before, which has all of them.
    """
    rank: dict[str, int] = {}
    for place, (source, layer) in enumerate(layers):
        given = [name for name, value in layer.items() if value is not None]
        given = [name for name in given if source != BEFORE or name in (told or ()) or name not in steps_instead]
        rank |= dict.fromkeys(given, len(layers) if source == AS_SET else place)
    later = {steps: epochs for steps, epochs in steps_instead.items() if epochs in rank and steps in rank}
    return [
        (f"because {steps} is given", {epochs: None})
        for steps, epochs in later.items()
        if rank[steps] > rank[epochs]
    ]


def given_twice(overrides: Sequence[str]) -> list[HardnegError]:
    """A fault for each setting that several ``key=value`` texts give."""
    counts = Counter(name for text in overrides if (name := text.partition("=")[0].strip()))
    return [
        SettingsError("BAD_SETTING", f"{name:.80} is given {count} times by --set", "give it once")
        for name, count in counts.items()
        if count > 1
    ]


def without_others(
    beside: Mapping[str, str],
    known: Collection[str],
    faults: list[HardnegError],
    values: Mapping[str, Any],
    path: Path | None = None,
) -> dict[str, Any]:
    """The settings among these values; a name that is in ``beside`` becomes a fault that says how to give it.

    A name may have the dashes of an option. Another trainer's name of a setting stays, because the later advice on
    it says more.
    """
    kept = {}
    for key, value in values.items():
        how = beside.get(key.lstrip("-").replace("-", "_"))
        theirs = ours(key, known)
        if how is None or key in known or (theirs is not None and theirs.settings):
            kept[key] = value
        else:
            fault = SettingsError("UNKNOWN_SETTING", f"'{key}' is no setting", f"give it by {how}", path=path)
            faults.append(fault)
    return kept


def file_settings(recipe: Recipe, written: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a TOML file names; it may also name options for what everyone sets, such as ``lr``."""
    known = recipe.settings.model_fields
    options, settings = split_options(written, known)
    return usual_settings(recipe.name, options, known, written=settings) | settings


def named_options(usual: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Options for what everyone sets by their own names; they may be written as they are typed.

    Raises
    ------
    Faults : a name is that of no such option, or an option is given twice.
    """
    options: dict[str, Any] = {}
    faults: list[HardnegError] = []
    for key, value in usual.items():
        plain = key.lstrip("-").replace("-", "_")
        name = plain if plain in FLAGS.values() else FLAGS.get(plain)
        if name is None:
            fix = f"give it by name, {plain}=..." if plain in known else nearest(plain, FLAGS)
            what = f"'{key:.80}' is no option that all recipes share"
            faults.append(SettingsError("UNKNOWN_SETTING", what, fix))
        elif value is not None and name in options:
            faults.append(SettingsError("BAD_SETTING", f"'{key}' is given twice", "leave one of them out"))
        elif value is not None:
            options[name] = value
    if faults:
        raise Faults(faults)
    return options


def with_negatives(usual: Any, negatives: int | list[int]) -> dict[str, Any]:
    """Options for what everyone sets, as a caller in Python gave them, and the number of negatives among them."""
    check_value("usual", usual, Mapping[str, Any] | None)
    return {"n-negatives": negatives, **(usual or {})}  # first, so that a fault names the caller's own word


def splits_of(splits: Splits, config: Place | None) -> Splits:
    """The splits that the caller gave, whole; without any, those that the file of settings names."""
    if config is None or splits is not DEFAULT_SPLITS:
        return splits
    named = split_config(Path(config))[0]
    return Splits(**{name: named[name] for name in ("train", "dev", "test") if name in named})


def check_one_filter(model: Place, values: Mapping[str, Any]) -> None:
    """Refuse a model to filter by if the setting ``filter_by`` names the scores of another one."""
    pairs = [text.partition("=") for text in values.get("overrides", ())]
    named = {str(read_value(value.strip())) for name, _, value in pairs if name.strip() == "filter_by"}
    if others := {*named, values.get("filter_by")} - {None, "given"}:
        what = f"filter_by = {others.pop()}, but {model} is given to filter by"
        raise SettingsError("BAD_SETTING", what, "give one of them")


def assigned(overrides: Sequence[str]) -> set[str]:
    """The settings that ``key=value`` texts name."""
    return {text.partition("=")[0].strip() for text in overrides}


def going_on(out: Place | None, usual: Precision) -> str:
    """The precision that the experiment at ``out`` was begun with; without an experiment there, ``usual``.

    An experiment can only be resumed in its own precision, because precision decides results.
    """
    for place in [] if out is None else [Layout(Path(out)), *Layout(Path(out)).seeds()]:
        try:
            begun = read_settings(place.path)["result_settings"].get("precision")
        except (HardnegError, OSError):  # there is no experiment, or opening it says that it is damaged
            continue
        if begun in get_args(Precision):
            if begun != usual:
                note(f"{out}: begun in {begun}, and kept in it; the default here is {usual}")
            return str(begun)
    return usual


def note_replaced(given: TrainingSettings, chosen: TrainingSettings) -> None:
    """Say which numbers of steps that somebody gave are other ones, because they follow from epochs."""
    for name in type(given).model_fields:
        if name in given.steps_instead.values():  # where steps follow from them, they may be unset
            continue
        if given.is_given(name) and (now := getattr(chosen, name)) != getattr(given, name):
            epochs = "first_ranker_epochs" if name.startswith("first_ranker") else "epochs"
            told = f"{name} = {now}, not {as_set(getattr(given, name))}: it follows from {epochs}"
            say(f"{told} = {getattr(given, epochs)}; --set {epochs}=none keeps what you gave")


def note_lifted(settings: TrainingSettings, queries: int) -> None:
    """Say how many steps the option for epochs makes of the queries, if the bounds that it lifts change them."""
    epochs = getattr(settings, "epochs", None)
    given = "steps" in type(settings).model_fields and getattr(settings, "steps", None) is not None
    if epochs is None or given or not settings.lifted:
        return

    def steps_of(chosen: TrainingSettings) -> int:
        made = getattr(chosen.for_data(queries), "steps", None)
        return made if isinstance(made, int) else chosen.steps_in(epochs, queries)

    steps, bounded = steps_of(settings), steps_of(settings.model_copy(update=settings.lifted))
    if steps != bounded:
        name = "min_steps" if steps < bounded else "max_steps"
        made = f"epochs = {epochs:g} is {counted(steps, 'step')} for {counted(queries, 'training query')}"
        keeps = f"--set epochs={epochs:g} keeps it: {counted(bounded, 'step')}"
        say(f"{made}: --epochs ignores {name} = {settings.lifted[name]} ({keeps})")


def with_steps(settings: TrainingSettings, queries: int, out: Path | None) -> TrainingSettings:
    """The settings for so many training queries; an experiment goes on with the steps that it was begun with.

    Earlier versions counted a step more where the floats of ``epochs`` times the steps of one are rounded up, and
    an experiment keeps the steps that its settings hold.

    Parameters
    ----------
    out : where the experiment is, if it was begun.
    """
    chosen = settings.for_data(queries)
    for place in [] if out is None else (Layout(out), *Layout(out).seeds()):
        record = attempt(lambda place=place: read_settings(place.path), [])  # type: ignore[misc]
        begun = (record or {}).get("settings", {})
        for name in {*settings.steps_instead.values()}:
            if (epochs := getattr(settings, name)) is None or begun.get(name, epochs) != getattr(chosen, name):
                continue
            more = settings.model_copy(update={name: epochs * (1 + 2 * ROUNDED)})  # is rounded up in any case
            longer = attempt(lambda more=more: more.for_data(queries), [])  # type: ignore[misc]
            then = {} if longer is None else {one: getattr(longer, one) for one in type(longer).model_fields}
            steps = {one: n for one, n in then.items() if one != name and n != getattr(chosen, one)}
            if steps and all(begun.get(one) == n for one, n in steps.items()):
                chosen = chosen.model_copy(update=steps)
    return chosen


def trained_by(model: Place) -> Begun | None:
    """The experiment that trained a model; None if it lies in none."""
    place = Path(model).absolute()
    if not place.exists():
        return None
    if own := begun_at(place):  # an experiment stands for its model
        return own
    return begun_at(place.parent) if place == Layout(place.parent).model else None


def begun_at(place: Path) -> Begun | None:
    """The experiment at a place; None if there is none, or none that can be read: opening it says why.

    Raises
    ------
    ArtifactError : a newer hardneg began it, and what this one does not know of its dev would be lost.
    """
    try:
        begun = read_settings(place)
        return Begun(
            str(place),
            begun["recipe"],
            int(begun["result_settings"]["seed"]),
            str(begun["inputs"].get("splits")),
            str(begun["inputs"].get("collection")),
            known_splits(begun.get("splits") or {"train": "", "dev": None, "test": None}, place),
        )
    except (HardnegError, OSError, KeyError, TypeError, ValueError) as fault:
        if isinstance(fault, ArtifactError) and fault.code == "FORMAT_VERSION":
            raise
        return None


def dev_draw(out: Path | None, before: Begun | None, seed: int, *, collection: str, train: str) -> DevDraw:
    """The draw of the queries to hold out: that of an experiment that goes on, or of the one before.

    With another draw than that of the experiment that trained the model on these data, dev would have queries that
    the model learnt from.

    Parameters
    ----------
    out : where the experiment is, or its seeds are.
    collection, train : the digest of the collection, and the split that is trained on.
    """
    places = [] if out is None else [Layout(out), *Layout(out).seeds()]
    begun = [one for place in places if (one := begun_at(place.path))]
    same = before is not None and (before.collection, before.splits.train) == (collection, train)
    for one in (*begun[:1], *([before] if before and same else [])):
        if one.splits.held_out:
            return one.splits.draw
    return DevDraw(seed)


def warn_of_more_held_out(before: Begun | None, data: TrainingData, seed: int) -> None:
    """Warn if dev has more held-out queries than that of the experiment that trained the model."""
    if before is None or (before.collection, before.splits.seed) != (data.collection.digest, seed):
        return
    if more := max(data.held_out - before.splits.held_out, 0) if before.splits.held_out else 0:
        what = "%s: the model learnt from %s of dev, which has more queries than before; set dev_queries = %d"
        log.warning(what, before.place, counted(more, "query"), before.splits.held_out)


def in_another_order(
    recipe: str,
    settings: TrainingSettings,
    before: Begun | None,
    data: TrainingData,
    *,
    seeds: int = 1,
    out: Path | None = None,
) -> TrainingSettings:
    """The settings with another seed, if this seed and recipe trained the model before, on the same queries.

    The order of the queries follows from the seed, so the first steps would take the same queries again, from
    which the model learns little more (docs/studies/depth-64.md). A seed that was given, and that of an experiment
    that goes on, stay; then a line says so.

    Parameters
    ----------
    seeds : the number of experiments, of which the first has the seed of the settings.
    out : where the experiment is, if it was begun.
    """
    if before is None or (before.recipe, before.queries) != (recipe, data.digest):
        return settings
    told = f"{before.place} was trained by {recipe} with seed = {before.seed} on the same queries"
    places = [] if out is None else [Layout(out), *Layout(out).seeds()]
    begun = {one.seed for place in places if (one := begun_at(place.path))}
    if before.seed >= settings.seed and settings.seed not in begun and not settings.is_told("seed"):
        seed = before.seed + 1
        taken = f"seed = {seed} takes" if seeds == 1 else f"the seeds {seed} to {seed + seeds - 1} take"
        say(f"{told}; {taken} them in another order (--seed {before.seed}: in the same)")
        return settings.model_copy(update={"seed": seed})
    if before.seed in range(settings.seed, settings.seed + seeds):
        say(f"{told}, so they come in the same order again; --seed {settings.seed + seeds} gives another order")
    return settings


def check_seeds(out: Path | None, seeds: range) -> None:
    """Refuse a place with experiments of other seeds, which would be missing in the results; some may be there."""
    places = [] if out is None else Layout(out).seeds()
    there = [place.path.name for place in places if place.settings.is_file()]
    numbers = {int(name[5:]) for name in there if re.fullmatch(r"seed-\d+", name)}
    if left := sorted(number for number in numbers if number not in seeds):
        what = f"this holds the experiments of other seeds, too: {', '.join(map(str, left))}"
        fix = "give a new folder, or the number of seeds it was made with and the first of them (--seed)"
        raise ArtifactError("SEVERAL_SEEDS", what, fix, path=out)


def attempt(read: Callable[[], T], faults: list[HardnegError]) -> T | None:
    """The result of ``read``; if that raises a fault, None, and the fault is added to ``faults``."""
    try:
        return read()
    except Faults as several:
        faults.extend(several.faults)
    except HardnegError as fault:
        faults.append(fault)
    return None

"""Strict typed settings, built from presets, files and overrides. All faults are reported together.

A field is a *result* setting unless it is marked *operational*: changing a result setting changes what an
experiment computes, so a resume refuses it; operational settings (memory, logging, paths) may change freely.
"""

from __future__ import annotations

import codecs
import difflib
import functools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from hardneg.arguments import LARGEST, brief
from hardneg.errors import Faults, HardnegError, InputError, SettingsError
from hardneg.foreign_names import setting_advice
from hardneg.shown import as_set
from hardneg.storage.artifacts import reading

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name

S = TypeVar("S", bound="Settings")

WIDE = 80  # characters of a value that is shown; a digest in quotes (66) fits
MOST = 64 << 10  # bytes of a settings file; the time to read a key grows with the square of its length
PRESET = "preset "  # begins the origin of a value that a preset set
WHOLE = "as set with all others"  # the origin of values of which one or another may have no effect
SHORT = 3  # letters; of a word this short, one wrong letter is a large part
PARTED = {  # old presets, each split into two: random negatives of the batch, and of the corpus
    ("warmup", f"{before}random"): (f"{before}in-batch", f"{before}corpus-random")
    for before in ("bm25-", "bm25-to-", "bm25-to-bm25-")
}


class Origins(dict[str, str]):
    """Where the value of each setting comes from, by name. It plays no part when settings are compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origins)

    __hash__ = None


class Unseen(dict[str, Any]):
    """Values by name that play no part when settings are compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unseen)

    __hash__ = None


class SettingsType(ModelMetaclass):
    """The metaclass of settings: ``Name(...)`` raises the same faults as :func:`build`."""

    def __call__(self, *args: Any, **values: Any) -> Any:
        """Make an instance of the settings class; raises :class:`~hardneg.errors.Faults`."""
        try:
            return super().__call__(*args, **values)
        except ValidationError as fault:
            raise Faults(faults_of(cast(type[Settings], self), fault)) from None


class Settings(BaseModel, metaclass=SettingsType):
    """Base of all settings classes: unknown keys, wrong types, NaN and Inf are faults."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    refused: ClassVar[tuple[str, ...]] = ()  # settings of a base class that this class takes no value for

    _origins: Origins = PrivateAttr(default_factory=lambda: Origins())
    _lifted: Unseen = PrivateAttr(default_factory=lambda: Unseen())

    @model_validator(mode="before")
    @classmethod
    def _list_of_one(cls, values: Any) -> Any:
        """Turn a plain value into a list of one where a list is expected."""
        if not isinstance(values, dict):
            return values
        return {
            name: [value] if name in lists_of(cls) and is_plain(value) else value for name, value in values.items()
        }

    @field_validator("*")
    @classmethod
    def _counts_that_fit(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse integers beyond :data:`LARGEST`; a seed may have 63 bits."""
        most = (1 << 63) - 1 if "seed" in str(info.field_name) else LARGEST
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and abs(one) > most:
                raise ValueError(f"the largest integer here is {most:,}")
        return value

    def origin_of(self, name: str) -> str:
        """Where the value of a setting comes from, for people."""
        return self._origins.get(name, "as set" if name in self.model_fields_set else "by default")

    def is_given(self, name: str) -> bool:
        """Whether a setting has another value than by default, and not from a preset."""
        changed = getattr(self, name) != type(self).model_fields[name].default
        return bool(changed) and not self._origins.get(name, "").startswith(PRESET)

    def is_told(self, name: str) -> bool:
        """Whether somebody gave a setting its value, also if it is that by default; a preset is nobody."""
        return not self.origin_of(name).startswith((PRESET, "by default")) and getattr(self, name) is not None

    def coming_from(self, origins: Mapping[str, str]) -> None:
        """Record where the values of some settings come from, by setting."""
        self._origins.update(origins)

    @property
    def lifted(self) -> dict[str, Any]:
        """The bounds that an option lifted for what it sets, by name; for all else they hold."""
        return dict(self._lifted)

    def lift(self, bounds: Mapping[str, Any]) -> None:
        """Record bounds that an option lifted."""
        self._lifted.update(bounds)

    @property
    def told_besides(self) -> dict[str, Any]:
        """What the record of an experiment has besides the values of its settings, JSON-ready."""
        return {}

    def result_values(self) -> dict[str, Any]:
        """The settings that decide the result, JSON-ready."""
        values: dict[str, Any] = self.model_dump(mode="json")
        for name in type(self).model_fields:
            if is_operational(type(self), name):
                del values[name]
            elif isinstance(inner := getattr(self, name), Settings):
                values[name] = inner.result_values()
        return values


def operational(default: Any, **constraints: Any) -> Any:
    """A field that changes how, not what, an experiment computes."""
    return Field(default, json_schema_extra={"operational": True}, **constraints)


def is_plain(value: Any) -> bool:
    """Whether a value is one number or text; a text that begins with ``[`` is not, but a badly written list."""
    return not value.startswith("[") if isinstance(value, str) else isinstance(value, (int, float))


@functools.cache
def lists_of(settings: type[BaseModel]) -> frozenset[str]:
    """The names of the settings that are lists, and cannot be a number as well."""
    kinds = {name: either(one.annotation) for name, one in settings.model_fields.items()}
    return frozenset(
        name for name, some in kinds.items() if any(map(is_list, some)) and not any(map(is_number, some))
    )


def either(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of another type, this type alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def is_list(kind: Any) -> bool:
    """Whether a type is that of lists."""
    return get_origin(kind) is list or (get_origin(kind) is Annotated and is_list(get_args(kind)[0]))


def is_number(kind: Any) -> bool:
    """Whether a type is that of numbers, with bounds or without."""
    return kind in (int, float) or (get_origin(kind) is Annotated and is_number(get_args(kind)[0]))


def is_operational(settings: type[Settings], name: str) -> bool:
    """Whether a field is marked operational."""
    extra = settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("operational"))


def read_presets(recipe: str) -> dict[str, dict[str, Any]]:
    """Read all presets of a recipe: a mapping from a preset's name to its values."""
    text = resources.files("hardneg").joinpath("presets", f"{recipe}.toml").read_text("utf-8")
    return tomllib.loads(text)


def read_preset(recipe: str, name: str) -> dict[str, Any]:
    """Read the values of one preset of a recipe; raises :class:`SettingsError` for an unknown preset."""
    presets = read_presets(recipe)
    if (recipe, name) in PARTED:
        batch, corpus = PARTED[recipe, name]
        what = f"{recipe} has no preset '{name}', for random negatives are of two kinds"
        fix = f"use '{batch}' (of the batch, as ANCE's Rand) or '{corpus}' (of the corpus)"
        raise SettingsError("UNKNOWN_PRESET", what, fix)
    if name not in presets:
        raise SettingsError("UNKNOWN_PRESET", f"{recipe} has no preset '{name}'", nearest(name, presets))
    return presets[name]


def read_toml(path: Path) -> dict[str, Any]:
    """Read the values of a TOML settings file; raises :class:`InputError` or :class:`SettingsError`.

    A pipe, such as a shell's ``<(...)``, is refused: the file is read several times, also by other processes.
    """
    with reading(path):
        pipe = path.exists() and path.is_fifo()
    if pipe:
        what, fix = "this is a pipe, which can be read only once", "write the settings to a file"
        raise SettingsError("BAD_TOML", what, fix, path=path)
    try:
        with reading(path), open(path, "rb") as stream:
            data = stream.read(MOST + 1)
        if len(data) > MOST:
            raise SettingsError("BAD_TOML", f"longer than {MOST:,} bytes", "give a file of settings", path=path)
        return tomllib.loads(data.decode("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError) as fault:
        raise InputError("NOT_FOUND", "no such file", "check the path", path=path) from fault
    except UnicodeDecodeError as fault:
        line = fault.object.count(b"\n", 0, fault.start) + 1
        what = f"not UTF-8 (0x{fault.object[fault.start]:02x})"
        what += ", but UTF-16" if fault.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else ""
        raise SettingsError("BAD_TOML", what, "convert the file to UTF-8", path=path, line=line) from fault
    except (ValueError, RecursionError) as fault:  # an integer of thousands of digits, a table in a table in …
        if other := other_language(path, data):
            fix = "write lines such as learning_rate = 3e-5, or give them by --set"
            raise SettingsError("BAD_TOML", f"this is {other}, but only TOML is read", fix, path=path) from fault
        place = re.search(r" \(at line (\d+), (column \d+)\)", str(fault))
        number = int(place[1]) if place else None
        why = f"{str(fault)[: place.start()]} at {place[2]}" if place else str(fault)
        if "integer string conversion" in why:  # Python's own words advise to change its settings
            why = "an integer has thousands of digits"
        raise SettingsError("BAD_TOML", f"not valid TOML ({why})", "correct it", path=path, line=number) from fault


def other_language(path: Path, data: bytes) -> str:
    """The language of a file that is not TOML, by its name and first line: YAML or JSON; "" if unknown."""
    suffixes = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON"}
    if path.suffix.lower() in suffixes:
        return suffixes[path.suffix.lower()]
    lines = [line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#")]
    if lines and lines[0].lstrip().startswith(b"{"):
        return "JSON"
    return "YAML" if lines and re.match(rb"(---|[\w-]+\s*:(\s|$))", lines[0]) else ""


NAMED = ("data", "model", "out", "preset", "train", "dev", "test")  # names in a settings file besides settings


def split_config(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The content of a TOML settings file in two parts: the values of :data:`NAMED`, and the settings.

    Raises
    ------
    InputError, SettingsError : as :func:`read_toml`; also if a value of :data:`NAMED` is not a text.
    """
    values = read_toml(path)
    named = {name: values.pop(name) for name in NAMED if name in values}
    for name, value in named.items():
        if not isinstance(value, str):
            raise SettingsError("BAD_SETTING", f"{name} = {brief(value)}", "give a text", path=path)
    return named, values


def read_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` texts into nested values; later texts win. A value is TOML; a bare word is a string.

    Raises
    ------
    Faults : every text that is not of this form (exit 2).
    """
    values: dict[str, Any] = {}
    faults = []
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or not all(part.strip() for part in name.split(".")):
            what = f"{assignment!r:.80} is not key=value"
            faults.append(SettingsError("BAD_OVERRIDE", what, "write --set key=value"))
            continue
        value = read_value(text)
        for part in reversed(name.strip().split(".")):
            value = {part: value}
        values = merge(values, value)
    if faults:
        raise Faults(faults)
    return values


def read_value(text: str) -> Any:
    """Parse one TOML value; a text that is not TOML stays a string."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return values["value"] if len(values) == 1 else text


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``over`` on top, table by table."""
    merged = dict(base)
    for name, value in over.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def build(settings: type[S], *layers: Mapping[str, Any]) -> S:
    """Validate the layers (later ones win) as ``settings``.

    Raises
    ------
    Faults : every unknown key, wrong type and value out of range, in one go (exit 2).
    """
    values: dict[str, Any] = {}
    try:
        for layer in layers:
            values = merge(values, layer)
        values |= dict.fromkeys(unset_by(settings, values))
        return settings.model_validate_json(encoded(values))
    except ValidationError as fault:
        raise Faults(faults_of(settings, fault)) from None
    except UnicodeEncodeError:
        raise Faults(
            [not_text(name, value) for name, value in values.items() if not is_text([name, value])]
        ) from None
    except (RecursionError, TypeError, ValueError):  # such as a mapping whose keys are no strings, or a cycle
        what = f"a value of {brief(values)} is nested too deeply or is no setting"
        raise SettingsError("BAD_SETTING", what, "give a plain value") from None


def encoded(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8; text that is not UTF-8 raises :class:`UnicodeEncodeError`."""
    return json.dumps(value, ensure_ascii=False, default=as_text).encode()


def is_text(value: Any) -> bool:
    """Whether all strings in a value are UTF-8. On a command line, bytes that are not become lone surrogates."""
    try:
        encoded(value)
    except UnicodeEncodeError:
        return False
    return True


def not_text(name: str, value: Any) -> HardnegError:
    """The fault of a setting whose text is not UTF-8."""
    what = f"{ascii(name)[1:-1]} = {brief(value)} is not UTF-8, or holds a lone surrogate"
    return SettingsError("BAD_SETTING", what, "correct the text")


def unset_by(settings: type[Settings], values: Mapping[str, Any]) -> list[str]:
    """The settings that the word ``none`` leaves unset, because TOML has no null value.

    A setting that has ``none`` among its choices keeps the word.
    """
    fields = settings.model_fields
    words = [
        name for name, value in values.items() if isinstance(value, str) and value == "none" and name in fields
    ]
    return [name for name in words if may_be_unset(fields[name].annotation)]


def may_be_unset(annotation: Any) -> bool:
    """Whether a setting may be None, and has no choice ``none``; no text, not even a prompt, is the word."""
    kinds = get_args(annotation)
    choices = [word for kind in kinds for word in get_args(kind)]
    return type(None) in kinds and "none" not in choices


def as_text(value: Any) -> str:
    """The text form of a value that JSON cannot hold."""
    try:
        return str(value)
    except Exception:  # ``__str__`` of a user's class may raise anything
        return brief(value)


def faults_of(settings: type[Settings], fault: ValidationError) -> list[HardnegError]:
    """One fault for each setting that pydantic refuses; for a union, it says what each member type expects."""
    found: dict[str, list[Any]] = {}
    for error in fault.errors():
        found.setdefault(place_of(settings, error["loc"]), []).append(error)
    return [describe(settings, name, errors) for name, errors in found.items()]


def place_of(settings: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The dotted name of the setting that an error is about, without pydantic's names for a union's members."""
    parts: list[str] = []
    inner: type[BaseModel] | None = settings
    for part in loc:
        if isinstance(part, str) and inner is None:
            continue
        parts.append(str(part))
        field = inner.model_fields.get(part) if inner is not None and isinstance(part, str) else None
        kind = field.annotation if field is not None else None
        inner = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return ".".join(parts) or "settings"


def describe(settings: type[Settings], name: str, errors: Sequence[Any]) -> HardnegError:
    """The fault (one line) for pydantic's validation errors of one setting."""
    error = errors[0]
    if error["type"] == "extra_forbidden":
        return unknown_setting(settings, name, error["input"])
    if error["type"] == "missing":
        return SettingsError("MISSING_SETTING", f"'{name}' has no default", f"give it: --set {name}=...")
    if isinstance(error["input"], int | float):  # that a list would do as well does not help
        errors = [one for one in errors if one["type"] != "list_type"] or errors
    found = f"{name} = {json.dumps(error['input'], default=as_text):.80}"
    wanted = list(dict.fromkeys(expected for one in errors if (expected := expected_by(one))))
    if wanted:
        return SettingsError("BAD_SETTING", found, f"it should {', or '.join(wanted)}")
    message = error["msg"].removeprefix("Value error, ")  # pydantic's prefix for our own validators
    return SettingsError("BAD_SETTING", f"{found}: {message[:1].lower()}{message[1:]}", "give a valid value")


def expected_by(error: Any) -> str:
    """What a value should be by pydantic's message, in our words; "" if the message does not say it."""
    said = str(error["msg"])
    wanted = said.removeprefix("Input should ").partition(", unable to parse")[0]
    plain = {"be a valid array": "be a list, such as [1, 2]", "be an object": "be a table"}
    return "" if said == error["msg"].removeprefix("Input should ") else plain.get(wanted, wanted)


def unknown_setting(settings: type[Settings], name: str, value: Any) -> HardnegError:
    """The fault of a setting that does not exist; it names the setting that is probably meant."""
    known = known_keys(settings)
    if isinstance(value, Mapping) and not any("." in key for key in known):
        what = f"'{name:.80}' is not a setting; it is a table with {', '.join(map(str, value)) or 'nothing':.80}"
        fix = f"write these by themselves, without the heading [{name:.40}]"
        return SettingsError("UNKNOWN_SETTING", what, fix)
    advice = setting_advice(name, known) or nearest(name, known)
    return SettingsError("UNKNOWN_SETTING", f"there is no setting '{name:.80}'", advice)


def known_keys(settings: type[BaseModel], prefix: str = "") -> list[str]:
    """The names of all settings of a class; nested settings are written with dots."""
    keys: list[str] = []
    for name, field in settings.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys.extend(known_keys(field.annotation, f"{prefix}{name}."))
    return keys


def nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Advice for an unknown word: the nearest known one, or all known ones."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1, 0.6 if len(word) > SHORT else 0.5)
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(sorted(names))}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, each as ``key: old -> new``; long values are cut to the part that differs."""
    names = sorted(set(old) | set(new))
    changed = [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
    return [f"{name}: {' -> '.join(apart(told(before), told(now)))}" for name, before, now in changed]


def told(value: Any) -> str:
    """The value of a setting as a user writes it; a text in quotes."""
    return repr(value) if isinstance(value, str) else as_set(value)


def apart(one: str, other: str) -> tuple[str, str]:
    """Two texts for people; if one is too long, both are cut around the first place where they differ."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = 0 if same <= WIDE // 2 else same - WIDE // 4

    def cut(text: str) -> str:
        return ("…" if begin else "") + text[begin : begin + WIDE] + ("…" if len(text) > begin + WIDE else "")

    return (one, other) if max(len(one), len(other)) <= WIDE else (cut(one), cut(other))

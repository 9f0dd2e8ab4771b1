"""Checks the arguments of public functions against their annotations before anything is done with them.

Callers from Python may give lists and dicts of any shape. A fault is one line, as on the command line: what was
expected, and what was found.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from hardneg.callers import Called, answering
from hardneg.errors import HardnegError, SettingsError, raise_all
from hardneg.storage.digests import in_home
from hardneg.surroundings import own_surroundings

P = ParamSpec("P")
R = TypeVar("R")

SHORT = 1000  # items of a list that may be of settings; longer ones are data
LARGEST = (1 << 31) - 1  # the largest count that a user may give
WORDS = {str: "a string", Path: "a path", int: "an integer", float: "a number", bool: "True or False"}
WORDS |= {type(None): "None", dict: "a mapping"}
ELSEWHERE = {"top_k": "k", "topk": "k", "limit": "k", "metric": "measure", "metrics": "measures", "output": "out"}
hints_of: Callable[[Any], Mapping[str, Any]] = functools.cache(typing.get_type_hints)  # slow to evaluate
CALLED = {
    "prepare": "train",
    "recipe_settings": "settings_of",
}  # a function that checks arguments -> the public function that users call


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse arguments that do not fit its annotations.

    The function gets Python's numbers in place of numpy's, which JSON does not take, and paths in place of ``~``,
    as a shell gives them. It works in surroundings of its own (:func:`~hardneg.surroundings.own_surroundings`).
    Its faults name keywords to a caller in Python, and options to a command (:mod:`~hardneg.callers`).

    Raises
    ------
    SettingsError : an argument has the wrong type (:class:`~hardneg.errors.Faults` if several have).
    """
    signature = inspect.signature(function)
    keywords = functools.cache(lambda: keywords_of(signature, hints_of(function)))
    called = functools.cache(lambda of: Called(of, keywords(), flags_of(signature, hints_of(function))))

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        of = CALLED.get(function.__qualname__, function.__qualname__)
        hints, names = hints_of(function), keywords()
        if unknown := [name for name in kwargs if names is not None and name not in names]:
            raise unexpected(of, unknown[0], names or ())
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as fault:
            raise TypeError(f"{of}(): {fault}") from None
        faults: list[HardnegError] = []
        for name, value, hint in values_of(signature, given.arguments, hints):
            if not fits(value, hint):
                faults.append(refusal(f"{of}: {name}", value, hint))
        raise_all(faults)
        for name, value in given.arguments.items():
            given.arguments[name] = settled(value, hints.get(name), signature.parameters[name].kind)
        with answering(called(of)), own_surroundings():
            return function(*given.args, **given.kwargs)

    return call


def named(function: Callable[P, R]) -> Callable[P, R]:
    """Let the faults of a function name keywords to a caller in Python, as :func:`checked` does; check nothing."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        hints = hints_of(function)
        called = Called(function.__qualname__, keywords_of(signature, hints), flags_of(signature, hints))
        with answering(called), own_surroundings():
            return function(*args, **kwargs)

    return call


def keywords_of(signature: inspect.Signature, hints: Mapping[str, Any]) -> Collection[str] | None:
    """The names of the keyword arguments that a function takes; None if it takes any."""
    names: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(name)
        elif typing.get_origin(hints.get(name)) is typing.Unpack:
            names.extend(hints_of(*typing.get_args(hints[name])))
        else:
            return None
    return names


def flags_of(signature: inspect.Signature, hints: Mapping[str, Any]) -> frozenset[str]:
    """The names of the keyword arguments of a function that are True or False."""
    flags = {name for name in signature.parameters if hints.get(name) is bool}
    for hint in hints.values():
        if typing.get_origin(hint) is typing.Unpack:
            fields = hints_of(*typing.get_args(hint))
            flags |= {name for name, kind in fields.items() if kind is bool}
    return frozenset(flags)


def unexpected(function: str, name: str, known: Collection[str]) -> TypeError:
    """The fault of a keyword that a function does not take; it names the keyword that is probably meant."""
    near = [ELSEWHERE[name]] if ELSEWHERE.get(name) in known else difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def check_value(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that does not fit the annotation ``hint``; raises :class:`SettingsError`."""
    if not fits(value, hint):
        raise refusal(name, value, hint)


def check_fields(record: Any) -> None:
    """Refuse fields of a dataclass that do not fit their annotations; raises :class:`SettingsError`.

    Afterwards the fields hold Python's numbers in place of numpy's.
    """
    for name, hint in hints_of(type(record)).items():
        value = getattr(record, name)
        check_value(f"{type(record).__name__}: {name}", value, hint)
        if (number := plain(value)) is not value:
            object.__setattr__(record, name, number)  # it may be frozen


def plain(value: Any) -> Any:
    """Python's number or truth value for one of numpy's, also in a short list or mapping; all else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return value.item() if value.dtype.kind in "biuf" else value
    if isinstance(value, list | tuple | dict) and len(value) <= SHORT:
        inside = value.values() if isinstance(value, dict) else value
        if any(type(one).__module__ == "numpy" for one in inside):
            if isinstance(value, dict):
                return {name: plain(one) for name, one in value.items()}
            return type(value)(plain(one) for one in value) if type(value) in (list, tuple) else value
    return value


def settled(value: Any, hint: Any, kind: Any) -> Any:
    """An argument as its function gets it, each of several ones if it is ``*args`` or ``**options``."""
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(at_home(plain(one), hint) for one in value)
    if kind is inspect.Parameter.VAR_KEYWORD:
        hints = keyword_hints(hint, value)
        return {name: at_home(plain(one), hints.get(name)) for name, one in value.items()}
    return at_home(plain(value), hint)


def at_home(value: Any, hint: Any) -> Any:
    """A path with the home folder in place of ``~``, also in a short list or mapping; all else as it is.

    A path of another library becomes Python's own, which all code looks for.
    """
    if not takes_path(hint):
        return value
    if isinstance(value, os.PathLike) and not isinstance(value, Path):
        value = Path(os.fsdecode(value))
    if isinstance(value, str | Path):
        text = str(value)
        return type(value)(in_home(text)) if text == "~" or text.startswith("~/") else value
    if type(value) in (list, tuple) and len(value) <= SHORT:
        return type(value)(at_home(one, hint) for one in value)
    if type(value) is dict and len(value) <= SHORT:
        return {name: at_home(one, hint) for name, one in value.items()}
    return value


def takes_path(hint: Any) -> bool:
    """Whether a value of this annotation may be a path, or hold one."""
    return hint is Path or any(map(takes_path, typing.get_args(hint)))


def keyword_hints(hint: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """The annotation of each keyword of ``**options``; of ``Unpack[Options]``, those of the dict ``Options``."""
    if typing.get_origin(hint) is typing.Unpack:
        return hints_of(*typing.get_args(hint))
    return dict.fromkeys(names, hint)


def values_of(
    signature: inspect.Signature, given: Mapping[str, Any], hints: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Each argument that was given and has an annotation: name, value and annotation."""
    for name, value in given.items():
        if name not in hints:
            continue
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((name, one, hints[name]) for one in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            fields = keyword_hints(hints[name], value)
            yield from ((other, one, fields[other]) for other, one in value.items())
        else:
            yield name, value, hints[name]


def refusal(name: str, value: Any, hint: Any) -> SettingsError:
    """The fault of a value that does not fit its annotation."""
    what = f"{name} is {described(value)}"
    if isinstance(value, str) and Path in typing.get_args(hint):
        return SettingsError("BAD_SETTING", what, "give a path, of characters that a file system takes")
    return SettingsError("BAD_SETTING", what, f"give {expected(hint)}{way_to(value, hint)}")


def way_to(value: Any, hint: Any) -> str:
    """How to get what is expected from what was given, where that is known; else nothing."""
    names = {getattr(one, "__name__", "") for one in typing.get_args(hint)}
    if "Collection" in names and (isinstance(value, list) or hasattr(value, "columns")):
        return "; hn.Collection.from_pairs makes one of rows in memory"
    if type(value).__name__ == "NegativePool" and Path in typing.get_args(hint):
        return ": the folder that hn.mine was given as out"
    return ""


def described(value: Any) -> str:
    """The text form of a value, cut to fit into a line, with its type."""
    if value is None:
        return "None"
    return f"{brief(value)} ({type(value).__name__})"


def brief(value: Any) -> str:
    """The beginning of a value's text form; its type if the text form cannot be made."""
    try:
        return f"{value!r:.80}" if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
    except Exception:  # a repr of the user's may do anything
        return f"a {type(value).__name__}"


# ---------------------------------------------------------------- annotations


def fits(value: Any, hint: Any) -> bool:
    """Whether a value fits an annotation, element by element; other classes are compared by ``isinstance``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        if isinstance(value, str) and Path in inner:
            return is_place(value)
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is not None:
        return isinstance(value, origin) and fits_inside(value, origin, inner)
    return is_plain(value, hint)


def is_plain(value: Any, hint: Any) -> bool:
    """Whether a value has a type without parts; numpy's numbers count as numbers, and ``True`` does not."""
    if hint is bool:
        return type(value).__name__ in ("bool", "bool_")  # numpy's too
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike) and is_place(value)
    return not isinstance(hint, type) or isinstance(value, hint)


def is_place(value: str | os.PathLike[str]) -> bool:
    """Whether a path can exist: its name is not empty and has no NUL."""
    try:
        name = os.fsencode(value)
    except UnicodeEncodeError:  # the path has half of a surrogate pair
        return False
    return name != b"" and b"\0" not in name


def fits_inside(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    """Whether the items of a container fit its annotation."""
    if issubclass(origin, Mapping):
        return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())
    if origin is tuple and inner[-1:] != (...,):
        return len(value) == len(inner) and all(map(fits, value, inner))
    if issubclass(origin, Sequence):
        return not isinstance(value, str | bytes) and all(fits(one, inner[0]) for one in value)
    return True


def bare(hint: Any) -> str:
    """An annotation in words without its article: ``string``, ``{string: number}``."""
    return expected(hint).removeprefix("a mapping ").removeprefix("a ").removeprefix("an ")


def expected(hint: Any) -> str:
    """An annotation in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(one) for one in inner if one is not type(None)))
    if origin is Literal:
        return " or ".join(repr(one) for one in inner)
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping {{{bare(inner[0])}: {bare(inner[1])}}}"
    if origin is not None and issubclass(origin, Sequence):
        if inner[0] is Any:
            return "a list"
        item = expected(inner[0])
        return (
            f"a list of {bare(inner[0])}s"
            if inner[0] in (str, Path, int, float)
            else f"a list; each item is {item}"
        )
    if origin is Callable:
        return "a function"
    name = getattr(hint, "__name__", str(hint))
    return WORDS.get(hint) or ("an " if name[:1] in "AEIOU" else "a ") + name

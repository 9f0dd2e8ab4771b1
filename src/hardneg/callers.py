"""Who called, the command line or Python: faults and notes name options to the one, and keywords to the other.

The code writes its advice once, with the options of the command line: ``give --pool``. Where a public function
ends in a fault, and no command called it, the options become what its caller can write: ``give negatives=``.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from hardneg.errors import Faults, HardnegError

OPTION = re.compile(
    r"(?P<before>the option | \(option |(?<![\w/'\"=-]))--(?P<name>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])"
    r"(?P<bare>(?= = )|(?=(?: or --[a-z-]+)* out\b))?"
)
KEPT = re.compile(  # advice to run a command, which keeps its options; what users wrote: quoted texts and paths
    r"`?\bhardneg [a-z][^;,)`\n]*|(?<![\w=-])(?<!-{2}set )(?:'[^'\n]*'|\"[^\"\n]*\")(?!\w)|\(/[^)\n]*\)"
)
IMPORT = re.compile(r"hardneg import --(?P<name>[a-z-]+)(?: \w+)?")
QUOTED = re.compile(r" '(?P<text>(?:[^']|'\"'\"')*)'")  # --set 'extra=[]', as a shell needs it
PLACEHOLDER = re.compile(r" (?P<value>[A-Z]+|\d+(?:\.\d+)?)(?![\w/])")  # --filter-by M, --seed 3
SIZE = re.compile(r" (?P<value>\d+[KMGT])\b")  # --max-ram 8G
WORD = re.compile(r" (?P<value>(?!(?:and|or|too|with)\b)\w(?:[\w./-]*\w)?)")  # --split dev.small
WITH_WORDS = (
    "allow_code",
    "dev",
    "format",
    "on_duplicate",
    "role",
    "shard",
    "split",
    "test",
    "tune",
)  # whose values are words
SETTING = re.compile(r" (?P<name>[a-z]\w*)=(?P<value>\.\.\.|[^\s,;:)]*[^\s,;:.)])")  # --set keep=last
CONSTANTS = {"none": "None", "true": "True", "false": "False"}

OTHER_NAMES = {  # of options -> of keywords, where the function has no keyword of the option's name
    "index": "index_folder",
    "pool": "negatives",
    "query": "query_id",
    "ranker": "model",
    "run": "runs",
    "threshold": "thresholds",
    "tuning_run": "tuning_runs",
}
OF_TRAINING = {  # likewise, for functions that take any setting as a keyword
    "batch_size": "queries_per_step",
    "index": "index_folder",
    "lr": "learning_rate",
    "max_length": "passage_length",
    "pool": "negatives",
}
SPLITS = ("train", "dev", "test")
BOUNDS = ("rank_from", "rank_to", "max_score", "absolute_margin", "relative_margin", "top")
OF_THE_PROCESS = {  # what no function takes as a keyword
    "allow_code": "hn.allow_code({})",
    "dry_run": "hn.plan(...)",
    "estimate": "hn.plan(..., estimate=True)",
    "max_ram": "hardneg.process.memory.limit_memory(max_ram={})",
    "max_vram": "hardneg.process.memory.limit_memory(max_vram={})",
    "threads": "torch.set_num_threads({})",
}


@dataclass(frozen=True)
class Called:
    """The public function that a caller in Python has called.

    Attributes
    ----------
    name : its name, with that of its class.
    keywords : the names of the arguments that it takes; None: any, such as the settings of training.
    flags : arguments that are True or False.
    """

    name: str
    keywords: Collection[str] | None
    flags: Collection[str] = ()

    def keyword(self, option: str) -> str | None:
        """The keyword for an option, which is written with underscores; None if there is none of its own."""
        if option in self.flags:
            return option
        if self.keywords is None:
            return None if option in SPLITS or option in OF_THE_PROCESS else OF_TRAINING.get(option, option)
        other = option if option in self.keywords else OTHER_NAMES.get(option)
        return other if other in self.keywords else None

    def takes(self, keyword: str) -> bool:
        """Whether the function takes this keyword."""
        return self.keywords is None or keyword in self.keywords


_at_work = 0  # commands that this process runs now
_words = ""  # the last of them, as a shell would need it
_called: ContextVar[Called | None] = ContextVar("called", default=None)


@contextlib.contextmanager
def command_line(words: Sequence[str] = ()) -> Iterator[None]:
    """Run the command of these words in the block: faults and notes name its options, in all threads."""
    global _at_work, _words
    _at_work += 1
    _words = shlex.join(["hardneg", *words]) if words else ""
    try:
        yield
    finally:
        _at_work -= 1


def asked_by() -> str:
    """The command that runs now, or the public function that Python has called; empty if neither is known."""
    if _at_work:
        return _words
    called = _called.get()
    return f"hn.{called.name}(...) in Python" if called else ""


@contextlib.contextmanager
def answering(called: Called) -> Iterator[None]:
    """Run a public function in the block: its faults and notes name keywords, if Python and no command called it.

    A function that another public one calls changes nothing: the caller knows the outer one alone.
    """
    if _at_work or _called.get() is not None:
        yield
        return
    token = _called.set(called)
    try:
        yield
    except HardnegError as fault:
        reword(fault, called)
        raise
    finally:
        _called.reset(token)


@contextlib.contextmanager
def users_own() -> Iterator[None]:
    """Run a function of the user's in the block: public functions that it calls answer to it."""
    token = _called.set(None)
    try:
        yield
    finally:
        _called.reset(token)


def in_callers_words(text: str) -> str:
    """A note as the caller of the public function can follow it: with options, or with keywords of Python."""
    called = None if _at_work else _called.get()
    return text if called is None else in_python(text, called)


def reword(fault: HardnegError, called: Called) -> None:
    """Let a fault name keywords in place of options; all else of it stays."""
    for one in fault.faults if isinstance(fault, Faults) else ():
        reword(one, called)
    if isinstance(fault.what, str) and isinstance(fault.fix, str):
        fault.what, fault.fix = in_python(fault.what, called), in_python(fault.fix, called)
        fault.args = (fault.code, fault.what, fault.fix)


def in_python(text: str, called: Called) -> str:
    """A text with keywords of the called function in place of options, except in commands that it names."""
    if "--" not in text and "option " not in text:
        return text
    pieces: list[str] = []
    end = 0
    for kept in KEPT.finditer(text):
        pieces += [_reworded(text[end : kept.start()], called), _own_import(kept[0], called) or kept[0]]
        end = kept.end()
    return "".join([*pieces, _reworded(text[end:], called)])


def _own_import(command: str, called: Called) -> str | None:
    """What the function itself takes in place of advice to import again; None where it imports nothing."""
    found = IMPORT.fullmatch(command)
    if found is None or called.keyword(found["name"].replace("-", "_")) is None or called.keywords is None:
        return None
    return _reworded(command.removeprefix("hardneg import "), called)


def _reworded(text: str, called: Called) -> str:
    """A text without commands, with keywords in place of its options."""
    pieces: list[str] = []
    end = 0
    for found in OPTION.finditer(text):
        if found.start() < end:  # it stood in the value of the one before
            continue
        said, after = _said(found, text, called)
        if "filters=" in "".join(pieces):
            said = said.removeprefix("filters=")
        between = text[end : found.start()]
        pieces += [", " if pieces and between == " " and found["name"] == "set" else between, said]
        end = after
    return "".join([*pieces, text[end:]])


def _said(found: re.Match[str], text: str, called: Called) -> tuple[str, int]:
    """What a caller in Python writes for an option and its value, and where both end in the text."""
    name, end = found["name"].replace("-", "_"), found.end()
    if found["before"] == " (option ":  # besides a setting, which is the keyword
        return "", end + 1
    if name == "set":
        return _setting(text, end, called)
    if found["bare"] is not None or text[: found.start()].endswith(" no "):
        return _bare(name, called), end
    value, end = _value(name, text, end)
    said = _keyword(name, value, called)
    if text.startswith(f" ({said})", end):  # the advice names the keyword, too
        end += len(f" ({said})")
    return f"{'the argument ' if found['before'] and '=' in said.partition('(')[0] else ''}{said}", end


def _setting(text: str, end: int, called: Called) -> tuple[str, int]:
    """The keyword for the setting that ``--set`` names behind ``end``, and where it ends."""
    if quoted := QUOTED.match(text, end):
        name, _, value = shlex.split(quoted[0])[0].partition("=")
        return f"{name}={_typed(value)}", quoted.end()
    found = SETTING.match(text, end)
    if found is None:
        return "overrides", end
    if found["name"] == "key":  # it stands for any setting
        return found[0].strip(), found.end()
    return f"{found['name']}={_literal(found['value'])}", found.end()


def _value(name: str, text: str, end: int) -> tuple[str, int]:
    """The value of an option that stands behind ``end``, as Python writes it, and where it ends; "": none."""
    if name == "threshold" and (found := SETTING.match(text, end)):
        return f'{{"{found["name"]}": {found["value"]}}}', found.end()
    if found := PLACEHOLDER.match(text, end):
        return found["value"], found.end()
    if found := SIZE.match(text, end) or (WORD.match(text, end) if name in WITH_WORDS else None):
        return f'"{found["value"]}"', found.end()
    return "", end


def _typed(value: str) -> str:
    """A TOML value as Python writes it."""
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        found = None if value.lower() == "none" else value
    return json.dumps(found, ensure_ascii=False) if isinstance(found, str) else repr(found)


def _literal(value: str) -> str:
    """The value of a setting as Python writes it."""
    if value.lower() in CONSTANTS:
        return CONSTANTS[value.lower()]
    with contextlib.suppress(ValueError):
        float(value)
        return value
    return value if value.isupper() or value == "..." else f'"{value}"'


def _keyword(name: str, value: str, called: Called) -> str:
    """An option and its value as a caller in Python gives them."""
    if (own := called.keyword(name)) is not None:
        return f"{own}={value or ('True' if own in called.flags else '')}"
    if name in SPLITS and called.takes("splits"):
        return f"splits=hn.Splits({name}={value or '...'})"
    if name in BOUNDS and called.takes("filters"):
        return f"filters=hn.Filters({name}={value or '...'})"
    if name in OF_THE_PROCESS:
        return OF_THE_PROCESS[name].format(value or "...")
    return f"{name} = {value}" if value else name


def _bare(name: str, called: Called) -> str:
    """The name of an option's keyword alone: what is to be left out, or whose value is shown."""
    if (own := called.keyword(name)) is not None:
        return own
    return f"{name} of hn.Splits" if name in SPLITS and called.takes("splits") else name

"""The command line: runs the command that the arguments name; a fault becomes one line and an exit status."""

from __future__ import annotations

import codecs
import difflib
import functools
import io
import json
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from types import FrameType
from typing import Any

import typer

from hardneg.callers import command_line
from hardneg.cli.application import application
from hardneg.cli.choosing import known_setting, recipes_with
from hardneg.cli.colour import painted
from hardneg.cli.completing import VARIABLE, prepare_completion
from hardneg.errors import HardnegError, SettingsError
from hardneg.foreign_names import option_advice
from hardneg.hidden import harmless
from hardneg.process import progress
from hardneg.process.launch import let_speak, speaks
from hardneg.process.signals import leave_terminal, stop_flag, stops
from hardneg.process.system import check_system
from hardneg.storage.os_errors import FULL

app = application()

INTERRUPTED = 130  # typer's exit status for a KeyboardInterrupt
QUIET = frozenset({"-q", "--quiet"})
ESCAPED = "escaped"  # the name by which streams know :func:`escaped`
ANYWHERE = QUIET | {"--debug"}  # options that stand anywhere
CODE = re.compile(r"(?<![A-Za-z_])([A-Z][A-Z_]+)(?=: )")  # of a fault
POOL_BEFORE = "n_negatives"  # an option that took a pool in earlier versions
MAY_BE_EMPTY = frozenset({"--query", "--query-prompt", "--passage-prompt"})
OPTION_ALONE = re.compile(r"--[a-z][\w-]*=")  # an option with nothing after the =
HOME = re.compile(r"(--[a-z][\w-]*=)(~(?:/.*)?)")  # an option whose value lies in the home folder
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")  # torch's words for it


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; each fault is one line on stderr, and the exit status says its kind."""
    open_streams()
    status = run(sys.argv[1:] if arguments is None else arguments)
    leave_broken_streams()
    sys.exit(status)


def open_streams() -> None:
    """Open what the caller closed of stdin, stdout and stderr, or the first file to be opened takes its place."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    codecs.register_error(ESCAPED, escaped)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=ESCAPED)


def escaped(fault: UnicodeError) -> tuple[str, int]:
    """Characters that the terminal's encoding lacks, as JSON escapes them: what --json prints stays JSON."""
    assert isinstance(fault, UnicodeEncodeError)
    return json.dumps(fault.object[fault.start : fault.end])[1:-1], fault.end


def leave_broken_streams() -> None:
    """Let go of streams that nobody reads: Python would try them again at its end, and change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    taken: set[str] = set()
    try:
        words, taken = without_anywhere(arguments)
        words = [in_home_folder(word) for word in words]
        set_logging(quiet=not QUIET.isdisjoint(taken))
        if VARIABLE in os.environ:
            prepare_completion()
        for number in set(stops()) - {signal.SIGINT}:
            signal.signal(number, interrupt)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        check_system()
        if flag := without_value(words):
            raise SettingsError("USAGE", f"the value of {flag} is empty", f"give one, or leave {flag} out")
        with command_line(words):
            status = commands(app)(args=words, prog_name="hardneg", standalone_mode=False)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:  # the program that reads our output has stopped, as ``head`` does
        return 0
    except typer.Exit as done:
        return done.exit_code
    except (Exception, KeyboardInterrupt) as fault:
        lines, status = describe(fault)
        progress.Unfailing(sys.stderr).write("".join(marked(harmless(line)) + "\n" for line in lines))
        if "--debug" in taken:
            import traceback

            progress.Unfailing(sys.stderr).write(harmless(traceback.format_exc()))
        return status


@functools.cache
def commands(app: typer.Typer) -> Callable[..., Any]:
    """The commands as click runs them; a process that runs several builds them once."""
    return typer.main.get_command(app)


def without_anywhere(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """The words without the options that stand anywhere, and which of these there are.

    A word that is the value of an option, or that follows ``--``, is none of them: ``--query -q`` asks for ``-q``.
    """
    if ANYWHERE.isdisjoint(arguments):
        return list(arguments), set()
    command: Any = commands(app)
    words: list[str] = []
    taken: set[str] = set()
    rest = iter(arguments)
    for word in rest:
        if word in ANYWHERE:
            taken.add(word)
            continue
        words.append(word)
        if word == "--":
            words += rest
        elif word in valued(command):
            words += islice(rest, 1)
        elif not word.startswith("-"):
            command = getattr(command, "commands", {}).get(word, command)
    return words, taken


def valued(command: Any) -> set[str]:
    """The options of a command that the next word is the value of."""
    taking = (one for one in command.params if one.param_type_name == "option" and not one.is_flag)
    return {flag for one in taking for flag in one.opts}


def without_value(words: Sequence[str]) -> str:
    """The first option with an empty value, such as an unset variable of the shell; "" if there is none.

    Typer would take an empty path for the current folder. :data:`MAY_BE_EMPTY` are left out: a blank query has a
    fault of its own, and an empty prompt means that texts get none.
    """
    flags = (flag for flag, value in pairwise([*words, "x"]) if value == "" and flag.startswith("--"))
    joined = (word[:-1] for word in words if OPTION_ALONE.fullmatch(word))
    return next((flag for flag in (*flags, *joined) if flag not in MAY_BE_EMPTY), "")


def in_home_folder(word: str) -> str:
    """An option with its value, such as ``--out=~/run``: behind the = the shell leaves a ``~`` as it is."""
    found = HOME.fullmatch(word)
    if not found or found[1] == "--query=":
        return word
    from hardneg.storage.digests import in_home

    return f"{found[1]}{in_home(found[2])}"


def marked(line: str) -> str:
    """The line of a fault, with its code in red on a terminal."""
    return CODE.sub(lambda found: painted(found[1], "red", sys.stderr), line, count=1)


def describe(fault: BaseException) -> tuple[list[str], int]:
    """The lines to print for a fault, and its exit status."""
    if isinstance(fault, HardnegError):
        return fault.lines, fault.status
    if hasattr(fault, "format_message"):  # click's usage errors, or those of the copy that typer carries
        return [usage_line(fault)], 2
    if isinstance(fault, (KeyboardInterrupt, typer.Abort)):
        kept = "; it goes on from what is kept" if stop_flag.heard is not None else ""  # others begin anew
        return [f"STOPPED: stopped by a signal; run the same command again{kept}"], 75
    if isinstance(fault, ModuleNotFoundError) and fault.name and not fault.name.startswith("hardneg"):
        fix = "install it; pip install -U hardneg installs all that hardneg itself needs"
        missing = SettingsError("PACKAGE_MISSING", f"the Python module {fault.name} is not installed", fix)
        return missing.lines, missing.status
    what = " ".join(f"{type(fault).__name__}: {fault}".split())
    if isinstance(fault, MemoryError) or any(words in what.lower() for words in OUT_OF_MEMORY):
        return ["OUT_OF_MEMORY: memory ran out; take smaller batches, or free some memory"], 5
    if isinstance(fault, OSError) and fault.errno:
        where = f"{fault.filename}: " if fault.filename else ""
        if not where and fault.errno in FULL:
            return ["DISK_FULL: the disk of the output is full, so what was printed is lost; free some space"], 5
        if not where and lost_folder():
            return ["SYSTEM: the working directory was deleted; change to another one"], 5
        return [f"{where}SYSTEM: {fault.strerror}; check the path, its permissions and its disk"], 5
    return [f"BUG: {what}; this is a bug in hardneg, please report what --debug adds"], 70


def lost_folder() -> bool:
    """Whether the working directory is gone: then no relative path leads anywhere."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Stop at SIGTERM and SIGHUP in the same way as at Ctrl-C."""
    if number == signal.SIGHUP:
        leave_terminal()
    raise KeyboardInterrupt


def usage_line(fault: Any) -> str:
    """One line for a usage error of typer."""
    context = getattr(fault, "ctx", None)
    name = context.command_path if context else "hardneg"
    text = wrong_value(fault) or " ".join(fault.format_message().split()).rstrip(".")
    if unknown := getattr(fault, "option_name", None):
        text = f"No such option: {unknown}{better_option(str(unknown), fault)}"
    if getattr(getattr(fault, "param", None), "name", None) == POOL_BEFORE:
        text += "; a pool is given by --pool"
    return f"USAGE: {text}; see {name} --help"


def wrong_value(fault: Any) -> str:
    """The text on a value of the wrong type for its option, worded as for settings; "" for other faults."""
    cause, flags = fault.__cause__, getattr(getattr(fault, "param", None), "opts", None)
    if not flags or not hasattr(cause, "errors"):  # pydantic's, which is not loaded without need
        return ""
    from hardneg.config import expected_by

    error = cause.errors()[0]
    flag = flags[0] if flags[0].startswith("-") else flags[0].upper()
    wanted = expected_by(error)
    return f'{flag} = "{error["input"]!s:.80}"; it should {wanted}' if wanted else ""


def better_option(flag: str, fault: Any) -> str:
    """The advice on an unknown option: its name here, who has it, the nearest one, or that it is a setting."""
    command = getattr(getattr(fault, "ctx", None), "command", None)
    there = {name for one in getattr(command, "params", []) for name in one.opts}
    if (ours := option_advice(flag)) in there:
        return f"; did you mean {ours}?"
    if "--set" in there and (
        advice := known_setting(getattr(command, "name", None), flag.lstrip("-").replace("-", "_"))
    ):
        return f"; {advice}"
    if theirs := recipes_with(flag, getattr(command, "name", None)):
        return f"; it is an option of hardneg train {theirs}"
    near = getattr(fault, "possibilities", None) or difflib.get_close_matches(flag, there, 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""


def set_logging(*, quiet: bool = False) -> None:
    """Send warnings to stderr; the log file of an experiment also gets all that the package logs.

    Parameters
    ----------
    quiet : send neither warnings nor progress.
    """
    progress.mute(quiet)
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.ERROR if quiet else logging.WARNING)
    let_speak(each=False)
    terminal.addFilter(lambda record: record.levelno >= logging.ERROR or speaks())
    terminal.setFormatter(Harmless("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[terminal])
    logging.getLogger("hardneg").setLevel(logging.INFO)
    shown = "" if quiet else "WARNING: {}: {}\n"
    warnings.formatwarning = lambda message, category, *_: harmless(shown.format(category.__name__, message))


class Harmless(logging.Formatter):
    """Formats records for a terminal, which would obey control characters in an id or in the name of a file."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text with its hidden characters escaped."""
        return harmless(super().format(record))

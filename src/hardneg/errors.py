"""The exception tree: every fault a user can act on, with its exit status.

Each fault prints as one line, ``[path[:line]: ]CODE: what is wrong; what to do``. Codes are
listed in ``docs/errors.md``; a test keeps that list and this source in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONGEST = 1500  # characters of "what is wrong"; it quotes the value found, which may be a whole file


class HardnegError(Exception):
    """A fault with a code, what was found, what to do, and where.

    Parameters
    ----------
    code : upper-case name, listed under its exit status in ``docs/errors.md``.
    what : what is wrong, with the value that was found.
    fix : what the reader can do about it.
    path, line : the file, and the line in it (from 1), if the fault has a place.
    """

    status = 70

    def __init__(
        self, code: str, what: str, fix: str, *, path: str | Path | None = None, line: int | None = None
    ) -> None:
        super().__init__(code, what, fix)
        self.code, self.what, self.fix, self.path, self.line = code, what, fix, path, line

    def __reduce__(self) -> tuple[Any, ...]:  # a subclass may take other arguments than the fault has
        return _again, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        where = (
            "" if self.path is None else f"{self.path}: " if self.line is None else f"{self.path}:{self.line}: "
        )
        what = self.what if len(self.what) <= LONGEST else f"{self.what[:LONGEST]}…"
        return " ".join(f"{where}{self.code}: {what}; {self.fix}".split())

    @property
    def lines(self) -> list[str]:
        """One line for each fault."""
        return [str(self)]


class SettingsError(HardnegError):
    """A command is used wrongly, or a setting is wrong (exit 2)."""

    status = 2


class InputError(HardnegError):
    """The user's input data are wrong (exit 3)."""

    status = 3


class ArtifactError(HardnegError):
    """An artefact is corrupt or does not match (exit 4)."""

    status = 4


class ResourceError(HardnegError):
    """The disk, the memory or a permission does not suffice (exit 5)."""

    status = 5


class BusyError(HardnegError):
    """The directory is in use by another process (exit 6)."""

    status = 6


class NumericError(HardnegError):
    """A number is NaN or Inf, or a vector is zero (exit 7)."""

    status = 7


class PeerError(HardnegError):
    """A peer process is dead or stale (exit 8)."""

    status = 8


class TrustError(HardnegError):
    """Untrusted content was refused (exit 9)."""

    status = 9


class Interrupted(HardnegError):
    """The command was stopped by a signal; the same command resumes it (exit 75)."""

    status = 75


def _again(kind: type[HardnegError], args: tuple[Any, ...], state: dict[str, Any]) -> HardnegError:
    """A fault that was pickled."""
    fault = kind.__new__(kind, *args)
    fault.__dict__.update(state)
    return fault


class Faults(HardnegError):
    """Several faults of one kind, reported together."""

    def __init__(self, faults: Sequence[HardnegError]) -> None:
        first = faults[0]
        super().__init__(first.code, first.what, first.fix, path=first.path, line=first.line)
        self.faults = list(faults)
        self.status = first.status

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """One line for each fault."""
        return [line for fault in self.faults for line in fault.lines]


def raise_all(faults: Sequence[HardnegError]) -> None:
    """Raise these faults: one as it is, several together, and nothing if there is none."""
    if faults:
        raise faults[0] if len(faults) == 1 else Faults(faults)

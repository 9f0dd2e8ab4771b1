"""The limits of the control groups (cgroups) that this process is in, such as those of a container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

# Files of the most memory, of the memory in use, and the statistics that say how much of that are pages of files,
# which the system takes back: those of version 2, then those of version 1.
MEMORY = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
UNLIMITED = 1 << 60  # version 1 says a number like this where there is no limit


def groups_of(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those above them, of both versions of cgroups.

    Parameters
    ----------
    controller : what the groups limit, as version 1 names it: ``cpu`` or ``memory``.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    for line in [*lines, "0::/", f"0:{controller}:/"]:  # the root is a container's own
        _, controllers, place = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = (CGROUP / controllers / place.lstrip("/")) if controllers else CGROUP / place.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if CGROUP in (folder, *folder.parents))


def memory_limit() -> int | None:
    """The most bytes that all processes of a control group of this process may take; None: there is no limit."""
    return min((limit for limit, _ in _memory()), default=None)


def memory_left() -> int | None:
    """The bytes that the control groups of this process leave; None: there is no limit."""
    return min((max(limit - used, 0) for limit, used in _memory()), default=None)


def _memory() -> Iterator[tuple[int, int]]:
    """Yield the limit of each control group that has one, and the bytes in use that cannot be taken back."""
    for folder in groups_of("memory"):
        for most, current, cached in MEMORY:
            with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
                if (limit := int((folder / most).read_text())) < UNLIMITED:
                    yield limit, _used(folder, current, cached)


def _used(folder: Path, current: str, cached: tuple[str, ...]) -> int:
    """The bytes in use without the pages of files; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        used, files = int((folder / current).read_text()), 0
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            files = sum(int(size) for name, size in lines if name in cached)
        return max(used - files, 0)
    return 0

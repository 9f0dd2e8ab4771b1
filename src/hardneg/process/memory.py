"""The memory that this process may take: set once, read by code that sizes buffers. No result depends on it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import threading
import time

import psutil

from hardneg.errors import ResourceError, SettingsError
from hardneg.process.control_groups import memory_left
from hardneg.process.launch import local_size

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

LOOK_SECONDS = 0.05
IDLE_LOOKS = 4  # without a watch, after which the thread that looks ends

_limits: dict[str, int] = {}  # by type of device
_sharing: dict[str, int] = {}  # processes of this machine that share the limit, by type of device


def parse_size(option: str, text: str) -> int:
    """The bytes of a size such as ``512M``, ``8G`` or ``1.5GiB``; units are powers of 1024.

    Raises
    ------
    SettingsError : the text is no size, or the size is 0.
    """
    found = SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 2 ** UNITS[found[2].upper()]) if found else 0
    if size <= 0:
        raise SettingsError("BAD_SETTING", f"{option} = {text!r:.40}", "give a size such as 512M or 8G")
    return size


def limit_memory(
    max_ram: str | None = None, max_vram: str | None = None, *, processes: int = 1, vram_processes: int = 1
) -> None:
    """Set the most memory that this process may take from now on; None sets no limit.

    ``processes`` of this machine share ``max_ram`` equally, and ``vram_processes`` share ``max_vram``.
    """
    _sharing.update(cpu=processes, cuda=vram_processes)
    for kind, option, text in (("cpu", "--max-ram", max_ram), ("cuda", "--max-vram", max_vram)):
        _limits.pop(kind, None)
        if text is not None:
            _limits[kind] = parse_size(option, text) // _sharing[kind]


def limit_of(device: str) -> int | None:
    """The limit of this type of device, in bytes; None where there is none."""
    return _limits.get(device)


def sharers_of(device: str) -> int:
    """The number of processes of this machine that share the limit of this type of device."""
    return _sharing.get(device, 1)


def room(device: str = "cpu") -> int | None:
    """The bytes left under the limit of this type of device; None where there is no limit.

    On the CPU the process's own memory counts. The pages of files that it maps do not: the system takes them back.
    """
    if device not in _limits:
        return None
    return _limits[device] - (own_memory() if device == "cpu" else _device_memory())


def spare() -> int:
    """The bytes to take for speed alone: half of what the limit leaves; without a limit, a quarter of the free.

    It is never more than a quarter of what the control groups leave. Processes that a launcher started together on
    this machine share the quarter.
    """
    left, grouped, sharing = room("cpu"), memory_left(), 4 * local_size()
    most = int(psutil.virtual_memory().available) // sharing if left is None else left // 2
    return most if grouped is None else min(most, grouped // sharing)


def require(needed: int, what: str, device: str = "cpu") -> None:
    """Refuse work that needs more bytes than the limit leaves.

    Raises
    ------
    ResourceError : ``needed`` bytes are more than there is room for; the message names the least sufficient limit.
    """
    left = room(device)
    if left is not None and needed > left:
        option = "--max-ram" if device == "cpu" else "--max-vram"
        count = sharers_of(device)
        least = -(-(_limits[device] - left + needed) * count // 2**20)
        shared = f" for each of {count} processes" if count > 1 else ""
        raise ResourceError(
            "MEMORY_TOO_SMALL",
            f"{what} needs {needed / 2**20:.0f} MiB, {option} leaves {max(left, 0) / 2**20:.0f} MiB{shared}",
            f"give {option} {least}M or more",
        )


def peak_memory() -> int:
    """The most bytes that this process took so far, mapped files included.

    The system keeps two records, and either may lag behind the other by some pages: the higher one counts. In a
    new process, one record still includes the peak of the parent; that of :func:`highest_and_held` does not.
    """
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, highest_and_held()[0])


class PeakWatch:
    """Watches the memory that this process holds, mapped files included, from now until :meth:`end`.

    The peak is exact where it is the highest that the process ever had. Otherwise a thread looks twenty times a
    second, and may miss a shorter peak. The system's own record of the peak is not reset, for others read it too.
    Several may watch at once.
    """

    def __init__(self) -> None:
        self.before, self.seen = highest_and_held()
        _lookout.watch(self)

    def end(self) -> int:
        """Stop watching; returns the peak in bytes."""
        _lookout.leave(self)
        after, held = highest_and_held()
        seen = max(self.seen, held)
        if after > self.before:
            return after
        return min(seen, after) if after else seen  # the system's record may lag by a little


class _Lookout:
    """One thread that looks for all watches: short stages take less time than to start a thread for each."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all watches: a forked process has none of the threads of the first."""
        self.lock = threading.Lock()
        self.watches: set[PeakWatch] = set()
        self.thread: threading.Thread | None = None

    def watch(self, one: PeakWatch) -> None:
        """Look for a watch from now on."""
        with self.lock:
            self.watches.add(one)
            if self.thread is None:
                self.thread = threading.Thread(target=self._look, name="peak of memory", daemon=True)
                self.thread.start()

    def leave(self, one: PeakWatch) -> None:
        """Look for a watch no more."""
        with self.lock:
            self.watches.discard(one)

    def _look(self) -> None:
        idle = 0
        while idle < IDLE_LOOKS:
            time.sleep(LOOK_SECONDS)
            with self.lock:
                watches = tuple(self.watches)
                idle = 0 if watches else idle + 1
                if idle == IDLE_LOOKS:
                    self.thread = None
            if watches:
                held = highest_and_held()[1]
                for one in watches:
                    one.seen = max(one.seen, held)


_lookout = _Lookout()
os.register_at_fork(after_in_child=_lookout.renew)


def highest_and_held() -> tuple[int, int]:
    """The most bytes of this program so far, 0 where the system does not tell, and those that it holds now.

    Mapped files are included.
    """
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as stream:
        told = dict(line.split(b":", 1) for line in stream.read().splitlines())
        if b"VmHWM" in told and b"VmRSS" in told:
            return int(told[b"VmHWM"].split()[0]) << 10, int(told[b"VmRSS"].split()[0]) << 10
    return 0, int(psutil.Process().memory_info().rss)


def own_memory() -> int:
    """The bytes that only this process holds: no pages of files, no shared memory."""
    hand_back()
    held = psutil.Process().memory_info()  # psutil's USS would count files that nobody else maps
    return int(held.rss - held.shared)


def hand_back() -> None:
    """Hand the allocator's freed blocks back to the system, so that they are not counted as held."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return


def _device_memory() -> int:
    """The bytes on all CUDA devices: a process computes on one of them, which need not be the current one."""
    import torch

    return sum(int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count()))

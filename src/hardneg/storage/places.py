"""Places that are no files: streams, which can be read only once, and the folders of the kernel, /dev and /proc.

A new file is renamed to its place. In /dev, that would replace a link that all programs use, such as /dev/stdout.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hardneg.errors import InputError, ResourceError, SettingsError

KERNEL = ("/dev", "/proc")  # folders whose entries are devices, streams and processes
SHARED_MEMORY = "/dev/shm"  # a folder in memory, where everybody may keep files
DASH = Path("-")  # many programs take it for stdin or stdout
MOST_LINKS = 40  # the kernel follows no more


def check_readable(path: str | Path) -> None:
    """Refuse an input that is a pipe, a socket or a device; what is missing, or a folder, is for the caller.

    Raises
    ------
    InputError : it is a stream, or it is called ``-``, which stands for no stream here.
    """
    if Path(path) == DASH:
        raise InputError("NOT_FOUND", "- stands for no stream here", "give the path of a file", path=path)
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # the one who reads it says why
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what, fix = "this is a stream and not a file, but files are read several times", "write it to a file"
        raise InputError("NOT_FOUND", what, fix, path=path)


def check_no_stream(path: Path) -> None:
    """Refuse an output that is called ``-``, that lies in /dev or /proc, or whose links lead there.

    Raises
    ------
    SettingsError : it is called ``-``. ResourceError : it leads into a folder of the kernel.
    """
    if path == DASH:
        what = "the output is -, which stands for no stream here"
        raise SettingsError("BAD_SETTING", what, "give the whole path of a file or folder")
    if (kernel := kernel_folder(path)) is not None:
        what = f"this leads into {kernel}, which holds devices and streams, and no files"
        raise ResourceError("NOT_WRITABLE", what, "give the path of a file or folder elsewhere", path=path)


def kernel_folder(path: Path) -> str | None:
    """The folder of the kernel in which a place lies, or to which a link on the way leads; None if there is none.

    Each link is looked at by itself: /dev/stdout leads over /proc to the file that the shell writes stdout to.
    """
    place = os.path.join(os.getcwd(), path)  # as it is written: the kernel follows a link before it goes up by ..
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(place)
        real = os.path.realpath(place) if name in ("", ".", "..") else os.path.join(os.path.realpath(folder), name)
        if found := _kernel(os.path.normpath(place)) or _kernel(real):
            return found
        if not os.path.islink(real):
            return None
        place = os.path.join(os.path.dirname(real), os.readlink(real))
    return None


def _kernel(place: str) -> str | None:
    """The folder of the kernel that holds a place, by its name alone."""
    if _within(place, SHARED_MEMORY):
        return None
    return next((folder for folder in KERNEL if _within(place, folder)), None)


def _within(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder}/")

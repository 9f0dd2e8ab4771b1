"""NFS as a client sees it: a file that is deleted while a process has it open stays, under a hidden name."""

import contextlib
import errno
import itertools
import os
from pathlib import Path

import pytest

HIDDEN = ".nfs"


def opened():
    """The paths of all files that this process has open, or mapped into its memory."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        found = {fields[5].rstrip("\n") for line in maps if len(fields := line.split(maxsplit=5)) == 6}
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{handle}"))
    return found


def is_open(path):
    """Whether this process has a file open."""
    return os.path.realpath(path) in opened()


class Nfs:
    """Files below ``root`` behave as on NFS, as far as this process deletes, replaces and opens them.

    Attributes
    ----------
    kept : the paths of the files that were deleted while they were open.
    """

    def __init__(self, root):
        self.root, self.kept, self.numbers = Path(os.path.realpath(root)), [], itertools.count()
        self.unlink, self.rmdir, self.rename = os.unlink, os.rmdir, os.rename

    @contextlib.contextmanager
    def mounted(self):
        """Let files be deleted as on NFS, in the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", self.unlinked)
            patch.setattr(os, "rmdir", self.removed)
            patch.setattr(os, "rename", self.renamed)
            yield self

    def is_here(self, path):
        """Whether a file lies on this NFS."""
        return isinstance(path, str | os.PathLike) and self.root in Path(os.path.realpath(path)).parents

    def hide(self, path):
        """Give an open file a hidden name, under which it stays until it is closed."""
        self.kept.append(str(path))
        self.rename(path, Path(path).parent / f"{HIDDEN}{next(self.numbers):024x}")

    def unlinked(self, path, **places):
        """Delete a file, unless it is open."""
        if places or not self.is_here(path) or os.path.islink(path) or not is_open(path):
            self.unlink(path, **places)
        elif Path(path).name.startswith(HIDDEN):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        else:
            self.hide(path)

    def removed(self, path, **places):
        """Delete a folder in which no hidden file is open; those that have been closed since are gone."""
        if not places and self.is_here(path):
            self.expire(path)
        self.rmdir(path, **places)

    def expire(self, folder):
        """Delete the hidden files of a folder that nobody has open any more."""
        for path in Path(folder).glob(f"{HIDDEN}*"):
            if not is_open(path):
                self.unlink(path)

    def renamed(self, path, to, **places):
        """Rename a file or folder; an open file that is replaced stays under a hidden name."""
        if not places and self.is_here(to) and os.path.isfile(to) and is_open(to):
            self.hide(to)
        self.rename(path, to, **places)

"""A command that is stopped at many points of its way, at the cost of running once.

Before a point the running process copies what it has written, forks, and lets the fork meet its end on the copy:
by SIGKILL, or by a disk that refuses, after which the fork goes on and ends as the command does. What is left is
what the command itself would have left. The process then waits to be told to go on to the next point.
"""

import os
import re
import resource
import shutil
import signal
from pathlib import Path

from faults import NUMBERS, refuse, write_half
from hardneg import disk

GHOST = 2**22 + 1  # a process number that no kernel gives away: temporaries of a trunk belong to nobody alive
KINDS = ("kill", "tear", "power", *NUMBERS)
SECONDS = 120


def ends_of(action):
    """The ends that make sense at a point: only writes can be torn, and a deletion needs no room."""
    for kind in KINDS:
        if (action == "write" or kind not in ("tear", "short")) and (action != "remove" or kind != "enospc"):
            yield kind


class Trunk:
    """Watches the changes that a command makes in the folder that is its working directory, and branches off.

    Parameters
    ----------
    wanted : (point, kind) to branch off at; None: everywhere.
    place : folder for the copies.
    look : called with a copy before anything happens there; what it returns is told.
    tell : called with what became of each branch; the command goes on when it returns.
    """

    def __init__(self, wanted, place, look, tell):
        self.wanted, self.place, self.look, self.tell = wanted, place, look, tell
        self.points, self.unflushed, self.branched = [], set(), False
        self.root = os.getcwd()

    def __call__(self, action, path, data):
        if self.branched:
            return
        now = len(self.points)
        self.points.append((action, str(path)))
        for kind in ends_of(action):
            if self.wanted is None or (now, kind) in self.wanted:
                self.branch(now, kind, action, path, data)
        self.remember(action, path)

    def branch(self, now, kind, action, path, data):
        """Let a fork meet its end here; in the fork this raises, or never returns."""
        copy = self.place / f"{now}-{kind}"
        shutil.copytree(self.root, copy, copy_function=shutil.copyfile)
        before = self.look(copy) if kind in NUMBERS else {}
        lost = list(self.lost()) if kind == "power" else []
        pid = os.fork()
        if pid == 0:
            self.branched = True
            signal.alarm(SECONDS)
            move_to(self.root, copy)
            meet(kind, action, path, data, lost)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        about = {"at": now, "kind": kind, "action": action, "path": str(path)}
        self.tell(about | {"status": status, "before": before}, copy)

    def remember(self, action, path):
        """Which files have bytes that no flush has followed; a file is known when its write is over."""
        if action in ("write", "written"):
            files = [path] if path.is_file() else path.rglob("*")
            self.unflushed.update(file.stat().st_ino for file in files if file.is_file())
        elif action == "sync" and path.is_file():
            self.unflushed.discard(path.stat().st_ino)

    def lost(self):
        """What a power cut would cost: (file, bytes that are left)."""
        for place, _, names in os.walk("."):
            for name in names:
                status = os.stat(file := os.path.join(place, name))
                if status.st_ino in self.unflushed:
                    yield file, status.st_size // 2


def meet(kind, action, path, data, lost):
    """What happens to the fork."""
    if kind in NUMBERS:
        refuse(kind, action, path, data)
    if kind == "tear":
        write_half(action, path, data)
    for file, size in lost:
        os.truncate(file, size)
    signal.raise_signal(signal.SIGKILL)


def move_to(root, copy):
    """Go on working in a copy: what this process has open below ``root`` is opened there, at the same place."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing itself
            continue
        if target.startswith(f"{root}/") and not target.endswith(" (deleted)"):
            about = Path(f"/proc/self/fdinfo/{number}").read_text()
            flags = int(re.search(r"^flags:\s*(\d+)", about, re.MULTILINE)[1], 8)
            at = int(re.search(r"^pos:\s*(\d+)", about, re.MULTILINE)[1])
            new = os.open(copy / os.path.relpath(target, root), flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))
            os.lseek(new, at, os.SEEK_SET)
            os.dup2(new, number, inheritable=False)
            os.close(new)
    os.chdir(copy)


def fork(work, said=os.devnull):
    """The process id of a child that does ``work`` and exits with what it returns; ``said``: its stderr."""
    if pid := os.fork():
        return pid
    status = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)
        status = work()
    finally:
        os._exit(status)


def grow(work, wanted, place, look, tell):
    """Do ``work``, which returns an exit status, as a trunk in this process; (status, points)."""
    signal.alarm(0)
    os.getpid = lambda: GHOST
    disk.watch = trunk = Trunk(wanted, place, look, tell)
    status = work()
    if trunk.branched:
        os._exit(status)
    disk.watch = None
    return status, trunk.points

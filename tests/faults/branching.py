"""Stop a command at many points, at the cost of running it once.

A killed process leaves what is on the disk at that moment. So before each point the running process copies its
working directory. For a disk that refuses, and for Ctrl-C (int), the process forks; the fork works on in the copy,
meets the fault or the signal, and ends as the command would. Then the process waits until it is told to go on.
"""

import contextlib
import os
import re
import resource
import shutil
import signal
from concurrent.futures import Future
from pathlib import Path

from faults.aftermath import GHOST, copy_known, digest, files_of, state_of, unread, walk, wrong_refusal, wrong_stop
from faults.injected import NUMBERS, refuse, write_half
from hardneg.storage import disk, lease

KINDS = ("kill", "tear", "power", "int", *NUMBERS)
SECONDS = 120


def ends_of(action):
    """The kinds of end that make sense at a point: only a write can be torn, and a deletion needs no room."""
    for kind in KINDS:
        if (action == "write" or kind not in ("tear", "short")) and (action != "remove" or kind != "enospc"):
            yield kind


class Trunk:
    """A watcher of the changes that a command makes in its working directory, which branches off at points.

    Parameters
    ----------
    wanted : (point, kind) to branch off at; None: everywhere.
    place : folder for the copies.
    tell : called with the outcome of each branch, and with its folder if no earlier branch left the same state;
        the command goes on when ``tell`` returns.
    """

    def __init__(self, wanted, place, tell):
        self.wanted, self.place, self.tell = wanted, place, tell
        self.points, self.unflushed, self.states, self.branched = [], set(), set(), False
        self.flushed = {}  # inode: number of bytes that were flushed
        self.opened = {}  # files that are being written: their digests when they were opened
        self.root = Path.cwd()

    def __call__(self, action, path, data):
        if self.branched:
            return
        now = len(self.points)
        self.points.append((action, str(path)))
        for kind in ends_of(action):
            if self.wanted is None or (now, kind) in self.wanted:
                case = {"at": now, "kind": kind, "action": action, "path": str(path)}
                (self.refused if kind in (*NUMBERS, "int") else self.killed)(case, path, data)
                if self.branched:  # this is a fork in which a signal only raised a flag, so it goes on
                    return
        self.remember(action, path)

    def killed(self, case, path, data):
        """Copy what a process that is killed here leaves: what is on the disk, or less."""
        lost = {"tear": lambda: [str(path)], "power": lambda: [*self.lost()], "kill": list}[case["kind"]]()
        if all(unread(file) for file in lost) and (state := state_of(self.root)) in self.states:
            self.tell(case | {"state": state, "wrong": []}, None)
            return
        copy = self.copy(case)
        if case["kind"] == "tear":
            write_half(case["action"], copy / path, data)
        elif case["kind"] == "power":
            for file in lost:
                about = os.stat(self.root / file)
                safe = self.flushed.get(about.st_ino, 0) if self.opened.get(file) else 0
                os.truncate(copy / file, safe + (about.st_size - safe) // 2)
        self.done(case, copy, [])

    def refused(self, case, path, data):
        """Let a fork meet a disk that refuses, or a signal. In the fork this raises an error or a flag."""
        before, copy = self.published(case["action"]), self.copy(case)
        held, lease._held = lease._held, set()  # the fork goes on in this process's place, with its locks
        pid = os.fork()
        lease._held = held
        if pid == 0:
            self.branched = True
            signal.alarm(SECONDS)
            move_to(self.root, copy)
            if case["kind"] == "int":
                signal.raise_signal(signal.SIGINT)
                return
            refuse(case["kind"], case["action"], path, data)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        wrong = wrong_stop if case["kind"] == "int" else wrong_refusal
        self.done(case, copy, wrong(status, case["action"], copy, before, str(case["path"])))

    def copy(self, case):
        """Copy the working directory into a folder of the case."""
        copy = self.place / f"{case['at']}-{case['kind']}"
        return Path(shutil.copytree(self.root, copy, copy_function=copy_known))

    def done(self, case, copy, wrong):
        """Tell the outcome of a case; a copy whose state is known is deleted."""
        known = (state := state_of(copy)) in self.states
        self.states.add(state)
        self.tell(case | {"state": state, "wrong": wrong}, None if known else copy)
        if known:
            shutil.rmtree(copy)

    def published(self, action):
        """Digests of the files that must stay as they are; a refusal right after a rename may undo the rename.

        Lines that are not flushed yet must not stay, because a refusal takes them back.
        """
        files = {name: self.opened.get(name, data) for name, data in files_of(self.root).items()}
        files = {name: data for name, data in files.items() if data is not None}
        if action == "sync" and len(self.points) > 1 and self.points[-2][0] == "rename":
            new = os.path.normpath(self.points[-2][1])
            return {name: data for name, data in files.items() if name != new and not name.startswith(f"{new}/")}
        return files

    def remember(self, action, path):
        """Record which files have bytes that are not flushed; a file is recorded when its write is over."""
        if action == "open":
            self.opened[os.path.relpath(path)] = digest(path) if path.is_file() else None
        elif action == "sync":
            self.opened.pop(os.path.relpath(path), None)
        if action in ("write", "written"):
            files = [path] if path.is_file() else path.rglob("*")
            self.unflushed.update(file.stat().st_ino for file in files if file.is_file())
        elif action == "sync" and path.is_file():
            self.unflushed.discard(path.stat().st_ino)
            self.flushed[path.stat().st_ino] = path.stat().st_size

    def lost(self):
        """The files that would lose bytes in a power cut."""
        for name, is_folder in walk(self.root):
            if not is_folder and os.stat(self.root / name).st_ino in self.unflushed:
                yield name


def move_to(root, copy):
    """Go on in a copy: each file that is open below ``root`` is opened in the copy at the same position."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the handle of this listing itself
            continue
        if target.startswith(f"{root}/") and not target.endswith(" (deleted)"):
            about = Path(f"/proc/self/fdinfo/{number}").read_text()
            flags = int(re.search(r"^flags:\s*(\d+)", about, re.MULTILINE)[1], 8)
            at = int(re.search(r"^pos:\s*(\d+)", about, re.MULTILINE)[1])
            new = os.open(copy / Path(target).relative_to(root), flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))
            os.lseek(new, at, os.SEEK_SET)
            os.dup2(new, number, inheritable=False)
            os.close(new)
    os.chdir(copy)


class Executor(contextlib.nullcontext):
    """An executor that works at once, because a fork has only the thread that forked."""

    def submit(self, work, *arguments):
        """Do the work now; returns a future that is done."""
        future = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as fault:
            future.set_exception(fault)
        return future

    def __enter__(self):
        return self


def fork(work, said=os.devnull):
    """Fork a child that exits with what ``work`` returns, its stderr in ``said``; returns its process id."""
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


def grow(work, wanted, place, tell):
    """Do ``work``, which returns an exit status, under a trunk in this process; returns (status, points)."""
    signal.alarm(0)
    os.getpid = lambda: GHOST
    Path.absolute = lambda path: path  # a fork goes on in a copy: its paths must lead there, not to the trunk
    disk.watch = trunk = Trunk(wanted, place, tell)
    status = work()
    if trunk.branched:
        os._exit(status)
    disk.watch = None
    return status, trunk.points

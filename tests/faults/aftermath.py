"""The files that a stopped command leaves in its folder, and the faults in them."""

import hashlib
import os
import re
import shutil

import hardneg
from faults.injected import LINE, TELEMETRY, temporaries
from hardneg.api.verify import verify_places
from hardneg.storage.artifacts import MANIFEST
from hardneg.storage.disk import GONE, NEW, TEMPORARY
from hardneg.training.checkpoint import checkpoints

GHOST = 2**22 + 1  # a process number that no kernel gives, so leftovers belong to no living process
UNREAD = re.compile(rf"{re.escape(TEMPORARY)}({NEW}|{GONE})-[^/]*-{GHOST}@[^/]*")
REFUSED, STOPPED = 5, 75  # exit statuses
REMEMBERED = "cache/models/"  # where models are kept in a form that is read faster


# ---------------------------------------------------------------- what stands in a folder


def digest(path):
    """SHA-256 of a file; an unchanged file is not read again."""
    if (key := identity(path)) not in KNOWN:
        KNOWN[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return KNOWN[key]


KNOWN = {}


def identity(path):
    """Values of which at least one differs for another file, or after a write to the file."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def copy_known(path, to):
    """Copy a file and, if it is known, its remembered digest."""
    shutil.copyfile(path, to)
    if (key := identity(path)) in KNOWN:
        KNOWN[identity(to)] = KNOWN[key]


def walk(folder):
    """All files and folders below a folder, in order, as (name, whether it is a folder)."""
    found = []
    for place, folders, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        found += [(os.path.normpath(os.path.join(inside, name)), name in folders) for name in (*folders, *names)]
    return sorted(found)


def files_of(folder):
    """Digests of all files of the command, except telemetry and temporary files."""
    return {
        name: digest(folder / name)
        for name, is_folder in walk(folder)
        if not is_folder and name.startswith(("out/", "cache/"))
        if TEMPORARY not in name and os.path.basename(name) not in TELEMETRY
    }


def ended(folder):
    """Digests of the files of a command that ended; only the newest checkpoint of each stage counts."""
    newest = {checkpoints(path)[-1] for path in folder.glob("out/episodes/*/checkpoint") if checkpoints(path)}
    aside = [path for path in folder.glob("out/episodes/*/checkpoint/*") if path not in newest]
    names = tuple(path.relative_to(folder).as_posix() + "/" for path in aside)
    return {name: data for name, data in files_of(folder).items() if not names or not name.startswith(names)}


def differences(found, expected):
    """Names of files that are missing, unexpected or different."""
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def state_of(folder):
    """Digest of everything in a folder that a command might read, so equal states have equal futures.

    No command reads a draft of a dead process; :func:`faults.crash.wrong_future` checks this. So of a draft the
    digest only holds whether it is empty and whether it has a manifest.
    """
    found = set()
    for name, is_folder in walk(folder):
        if draft := UNREAD.search(name):
            found.add((name[: draft.end()], MANIFEST * name.endswith(MANIFEST), len(name) > draft.end()))
        elif not name.startswith(("said.txt", "user")):
            found.add((name, is_folder or unread(name) or content_of(folder / name)))
    return hashlib.sha256(repr(sorted(found, key=repr)).encode()).hexdigest()


def unread(name):
    """Whether a file's content cannot change what a command does."""
    return bool(UNREAD.search(name)) or name.endswith("log.txt")


def content_of(path):
    """A name for a file's content, in which measured times do not count."""
    if path.name == "timing.jsonl":
        return re.sub(r"\d+(\.\d+)?", "0", path.read_text())
    return digest(path)


def damaged(folder):
    """The faults of artefacts that are published but not whole."""
    found = []
    for place in (folder / "out", folder / "cache"):
        try:
            found += verify_places([place])[1] if place.exists() else []
        except hardneg.HardnegError as fault:  # a folder that was begun may have nothing yet
            found += [] if fault.code == "NO_MANIFEST" else [fault]
    return [str(fault) for fault in found]


# ---------------------------------------------------------------- what is wrong


def wrong_refusal(status, action, folder, before, path):
    """List the faults in how a process ended that the disk refused a path; an empty list if it is sound.

    A command goes on if a model cannot be remembered.
    """
    faults, clear = faults_of(folder)
    if path.startswith(REMEMBERED) and status == 0:
        return wrong_end(clear and not faults, status, action, folder, before)
    clear = clear and len(faults) == 1 and re.search("(DISK_FULL|IO_ERROR): ", faults[0])
    return wrong_end(status == REFUSED and clear, status, action, folder, before)


def wrong_stop(status, action, folder, before, path):
    """List the faults in how a process ended that got Ctrl-C; an empty list if it is sound.

    The signal may come too late to stop anything. A process that goes on to a good place to stop may replace files
    on the way. Whether these are whole and lead to the same end is checked when the command is run again.
    """
    faults, clear = faults_of(folder)
    told = [line for line in faults if line.startswith("STOPPED: ")]
    sound = clear and len(faults) == len(told) == (status == STOPPED) and status in (0, STOPPED)
    return wrong_end(sound, status, action, folder, {})


def faults_of(folder):
    """The lines of faults that a process printed, and whether it printed no traceback."""
    said = (folder / "said.txt").read_text()
    lines = [line for line in said.splitlines() if LINE.fullmatch(line) and not line.startswith("WARNING")]
    return lines, "Traceback" not in said


def wrong_end(sound, status, action, folder, before):
    """List the faults of an exit: a wrong status, temporary files that are left, or changed files."""
    wrong = [] if sound else [f"exit {status}: {(folder / 'said.txt').read_text().splitlines()[-3:]}"]
    if action != "remove" and (left := temporaries(folder)):
        wrong.append(f"temporaries: {left}")
    after = files_of(folder)
    if changed := [name for name in before if after.get(name) != before[name]]:
        wrong.append(f"not as they were: {changed}")
    return wrong

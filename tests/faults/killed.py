"""Commands in processes that can be killed at any change of the disk, and the files that they leave.

Children are forked from a server that has imported everything. Each child counts the operations that change files,
and can be told to kill itself just before any of them. So a test can reach every different state of the disk.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import collector
from faults.injected import TELEMETRY
from hardneg.training.checkpoint import checkpoints

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    [
        "hardneg.api.recipes",
        "hardneg.cli",
        "transformers.models.bert.modeling_bert",
        "bm25s",
        "faiss",
        "pytest",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ]
)
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR
WORKERS = 2
# Whenever multiprocessing starts a child, it reads the exit statuses of the children that have ended. A status can
# be read only once: if one thread starts a child while another joins one, one of them finds none and reports 255.
ALONE = threading.Lock()


# ---------------------------------------------------------------- in the child


def child(arguments, folder, fatal, number, journal):
    """Run a command; the signal ``number`` is sent to this process just before the file operations in ``fatal``.

    Operations outside of the folder, and in the user's cache, do not count, because not every run makes them: for
    example, the first process that imports a module writes its bytecode.
    """
    collector.rest(collect=False)
    os.environ["HARDNEG_CACHE"] = str(folder / "user")
    os.dup2(os.open(folder / "stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    events = []

    def is_aside(place):
        elsewhere = place.startswith("/") and not place.startswith(str(folder))
        return elsewhere or place.startswith(os.environ["HARDNEG_CACHE"])

    def watch(event, args):
        changes = event in CHANGES or (event == "open" and (args[2] or 0) & WRITING)
        if changes and not is_aside(str(args[0])):
            events.append([event, *(str(arg) for arg in args[:2])])
            if len(events) - 1 in fatal:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)
    from hardneg.cli import run

    status = run(arguments)
    if journal:
        done = list(events)
        Path(journal).write_text(json.dumps(done))
    os._exit(status)


class Runner:
    """A runner of one experiment (a recipe with settings) in child processes."""

    def __init__(self, collection, model, recipe, settings):
        self.collection, self.model, self.recipe, self.settings = collection, model, recipe, settings

    def start(self, folder, *, fatal=(), number=signal.SIGKILL, journal=None, threads=1, **changes):
        folder.mkdir(exist_ok=True)
        arguments = ["train", self.recipe, "--data", str(self.collection), "--model", self.model]
        arguments += ["--out", str(folder / "exp"), "--threads", str(threads), "--device", "cpu"]
        for name, value in (self.settings | changes).items():
            arguments += ["--set", f"{name}={json.dumps(value)}"]
        process = CHILDREN.Process(target=child, args=(arguments, folder, set(fatal), number, journal))
        with ALONE:
            process.start()
        return process

    def __call__(self, folder, **options):
        """Run the experiment in a child; returns its exit status, negative if a signal ended it."""
        process = self.start(folder, **options)
        multiprocessing.connection.wait([process.sentinel], 120)
        with ALONE:
            process.join(1)
        assert process.exitcode is not None, "it hangs"
        return process.exitcode


def contents(folder):
    """All files of the experiment and its cache, except telemetry and the older checkpoints of each stage."""
    newest = {checkpoints(path)[-1] for path in folder.glob("exp/episodes/*/checkpoint") if checkpoints(path)}
    found = {}
    for file in sorted((folder / "exp").rglob("*")):
        aside = file.name in TELEMETRY or (file.parent.parent.name == "checkpoint" and file.parent not in newest)
        if file.is_file() and not aside:
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
    return found


def said(folder):
    return (folder / "stderr.txt").read_text()


def check_equal(folder, expected):
    found = contents(folder)
    missing, besides = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    assert (missing, besides) == ([], []), f"missing: {missing}; besides: {besides}"
    assert [name for name in found if found[name] != expected[name]] == []


def check_kill(runner, folder, fatal, expected):
    """Kill a run before this operation, run it again, and compare the files."""
    status = runner(folder, fatal=[fatal])
    assert status == -signal.SIGKILL, f"it was not killed, status {status}: {said(folder)}"
    status = runner(folder)
    assert status == 0, f"status {status}: {said(folder)}"
    check_equal(folder, expected)


def check_kills(runner, root, points, expected):
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = {
            point: pool.submit(check_kill, runner, root / f"kill-{point}", point, expected) for point in points
        }
    faults = {point: job.exception() for point, job in jobs.items() if job.exception()}
    assert not faults, "\n".join(f"killed before operation {point}: {fault}" for point, fault in faults.items())
